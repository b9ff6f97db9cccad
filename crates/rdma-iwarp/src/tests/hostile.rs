//! Protocol violations by the peer: each is reported by a Terminate, ends the connection, and changes no
//! memory without the right to.

use millrace_rdma::{Access, ExposedRegion, Memory, MemoryRegion, ReadRequest, Segment, SteeringTag};
use millrace_runtime::ByteStream as _;

use super::{raw::*, *};

const REGION: usize = 64;

/// An end under attack, and the tags that the hostile peer has received.
struct Victim {
    qp: Qp,
    raw: Raw,
    writable: ExposedRegion,
    readable: ExposedRegion,
    out: Vec<Completion>,
}

impl Victim {
    fn new(crc: bool) -> Self {
        let (mut qp, raw) = up(crc, ConnectParams { ird: 2, ..ConnectParams::default() });
        let expose = |fill, access| {
            MemoryRegion::new(qp.domain(), Memory::Owned(buffer(&[fill; REGION]))).expose(access).unwrap()
        };
        let (writable, readable) = (expose(0xaa, Access::RemoteWrite), expose(0xbb, Access::RemoteRead));
        qp.post_receive(buffer(&[0; 32])).unwrap();
        Self { qp, raw, writable, readable, out: Vec::new() }
    }

    fn w(&self) -> u32 {
        self.writable.segment().handle.0
    }

    fn r(&self) -> u32 {
        self.readable.segment().handle.0
    }

    fn fpdu(&mut self, ulpdu: &[u8]) {
        self.raw.write(&framed(ulpdu));
    }

    /// Polls the queue pair until the connection ends.
    fn end(&mut self) -> ConnectionError {
        for _ in 0..100 {
            if let Err(e) = poll_qp(&mut self.qp, &mut self.out) {
                assert!(poll_qp(&mut self.qp, &mut self.out).is_err(), "a connection stays closed");
                assert!(self.qp.post_send(send(b"x")).is_err());
                return e;
            }
        }
        panic!("the connection did not end");
    }

    /// Polls the queue pair; the connection must not end.
    fn live(&mut self) {
        for _ in 0..10 {
            poll_qp(&mut self.qp, &mut self.out).expect("the connection ended");
        }
    }

    /// The contents of both regions, after revocation.
    fn memory(self) -> [Vec<u8>; 2] {
        [self.writable, self.readable].map(|e| match e.revoke().unwrap().into_memory() {
            Memory::Owned(b) => b.to_vec(),
            Memory::Shared(v) => v.to_vec(),
        })
    }
}

/// Layer, type and code of a Terminate ULPDU.
fn code_of(ulpdu: &[u8]) -> (u8, u8, u8) {
    assert_eq!(ulpdu[..18], untagged(0x4147, 0, [2, 1, 0], b"")[..], "not a Terminate: {ulpdu:x?}");
    (ulpdu[18] >> 4, ulpdu[18] & 15, ulpdu[19])
}

/// ULPDUs of the peer, given the tags of a writable and a readable region.
type Attack = fn(u32, u32) -> Vec<Vec<u8>>;

/// Asserts that `attack` is answered with a Terminate of `code` and changes no region.
fn assert_rejected(name: &str, code: (u8, u8, u8), attack: Attack) {
    for crc in [false, true] {
        let mut v = Victim::new(crc);
        for ulpdu in attack(v.w(), v.r()) {
            v.fpdu(&ulpdu);
        }
        v.fpdu(&raw_send(77, b"data after the violation"));
        let e = v.end();
        assert!(matches!(e, ConnectionError::PeerMisbehaved(_)), "{name}: {e:?}");
        let sent = v.raw.ulpdus();
        let last = sent.last().unwrap_or_else(|| panic!("{name}: no Terminate"));
        assert_eq!(code_of(last), code, "{name}");
        assert_eq!(sent.iter().filter(|u| u[1] == 0x47).count(), 1, "{name}: number of Terminates");
        assert_eq!(v.memory(), [vec![0xaa; REGION], vec![0xbb; REGION]], "{name}: memory");
    }
}

