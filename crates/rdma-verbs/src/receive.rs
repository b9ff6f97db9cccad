//! Receives: the connection's own, posted and waiting, or its share of a shared receive queue.

#![allow(unsafe_code)] // Posts memory that this module owns.

use std::{collections::VecDeque, io, ptr, sync::Arc};

use millrace_buffer::Buffer;
use slab::Slab;

use super::{
    adapter::Protection,
    ffi::verbs::{ibv_recv_wr, ibv_sge},
    hardware::Hardware,
    shared_receive::SharedReceives,
};

/// Receives that are posted to the adapter.
#[derive(Default)]
pub(super) struct Posted {
    /// The key is the id of the work request.
    buffers: Slab<Buffer>,
    // The work requests of one call, kept for their capacity.
    requests: Vec<ibv_recv_wr>,
    pieces: Vec<ibv_sge>,
}

// SAFETY: the pointers in `requests` and `pieces` are used only between `link` and the posting.
unsafe impl Send for Posted {}

impl Posted {
    pub(super) fn len(&self) -> usize {
        self.buffers.len()
    }

    /// Adds a receive to this call.
    pub(super) fn add(&mut self, buffer: Buffer, protection: &Protection) -> io::Result<()> {
        let (lkey, _) = protection.span(buffer.span())?;
        self.pieces.push(ibv_sge { addr: buffer.address() as u64, length: buffer.len() as u32, lkey });
        let wr_id = self.buffers.insert(buffer) as u64;
        let (next, sg_list) = (ptr::null_mut(), ptr::null_mut());
        self.requests.push(ibv_recv_wr { wr_id, next, sg_list, num_sge: 1 });
        Ok(())
    }

    /// Posts the receives of this call, if any.
    pub(super) fn submit(&mut self, post: impl FnOnce(*mut ibv_recv_wr) -> io::Result<()>) -> io::Result<()> {
        let (n, first, pieces) = (self.requests.len(), self.requests.as_mut_ptr(), self.pieces.as_mut_ptr());
        for i in 0..n {
            // SAFETY: both lists have `n` elements and are not modified until they are posted.
            unsafe {
                (*first.add(i)).sg_list = pieces.add(i);
                (*first.add(i)).next = if i + 1 < n { first.add(i + 1) } else { ptr::null_mut() };
            }
        }
        let posted = if n == 0 { Ok(()) } else { post(first) };
        self.requests.clear();
        self.pieces.clear();
        posted
    }

    /// Removes the buffer of a completed receive.
    pub(super) fn take(&mut self, wr_id: u64) -> Option<Buffer> {
        self.buffers.try_remove(usize::try_from(wr_id).ok()?)
    }
}

/// The receives of one connection.
pub(super) enum Receives {
    /// Receives in the connection's own queue.
    Own { depth: usize, posted: Posted, waiting: VecDeque<Buffer> },
    /// Receives in a shared queue.
    Shared {
        queue: Arc<SharedReceives>,
        /// Number of messages that the peer may still send: receives posted by this connection minus those
        /// used. Without the limit, the peer could use receives of other connections.
        due: usize,
        /// Receives of this connection that were not yet offered to the queue.
        offered: Vec<Buffer>,
    },
}

impl Receives {
    pub(super) fn new(depth: usize, shared: Option<&Arc<SharedReceives>>) -> Self {
        match shared {
            None => Self::Own { depth, posted: Posted::default(), waiting: VecDeque::new() },
            Some(queue) => Self::Shared { queue: Arc::clone(queue), due: 0, offered: Vec::new() },
        }
    }

    pub(super) fn push(&mut self, buffer: Buffer) {
        match self {
            Self::Own { waiting, .. } => waiting.push_back(buffer),
            Self::Shared { due, offered, .. } => {
                *due += 1;
                offered.push(buffer);
            }
        }
    }

    /// Whether the adapter has no receives that it flushes at the end of the connection.
    pub(super) fn is_empty(&self) -> bool {
        match self {
            Self::Own { posted, .. } => posted.len() == 0,
            Self::Shared { .. } => true,
        }
    }

    /// Posts as many receives as the adapter's queue can hold, in one call.
    pub(super) fn post(&mut self, hardware: &mut Hardware, protection: &Protection) -> io::Result<()> {
        match self {
            Self::Own { depth, posted, waiting } => {
                while posted.len() < *depth
                    && let Some(buffer) = waiting.pop_front()
                {
                    posted.add(buffer, protection)?;
                }
                // SAFETY: valid, linked requests. Their buffers are in `posted` until their completion;
                // `Queues` drops the hardware first.
                posted.submit(|first| unsafe { hardware.post_receive(first) })
            }
            Self::Shared { queue, offered, .. } => queue.fill(offered),
        }
    }

    /// Removes the buffer of a completed receive.
    pub(super) fn take(&mut self, wr_id: u64) -> Option<Buffer> {
        match self {
            Self::Own { posted, .. } => posted.take(wr_id),
            Self::Shared { queue, .. } => queue.take(wr_id),
        }
    }

    /// Counts a message; false if the peer has exceeded the receives posted for it. (If the connection has
    /// its own receives, the adapter enforces this.)
    pub(super) fn count(&mut self) -> bool {
        match self {
            Self::Own { .. } => true,
            Self::Shared { due, .. } => match due.checked_sub(1) {
                Some(left) => {
                    *due = left;
                    true
                }
                None => false,
            },
        }
    }
}
