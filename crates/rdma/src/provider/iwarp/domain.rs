//! The protection domain of a connection: its table of steering tags, and the checks of RFC 5040 section 5 and
//! RFC 5041 section 5.2 on every access of the peer.
//!
//! The memory of an exposed region is *owned by its table entry*. Whoever wants to touch it on the peer's behalf does
//! so while it holds the table's lock, so revocation is: take the lock, remove the entry. Nothing can be placed after.

use std::{
    collections::HashMap,
    hash::{BuildHasherDefault, Hasher},
};

use buffer::Views;
use parking_lot::{Mutex, MutexGuard};
use runtime::RuntimeRef;

use crate::{Access, Domain, ExposeError, Memory, Segment, SteeringTag};

/// The most tags of one connection: far more than credits allow, and few enough that random indexes stay sparse.
const MAX_TAGS: usize = 1 << 16;
const INDEX_BITS: u32 = 24;
/// Random bytes fetched at a time, three for each index.
const RANDOM_BYTES: usize = 192;

/// Tag indexes are random already, so one multiplication spreads them.
#[derive(Default)]
struct IndexHasher(u64);

impl Hasher for IndexHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|b| self.write_u32(u32::from(*b)));
    }

    fn write_u32(&mut self, n: u32) {
        self.0 = (self.0 ^ u64::from(n)).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(26);
    }
}

/// An exposed region.
struct Exposed {
    memory: Memory,
    access: Access,
    /// False once the peer has invalidated the tag.
    valid: bool,
    /// Everything from here on was never placed: the receiver may guess into it.
    written: usize,
}

enum Use {
    /// Memory that the peer can reach.
    Exposed(Exposed),
    /// The sink of an RDMA Read of ours. Its memory is with the read; the table only keeps the tag from other use.
    Sink,
}

struct Entry {
    tag: u32,
    used: Use,
}

/// Why the peer may not touch what it named.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Denied {
    /// No such tag, wrong key, invalidated, or a sink.
    Tag,
    /// The tag does not give this right.
    Rights,
    /// Outside the region.
    Bounds,
    /// Offset plus length exceeds 64 bits.
    Wrap,
}

/// Why the peer may not invalidate what it named.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NotInvalidated {
    /// The tag is not ours.
    Unknown,
    /// The tag is ours but cannot be invalidated by the peer.
    Protected,
}

/// The bytes of a region that the peer may read.
#[derive(Clone, Copy)]
pub(crate) enum Source<'a> {
    /// In one piece.
    Bytes(&'a [u8]),
    /// In several, of which the range begins at this position.
    Views(&'a Views, usize),
}

/// The table behind the lock.
pub(crate) struct Table {
    entries: HashMap<u32, Entry, BuildHasherDefault<IndexHasher>>,
    random: [u8; RANDOM_BYTES],
    random_used: usize,
    key: u8,
    exposed: (usize, usize),
    closed: bool,
}

const fn index_of(tag: u32) -> u32 {
    tag >> 8
}

impl Table {
    /// A tag that is not in use: a random index, never 0, and the next key.
    fn fresh_tag(&mut self, rt: &RuntimeRef) -> Option<u32> {
        if self.entries.len() >= MAX_TAGS {
            return None;
        }
        loop {
            if self.random_used + 3 > RANDOM_BYTES {
                rt.fill_random(&mut self.random);
                self.random_used = 0;
            }
            let at = self.random_used;
            let (a, b, c) = (self.random[at], self.random[at + 1], self.random[at + 2]);
            self.random[at..at + 3].fill(0);
            self.random_used += 3;
            let index = u32::from_be_bytes([0, a, b, c]) & ((1 << INDEX_BITS) - 1);
            if index != 0 && !self.entries.contains_key(&index) {
                self.key = self.key.wrapping_add(1);
                return Some(index << 8 | u32::from(self.key));
            }
        }
    }

    fn exposed_entry(&self, tag: u32) -> Option<&Exposed> {
        match self.entries.get(&index_of(tag)) {
            Some(Entry { tag: t, used: Use::Exposed(e) }) if *t == tag => Some(e),
            _ => None,
        }
    }

    fn exposed_entry_mut(&mut self, tag: u32) -> Option<&mut Exposed> {
        match self.entries.get_mut(&index_of(tag)) {
            Some(Entry { tag: t, used: Use::Exposed(e) }) if *t == tag => Some(e),
            _ => None,
        }
    }

    fn check(e: Option<&Exposed>, offset: u64, len: usize, want: Access) -> Result<usize, Denied> {
        let e = e.filter(|e| e.valid).ok_or(Denied::Tag)?;
        if e.access != want {
            return Err(Denied::Rights);
        }
        let end = offset.checked_add(len as u64).ok_or(Denied::Wrap)?;
        if end > e.memory.len() as u64 {
            return Err(Denied::Bounds);
        }
        usize::try_from(offset).map_err(|_| Denied::Bounds)
    }

    /// Checks that the peer may place `len` bytes at `offset` of `tag`.
    pub(crate) fn check_write(&self, tag: u32, offset: u64, len: usize) -> Result<(), Denied> {
        Self::check(self.exposed_entry(tag), offset, len, Access::RemoteWrite).map(drop)
    }

    /// The memory at `offset` of `tag`, to its end, for placing `len` bytes now; and whether everything after those
    /// `len` bytes was never placed before. The `len` bytes count as placed from now on.
    pub(crate) fn place(&mut self, tag: u32, offset: u64, len: usize) -> Result<(&mut [u8], bool), Denied> {
        let e = self.exposed_entry_mut(tag);
        let at = Self::check(e.as_deref(), offset, len, Access::RemoteWrite)?;
        match e {
            Some(Exposed { memory: Memory::Owned(b), written, .. }) => {
                let end = at + len;
                let fresh = end >= *written;
                *written = end.max(*written);
                Ok((&mut b[at..], fresh))
            }
            _ => Err(Denied::Tag),
        }
    }

    /// The `len` bytes at `offset` of `tag`, if the peer may read them.
    pub(crate) fn source(&self, tag: u32, offset: u64, len: usize) -> Result<Source<'_>, Denied> {
        let e = self.exposed_entry(tag);
        let at = Self::check(e, offset, len, Access::RemoteRead)?;
        match e.map(|e| &e.memory) {
            Some(Memory::Owned(b)) => b.get(at..at + len).map(Source::Bytes).ok_or(Denied::Bounds),
            Some(Memory::Shared(v)) => Ok(Source::Views(v, at)),
            None => Err(Denied::Tag),
        }
    }

    /// The peer's Send with Invalidate. A tag that is invalid already stays so.
    pub(crate) fn invalidate(&mut self, tag: u32) -> Result<(), NotInvalidated> {
        match self.entries.get_mut(&index_of(tag)) {
            Some(Entry { tag: t, used }) if *t == tag => match used {
                Use::Exposed(e) => {
                    e.valid = false;
                    Ok(())
                }
                Use::Sink => Err(NotInvalidated::Protected),
            },
            _ => Err(NotInvalidated::Unknown),
        }
    }
}

