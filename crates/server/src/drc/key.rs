//! The identity of a call in the duplicate request cache.

use std::{
    hash::{BuildHasherDefault, Hash, Hasher},
    net::IpAddr,
};

use millrace_admission::ClientAddr;
use millrace_oncrpc::{CallContext, CallHeader, Credential};

use super::checksum::{GssCallId, checksum};

/// Identity of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Key {
    pub(super) client: IpAddr,
    pub(super) xid: u32,
    pub(super) proc: u32,
    pub(super) checksum: u64,
}

impl Key {
    /// The identity of `call`, with a checksum that depends on `secret`.
    pub(super) fn of(call: &CallContext, secret: [u64; 2]) -> Self {
        let CallHeader { xid, proc, .. } = call.header;
        let gss_id = match &call.sender.credential {
            Credential::Gss(gss) => Some(GssCallId {
                program: call.header.prog,
                version: call.header.vers,
                principal: &gss.caller.principal,
                arguments_at: call.args().position(),
            }),
            _ => None,
        };
        let checksum = checksum(secret, xid, proc, call.message(), gss_id.as_ref());
        Self { client: call.sender.peer.addr.ip(), xid, proc, checksum }
    }

    /// The client whose share of the cache the call uses.
    pub(super) fn counted(&self) -> ClientAddr {
        self.client.into()
    }
}

impl Hash for Key {
    /// The checksum is a keyed hash of the whole call already.
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.checksum);
    }
}

/// Builds hashers for maps of [`Key`].
pub(super) type BuildKeyHasher = BuildHasherDefault<KeyHasher>;

/// The hash of a [`Key`]: its checksum.
#[derive(Default)]
pub(super) struct KeyHasher(u64);

impl Hasher for KeyHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(*byte);
        }
    }

    fn write_u64(&mut self, checksum: u64) {
        self.0 = checksum;
    }
}
