//! The STag table. Enforces the rules of RFC 5040 section 5 and RFC 5041 section 5.2 on every access of the
//! peer.
//!
//! A table entry *owns* the memory of its exposed region. A provider holds the table's lock while it accesses
//! that memory for the peer. Revocation takes the lock and removes the entry, so no access can follow.

use std::{
    collections::{HashMap, VecDeque},
    hash::{BuildHasherDefault, Hasher},
    sync::Arc,
};

use millrace_runtime::RuntimeRef;
use smallvec::smallvec;

use super::{
    access::{AccessError, InvalidateError, Source},
    exposed::Exposed,
    global::Global,
    released::{Released, write_mapped},
    tags::{Tags, index_of, next_key},
    tally::Tally,
};
use crate::{Access, Exposure, ExposureId, Memory, RegistrationKind, Segment, SteeringTag};

/// Maximum number of tags of one connection: far more than credits require, and few enough that random
/// indexes stay sparse.
const MAX_TAGS: usize = 1 << 16;
/// First id of exposures with the global tag. The id of other exposures is their tag.
const GLOBAL_IDS: u64 = 1 << 32;

/// Hashes tag indexes. They are random, so one multiplication spreads them sufficiently.
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

enum Use {
    /// Memory that the peer can access.
    Exposed(Exposed),
    /// The sink of a local RDMA Read. The request holds the memory; the entry only reserves the tag.
    Sink,
    /// A released window that is still bound although the memory has another owner.
    Released(Released),
    /// An unbound window, or the global tag.
    Reserved,
}

struct Entry {
    tag: u32,
    /// Whether the entry remains when it is not in use.
    window: bool,
    used: Use,
}

/// The windows of a domain.
#[derive(Default)]
struct Windows {
    count: usize,
    largest: usize,
    /// Tags of unbound windows. The most recently used one is at the back, so that a key is reused as late as
    /// possible.
    free: VecDeque<u32>,
    /// Tags of released windows that are still bound.
    released: Vec<u32>,
}

/// The STag table of a protection domain, obtained from [`StagDomain::lock`](super::StagDomain::lock).
pub struct StagTable {
    entries: HashMap<u32, Entry, BuildHasherDefault<IndexHasher>>,
    tags: Tags,
    windows: Windows,
    global: Global,
    exposed: Arc<Tally>,
}

impl StagTable {
    pub(super) fn new(tags: Tags) -> Self {
        Self {
            entries: HashMap::default(),
            tags,
            windows: Windows::default(),
            global: Global::default(),
            exposed: Arc::default(),
        }
    }

    /// The number and bytes of exposed regions.
    pub(super) fn tally(&self) -> &Arc<Tally> {
        &self.exposed
    }

    /// Permits writes to whole spans with the global tag.
    pub(super) fn with_writable_spans(mut self) -> Self {
        self.global.spans = true;
        self
    }

    /// Returns an unused tag.
    fn unused_tag(&mut self, rt: &RuntimeRef) -> Option<u32> {
        let Self { entries, tags, .. } = self;
        (entries.len() < MAX_TAGS).then(|| tags.fresh(rt, |index| entries.contains_key(&index)))
    }

    /// Allocates a tag for `used`.
    fn insert(&mut self, rt: &RuntimeRef, window: bool, used: Use) -> Option<u32> {
        let tag = self.unused_tag(rt)?;
        self.entries.insert(index_of(tag), Entry { tag, window, used });
        Some(tag)
    }

    fn entry(&self, tag: u32) -> Option<&Entry> {
        self.entries.get(&index_of(tag)).filter(|e| e.tag == tag)
    }

    fn entry_mut(&mut self, tag: u32) -> Option<&mut Entry> {
        self.entries.get_mut(&index_of(tag)).filter(|e| e.tag == tag)
    }

    /// Allocates a tag for the sink of an RDMA Read.
    pub(super) fn reserve_sink(&mut self, rt: &RuntimeRef) -> Option<u32> {
        self.insert(rt, false, Use::Sink)
    }

    /// Frees a tag that [`StagDomain::reserve_sink`](super::StagDomain::reserve_sink) returned.
    pub fn release_sink(&mut self, tag: u32) {
        if matches!(self.entry(tag), Some(Entry { used: Use::Sink, .. })) {
            self.entries.remove(&index_of(tag));
        }
    }

