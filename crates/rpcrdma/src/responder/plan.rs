//! Planning of a reply (RFC 8166 sections 3.4.6, 3.5.6 and 4.4): the results in each Write chunk, the inline
//! part, and the use of the Reply chunk. Posts nothing.

use millrace_buffer::{View, Views};
use millrace_rdma::{Segment, WriteRequest};
use millrace_xdr::Message;
use smallvec::SmallVec;

use super::{Limits, ReplyTo};
use crate::{
    chunks::{capacity, filled, merged},
    header::{Body, Header, Lists},
};

/// A reply to be posted: the RDMA Writes, then a Send of the header and `inline`.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) header: Header,
    pub(super) writes: SmallVec<[WriteRequest; 2]>,
    pub(super) inline: Views,
    /// Whether `inline` is a head without payloads.
    pub(super) only_head: bool,
}

/// The reply fits neither inline nor in the call's chunks. The answer is ERR_CHUNK.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ReplyTooLong;

/// Plans the reply `message` to the call `to`. `zeros` supplies XDR padding.
///
/// # Errors
/// The reply fits neither inline nor in the call's chunks.
pub(super) fn plan(
    to: &ReplyTo,
    credits: u32,
    mut message: Message,
    limits: &Limits,
    zeros: &View,
) -> Result<Plan, ReplyTooLong> {
    let ReplyTo { xid, lists, .. } = to;
    let mut writes = SmallVec::new();
    let mut answer = Lists::default();
    let mut results = std::mem::take(&mut message.payloads).into_iter();
    for chunk in &lists.writes {
        // RFC 8166 section 3.4.6.2: results are assigned to chunks in order; the result of an empty chunk is
        // inline.
        let result = results.next();
        answer.writes.push(filled(chunk, result.as_ref().map_or(0, |r| r.data.len())));
        match result {
            Some(r) if chunk.is_empty() => message.payloads.push(r),
            Some(r) if r.data.len() as u64 > capacity(chunk) => return Err(ReplyTooLong),
            // The item without padding, which is never written (RFC 8166 section 3.4.6.2).
            Some(r) => scatter(r.data, chunk, limits, &mut writes),
            None => {}
        }
    }
    message.payloads.extend(results.filter(|r| !r.data.is_empty()));
    let only_head = message.payloads.is_empty();
    let stream = if only_head { message.head } else { message.gather(zeros) };
    answer.reply = lists.reply.as_ref().map(|c| filled(c, 0));

    let header = Header::new(*xid, credits, Body::Msg(answer));
    if header.encoded_len() + stream.len() <= limits.inline {
        return Ok(Plan { header, writes, inline: stream, only_head });
    }
    let (Some(chunk), Body::Msg(mut answer)) = (&lists.reply, header.body) else { return Err(ReplyTooLong) };
    if stream.len() as u64 > capacity(chunk) {
        return Err(ReplyTooLong);
    }
    answer.reply = Some(filled(chunk, stream.len()));
    let header = Header::new(*xid, credits, Body::NoMsg(answer));
    if header.encoded_len() > limits.inline {
        return Err(ReplyTooLong);
    }
    scatter(stream, chunk, limits, &mut writes);
    Ok(Plan { header, writes, inline: Views::new(), only_head: false })
}

/// RDMA Writes of `data` to `chunk`, contiguous and in segment order. The chunk is large enough.
fn scatter(data: Views, chunk: &[Segment], limits: &Limits, out: &mut SmallVec<[WriteRequest; 2]>) {
    let whole = data.len();
    let mut at = 0;
    for segment in merged(chunk.iter().copied()) {
        let mut offset = segment.offset;
        let mut room = whole.saturating_sub(at).min(segment.length as usize);
        while room > 0 {
            let n = next_write(&data, at, room.min(limits.max_transfer.max(1)), limits.max_pieces.max(1));
            let to = Segment { handle: segment.handle, length: n as u32, offset };
            if n == whole {
                // The common case: one segment holds all data, and the list moves without a copy.
                out.push(WriteRequest { data, to });
                return;
            }
            out.push(WriteRequest { data: data.slice(at, n), to });
            at += n;
            offset += n as u64;
            room -= n;
        }
    }
}

