//! The inline functions of `verbs.h`, which call through the context's function table.

use std::{
    ffi::{c_int, c_uint},
    mem::{offset_of, size_of},
    ptr,
};

use super::{load::Verbs, verbs::*};

/// `verbs_get_ctx_op`: the extended context that contains `context`, if it includes the field at `offset`.
///
/// # Safety
/// `context` must be an open context of libibverbs.
unsafe fn extended(context: *mut ibv_context, offset: usize) -> Option<*const verbs_context> {
    // SAFETY: an open context. If the marker is set, it is the last member of a `verbs_context`, whose
    // preceding member `sz` contains the number of available bytes (counted from its end).
    unsafe {
        if (*context).abi_compat.addr() != usize::MAX {
            return None;
        }
        let outer = context.byte_sub(offset_of!(verbs_context, context)).cast::<verbs_context>().cast_const();
        let sz = (&raw const (*outer).sz).read();
        (sz >= size_of::<verbs_context>() - offset).then_some(outer)
    }
}

/// `ibv_query_port`.
///
/// # Safety
/// `context` must be an open context of libibverbs, and `verbs` that library.
pub(crate) unsafe fn ibv_query_port(
    verbs: &Verbs,
    context: *mut ibv_context,
    port: u8,
    attr: &mut ibv_port_attr,
) -> c_int {
    // SAFETY: an open context. An older driver fills a shorter structure: the rest stays zero.
    unsafe {
        if let Some(outer) = extended(context, offset_of!(verbs_context, query_port))
            && let Some(query) = (&raw const (*outer).query_port).read()
        {
            return query(context, port, attr, size_of::<ibv_port_attr>());
        }
        (verbs.ibv_query_port)(context, port, attr)
    }
}

/// `ibv_query_device_ex`.
///
/// # Safety
/// Those of [`ibv_query_port`]; `attr` must be zeroed.
pub(crate) unsafe fn ibv_query_device_ex(
    verbs: &Verbs,
    context: *mut ibv_context,
    attr: &mut ibv_device_attr_ex,
) -> c_int {
    // SAFETY: an open context; the passed size is that of the structure.
    unsafe {
        if let Some(outer) = extended(context, offset_of!(verbs_context, query_device_ex))
            && let Some(query) = (&raw const (*outer).query_device_ex).read()
        {
            let rc = query(context, ptr::null(), attr, size_of::<ibv_device_attr_ex>());
            if rc != libc::EOPNOTSUPP && rc != libc::ENOSYS {
                return rc;
            }
        }
        (verbs.ibv_query_device)(context, &mut attr.orig_attr)
    }
}

/// `ibv_alloc_mw`; null if the driver does not support windows.
///
/// # Safety
/// `pd` must be valid.
pub(crate) unsafe fn ibv_alloc_mw(pd: *mut ibv_pd, kind: c_uint) -> *mut ibv_mw {
    // SAFETY: a protection domain points to its open context.
    unsafe { (*(*pd).context).ops.alloc_mw.map_or(ptr::null_mut(), |alloc| alloc(pd, kind)) }
}

/// `ibv_dealloc_mw`.
///
/// # Safety
/// `mw` must be valid, and not be used afterwards.
pub(crate) unsafe fn ibv_dealloc_mw(mw: *mut ibv_mw) -> c_int {
    // SAFETY: a window points to its open context.
    unsafe { (*(*mw).context).ops.dealloc_mw.map_or(libc::EOPNOTSUPP, |dealloc| dealloc(mw)) }
}

/// `ibv_poll_cq`.
///
/// # Safety
/// `cq` must be valid.
pub(crate) unsafe fn ibv_poll_cq(cq: *mut ibv_cq, into: &mut [ibv_wc]) -> c_int {
    // SAFETY: a completion queue points to its open context; the passed count is the length of `into`.
    unsafe {
        (*(*cq).context).ops.poll_cq.map_or(-1, |poll| poll(cq, into.len() as c_int, into.as_mut_ptr()))
    }
}

/// `ibv_req_notify_cq`, for all completions.
///
/// # Safety
/// `cq` must be valid.
pub(crate) unsafe fn ibv_req_notify_cq(cq: *mut ibv_cq) -> c_int {
    // SAFETY: as above.
    unsafe { (*(*cq).context).ops.req_notify_cq.map_or(libc::EOPNOTSUPP, |arm| arm(cq, 0)) }
}

/// `ibv_post_send`.
///
/// # Safety
/// `qp` must be valid; `wr` must be a list of valid work requests, whose memory stays valid until their
/// completion.
pub(crate) unsafe fn ibv_post_send(
    qp: *mut ibv_qp,
    wr: *mut ibv_send_wr,
    bad: *mut *mut ibv_send_wr,
) -> c_int {
    // SAFETY: a queue pair points to its open context; the caller ensures the rest.
    unsafe { (*(*qp).context).ops.post_send.map_or(libc::EOPNOTSUPP, |post| post(qp, wr, bad)) }
}

/// `ibv_post_recv`.
///
/// # Safety
/// Those of [`ibv_post_send`].
pub(crate) unsafe fn ibv_post_recv(
    qp: *mut ibv_qp,
    wr: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: as above.
    unsafe { (*(*qp).context).ops.post_recv.map_or(libc::EOPNOTSUPP, |post| post(qp, wr, bad)) }
}

/// `ibv_post_srq_recv`.
///
/// # Safety
/// Those of [`ibv_post_send`], for a shared receive queue.
pub(crate) unsafe fn ibv_post_srq_recv(
    srq: *mut ibv_srq,
    wr: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: a shared receive queue points to its open context; the caller ensures the rest.
    unsafe { (*(*srq).context).ops.post_srq_recv.map_or(libc::EOPNOTSUPP, |post| post(srq, wr, bad)) }
}
