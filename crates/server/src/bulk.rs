//! Limits of bulk data in replies.

use millrace_nfs::{Bulk, v4::CHANGE_BYTES};

/// Maximum bytes of a list, independent of the client's request: with the headers of the reply it fits in 256 KiB of memory.
/// A page of a directory of this size takes about as long as a READ of 1 MiB, and others of the shard wait for it.
pub(crate) const MAX_PAGE: u32 = 240 << 10;
/// Maximum bytes of the text of a symbolic link.
pub(crate) const MAX_LINK: u32 = 4096;
/// Maximum bytes of the value of an extended attribute.
pub(crate) const MAX_VALUE: u32 = millrace_vfs::XATTR_SIZE_MAX as u32;

/// Bytes of memory for `bulk`. `rtmax` is the maximum size of READ.
pub(crate) fn bytes(bulk: Bulk, rtmax: u32) -> u32 {
    match bulk {
        Bulk::Data(count) => count.min(rtmax),
        Bulk::List(count) => count.min(MAX_PAGE),
        Bulk::Target => MAX_LINK,
        // The value is in one buffer with the other results.
        Bulk::Value => MAX_VALUE + CHANGE_BYTES as u32,
    }
}