/// Number of the `want` bytes from `at` that lie in at most `max_pieces` pieces.
fn next_write(data: &Views, at: usize, want: usize, max_pieces: usize) -> usize {
    let (mut skip, mut bytes, mut pieces) = (at, 0, 0);
    for v in data {
        if skip >= v.len() {
            skip -= v.len();
            continue;
        }
        bytes += v.len() - skip;
        skip = 0;
        pieces += 1;
        if bytes >= want || pieces == max_pieces {
            break;
        }
    }
    bytes.min(want)
}

#[cfg(test)]
mod tests {
    use millrace_buffer::{Arena, ArenaConfig};
    use millrace_oncrpc::Stages;
    use millrace_rdma::SteeringTag;
    use millrace_xdr::Encoder;

    use super::*;
    use crate::header::Chunk;

    const LIMITS: Limits = Limits { inline: 1024, max_transfer: 1 << 20, max_pieces: 64 };

    fn arena() -> Arena {
        Arena::new(ArenaConfig { limit: 1 << 24, huge_pages: false })
    }

    fn zeros(a: &Arena) -> View {
        a.copy_from(&[0; 4]).unwrap()
    }

    fn message(a: &Arena, head: usize, payloads: &[usize]) -> Message {
        let mut e = Encoder::new(a, 512);
        e.put_raw(&vec![1; head]);
        for &n in payloads {
            e.put_payload(a.copy_from(&vec![2; n]).unwrap().into());
        }
        e.finish().unwrap()
    }

    fn chunk(lengths: &[u32]) -> Chunk {
        let seg = |(i, &length)| Segment { handle: SteeringTag(9), length, offset: 1000 * i as u64 };
        lengths.iter().enumerate().map(seg).collect()
    }

    fn lists(writes: &[&[u32]], reply: Option<&[u32]>) -> Lists {
        Lists {
            writes: writes.iter().map(|w| chunk(w)).collect(),
            reply: reply.map(chunk),
            ..Lists::default()
        }
    }

    fn lengths(p: &Plan) -> (bool, Vec<Vec<u32>>, Option<Vec<u32>>) {
        let of = |c: &Chunk| c.iter().map(|s| s.length).collect();
        let (msg, l) = match &p.header.body {
            Body::Msg(l) => (true, l),
            Body::NoMsg(l) => (false, l),
            other => panic!("{other:?}"),
        };
        (msg, l.writes.iter().map(of).collect(), l.reply.as_ref().map(of))
    }

    fn planned(m: Message, l: &Lists) -> Result<Plan, ReplyTooLong> {
        let to = ReplyTo { xid: 1, lists: l.clone(), stages: Stages::NONE, charge: 0 };
        plan(&to, 1, m, &LIMITS, &zeros(&arena()))
    }

    #[test]
    fn a_result_fills_its_write_chunk_segment_by_segment_without_padding() {
        let a = arena();
        let p = planned(message(&a, 24, &[4097]), &lists(&[&[1000, 0, 3000, 4000]], None)).unwrap();
        assert_eq!(lengths(&p), (true, vec![vec![1000, 0, 3000, 97]], None));
        let w: Vec<_> = p.writes.iter().map(|w| (w.data.len(), w.to.length, w.to.offset)).collect();
        assert_eq!(w, [(1000, 1000, 0), (3000, 3000, 2000), (97, 97, 3000)]);
        assert_eq!(p.inline.len(), 28);
    }

    #[test]
    fn an_unused_write_chunk_is_returned_with_zero_lengths() {
        let a = arena();
        let p = planned(message(&a, 24, &[]), &lists(&[&[1000, 1000]], None)).unwrap();
        assert_eq!(lengths(&p), (true, vec![vec![0, 0]], None));
        assert!(p.writes.is_empty());
    }

    #[test]
    fn an_empty_chunk_keeps_its_result_inline_and_the_next_result_takes_the_next_chunk() {
        let a = arena();
        let p = planned(message(&a, 24, &[5, 600]), &lists(&[&[], &[600]], None)).unwrap();
        assert_eq!(lengths(&p), (true, vec![vec![], vec![600]], None));
        assert_eq!(p.inline.len(), 24 + 4 + 8 + 4);
    }

