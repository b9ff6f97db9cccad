//! iWARP: MPA start-up, and the FPDU stream with DDP and RDMAP in it (RFC 5044, 6581, 5041, 5040).

use std::{
    io::{IoSlice, IoSliceMut},
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, Wake, Waker},
};

use millrace_buffer::Buffer;
use millrace_rdma::{
    Access, Completion, ConnectParams, ConnectionError, ExposedRegion, Memory, MemoryRegion, QueuePair,
    ReadRequest, Segment, SteeringTag, WorkId,
};
use millrace_rdma_iwarp::{accept_over, connect_over};
use millrace_runtime::{BoxFuture, ByteStream, MemoryStream, memory_stream};

use super::xdr::arena;
use crate::{
    bytes::{Input, from_hex, operations},
    still::still,
};

type Qp = Box<dyn QueuePair>;
type SetUp = BoxFuture<'static, Result<Qp, ConnectionError>>;

/// Number of polls of a queue pair or a set-up with all its bytes after which it counts as a busy loop.
const POLLS: usize = 100_000;

/// The peer's end of the stream.
struct Peer(MemoryStream);

impl Peer {
    fn write(&mut self, mut bytes: &[u8]) {
        let cx = &mut Context::from_waker(Waker::noop());
        while !bytes.is_empty() {
            match self.0.poll_write(cx, &[IoSlice::new(bytes)]) {
                Poll::Ready(Ok(n)) => bytes = &bytes[n..],
                // The other end is closed, or is down and has not read the earlier bytes.
                Poll::Ready(Err(_)) | Poll::Pending => return,
            }
        }
    }

    fn read(&mut self) -> Vec<u8> {
        let (mut out, mut some) = (Vec::new(), [0; 4096]);
        let cx = &mut Context::from_waker(Waker::noop());
        while let Poll::Ready(Ok(n @ 1..)) = self.0.poll_read(cx, &mut [IoSliceMut::new(&mut some)]) {
            out.extend(&some[..n]);
        }
        out
    }
}

