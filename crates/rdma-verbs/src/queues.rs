//! What belongs to one connection and is shared by its queue pair and its domain, under one lock: the adapter's queues,
//! the memory that they use, and what is exposed.
//!
//! The lock is the connection's own. On a server only the connection's task takes it.

use std::{
    io,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use millrace_buffer::{SpanRef, Views};
use millrace_rdma::{
    Access, Completion, ConnectionError, Counters, Domain, ExposeError, Exposure, ExposureId, LocalKey,
    LocalUse, Means, Memory, Segment, Segments, SteeringTag,
};
use parking_lot::Mutex;

use super::{
    adapter::{Abilities, Protection},
    exposures::{By, Exposed, Exposures},
    fault,
    ffi::verbs::{IBV_WC_SUCCESS, NO_COMPLETION, ibv_wc},
    hardware::Hardware,
    local::Local,
    receive::Receives,
    send::{Sends, Work},
};

/// How long the invalidation of a tag may take. It is done in order with what was posted before it, which a peer that
/// has died may hold up: then its connection ends, and with it what it can reach.
const INVALIDATION_LIMIT: Duration = Duration::from_millis(250);
/// Looks for a completion before the processor is given to others: a software device may need it for its work.
const SPINS: u32 = 64;

/// Completions that are taken at once.
const BATCH: usize = 32;

/// The queues of a connection that is up.
pub(super) struct Queues {
    // First: when it is gone, the adapter uses none of the memory that the others keep.
    pub(super) hardware: Hardware,
    pub(super) sends: Sends,
    pub(super) receives: Receives,
    local: Local,
    exposures: Exposures,
    /// The flags of a completion that tell of a tag that the peer has invalidated.
    invalidated: u32,
    /// Room for completions.
    completed: [ibv_wc; BATCH],
}

/// A connection's part behind the lock.
pub(super) struct Inner {
    /// `None` when the connection is over.
    pub(super) queues: Option<Queues>,
    /// Completions that nobody was told of yet.
    pub(super) done: Vec<Completion>,
    /// Why the connection must end.
    pub(super) fault: Option<ConnectionError>,
    /// Work was flushed: the connection is over, and the reason is to come.
    pub(super) flushed: bool,
    pub(super) counters: Counters,
}

/// A connection, as its queue pair and its domain share it.
pub(super) struct Shared(pub(super) Mutex<Inner>);

impl Shared {
    pub(super) fn new(hardware: Hardware, abilities: &Abilities) -> Arc<Self> {
        let sizes = hardware.sizes();
        let receives = Receives::new(sizes.receive, hardware.shared_receives());
        let queues = Queues {
            hardware,
            sends: Sends::new(sizes, abilities.iwarp),
            receives,
            local: Local::new(abilities.iwarp),
            exposures: Exposures::new(abilities.windows),
            invalidated: abilities.invalidated,
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
        // Stops the queue pair, and tells the peer. The connection may be over already.
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
    /// Gives the adapter what it has room for.
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

    /// Takes what is completed, without waiting.
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
                    note(wc, &mut self.fault, &mut self.flushed);
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
                    note(wc, &mut self.fault, &mut self.flushed);
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

    /// The connection must end because of `error`, if there is no earlier reason.
    pub(super) fn end(&mut self, error: ConnectionError) {
        self.fault.get_or_insert(error);
    }

    /// Asks for events at what is waited for; whether that is new. Sends that nobody waits for are looked at when there
    /// is something else. If they fail, the receives are flushed, which is an event if there are any.
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

    /// The connection is over: the adapter stops, then everything that it used is released.
    pub(super) fn close(&mut self) {
        self.queues = None;
    }

    /// Makes a window's tag invalid, and waits until it is. False if the connection is over instead.
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
            "the peer does not answer: its access to memory had to be cut off".into(),
        ));
        false
    }
}

/// Notes what a completion without success says.
fn note(wc: &ibv_wc, fault: &mut Option<ConnectionError>, flushed: &mut bool) {
    match fault::of_status(wc.status, wc.vendor_err) {
        Some(e) => {
            fault.get_or_insert(e);
        }
        None => *flushed = true,
    }
}

impl Domain for Shared {
    fn expose(&self, by: Means, memory: Memory, access: Access) -> Result<Exposure, ExposeError> {
        if matches!((&memory, access), (Memory::Shared(_), Access::RemoteWrite)) {
            return Err(ExposeError { memory, reason: "shared memory is read-only" });
        }
        let Ok(length) = u32::try_from(memory.len()) else {
            return Err(ExposeError { memory, reason: "4 GiB or more in one region" });
        };
        let mut inner = self.0.lock();
        let Some(q) = &mut inner.queues else {
            return Err(ExposeError { memory, reason: "the connection is over" });
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
        // The peer may have invalidated it just now.
        inner.reap_receives();
        let q = inner.queues.as_mut()?;
        let Exposed { by, memory, valid } = q.exposures.remove(tag)?;
        match by {
            By::Region(registration) => drop(registration),
            By::Window(window, reserved) => {
                // A binding that was not posted yet is just forgotten.
                let reachable = !q.sends.cancel_binding(tag) && valid;
                let over = reachable && !inner.invalidate(tag);
                match &mut inner.queues {
                    Some(q) if reserved => q.exposures.give_back(window),
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

    fn registers_local(&self, by: Means) -> bool {
        by == Means::Registration
    }

    fn register_local(&self, by: Means, pieces: &[&[u8]], used: LocalUse) -> Option<LocalKey> {
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
    /// Registers memory for our own work, if the device has room for it.
    fn registered(
        &self,
        register: impl FnOnce(&mut Local, &Protection) -> io::Result<LocalKey>,
    ) -> Option<LocalKey> {
        let mut inner = self.0.lock();
        let q = inner.queues.as_mut()?;
        let protection = q.protection();
        let registered = register(&mut q.local, &protection);
        registered.inspect_err(|error| tracing::debug!(%error, "memory is not registered")).ok()
    }

    fn with_exposed(&self, id: ExposureId, f: impl FnOnce(&mut Memory) -> bool) -> bool {
        let mut inner = self.0.lock();
        let (Some(q), Some(tag)) = (&mut inner.queues, tag_of(id)) else { return false };
        q.exposures.get_mut(tag).is_some_and(|e| f(&mut e.memory))
    }
}

/// Exposures are named after their tags.
fn tag_of(id: ExposureId) -> Option<u32> {
    u32::try_from(id.0).ok()
}
