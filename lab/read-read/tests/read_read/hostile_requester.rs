//! A requester that violates the protocol, against the responder: the effect is limited to its own connection
//! and to a bounded amount of memory for a bounded time.

use std::time::Duration;

use millrace_buffer::Arena;
use millrace_rdma::{ConnectionError, ReadRequest, Segment, WorkId};
use millrace_read_read::{ExposureLimits, ReadRead};
use millrace_rpcrdma::{Body, Header, Lists, Protocol, ReadSegment, ResponderConfig, TransportError};

use crate::{
    params, serve,
    support::{
        self, Ask, Link, Server, arena, message, queue_pairs,
        raw::{Raw, msg},
        settled,
    },
    words,
};

const XID: u32 = 0x1122_3344;
const BIG: Ask = Ask { send: 0, head: 0, receive: 9000, reply_head: 0, later: false, seed: 7 };

struct Scene {
    raw: Raw,
    server: Server,
    protocol: ReadRead,
    arena: Arena,
}

impl Scene {
    async fn new() -> Self {
        Self::over(Link::Fabric, ExposureLimits::default()).await
    }

    async fn over(link: Link, exposure: ExposureLimits) -> Self {
        let arena = arena();
        let (config, protocol) = (ResponderConfig::default(), ReadRead { exposure, ..ReadRead::default() });
        let accept = protocol.accept_params(&config, Default::default());
        let (c, s) = queue_pairs(link, &arena, params(), accept).await;
        let server = serve(s, &arena, config, protocol.clone()).unwrap();
        Self { raw: Raw::new(c, &arena), server, protocol, arena }
    }

    fn call(&mut self, xid: u32, ask: Ask) {
        let zeros = self.arena.copy_from(&[0; 4]).unwrap();
        let stream = message(&self.arena, xid, ask).gather(&zeros).to_vec();
        self.raw.send(&Raw::message(&msg(xid, Lists::default()), &stream));
    }

    fn done(&mut self, xid: u32) {
        self.raw.send(&Raw::message(&Header::new(xid, 32, Body::Done), &[]));
    }

    /// The Read list of the next reply.
    async fn reads(&mut self) -> (Header, Vec<ReadSegment>) {
        let (h, _) = self.raw.receive_header().await;
        let (Body::Msg(l) | Body::NoMsg(l)) = &h.body else { panic!("{h}") };
        let reads = l.reads.to_vec();
        (h, reads)
    }

    async fn read(&mut self, from: Segment) -> Result<Vec<u8>, ConnectionError> {
        let sink = vec![self.arena.alloc(from.length as usize).unwrap()];
        match self.raw.qp.post_read(ReadRequest { id: WorkId(1), from, sink }) {
            Ok(()) => self.raw.read_done().await,
            Err(_) => Err(ConnectionError::Closed),
        }
    }

    fn exposed(&self) -> (u64, u64) {
        let e = self.server.stats.snapshot().exposure;
        (e.regions, e.bytes)
    }

    async fn expect_alive(&mut self) {
        self.call(XID + 99, Ask::default());
        assert_eq!(self.raw.receive_header().await.0.xid, XID + 99);
    }

    async fn finish(self) {
        let Self { mut raw, server, arena, .. } = self;
        raw.qp.disconnect();
        raw.push().await;
        drop(raw);
        drop(server.task.await.unwrap());
        let stats = server.stats.snapshot();
        assert_eq!((stats.calls_in_progress, stats.exposure.regions, stats.exposure.bytes), (0, 0, 0));
        drop(server.service);
        settled(&arena).await;
    }
}

#[tokio::test]
async fn a_long_result_is_a_read_chunk_of_the_reply() {
    let mut s = Scene::new().await;
    s.call(XID, BIG);
    let bytes = s.raw.receive().await.unwrap();
    let w = words(&bytes);
    // Position 36: 24 bytes of reply header, the checksum, an empty opaque, the length word of the result.
    assert_eq!(w[..6], [XID, 1, 32, 0, 1, 36]);
    assert_eq!((w[7], &w[10..13]), (9000, &[0, 0, 0][..]));
    assert_eq!(w[13..19], [XID, 1, 0, 0, 0, 0]);
    assert_eq!((w[20], w[21], w.len()), (0, 9000, 22));
    let (h, _) = Header::decode(&bytes, 16).unwrap();
    let Body::Msg(lists) = h.body else { panic!() };
    assert_eq!(s.exposed(), (1, 9000));
    assert_eq!(s.read(lists.reads[0].segment).await.unwrap(), support::pattern(8, 9000));
    s.raw.send(&[0x11, 0x22, 0x33, 0x44, 0, 0, 0, 1, 0, 0, 0, 32, 0, 0, 0, 3]);
    s.expect_alive().await;
    assert_eq!(s.exposed(), (0, 0));
    s.finish().await;
}

