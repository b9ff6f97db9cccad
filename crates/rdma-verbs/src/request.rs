//! Work requests of the send queue in the adapter's format.

#![allow(unsafe_code)] // Links the requests of one call by pointers.

use std::ptr;

use super::ffi::verbs::*;

/// A request to bind a window.
pub(super) struct Binding {
    /// The window, which the requester keeps as long as the queues.
    pub(super) mw: *mut ibv_mw,
    /// The memory region of the span.
    pub(super) mr: *mut ibv_mr,
    pub(super) addr: usize,
    pub(super) len: usize,
    pub(super) access: u32,
    /// The tag of the binding.
    pub(super) rkey: u32,
}

/// The work requests of one call.
#[derive(Default)]
pub(super) struct Batch {
    pub(super) requests: Vec<ibv_send_wr>,
    pub(super) pieces: Vec<ibv_sge>,
    /// Windows, and their tags after the batch is posted.
    pub(super) bound: Vec<(*mut ibv_mw, u32)>,
}

impl Batch {
    /// Links the requests, and assigns to each its pieces.
    pub(super) fn link(&mut self) -> *mut ibv_send_wr {
        let (n, first, mut pieces) =
            (self.requests.len(), self.requests.as_mut_ptr(), self.pieces.as_mut_ptr());
        for i in 0..n {
            // SAFETY: there are `n` requests, whose pieces are consecutive in the list.
            unsafe {
                let wr = &mut *first.add(i);
                wr.sg_list = pieces;
                pieces = pieces.add(wr.num_sge as usize);
                wr.next = if i + 1 < n { first.add(i + 1) } else { ptr::null_mut() };
            }
        }
        first
    }
}

/// An empty work request.
pub(super) fn request(opcode: u32, num_sge: usize) -> ibv_send_wr {
    let bind_info = ibv_mw_bind_info { mr: ptr::null_mut(), addr: 0, length: 0, mw_access_flags: 0 };
    ibv_send_wr {
        wr_id: 0,
        next: ptr::null_mut(),
        sg_list: ptr::null_mut(),
        num_sge: num_sge as i32,
        opcode,
        send_flags: 0,
        invalidate_rkey: 0,
        wr: ibv_send_wr_rdma { remote_addr: 0, rkey: 0, rest: [0; 2] },
        qp_type: 0,
        bind_mw: ibv_send_wr_bind_mw { mw: ptr::null_mut(), rkey: 0, bind_info },
    }
}

/// The remote memory of a Write or a Read.
pub(super) fn remote(remote_addr: u64, rkey: u32) -> ibv_send_wr_rdma {
    ibv_send_wr_rdma { remote_addr, rkey, rest: [0; 2] }
}
