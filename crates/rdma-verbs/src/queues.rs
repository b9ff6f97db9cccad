//! The state of a connection that its queue pair and its domain share, under one lock: the adapter's queues,
//! the memory in use by them, and the exposed memory.
//!
//! Each connection has its own lock, which on a server only the connection's task takes.

use std::{
    io,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use millrace_buffer::{SpanRef, Views};
use millrace_rdma::{
    Access, Completion, ConnectionError, Counters, Domain, ExposeError, Exposure, ExposureId, LocalKey,
    LocalUse, Memory, RegistrationKind, Segment, Segments, SteeringTag,
};
use parking_lot::Mutex;

use super::{
    adapter::{DeviceProperties, Protection},
    exposures::{By, Exposed, Exposures},
    fault,
    ffi::verbs::{IBV_WC_SUCCESS, NO_COMPLETION, ibv_wc},
    hardware::Hardware,
    local::Local,
    receive::Receives,
    send::{Sends, Work},
};

/// Time limit for the invalidation of a tag. It is executed after previously posted work, which a dead peer
/// may block; after the limit the connection, and thereby the peer's access, ends.
const INVALIDATION_LIMIT: Duration = Duration::from_millis(250);
/// Number of polls before the processor is yielded to other threads: a software device may need it for its
/// work.
const SPINS: u32 = 64;

/// Maximum number of completions to take at a time.
const BATCH: usize = 32;

/// The queues of a connection that is not closed.
pub(super) struct Queues {
    // First: after its drop the adapter does not use the memory of the other fields.
    pub(super) hardware: Hardware,
    pub(super) sends: Sends,
    pub(super) receives: Receives,
    local: Local,
    exposures: Exposures,
    /// The completion flags that report a tag invalidated by the peer.
    invalidated: u32,
    /// Buffer for completions.
    completed: [ibv_wc; BATCH],
}

/// The state behind the lock.
pub(super) struct Inner {
    /// `None` after the end of the connection.
    pub(super) queues: Option<Queues>,
    /// Completions that were not yet reported.
    pub(super) done: Vec<Completion>,
    /// The error that ends the connection.
    pub(super) fault: Option<ConnectionError>,
    /// Work was flushed: the connection has ended, and its cause is not yet known.
    pub(super) flushed: bool,
    pub(super) counters: Counters,
}

/// The state of a connection, shared by its queue pair and its domain.
pub(super) struct Shared(pub(super) Mutex<Inner>);

impl Shared {
    pub(super) fn new(hardware: Hardware, properties: &DeviceProperties) -> Arc<Self> {
        let sizes = hardware.sizes();
        let receives = Receives::new(sizes.receive, hardware.shared_receives());
        let queues = Queues {
            hardware,
            sends: Sends::new(sizes, properties.iwarp),
            receives,
            local: Local::new(properties.iwarp),
            exposures: Exposures::new(properties.windows),
            invalidated: properties.invalidated,
            completed: [NO_COMPLETION; BATCH],
        };
        Arc::new(Self(Mutex::new(Inner {
            queues: Some(queues),
            done: Vec::new(),
            fault: None,
            flushed: false,
            counters: Counters::default(),
        })))
    }
}

impl Drop for Queues {
    fn drop(&mut self) {
        // Stop the queue pair, and notify the peer. The connection may have ended already.
        let _ = self.hardware.id.disconnect();
        self.exposures.free_windows();
    }
}

impl Queues {
    fn protection(&self) -> Arc<Protection> {
        Arc::clone(self.hardware.protection())
    }
}

impl Inner {
    /// Posts as much work as the adapter's queues can hold.
    pub(super) fn post(&mut self) {
        let Some(q) = &mut self.queues else { return };
        if self.fault.is_some() || self.flushed {
            return;
        }
        let protection = q.protection();
        let posted = q.receives.post(&mut q.hardware, &protection);
        let posted = posted.and_then(|()| q.sends.post(&mut q.hardware, &protection, &q.local));
        if let Err(e) = posted {
            self.fault = Some(fault::of_call("post work to the RDMA device", &e));
        }
    }

    /// Takes completions, without waiting.
    pub(super) fn reap(&mut self) {
        self.reap_sends();
        self.reap_receives();
    }

    fn reap_sends(&mut self) {
        while let Some(q) = &mut self.queues {
            let n = match q.hardware.poll_send(&mut q.completed) {
                Ok(n) => n,
                Err(e) => return self.end(fault::of_call("poll the RDMA device", &e)),
            };
            for wc in &q.completed[..n] {
                if wc.status == IBV_WC_SUCCESS {
                    q.sends.complete(wc.wr_id, &mut self.done);
                } else {
                    record_failure(wc, &mut self.fault, &mut self.flushed);
                }
            }
            if n < q.completed.len() {
                return;
            }
        }
    }

    fn reap_receives(&mut self) {
        while let Some(q) = &mut self.queues {
            let n = match q.hardware.poll_receive(&mut q.completed) {
                Ok(n) => n,
                Err(e) => return self.end(fault::of_call("poll the RDMA device", &e)),
            };
            for wc in &q.completed[..n] {
                let buffer = q.receives.take(wc.wr_id);
                if wc.status != IBV_WC_SUCCESS {
                    record_failure(wc, &mut self.fault, &mut self.flushed);
                } else if let Some(mut buffer) = buffer {
                    if !q.receives.count() {
                        self.fault.get_or_insert_with(fault::too_many_messages);
                        continue;
                    }
                    buffer.set_len(buffer.len().min(wc.byte_len as usize));
                    let tag = (wc.wc_flags & q.invalidated != 0).then_some(wc.invalidated_rkey);
                    let invalidated = tag.filter(|t| q.exposures.invalidated(*t)).map(SteeringTag);
                    self.counters.receives += 1;
                    self.done.push(Completion::Received { buffer, invalidated });
                }
            }
            if n < q.completed.len() {
                return;
            }
        }
    }

    /// Records that `error` ends the connection, if there is no earlier error.
    pub(super) fn end(&mut self, error: ConnectionError) {
        self.fault.get_or_insert(error);
    }

    /// Requests events. Returns whether a request is new. Completions of Sends that are not awaited are
    /// processed at the next event; if such a Send fails, the posted receives are flushed, which raises an
    /// event.
    pub(super) fn arm(&mut self, all_sends: bool) -> bool {
        let Some(q) = &mut self.queues else { return false };
        let sends = all_sends || q.sends.is_awaited() || q.receives.is_empty();
        match q.hardware.arm(sends) {
            Ok(new) => new,
            Err(e) => {
                self.end(fault::of_call("arm the completion queue of the RDMA device", &e));
                true
            }
        }
    }

    /// Closes the connection: the adapter stops, then all memory is released.
    pub(super) fn close(&mut self) {
        self.queues = None;
    }

    /// Invalidates the tag of a window, and waits for the completion. Returns false if the connection has
    /// ended instead.
    fn invalidate(&mut self, rkey: u32) -> bool {
        let deadline = Instant::now() + INVALIDATION_LIMIT;
        let mut seq = None;
        for spin in 1_u32.. {
            self.reap_sends();
            if self.fault.is_some() || self.flushed {
                return false;
            }
            let Some(q) = &mut self.queues else { return false };
            match seq {
                Some(seq) if q.sends.is_completed(seq) => return true,
                None if !q.sends.is_full() => match q.sends.post_invalidation(&mut q.hardware, rkey) {
                    Ok(posted) => seq = Some(posted),
                    Err(e) => self.end(fault::of_call("invalidate a steering tag", &e)),
                },
                _ => {}
            }
            if spin.is_multiple_of(SPINS) {
                if Instant::now() > deadline {
                    break;
                }
                thread::yield_now();
            }
        }
        self.end(ConnectionError::Io(
            "the peer does not respond: the connection was ended to revoke its access to memory".into(),
        ));
        false
    }
}

/// Records the status of a failed completion.
fn record_failure(wc: &ibv_wc, fault: &mut Option<ConnectionError>, flushed: &mut bool) {
    match fault::of_status(wc.status, wc.vendor_err) {
        Some(e) => {
            fault.get_or_insert(e);
        }
        None => *flushed = true,
    }
}

impl Domain for Shared {
    fn expose(&self, by: RegistrationKind, memory: Memory, access: Access) -> Result<Exposure, ExposeError> {
        if matches!((&memory, access), (Memory::Shared(_), Access::RemoteWrite)) {
            return Err(ExposeError { memory, reason: "shared memory is read-only" });
        }
        let Ok(length) = u32::try_from(memory.len()) else {
            return Err(ExposeError { memory, reason: "the region has 4 GiB or more" });
        };
        let mut inner = self.0.lock();
        let Some(q) = &mut inner.queues else {
            return Err(ExposeError { memory, reason: "the connection has ended" });
        };
        let protection = q.protection();
        let (tag, offset, binding) = q.exposures.expose(&protection, by, memory, access)?;
        if let Some(b) = binding {
            q.sends.push(Work::Bind(b));
        }
        let segment = Segment { handle: SteeringTag(tag), length, offset };
        Ok(Exposure { id: ExposureId(tag.into()), segments: Segments::from_elem(segment, 1) })
    }

    fn revoke(&self, id: ExposureId) -> Option<Memory> {
        let tag = tag_of(id)?;
        let mut inner = self.0.lock();
        // A receive may report that the peer has invalidated the tag.
        inner.reap_receives();
        let q = inner.queues.as_mut()?;
        let Exposed { by, memory, valid } = q.exposures.remove(tag)?;
        match by {
            By::Region(registration) => drop(registration),
            By::Window(window, reserved) => {
                // A bind request that was not posted is removed.
                let reachable = !q.sends.cancel_binding(tag) && valid;
                let over = reachable && !inner.invalidate(tag);
                match &mut inner.queues {
                    Some(q) if reserved => q.exposures.return_window(window),
                    _ => drop(window),
                }
                if over {
                    inner.close();
                }
            }
            By::Nothing => {}
        }
        Some(memory)
    }

    fn is_valid(&self, id: ExposureId) -> bool {
        let inner = self.0.lock();
        tag_of(id).is_some_and(|tag| inner.queues.as_ref().is_some_and(|q| q.exposures.is_valid(tag)))
    }

    fn exposed(&self) -> (usize, usize) {
        self.0.lock().queues.as_ref().map_or((0, 0), |q| q.exposures.count())
    }

    fn reserve_windows(&self, count: usize, _largest: usize) -> usize {
        self.0.lock().queues.as_mut().map_or(0, |q| {
            let protection = q.protection();
            q.exposures.reserve(&protection, count)
        })
    }

    fn registers_local(&self, by: RegistrationKind) -> bool {
        by == RegistrationKind::Region
    }

    fn register_local(&self, by: RegistrationKind, pieces: &[&[u8]], used: LocalUse) -> Option<LocalKey> {
        if !self.registers_local(by) {
            return None;
        }
        self.registered(|local, protection| local.register(protection, pieces, used))
    }

    fn keep_local(&self, span: &SpanRef) -> Option<LocalKey> {
        self.registered(|local, protection| local.keep(protection, span))
    }

    fn deregister_local(&self, key: LocalKey) {
        if let Some(q) = &mut self.0.lock().queues {
            q.local.deregister(key);
        }
    }

    fn copy_out(&self, id: ExposureId, to: &mut [u8]) -> bool {
        self.with_exposed(id, |memory| memory.copy_out(to))
    }

    fn copy_in(&self, id: ExposureId, from: &Views) -> bool {
        self.with_exposed(id, |memory| memory.copy_in(from))
    }
}

impl Shared {
    /// Registers memory for local use, if the device has the resources.
    fn registered(
        &self,
        register: impl FnOnce(&mut Local, &Protection) -> io::Result<LocalKey>,
    ) -> Option<LocalKey> {
        let mut inner = self.0.lock();
        let q = inner.queues.as_mut()?;
        let protection = q.protection();
        let registered = register(&mut q.local, &protection);
        registered.inspect_err(|error| tracing::debug!(%error, "cannot register memory for local use")).ok()
    }

    fn with_exposed(&self, id: ExposureId, f: impl FnOnce(&mut Memory) -> bool) -> bool {
        let mut inner = self.0.lock();
        let (Some(q), Some(tag)) = (&mut inner.queues, tag_of(id)) else { return false };
        q.exposures.get_mut(tag).is_some_and(|e| f(&mut e.memory))
    }
}

/// The id of an exposure is its tag.
fn tag_of(id: ExposureId) -> Option<u32> {
    u32::try_from(id.0).ok()
}
