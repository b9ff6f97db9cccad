//! The checksum of a call, which identifies its retransmissions together with the XID.

use std::{hash::Hasher, iter, ops::Range};

use millrace_oncrpc::Message;
use millrace_xdr::{Views, pad};
use siphasher::sip::SipHasher13;

/// The part of a call that a retransmission repeats starts after the XID, the message type and the RPC
/// version (RFC 5531 section 9).
const START: usize = 12;
/// Covered bytes at the start of the call: the longest AUTH_SYS credential and verifier, and at least 200
/// bytes of arguments, among them the handle, offset and count of a WRITE.
const FIRST: usize = 640;
/// Covered bytes at the end of the call.
const LAST: usize = 384;

/// What identifies a call with RPCSEC_GSS besides its open arguments: a retransmission has another sequence number, and so
/// another header.
pub(super) struct GssCallId<'c> {
    pub(super) program: u32,
    pub(super) version: u32,
    pub(super) principal: &'c str,
    /// Position of the arguments.
    pub(super) arguments_at: usize,
}

/// Computes the checksum of a call: SipHash-1-3 of the length of the call and of its bytes from the program
/// number on. Of a call with more than `FIRST + LAST` such bytes (a WRITE of much data) it covers the first
/// and the last ones. Payloads count where they belong in the stream, so that the checksum does not depend on
/// the transport. `secret` prevents clients from choosing calls with equal checksums.
///
/// Of a call with RPCSEC_GSS (`gss`) it covers the arguments instead of all bytes from the program number on.
pub(super) fn checksum(
    secret: [u64; 2],
    xid: u32,
    proc: u32,
    call: &Message,
    gss: Option<&GssCallId<'_>>,
) -> u64 {
    let [first, second] = secret;
    let mut hasher = SipHasher13::new_with_keys(first ^ u64::from(xid), second ^ u64::from(proc));
    let len = call.stream_len();
    let (start, counted) = match gss {
        None => (START, len),
        Some(GssCallId { program, version, principal, arguments_at }) => {
            hasher.write(&(u64::from(*program) << 32 | u64::from(*version)).to_be_bytes());
            hasher.write(principal.as_bytes());
            (*arguments_at, len - arguments_at)
        }
    };
    hasher.write(&(counted as u64).to_be_bytes());
    let end_of_first = start + FIRST;
    let covered = [start..end_of_first, len.saturating_sub(LAST).max(end_of_first)..len];
    let mut offset = 0;
    for part in parts(call) {
        let end = offset + part.len();
        for range in &covered {
            let (from, to) = (range.start.clamp(offset, end), range.end.clamp(offset, end));
            hasher.write(part.get(from - offset..to - offset).unwrap_or_default());
        }
        offset = end;
    }
    hasher.finish()
}

/// The bytes of a message in stream order.
fn parts(message: &Message) -> impl Iterator<Item = &[u8]> {
    let mut position = 0;
    message.payloads.iter().map(Some).chain([None]).flat_map(move |payload| {
        let end = payload.map_or(usize::MAX, |payload| payload.position);
        let before = parts_of(&message.head, position..end);
        position = end;
        let data = payload.into_iter().flat_map(|payload| {
            let padding = &[0; 3][..pad(payload.data.len())];
            payload.data.iter().map(|view| &view[..]).chain(iter::once(padding))
        });
        before.chain(data)
    })
}

/// The bytes of `range` in `views`.
fn parts_of(views: &Views, range: Range<usize>) -> impl Iterator<Item = &[u8]> {
    let mut offset = 0;
    views.iter().map(move |view| {
        let end = offset + view.len();
        let (from, to) = (range.start.clamp(offset, end), range.end.clamp(offset, end));
        let part = view.get(from - offset..to - offset).unwrap_or_default();
        offset = end;
        part
    })
}

#[cfg(test)]
mod tests {
    use millrace_buffer::{Arena, ArenaConfig};
    use millrace_xdr::Payload;
    use proptest::prelude::*;

    use super::*;

    const COVERED: usize = FIRST + LAST;
    const SECRET: [u64; 2] = [0x0123_4567_89ab_cdef, 0xfedc_ba98_7654_3210];

    fn arena() -> Arena {
        Arena::new(ArenaConfig { limit: 16 << 20, huge_pages: false })
    }

    fn message(bytes: &[u8], arena: &Arena) -> Message {
        Message::from_view(arena.copy_from(bytes).unwrap())
    }

    /// The checksum by its definition.
    fn expected(xid: u32, proc: u32, bytes: &[u8]) -> u64 {
        let mut input = (bytes.len() as u64).to_be_bytes().to_vec();
        let call = bytes.get(START..).unwrap_or_default();
        if call.len() <= COVERED {
            input.extend(call);
        } else {
            input.extend(&call[..FIRST]);
            input.extend(&call[call.len() - LAST..]);
        }
        SipHasher13::new_with_keys(SECRET[0] ^ u64::from(xid), SECRET[1] ^ u64::from(proc)).hash(&input)
    }

    #[test]
    fn every_byte_of_a_short_call_counts_and_the_middle_of_a_long_one_does_not() {
        let arena = arena();
        for len in [START, START + 1, START + FIRST, START + COVERED, START + COVERED + 1, 5000] {
            let mut bytes = vec![7; len];
            let before = checksum(SECRET, 1, 2, &message(&bytes, &arena), None);
            for at in 0..len {
                bytes[at] ^= 1;
                let covered = at >= START && (at < START + FIRST || at >= len - LAST);
                let changed = checksum(SECRET, 1, 2, &message(&bytes, &arena), None) != before;
                assert_eq!(changed, covered, "byte {at} of {len}");
                bytes[at] ^= 1;
            }
            bytes.push(7);
            assert_ne!(checksum(SECRET, 1, 2, &message(&bytes, &arena), None), before, "the length of {len}");
        }
    }

    /// Divides `bytes` into views at `cuts`.
    fn views(bytes: &[u8], cuts: &[usize], arena: &Arena) -> Views {
        let mut cuts: Vec<_> = cuts.iter().map(|cut| cut % (bytes.len() + 1)).collect();
        cuts.extend([0, bytes.len()]);
        cuts.sort_unstable();
        cuts.windows(2)
            .filter(|w| w[0] < w[1])
            .map(|w| arena.copy_from(&bytes[w[0]..w[1]]).unwrap())
            .collect()
    }

    proptest! {
        #[test]
        fn the_checksum_depends_on_the_stream_and_not_on_its_parts(
            head in prop::collection::vec(any::<u8>(), 0..1500),
            payloads in prop::collection::vec(
                (any::<usize>(), prop::collection::vec(any::<u8>(), 0..1500), prop::collection::vec(any::<usize>(), 0..4)),
                0..3,
            ),
            cuts in prop::collection::vec(any::<usize>(), 0..4),
            xid: u32,
            proc: u32,
        ) {
            let arena = arena();
            let mut payloads: Vec<_> = payloads
                .into_iter()
                .map(|(at, data, cuts)| Payload {
                    position: at % (head.len() + 1),
                    data: views(&data, &cuts, &arena),
                })
                .collect();
            payloads.sort_by_key(|payload| payload.position);
            let head = views(&head, &cuts, &arena);
            let message = Message { head, payloads: payloads.into() };
            let stream = message.gather(&arena.copy_from(&[0; 3]).unwrap()).to_vec();
            prop_assert_eq!(checksum(SECRET, xid, proc, &message, None), expected(xid, proc, &stream));
        }
    }
}
