//! Binds windows that were allocated when the connection was made.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use millrace_rdma::{Access, DomainRef, ExposeError, Means, Memory, MemoryRegion};

use super::{Counts, Invalidation, Lending, Lent, Settings, dynamic::Dynamic};

/// [`super::Strategy::Fast`] on one connection.
pub(super) struct Fast {
    /// For what no window takes.
    registering: Dynamic,
    invalidation: Invalidation,
    /// Windows that the peer may still write through although their call is done, or fewer.
    dirty: AtomicUsize,
}

impl Fast {
    /// Allocates the windows. A provider that has none leaves everything to registrations, which counts as falling
    /// back.
    pub(super) fn new(domain: DomainRef, counts: Arc<Counts>, settings: &Settings) -> Self {
        let there = domain.reserve_windows(settings.windows, settings.window_bytes);
        if there < settings.windows {
            tracing::info!("{there} of {} memory windows; registering memory beyond them", settings.windows);
        }
        let registering = Dynamic { domain, counts };
        Self { registering, invalidation: settings.invalidation, dirty: AtomicUsize::new(0) }
    }

    fn domain(&self) -> &DomainRef {
        &self.registering.domain
    }
}

impl Lending for Fast {
    fn lend(&self, memory: Memory, access: Access) -> Result<Lent, ExposeError> {
        match MemoryRegion::new(Arc::clone(self.domain()), memory).expose_by(Means::Window, access) {
            Ok(region) => {
                self.registering.counts.hit();
                Ok(Lent::Own(region, None))
            }
            Err(e) => {
                let lent = self.registering.lend(e.memory, access)?;
                self.registering.counts.fell_back();
                Ok(lent)
            }
        }
    }

    fn take_back(&self, lent: Lent, placed: usize) -> Option<Memory> {
        let Lent::Own(region, None) = lent else { return self.registering.take_back(lent, placed) };
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
