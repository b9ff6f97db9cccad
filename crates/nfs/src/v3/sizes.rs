//! Maximum sizes of replies, for which a requester must provide reply resources (RFC 8166 section 4.3).

use super::{FATTR_BYTES, MAX_HANDLE, Procedure};

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
