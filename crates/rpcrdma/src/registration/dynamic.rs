//! Registration and deregistration for each operation.

use std::sync::Arc;

use millrace_rdma::{Access, DomainRef, ExposeError, Memory, MemoryRegion};

use super::{Counts, RegisteredMemory, Registrar, RegistrationCount};

/// [`super::Strategy::Dynamic`] on one connection.
pub(super) struct Dynamic {
    pub(super) domain: DomainRef,
    pub(super) counts: Arc<Counts>,
}

impl Registrar for Dynamic {
    fn map(&self, memory: Memory, access: Access) -> Result<RegisteredMemory, ExposeError> {
        let len = memory.len();
        let region = MemoryRegion::new(Arc::clone(&self.domain), memory).expose(access)?;
        Ok(RegisteredMemory::Direct(region, Some(RegistrationCount::new(&self.counts, len))))
    }

    fn unmap(&self, lent: RegisteredMemory, _placed: usize) -> Option<Memory> {
        let RegisteredMemory::Direct(region, _registered) = lent else { return None };
        region.revoke().map(MemoryRegion::into_memory)
    }
}
