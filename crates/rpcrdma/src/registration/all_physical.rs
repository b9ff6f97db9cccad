//! One tag for the whole arena.

use std::sync::Arc;

use millrace_rdma::{Access, DomainRef, ExposeError, Means, Memory, MemoryRegion};

use super::{Counts, Lending, Lent};

/// [`super::Strategy::AllPhysical`] on one connection, whose domain has its global tag.
pub(super) struct AllPhysical {
    pub(super) domain: DomainRef,
    pub(super) counts: Arc<Counts>,
}

impl Lending for AllPhysical {
    fn lend(&self, memory: Memory, access: Access) -> Result<Lent, ExposeError> {
        let region = MemoryRegion::new(Arc::clone(&self.domain), memory).expose_by(Means::Global, access)?;
        self.counts.hit();
        Ok(Lent::Own(region, None))
    }

    fn take_back(&self, lent: Lent, _placed: usize) -> Option<Memory> {
        let Lent::Own(region, _) = lent else { return None };
        region.revoke().map(MemoryRegion::into_memory)
    }
}