    /// Allocates windows at the first call, and returns their number.
    pub(super) fn reserve_windows(&mut self, rt: &RuntimeRef, count: usize, largest: usize) -> usize {
        if self.windows.count == 0 {
            let tags =
                (0..count).map_while(|_| self.insert(rt, true, Use::Reserved)).collect::<VecDeque<_>>();
            self.windows = Windows { count: tags.len(), largest, free: tags, released: Vec::new() };
        }
        self.windows.count
    }

    /// Creates the global tag; false if the table is full.
    pub(super) fn enable_global(&mut self, rt: &RuntimeRef) -> bool {
        if self.global.tag.is_none() {
            self.global.tag = self.insert(rt, false, Use::Reserved);
        }
        self.global.tag.is_some()
    }

    /// Exposes memory. On failure, returns the memory and the reason.
    pub(super) fn expose(
        &mut self,
        rt: &RuntimeRef,
        by: RegistrationKind,
        exposed: Exposed,
    ) -> Result<Exposure, (Memory, &'static str)> {
        let len = exposed.memory.len();
        let exposure = match by {
            RegistrationKind::Region => self.register(rt, exposed),
            RegistrationKind::Window => self.bind(exposed),
            RegistrationKind::Global => match self.global.tag {
                Some(tag) => {
                    let (key, segments) = self.global.insert(tag, exposed);
                    Ok(Exposure { id: ExposureId(GLOBAL_IDS + key as u64), segments })
                }
                None => Err((exposed.memory, "the domain has no global tag")),
            },
        }?;
        self.exposed.add(len);
        Ok(exposure)
    }

    fn register(&mut self, rt: &RuntimeRef, exposed: Exposed) -> Result<Exposure, (Memory, &'static str)> {
        let length = exposed.memory.len() as u32; // The caller has checked the length.
        match self.unused_tag(rt) {
            Some(tag) => {
                let entry = Entry { tag, window: false, used: Use::Exposed(exposed) };
                self.entries.insert(index_of(tag), entry);
                Ok(single_segment(tag, length))
            }
            None => Err((exposed.memory, "no free steering tag")),
        }
    }

    fn bind(&mut self, exposed: Exposed) -> Result<Exposure, (Memory, &'static str)> {
        let length = exposed.memory.len();
        if length > self.windows.largest {
            return Err((exposed.memory, "the region is larger than a window"));
        }
        if self.windows.free.is_empty() {
            self.invalidate_released();
        }
        let Some(free) = self.windows.free.pop_front() else {
            return Err((exposed.memory, "no free window"));
        };
        let tag = next_key(free);
        match self.entry_mut(free) {
            Some(e) => (e.tag, e.used) = (tag, Use::Exposed(exposed)),
            None => return Err((exposed.memory, "no such window")),
        }
        Ok(single_segment(tag, length as u32))
    }

    pub(super) fn revoke(&mut self, id: ExposureId) -> Option<Memory> {
        let exposed = match id.0.checked_sub(GLOBAL_IDS) {
            Some(key) => self.global.remove(key as usize)?,
            None => self.take(id.0 as u32)?,
        };
        self.exposed.subtract(exposed.memory.len());
        Some(exposed.memory)
    }

    /// Returns the memory and leaves a window with remote write access bound; revokes other exposures.
    pub(super) fn release(&mut self, id: ExposureId) -> Option<Memory> {
        let tag = u32::try_from(id.0).ok();
        match tag.and_then(|tag| self.entry_mut(tag)) {
            Some(Entry { tag, window: true, used }) => {
                let tag = *tag;
                let Use::Exposed(Exposed {
                    memory: Memory::Owned(b),
                    access: Access::RemoteWrite,
                    valid: true,
                    ..
                }) = &*used
                else {
                    return self.revoke(id);
                };
                let released = Use::Released(Released::new(b));
                let Use::Exposed(e) = std::mem::replace(used, released) else { return None };
                self.windows.released.push(tag);
                Some(e.memory)
            }
            _ => self.revoke(id),
        }
    }

