//! Chunks and their positions in an RPC message (RFC 8166 section 3.4).
//!
//! There are two kinds of offset. The *position* of a Read chunk counts in the unreduced stream, which
//! includes all chunks and their XDR padding. The *head offset* of a payload
//! ([`millrace_xdr::Payload::position`]) counts in the reduced stream.

use millrace_rdma::{Segment, SteeringTag};
use millrace_xdr::{Message, pad};
use smallvec::SmallVec;

use crate::header::{Chunk, Lists, ReadSegment};

/// Total bytes of a chunk's segments.
pub fn capacity(segments: &[Segment]) -> u64 {
    segments.iter().map(|s| u64::from(s.length)).sum()
}

/// The segments of a chunk. Adjacent segments with the same tag are merged, and empty segments are removed.
///
/// A tag names one range of memory with contiguous tagged offsets (RFC 5040 section 1.3; R_key and virtual
/// address in InfiniBand), so one RDMA operation can cover segments that a requester lists page by page.
/// Fewer operations are then in flight, which determines the throughput on high-latency links (WAN 2008
/// section 2.3).
pub(crate) fn merged(segments: impl Iterator<Item = Segment>) -> impl Iterator<Item = Segment> {
    let mut rest = segments.filter(|s| s.length > 0).peekable();
    std::iter::from_fn(move || {
        let mut all = rest.next()?;
        while let Some(more) = rest.next_if(|s| follows(&all, s)) {
            all.length += more.length;
        }
        Some(all)
    })
}

/// Whether `b` begins at the end of `a`, and both together fit in one segment.
fn follows(a: &Segment, b: &Segment) -> bool {
    a.handle == b.handle
        && a.offset.checked_add(a.length.into()) == Some(b.offset)
        && a.length.checked_add(b.length).is_some()
}

/// The segments of `chunk` with the lengths that a reply returns after `len` bytes were written in segment
/// order (RFC 8166 section 3.4.6). All lengths are zero for an unused chunk.
pub(crate) fn filled(chunk: &[Segment], len: usize) -> Chunk {
    let mut left = len as u64;
    let fill = |s: &Segment| {
        let length = u64::from(s.length).min(left) as u32;
        left -= u64::from(length);
        Segment { length, ..*s }
    };
    chunk.iter().map(fill).collect()
}

/// The tag that a Send with Invalidate may name: the common tag of all segments of the call, if there is one.
pub fn common_tag(lists: &Lists) -> Option<SteeringTag> {
    let mut segments = lists.segments();
    let first = segments.next()?.handle;
    segments.all(|s| s.handle == first).then_some(first)
}

/// Positions of the payloads' Read chunks in the unreduced stream.
pub fn positions(message: &Message) -> impl Iterator<Item = usize> + '_ {
    let mut before = 0;
    message.payloads.iter().map(move |p| {
        let position = p.position + before;
        before += p.data.len() + pad(p.data.len());
        position
    })
}

/// One Read chunk of a call: the segments with one position.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ReadChunk<'a> {
    pub(crate) position: u32,
    pub(crate) segments: &'a [ReadSegment],
}

impl ReadChunk<'_> {
    pub(crate) fn len(&self) -> u64 {
        self.segments.iter().map(|s| u64::from(s.segment.length)).sum()
    }
}

/// The chunks of a Read list that is sorted by position.
pub(crate) fn read_chunks(sorted: &[ReadSegment]) -> impl Iterator<Item = ReadChunk<'_>> {
    sorted
        .chunk_by(|a, b| a.position == b.position)
        .map(|segments| ReadChunk { position: segments[0].position, segments })
}

/// Head offsets of all chunks except the Position-Zero chunk, in order, without empty chunks. `head_len` is
/// the length of the reduced stream in bytes.
///
/// # Errors
/// A chunk overlaps its predecessor, follows it without a length word between them, or lies beyond the
/// stream.
pub(crate) fn head_offsets(
    sorted: &[ReadSegment],
    head_len: u64,
) -> Result<SmallVec<[PayloadPosition; 2]>, &'static str> {
    let mut out: SmallVec<[PayloadPosition; 2]> = SmallVec::new();
    let mut before = 0_u64;
    for chunk in read_chunks(sorted).filter(|c| c.position != 0 && c.len() > 0) {
        let at = u64::from(chunk.position).checked_sub(before).ok_or("a Read chunk inside another")?;
        if out.last().is_some_and(|last| last.at as u64 >= at) {
            return Err("a Read chunk inside another");
        }
        if at > head_len {
            return Err("a Read chunk beyond the message");
        }
        out.push(PayloadPosition { at: at as usize, len: chunk.len() });
        before += chunk.len().next_multiple_of(4);
    }
    Ok(out)
}

