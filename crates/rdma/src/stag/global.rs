//! The tag of the whole arena ([`crate::RegistrationKind::Global`]): tagged offsets are addresses.
//!
//! With such a tag, an adapter gives the peer access to all memory of the arena. This table gives access only
//! to exposed memory, because other memory must not change while code of this process uses it. (To
//! demonstrate the effect of an adapter's tag, the peer may be permitted to write to the whole spans that
//! contain memory exposed for writing.)

use std::collections::BTreeMap;

use millrace_buffer::SPAN_BYTES;
use slab::Slab;

use super::{access::AccessError, exposed::Exposed};
use crate::{Access, GLOBAL_PAGE, Memory, Segment, Segments, SteeringTag};

/// A contiguous piece of an exposed region.
struct Piece {
    /// Position in the region.
    at: usize,
    len: usize,
}

/// Memory that is exposed with the global tag.
#[derive(Default)]
pub(super) struct Global {
    pub(super) tag: Option<u32>,
    /// Whether the peer may write to whole spans; see [`super::StagTables::insecure_whole_spans`].
    pub(super) spans: bool,
    exposed: Slab<Exposed>,
    /// Key: address, and index of the exposure, because shared memory may be exposed several times.
    pieces: BTreeMap<(u64, usize), Piece>,
}

/// Calls `f` with address and length of each piece. Adjacent pieces may be merged.
fn for_each_piece(memory: &Memory, mut f: impl FnMut(u64, usize)) {
    match memory {
        Memory::Owned(b) => f(b.address() as u64, b.len()),
        Memory::Shared(views) => {
            views.pieces().for_each(|p| f(p[0].address() as u64, p.iter().map(|v| v.len()).sum()))
        }
    }
}

/// Appends segments for `len` bytes at `address`, none of which crosses a page boundary.
fn push_page_segments(tag: u32, address: u64, len: usize, out: &mut Segments) {
    let (mut offset, end) = (address, address + len as u64);
    while offset < end {
        let page_end = (offset + 1).next_multiple_of(GLOBAL_PAGE as u64);
        let length = (page_end.min(end) - offset) as u32;
        out.push(Segment { handle: SteeringTag(tag), length, offset });
        offset += u64::from(length);
    }
}

impl Global {
    /// Adds an exposure and returns its key and segments. The tag must have been created.
    pub(super) fn insert(&mut self, tag: u32, exposed: Exposed) -> (usize, Segments) {
        let key = self.exposed.vacant_key();
        let (mut segments, mut at) = (Segments::new(), 0);
        for_each_piece(&exposed.memory, |address, len| {
            self.pieces.insert((address, key), Piece { at, len });
            push_page_segments(tag, address, len, &mut segments);
            at += len;
        });
        if segments.is_empty() {
            segments.push(Segment { handle: SteeringTag(tag), length: 0, offset: 0 });
        }
        self.exposed.insert(exposed);
        (key, segments)
    }

    pub(super) fn remove(&mut self, key: usize) -> Option<Exposed> {
        let exposed = self.exposed.try_remove(key)?;
        for_each_piece(&exposed.memory, |address, _| {
            self.pieces.remove(&(address, key));
        });
        Some(exposed)
    }

    pub(super) fn get(&self, key: usize) -> Option<&Exposed> {
        self.exposed.get(key)
    }

    pub(super) fn get_mut(&mut self, key: usize) -> Option<&mut Exposed> {
        self.exposed.get_mut(key)
    }

    /// Whether the `len` bytes at the address `offset` lie in a span that contains memory exposed for
    /// writing, and writes to whole spans are permitted.
    pub(super) fn permits_span_write(&self, offset: u64, len: usize) -> bool {
        let Some(end) = offset.checked_add(len as u64).filter(|_| self.spans) else { return false };
        self.exposed.iter().any(|(_, e)| match &e.memory {
            Memory::Owned(b) if e.access == Access::RemoteWrite => {
                let start = b.span().address() as u64;
                start <= offset && end <= start + b.span().len() as u64
            }
            _ => false,
        })
    }

    /// The exposure with the right `want` that contains the `len` bytes at the address `offset`, and the
    /// position in it.
    pub(super) fn find(&self, offset: u64, len: usize, want: Access) -> Result<(usize, usize), AccessError> {
        let end = offset.checked_add(len as u64).ok_or(AccessError::Wrap)?;
        let mut denied = AccessError::Bounds;
        let before = self.pieces.range(..=(offset, usize::MAX)).rev();
        // No piece is longer than a span, so none that begins before `first` contains the offset.
        let first = offset.saturating_sub(SPAN_BYTES as u64);
        for ((address, key), piece) in before.take_while(|((address, _), _)| *address >= first) {
            if end > address + piece.len as u64 {
                continue;
            }
            if self.exposed.get(*key).is_some_and(|e| e.access == want) {
                return Ok((*key, piece.at + (offset - address) as usize));
            }
            denied = AccessError::Rights;
        }
        Err(denied)
    }
}
