//! A client, as its sessions and its state refer to it.

use std::{
    sync::atomic::{AtomicBool, AtomicU32, Ordering},
    time::Duration,
};

use millrace_nfs::v4::ClientId;

use crate::lease::Lease;

/// One incarnation of a client.
#[derive(Debug)]
pub struct Client {
    id: ClientId,
    owner: Box<[u8]>,
    pub(crate) lease: Lease,
    /// `SEQ4_STATUS_*`.
    flags: AtomicU32,
    /// It has sent RECLAIM_COMPLETE.
    pub(crate) reclaimed: AtomicBool,
}

impl Client {
    pub(crate) fn new(id: ClientId, owner: &[u8], now: Duration) -> Self {
        let (lease, reclaimed) = (Lease::new(now), AtomicBool::new(false));
        Self { id, owner: owner.into(), lease, flags: AtomicU32::new(0), reclaimed }
    }

    /// The client ID.
    pub fn id(&self) -> ClientId {
        self.id
    }

    /// `co_ownerid`: what the client calls itself.
    pub fn owner(&self) -> &[u8] {
        &self.owner
    }

    /// Whether the client is removed.
    pub fn is_removed(&self) -> bool {
        self.lease.has_ended()
    }

    /// `sr_status_flags` of SEQUENCE.
    pub(crate) fn flags(&self) -> u32 {
        self.flags.load(Ordering::Relaxed)
    }
}
