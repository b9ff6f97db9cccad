//! Registration strategies (TR06, Designing 2007): by what means the memory of calls is reached, and what is kept
//! between calls.
//!
//! | [`Strategy`] | what the peer can reach | for how long |
//! |---|---|---|
//! | `dynamic` | the bytes of open calls, each with the one right it needs | from its call's Send to its reply |
//! | `fast` | the same | the same; with batched invalidation, memory that it may write somewhat longer (below) |
//! | `cache` | buffers of this connection that hold data of its calls alone; never memory of the caller | as long as they are kept |
//! | `all-physical` | on hardware all memory of the arena; a software provider keeps to the bytes of open calls | the life of the connection |
//!
//! A requester keeps what it lends in a `Lent`, which nobody can read, reuse or free until the strategy has taken it
//! back.
//!
//! Whoever posts RDMA Reads and Writes (a responder, and a requester of the Read-Read design) uses memory that no peer
//! reaches. Where the provider must register that too, the strategy says for how long:
//!
//! | strategy | sources of Writes and sinks of Reads are registered |
//! |---|---|
//! | `dynamic` | exactly, for each of them |
//! | `cache` | by the span of the arena, which stays so until the limit or the machine asks for it (`kept`) |
//! | `fast` | by a window, for each of them, where the provider's windows serve for that; on real adapters they lend memory to peers alone, and it is as with `all-physical` |
//! | `all-physical` | by the span, for good |
//!
//! An iWARP adapter's sinks are always registered with the Read, for they have tags.

mod all_physical;
mod cache;
mod dynamic;
mod fast;
mod kept;
mod local;
mod pressure;
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

use millrace_buffer::Arena;
use millrace_rdma::{Access, ConnectionError, DomainRef, ExposeError, ExposedRegion, Means, Memory, Segment};
use millrace_runtime::RuntimeRef;

pub(crate) use self::local::{AllHeld, Held, Local};
pub use self::strategy::{Invalidation, Settings, Strategy};
use self::{kept::KeptSpans, local::How};

/// A strategy with its settings and what it has counted. One may serve many connections; what it lends belongs to one.
pub struct Registration {
    settings: Settings,
    counts: Arc<Counts>,
}

impl Registration {
    /// A strategy that serves no connection yet.
    pub fn new(settings: Settings) -> Self {
        Self { settings, counts: Arc::default() }
    }

    /// Its settings.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// What it has done so far.
    pub fn stats(&self) -> RegistrationStats {
        self.counts.snapshot()
    }

    /// Whether the peer may invalidate the tags that it is given: not those that are used again as they are.
    pub(crate) fn tags_end_with_their_call(&self) -> bool {
        matches!(self.settings.strategy, Strategy::Dynamic | Strategy::Fast)
    }

    /// For one end of a connection that posts RDMA Reads and Writes: what they use is registered as the strategy says,
    /// where the provider must register it.
    pub(crate) fn local(&self, domain: DomainRef, rt: &RuntimeRef) -> Local {
        let counts = Arc::clone(&self.counts);
        let by = match self.settings.strategy {
            Strategy::Dynamic | Strategy::Cache => Some(Means::Registration),
            Strategy::Fast => Some(Means::Window),
            Strategy::AllPhysical => None,
        };
        let how = match by.filter(|by| domain.registers_local(*by)) {
            None => How::Never,
            Some(_) if self.settings.strategy == Strategy::Cache => How::Kept(KeptSpans::new(
                Arc::clone(&domain),
                Arc::clone(&counts),
                &self.settings,
                Arc::clone(rt),
            )),
            Some(by) => How::Each(by),
        };
        Local::new(domain, counts, how)
    }

    /// The part of one connection's requester.
    ///
    /// # Errors
    /// When the strategy is refused or the provider cannot do it.
    pub(crate) fn attach(
        &self,
        domain: DomainRef,
        arena: Arena,
        rt: RuntimeRef,
    ) -> Result<Box<dyn Lending>, ConnectionError> {
        self.attach_as(self.settings.strategy, domain, arena, rt)
    }

