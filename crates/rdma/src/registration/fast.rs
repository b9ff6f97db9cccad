//! Binding of memory windows that are allocated at connection setup.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use crate::{Access, DomainRef, ExposeError, Memory, MemoryRegion, RegistrationKind};

use super::{Counts, Invalidation, Registered, RegisteredMemory, Registrar, Settings, dynamic::Dynamic};

/// [`super::Strategy::Fast`] on one connection.
pub(super) struct Fast {
    /// Fallback for memory that no window accepts.
    fallback: Dynamic,
    invalidation: Invalidation,
    /// Upper bound of the released windows through which the peer may still write.
    dirty: AtomicUsize,
}

impl Fast {
    /// Allocates the windows. Memory that exceeds the available windows is registered instead, which counts
    /// as a fallback.
    pub(super) fn new(domain: DomainRef, counts: Arc<Counts>, settings: &Settings) -> Self {
        let available = domain.reserve_windows(settings.windows, settings.window_bytes);
        if available < settings.windows {
            tracing::info!(
                "{available} of {} memory windows available; registering memory beyond them",
                settings.windows
            );
        }
        let fallback = Dynamic { domain, counts };
        Self { fallback, invalidation: settings.invalidation, dirty: AtomicUsize::new(0) }
    }

    fn domain(&self) -> &DomainRef {
        &self.fallback.domain
    }
}

impl Registrar for Fast {
    fn map(&self, memory: Memory, access: Access) -> Result<RegisteredMemory, ExposeError> {
        match MemoryRegion::new(Arc::clone(self.domain()), memory).expose_by(RegistrationKind::Window, access)
        {
            Ok(region) => {
                self.fallback.counts.hit();
                Ok(RegisteredMemory(Registered::Direct(region, None)))
            }
            Err(e) => {
                let lent = self.fallback.map(e.memory, access)?;
                self.fallback.counts.fell_back();
                Ok(lent)
            }
        }
    }

    fn unmap(&self, lent: RegisteredMemory, placed: usize) -> Option<Memory> {
        let RegisteredMemory(Registered::Direct(region, None)) = lent else {
            return self.fallback.unmap(lent, placed);
        };
        let region = match self.invalidation {
            Invalidation::AtOnce => region.revoke(),
            Invalidation::Batched(most) => {
                let region = region.release();
                if self.dirty.fetch_add(1, Ordering::Relaxed) + 1 >= most {
                    self.dirty.store(0, Ordering::Relaxed);
                    self.domain().invalidate_released();
                }
                region
            }
        };
        region.map(MemoryRegion::into_memory)
    }
}
