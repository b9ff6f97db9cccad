//! The delegations of all files together.

use std::sync::{
    Arc,
    atomic::{AtomicU64, AtomicUsize, Ordering},
};

use millrace_admission::ClientQuota;
use millrace_nfs::v4::ClientId;
use parking_lot::Mutex;

use crate::{
    client::Client, contention::Contention, delegation::Delegation, files::File, recalls::Recalls,
    table::DelegationKind,
};

/// The state of all delegations that does not belong to a file or to a client.
#[derive(Debug)]
pub(crate) struct Delegating {
    /// Time in milliseconds from which files are delegated.
    pub(crate) from: AtomicU64,
    /// Number of delegations.
    pub(crate) held: AtomicUsize,
    /// Number of write delegations.
    pub(crate) writers: AtomicUsize,
    /// Number of clients with delegations.
    pub(crate) holders: AtomicUsize,
    /// The client after which others are asked to return delegations.
    pub(crate) asked: Mutex<Option<ClientId>>,
    pub(crate) quota: ClientQuota,
    pub(crate) contention: Arc<Contention>,
    pub(crate) recalls: Recalls,
}

impl Delegating {
    pub(crate) fn new(limit: usize, secret: &[u8; 16]) -> Self {
        Self {
            from: AtomicU64::new(u64::MAX),
            held: AtomicUsize::new(0),
            writers: AtomicUsize::new(0),
            holders: AtomicUsize::new(0),
            asked: Mutex::new(None),
            quota: ClientQuota::new(limit),
            contention: Arc::new(Contention::new(secret)),
            recalls: Recalls::default(),
        }
    }

    pub(crate) fn is_enabled(&self) -> bool {
        self.from.load(Ordering::Acquire) != u64::MAX
    }

    pub(crate) fn held(&self) -> usize {
        self.held.load(Ordering::SeqCst)
    }

    pub(crate) fn add(&self, file: &mut File, delegation: Delegation) {
        self.held.fetch_add(1, Ordering::SeqCst);
        if delegation.kind == DelegationKind::Write {
            self.writers.fetch_add(1, Ordering::SeqCst);
        }
        if delegation.client.delegations.fetch_add(1, Ordering::Relaxed) == 0 {
            self.holders.fetch_add(1, Ordering::Relaxed);
        }
        file.delegations.insert(delegation);
    }

    /// Ends the delegation of a client.
    pub(crate) fn remove(&self, file: &mut File, client: &Client) -> Option<Delegation> {
        let delegation = file.delegations.remove(client.id())?;
        self.held.fetch_sub(1, Ordering::SeqCst);
        if delegation.kind == DelegationKind::Write {
            self.writers.fetch_sub(1, Ordering::SeqCst);
        }
        if client.delegations.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.holders.fetch_sub(1, Ordering::Relaxed);
        }
        self.quota.give_back(client.address(), 1);
        Some(delegation)
    }
}