    /// Whether the peer can write with `tag` to memory that has another owner: a released window
    /// ([`crate::Domain::release`]), or the global STag of
    /// [`StagTables::insecure_whole_spans`](super::StagTables::insecure_whole_spans).
    pub fn is_released(&self, tag: u32) -> bool {
        if self.global.spans && self.global.tag == Some(tag) {
            return true;
        }
        !self.windows.released.is_empty()
            && matches!(self.entry(tag), Some(Entry { used: Use::Released(_), .. }))
    }

    /// Removes all entries, for providers whose exposures end with the connection. Returns the removed
    /// memory, so that the caller can drop it after releasing the lock.
    pub fn clear(&mut self) -> impl Send + use<> {
        self.exposed.clear();
        self.windows = Windows::default();
        (std::mem::take(&mut self.entries), std::mem::take(&mut self.global))
    }

    /// The kind of the exposure `id`; `None` if it does not exist.
    pub fn means(&self, id: ExposureId) -> Option<RegistrationKind> {
        if id.0 >= GLOBAL_IDS {
            return Some(RegistrationKind::Global);
        }
        self.entry(id.0 as u32)
            .map(|e| if e.window { RegistrationKind::Window } else { RegistrationKind::Region })
    }

    /// Invalidates released windows and returns their number.
    pub(super) fn invalidate_released(&mut self) -> usize {
        let mut released = std::mem::take(&mut self.windows.released);
        let count = released.len();
        for tag in released.drain(..) {
            let Some(entry) = self.entry_mut(tag) else { continue };
            if let Use::Released(r) = std::mem::replace(&mut entry.used, Use::Reserved) {
                self.exposed.subtract(r.len);
            }
            self.windows.free.push_back(tag);
        }
        self.windows.released = released;
        count
    }

    /// Writes `bytes` to memory that has another owner, through a released window that is still bound.
    ///
    /// # Errors
    /// The window is not bound, the range is outside of it, or the write fails.
    pub fn write_released(&self, tag: u32, offset: u64, bytes: &[u8]) -> Result<(), AccessError> {
        let written = match self.entry(tag).map(|e| &e.used) {
            Some(Use::Released(r)) => {
                r.check(offset, bytes.len())?;
                r.write(offset, bytes)
            }
            Some(Use::Reserved)
                if self.global.tag == Some(tag) && self.global.permits_span_write(offset, bytes.len()) =>
            {
                write_mapped(offset, bytes)
            }
            _ => return Err(AccessError::Stag),
        };
        written.map_err(|e| {
            tracing::warn!("cannot write to a released window: {e}");
            AccessError::Stag
        })
    }

    fn take(&mut self, tag: u32) -> Option<Exposed> {
        let entry = self.entry_mut(tag).filter(|e| matches!(e.used, Use::Exposed(_)))?;
        let used = if entry.window {
            let used = std::mem::replace(&mut entry.used, Use::Reserved);
            self.windows.free.push_back(tag);
            used
        } else {
            self.entries.remove(&index_of(tag))?.used
        };
        match used {
            Use::Exposed(e) => Some(e),
            Use::Released(_) | Use::Sink | Use::Reserved => None,
        }
    }

    pub(super) fn get(&self, id: ExposureId) -> Option<&Exposed> {
        match id.0.checked_sub(GLOBAL_IDS) {
            Some(key) => self.global.get(key as usize),
            None => match &self.entry(id.0 as u32)?.used {
                Use::Exposed(e) => Some(e),
                Use::Released(_) | Use::Sink | Use::Reserved => None,
            },
        }
    }

    pub(super) fn get_mut(&mut self, id: ExposureId) -> Option<&mut Exposed> {
        match id.0.checked_sub(GLOBAL_IDS) {
            Some(key) => self.global.get_mut(key as usize),
            None => match &mut self.entry_mut(id.0 as u32)?.used {
                Use::Exposed(e) => Some(e),
                Use::Released(_) | Use::Sink | Use::Reserved => None,
            },
        }
    }

