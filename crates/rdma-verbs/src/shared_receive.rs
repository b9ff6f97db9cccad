//! A receive queue that connections share, so that many idle connections do not each hold memory for
//! receives.
//!
//! The receives belong to the queue, not to a connection: the queue is refilled with buffers that connections
//! post and with others from its arena, and returns surplus buffers. A connection that ends takes no receives
//! with it, and the last one destroys the queue.
//!
//! A connection that ends in the middle of a message may consume a receive that the message had begun to
//! fill, without any report. So the queue gets one more receive for each connection that has ended, and after
//! [`CONNECTIONS`] connections new ones use another queue; thereby no peer can exhaust a queue by repeated
//! connection failures.

#![allow(unsafe_code)] // Foreign functions; posts memory that this module owns.

use std::{
    io,
    ptr::{self, NonNull},
    sync::{Arc, Once, Weak},
};

use millrace_buffer::{Arena, Buffer};
use millrace_rdma::ConnectParams;
use parking_lot::Mutex;

use super::{
    adapter::{DeviceProperties, Protection},
    ffi::{inline, verbs::*},
    receive::Posted,
};

/// Number of connections that one queue serves in its lifetime.
const CONNECTIONS: usize = 256;

/// The parameters that connections must have in common to share a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Shape {
    /// Number of receives.
    depth: usize,
    /// Size of each in bytes.
    bytes: usize,
}

impl Shape {
    /// The parameters of a connection on a device, if it can use a shared queue.
    pub(super) fn of(params: &ConnectParams, properties: &DeviceProperties) -> Option<Self> {
        static WARNED: Once = Once::new();
        if params.shared_receives == 0 || params.first_receive == 0 {
            return None;
        }
        let room = properties.max_srq_wr.min(properties.max_cqe) as usize;
        let why = if properties.iwarp {
            "an iWARP device ends a connection on which a message finds no receive"
        } else if !properties.may_share() {
            "the device has no memory windows, so each connection has its own protection domain"
        } else if room <= CONNECTIONS {
            "the device's shared receive queues are missing or too small"
        } else {
            let depth = params.shared_receives.min(room - CONNECTIONS);
            return Some(Self { depth, bytes: params.first_receive });
        };
        WARNED.call_once(|| tracing::warn!("cannot share receives: {why}; each connection uses its own"));
        None
    }
}

/// The receives of a shared queue, and the count of its connections.
#[derive(Default)]
struct QueueState {
    posted: Posted,
    /// Number of connections so far, and of those that have ended.
    joined: usize,
    left: usize,
}

/// A shared receive queue. Its queue pairs keep references.
pub(super) struct SharedReceives {
    shape: Shape,
    arena: Arena,
    state: Mutex<QueueState>,
    protection: Arc<Protection>,
    srq: NonNull<ibv_srq>,
}

// SAFETY: libibverbs may be called from any thread.
unsafe impl Send for SharedReceives {}
// SAFETY: as above; the rest is behind a lock.
unsafe impl Sync for SharedReceives {}

/// All shared queues.
static QUEUES: Mutex<Vec<Weak<SharedReceives>>> = Mutex::new(Vec::new());

impl SharedReceives {
    /// Returns a queue in `protection` for one more connection, and creates it if necessary. [`Self::leave`]
    /// must be called after its queue pair is destroyed.
    pub(super) fn join(shape: Shape, protection: &Arc<Protection>, arena: &Arena) -> io::Result<Arc<Self>> {
        let mut queues = QUEUES.lock();
        queues.retain(|q| q.strong_count() > 0);
        for queue in queues.iter().filter_map(Weak::upgrade) {
            if queue.shape == shape && Arc::ptr_eq(&queue.protection, protection) && queue.admit() {
                return Ok(queue);
            }
        }
        let created = Arc::new(Self::new(shape, protection, arena)?);
        created.admit();
        created.fill(&mut Vec::new())?;
        queues.push(Arc::downgrade(&created));
        Ok(created)
    }

    fn new(shape: Shape, protection: &Arc<Protection>, arena: &Arena) -> io::Result<Self> {
        let attr = ibv_srq_attr { max_wr: Self::max_receives(shape) as u32, max_sge: 1, srq_limit: 0 };
        let mut init = ibv_srq_init_attr { srq_context: ptr::null_mut(), attr };
        let create = protection.libraries().verbs.ibv_create_srq;
        // SAFETY: the domain is valid, and the queue keeps it.
        let srq = NonNull::new(unsafe { create(protection.as_ptr(), &mut init) })
            .ok_or_else(io::Error::last_os_error)?;
        tracing::debug!(?shape, "shared receive queue");
        let (protection, arena) = (Arc::clone(protection), arena.clone());
        Ok(Self { shape, arena, state: Mutex::default(), protection, srq })
    }

    /// Maximum number of receives of a queue, and thereby of messages in a connection's completion queue.
    fn max_receives(shape: Shape) -> usize {
        shape.depth + CONNECTIONS
    }

    /// Maximum number of receive completions of one connection at a time.
    pub(super) fn completions(&self) -> u32 {
        Self::max_receives(self.shape) as u32
    }

    /// Pointer for the modules with unsafe code. Valid as long as `self`.
    pub(super) fn as_ptr(&self) -> *mut ibv_srq {
        self.srq.as_ptr()
    }

    fn admit(&self) -> bool {
        let mut state = self.state.lock();
        let room = state.joined < CONNECTIONS;
        state.joined += usize::from(room);
        room
    }

    /// Counts a connection that has ended, after its queue pair was destroyed.
    pub(super) fn leave(&self) {
        self.state.lock().left += 1;
        if let Err(error) = self.fill(&mut Vec::new()) {
            tracing::warn!(%error, "cannot refill a shared receive queue");
        }
    }

    /// Refills the queue with the buffers in `offered`, and with others if necessary. Surplus buffers return
    /// to their arena.
    pub(super) fn fill(&self, offered: &mut Vec<Buffer>) -> io::Result<()> {
        let QueueState { posted, left, .. } = &mut *self.state.lock();
        let mut offered = offered.drain(..).filter(|b| b.len() == self.shape.bytes);
        while posted.len() < self.shape.depth + *left {
            // Without memory the queue has fewer receives until the next call.
            let Some(buffer) = offered.next().or_else(|| self.arena.alloc(self.shape.bytes).ok()) else {
                break;
            };
            posted.add(buffer, &self.protection)?;
        }
        posted.submit(|first| {
            let mut bad = ptr::null_mut();
            // SAFETY: valid, linked requests. Their buffers are in `posted` until their completion, or until
            // the queue is destroyed.
            match unsafe { inline::ibv_post_srq_recv(self.srq.as_ptr(), first, &mut bad) } {
                0 => Ok(()),
                rc => Err(io::Error::from_raw_os_error(rc.abs())),
            }
        })
    }

    /// Removes the buffer of a completed receive.
    pub(super) fn take(&self, wr_id: u64) -> Option<Buffer> {
        self.state.lock().posted.take(wr_id)
    }
}

impl Drop for SharedReceives {
    fn drop(&mut self) {
        // SAFETY: owned by this value; its queue pairs, which keep references, are destroyed. The adapter no
        // longer uses its buffers.
        unsafe { (self.protection.libraries().verbs.ibv_destroy_srq)(self.srq.as_ptr()) };
    }
}
