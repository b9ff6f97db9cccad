//! Registers for each operation and deregisters after it.

use std::sync::Arc;

use millrace_rdma::{Access, DomainRef, ExposeError, Memory, MemoryRegion};

use super::{Counts, Lending, Lent, Registered};

/// [`super::Strategy::Dynamic`] on one connection.
pub(super) struct Dynamic {
    pub(super) domain: DomainRef,
    pub(super) counts: Arc<Counts>,
}

impl Lending for Dynamic {
    fn lend(&self, memory: Memory, access: Access) -> Result<Lent, ExposeError> {
        let len = memory.len();
        let region = MemoryRegion::new(Arc::clone(&self.domain), memory).expose(access)?;
        Ok(Lent::Own(region, Some(Registered::new(&self.counts, len))))
    }

    fn take_back(&self, lent: Lent, _placed: usize) -> Option<Memory> {
        let Lent::Own(region, _registered) = lent else { return None };
        region.revoke().map(MemoryRegion::into_memory)
    }
}