/// Position of a Read chunk in the reduced stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PayloadPosition {
    /// Head offset in bytes.
    pub(crate) at: usize,
    /// Length of the chunk in bytes.
    pub(crate) len: u64,
}

#[cfg(test)]
mod tests {
    use smallvec::smallvec;

    use super::*;

    fn seg(length: u32) -> Segment {
        Segment { handle: SteeringTag(7), length, offset: 0 }
    }

    fn read(position: u32, length: u32) -> ReadSegment {
        ReadSegment { position, segment: seg(length) }
    }

    #[test]
    fn chunks_are_filled_in_order_to_the_exact_byte() {
        let chunk = [seg(10), seg(0), seg(5), seg(7)];
        let lens = |n| filled(&chunk, n).iter().map(|s| s.length).collect::<Vec<_>>();
        assert_eq!(lens(0), [0, 0, 0, 0]);
        assert_eq!(lens(10), [10, 0, 0, 0]);
        assert_eq!(lens(13), [10, 0, 3, 0]);
        assert_eq!(lens(22), [10, 0, 5, 7]);
        assert_eq!(capacity(&chunk), 22);
    }

    #[test]
    fn adjacent_segments_with_one_tag_are_merged() {
        let at = |handle, offset, length| Segment { handle: SteeringTag(handle), length, offset };
        let merged = |s: &[Segment]| merged(s.iter().copied()).collect::<Vec<_>>();
        let pages: Vec<_> = (0..256).map(|i| at(7, 0x5000 + 4096 * i, 4096)).collect();
        assert_eq!(merged(&pages), [at(7, 0x5000, 1 << 20)]);
        // Another tag, a gap, an overlap, the wrong order, an end beyond 2^32 bytes or 2^64.
        for apart in [
            [at(7, 0, 10), at(8, 10, 10)],
            [at(7, 0, 10), at(7, 11, 10)],
            [at(7, 0, 10), at(7, 9, 10)],
            [at(7, 10, 10), at(7, 0, 10)],
            [at(7, 0, u32::MAX), at(7, u32::MAX.into(), 1)],
            [at(7, u64::MAX - 9, 10), at(7, 0, 10)],
        ] {
            assert_eq!(merged(&apart), apart);
        }
        // Empty segments are ignored.
        assert_eq!(merged(&[at(7, 0, 10), at(9, 3, 0), at(7, 10, 5)]), [at(7, 0, 15)]);
        assert_eq!(merged(&[at(7, 0, 0)]), []);
    }

    #[test]
    fn positions_count_in_the_unreduced_stream_with_padding() {
        // Items of 5 bytes at head offset 8 and of 3 bytes at head offset 12: positions 8 and 12 + 5 + 3 of
        // padding.
        let offsets = head_offsets(&[read(8, 5), read(20, 3)], 12).unwrap();
        assert_eq!(offsets.iter().map(|o| o.at).collect::<Vec<_>>(), [8, 12]);
        // The same if the requester included the padding in the chunk.
        let offsets = head_offsets(&[read(8, 5), read(8, 3), read(20, 3)], 12).unwrap();
        assert_eq!(offsets.iter().map(|o| o.at).collect::<Vec<_>>(), [8, 12]);
    }

    #[test]
    fn only_a_tag_common_to_all_segments_is_invalidated() {
        assert_eq!(common_tag(&Lists::default()), None);
        let mut lists = Lists { writes: smallvec![smallvec![seg(1), seg(2)]], ..Lists::default() };
        lists.reply = Some(smallvec![seg(3)]);
        assert_eq!(common_tag(&lists), Some(SteeringTag(7)));
        lists.writes[0][1].handle = SteeringTag(10);
        assert_eq!(common_tag(&lists), None);
    }

    #[test]
    fn overlapping_and_out_of_range_chunks_are_rejected() {
        assert!(head_offsets(&[read(8, 5), read(12, 3)], 100).is_err());
        assert!(head_offsets(&[read(8, 4), read(12, 3)], 100).is_err());
        assert!(head_offsets(&[read(104, 4)], 100).is_err());
        assert!(head_offsets(&[read(100, 4)], 100).is_ok());
        assert!(head_offsets(&[read(8, u32::MAX), read(8, u32::MAX), read(16, 1)], 100).is_err());
    }
}