#[tokio::test]
async fn a_long_reply_is_a_position_zero_chunk() {
    let mut s = Scene::new().await;
    s.call(XID, Ask { reply_head: 6000, ..BIG });
    let (h, reads) = s.reads().await;
    assert!(matches!(h.body, Body::NoMsg(_)));
    let at: Vec<_> = reads.iter().map(|r| (r.position, r.segment.length)).collect();
    assert_eq!(at, [(24 + 4 + 4 + 6000 + 4, 9000), (0, 24 + 4 + 4 + 6000 + 4)]);
    let head = s.read(reads[1].segment).await.unwrap();
    assert_eq!(words(&head[..24]), [XID, 1, 0, 0, 0, 0]);
    s.done(XID);
    s.expect_alive().await;
    s.finish().await;
}

#[tokio::test]
async fn rdma_msgp_calls_are_decoded_without_their_pad_bytes() {
    let mut s = Scene::new().await;
    let ask = Ask { send: 1001, ..Ask::default() };
    let call = message(&s.arena, XID, ask);
    let (head, data) = (call.head.to_vec(), call.payloads[0].data.to_vec());
    drop(call);
    let header = |words: &[u32]| [&[XID, 1, 32, 2], words].concat().into_iter().flat_map(u32::to_be_bytes);
    let with = |words: &[u32], rest: &[u8]| header(words).chain(rest.iter().copied()).collect::<Vec<_>>();
    let valid = [256, 1000, 0, 0, 0];
    // A header of 36 bytes and a head of 64: 156 pad bytes up to 256.
    let mut rest = head.clone();
    rest.extend([0; 156]);
    rest.extend(&data);
    rest.extend([0; 3]);
    s.raw.send(&with(&valid, &rest));
    let (_, reply) = s.raw.receive_header().await;
    let sum = support::checksum(std::iter::empty())
        ^ support::checksum(support::pattern(2, 1001).into_iter()).rotate_left(1);
    assert_eq!(words(&reply)[5..7], [0, sum]);
    // Shorter than the pad bytes of its alignment: GARBAGE_ARGS.
    s.raw.send(&with(&valid, &head));
    assert_eq!(words(&s.raw.receive_header().await.1)[5], 4);
    // An RDMA_MSGP with chunks, and invalid alignments.
    let read = [1, 64, 1, 4, 0, 0];
    let mut bad = vec![with(&[&[256, 1000][..], &read, &[0; 3]].concat(), &rest)];
    bad.extend([0, 1, 6, 4100, u32::MAX].map(|align| with(&[align, 1000, 0, 0, 0], &rest)));
    for b in bad {
        s.raw.send(&b);
        assert_eq!(s.raw.receive_header().await.0.body, Body::Error(TransportError::Chunk));
    }
    s.expect_alive().await;
    s.finish().await;
}

#[tokio::test]
async fn duplicate_and_unknown_done_messages_are_ignored() {
    let mut s = Scene::new().await;
    for xid in [0, XID, XID + 1, u32::MAX] {
        s.done(xid);
    }
    s.call(XID, BIG);
    let (_, reads) = s.reads().await;
    s.call(XID + 1, BIG);
    s.reads().await;
    s.done(XID + 7);
    assert_eq!(s.read(reads[0].segment).await.unwrap().len(), 9000);
    s.done(XID);
    s.done(XID);
    s.expect_alive().await;
    assert_eq!(s.exposed(), (1, 9000));
    let (done, dropped) = (s.protocol.counts.done_received.get(), s.server.stats.snapshot().dropped);
    assert_eq!((done, dropped), (1, 6));
    for _ in 0..500 {
        s.done(XID + 2);
        tokio::task::yield_now().await;
    }
    s.expect_alive().await;
    s.finish().await;
}

#[tokio::test]
async fn results_are_readable_until_they_are_acknowledged() {
    for link in Link::fabric_and_providers() {
        let mut s = Scene::over(link, ExposureLimits::default()).await;
        s.call(XID, BIG);
        let (_, reads) = s.reads().await;
        let from = reads[0].segment;
        assert_eq!(s.read(from).await.unwrap(), s.read(from).await.unwrap());
        s.done(XID);
        s.expect_alive().await;
        assert!(s.read(from).await.is_err(), "{link:?}");
        s.finish().await;
    }
}

