//! The transport header, byte for byte.

use millrace_rdma::{Segment, SteeringTag};
use millrace_rpcrdma::{Body, Chunk, Header, HeaderError, Lists, ReadSegment, TransportError};
use proptest::prelude::*;

fn bytes(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|w| w.to_be_bytes()).collect()
}

fn encode(h: &Header) -> Vec<u8> {
    let mut out = vec![0xee; h.encoded_len()];
    assert_eq!(h.encode(&mut out), out.len());
    out
}

fn seg(handle: u32, length: u32, offset: u64) -> Segment {
    Segment { handle: SteeringTag(handle), length, offset }
}

fn exact(h: &Header, words: &[u32]) {
    assert_eq!(encode(h), bytes(words));
    assert_eq!(Header::decode(&bytes(words), 64), Ok((h.clone(), words.len() * 4)));
}

#[test]
fn a_null_call_has_a_header_of_28_bytes() {
    let h = Header::new(0x1122_3344, 32, Body::Msg(Lists::default()));
    exact(&h, &[0x1122_3344, 1, 0x20, 0, 0, 0, 0]);
    assert_eq!(h.to_string(), "MSG xid=0x11223344 credits=32");
}

#[test]
fn a_write_call_is_encoded_byte_for_byte() {
    let segment = seg(0x501, 5000, 0x7f00_0000_1000);
    let mut lists = Lists::default();
    lists.reads.push(ReadSegment { position: 72, segment });
    let h = Header::new(0x1122_3345, 32, Body::Msg(lists));
    exact(&h, &[0x1122_3345, 1, 0x20, 0, 1, 0x48, 0x501, 0x1388, 0x7f00, 0x1000, 0, 0, 0]);
    assert_eq!(h.to_string(), "MSG xid=0x11223345 credits=32 read 72:0x501+5000@0x7f0000001000");
}

#[test]
fn a_read_call_and_its_reply_are_encoded_byte_for_byte() {
    let mut lists = Lists::default();
    lists.writes.push([seg(0x601, 5000, 0x7f00_0000_2000)].into_iter().collect());
    let h = Header::new(0x1122_3346, 32, Body::Msg(lists.clone()));
    exact(&h, &[0x1122_3346, 1, 0x20, 0, 0, 1, 1, 0x601, 0x1388, 0x7f00, 0x2000, 0, 0]);
    lists.writes[0][0].length = 4097;
    let h = Header::new(0x1122_3346, 32, Body::Msg(lists));
    exact(&h, &[0x1122_3346, 1, 0x20, 0, 0, 1, 1, 0x601, 0x1001, 0x7f00, 0x2000, 0, 0]);
}

#[test]
fn errors_are_encoded_byte_for_byte_with_the_version_of_the_call() {
    let body = Body::Error(TransportError::Version { low: 1, high: 1 });
    let h = Header { xid: 0x1122_3347, vers: 9, credits: 32, body };
    assert_eq!(encode(&h), bytes(&[0x1122_3347, 9, 0x20, 4, 1, 1, 1]));
    let h = Header::new(0x1122_3347, 32, Body::Error(TransportError::Chunk));
    exact(&h, &[0x1122_3347, 1, 0x20, 4, 2]);
}

#[test]
fn a_reply_chunk_has_no_terminator() {
    let chunk: Chunk = [seg(1, 2, 3), seg(4, 5, 6)].into_iter().collect();
    let lists = Lists { reply: Some(chunk), ..Lists::default() };
    let h = Header::new(7, 1, Body::NoMsg(lists));
    exact(&h, &[7, 1, 1, 1, 0, 0, 1, 2, 1, 2, 0, 3, 4, 5, 0, 6]);
}

fn malformed(words: &[u32], max_segments: usize) -> bool {
    matches!(Header::decode(&bytes(words), max_segments), Err(HeaderError::Malformed { xid: 7, .. }))
}

#[test]
fn headers_of_less_than_20_bytes_are_short() {
    for n in 0..20 {
        assert_eq!(Header::decode(&[0; 28][..n], 64), Err(HeaderError::Short(n)));
    }
}

#[test]
fn unsupported_versions_are_reported_with_their_xid() {
    for vers in [0, 2, u32::MAX] {
        let e = Header::decode(&bytes(&[7, vers, 1, 0, 0, 0, 0]), 64).unwrap_err();
        assert_eq!(e, HeaderError::Version { xid: 7, vers });
    }
}

