//! The one tag of the whole arena: tagged offsets are addresses.
//!
//! An adapter lets the peer reach all memory behind such a tag. Here it reaches what is exposed at the moment, and no
//! more: what belongs to other code of this process must not change under it. (To show what an adapter's tag costs, the
//! peer may be let write to the whole spans in which that lies.)

use std::collections::BTreeMap;

use millrace_buffer::SPAN_BYTES;
use slab::Slab;

use super::{access::AccessError, exposed::Exposed};
use crate::{Access, GLOBAL_PAGE, Memory, Segment, Segments, SteeringTag};

/// A piece of exposed memory that is in one place.
struct Piece {
    /// Where in its region it begins.
    at: usize,
    len: usize,
}

/// What is exposed by the global tag.
#[derive(Default)]
pub(super) struct Global {
    pub(super) tag: Option<u32>,
    /// Whether the peer reaches whole spans: see [`super::StagTables::insecure_whole_spans`].
    pub(super) spans: bool,
    exposed: Slab<Exposed>,
    /// By address, and by the exposure: shared memory may be exposed several times.
    pieces: BTreeMap<(u64, usize), Piece>,
}

/// Calls `f` with address and length of each piece. (A peer may take segments that follow one another for one.)
fn for_pieces(memory: &Memory, mut f: impl FnMut(u64, usize)) {
    match memory {
        Memory::Owned(b) => f(b.address() as u64, b.len()),
        Memory::Shared(views) => {
            views.pieces().for_each(|p| f(p[0].address() as u64, p.iter().map(|v| v.len()).sum()))
        }
    }
}

/// Segments of `len` bytes at `address` that cross no border of a page.
fn cut(tag: u32, address: u64, len: usize, out: &mut Segments) {
    let (mut offset, end) = (address, address + len as u64);
    while offset < end {
        let page_end = (offset + 1).next_multiple_of(GLOBAL_PAGE as u64);
        let length = (page_end.min(end) - offset) as u32;
        out.push(Segment { handle: SteeringTag(tag), length, offset });
        offset += u64::from(length);
    }
}

impl Global {
    /// Exposes; gives the key and the segments. The tag must be there.
    pub(super) fn insert(&mut self, tag: u32, exposed: Exposed) -> (usize, Segments) {
        let key = self.exposed.vacant_key();
        let (mut segments, mut at) = (Segments::new(), 0);
        for_pieces(&exposed.memory, |address, len| {
            self.pieces.insert((address, key), Piece { at, len });
            cut(tag, address, len, &mut segments);
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
        for_pieces(&exposed.memory, |address, _| {
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

    /// Whether the `len` bytes at the address `offset` lie in a span of which the peer may write a part, and whole spans
    /// are within its reach.
    pub(super) fn reaches(&self, offset: u64, len: usize) -> bool {
        let Some(end) = offset.checked_add(len as u64).filter(|_| self.spans) else { return false };
        self.exposed.iter().any(|(_, e)| match &e.memory {
            Memory::Owned(b) if e.access == Access::RemoteWrite => {
                let start = b.span().address() as u64;
                start <= offset && end <= start + b.span().len() as u64
            }
            _ => false,
        })
    }

    /// The exposure with the right `want` in which the `len` bytes at the address `offset` lie, and where in it.
    pub(super) fn find(&self, offset: u64, len: usize, want: Access) -> Result<(usize, usize), AccessError> {
        let end = offset.checked_add(len as u64).ok_or(AccessError::Wrap)?;
        let mut denied = AccessError::Bounds;
        let before = self.pieces.range(..=(offset, usize::MAX)).rev();
        // No piece is longer than a span, so none that begins before this can reach the offset.
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