#[test]
fn unknown_versions_and_operations_are_rejected() {
    assert_rejected("DDP version 0, tagged", (1, 1, 4), |w, _| vec![tagged(0xc040, w, 0, b"x")]);
    assert_rejected("DDP version 2, untagged", (1, 2, 6), |_, _| vec![untagged(0x4243, 0, [0, 1, 0], b"")]);
    assert_rejected("RDMAP version 0", (0, 2, 5), |_, _| vec![untagged(0x4103, 0, [0, 1, 0], b"")]);
    assert_rejected("RDMAP version 2", (0, 2, 5), |w, _| vec![tagged(0xc180, w, 0, b"x")]);
    assert_rejected("operation 8", (0, 2, 6), |_, _| vec![untagged(0x4148, 0, [0, 1, 0], b"12345678")]);
    assert_rejected("operation 10", (0, 2, 6), |_, _| vec![untagged(0x414a, 0, [1, 1, 0], &[0; 52])]);
    assert_rejected("operation 15, tagged", (0, 2, 6), |w, _| vec![tagged(0xc14f, w, 0, b"x")]);
    assert_rejected("Write untagged", (0, 2, 6), |w, _| vec![untagged(0x4140, w, [0, 1, 0], b"x")]);
    assert_rejected("Send tagged", (0, 2, 6), |w, _| vec![tagged(0xc143, w, 0, b"x")]);
    assert_rejected("Read Request tagged", (0, 2, 6), |w, _| vec![tagged(0xc141, w, 0, &[0; 32])]);
    assert_rejected("Terminate tagged", (0, 2, 6), |w, _| vec![tagged(0xc147, w, 0, &[0; 32])]);
}

#[test]
fn ulpdus_shorter_than_their_header_are_rejected() {
    let cuts = (0..14).map(|n| (true, n)).chain((0..18).map(|n| (false, n)));
    for ((write, n), crc) in cuts.flat_map(|c| [(c, false), (c, true)]) {
        let mut v = Victim::new(crc);
        let ulpdu = if write { tagged(0xc140, v.w(), 0, b"") } else { raw_send(1, b"") };
        v.fpdu(&ulpdu[..n]);
        v.fpdu(&raw_send(77, b"data after the violation"));
        assert!(matches!(v.end(), ConnectionError::PeerMisbehaved(_)), "write {write}, {n} bytes");
        assert_eq!(code_of(v.raw.ulpdus().last().unwrap()), (2, 0, 3), "write {write}, {n} bytes");
    }
}

#[test]
fn a_tag_of_another_connection_is_invalid() {
    for attack in [
        |tag| tagged(0xc140, tag, 0, b"x"),
        |tag| untagged(0x4144, tag, [0, 1, 0], b"x"),
        |tag| request(1, &read_body((1, 0), 1, (tag, 0))),
    ] {
        let (mut v, other) = (Victim::new(true), Victim::new(true));
        // Each test runtime generates the same random numbers, so the first tags of two domains are equal.
        let memory = Memory::Owned(buffer(&[0xcc; REGION]));
        let foreign = MemoryRegion::new(other.qp.domain(), memory).expose(Access::RemoteWrite).unwrap();
        v.fpdu(&attack(foreign.segment().handle.0));
        assert!(matches!(v.end(), ConnectionError::PeerMisbehaved(_)));
        assert!([(1, 1, 0), (0, 2, 9), (0, 1, 0)].contains(&code_of(v.raw.ulpdus().last().unwrap())));
        assert!(foreign.is_valid());
        let Memory::Owned(memory) = foreign.revoke().unwrap().into_memory() else { panic!() };
        assert_eq!(memory.to_vec(), [0xcc; REGION]);
    }
}