#[test]
fn unknown_procedures_and_errors_are_distinguished() {
    // RDMA_MSGP of RFC 5666.
    assert!(malformed(&[7, 1, 1, 2, 512, 1024, 0, 0, 0], 64));
    assert!(malformed(&[7, 1, 1, 5, 0, 0, 0], 64));
    assert_eq!(Header::decode(&bytes(&[7, 1, 1, 3, 0, 0, 0]), 64).unwrap().0.body, Body::Done);
    let unknown = Err(HeaderError::UnknownError { xid: 7 });
    assert_eq!(Header::decode(&bytes(&[7, 1, 1, 4, 3]), 64), unknown);
    assert_eq!(Header::decode(&bytes(&[7, 1, 1, 4, 1, 1]), 64), unknown);
}

#[test]
fn an_overflowing_segment_count_is_rejected() {
    assert!(malformed(&[7, 1, 1, 0, 0, 1, 0x1000_0001, 0, 0, 0, 0, 0], usize::MAX));
    assert!(malformed(&[7, 1, 1, 0, 0, 0, 1, 0x1000_0001, 0, 0, 0, 0], usize::MAX));
}

#[test]
fn truncated_lists_are_rejected() {
    assert!(malformed(&[7, 1, 1, 0, 1, 8, 1, 1, 0, 0], 64));
    assert!(malformed(&[7, 1, 1, 0, 1, 8, 1, 1, 0], 64));
    assert!(malformed(&[7, 1, 1, 0, 0, 1, 2, 1, 1, 0, 0, 0, 0], 64));
}

#[test]
fn positions_and_discriminators_are_checked() {
    assert!(malformed(&[7, 1, 1, 0, 1, 2, 1, 1, 0, 0, 0, 0, 0], 64));
    assert!(malformed(&[7, 1, 1, 0, 2, 0, 0], 64));
    assert!(malformed(&[7, 1, 1, 0, 0, 0, 9], 64));
}

#[test]
fn a_segment_may_end_at_the_top_of_the_address_space_but_not_wrap() {
    let at = |length| [7, 1, 1, 0, 0, 1, 1, 3, length, 0xffff_ffff, 0xffff_fff0, 0, 0];
    assert!(Header::decode(&bytes(&at(15)), 64).is_ok());
    assert!(malformed(&at(16), 64));
}

#[test]
fn segments_of_all_lists_count_against_one_limit() {
    let chunk = |n: u32| (0..n).map(|i| seg(i, 1, 0)).collect::<Chunk>();
    let mut lists = Lists { reply: Some(chunk(6)), ..Lists::default() };
    lists.writes.push(chunk(5));
    lists.reads.extend((0..4).map(|_| ReadSegment { position: 4, segment: seg(1, 1, 1) }));
    let h = encode(&Header::new(7, 1, Body::Msg(lists)));
    assert!(Header::decode(&h, 16).is_ok()); // 4 + 1 for the chunk itself + 5 + 6
    assert!(Header::decode(&h, 15).is_err());
}

fn segment() -> impl Strategy<Value = Segment> {
    (any::<u32>(), any::<u32>(), 0..u64::MAX - u64::from(u32::MAX)).prop_map(|(h, l, o)| seg(h, l, o))
}

fn chunk() -> impl Strategy<Value = Chunk> {
    prop::collection::vec(segment(), 0..5).prop_map(Chunk::from_vec)
}

fn lists() -> impl Strategy<Value = Lists> {
    let read = (any::<u32>(), segment()).prop_map(|(p, segment)| ReadSegment { position: p & !3, segment });
    let reads = prop::collection::vec(read, 0..5);
    (reads, prop::collection::vec(chunk(), 0..4), prop::option::of(chunk())).prop_map(|(r, w, reply)| Lists {
        reads: r.into(),
        writes: w.into(),
        reply,
    })
}

proptest! {
    #[test]
    fn headers_round_trip(xid: u32, credits: u32, l in lists(), long: bool, rest in prop::collection::vec(any::<u8>(), 0..40)) {
        let h = Header::new(xid, credits, if long { Body::NoMsg(l) } else { Body::Msg(l) });
        let mut b = encode(&h);
        let len = b.len();
        b.extend(rest);
        prop_assert_eq!(Header::decode(&b, 64), Ok((h, len)));
    }

    #[test]
    fn truncated_headers_are_rejected(l in lists(), cut in 1_usize..200) {
        let b = encode(&Header::new(7, 1, Body::Msg(l)));
        let cut = cut.min(b.len());
        prop_assert!(Header::decode(&b[..b.len() - cut], 64).is_err());
    }

    #[test]
    fn arbitrary_words_never_panic(words in prop::collection::vec(0_u32..6, 0..40), cut in 0_usize..4) {
        let mut b = bytes(&words);
        b.truncate(b.len().saturating_sub(cut));
        if let Ok((h, n)) = Header::decode(&b, 64) {
            prop_assert_eq!(&encode(&h)[..], &b[..n]);
        }
    }
}
