//! Spans that stay registered for this side's own work, as long as there is room for them: a responder's registration
//! cache (TR06). It goes by what a span is, and never by an address, so that memory that was given back and mapped
//! again cannot be taken for what it was. A span that stays registered stays mapped: its arena cannot return the memory to
//! the system while it is idle.

use std::{
    collections::{HashMap, hash_map::Entry},
    sync::{Arc, atomic::Ordering},
};

use millrace_buffer::SpanRef;
use millrace_rdma::{DomainRef, LocalKey};
use millrace_runtime::RuntimeRef;
use smallvec::SmallVec;

use super::{Counts, Registered, Settings, local::Piece, pressure::Marks};

/// A span that is registered. Deregistered on drop; until then it stays mapped.
pub(crate) struct KeptSpan {
    domain: DomainRef,
    key: LocalKey,
    counts: Arc<Counts>,
    _registered: Registered,
    span: SpanRef,
}

impl Drop for KeptSpan {
    fn drop(&mut self) {
        self.domain.deregister_local(self.key);
        self.counts.kept_bytes.fetch_sub(self.span.len() as u64, Ordering::Relaxed);
    }
}

/// The spans of one connection. Those that work uses are referred to elsewhere too.
pub(super) struct KeptSpans {
    domain: DomainRef,
    counts: Arc<Counts>,
    marks: Marks,
    /// By their ids, each with when it was used last, in operations.
    spans: HashMap<u64, (Arc<KeptSpan>, u64)>,
    operations: u64,
}

impl KeptSpans {
    pub(super) fn new(domain: DomainRef, counts: Arc<Counts>, settings: &Settings, rt: RuntimeRef) -> Self {
        Self { domain, counts, marks: Marks::new(settings, rt), spans: HashMap::new(), operations: 0 }
    }

    fn kept_bytes(&self) -> usize {
        self.counts.kept_bytes.load(Ordering::Relaxed) as usize
    }

    /// The spans of `pieces`, registered and in use as long as the result lives; `None` when there is no room for them.
    pub(super) fn hold<'a>(
        &mut self,
        pieces: impl Iterator<Item = Piece<'a>>,
    ) -> Option<SmallVec<[Arc<KeptSpan>; 2]>> {
        self.operations += 1;
        let (mut held, mut new) = (SmallVec::<[Arc<KeptSpan>; 2]>::new(), false);
        for piece in pieces {
            // Pieces of one operation mostly lie in one span.
            if !held.iter().any(|k| k.span.id() == piece.span.id()) {
                let (kept, registered) = self.one(&piece)?;
                new |= registered;
                held.push(kept);
            }
        }
        if !new {
            self.counts.hit();
        }
        if let Some(keep) = self.marks.excess(self.kept_bytes()) {
            self.reclaim(keep);
        }
        Some(held)
    }

    /// The span of one piece, and whether it had to be registered.
    fn one(&mut self, piece: &Piece<'_>) -> Option<(Arc<KeptSpan>, bool)> {
        if let Some((kept, used)) = self.spans.get_mut(&piece.span.id()) {
            *used = self.operations;
            return Some((Arc::clone(kept), false));
        }
        // What only we keep: its arena is gone.
        self.spans.retain(|_, (kept, _)| !(is_idle(kept) && kept.span.is_last()));
        if !self.marks.allow(self.kept_bytes() + piece.span.len()) {
            return None;
        }
        let span = piece.span.clone();
        let key = self.domain.keep_local(&span)?;
        self.counts.kept_bytes.fetch_add(piece.span.len() as u64, Ordering::Relaxed);
        let registered = Registered::new(&self.counts, piece.span.len());
        let (domain, counts) = (Arc::clone(&self.domain), Arc::clone(&self.counts));
        let kept = Arc::new(KeptSpan { domain, key, counts, _registered: registered, span });
        self.spans.insert(piece.span.id(), (Arc::clone(&kept), self.operations));
        Some((kept, true))
    }

    /// Lets go of spans that no work uses, those first that were used longest ago, until no more than `keep` bytes are
    /// kept or none is idle here.
    fn reclaim(&mut self, keep: usize) {
        let idle = self.spans.iter().filter(|(_, (kept, _))| is_idle(kept));
        let mut idle: Vec<(u64, u64)> = idle.map(|(id, (_, used))| (*used, *id)).collect();
        idle.sort_unstable();
        for (_, id) in idle {
            if self.kept_bytes() <= keep {
                break;
            }
            if let Entry::Occupied(there) = self.spans.entry(id) {
                there.remove();
                self.counts.reclaimed.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
}

fn is_idle(kept: &Arc<KeptSpan>) -> bool {
    Arc::strong_count(kept) == 1
}
