//! The identity of a call in the duplicate request cache.

use std::net::IpAddr;

use millrace_oncrpc::{CallContext, CallHeader, serving::ClientAddr};

use super::checksum::checksum;

/// Identity of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Key {
    pub(super) client: IpAddr,
    pub(super) xid: u32,
    pub(super) proc: u32,
    pub(super) checksum: u64,
}

impl Key {
    /// The identity of `call`.
    pub(super) fn of(call: &CallContext) -> Self {
        let CallHeader { xid, proc, .. } = call.header;
        let checksum = checksum(xid, proc, call.message());
        Self { client: call.peer.addr.ip().to_canonical(), xid, proc, checksum }
    }

    /// The client whose share of the cache the call uses.
    pub(super) fn counted(&self) -> ClientAddr {
        self.client.into()
    }
}
