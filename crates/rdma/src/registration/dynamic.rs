//! Registration and deregistration for each operation.

use std::sync::Arc;

use crate::{Access, DomainRef, ExposeError, Memory, MemoryRegion};

use super::{Counts, Registered, RegisteredMemory, Registrar, RegistrationCount};

/// [`super::Strategy::Dynamic`] on one connection.
pub(super) struct Dynamic {
    pub(super) domain: DomainRef,
    pub(super) counts: Arc<Counts>,
}

impl Registrar for Dynamic {
    fn map(&self, memory: Memory, access: Access) -> Result<RegisteredMemory, ExposeError> {
        let len = memory.len();
        let region = MemoryRegion::new(Arc::clone(&self.domain), memory).expose(access)?;
        Ok(RegisteredMemory(Registered::Direct(region, Some(RegistrationCount::new(&self.counts, len)))))
    }

    fn unmap(&self, lent: RegisteredMemory, _placed: usize) -> Option<Memory> {
        let RegisteredMemory(Registered::Direct(region, _registered)) = lent else { return None };
        region.revoke().map(MemoryRegion::into_memory)
    }
}
