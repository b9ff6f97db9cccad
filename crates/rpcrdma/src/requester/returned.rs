//! Validation of a reply's chunks against its call (RFC 8166 sections 3.4.6 and 3.5.6), and assembly of the
//! reply.

use millrace_buffer::{Buffer, View};
use millrace_oncrpc::{Message, Payload};
use millrace_rdma::{Memory, Segment};

use super::marshal::Marshaller;
use crate::{
    call_memory::{CallMemory, Recovered},
    counters::add,
    header::{Chunk, Lists},
};

impl Marshaller {
    /// Revokes the call's memory, and returns the message of its reply.
    ///
    /// # Errors
    /// The reason why the reply is invalid.
    pub(super) fn message_of_reply(
        &self,
        lists: &Lists,
        inline: Option<View>,
        memory: Box<CallMemory>,
    ) -> Result<Message, &'static str> {
        let placed = check(lists, inline.is_none(), memory.write_chunk(), memory.reply_chunk());
        let (payload, long) = placed.as_ref().map_or((0, 0), |p| (p.payload, p.long.unwrap_or(0)));
        let recovered = memory.unmap(&*self.registrar, &self.spare, payload, long);
        let placed = placed?;
        let stats = &self.stats;
        add(&stats.long_replies, usize::from(placed.long.is_some()));
        add(&stats.inline_bytes_in, inline.as_ref().map_or(0, |v| v.len()));
        add(&stats.placed_bytes, placed.payload + placed.long.unwrap_or(0));
        assemble(placed, inline, recovered)
    }
}

/// The bytes that the responder reports as written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Placed {
    /// Bytes in the Write chunk.
    payload: usize,
    /// Bytes of the message in the Reply chunk; `None` for an inline message.
    long: Option<usize>,
}

/// Validates the lists of a reply against the call's chunks. An absent list counts as unused.
///
/// # Errors
/// The reason why the lists are invalid.
fn check(
    lists: &Lists,
    no_message: bool,
    write: Option<&[Segment]>,
    reply: Option<&[Segment]>,
) -> Result<Placed, &'static str> {
    if !lists.reads.is_empty() {
        return Err("a reply with a Read list");
    }
    if lists.writes.len() > usize::from(write.is_some()) {
        return Err("a reply with more Write chunks than the call");
    }
    let payload = lists.writes.first().map_or(Ok(0), |c| returned(c, write))?;
    let long = lists.reply.as_ref().map_or(Ok(0), |c| returned(c, reply))?;
    match (no_message, long) {
        (false, 0) => Ok(Placed { payload, long: None }),
        (false, _) => Err("an inline reply that used the Reply chunk too"),
        (true, 0) => Err("a reply without a message"),
        (true, n) => Ok(Placed { payload, long: Some(n) }),
    }
}

/// Bytes written to a chunk, in segment order.
fn returned(chunk: &Chunk, given: Option<&[Segment]>) -> Result<usize, &'static str> {
    let Some(given) = given else { return Err("a reply with a chunk that the call did not give") };
    if chunk.is_empty() {
        return Ok(0); // RFC 8267 permits an empty chunk for an unused one.
    }
    if chunk.len() != given.len() {
        return Err("a reply with another number of segments than the call");
    }
    let (mut written, mut full) = (0, true);
    for (s, given) in chunk.iter().zip(given) {
        if s.handle != given.handle || s.offset != given.offset {
            return Err("a reply with a segment that the call did not give");
        }
        if s.length > given.length {
            return Err("a reply that claims to have written more than the chunk holds");
        }
        if s.length > 0 && !full {
            return Err("a reply that claims to have written a chunk with gaps");
        }
        full = s.length == given.length;
        written += s.length as usize;
    }
    Ok(written)
}

/// Builds the reply from its inline bytes and the memory of its chunks, which the peer can no longer access.
///
/// The payload is at the end of the head: in all NFSv3 replies with a Write chunk, the result in the chunk is
/// the last item.
///
/// # Errors
/// The missing part.
fn assemble(placed: Placed, inline: Option<View>, recovered: Recovered) -> Result<Message, &'static str> {
    const LOST: &str = "memory of the call was lost with its connection";
    let head = match placed.long {
        Some(n) => owned(recovered.reply, n).ok_or(LOST)?.freeze(),
        None => inline.ok_or(LOST)?,
    };
    let mut message = Message::from_view(head);
    if placed.payload > 0 {
        let data = owned(recovered.write, placed.payload).ok_or(LOST)?.freeze().into();
        message.payloads.push(Payload { position: message.head.len(), data });
    }
    Ok(message)
}

fn owned(memory: Option<Memory>, len: usize) -> Option<Buffer> {
    match memory {
        Some(Memory::Owned(mut b)) if len <= b.len() => {
            b.set_len(len);
            Some(b)
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use millrace_rdma::SteeringTag;
    use smallvec::smallvec;

    use super::*;

    const W: Segment = Segment { handle: SteeringTag(5), length: 100, offset: 64 };

    /// A chunk of consecutive segments of up to 100 bytes.
    fn chunk(lengths: &[u32]) -> Chunk {
        let segment = |(i, &length)| Segment { length, offset: W.offset + 100 * i as u64, ..W };
        lengths.iter().enumerate().map(segment).collect()
    }

    fn written(lengths: &[u32]) -> Lists {
        Lists { writes: smallvec![chunk(lengths)], ..Lists::default() }
    }

    #[test]
    fn lengths_up_to_the_chunk_are_accepted() {
        let placed = |n| check(&written(&[n]), false, Some(&chunk(&[100])), None);
        assert_eq!(placed(0), Ok(Placed { payload: 0, long: None }));
        assert_eq!(placed(100), Ok(Placed { payload: 100, long: None }));
        assert!(placed(101).is_err());
    }

    #[test]
    fn segments_are_filled_in_order() {
        let given = chunk(&[100, 100, 50]);
        let payload = |l: &[u32]| check(&written(l), false, Some(&given), None).map(|p| p.payload);
        assert_eq!(payload(&[0, 0, 0]), Ok(0));
        assert_eq!(payload(&[100, 30, 0]), Ok(130));
        assert_eq!(payload(&[100, 100, 50]), Ok(250));
        for invalid in [&[100, 100][..], &[99, 1, 0], &[100, 0, 1], &[100, 100, 51], &[100, 100, 50, 0]] {
            assert!(payload(invalid).is_err(), "{invalid:?}");
        }
        assert_eq!(payload(&[]), Ok(0));
    }

    #[test]
    fn chunks_absent_from_the_call_are_rejected() {
        let w = chunk(&[100]);
        assert!(check(&written(&[1]), false, None, None).is_err());
        let mut other = written(&[1]);
        other.writes[0][0].offset += 1;
        assert!(check(&other, false, Some(&w), None).is_err());
        let mut two = written(&[1]);
        two.writes.push(w.clone());
        assert!(check(&two, false, Some(&w), None).is_err());
        let reply = Lists { reply: Some(w.clone()), ..Lists::default() };
        assert!(check(&reply, true, None, None).is_err());
        assert!(check(&reply, false, None, Some(&w)).is_err());
        assert_eq!(check(&reply, true, None, Some(&w)), Ok(Placed { payload: 0, long: Some(100) }));
        assert!(check(&Lists::default(), true, None, Some(&w)).is_err());
    }
}
