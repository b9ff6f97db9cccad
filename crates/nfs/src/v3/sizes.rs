//! Sizes of replies, for which a requester must provide reply resources (RFC 8166 section 4.3) and a server memory, and
//! positions of data.

use millrace_xdr::Decoder;

use super::{FATTR_BYTES, MAX_HANDLE, Procedure};
use crate::Bulk;

/// Size of the RPC reply header in bytes: 24 with an AUTH_NONE verifier, plus a reserve for other verifiers.
pub const RPC_REPLY_HEAD: usize = 24 + SLACK;
const SLACK: usize = 24;

const STATUS: usize = 4;
const ATTR: usize = 4 + FATTR_BYTES;
const WCC: usize = 4 + 24 + ATTR;
const HANDLE: usize = 4 + MAX_HANDLE;

impl Procedure {
    /// Maximum size of the reply in bytes, including the RPC header, without payload (READ data, READLINK
    /// target). For READDIR and READDIRPLUS without entries: use [`readdir_reply_head`].
    pub const fn max_reply_head(self) -> usize {
        let results = match self {
            Self::Null => 0,
            Self::Getattr => STATUS + FATTR_BYTES,
            Self::Lookup => STATUS + HANDLE + 2 * ATTR,
            Self::Access => STATUS + ATTR + 4,
            Self::Readlink => STATUS + ATTR + 4,
            Self::Read => STATUS + ATTR + 12,
            Self::Write => STATUS + WCC + 16,
            Self::Create | Self::Mkdir | Self::Symlink | Self::Mknod => STATUS + 4 + HANDLE + ATTR + WCC,
            Self::Setattr | Self::Remove | Self::Rmdir => STATUS + WCC,
            Self::Rename => STATUS + 2 * WCC,
            Self::Link => STATUS + ATTR + WCC,
            Self::Readdir | Self::Readdirplus => STATUS + ATTR + 16,
            Self::Fsstat => STATUS + ATTR + 52,
            Self::Fsinfo => STATUS + ATTR + 48,
            Self::Pathconf => STATUS + ATTR + 24,
            Self::Commit => STATUS + WCC + 8,
        };
        RPC_REPLY_HEAD + results
    }

    /// The bulk data that a call with the arguments at `args` requests; `None` if its results are small, or the arguments
    /// malformed.
    pub fn bulk(self, args: &mut Decoder<'_>) -> Option<Bulk> {
        let (before_count, bulk): (_, fn(u32) -> Bulk) = match self {
            Self::Read => (8, Bulk::Data),                // Offset.
            Self::Readdir => (8 + 8, Bulk::List),         // Cookie and verifier.
            Self::Readdirplus => (8 + 8 + 4, Bulk::List), // The same and `dircount`.
            Self::Readlink => return Some(Bulk::Target),
            _ => return None,
        };
        args.opaque(MAX_HANDLE).ok()?;
        args.raw(before_count).ok()?;
        args.u32().ok().map(bulk)
    }

    /// Position of the data of WRITE, if `args`, which is at the start of the arguments, has what precedes the data.
    pub fn data_offset(self, args: &mut Decoder<'_>) -> Option<usize> {
        if self != Self::Write {
            return None;
        }
        args.opaque(MAX_HANDLE).ok()?;
        args.raw(8 + 4 + 4 + 4).ok()?; // Offset, count, stability, and the length of the data.
        Some(args.position())
    }
}

/// Maximum size in bytes, including the RPC header, of the reply to a READDIR with this `count` or a
/// READDIRPLUS with this `maxcount`.
///
/// According to RFC 1813 sections 3.3.16 and 3.3.17 the limit includes the directory's attributes and the
/// verifier; Linux servers apply it to the entries alone and send the rest in addition. Both fit.
pub const fn readdir_reply_head(count: u32) -> usize {
    Procedure::Readdir.max_reply_head() + count as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readdir_reply_head_covers_header_and_entries() {
        let in_front = 24 + 4 + (4 + 84) + 8; // RPC header, status, attributes, verifier
        for count in [0, 8, 4096, 65_536] {
            assert!(readdir_reply_head(count) >= in_front + count as usize);
        }
    }
}
