//! The heap that the state of a client occupies.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use millrace_admission::{ClientAddr, ClientQuota};

use crate::candidates::{Candidates, weight};

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
    /// The client's place among them depends on what is held.
    candidates: Arc<Candidates>,
    serial: u32,
}

impl Heap {
    /// The heap of the client with a serial number.
    pub(crate) fn new(
        quota: &Arc<ClientQuota>,
        address: ClientAddr,
        candidates: &Arc<Candidates>,
        serial: u32,
    ) -> Arc<Self> {
        let (quota, candidates) = (Arc::clone(quota), Arc::clone(candidates));
        Arc::new(Self { quota, address, held: AtomicUsize::new(0), candidates, serial })
    }

    fn weigh(&self, before: usize, after: usize) {
        if weight(before) != weight(after) {
            self.candidates.weigh(self.serial, || self.held());
        }
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
        let before = self.held.fetch_add(bytes, Ordering::Relaxed);
        self.weigh(before, before + bytes);
        Some(Charge { heap: Arc::clone(self), bytes })
    }

    /// Charges bytes that are permitted.
    pub(crate) fn add(&self, bytes: usize) {
        self.quota.add(self.address, bytes);
        let before = self.held.fetch_add(bytes, Ordering::Relaxed);
        self.weigh(before, before + bytes);
    }

    pub(crate) fn give_back(&self, bytes: usize) {
        let before = self.held.fetch_sub(bytes, Ordering::Relaxed);
        self.weigh(before, before - bytes);
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
