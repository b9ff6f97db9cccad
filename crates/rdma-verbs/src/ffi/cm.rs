//! The declarations of librdmacm in use (rdma-core `librdmacm/rdma_cma.h`), with their C names.

use std::ffi::{c_int, c_uint, c_void};

use super::verbs::{ibv_context, ibv_qp};

pub(crate) const RDMA_PS_TCP: c_uint = 0x0106;

pub(crate) const RDMA_CM_EVENT_ADDR_RESOLVED: c_uint = 0;
pub(crate) const RDMA_CM_EVENT_ADDR_ERROR: c_uint = 1;
pub(crate) const RDMA_CM_EVENT_ROUTE_RESOLVED: c_uint = 2;
pub(crate) const RDMA_CM_EVENT_ROUTE_ERROR: c_uint = 3;
pub(crate) const RDMA_CM_EVENT_CONNECT_REQUEST: c_uint = 4;
pub(crate) const RDMA_CM_EVENT_CONNECT_ERROR: c_uint = 6;
pub(crate) const RDMA_CM_EVENT_UNREACHABLE: c_uint = 7;
pub(crate) const RDMA_CM_EVENT_REJECTED: c_uint = 8;
pub(crate) const RDMA_CM_EVENT_ESTABLISHED: c_uint = 9;
pub(crate) const RDMA_CM_EVENT_DISCONNECTED: c_uint = 10;
pub(crate) const RDMA_CM_EVENT_DEVICE_REMOVAL: c_uint = 11;

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

/// Allocated by the library; later fields are omitted.
#[repr(C)]
pub(crate) struct rdma_cm_id {
    pub(crate) verbs: *mut ibv_context,
    pub(crate) channel: *mut rdma_event_channel,
    pub(crate) context: *mut c_void,
    pub(crate) qp: *mut ibv_qp,
    pub(crate) route: rdma_route,
    pub(crate) ps: c_uint,
    pub(crate) port_num: u8,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct rdma_conn_param {
    pub(crate) private_data: *const c_void,
    pub(crate) private_data_len: u8,
    pub(crate) responder_resources: u8,
    pub(crate) initiator_depth: u8,
    pub(crate) flow_control: u8,
    pub(crate) retry_count: u8,
    pub(crate) rnr_retry_count: u8,
    pub(crate) srq: u8,
    pub(crate) qp_num: u32,
}

/// The union `param` contains only the member for connections.
#[repr(C)]
pub(crate) struct rdma_cm_event {
    pub(crate) id: *mut rdma_cm_id,
    pub(crate) listen_id: *mut rdma_cm_id,
    pub(crate) event: c_uint,
    pub(crate) status: c_int,
    pub(crate) param: rdma_conn_param,
}
