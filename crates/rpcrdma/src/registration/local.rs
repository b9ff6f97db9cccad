//! Memory that only this side's adapter uses: the sources of RDMA Writes and the sinks of RDMA Reads.

use std::sync::Arc;

use buffer::{Buffer, Views};
use rdma::{DomainRef, LocalKey};
use smallvec::SmallVec;

use super::{Counts, Registered};

/// A registration that ends when it is dropped.
pub(crate) struct Held {
    domain: DomainRef,
    key: LocalKey,
    _registered: Registered,
}

impl Drop for Held {
    fn drop(&mut self) {
        self.domain.deregister_local(self.key);
    }
}

/// The registrations of one call; they end when it is dropped.
pub(crate) type AllHeld = SmallVec<[Held; 1]>;

/// Registers what each RDMA Read and RDMA Write of one connection uses, where the strategy keeps nothing registered. The
/// registration must last until the operation is done. Providers that have all memory for buffers registered, or need
/// no registration, have nothing to do.
pub(crate) struct Local {
    domain: DomainRef,
    counts: Arc<Counts>,
    per_operation: bool,
}

impl Local {
    pub(super) fn new(domain: DomainRef, counts: Arc<Counts>, per_operation: bool) -> Self {
        Self { domain, counts, per_operation }
    }

    /// Registers the source of an RDMA Write, if it has to be.
    pub(crate) fn source(&self, data: &Views) -> Option<Held> {
        self.register(data.iter().map(|v| &**v), data.len())
    }

    /// Registers the sink of an RDMA Read, if it has to be.
    pub(crate) fn sink(&self, sink: &[Buffer]) -> Option<Held> {
        self.register(sink.iter().map(|b| &**b), sink.iter().map(|b| b.len()).sum())
    }

    fn register<'a>(&self, pieces: impl Iterator<Item = &'a [u8]>, bytes: usize) -> Option<Held> {
        if !self.per_operation {
            return None;
        }
        let pieces: Vec<&[u8]> = pieces.collect();
        let Some(key) = self.domain.register_local(&pieces) else {
            self.counts.hit();
            return None;
        };
        let registered = Registered::new(&self.counts, bytes);
        Some(Held { domain: Arc::clone(&self.domain), key, _registered: registered })
    }
}
