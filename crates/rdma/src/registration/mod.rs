//! Registration strategies (TR06, Designing 2007): how peers get access to the memory of calls, and which
//! registrations are cached.
//!
//! | [`Strategy`] | memory that the peer can access | duration |
//! |---|---|---|
//! | `dynamic` | the bytes of open calls, each with the access right of its call | from the call's Send to its reply |
//! | `fast` | the same | the same; longer for writes with batched invalidation |
//! | `cache` | bounce buffers that contain data of this connection's calls only; never the caller's memory | while they are cached |
//! | `all-physical` | on adapters all memory of the arena; with a software provider the bytes of open calls | lifetime of the connection |
//!
//! A requester holds mapped memory in a `RegisteredMemory`; the memory cannot be read, reused or freed until
//! the strategy has unmapped it.
//!
//! An end that posts RDMA Reads and Writes, as a responder of RFC 8166 does, uses memory that the peer cannot access. If the provider requires registration of that memory too, the strategy determines its
//! duration:
//!
//! | strategy | registration of the sources of Writes and the sinks of Reads |
//! |---|---|
//! | `dynamic` | the exact bytes, for each operation |
//! | `cache` | the span of the arena, until the limit or memory pressure releases it (`span_cache`) |
//! | `fast` | a window for each operation if the provider's windows support local use; otherwise as `all-physical` |
//! | `all-physical` | the span, permanently |
//!
//! The sinks of an iWARP adapter are always registered for each Read, because the peer accesses them by a
//! tag.

mod all_physical;
mod cache;
mod dynamic;
mod fast;
mod local;
mod pressure;
mod span_cache;
mod strategy;
#[cfg(test)]
mod tests;

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use crate::{
    Access, ConnectionError, DomainRef, ExposeError, ExposedRegion, Memory, RegistrationKind, Segment,
};
use millrace_buffer::Arena;
use millrace_runtime::RuntimeRef;

pub use self::local::{Local, LocalRegistration, LocalRegistrations};
pub use self::strategy::{Invalidation, Settings, Strategy};
use self::{local::LocalMode, span_cache::SpanCache};

/// A strategy with its settings and counters. One value may serve many connections.
pub struct Registration {
    settings: Settings,
    counts: Arc<Counts>,
}

impl Registration {
    /// Creates a strategy without connections.
    pub fn new(settings: Settings) -> Self {
        Self { settings, counts: Arc::default() }
    }

    /// Settings of the strategy.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// A snapshot of the counters.
    pub fn stats(&self) -> RegistrationStats {
        self.counts.snapshot()
    }

    /// Whether the peer may invalidate a call's tags: only tags that are not reused.
    pub fn tags_are_single_use(&self) -> bool {
        matches!(self.settings.strategy, Strategy::Dynamic | Strategy::Fast)
    }

    /// The registration of local memory for one end of a connection that posts RDMA Reads and Writes.
    pub fn local(&self, domain: DomainRef, rt: &RuntimeRef) -> Local {
        let counts = Arc::clone(&self.counts);
        let kind = match self.settings.strategy {
            Strategy::Dynamic | Strategy::Cache => Some(RegistrationKind::Region),
            Strategy::Fast => Some(RegistrationKind::Window),
            Strategy::AllPhysical => None,
        };
        let mode =
            match kind.filter(|kind| domain.registers_local(*kind)) {
                None => LocalMode::Never,
                Some(_) if self.settings.strategy == Strategy::Cache => LocalMode::CachedSpans(
                    SpanCache::new(Arc::clone(&domain), Arc::clone(&counts), &self.settings, Arc::clone(rt)),
                ),
                Some(kind) => LocalMode::PerOperation(kind),
            };
        Local::new(domain, counts, mode)
    }

    /// The registrar of one connection's requester.
    ///
    /// # Errors
    /// The strategy is rejected or the provider does not support it.
    pub fn attach(
        &self,
        domain: DomainRef,
        arena: Arena,
        rt: RuntimeRef,
    ) -> Result<Box<dyn Registrar>, ConnectionError> {
        self.attach_as(self.settings.strategy, domain, arena, rt)
    }

