//! Sizes and offsets that a C compiler gave for the headers of rdma-core 44 on x86-64 (`sizeof`, `offsetof`). Other 64-bit
//! machines differ only in what follows a `pthread_mutex_t`, whose size is the C library's.

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
