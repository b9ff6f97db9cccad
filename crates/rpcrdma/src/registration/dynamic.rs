//! Registers for each operation and deregisters after it.

use std::sync::atomic::Ordering;

use buffer::{Arena, Buffer, OutOfMemory};
use rdma::{DomainRef, Memory, MemoryRegion};

use super::{Counts, Registration, RegistrationStats};

/// The `dynamic` strategy: every operation registers its memory and deregisters it when it is done. Works with any
/// memory and keeps nothing registered between operations.
#[derive(Default)]
pub struct Dynamic {
    counts: Counts,
}

impl Dynamic {
    /// A new strategy.
    pub fn new() -> Self {
        Self::default()
    }
}

impl Registration for Dynamic {
    fn name(&self) -> &'static str {
        "dynamic"
    }

    fn take(&self, arena: &Arena, len: usize) -> Result<Buffer, OutOfMemory> {
        arena.alloc(len)
    }

    fn give_back(&self, buffer: Buffer) {
        drop(buffer);
    }

    fn register(&self, domain: &DomainRef, memory: Memory) -> MemoryRegion {
        self.counts.registered(memory.len());
        MemoryRegion::new(domain.clone(), memory)
    }

    fn deregister(&self, region: MemoryRegion) -> Memory {
        self.counts.deregistrations.fetch_add(1, Ordering::Relaxed);
        region.into_memory()
    }

    fn stats(&self) -> RegistrationStats {
        self.counts.snapshot(0)
    }
}
