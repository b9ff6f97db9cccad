//! Memory that is registered for one connection's own work for some time, and which key work has to name.

use std::{collections::HashMap, io, sync::Arc};

use millrace_buffer::SpanRef;
use millrace_rdma::{LocalKey, LocalUse};
use slab::Slab;
use smallvec::SmallVec;

use super::adapter::{Protection, Registration};

/// Where a piece of memory begins, and its bytes.
type Place = (usize, usize);

/// What a [`LocalKey`] names.
enum Named {
    Pieces(SmallVec<[Place; 1]>),
    Span(u64),
}

/// A registration, and how many keys name it: memory may be the source of several Writes at once.
struct Counted<R> {
    registration: R,
    keys: usize,
}

/// The registrations of a connection. What is in none of them is registered by the span, and stays so.
pub(super) struct Local {
    iwarp: bool,
    named: Slab<Named>,
    pieces: HashMap<Place, Counted<Registration>>,
    spans: HashMap<u64, Counted<Arc<Registration>>>,
}

impl Local {
    pub(super) fn new(iwarp: bool) -> Self {
        Self { iwarp, named: Slab::new(), pieces: HashMap::new(), spans: HashMap::new() }
    }

    /// The key for local access to `len` bytes at `addr`, which lie in `span`.
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
        let mut places = SmallVec::new();
        // The sinks of an iWARP device have tags, and are registered with each Read.
        if !(self.iwarp && used == LocalUse::Sink) {
            for p in pieces.iter().filter(|p| !p.is_empty()) {
                let place = (p.as_ptr().addr(), p.len());
                if let Err(e) = self.add(protection, place) {
                    self.remove(Named::Pieces(places));
                    return Err(e);
                }
                places.push(place);
            }
        }
        Ok(LocalKey(self.named.insert(Named::Pieces(places)) as u64))
    }

    fn add(&mut self, protection: &Protection, place: Place) -> io::Result<()> {
        if let Some(there) = self.pieces.get_mut(&place) {
            there.keys += 1;
            return Ok(());
        }
        let registration = protection.register_for_us(place.0, place.1)?;
        self.pieces.insert(place, Counted { registration, keys: 1 });
        Ok(())
    }

    /// Registers a span.
    pub(super) fn keep(&mut self, protection: &Protection, span: &SpanRef) -> io::Result<LocalKey> {
        match self.spans.get_mut(&span.id()) {
            Some(there) => there.keys += 1,
            None => {
                let registration = protection.keep(span)?;
                self.spans.insert(span.id(), Counted { registration, keys: 1 });
            }
        }
        Ok(LocalKey(self.named.insert(Named::Span(span.id())) as u64))
    }

    /// Ends a registration.
    pub(super) fn deregister(&mut self, key: LocalKey) {
        let key = usize::try_from(key.0).ok();
        if let Some(named) = key.and_then(|k| self.named.try_remove(k)) {
            self.remove(named);
        }
    }

    fn remove(&mut self, named: Named) {
        match named {
            Named::Pieces(places) => places.iter().for_each(|place| unname(&mut self.pieces, place)),
            Named::Span(id) => unname(&mut self.spans, &id),
        }
    }
}

/// One key less names the registration; without any it ends.
fn unname<K: Eq + std::hash::Hash, R>(map: &mut HashMap<K, Counted<R>>, at: &K) {
    if let Some(there) = map.get_mut(at) {
        there.keys -= 1;
        if there.keys == 0 {
            map.remove(at);
        }
    }
}
