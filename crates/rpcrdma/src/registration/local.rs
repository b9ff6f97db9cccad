//! Memory that only this side's adapter uses: the sources of RDMA Writes and the sinks of RDMA Reads.

use std::sync::Arc;

use millrace_buffer::{Buffer, SpanRef, Views};
use millrace_rdma::{DomainRef, LocalKey, LocalUse, Means};
use smallvec::SmallVec;

use super::{
    Counts, Registered,
    kept::{KeptSpan, KeptSpans},
};

/// A registration for one operation, which ends when it is dropped. Until then its memory stays mapped.
pub(crate) struct ForOne {
    domain: DomainRef,
    key: LocalKey,
    _registered: Option<Registered>,
    _spans: Spans,
}

/// The spans that an operation's memory lies in, mostly one.
type Spans = SmallVec<[SpanRef; 2]>;

fn spans_of<'a>(pieces: impl Iterator<Item = Piece<'a>>) -> Spans {
    let mut spans = Spans::new();
    for piece in pieces {
        if !spans.iter().any(|s| s.id() == piece.span.id()) {
            spans.push(piece.span.clone());
        }
    }
    spans
}

impl Drop for ForOne {
    fn drop(&mut self) {
        self.domain.deregister_local(self.key);
    }
}

/// What an operation has registered until it is done. Kept spans stay so afterwards.
pub(crate) enum Held {
    ForOne(#[allow(dead_code)] ForOne), // Only to be dropped.
    Kept(#[allow(dead_code)] SmallVec<[Arc<KeptSpan>; 2]>), // As above.
}

impl Held {
    /// Whether a registration ends with it.
    pub(crate) fn is_for_one(&self) -> bool {
        matches!(self, Self::ForOne(_))
    }
}

/// What one call has registered until it is done.
pub(crate) type AllHeld = SmallVec<[Held; 1]>;

/// One piece of an operation's memory.
pub(super) struct Piece<'a> {
    pub(super) span: &'a SpanRef,
    bytes: &'a [u8],
}

/// How memory for local use is registered.
pub(super) enum How {
    /// For each operation, by these means.
    Each(Means),
    /// By the span, as long as there is room.
    Kept(KeptSpans),
    /// The provider needs none, or registers spans for good by itself.
    Never,
}

/// Registers what each RDMA Read and RDMA Write of one connection uses, as the strategy says. What is given must be held
/// until the operation is done.
pub(crate) struct Local {
    domain: DomainRef,
    counts: Arc<Counts>,
    how: How,
}

impl Local {
    pub(super) fn new(domain: DomainRef, counts: Arc<Counts>, how: How) -> Self {
        Self { domain, counts, how }
    }

    /// Registers the source of an RDMA Write, if it has to be.
    pub(crate) fn source(&mut self, data: &Views) -> Option<Held> {
        let pieces = data.iter().map(|v| Piece { span: v.span(), bytes: v });
        self.register(pieces, LocalUse::Source)
    }

    /// Registers the sink of an RDMA Read, if it has to be.
    pub(crate) fn sink(&mut self, sink: &[Buffer]) -> Option<Held> {
        let pieces = sink.iter().map(|b| Piece { span: b.span(), bytes: b });
        self.register(pieces, LocalUse::Sink)
    }

    fn register<'a>(
        &mut self,
        pieces: impl Iterator<Item = Piece<'a>> + Clone,
        used: LocalUse,
    ) -> Option<Held> {
        let by = match &mut self.how {
            How::Never => return None,
            How::Each(by) => *by,
            How::Kept(kept) => match kept.hold(pieces.clone()) {
                Some(spans) => return Some(Held::Kept(spans)),
                None => Means::Registration,
            },
        };
        let memory: SmallVec<[&[u8]; 16]> = pieces.clone().map(|p| p.bytes).collect();
        let spans = spans_of(pieces);
        if by == Means::Window
            && let Some(key) = self.domain.register_local(by, &memory, used)
        {
            self.counts.hit();
            return Some(self.held(key, None, spans));
        }
        let Some(key) = self.domain.register_local(Means::Registration, &memory, used) else {
            self.counts.hit();
            return None;
        };
        if !matches!(self.how, How::Each(Means::Registration)) {
            self.counts.fell_back();
        }
        let bytes = memory.iter().map(|p| p.len()).sum();
        Some(self.held(key, Some(Registered::new(&self.counts, bytes)), spans))
    }

    fn held(&self, key: LocalKey, registered: Option<Registered>, spans: Spans) -> Held {
        let domain = Arc::clone(&self.domain);
        Held::ForOne(ForOne { domain, key, _registered: registered, _spans: spans })
    }
}