#[test]
fn writes_without_the_right_are_rejected() {
    assert_rejected("unknown tag", (1, 1, 0), |w, _| vec![tagged(0xc140, w ^ 0x0100_0000, 0, b"x")]);
    assert_rejected("key off by one", (1, 1, 0), |w, _| vec![tagged(0xc140, w + 1, 0, b"x")]);
    assert_rejected("tag 0", (1, 1, 0), |_, _| vec![tagged(0xc140, 0, 0, b"x")]);
    assert_rejected("read-only region", (1, 1, 0), |_, r| vec![tagged(0xc140, r, 0, b"x")]);
    assert_rejected("one byte past the end", (1, 1, 1), |w, _| vec![tagged(0xc140, w, 60, b"12345")]);
    assert_rejected("beyond the end", (1, 1, 1), |w, _| vec![tagged(0xc140, w, 65, b"1")]);
    assert_rejected("longer than the region", (1, 1, 1), |w, _| vec![tagged(0xc140, w, 0, &[1; 65])]);
    assert_rejected("maximum length", (1, 1, 1), |w, _| vec![tagged(0xc140, w, 0, &[1; 65_521])]);
    assert_rejected("near the maximum offset", (1, 1, 1), |w, _| vec![tagged(0xc140, w, u64::MAX - 4, b"1")]);
    assert_rejected("wrapping offset", (1, 1, 3), |w, _| vec![tagged(0xc140, w, u64::MAX - 1, b"123")]);
    assert_rejected("another Write inside a message", (0, 2, 6), |w, _| {
        vec![tagged(0x8140, w, 0, b""), tagged(0xc140, w + 1, 0, b"x")]
    });
    assert_rejected("a gap in a message", (1, 1, 1), |w, _| {
        vec![tagged(0x8140, w, 0, b""), tagged(0xc140, w, 8, b"x")]
    });
}

#[test]
fn untagged_messages_out_of_order_are_rejected() {
    assert_rejected("Send on queue 1", (1, 2, 1), |_, _| vec![untagged(0x4143, 0, [1, 1, 0], b"")]);
    assert_rejected("Send on queue 3", (1, 2, 1), |_, _| vec![untagged(0x4143, 0, [3, 1, 0], b"")]);
    assert_rejected("Read Request on queue 0", (1, 2, 1), |_, _| {
        vec![untagged(0x4141, 0, [0, 1, 0], &[0; 28])]
    });
    assert_rejected("sequence number 0", (1, 2, 3), |_, _| vec![raw_send(0, b"x")]);
    assert_rejected("sequence number 2 first", (1, 2, 3), |_, _| vec![raw_send(2, b"x")]);
    assert_rejected("repeated sequence number", (1, 2, 3), |_, _| vec![raw_send(1, b"x"), raw_send(1, b"x")]);
    assert_rejected("offset in a first segment", (1, 2, 4), |_, _| {
        vec![untagged(0x4143, 0, [0, 1, 4], b"x")]
    });
    assert_rejected("gap between segments", (1, 2, 4), |_, _| {
        vec![untagged(0x0143, 0, [0, 1, 0], b"1234"), untagged(0x4143, 0, [0, 1, 5], b"x")]
    });
    assert_rejected("another Send inside a Send", (0, 2, 6), |_, _| {
        vec![untagged(0x0143, 0, [0, 1, 0], b"1234"), untagged(0x4145, 0, [0, 1, 4], b"x")]
    });
    assert_rejected("Read Request inside a Send", (0, 2, 6), |_, _| {
        vec![untagged(0x0143, 0, [0, 1, 0], b"1234"), untagged(0x4141, 0, [1, 1, 0], &[0; 28])]
    });
    assert_rejected("no receive", (1, 2, 2), |_, _| vec![raw_send(1, b"x"), raw_send(2, b"y")]);
    assert_rejected("longer than the receive", (1, 2, 5), |_, _| vec![raw_send(1, &[1; 33])]);
    assert_rejected("longer in two segments", (1, 2, 5), |_, _| {
        vec![untagged(0x0143, 0, [0, 1, 0], &[1; 32]), untagged(0x4143, 0, [0, 1, 32], b"x")]
    });
}

