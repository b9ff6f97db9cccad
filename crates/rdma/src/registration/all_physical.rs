//! One steering tag for the whole arena.

use std::sync::Arc;

use crate::{Access, DomainRef, ExposeError, Memory, MemoryRegion, RegistrationKind};

use super::{Counts, Registered, RegisteredMemory, Registrar};

/// [`super::Strategy::AllPhysical`] on one connection, whose domain has its global tag.
pub(super) struct AllPhysical {
    pub(super) domain: DomainRef,
    pub(super) counts: Arc<Counts>,
}

impl Registrar for AllPhysical {
    fn map(&self, memory: Memory, access: Access) -> Result<RegisteredMemory, ExposeError> {
        let region = MemoryRegion::new(Arc::clone(&self.domain), memory)
            .expose_by(RegistrationKind::Global, access)?;
        self.counts.hit();
        Ok(RegisteredMemory(Registered::Direct(region, None)))
    }

    fn unmap(&self, lent: RegisteredMemory, _placed: usize) -> Option<Memory> {
        let RegisteredMemory(Registered::Direct(region, _)) = lent else { return None };
        region.revoke().map(MemoryRegion::into_memory)
    }
}
