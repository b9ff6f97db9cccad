//! The heap that the state of a client occupies.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use millrace_oncrpc::serving::{ClientAddr, ClientQuota};

/// Bytes of a stateid with its file, at most, without its owner: `stateids_occupy_at_most_what_is_charged`.
pub(crate) const STATEID: usize = 1536;
/// Bytes of a locked range, at most.
pub(crate) const RANGE: usize = 256;

/// The heap of one client, charged to its address.
#[derive(Debug)]
pub(crate) struct Heap {
    quota: Arc<ClientQuota>,
    address: ClientAddr,
    held: AtomicUsize,
}

impl Heap {
    pub(crate) fn new(quota: &Arc<ClientQuota>, address: ClientAddr) -> Arc<Self> {
        Arc::new(Self { quota: Arc::clone(quota), address, held: AtomicUsize::new(0) })
    }

    pub(crate) fn address(&self) -> ClientAddr {
        self.address
    }

    /// Bytes that the client has.
    pub(crate) fn held(&self) -> usize {
        self.held.load(Ordering::Relaxed)
    }

    pub(crate) fn permits(&self, bytes: usize) -> bool {
        self.quota.permits(self.address, bytes)
    }

    /// Charges bytes, if the address may have them.
    pub(crate) fn charge(self: &Arc<Self>, bytes: usize) -> Option<Charge> {
        if !self.quota.take(self.address, bytes) {
            return None;
        }
        self.held.fetch_add(bytes, Ordering::Relaxed);
        Some(Charge { heap: Arc::clone(self), bytes })
    }

    /// Charges bytes that are permitted.
    pub(crate) fn add(&self, bytes: usize) {
        self.quota.add(self.address, bytes);
        self.held.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn give_back(&self, bytes: usize) {
        self.held.fetch_sub(bytes, Ordering::Relaxed);
        self.quota.give_back(self.address, bytes);
    }
}

/// Heap that is charged until this is dropped.
#[derive(Debug)]
pub(crate) struct Charge {
    heap: Arc<Heap>,
    bytes: usize,
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.heap.give_back(self.bytes);
    }
}