#[test]
fn unknown_tags_cannot_be_invalidated() {
    assert_rejected("unknown tag", (0, 2, 9), |w, _| vec![untagged(0x4144, w ^ 0x100, [0, 1, 0], b"x")]);
    assert_rejected("key off by one", (0, 2, 9), |w, _| vec![untagged(0x4146, w + 1, [0, 1, 0], b"x")]);
}

fn request(msn: u32, body: &[u8]) -> Vec<u8> {
    untagged(0x4141, 0, [1, msn, 0], body)
}

#[test]
fn reads_without_the_right_are_rejected() {
    assert_rejected("unknown tag", (0, 1, 0), |_, r| vec![request(1, &read_body((1, 0), 1, (r + 1, 0)))]);
    assert_rejected("write-only region", (0, 1, 2), |w, _| vec![request(1, &read_body((1, 0), 1, (w, 0)))]);
    assert_rejected("longer than the region", (0, 1, 1), |_, r| {
        vec![request(1, &read_body((1, 0), 65, (r, 0)))]
    });
    assert_rejected("4 GiB", (0, 1, 1), |_, r| vec![request(1, &read_body((1, 0), u32::MAX, (r, 0)))]);
    assert_rejected("wrap", (0, 1, 4), |_, r| vec![request(1, &read_body((1, 0), 2, (r, u64::MAX)))]);
    assert_rejected("sequence number", (1, 2, 3), |_, r| vec![request(2, &read_body((1, 0), 1, (r, 0)))]);
    assert_rejected("short body", (0, 2, 0xff), |_, r| vec![request(1, &read_body((1, 0), 1, (r, 0))[..27])]);
    assert_rejected("long body", (0, 2, 0xff), |_, r| {
        vec![request(1, &[read_body((1, 0), 1, (r, 0)), vec![0]].concat())]
    });
    assert_rejected("not the last segment", (0, 2, 0xff), |_, r| {
        vec![untagged(0x0141, 0, [1, 1, 0], &read_body((1, 0), 1, (r, 0)))]
    });
}

#[test]
fn more_reads_than_the_ird_are_rejected() {
    assert_rejected("a third read at an IRD of 2", (1, 2, 2), |_, r| {
        (1..=3).map(|i| request(i, &read_body((1, 0), 1, (r, 0)))).collect()
    });
}

#[test]
fn responses_without_a_read_are_rejected() {
    assert_rejected("unsolicited", (1, 1, 0), |w, _| vec![tagged(0xc142, w, 0, b"x")]);
    assert_rejected("unsolicited and empty", (1, 1, 0), |w, _| vec![tagged(0xc142, w, 0, b"")]);
}

/// Sends a Read Request to a peer that responds with `answer` of the sink's tag. Returns that tag.
fn response(answer: impl Fn(u32) -> Vec<Vec<u8>>) -> (Victim, u32) {
    let mut v = Victim::new(true);
    v.fpdu(&raw_send(1, b""));
    v.live();
    let from = Segment { handle: SteeringTag(0x5555), length: 16, offset: 9 };
    let sink = vec![buffer(&[1; 10]), buffer(&[2; 6])];
    v.qp.post_read(ReadRequest { id: WorkId(5), from, sink }).unwrap();
    v.live();
    let asked = v.raw.ulpdus();
    let sink_tag = u32::from_be_bytes(asked[0][18..22].try_into().unwrap());
    assert_eq!(asked[0], request(1, &read_body((sink_tag, 0), 16, (0x5555, 9))));
    for u in answer(sink_tag) {
        v.fpdu(&u);
    }
    (v, sink_tag)
}

