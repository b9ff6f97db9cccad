//! Registration of local memory: the sources of RDMA Writes and the sinks of RDMA Reads.

use std::sync::Arc;

use crate::{DomainRef, LocalKey, LocalUse, RegistrationKind};
use millrace_buffer::{Buffer, SpanRef, Views};
use smallvec::SmallVec;

use super::{
    Counts, RegistrationCount,
    span_cache::{CachedSpan, SpanCache},
};

/// A registration for one operation. Dropping it ends the registration; until then its memory stays mapped.
struct OperationRegistration {
    domain: DomainRef,
    key: LocalKey,
    _registered: Option<RegistrationCount>,
    _spans: Spans,
}

/// The spans that contain the memory of an operation, usually one.
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

impl Drop for OperationRegistration {
    fn drop(&mut self) {
        self.domain.deregister_local(self.key);
    }
}

/// The registration of an operation's memory while the operation is in progress. Cached spans stay registered
/// afterwards.
pub struct LocalRegistration(Kind);

enum Kind {
    PerOperation(#[allow(dead_code)] OperationRegistration), // Dropping it deregisters the memory.
    Cached(#[allow(dead_code)] SmallVec<[Arc<CachedSpan>; 2]>), // Keeps the registrations in the cache.
}

impl LocalRegistration {
    /// Whether the registration ends with the operation.
    pub fn is_per_operation(&self) -> bool {
        matches!(self.0, Kind::PerOperation(_))
    }
}

/// The registrations of one call's memory.
pub type LocalRegistrations = SmallVec<[LocalRegistration; 1]>;

/// One piece of an operation's memory.
struct Piece<'a> {
    span: &'a SpanRef,
    bytes: &'a [u8],
}

/// Mode of registration.
pub(super) enum LocalMode {
    /// Each operation registers its memory, by these means.
    PerOperation(RegistrationKind),
    /// Spans are registered and cached, up to the limit of the cache.
    CachedSpans(SpanCache),
    /// The provider needs no registration, or registers spans permanently itself.
    Never,
}

/// Registers the memory of each RDMA Read and RDMA Write of one connection. The result must be held until the
/// operation is complete, or the queue pair is dropped.
pub struct Local {
    domain: DomainRef,
    counts: Arc<Counts>,
    mode: LocalMode,
}

impl Local {
    pub(super) fn new(domain: DomainRef, counts: Arc<Counts>, mode: LocalMode) -> Self {
        Self { domain, counts, mode }
    }

    /// Registers the source of an RDMA Write if the provider requires it.
    pub fn source(&mut self, data: &Views) -> Option<LocalRegistration> {
        let pieces = data.iter().map(|v| Piece { span: v.span(), bytes: v });
        self.register(pieces, LocalUse::Source)
    }

    /// Registers the sink of an RDMA Read if the provider requires it.
    pub fn sink(&mut self, sink: &[Buffer]) -> Option<LocalRegistration> {
        let pieces = sink.iter().map(|b| Piece { span: b.span(), bytes: b });
        self.register(pieces, LocalUse::Sink)
    }

    fn register<'a>(
        &mut self,
        pieces: impl Iterator<Item = Piece<'a>> + Clone,
        used: LocalUse,
    ) -> Option<LocalRegistration> {
        let by = match &mut self.mode {
            LocalMode::Never => return None,
            LocalMode::PerOperation(by) => *by,
            LocalMode::CachedSpans(kept) => match kept.acquire(pieces.clone().map(|p| p.span)) {
                Some(spans) => return Some(LocalRegistration(Kind::Cached(spans))),
                None => RegistrationKind::Region,
            },
        };
        let memory: SmallVec<[&[u8]; 16]> = pieces.clone().map(|p| p.bytes).collect();
        let spans = spans_of(pieces);
        if by == RegistrationKind::Window
            && let Some(key) = self.domain.register_local(by, &memory, used)
        {
            self.counts.hit();
            return Some(self.registration(key, None, spans));
        }
        let Some(key) = self.domain.register_local(RegistrationKind::Region, &memory, used) else {
            self.counts.hit();
            return None;
        };
        if !matches!(self.mode, LocalMode::PerOperation(RegistrationKind::Region)) {
            self.counts.fell_back();
        }
        let bytes = memory.iter().map(|p| p.len()).sum();
        Some(self.registration(key, Some(RegistrationCount::new(&self.counts, bytes)), spans))
    }

    fn registration(
        &self,
        key: LocalKey,
        registered: Option<RegistrationCount>,
        spans: Spans,
    ) -> LocalRegistration {
        let domain = Arc::clone(&self.domain);
        LocalRegistration(Kind::PerOperation(OperationRegistration {
            domain,
            key,
            _registered: registered,
            _spans: spans,
        }))
    }
}
