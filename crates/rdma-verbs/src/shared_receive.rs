//! A receive queue that connections share, so that many idle ones do not hold memory for receives each.
//!
//! Its receives belong to it, not to a connection: it keeps itself full, with the buffers that its connections post and
//! with more from its arena, and gives back what it does not need. A connection that ends takes none along, and the last
//! one that goes takes the queue.
//!
//! A connection that ends in the middle of a message may take the receive with it that this message had begun to fill,
//! and nothing tells. So the queue has one receive more for every connection that it has lost, and after
//! [`CONNECTIONS`] of them new ones get another queue: then no peer can drain it by dying again and again.

#![allow(unsafe_code)] // Foreign functions; gives the adapter memory that this module keeps.

use std::{
    io,
    ptr::{self, NonNull},
    sync::{Arc, Once, Weak},
};

use millrace_buffer::{Arena, Buffer};
use millrace_rdma::ConnectParams;
use parking_lot::Mutex;

use super::{
    adapter::{Abilities, Protection},
    ffi::{inline, verbs::*},
    receive::Posted,
};

/// Connections that one queue serves in its life.
const CONNECTIONS: usize = 256;

/// What connections ask for who share a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Shape {
    /// Receives.
    depth: usize,
    /// Bytes of each.
    bytes: usize,
}

impl Shape {
    /// What a connection with these parameters may share on a device, if it shall and can.
    pub(super) fn of(params: &ConnectParams, abilities: &Abilities) -> Option<Self> {
        static REFUSED: Once = Once::new();
        if params.shared_receives == 0 || params.first_receive == 0 {
            return None;
        }
        let room = abilities.max_srq_wr.min(abilities.max_cqe) as usize;
        let why = if abilities.iwarp {
            "iWARP devices end a connection on which a message finds no receive"
        } else if !abilities.may_share() {
            "without memory windows every connection has a protection domain of its own"
        } else if room <= CONNECTIONS {
            "the device has none, or too small ones"
        } else {
            let depth = params.shared_receives.min(room - CONNECTIONS);
            return Some(Self { depth, bytes: params.first_receive });
        };
        REFUSED.call_once(|| tracing::warn!("no shared receive queue: {why}; each connection has its own"));
        None
    }
}

/// The receives of a shared queue.
#[derive(Default)]
struct Level {
    posted: Posted,
    /// Connections that it has or had, and those of them that are over.
    joined: usize,
    left: usize,
}

/// A shared receive queue. Its queue pairs keep it.
pub(super) struct SharedReceives {
    shape: Shape,
    arena: Arena,
    level: Mutex<Level>,
    protection: Arc<Protection>,
    srq: NonNull<ibv_srq>,
}

// SAFETY: libibverbs may be called from any thread.
unsafe impl Send for SharedReceives {}
// SAFETY: as above; the rest is behind a lock.
unsafe impl Sync for SharedReceives {}

/// All of them.
static QUEUES: Mutex<Vec<Weak<SharedReceives>>> = Mutex::new(Vec::new());

impl SharedReceives {
    /// A queue for one connection more, in `protection`; made if there is none. [`Self::leave`] follows when its
    /// queue pair is gone.
    pub(super) fn join(shape: Shape, protection: &Arc<Protection>, arena: &Arena) -> io::Result<Arc<Self>> {
        let mut queues = QUEUES.lock();
        queues.retain(|q| q.strong_count() > 0);
        for queue in queues.iter().filter_map(Weak::upgrade) {
            if queue.shape == shape && Arc::ptr_eq(&queue.protection, protection) && queue.admit() {
                return Ok(queue);
            }
        }
        let made = Arc::new(Self::new(shape, protection, arena)?);
        made.admit();
        made.fill(&mut Vec::new())?;
        queues.push(Arc::downgrade(&made));
        Ok(made)
    }

    fn new(shape: Shape, protection: &Arc<Protection>, arena: &Arena) -> io::Result<Self> {
        let attr = ibv_srq_attr { max_wr: Self::most(shape) as u32, max_sge: 1, srq_limit: 0 };
        let mut init = ibv_srq_init_attr { srq_context: ptr::null_mut(), attr };
        let create = protection.libraries().verbs.ibv_create_srq;
        // SAFETY: the domain lives, and longer than the queue, which keeps it.
        let srq = NonNull::new(unsafe { create(protection.as_ptr(), &mut init) })
            .ok_or_else(io::Error::last_os_error)?;
        tracing::debug!(?shape, "shared receive queue");
        let (protection, arena) = (Arc::clone(protection), arena.clone());
        Ok(Self { shape, arena, level: Mutex::default(), protection, srq })
    }

    /// The most receives that a queue has, and so the most messages that can wait in a connection's completion queue.
    fn most(shape: Shape) -> usize {
        shape.depth + CONNECTIONS
    }

    /// The completions of receives that one connection may have at once.
    pub(super) fn completions(&self) -> u32 {
        Self::most(self.shape) as u32
    }

    /// For the modules with unsafe code. Valid as long as `self`.
    pub(super) fn as_ptr(&self) -> *mut ibv_srq {
        self.srq.as_ptr()
    }

    fn admit(&self) -> bool {
        let mut level = self.level.lock();
        let room = level.joined < CONNECTIONS;
        level.joined += usize::from(room);
        room
    }

    /// A connection is over, and its queue pair is gone.
    pub(super) fn leave(&self) {
        self.level.lock().left += 1;
        if let Err(error) = self.fill(&mut Vec::new()) {
            tracing::warn!(%error, "cannot refill a shared receive queue");
        }
    }

    /// Fills the queue up, with the buffers in `offered`, and with others if these are too few. What is left of them
    /// goes back to its arena.
    pub(super) fn fill(&self, offered: &mut Vec<Buffer>) -> io::Result<()> {
        let Level { posted, left, .. } = &mut *self.level.lock();
        let mut offered = offered.drain(..).filter(|b| b.len() == self.shape.bytes);
        while posted.len() < self.shape.depth + *left {
            // Without memory there are fewer receives until a connection has some again.
            let Some(buffer) = offered.next().or_else(|| self.arena.alloc(self.shape.bytes).ok()) else {
                break;
            };
            posted.add(buffer, &self.protection)?;
        }
        posted.submit(|first| {
            let mut bad = ptr::null_mut();
            // SAFETY: valid requests, linked. Their buffers are in `posted` until they are completed, or the queue is
            // gone.
            match unsafe { inline::ibv_post_srq_recv(self.srq.as_ptr(), first, &mut bad) } {
                0 => Ok(()),
                rc => Err(io::Error::from_raw_os_error(rc.abs())),
            }
        })
    }

    /// The buffer of a completed receive.
    pub(super) fn take(&self, wr_id: u64) -> Option<Buffer> {
        self.level.lock().posted.take(wr_id)
    }
}

impl Drop for SharedReceives {
    fn drop(&mut self) {
        // SAFETY: ours; its queue pairs, which keep it, are gone. The adapter uses its buffers no more.
        unsafe { (self.protection.libraries().verbs.ibv_destroy_srq)(self.srq.as_ptr()) };
    }
}