#[test]
fn responses_must_match_the_request() {
    type Answer = fn(u32) -> Vec<Vec<u8>>;
    let cases: [(&str, (u8, u8, u8), Answer); 8] = [
        ("another tag", (1, 1, 0), |t| vec![tagged(0xc142, t + 1, 0, &[9; 16])]),
        ("another offset", (1, 1, 1), |t| vec![tagged(0x8142, t, 4, &[9; 8])]),
        ("too long", (1, 1, 1), |t| vec![tagged(0xc142, t, 0, &[9; 17])]),
        ("too long in two", (1, 1, 1), |t| {
            vec![tagged(0x8142, t, 0, &[9; 10]), tagged(0xc142, t, 10, &[9; 7])]
        }),
        ("too short", (1, 1, 1), |t| vec![tagged(0xc142, t, 0, &[9; 15])]),
        ("a gap", (1, 1, 1), |t| vec![tagged(0x8142, t, 0, &[9; 8]), tagged(0xc142, t, 9, &[9; 7])]),
        ("a Write to the sink", (1, 1, 0), |t| vec![tagged(0xc140, t, 0, &[9; 16])]),
        ("a Read of the sink", (0, 1, 0), |t| vec![request(1, &read_body((1, 0), 4, (t, 0)))]),
    ];
    for (name, code, answer) in cases {
        let (mut v, _) = response(answer);
        assert!(matches!(v.end(), ConnectionError::PeerMisbehaved(_)), "{name}");
        assert_eq!(code_of(v.raw.ulpdus().last().unwrap()), code, "{name}");
    }
    let (mut v, _) = response(|t| vec![untagged(0x4144, t, [0, 2, 0], b"")]);
    v.qp.post_receive(buffer(&[0; 8])).unwrap();
    v.end();
    assert_eq!(code_of(v.raw.ulpdus().last().unwrap()), (0, 1, 9), "a sink cannot be invalidated");
}

#[test]
fn a_correct_response_fills_the_sink() {
    let (mut v, _) = response(|t| vec![tagged(0x8142, t, 0, &[8; 11]), tagged(0xc142, t, 11, &[9; 5])]);
    v.live();
    let Some(Completion::Read { id: WorkId(5), sink }) = v.out.pop() else { panic!() };
    assert_eq!((&sink[0][..], &sink[1][..]), (&[8; 10][..], &[8, 9, 9, 9, 9, 9][..]));
}

#[test]
fn empty_reads_and_writes_need_no_valid_tag() {
    let mut v = Victim::new(true);
    v.fpdu(&tagged(0xc140, 0xdead_be00, 5, b""));
    v.fpdu(&request(1, &read_body((0x201, 0x2000), 0, (0xdead_be00, 7))));
    v.live();
    assert_eq!(v.raw.ulpdus(), [tagged(0xc142, 0x201, 0x2000, b"")]);
}

#[test]
fn a_crc_error_is_reported_and_nothing_is_delivered() {
    let good: [Attack; 2] = [|_, _| vec![raw_send(1, b"hello")], |w, _| vec![tagged(0xc140, w, 0, b"hello")]];
    for attack in good {
        let len = framed(&attack(0, 0)[0]).len();
        for bad in 0..len {
            if bad < 4 {
                continue; // Changes of length, version or operation cause other errors.
            }
            let mut v = Victim::new(true);
            let mut bytes = framed(&attack(v.w(), v.r())[0]);
            let is_write = bytes[2] & 0x80 != 0;
            if is_write && bad < 16 {
                continue; // Changes of tag or offset cause other errors.
            }
            bytes[bad] ^= 0x10;
            v.raw.write(&bytes);
            v.end();
            assert_eq!(code_of(v.raw.ulpdus().last().unwrap()), (2, 0, 2), "byte {bad}");
            assert!(v.out.is_empty());
        }
    }
}