    #[test]
    fn an_empty_result_uses_its_chunk_and_the_next_result_takes_the_next_chunk() {
        let a = arena();
        let p = planned(message(&a, 24, &[0, 600]), &lists(&[&[1000], &[1000]], None)).unwrap();
        assert_eq!(lengths(&p), (true, vec![vec![0], vec![600]], None));
        assert_eq!((p.writes.len(), p.inline.len(), p.only_head), (1, 24 + 4 + 4, true));
        let p = planned(message(&a, 24, &[0, 600]), &lists(&[], None)).unwrap();
        assert_eq!((p.writes.len(), p.inline.len(), p.only_head), (0, 24 + 4 + 4 + 600, false));
    }

    #[test]
    fn a_reply_that_fits_inline_returns_the_reply_chunk_unused() {
        let a = arena();
        let p = planned(message(&a, 24, &[]), &lists(&[], Some(&[5000]))).unwrap();
        assert_eq!(lengths(&p), (true, vec![], Some(vec![0])));
    }

    #[test]
    fn a_long_reply_uses_the_reply_chunk_including_padding() {
        let a = arena();
        let p = planned(message(&a, 24, &[5001]), &lists(&[], Some(&[3000, 3000]))).unwrap();
        assert_eq!(lengths(&p), (false, vec![], Some(vec![3000, 2032])));
        assert_eq!(p.writes.iter().map(|w| w.data.len()).sum::<usize>(), 24 + 4 + 5001 + 3);
        assert!(p.inline.is_empty());
    }

    #[test]
    fn write_and_reply_chunk_share_one_reply() {
        let a = arena();
        let p = planned(message(&a, 2000, &[5001]), &lists(&[&[6000]], Some(&[3000]))).unwrap();
        assert_eq!(lengths(&p), (false, vec![vec![5001]], Some(vec![2004])));
    }

    #[test]
    fn replies_that_fit_nowhere_are_rejected_before_any_write() {
        let a = arena();
        assert_eq!(
            planned(message(&a, 24, &[5001]), &lists(&[&[5000]], Some(&[9000]))).unwrap_err(),
            ReplyTooLong
        );
        assert_eq!(planned(message(&a, 2000, &[]), &lists(&[], None)).unwrap_err(), ReplyTooLong);
        assert_eq!(planned(message(&a, 2000, &[]), &lists(&[], Some(&[1999]))).unwrap_err(), ReplyTooLong);
    }

    #[test]
    fn adjacent_pages_are_written_together_and_returned_as_separate_segments() {
        let a = arena();
        let page = |i: u64| Segment { handle: SteeringTag(9), length: 4096, offset: 0x7000 + 4096 * i };
        let pages: Chunk = (0..4).chain(8..10).map(page).collect();
        let l = Lists { writes: [pages].into_iter().collect(), ..Lists::default() };
        let p = planned(message(&a, 24, &[20_000]), &l).unwrap();
        let w: Vec<_> = p.writes.iter().map(|w| (w.to.offset, w.to.length, w.data.len())).collect();
        assert_eq!(w, [(0x7000, 16_384, 16_384), (0xf000, 3616, 3616)]);
        assert_eq!(lengths(&p), (true, vec![vec![4096, 4096, 4096, 4096, 3616, 0]], None));
    }

    #[test]
    fn writes_respect_the_limits_of_the_provider() {
        let a = arena();
        let mut data = Views::new();
        for _ in 0..5 {
            data.push(a.copy_from(&[3; 100]).unwrap());
        }
        let limits = Limits { inline: 1024, max_transfer: 150, max_pieces: 2 };
        let mut out = SmallVec::new();
        scatter(data, &chunk(&[500]), &limits, &mut out);
        let w: Vec<_> = out.iter().map(|w| (w.to.offset, w.data.len(), w.data.iter().count())).collect();
        assert_eq!(w, [(0, 150, 2), (150, 150, 2), (300, 150, 2), (450, 50, 1)]);
    }
}
