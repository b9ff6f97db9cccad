//! Receives: posted, and waiting to be.

#![allow(unsafe_code)] // Gives the adapter memory that this module keeps.

use std::{collections::VecDeque, io, ptr};

use buffer::Buffer;
use slab::Slab;

use super::{
    adapter::Protection,
    ffi::verbs::{ibv_recv_wr, ibv_sge},
    hardware::Hardware,
};

/// The receive queue's memory.
pub(super) struct Receives {
    depth: usize,
    /// The adapter has them. The key is the work request's identifier.
    posted: Slab<Buffer>,
    waiting: VecDeque<Buffer>,
    // The work requests of one call, kept for their capacity.
    requests: Vec<ibv_recv_wr>,
    pieces: Vec<ibv_sge>,
}

// SAFETY: the pointers in `requests` and `pieces` mean something only within `post`.
unsafe impl Send for Receives {}

impl Receives {
    pub(super) fn new(depth: usize) -> Self {
        Self {
            depth,
            posted: Slab::new(),
            waiting: VecDeque::new(),
            requests: Vec::new(),
            pieces: Vec::new(),
        }
    }

    pub(super) fn push(&mut self, buffer: Buffer) {
        self.waiting.push_back(buffer);
    }

    /// Whether the adapter has none.
    pub(super) fn is_empty(&self) -> bool {
        self.posted.is_empty()
    }

    /// Gives the adapter as many as it has room for, in one call.
    pub(super) fn post(&mut self, hardware: &mut Hardware, protection: &Protection) -> io::Result<()> {
        self.requests.clear();
        self.pieces.clear();
        while self.posted.len() < self.depth
            && let Some(buffer) = self.waiting.pop_front()
        {
            let (lkey, _) = protection.span(buffer.span())?;
            self.pieces.push(ibv_sge { addr: buffer.address() as u64, length: buffer.len() as u32, lkey });
            let wr_id = self.posted.insert(buffer) as u64;
            let (next, sg_list) = (ptr::null_mut(), ptr::null_mut());
            self.requests.push(ibv_recv_wr { wr_id, next, sg_list, num_sge: 1 });
        }
        let (n, first, pieces) = (self.requests.len(), self.requests.as_mut_ptr(), self.pieces.as_mut_ptr());
        for i in 0..n {
            // SAFETY: both lists have `n` elements and do not change until they are posted.
            unsafe {
                (*first.add(i)).sg_list = pieces.add(i);
                (*first.add(i)).next = if i + 1 < n { first.add(i + 1) } else { ptr::null_mut() };
            }
        }
        if n == 0 {
            return Ok(());
        }
        // SAFETY: a linked list of valid requests. Their buffers are in `posted` until they are completed; `Queues`
        // drops the hardware first.
        unsafe { hardware.post_receive(first) }
    }

    /// The buffer of a completed receive, with the `len` bytes that came.
    pub(super) fn complete(&mut self, wr_id: u64, len: u32) -> Option<Buffer> {
        let mut buffer = self.posted.try_remove(usize::try_from(wr_id).ok()?)?;
        buffer.set_len(buffer.len().min(len as usize));
        Some(buffer)
    }
}