#[test]
fn padding_and_crc_are_ignored_without_negotiated_crc() {
    let mut v = Victim::new(false);
    let mut bytes = framed(&raw_send(1, b"hello"));
    let n = bytes.len();
    bytes[n - 7..].fill(0xee);
    v.raw.write(&bytes);
    v.live();
    assert_eq!(received(&v.out[0]), b"hello");
}

#[test]
fn bytes_of_a_terminate_with_its_segment() {
    let mut v = Victim::new(true);
    v.fpdu(&tagged(0xc140, 0xdead_be00, 0x1000, b"12345678"));
    v.end();
    let want =
        "0026 4147 00000000 00000002 00000001 00000000 1100c000 0008 c140 deadbe00 0000000000001000 2b89b157";
    assert_eq!(v.raw.read(), hex(want));
}

#[test]
fn bytes_of_a_send_and_a_bare_terminate() {
    let (mut qp, mut raw) = up(true, ConnectParams::default());
    qp.post_receive(buffer(&[0; 32])).unwrap();
    raw.write(&hex("0017 41 43 00000000 00000000 00000001 00000000 68656c6c6f 000000 b990b10c"));
    let mut out = Vec::new();
    poll_qp(&mut qp, &mut out).unwrap();
    assert_eq!(received(&out[0]), b"hello");
    qp.post_send(send(b"hello")).unwrap();
    poll_qp(&mut qp, &mut out).unwrap();
    assert_eq!(raw.read(), hex("0017 41 43 00000000 00000000 00000001 00000000 68656c6c6f 000000 b990b10c"));
    raw.write(&framed(&untagged(0x4148, 0, [0, 2, 0], b"")));
    assert!(poll_qp(&mut qp, &mut out).is_err() || poll_qp(&mut qp, &mut out).is_err());
    assert_eq!(raw.read(), hex("0016 41 47 00000000 00000002 00000001 00000000 02060000 6f77b973"));
}

#[test]
fn a_terminate_ends_the_connection_and_is_not_answered() {
    let cases: [(Vec<u8>, bool); 5] = [
        (untagged(0x4147, 0, [2, 1, 0], &[0x02, 0x06, 0, 0]), true),
        (untagged(0x4147, 0, [2, 1, 0], &[0x11, 0x00, 0xc0]), false),
        (untagged(0x4147, 0, [2, 1, 0], &[]), false),
        (untagged(0x4147, 0, [1, 1, 0], &[0; 4]), false),
        (untagged(0x4147, 0, [2, 2, 0], &[0; 4]), false),
    ];
    for (ulpdu, well_formed) in cases {
        let mut v = Victim::new(false);
        v.fpdu(&raw_send(1, b"x"));
        v.fpdu(&ulpdu);
        v.fpdu(&raw_send(2, b"data after the Terminate"));
        let e = v.end();
        assert_eq!(matches!(e, ConnectionError::Terminated(_)), well_formed, "{e:?}");
        assert_eq!(v.raw.read(), b"");
        assert_eq!(v.out.len(), 1);
    }
}

#[test]
fn a_stream_that_ends_inside_a_message_is_an_error() {
    let (write, send) = (framed(&tagged(0xc140, 0, 0, b"hello")).len(), framed(&raw_send(1, b"hi")).len());
    for cut in 0..=write + send {
        let mut v = Victim::new(false);
        let w = v.w();
        let bytes = [framed(&tagged(0xc140, w, 0, b"hello")), framed(&raw_send(1, b"hi"))].concat();
        v.raw.write(&bytes[..cut]);
        v.raw.stream.shutdown();
        let e = v.end();
        let whole = [0, write, write + send].contains(&cut);
        assert_eq!(matches!(e, ConnectionError::Closed), whole, "cut at {cut}: {e:?}");
    }
}