/// A connection's protection domain.
pub(crate) struct IwarpDomain {
    table: Mutex<Table>,
    rt: RuntimeRef,
}

impl IwarpDomain {
    /// An empty domain.
    pub(crate) fn new(rt: RuntimeRef) -> Self {
        let table = Table {
            entries: HashMap::default(),
            random: [0; RANDOM_BYTES],
            random_used: RANDOM_BYTES,
            key: 0,
            exposed: (0, 0),
            closed: false,
        };
        Self { table: Mutex::new(table), rt }
    }

    /// The table. Held over one system call at most.
    pub(crate) fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock()
    }

    /// A tag for the sink of an RDMA Read: good for nothing but that Read's responses.
    pub(crate) fn reserve_sink(&self) -> Option<u32> {
        let mut t = self.lock();
        let tag = t.fresh_tag(&self.rt)?;
        t.entries.insert(index_of(tag), Entry { tag, used: Use::Sink });
        Some(tag)
    }

    /// Ends the use of a sink's tag.
    pub(crate) fn release_sink(&self, tag: u32) {
        let mut t = self.lock();
        if matches!(t.entries.get(&index_of(tag)), Some(Entry { tag: u, used: Use::Sink }) if *u == tag) {
            t.entries.remove(&index_of(tag));
        }
    }

    /// The connection is gone: nothing can be exposed any more. Memory stays with its tags until they are revoked.
    pub(crate) fn close(&self) {
        self.lock().closed = true;
    }
}

impl Domain for IwarpDomain {
    fn expose(&self, memory: Memory, access: Access) -> Result<Segment, ExposeError> {
        if access == Access::RemoteWrite && matches!(memory, Memory::Shared(_)) {
            return Err(ExposeError { memory, reason: "shared memory cannot be written by a peer" });
        }
        let Ok(length) = u32::try_from(memory.len()) else {
            return Err(ExposeError { memory, reason: "more than 4 GiB in one region" });
        };
        let mut t = self.lock();
        if t.closed {
            return Err(ExposeError { memory, reason: "the connection is down" });
        }
        let Some(tag) = t.fresh_tag(&self.rt) else {
            return Err(ExposeError { memory, reason: "no steering tag left" });
        };
        t.exposed.0 += 1;
        t.exposed.1 += memory.len();
        let used = Use::Exposed(Exposed { memory, access, valid: true, written: 0 });
        t.entries.insert(index_of(tag), Entry { tag, used });
        Ok(Segment { handle: SteeringTag(tag), length, offset: 0 })
    }

    fn revoke(&self, tag: SteeringTag) -> Option<Memory> {
        let mut t = self.lock();
        t.exposed_entry(tag.0)?;
        let Some(Entry { used: Use::Exposed(e), .. }) = t.entries.remove(&index_of(tag.0)) else {
            return None;
        };
        t.exposed.0 -= 1;
        t.exposed.1 -= e.memory.len();
        Some(e.memory)
    }

