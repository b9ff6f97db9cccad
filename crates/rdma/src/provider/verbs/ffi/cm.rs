//! What librdmacm shares with its callers (rdma-core `librdmacm/rdma_cma.h`), under its own names.

use std::ffi::{c_int, c_uint, c_void};

use super::verbs::ibv_context;

pub(crate) const RDMA_PS_TCP: c_uint = 0x0106;

#[repr(C)]
pub(crate) struct rdma_addr {
    pub(crate) src_addr: libc::sockaddr_storage,
    pub(crate) dst_addr: libc::sockaddr_storage,
    pub(crate) addr: [u64; 5],
}

#[repr(C)]
pub(crate) struct rdma_route {
    pub(crate) addr: rdma_addr,
    pub(crate) path_rec: *mut c_void,
    pub(crate) num_paths: c_int,
}

#[repr(C)]
pub(crate) struct rdma_event_channel {
    pub(crate) fd: c_int,
}

/// Allocated by the library; what follows is not used here.
#[repr(C)]
pub(crate) struct rdma_cm_id {
    pub(crate) verbs: *mut ibv_context,
    pub(crate) channel: *mut rdma_event_channel,
    pub(crate) context: *mut c_void,
    pub(crate) qp: *mut c_void,
    pub(crate) route: rdma_route,
    pub(crate) ps: c_uint,
    pub(crate) port_num: u8,
}
