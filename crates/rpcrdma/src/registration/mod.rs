//! Registration strategies: how a call's memory becomes regions, and regions memory again.
//!
//! Whatever the strategy, remote access is separate and narrow: a region is exposed for one call with exactly the
//! call's bytes and the least right, and revoked before the call completes. A strategy decides only what is
//! registered when, and which memory is offered to callers for payloads.

mod cache;
mod dynamic;

use std::sync::atomic::{AtomicU64, Ordering};

use buffer::{Arena, Buffer, OutOfMemory};
pub use cache::Cache;
pub use dynamic::Dynamic;
use rdma::{DomainRef, Memory, MemoryRegion};

/// A registration strategy. One may serve many connections.
pub trait Registration: Send + Sync + 'static {
    /// Its name: `dynamic`, `cache`.
    fn name(&self) -> &'static str;

    /// A buffer of `len` bytes for a payload, of the kind that this strategy registers most cheaply.
    ///
    /// # Errors
    /// When `arena` has no room.
    fn take(&self, arena: &Arena, len: usize) -> Result<Buffer, OutOfMemory>;

    /// Gives back a buffer that [`Self::take`] gave. Optional: one that is dropped instead returns to its arena.
    fn give_back(&self, buffer: Buffer);

    /// Registers `memory` with `domain`.
    fn register(&self, domain: &DomainRef, memory: Memory) -> MemoryRegion;

    /// Ends what [`Self::register`] began.
    fn deregister(&self, region: MemoryRegion) -> Memory;

    /// What it has done so far.
    fn stats(&self) -> RegistrationStats;
}

/// What a strategy has done, monotonic but for `kept_bytes`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RegistrationStats {
    /// Regions for which memory had to be registered.
    pub registrations: u64,
    /// Regions whose memory was deregistered.
    pub deregistrations: u64,
    /// Regions whose memory was registered already.
    pub hits: u64,
    /// Bytes registered, over all registrations.
    pub bytes: u64,
    /// Bytes that are kept registered between operations now.
    pub kept_bytes: u64,
}

#[derive(Default)]
struct Counts {
    registrations: AtomicU64,
    deregistrations: AtomicU64,
    hits: AtomicU64,
    bytes: AtomicU64,
}

impl Counts {
    fn registered(&self, bytes: usize) {
        self.registrations.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    fn snapshot(&self, kept_bytes: u64) -> RegistrationStats {
        RegistrationStats {
            registrations: self.registrations.load(Ordering::Relaxed),
            deregistrations: self.deregistrations.load(Ordering::Relaxed),
            hits: self.hits.load(Ordering::Relaxed),
            bytes: self.bytes.load(Ordering::Relaxed),
            kept_bytes,
        }
    }
}
