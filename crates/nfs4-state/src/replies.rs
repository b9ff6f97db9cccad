//! The memory of the replies that the slots of all sessions keep.

use std::sync::Arc;

use millrace_admission::{ClientAddr, ClientQuota};

use crate::{
    channel::{ReplyRoom, memory},
    limits::Limits,
};

/// What the replies that slots keep may occupy, in bytes, divided among addresses.
#[derive(Debug)]
pub(crate) struct Replies {
    quota: ClientQuota,
    /// The records of confirmed clients.
    clients: Arc<ClientQuota>,
    cached_bytes: u32,
}

impl Replies {
    pub(crate) fn new(limits: &Limits, clients: &Arc<ClientQuota>) -> Arc<Self> {
        let total = usize::try_from(limits.total_cached_bytes).unwrap_or(usize::MAX);
        let (quota, clients) = (ClientQuota::new(total), Arc::clone(clients));
        Arc::new(Self { quota, clients, cached_bytes: limits.cached_bytes })
    }

    /// Room for the replies of a session: an eighth of that of its address, so that some sessions of an address leave
    /// slots to others. A quarter of all is for one slot each of clients that may be added.
    pub(crate) fn room(&self, address: ClientAddr, is_first: bool) -> ReplyRoom {
        let added = self.clients.left().saturating_mul(memory(self.cached_bytes));
        let reserved = added.min(self.quota.limit() / 4);
        let rest = self.quota.left();
        let least = if is_first { rest } else { rest.saturating_sub(reserved) };
        ReplyRoom { most: self.quota.room(address, reserved) / 8, least }
    }

    pub(crate) fn add(&self, address: ClientAddr, bytes: usize) {
        self.quota.add(address, bytes);
    }

    pub(crate) fn give_back(&self, address: ClientAddr, bytes: usize) {
        self.quota.give_back(address, bytes);
    }

    /// The address that has to give slots back, so that `address` gets another one of `bytes`.
    pub(crate) fn heaviest(&self, address: ClientAddr, bytes: usize) -> Option<ClientAddr> {
        self.quota.heaviest(address, bytes)
    }
}
