//! The inline functions of `verbs.h`: they call through the context that they are given.

use std::{
    ffi::c_int,
    mem::{offset_of, size_of},
};

use super::{load::Verbs, verbs::*};

/// `verbs_get_ctx_op`: the extended context that surrounds `context`, if it reaches back as far as `offset`.
///
/// # Safety
/// `context` is an open context of libibverbs.
unsafe fn extended(context: *mut ibv_context, offset: usize) -> Option<*const verbs_context> {
    // SAFETY: an open context; when the mark is there, it is the last member of a `verbs_context`, of which `sz`, the
    // member before it, says how many bytes there are (counted from its end).
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
/// `context` is an open context of libibverbs, and `verbs` that library.
pub(crate) unsafe fn ibv_query_port(
    verbs: &Verbs,
    context: *mut ibv_context,
    port: u8,
    attr: &mut ibv_port_attr,
) -> c_int {
    // SAFETY: an open context. An older driver fills a structure that ends sooner: the rest stays zero.
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
/// As [`ibv_query_port`]; `attr` is zero.
pub(crate) unsafe fn ibv_query_device_ex(
    verbs: &Verbs,
    context: *mut ibv_context,
    attr: &mut ibv_device_attr_ex,
) -> c_int {
    // SAFETY: an open context; the size that is passed is the structure's.
    unsafe {
        if let Some(outer) = extended(context, offset_of!(verbs_context, query_device_ex))
            && let Some(query) = (&raw const (*outer).query_device_ex).read()
        {
            let rc = query(context, std::ptr::null(), attr, size_of::<ibv_device_attr_ex>());
            if rc != libc::EOPNOTSUPP && rc != libc::ENOSYS {
                return rc;
            }
        }
        (verbs.ibv_query_device)(context, &mut attr.orig_attr)
    }
}