#[tokio::test]
async fn reads_outside_exposed_memory_terminate_the_connection() {
    for link in Link::fabric_and_providers() {
        for case in 0..5 {
            let mut s = Scene::over(link, ExposureLimits::default()).await;
            s.call(XID, BIG);
            let (_, reads) = s.reads().await;
            let mut from = reads[0].segment;
            match case {
                0 => from.length += 1,
                1 => from.offset = from.offset.wrapping_sub(1),
                2 => from.offset += 1,
                3 => from.handle.0 ^= 1,
                _ => from.handle.0 ^= 0x0100_0000,
            }
            assert!(s.read(from).await.is_err(), "{link:?}, {case}");
            s.finish().await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_requester_that_never_acknowledges_is_disconnected_and_its_memory_freed() {
    let limits = ExposureLimits { done_timeout: Duration::from_secs(7), ..Default::default() };
    let mut s = Scene::over(Link::Fabric, limits).await;
    s.call(XID, BIG);
    let (_, reads) = s.reads().await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    s.call(XID + 1, BIG);
    s.reads().await;
    s.done(XID);
    // The oldest reply is acknowledged. Its time limit ends, and that of the next reply applies.
    tokio::time::sleep(Duration::from_secs(6)).await;
    s.expect_alive().await;
    let before = tokio::time::Instant::now();
    let end = (&mut s.server.task).await.unwrap();
    assert!(
        matches!(&end, Err(ConnectionError::PeerMisbehaved(what)) if what.contains("RDMA_DONE")),
        "{end:?}"
    );
    assert_eq!(before.elapsed().as_secs(), 1);
    assert!(s.read(reads[0].segment).await.is_err());
    let e = s.server.stats.snapshot().exposure;
    assert_eq!((e.regions, e.bytes, e.peak_regions, e.peak_bytes), (0, 0, 2, 18_000));
    // 9000 bytes were exposed for 5 seconds, and other 9000 bytes for 7 seconds.
    assert_eq!(e.byte_seconds().round(), 9000.0 * 12.0);
    drop(s.raw);
    drop(s.server.service);
    settled(&s.arena).await;
}

#[tokio::test]
async fn the_exposure_per_requester_is_bounded() {
    for limits in [
        ExposureLimits { regions: 20, ..Default::default() },
        ExposureLimits { bytes: 2 << 20, ..Default::default() },
    ] {
        let mut s = Scene::over(Link::Fabric, limits).await;
        let ask = Ask { receive: 100_000, ..BIG };
        let mut refused = 0;
        for i in 0..40 {
            s.call(XID + i, ask);
            let (h, _) = s.raw.receive_header().await;
            refused += usize::from(h.body == Body::Error(TransportError::Chunk));
        }
        let (regions, bytes) = s.exposed();
        assert!(regions <= limits.regions as u64 && bytes <= limits.bytes as u64, "{regions} {bytes}");
        assert_eq!(refused, 40 - regions as usize, "{limits:?}");
        assert_eq!(regions, 20);
        // An acknowledgement releases memory.
        s.done(XID + 3);
        s.call(XID + 100, ask);
        assert_eq!(s.reads().await.1.len(), 1);
        s.finish().await;
    }
}

#[tokio::test]
async fn two_open_replies_never_share_an_xid() {
    let mut s = Scene::new().await;
    s.call(XID, BIG);
    s.reads().await;
    s.call(XID, BIG);
    assert_eq!(s.raw.receive_header().await.0.body, Body::Error(TransportError::Chunk));
    s.done(XID);
    s.call(XID, BIG);
    s.reads().await;
    s.finish().await;
}

#[tokio::test]
async fn calls_with_chunks_for_results_are_rejected() {
    let mut s = Scene::new().await;
    let region = s.raw.expose(&[0; 10_000], millrace_rdma::Access::RemoteWrite);
    let chunk = [region.segment()].into_iter().collect::<millrace_rpcrdma::Chunk>();
    let zeros = s.arena.copy_from(&[0; 4]).unwrap();
    let stream = message(&s.arena, XID, BIG).gather(&zeros).to_vec();
    let write = Lists { writes: [chunk.clone()].into_iter().collect(), ..Lists::default() };
    let reply = Lists { reply: Some(chunk), ..Lists::default() };
    for lists in [write, reply] {
        s.raw.send(&Raw::message(&msg(XID, lists), &stream));
        assert_eq!(s.raw.receive_header().await.0.body, Body::Error(TransportError::Chunk));
    }
    drop((region, zeros));
    s.expect_alive().await;
    s.finish().await;
}

#[tokio::test]
async fn a_disconnected_requester_leaves_no_memory_exposed() {
    for link in Link::fabric_and_providers() {
        let mut s = Scene::over(link, ExposureLimits::default()).await;
        for i in 0..5 {
            s.call(XID + i, BIG);
            s.reads().await;
        }
        assert_eq!(s.exposed(), (5, 45_000));
        s.finish().await;
    }
}