/// A waker that records the wake: a queue pair with more work returns `Pending` and wakes its task.
#[derive(Default)]
struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn poll<F: Future + ?Sized>(future: Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

/// Polls `set_up` until it ends. All bytes are in the stream; each poll reads at least one segment.
fn finish(set_up: &mut SetUp) -> Option<Result<Qp, ConnectionError>> {
    (0..2000).find_map(|_| match poll(set_up.as_mut()) {
        Poll::Ready(out) => Some(out),
        Poll::Pending => None,
    })
}

/// The result of a set-up, and the bytes that the peer received.
fn started(responder: bool, input: &[u8], segment: usize) -> (String, Vec<u8>) {
    let (peer, ours) = memory_stream(1 << 20, segment);
    let mut peer = Peer(peer);
    let params = ConnectParams { private_data: vec![7; 8], ..ConnectParams::default() };
    let (rt, stream) = (still(), Box::new(ours));
    let mut set_up: SetUp = match responder {
        true => Box::pin(accept_over(rt, arena(), stream, params)),
        false => Box::pin(connect_over(rt, arena(), stream, params)),
    };
    assert!(poll(set_up.as_mut()).is_pending(), "a set-up is done before the peer has sent anything");
    peer.write(input);
    peer.0.shutdown();
    let result = match finish(&mut set_up).expect("a set-up ends with its stream") {
        Ok(qp) => {
            let info = qp.info();
            assert!(info.ird <= 128 && info.ord <= 128, "{info:?}");
            assert!(info.private_data.len() <= 512, "{info:?}");
            format!("{info:?}")
        }
        Err(e) => e.to_string(),
    };
    (result, peer.read())
}

/// Input: a segment size, and the bytes of the peer. Asserts that the result is independent of the segment
/// size.
fn start_up(responder: bool, input: &[u8]) {
    let mut input = Input::new(input);
    let segment = usize::from(input.u8()) + 1;
    let bytes = input.rest();
    let whole = started(responder, bytes, usize::MAX);
    assert_eq!(started(responder, bytes, segment), whole, "in segments of {segment} bytes");
}

fn frame(key: &[u8; 16], flags: u16, private: &[u8]) -> Vec<u8> {
    [&key[..], &flags.to_be_bytes(), &(private.len() as u16).to_be_bytes(), private].concat()
}

const REQUEST: &[u8; 16] = b"MPA ID Req Frame";
const REPLY: &[u8; 16] = b"MPA ID Rep Frame";

/// Frames of each revision and with each flag.
fn frames(key: &[u8; 16]) -> Vec<Vec<u8>> {
    let depths = from_hex("0080 0010");
    let private = from_hex("0080 0010 f6ab0e18 01010303");
    let peer_to_peer = from_hex("c080 c010");
    [
        frame(key, 0x1002, &private),
        frame(key, 0x5002, &depths),
        frame(key, 0x1002, &peer_to_peer),
        frame(key, 0x4001, b""),
        frame(key, 0x0001, b"private data"),
        frame(key, 0x9002, &depths),
        frame(key, 0x3002, &private),
        frame(key, 0x1002, &[0xff; 512]),
    ]
    .into_iter()
    .map(|f| [&[6][..], &f].concat())
    .collect()
}

/// The request frame that a responder receives.
pub(super) mod request {
    /// Executes the target with `input`.
    pub(in crate::targets) fn run(input: &[u8]) {
        super::start_up(true, input);
    }

    /// Requests.
    pub(in crate::targets) fn seeds() -> Vec<Vec<u8>> {
        super::frames(super::REQUEST)
    }
}

/// The reply frame that an initiator receives.
pub(super) mod reply {
    /// Executes the target with `input`.
    pub(in crate::targets) fn run(input: &[u8]) {
        super::start_up(false, input);
    }

    /// Replies.
    pub(in crate::targets) fn seeds() -> Vec<Vec<u8>> {
        super::frames(super::REPLY)
    }
}

/// CRC32C (RFC 5044 section 4.4), bit by bit.
pub(super) fn crc32c(bytes: &[u8]) -> u32 {
    let mut crc = u32::MAX;
    for byte in bytes {
        crc ^= u32::from(*byte);
        for _ in 0..8 {
            crc = if crc & 1 == 1 { (crc >> 1) ^ 0x82f6_3b78 } else { crc >> 1 };
        }
    }
    !crc
}

/// An FPDU around `ulpdu`.
pub(super) fn framed(ulpdu: &[u8]) -> Vec<u8> {
    let mut out = (ulpdu.len() as u16).to_be_bytes().to_vec();
    out.extend(ulpdu);
    out.resize(out.len().next_multiple_of(4), 0);
    let crc = crc32c(&out);
    out.extend(crc.to_le_bytes());
    out
}

/// Replaces each word `from` in `bytes`, at any alignment.
pub(super) fn replace(bytes: &mut [u8], from: u32, to: u32) {
    for at in 0..bytes.len().saturating_sub(3) {
        if let Some(word) = bytes[at..].first_chunk_mut().filter(|w| **w == from.to_be_bytes()) {
            *word = to.to_be_bytes();
        }
    }
}

/// The FPDU stream. Input: whether CRCs are used, a segment size, and operations, which are bytes of the
/// stream (an even kind) or a ULPDU to be framed (an odd kind). In ULPDUs the words
/// [`WRITABLE`](stream::WRITABLE), [`READABLE`](stream::READABLE) and [`SINK`](stream::SINK) are replaced by
/// the tags of regions.
pub(super) mod stream {
    use super::*;

    pub(super) const WRITABLE: u32 = 0xf00d_0001;
    pub(super) const READABLE: u32 = 0xf00d_0002;
    pub(super) const SINK: u32 = 0xf00d_0003;
    /// Bytes of each region and receive.
    const REGION: usize = 1024;
    const RECEIVE: usize = 512;
    const RECEIVES: usize = 6;
    const GUARD: u8 = 0xaa;
    const SECRET: u8 = 0x55;

    /// The observable result of an execution.
    #[derive(Debug, PartialEq, Eq)]
    struct Outcome {
        completions: Vec<(&'static str, Vec<u8>, bool)>,
        error: Option<String>,
        /// The FPDUs that the peer received; after an error only the last one. A Terminate message may replace
        /// messages that were not sent yet (RFC 5040 section 5.4), which depends on when bytes arrived.
        sent: Vec<Vec<u8>>,
        /// The contents of the writable region; `None` after an error, which may leave part of a segment
        /// there.
        written: Option<Vec<u8>>,
    }

    /// One end, with memory of each kind.
    struct Victim {
        qp: Qp,
        peer: Peer,
        writable: ExposedRegion,
        readable: ExposedRegion,
        guards: Vec<Buffer>,
        sink: Option<u32>,
        /// Bytes of an FPDU that is not complete.
        unread: Vec<u8>,
        out: Outcome,
    }

    fn filled(byte: u8, len: usize) -> Buffer {
        let mut buffer = arena().alloc(len).expect("arena memory");
        buffer.set_len(len);
        buffer.fill(byte);
        buffer
    }

    impl Victim {
        fn new(crc: bool, segment: usize) -> Self {
            let (peer, ours) = memory_stream(1 << 20, segment);
            let mut peer = Peer(peer);
            let mut set_up: SetUp =
                Box::pin(accept_over(still(), arena(), Box::new(ours), ConnectParams::default()));
            peer.write(&frame(REQUEST, if crc { 0x5002 } else { 0x1002 }, &from_hex("0080 0010")));
            let mut qp = finish(&mut set_up).expect("a set-up ends").expect("a queue pair");
            peer.read();
            let mut guards = vec![filled(GUARD, REGION)];
            let expose = |byte, access| {
                let memory = Memory::Owned(filled(byte, REGION));
                MemoryRegion::new(qp.domain(), memory).expose(access).expect("an exposed region")
            };
            let writable = expose(0, Access::RemoteWrite);
            guards.push(filled(GUARD, REGION));
            let readable = expose(SECRET, Access::RemoteRead);
            guards.push(filled(GUARD, REGION));
            for _ in 0..RECEIVES {
                qp.post_receive(filled(0, RECEIVE)).expect("a receive");
            }
            let from = Segment { handle: SteeringTag(77), length: 600, offset: 0 };
            let sink = vec![filled(0, 400), filled(0, 200)];
            qp.post_read(ReadRequest { id: WorkId(1), from, sink }).expect("a read");
            let out = Outcome { completions: Vec::new(), error: None, sent: Vec::new(), written: None };
            Self { qp, peer, writable, readable, guards, sink: None, unread: Vec::new(), out }
        }

        /// Polls the queue pair until it has processed all bytes of the stream.
        fn settle(&mut self) {
            let mut some = Vec::new();
            let woken = Arc::new(Woken::default());
            let waker = Waker::from(Arc::clone(&woken));
            for n in 0.. {
                assert!(n < POLLS, "the queue pair is busy without an end");
                match self.qp.poll(&mut Context::from_waker(&waker), &mut some) {
                    Poll::Ready(Ok(())) => {}
                    Poll::Ready(Err(e)) => {
                        self.out.error.get_or_insert(e.to_string());
                        break;
                    }
                    Poll::Pending if woken.0.swap(false, Ordering::Relaxed) => {}
                    Poll::Pending => break,
                }
            }
            self.out.completions.extend(some.into_iter().map(|c| match c {
                Completion::Received { buffer, invalidated } => {
                    ("received", buffer.to_vec(), invalidated.is_some())
                }
                Completion::Read { sink, .. } => {
                    ("read", sink.iter().flat_map(|b| b.to_vec()).collect(), false)
                }
                Completion::Sent(_) => ("sent", Vec::new(), false),
            }));
            self.receive();
            self.find_sink();
        }

        /// Reads the FPDUs that were sent.
        fn receive(&mut self) {
            self.unread.extend(self.peer.read());
            while let Some(len) = self.unread.first_chunk() {
                let len = (2 + usize::from(u16::from_be_bytes(*len))).next_multiple_of(4) + 4;
                if self.unread.len() < len {
                    break;
                }
                let rest = self.unread.split_off(len);
                self.out.sent.push(std::mem::replace(&mut self.unread, rest));
            }
        }

        /// Reads the tag of the sink from the Read Request.
        fn find_sink(&mut self) {
            let request = self.out.sent.iter().find(|fpdu| fpdu.get(3).is_some_and(|b| b & 15 == 1));
            let tag = request.and_then(|fpdu| fpdu.get(20..)?.first_chunk());
            self.sink = tag.map(|tag| u32::from_be_bytes(*tag));
        }

        fn execute(&mut self, kind: u8, operand: &[u8]) {
            let mut bytes = operand.to_vec();
            if kind % 2 == 1 {
                replace(&mut bytes, WRITABLE, self.writable.segment().handle.0);
                replace(&mut bytes, READABLE, self.readable.segment().handle.0);
                replace(&mut bytes, SINK, self.sink.unwrap_or(SINK));
                bytes = framed(&bytes);
            }
            self.peer.write(&bytes);
            self.settle();
        }

        fn end(mut self) -> Outcome {
            self.peer.0.shutdown();
            self.settle();
            drop(self.qp);
            let memory = |region: ExposedRegion| match region.revoke().map(MemoryRegion::into_memory) {
                Some(Memory::Owned(buffer)) => Some(buffer.to_vec()),
                _ => None,
            };
            let written = memory(self.writable);
            if let Some(secret) = memory(self.readable) {
                assert!(secret.iter().all(|b| *b == SECRET), "memory that may only be read has changed");
            }
            let intact = self.guards.iter().all(|g| g.iter().all(|b| *b == GUARD));
            assert!(intact, "memory that was not exposed has changed");
            assert!(self.unread.is_empty(), "part of an FPDU was sent");
            if self.out.error.is_some() {
                let last = self.out.sent.len().saturating_sub(1);
                self.out.sent.drain(..last);
            }
            Outcome { written: written.filter(|_| self.out.error.is_none()), ..self.out }
        }
    }

    fn outcome(crc: bool, segment: usize, script: &[u8]) -> Outcome {
        let mut victim = Victim::new(crc, segment);
        let mut script = Input::new(script);
        while let Some((kind, operand)) = script.operation() {
            victim.execute(kind, operand);
        }
        victim.end()
    }

    /// Executes the target with `input`.
    pub(in crate::targets) fn run(input: &[u8]) {
        let mut input = Input::new(input);
        let (crc, segment) = (input.u8() % 2 == 1, usize::from(input.u8()) + 1);
        let script = input.rest();
        let whole = outcome(crc, usize::MAX, script);
        assert_eq!(outcome(crc, segment, script), whole, "in segments of {segment} bytes");
    }

    fn tagged(control: u16, tag: u32, offset: u64, payload: &[u8]) -> Vec<u8> {
        [&control.to_be_bytes()[..], &tag.to_be_bytes(), &offset.to_be_bytes(), payload].concat()
    }

    fn untagged(control: u16, invalidate: u32, [queue, msn, at]: [u32; 3], payload: &[u8]) -> Vec<u8> {
        let fields = [invalidate, queue, msn, at].map(u32::to_be_bytes).concat();
        [&control.to_be_bytes()[..], &fields, payload].concat()
    }

    /// Each operation of RDMAP, whole and in segments, and bytes of RFC 5044.
    pub(in crate::targets) fn seeds() -> Vec<Vec<u8>> {
        let send = |msn, data: &[u8]| untagged(0x4143, 0, [0, msn, 0], data);
        let first = send(1, b"hello");
        let read = crate::bytes::words(&[7, 0, 64, 600, READABLE, 0, 100]);
        let (start, end) =
            (untagged(0x0143, 0, [0, 2, 0], &[1; 100]), untagged(0x4143, 0, [0, 2, 100], &[2; 80]));
        let invalidate = untagged(0x4144, WRITABLE, [0, 2, 0], b"gone");
        let write = tagged(0xc140, WRITABLE, 16, &[3; 600]);
        let partial = tagged(0x8140, WRITABLE, 0, &[4; 64]);
        let (answer, rest) = (tagged(0x8142, SINK, 0, &[5; 500]), tagged(0xc142, SINK, 500, &[6; 100]));
        let terminate = untagged(0x4147, 0, [2, 1, 0], &from_hex("02060000"));
        let request = untagged(0x4141, 0, [1, 1, 0], &read);
        let lists: [&[&[u8]]; 6] = [
            &[&first, &start, &end, &send(3, &[9; 512])],
            &[&first, &write, &partial, &send(2, b"done")],
            &[&first, &request, &invalidate],
            &[&first, &answer, &rest, &send(2, b"")],
            &[&first, &terminate],
            &[&send(1, &[8; 24])],
        ];
        let mut out: Vec<Vec<u8>> = Vec::new();
        for (n, list) in (0..).zip(lists) {
            let script: Vec<(u8, &[u8])> = list.iter().map(|ulpdu| (1, *ulpdu)).collect();
            out.push([&[n, n * 40][..], &operations(&script)].concat());
        }
        // RFC 5044 figure 6, without the marker.
        let bytes = from_hex(
            "002a 4143 00000000 00000000 00000001 00000000 000000000000000000000000 \
                              000000000000000000000000 b7243ec3",
        );
        out.push([&[1, 5][..], &operations(&[(0, &bytes[..9]), (0, &bytes[9..])])].concat());
        out
    }
}
