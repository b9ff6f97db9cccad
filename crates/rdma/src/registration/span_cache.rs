//! A cache of registered arena spans for RDMA Reads and Writes of this end: the registration cache of a
//! responder (TR06). Spans are identified by an id and never by an address, so memory that was freed and
//! mapped again cannot be confused with its predecessor. A registered span stays mapped; its arena cannot
//! return the memory to the system while it is idle.

use std::{
    collections::{HashMap, hash_map::Entry},
    sync::{Arc, atomic::Ordering},
};

use crate::{DomainRef, LocalKey};
use millrace_buffer::SpanRef;
use millrace_runtime::RuntimeRef;
use smallvec::SmallVec;

use super::{Counts, RegistrationCount, Settings, pressure::Watermarks};

/// A registered span. Dropping it deregisters the span; until then it stays mapped.
pub(crate) struct CachedSpan {
    domain: DomainRef,
    key: LocalKey,
    counts: Arc<Counts>,
    _registered: RegistrationCount,
    span: SpanRef,
}

impl Drop for CachedSpan {
    fn drop(&mut self) {
        self.domain.deregister_local(self.key);
        self.counts.kept_bytes.fetch_sub(self.span.len() as u64, Ordering::Relaxed);
    }
}

/// The cached spans of one connection. Operations in progress also hold references to spans.
pub(super) struct SpanCache {
    domain: DomainRef,
    counts: Arc<Counts>,
    watermarks: Watermarks,
    /// Span and the number of the operation that used it last, by span id.
    spans: HashMap<u64, (Arc<CachedSpan>, u64)>,
    operations: u64,
}

impl SpanCache {
    pub(super) fn new(domain: DomainRef, counts: Arc<Counts>, settings: &Settings, rt: RuntimeRef) -> Self {
        Self {
            domain,
            counts,
            watermarks: Watermarks::new(settings, rt),
            spans: HashMap::new(),
            operations: 0,
        }
    }

    fn kept_bytes(&self) -> usize {
        self.counts.kept_bytes.load(Ordering::Relaxed) as usize
    }

    /// Registers `pieces`, the spans of the pieces of an operation's memory; they stay registered while the
    /// result lives. `None` if the limit is reached.
    pub(super) fn acquire<'a>(
        &mut self,
        pieces: impl Iterator<Item = &'a SpanRef>,
    ) -> Option<SmallVec<[Arc<CachedSpan>; 2]>> {
        self.operations += 1;
        let (mut spans, mut new) = (SmallVec::<[Arc<CachedSpan>; 2]>::new(), false);
        for span in pieces {
            // The pieces of one operation usually lie in one span.
            if !spans.iter().any(|k| k.span.id() == span.id()) {
                let (span, registered) = self.acquire_span(span)?;
                new |= registered;
                spans.push(span);
            }
        }
        if !new {
            self.counts.hit();
        }
        if let Some(target) = self.watermarks.excess(self.kept_bytes()) {
            self.reclaim(target);
        }
        Some(spans)
    }

    /// The registered span, and whether this call registered it.
    fn acquire_span(&mut self, wanted: &SpanRef) -> Option<(Arc<CachedSpan>, bool)> {
        if let Some((span, used)) = self.spans.get_mut(&wanted.id()) {
            *used = self.operations;
            return Some((Arc::clone(span), false));
        }
        // Release spans whose arena is dropped.
        self.spans.retain(|_, (span, _)| !(is_idle(span) && span.span.is_last()));
        if !self.watermarks.allows(self.kept_bytes() + wanted.len()) {
            return None;
        }
        let span = wanted.clone();
        let key = self.domain.keep_local(&span)?;
        self.counts.kept_bytes.fetch_add(wanted.len() as u64, Ordering::Relaxed);
        let registered = RegistrationCount::new(&self.counts, wanted.len());
        let (domain, counts) = (Arc::clone(&self.domain), Arc::clone(&self.counts));
        let span = Arc::new(CachedSpan { domain, key, counts, _registered: registered, span });
        self.spans.insert(wanted.id(), (Arc::clone(&span), self.operations));
        Some((span, true))
    }

    /// Releases idle spans, least recently used first, until at most `target` bytes are cached or no span is
    /// idle.
    fn reclaim(&mut self, target: usize) {
        let idle = self.spans.iter().filter(|(_, (span, _))| is_idle(span));
        let mut idle: Vec<(u64, u64)> = idle.map(|(id, (_, used))| (*used, *id)).collect();
        idle.sort_unstable();
        for (_, id) in idle {
            if self.kept_bytes() <= target {
                break;
            }
            if let Entry::Occupied(there) = self.spans.entry(id) {
                there.remove();
                self.counts.reclaimed.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
}

fn is_idle(span: &Arc<CachedSpan>) -> bool {
    Arc::strong_count(span) == 1
}
