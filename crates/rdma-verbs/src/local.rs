//! Memory that is temporarily registered for local use by one connection, and its keys.

use std::{collections::HashMap, io, sync::Arc};

use millrace_buffer::SpanRef;
use millrace_rdma::{LocalKey, LocalUse};
use slab::Slab;
use smallvec::SmallVec;

use super::adapter::{Protection, Registration};

/// Address and length of a piece of memory.
type MemoryRange = (usize, usize);

/// The memory of a [`LocalKey`].
enum KeyedMemory {
    Pieces(SmallVec<[MemoryRange; 1]>),
    Span(u64),
}

/// A registration, and the number of keys that refer to it: memory may be the source of several Writes at the
/// same time.
struct Counted<R> {
    registration: R,
    keys: usize,
}

/// The temporary registrations of a connection. Other memory is registered by span, permanently.
pub(super) struct Local {
    iwarp: bool,
    keyed: Slab<KeyedMemory>,
    pieces: HashMap<MemoryRange, Counted<Registration>>,
    spans: HashMap<u64, Counted<Arc<Registration>>>,
}

impl Local {
    pub(super) fn new(iwarp: bool) -> Self {
        Self { iwarp, keyed: Slab::new(), pieces: HashMap::new(), spans: HashMap::new() }
    }

    /// The key for local access to `len` bytes at `addr` in `span`.
    pub(super) fn lkey(
        &self,
        protection: &Protection,
        span: &SpanRef,
        addr: usize,
        len: usize,
    ) -> io::Result<u32> {
        if !self.pieces.is_empty()
            && let Some(p) = self.pieces.get(&(addr, len))
        {
            return Ok(p.registration.lkey());
        }
        if !self.spans.is_empty()
            && let Some(s) = self.spans.get(&span.id())
        {
            return Ok(s.registration.lkey());
        }
        protection.span(span).map(|(lkey, _)| lkey)
    }

    /// Registers exactly these pieces.
    pub(super) fn register(
        &mut self,
        protection: &Protection,
        pieces: &[&[u8]],
        used: LocalUse,
    ) -> io::Result<LocalKey> {
        let mut ranges = SmallVec::new();
        // The sinks of an iWARP device have steering tags, and are registered with each Read.
        if !(self.iwarp && used == LocalUse::Sink) {
            for p in pieces.iter().filter(|p| !p.is_empty()) {
                let range = (p.as_ptr().addr(), p.len());
                if let Err(e) = self.add(protection, range) {
                    self.remove(KeyedMemory::Pieces(ranges));
                    return Err(e);
                }
                ranges.push(range);
            }
        }
        Ok(LocalKey(self.keyed.insert(KeyedMemory::Pieces(ranges)) as u64))
    }

    fn add(&mut self, protection: &Protection, range: MemoryRange) -> io::Result<()> {
        if let Some(existing) = self.pieces.get_mut(&range) {
            existing.keys += 1;
            return Ok(());
        }
        let registration = protection.register_local(range.0, range.1)?;
        self.pieces.insert(range, Counted { registration, keys: 1 });
        Ok(())
    }

    /// Registers a span.
    pub(super) fn keep(&mut self, protection: &Protection, span: &SpanRef) -> io::Result<LocalKey> {
        match self.spans.get_mut(&span.id()) {
            Some(existing) => existing.keys += 1,
            None => {
                let registration = protection.keep(span)?;
                self.spans.insert(span.id(), Counted { registration, keys: 1 });
            }
        }
        Ok(LocalKey(self.keyed.insert(KeyedMemory::Span(span.id())) as u64))
    }

    /// Ends a registration.
    pub(super) fn deregister(&mut self, key: LocalKey) {
        let key = usize::try_from(key.0).ok();
        if let Some(keyed) = key.and_then(|k| self.keyed.try_remove(k)) {
            self.remove(keyed);
        }
    }

    fn remove(&mut self, keyed: KeyedMemory) {
        match keyed {
            KeyedMemory::Pieces(ranges) => {
                ranges.iter().for_each(|range| release_key(&mut self.pieces, range))
            }
            KeyedMemory::Span(id) => release_key(&mut self.spans, &id),
        }
    }
}

/// Removes one key of a registration, and with the last one the registration.
fn release_key<K: Eq + std::hash::Hash, R>(map: &mut HashMap<K, Counted<R>>, at: &K) {
    if let Some(existing) = map.get_mut(at) {
        existing.keys -= 1;
        if existing.keys == 0 {
            map.remove(at);
        }
    }
}