    /// As [`Self::attach`], with another strategy than that of the settings.
    ///
    /// # Errors
    /// As [`Self::attach`].
    pub fn attach_as(
        &self,
        strategy: Strategy,
        domain: DomainRef,
        arena: Arena,
        rt: RuntimeRef,
    ) -> Result<Box<dyn Registrar>, ConnectionError> {
        let counts = Arc::clone(&self.counts);
        let refused = |why: &str| ConnectionError::Local(why.into());
        Ok(match strategy {
            Strategy::Dynamic => Box::new(dynamic::Dynamic { domain, counts }),
            Strategy::Fast => Box::new(fast::Fast::new(domain, counts, &self.settings)),
            Strategy::Cache => Box::new(cache::Cache::new(domain, arena, rt, counts, &self.settings)),
            Strategy::AllPhysical if !self.settings.trust_peer => {
                return Err(refused(strategy::TRUST_REQUIRED));
            }
            Strategy::AllPhysical if !domain.enable_global() => {
                return Err(refused(
                    "the RDMA provider has no global tag; use another registration strategy",
                ));
            }
            Strategy::AllPhysical => Box::new(all_physical::AllPhysical { domain, counts }),
        })
    }
}

impl fmt::Debug for Registration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Registration").field(&self.settings).finish()
    }
}

/// Memory of a call that the peer can access. Dropping it revokes the access.
pub struct RegisteredMemory(Registered);

enum Registered {
    /// The caller's memory, and the count of its registration if it was registered.
    Direct(ExposedRegion, Option<RegistrationCount>),
    /// A bounce buffer in place of the caller's memory.
    Bounce(Box<cache::BounceBuffer>),
}

impl RegisteredMemory {
    /// The segments for the peer, in the order of the bytes.
    pub fn segments(&self) -> &[Segment] {
        match &self.0 {
            Registered::Direct(region, _) => region.segments(),
            Registered::Bounce(kept) => kept.segments(),
        }
    }
}

/// Counts a registration, and at its drop the deregistration.
pub(crate) struct RegistrationCount(Arc<Counts>);

impl RegistrationCount {
    fn new(counts: &Arc<Counts>, bytes: usize) -> Self {
        counts.registrations.fetch_add(1, Ordering::Relaxed);
        counts.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        Self(Arc::clone(counts))
    }
}

impl Drop for RegistrationCount {
    fn drop(&mut self) {
        self.0.deregistrations.fetch_add(1, Ordering::Relaxed);
    }
}

/// A strategy's part on one connection.
pub trait Registrar: Send {
    /// Grants the peer the right `access` to `memory`.
    ///
    /// # Errors
    /// Registration resources or memory are exhausted.
    fn map(&self, memory: Memory, access: Access) -> Result<RegisteredMemory, ExposeError>;

    /// Revokes the peer's access and returns the memory, of which the peer reports that it wrote the first
    /// `placed` bytes. `None` if the memory was lost with its connection.
    fn unmap(&self, mapped: RegisteredMemory, placed: usize) -> Option<Memory>;
}

/// Counters of a strategy; monotonic except `kept_bytes`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RegistrationStats {
    /// Registrations: allocations of a tag and translation entries.
    pub registrations: u64,
    /// Deregistrations.
    pub deregistrations: u64,
    /// Regions without a new registration: windows, cached registrations, or the global tag.
    pub hits: u64,
    /// Registrations for which no window was free or the cache was full; included in `registrations`.
    pub fallbacks: u64,
    /// Cached registrations that were released at the limit or under memory pressure; included in
    /// `deregistrations`.
    pub reclaimed: u64,
    /// Total bytes of all registrations.
    pub bytes: u64,
    /// Bytes of cached registrations now.
    pub kept_bytes: u64,
}

#[derive(Default)]
pub(crate) struct Counts {
    registrations: AtomicU64,
    deregistrations: AtomicU64,
    hits: AtomicU64,
    fallbacks: AtomicU64,
    reclaimed: AtomicU64,
    bytes: AtomicU64,
    kept_bytes: AtomicU64,
}

impl Counts {
    fn hit(&self) {
        self.hits.fetch_add(1, Ordering::Relaxed);
    }

    fn fell_back(&self) {
        self.fallbacks.fetch_add(1, Ordering::Relaxed);
    }

    fn snapshot(&self) -> RegistrationStats {
        let value = |c: &AtomicU64| c.load(Ordering::Relaxed);
        RegistrationStats {
            registrations: value(&self.registrations),
            deregistrations: value(&self.deregistrations),
            hits: value(&self.hits),
            fallbacks: value(&self.fallbacks),
            reclaimed: value(&self.reclaimed),
            bytes: value(&self.bytes),
            kept_bytes: value(&self.kept_bytes),
        }
    }
}