#[test]
fn a_region_revoked_during_a_write_does_not_change() {
    for direct in [false, true] {
        let mut v = Victim::new(false);
        let w = v.w();
        let bytes = framed(&tagged(0xc140, w, 0, &[1; 50]));
        v.raw.write(&bytes[..30]);
        v.live();
        let Victim { mut qp, mut raw, writable, mut out, .. } = v;
        let Memory::Owned(memory) = writable.revoke().unwrap().into_memory() else { panic!() };
        let before = memory.to_vec();
        raw.write(if direct { &bytes[30..] } else { &bytes[30..31] });
        let mut end = None;
        for _ in 0..10 {
            end = end.or(poll_qp(&mut qp, &mut out).err());
        }
        assert!(matches!(end, Some(ConnectionError::PeerMisbehaved(_))), "{end:?}");
        assert_eq!(code_of(raw.ulpdus().last().unwrap()), (1, 1, 0));
        assert_eq!(memory.to_vec(), before);
    }
}

#[test]
fn a_region_revoked_during_a_response_is_not_read() {
    let (mut qp, mut raw) = up(true, ConnectParams::default());
    let data = pattern(3 << 20, 1);
    let region =
        MemoryRegion::new(qp.domain(), Memory::Owned(buffer(&data))).expose(Access::RemoteRead).unwrap();
    let r = region.segment().handle.0;
    raw.write(&framed(&request(1, &read_body((1, 0), data.len() as u32, (r, 0)))));
    let mut out = Vec::new();
    // The stream buffers a third of the response.
    poll_qp(&mut qp, &mut out).unwrap();
    drop(region);
    let mut got = 0;
    let mut end = None;
    for _ in 0..10 {
        got += raw.read().len();
        end = end.or(poll_qp(&mut qp, &mut out).err());
    }
    assert!(end.is_some());
    assert!(got <= (1 << 20) + 100, "{got} bytes");
}

#[test]
fn a_disconnect_before_the_first_message_of_the_peer_closes() {
    let (mut qp, mut raw) = up(false, ConnectParams::default());
    qp.post_send(send(b"never sent")).unwrap();
    qp.disconnect();
    let mut out = Vec::new();
    poll_qp(&mut qp, &mut out).unwrap();
    assert_eq!(raw.read(), b"");
    drop(raw);
    assert!(matches!(poll_qp(&mut qp, &mut out), Err(ConnectionError::Closed)));
}

mod noise {
    use proptest::prelude::*;

    use super::*;

    /// ULPDUs that are almost valid, so that they pass the first checks.
    fn ulpdu() -> impl Strategy<Value = (u8, u8, u32, u64, Vec<u8>)> {
        let tag = prop_oneof![Just(0u32), Just(1), any::<u32>()];
        let control = prop_oneof![Just(0xc1u8), Just(0x81), Just(0x41), Just(0x01), any::<u8>()];
        let operation = prop_oneof![0x40..0x48u8, any::<u8>()];
        let offset = prop_oneof![0..70u64, any::<u64>()];
        (control, operation, tag, offset, prop::collection::vec(any::<u8>(), 0..80))
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

        #[test]
        fn random_input_never_changes_read_only_memory(
            messages in prop::collection::vec(ulpdu(), 1..8),
            tail in prop::collection::vec(any::<u8>(), 0..40),
            crc: bool,
        ) {
            let mut v = Victim::new(crc);
            for (control, operation, tag, offset, payload) in messages {
                // 0 and 1 represent the tags that the peer has received.
                let tag = match tag { 0 => v.w(), 1 => v.r(), other => other };
                let control = u16::from_be_bytes([control, operation]);
                v.fpdu(&tagged(control, tag, offset, &payload));
            }
            v.raw.write(&tail);
            for _ in 0..20 {
                if poll_qp(&mut v.qp, &mut v.out).is_err() {
                    break;
                }
            }
            let [_, readable] = v.memory();
            prop_assert_eq!(readable, vec![0xbb; REGION]);
        }
    }
}
