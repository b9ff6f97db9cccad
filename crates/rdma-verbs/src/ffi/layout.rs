//! Sizes and offsets of the structures in the headers of rdma-core 44, as compiled for x86-64 (`sizeof`,
//! `offsetof`). Other 64-bit architectures differ only in fields after a `pthread_mutex_t`, whose size
//! depends on the C library.

use std::mem::{offset_of, size_of};

use super::{cm::*, verbs::*};

macro_rules! layout {
    ($name:ident, $size:literal, { $($field:ident: $offset:literal),* }) => {
        const _: () = assert!(size_of::<$name>() == $size);
        layout!($name, { $($field: $offset),* });
    };
    ($name:ident, { $($field:ident: $offset:literal),* }) => {
        $(const _: () = assert!(offset_of!($name, $field) == $offset);)*
    };
}

layout!(ibv_device, { node_type: 16, transport_type: 20, name: 24 });
layout!(ibv_device_attr, 232, { fw_ver: 0, node_guid: 64, max_mr_size: 80, page_size_cap: 88, max_qp: 108, max_qp_wr: 112, device_cap_flags: 116, max_sge: 120, max_sge_rd: 124, max_cq: 128, max_cqe: 132, max_mr: 136, max_pd: 140, max_qp_rd_atom: 144, max_res_rd_atom: 152, max_qp_init_rd_atom: 156, max_mw: 176, max_srq: 212, max_srq_wr: 216, max_srq_sge: 220, phys_port_cnt: 227 });
layout!(ibv_device_attr_ex, 400, { orig_attr: 0, comp_mask: 232, odp_caps: 240 });
layout!(ibv_port_attr, 52, { state: 0, max_mtu: 4, active_mtu: 8, gid_tbl_len: 12, port_cap_flags: 16, max_msg_sz: 20, lid: 34, active_width: 43, active_speed: 44, link_layer: 46, port_cap_flags2: 48 });
layout!(ibv_gid_entry, 32, { gid: 0, gid_index: 16, port_num: 20, gid_type: 24, ndev_ifindex: 28 });
layout!(ibv_context_ops, 256, { alloc_mw: 56, bind_mw: 64, dealloc_mw: 72, poll_cq: 88, req_notify_cq: 96, post_srq_recv: 160, post_send: 200, post_recv: 208 });
layout!(ibv_context, 328, { device: 0, ops: 8, cmd_fd: 264, async_fd: 268, num_comp_vectors: 272, mutex: 280, abi_compat: 320 });
layout!(verbs_context, 648, { query_port: 0, query_device_ex: 216, sz: 312, context: 320 });
layout!(rdma_addr, 296, { addr: 256 });
layout!(rdma_route, 312, { addr: 0, path_rec: 296, num_paths: 304 });
layout!(rdma_event_channel, 4, { fd: 0 });
layout!(rdma_cm_id, { verbs: 0, channel: 8, context: 16, qp: 24, route: 32, ps: 344, port_num: 348 });
layout!(ibv_wc, 48, { wr_id: 0, status: 8, opcode: 12, vendor_err: 16, byte_len: 20, invalidated_rkey: 24, qp_num: 28, wc_flags: 36, dlid_path_bits: 45 });
layout!(ibv_mw_bind_info, 32, { mr: 0, addr: 8, length: 16, mw_access_flags: 24 });
layout!(ibv_pd, 16, { context: 0, handle: 8 });
layout!(ibv_srq, { context: 0, srq_context: 8, pd: 16, handle: 24 });
layout!(ibv_srq_attr, 12, { max_wr: 0, max_sge: 4, srq_limit: 8 });
layout!(ibv_srq_init_attr, 24, { srq_context: 0, attr: 8 });
layout!(ibv_mr, 48, { context: 0, pd: 8, addr: 16, length: 24, handle: 32, lkey: 36, rkey: 40 });
layout!(ibv_mw, 32, { context: 0, pd: 8, rkey: 16, handle: 20, r#type: 24 });
layout!(ibv_cq, { context: 0, channel: 8, cq_context: 16, handle: 24, cqe: 28 });
layout!(ibv_comp_channel, 16, { context: 0, fd: 8, refcnt: 12 });
layout!(ibv_qp_attr, 144, { min_rnr_timer: 128 });
layout!(ibv_qp_init_attr, 64, { qp_context: 0, send_cq: 8, recv_cq: 16, srq: 24, cap: 32, qp_type: 52, sq_sig_all: 56 });
layout!(ibv_sge, 16, { addr: 0, length: 8, lkey: 12 });
layout!(ibv_send_wr, 128, { wr_id: 0, next: 8, sg_list: 16, num_sge: 24, opcode: 28, send_flags: 32, invalidate_rkey: 36, wr: 40, qp_type: 72, bind_mw: 80 });
layout!(ibv_recv_wr, 32, { wr_id: 0, next: 8, sg_list: 16, num_sge: 24 });
layout!(ibv_qp, { context: 0, qp_context: 8, pd: 16, send_cq: 24, recv_cq: 32, srq: 40, handle: 48, qp_num: 52 });
layout!(rdma_conn_param, 24, { private_data: 0, private_data_len: 8, responder_resources: 9, initiator_depth: 10, flow_control: 11, retry_count: 12, rnr_retry_count: 13, srq: 14, qp_num: 16 });
layout!(rdma_cm_event, { id: 0, listen_id: 8, event: 16, status: 20, param: 24 });