    fn is_valid(&self, tag: SteeringTag) -> bool {
        self.lock().exposed_entry(tag.0).is_some_and(|e| e.valid)
    }

    fn exposed(&self) -> (usize, usize) {
        self.lock().exposed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::provider::iwarp::tests::{arena, runtime};

    fn owned(len: usize) -> Memory {
        Memory::Owned(arena().alloc(len).unwrap())
    }

    #[test]
    fn a_tag_gives_its_right_in_its_range_and_nothing_else() {
        let d = IwarpDomain::new(runtime());
        let w = d.expose(owned(100), Access::RemoteWrite).unwrap();
        let r = d.expose(owned(100), Access::RemoteRead).unwrap();
        let t = d.lock();
        let (w, r) = (w.handle.0, r.handle.0);
        assert_eq!(t.check_write(w, 0, 100), Ok(()));
        assert_eq!(t.check_write(w, 100, 0), Ok(()));
        assert_eq!(t.check_write(w, 1, 100), Err(Denied::Bounds));
        assert_eq!(t.check_write(w, u64::MAX, 2), Err(Denied::Wrap));
        assert_eq!(t.check_write(w, u64::MAX - 5, 2), Err(Denied::Bounds));
        assert_eq!(t.check_write(w ^ 1, 0, 1), Err(Denied::Tag));
        assert_eq!(t.check_write(w ^ 0x100, 0, 1), Err(Denied::Tag));
        assert_eq!(t.check_write(r, 0, 1), Err(Denied::Rights));
        assert!(matches!(t.source(w, 0, 1), Err(Denied::Rights)));
        assert!(matches!(t.source(r, 90, 10), Ok(Source::Bytes(b)) if b.len() == 10));
        assert!(matches!(t.source(r, 90, 11), Err(Denied::Bounds)));
    }

    #[test]
    fn revocation_returns_the_memory_once_and_ends_all_access() {
        let d = IwarpDomain::new(runtime());
        let s = d.expose(owned(100), Access::RemoteWrite).unwrap();
        assert_eq!(d.exposed(), (1, 100));
        assert!(d.is_valid(s.handle));
        assert_eq!(d.revoke(s.handle).unwrap().len(), 100);
        assert!(d.revoke(s.handle).is_none());
        assert_eq!(d.exposed(), (0, 0));
        assert_eq!(d.lock().check_write(s.handle.0, 0, 1), Err(Denied::Tag));
    }

    #[test]
    fn invalidation_keeps_the_memory_for_its_owner() {
        let d = IwarpDomain::new(runtime());
        let s = d.expose(owned(100), Access::RemoteWrite).unwrap();
        let sink = d.reserve_sink().unwrap();
        assert_eq!(d.lock().invalidate(s.handle.0), Ok(()));
        assert_eq!(d.lock().invalidate(s.handle.0), Ok(()));
        assert_eq!(d.lock().invalidate(s.handle.0 ^ 0x1100), Err(NotInvalidated::Unknown));
        assert_eq!(d.lock().invalidate(sink), Err(NotInvalidated::Protected));
        assert!(!d.is_valid(s.handle));
        assert_eq!(d.lock().check_write(s.handle.0, 0, 1), Err(Denied::Tag));
        assert!(d.revoke(s.handle).is_some());
    }

    #[test]
    fn sinks_are_no_targets_and_do_not_count_as_exposed() {
        let d = IwarpDomain::new(runtime());
        let sink = d.reserve_sink().unwrap();
        assert_eq!(d.exposed(), (0, 0));
        assert_eq!(d.lock().check_write(sink, 0, 1), Err(Denied::Tag));
        assert!(d.lock().source(sink, 0, 1).is_err());
        assert!(d.revoke(SteeringTag(sink)).is_none());
        d.release_sink(sink);
        assert_eq!(d.lock().invalidate(sink), Err(NotInvalidated::Unknown));
    }

    #[test]
    fn keys_change_at_each_registration_and_indexes_do_not_run() {
        let d = IwarpDomain::new(runtime());
        let tags: Vec<u32> =
            (0..64).map(|_| d.expose(owned(1), Access::RemoteRead).unwrap().handle.0).collect();
        assert!(tags.windows(2).all(|w| w[1] as u8 == (w[0] as u8).wrapping_add(1)));
        assert!(tags.iter().all(|t| t >> 8 != 0));
        let runs = tags.windows(2).filter(|w| (w[0] >> 8) + 1 == w[1] >> 8).count();
        assert!(runs < 4, "indexes follow each other: {tags:x?}");
    }

    #[test]
    fn shared_memory_cannot_be_exposed_for_writing() {
        let d = IwarpDomain::new(runtime());
        let v = arena().copy_from(b"abc").unwrap();
        let e = d.expose(Memory::Shared(v.into()), Access::RemoteWrite).unwrap_err();
        assert_eq!(e.memory.len(), 3);
        d.close();
        assert!(d.expose(owned(1), Access::RemoteRead).is_err());
    }
}