    /// The part of one connection's responder, where that exposes memory at all (the Read-Read design). What `cache`
    /// keeps would stay in the peer's reach, so replies are exposed by registrations of their own then.
    ///
    /// # Errors
    /// When the strategy would expose more than replies, or the provider cannot do it.
    pub(crate) fn attach_responder(
        &self,
        domain: DomainRef,
        arena: Arena,
        rt: RuntimeRef,
    ) -> Result<Box<dyn Lending>, ConnectionError> {
        match self.settings.strategy {
            Strategy::AllPhysical => Err(ConnectionError::Local(strategy::NEVER_HERE.into())),
            Strategy::Cache => self.attach_as(Strategy::Dynamic, domain, arena, rt),
            other => self.attach_as(other, domain, arena, rt),
        }
    }

    fn attach_as(
        &self,
        strategy: Strategy,
        domain: DomainRef,
        arena: Arena,
        rt: RuntimeRef,
    ) -> Result<Box<dyn Lending>, ConnectionError> {
        let counts = Arc::clone(&self.counts);
        let refused = |why: &str| ConnectionError::Local(why.into());
        Ok(match strategy {
            Strategy::Dynamic => Box::new(dynamic::Dynamic { domain, counts }),
            Strategy::Fast => Box::new(fast::Fast::new(domain, counts, &self.settings)),
            Strategy::Cache => Box::new(cache::Cache::new(domain, arena, rt, counts, &self.settings)),
            Strategy::AllPhysical if !self.settings.trust_peer => return Err(refused(strategy::NOT_TRUSTED)),
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

/// Memory of a call that the peer can reach. Dropping it revokes it.
pub(crate) enum Lent {
    /// The caller's own memory, and where it had to be registered, the count of that.
    Own(ExposedRegion, Option<Registered>),
    /// A buffer that stands in for it.
    StandIn(Box<cache::Kept>),
}

impl Lent {
    /// What the peer needs to reach it, in the order of its bytes.
    pub(crate) fn segments(&self) -> &[Segment] {
        match self {
            Self::Own(region, _) => region.segments(),
            Self::StandIn(kept) => kept.segments(),
        }
    }
}

/// Counts a registration until it is dropped.
pub(crate) struct Registered(Arc<Counts>);

impl Registered {
    fn new(counts: &Arc<Counts>, bytes: usize) -> Self {
        counts.registrations.fetch_add(1, Ordering::Relaxed);
        counts.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        Self(Arc::clone(counts))
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        self.0.deregistrations.fetch_add(1, Ordering::Relaxed);
    }
}

/// A strategy's part in one connection.
pub(crate) trait Lending: Send {
    /// Lets the peer reach `memory` with the right `access`.
    ///
    /// # Errors
    /// When means or memory have run out.
    fn lend(&self, memory: Memory, access: Access) -> Result<Lent, ExposeError>;

    /// Takes back what was lent, of which the peer says that it wrote the first `placed` bytes; `None` if it was lost
    /// with its connection.
    fn take_back(&self, lent: Lent, placed: usize) -> Option<Memory>;
}

/// What a strategy has done; monotonic but for `kept_bytes`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RegistrationStats {
    /// Times that memory was registered: a tag and translation entries allocated.
    pub registrations: u64,
    /// Times that it was deregistered.
    pub deregistrations: u64,
    /// Regions that needed no registration: windows, what is kept, or the global tag.
    pub hits: u64,
    /// Of `registrations`, those for which there was no window, or no room to keep what was registered.
    pub fallbacks: u64,
    /// Of `deregistrations`, what was kept and let go: beyond the limit, or for want of memory.
    pub reclaimed: u64,
    /// Bytes registered, over all registrations.
    pub bytes: u64,
    /// Bytes that are registered now and stay so between calls.
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