    /// The exposure and the position in it that the peer's access refers to, if the access is permitted.
    fn locate(
        &self,
        tag: u32,
        offset: u64,
        len: usize,
        want: Access,
    ) -> Result<(ExposureId, usize), AccessError> {
        if self.global.tag == Some(tag) {
            return match self.global.find(offset, len, want) {
                Ok((key, at)) => Ok((ExposureId(GLOBAL_IDS + key as u64), at)),
                Err(_) if want == Access::RemoteWrite && self.global.permits_span_write(offset, len) => {
                    Err(AccessError::Released)
                }
                Err(denied) => Err(denied),
            };
        }
        let id = ExposureId(tag.into());
        if let Some(Entry { used: Use::Released(r), .. }) = self.entry(tag) {
            let rights =
                if want == Access::RemoteWrite { r.check(offset, len) } else { Err(AccessError::Rights) };
            return Err(rights.err().unwrap_or(AccessError::Released));
        }
        let e = self.get(id).filter(|e| e.valid).ok_or(AccessError::Stag)?;
        if e.access != want {
            return Err(AccessError::Rights);
        }
        let end = offset.checked_add(len as u64).ok_or(AccessError::Wrap)?;
        if end > e.memory.len() as u64 {
            return Err(AccessError::Bounds);
        }
        usize::try_from(offset).map(|at| (id, at)).map_err(|_| AccessError::Bounds)
    }

    /// Checks that the peer may write `len` bytes at `offset` of `tag`.
    ///
    /// # Errors
    /// [`AccessError`], except [`AccessError::Released`]: such a write is allowed.
    pub fn check_write(&self, tag: u32, offset: u64, len: usize) -> Result<(), AccessError> {
        match self.locate(tag, offset, len, Access::RemoteWrite) {
            Ok(_) | Err(AccessError::Released) => Ok(()),
            Err(denied) => Err(denied),
        }
    }

    /// Returns the region's memory from `offset` of `tag` to its end, for placing `len` bytes, and whether no
    /// data was placed after those bytes so far. The `len` bytes count as placed.
    ///
    /// # Errors
    /// [`AccessError`].
    pub fn place(&mut self, tag: u32, offset: u64, len: usize) -> Result<(&mut [u8], bool), AccessError> {
        let (id, at) = self.locate(tag, offset, len, Access::RemoteWrite)?;
        match self.get_mut(id) {
            Some(Exposed { memory: Memory::Owned(b), written, .. }) => {
                let end = at + len;
                let fresh = end >= *written;
                *written = end.max(*written);
                Ok((&mut b[at..], fresh))
            }
            _ => Err(AccessError::Stag),
        }
    }

    /// Returns the `len` bytes at `offset` of `tag` for the peer to read.
    ///
    /// # Errors
    /// [`AccessError`].
    pub fn source(&self, tag: u32, offset: u64, len: usize) -> Result<Source<'_>, AccessError> {
        let (id, at) = self.locate(tag, offset, len, Access::RemoteRead)?;
        match self.get(id).map(|e| &e.memory) {
            Some(Memory::Owned(b)) => b.get(at..at + len).map(Source::Bytes).ok_or(AccessError::Bounds),
            Some(Memory::Shared(v)) => Ok(Source::Views(v, at)),
            None => Err(AccessError::Stag),
        }
    }

    /// Invalidates `tag` for a Send with Invalidate of the peer. Repeated invalidation is permitted.
    ///
    /// # Errors
    /// [`InvalidateError`].
    pub fn invalidate(&mut self, tag: u32) -> Result<(), InvalidateError> {
        match self.entry_mut(tag).map(|e| &mut e.used) {
            Some(Use::Exposed(e)) => {
                e.valid = false;
                Ok(())
            }
            Some(used @ Use::Released(_)) => {
                let Use::Released(r) = std::mem::replace(used, Use::Reserved) else { return Ok(()) };
                self.exposed.subtract(r.len);
                Ok(()) // invalidate_released() returns the tag to the free ones.
            }
            Some(Use::Sink | Use::Reserved) => Err(InvalidateError::Protected),
            None => Err(InvalidateError::Unknown),
        }
    }
}

/// An exposure with one segment that begins at offset 0.
fn single_segment(tag: u32, length: u32) -> Exposure {
    let segment = Segment { handle: SteeringTag(tag), length, offset: 0 };
    Exposure { id: ExposureId(tag.into()), segments: smallvec![segment] }
}
