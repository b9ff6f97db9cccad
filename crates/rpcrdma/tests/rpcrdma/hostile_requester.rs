//! A requester that violates the protocol, against the responder: it gets the specified error or loses its
//! connection; other clients are unaffected, and all resources are released.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use millrace_buffer::Arena;
use millrace_oncrpc::serving::ConnectionConfig;
use millrace_rdma::{Access, ConnectionError, ExposedRegion, Segment, SteeringTag};
use millrace_rpcrdma::{
    Body, Chunk, Header, Lists, PrivateData, ReadSegment, Requester, RequesterConfig, ResponderConfig,
    TransportError,
};
use proptest::prelude::*;

use crate::support::{
    self, Ask, Echo, Link, Server, arena, connected, echo, message, queue_pairs,
    raw::{Raw, msg, nomsg},
    serve, settled,
};

const XID: u32 = 0x0102_0304;
/// Position of the payload of [`message`] if its head has no further data.
const POSITION: u32 = 64;

/// The malicious requester, its server, and a well-behaved client.
struct Scene {
    raw: Raw,
    server: Server,
    other: (Arc<Requester>, Server),
    arena: Arena,
}

impl Scene {
    async fn new() -> Self {
        Self::with(ResponderConfig::default()).await
    }

    async fn with(config: ResponderConfig) -> Self {
        Self::over(Link::Fabric, config).await
    }

    async fn over(link: Link, config: ResponderConfig) -> Self {
        let arena = arena();
        let ours = PrivateData { remote_invalidate: false, send_size: 4096, receive_size: 4096 };
        let params =
            millrace_rdma::ConnectParams { private_data: ours.encode().to_vec(), ..Default::default() };
        let (c, s) = queue_pairs(link, &arena, params, config.connect_params(Default::default())).await;
        let server = serve(s, &arena, config);
        let raw = Raw::new(c, &arena);
        let other =
            connected(Link::Fabric, &arena, RequesterConfig::default(), ResponderConfig::default()).await;
        Self { raw, server, other, arena }
    }

    fn stream(&self, ask: Ask) -> Vec<u8> {
        let zeros = self.arena.copy_from(&[0; 4]).unwrap();
        message(&self.arena, XID, ask).gather(&zeros).to_vec()
    }

    fn head(&self, ask: Ask) -> Vec<u8> {
        message(&self.arena, XID, ask).head.to_vec()
    }

    fn send(&mut self, header: &Header, rest: &[u8]) {
        self.raw.send(&Raw::message(header, rest));
    }

    fn service(&self) -> &Echo {
        &self.server.service
    }

    async fn expect_chunk_error(&mut self) {
        let (h, rest) = self.raw.receive_header().await;
        assert_eq!((h.xid, h.body), (XID, Body::Error(TransportError::Chunk)));
        assert!(rest.is_empty() && h.credits > 0);
    }

    /// The accept status and the lists of an inline reply.
    async fn expect_reply(&mut self) -> (u32, Lists) {
        let (h, rest) = self.raw.receive_header().await;
        assert_eq!(h.xid, XID);
        let Body::Msg(lists) = h.body else { panic!("{h}") };
        assert_eq!(rest[..4], XID.to_be_bytes());
        (u32::from_be_bytes(rest[20..24].try_into().unwrap()), lists)
    }

    /// Checks that the connection works and that no other message was sent before. Afterwards the peer has
    /// the credits that [`msg`] requests, within the limit; before the first reply it has 1.
    async fn expect_alive(&mut self) {
        let stream = self.stream(Ask::default());
        self.send(&msg(XID, Lists::default()), &stream);
        assert_eq!(self.expect_reply().await.0, 0);
    }

    async fn finish(self) {
        let ask = Ask { send: 9000, receive: 9000, ..Ask::default() };
        echo(&self.other.0, &self.arena, ask).await;
        support::finish(self.other.0, self.other.1, &Arena::new(Default::default())).await;
        let Self { mut raw, server, arena, .. } = self;
        raw.qp.disconnect();
        raw.push().await;
        drop(raw);
        drop(server.task.await.unwrap());
        assert_eq!(server.stats.snapshot().calls_in_progress, 0);
        settled(&arena).await;
    }
}

fn reads(list: &[(u32, Segment)]) -> Lists {
    let reads = list.iter().map(|&(position, segment)| ReadSegment { position, segment });
    Lists { reads: reads.collect(), ..Lists::default() }
}

fn writes(chunks: &[&[Segment]], reply: Option<&[Segment]>) -> Lists {
    Lists {
        writes: chunks.iter().map(|c| c.iter().copied().collect()).collect(),
        reply: reply.map(|c| c.iter().copied().collect::<Chunk>()),
        ..Lists::default()
    }
}

/// The part of an exposed region at `at` with `length` bytes.
fn part(of: &ExposedRegion, at: u64, length: u32) -> Segment {
    let s = of.segment();
    Segment { offset: s.offset + at, length, ..s }
}

fn bogus(length: u32) -> Segment {
    Segment { handle: SteeringTag(0), length, offset: 0x1000 }
}

#[tokio::test]
async fn rdma_msgp_of_rfc_5666_is_an_unknown_procedure() {
    let mut s = Scene::new().await;
    let stream = s.stream(Ask::default());
    for words in [&[4, 16, 0, 0, 0][..], &[512, 1024, 0, 0, 0], &[0; 5]] {
        let words = [&[XID, 1, 32, 2], words].concat();
        let mut call: Vec<u8> = words.into_iter().flat_map(u32::to_be_bytes).collect();
        call.extend(&stream);
        s.raw.send(&call);
        s.expect_chunk_error().await;
    }
    assert_eq!(s.service().executed.load(Ordering::SeqCst), 0);
    s.expect_alive().await;
    s.finish().await;
}

#[tokio::test]
async fn headers_shorter_than_28_bytes_get_no_reply() {
    let mut s = Scene::new().await;
    s.expect_alive().await;
    let whole = Raw::message(&msg(XID, Lists::default()), &[]);
    for n in 0..28 {
        s.raw.send(&whole[..n]);
    }
    s.expect_alive().await;
    assert_eq!(s.server.stats.snapshot().dropped, 28);
    s.finish().await;
}

#[tokio::test]
async fn other_versions_get_err_vers_with_their_own_version() {
    let mut s = Scene::new().await;
    for vers in [0, 2, 9, u32::MAX] {
        let h = Header { vers, ..msg(XID, Lists::default()) };
        let stream = s.stream(Ask::default());
        s.send(&h, &stream);
        let b = s.raw.receive().await.unwrap();
        let words: Vec<u32> = b.chunks_exact(4).map(|w| u32::from_be_bytes(w.try_into().unwrap())).collect();
        assert_eq!(words[..2], [XID, vers]);
        assert!(words[2] > 0);
        assert_eq!(words[3..], [4, 1, 1, 1]);
    }
    s.expect_alive().await;
    s.finish().await;
}

#[tokio::test]
async fn obsolete_and_unknown_procedures_are_dropped_or_rejected() {
    let mut s = Scene::new().await;
    for proc in [2_u32, 5, 0xffff_ffff] {
        let mut b = Raw::message(&msg(XID, Lists::default()), &s.stream(Ask::default()));
        b[12..16].copy_from_slice(&proc.to_be_bytes());
        s.raw.send(&b);
        s.expect_chunk_error().await;
    }
    for proc in [3_u32, 4] {
        let mut b = Raw::message(&msg(XID, Lists::default()), &s.stream(Ask::default()));
        b[12..16].copy_from_slice(&proc.to_be_bytes());
        s.raw.send(&b);
    }
    s.expect_alive().await;
    s.finish().await;
}

#[tokio::test]
async fn malformed_lists_get_err_chunk() {
    let mut s = Scene::new().await;
    let cases: [&[u32]; 8] = [
        &[XID, 1, 1, 0, 0, 1, 0x1000_0001, 1, 1, 0, 0, 0], // segment count * 16 wraps
        &[XID, 1, 1, 0, 0, 0, 1, 0x1000_0001, 1, 1, 0, 0], // the same in the Reply chunk
        &[XID, 1, 1, 0, 1, 64, 1, 4, 0, 0],                // Read list without a terminator
        &[XID, 1, 1, 0, 1, 2, 1, 4, 0, 0, 0, 0, 0],        // position 2
        &[XID, 1, 1, 0, 2, 0, 0],                          // discriminator
        &[XID, 1, 1, 0, 1, 64, 1, 32, u32::MAX, u32::MAX, 0, 0, 0], // offset + length wraps
        &[XID, 1, 1, 1, 0, 0, 0],                          // RDMA_NOMSG without any chunk
        &[XID, 1, 1, 0, 0, 0, 0],                          // RDMA_MSG without a message
    ];
    for words in cases {
        let b: Vec<u8> = words.iter().flat_map(|w| w.to_be_bytes()).collect();
        s.raw.send(&b);
        s.expect_chunk_error().await;
    }
    assert_eq!(s.service().executed.load(Ordering::SeqCst), 0);
    s.expect_alive().await;
    s.finish().await;
}

#[tokio::test]
async fn misplaced_chunks_get_err_chunk_before_any_rdma() {
    let mut s = Scene::new().await;
    let head = s.head(Ask { send: 100, ..Ask::default() });
    let big = 3 << 20;
    let msgs = [
        reads(&[(0, bogus(100))]),                  // Position-Zero chunk in an RDMA_MSG
        reads(&[(POSITION + 4, bogus(100))]),       // beyond the message
        reads(&[(0xffff_fffc, bogus(4))]),          // far beyond
        reads(&[(20, bogus(100)), (24, bogus(8))]), // inside another
        reads(&[(20, bogus(4)), (24, bogus(8))]),   // adjacent to another
        reads(&[(POSITION, bogus(big))]),           // larger than the transfer limit
        reads(&[(POSITION, bogus(u32::MAX)), (POSITION, bogus(u32::MAX))]),
    ];
    for lists in msgs {
        s.send(&msg(XID, lists), &head);
        s.expect_chunk_error().await;
    }
    let nomsgs = [
        reads(&[(POSITION, bogus(100))]),          // no Position-Zero chunk
        reads(&[(0, bogus(0))]),                   // an empty chunk
        reads(&[(0, bogus(3))]),                   // shorter than an XID
        reads(&[(0, bogus(64)), (400, bogus(4))]), // beyond the message
        writes(&[&[bogus(9)]], Some(&[bogus(9)])), // chunks for results only
    ];
    for lists in nomsgs {
        s.send(&nomsg(XID, lists), &[]);
        s.expect_chunk_error().await;
    }
    assert_eq!(s.server.stats.snapshot().reads, 0);
    s.expect_alive().await;
    s.finish().await;
}

#[tokio::test]
async fn an_xid_that_differs_from_the_messages_gets_err_chunk() {
    let mut s = Scene::new().await;
    let mut stream = s.stream(Ask::default());
    stream[3] ^= 1;
    s.send(&msg(XID, Lists::default()), &stream);
    s.expect_chunk_error().await;
    let region = s.raw.expose(&stream, Access::RemoteRead);
    s.send(&nomsg(XID, reads(&[(0, region.segment())])), &[]);
    s.expect_chunk_error().await;
    s.expect_alive().await;
    drop(region);
    s.finish().await;
}

#[tokio::test]
async fn one_chunk_may_have_many_segments_of_any_size_and_order() {
    let mut s = Scene::with(ResponderConfig { max_segments: 64, ..Default::default() }).await;
    let ask = Ask { send: 500, ..Ask::default() };
    let head = s.head(ask);
    let region = s.raw.expose(&support::pattern(2, 500), Access::RemoteRead);
    // Empty segments first, in the middle and last; 40 segments in total.
    let mut list = vec![(POSITION, part(&region, 0, 0))];
    list.extend((0..19).map(|i| (POSITION, part(&region, i * 13, 13))));
    list.push((POSITION, bogus(0)));
    list.extend((0..18).map(|i| (POSITION, part(&region, 247 + i * 13, 13))));
    list.push((POSITION, part(&region, 481, 19)));
    list.push((POSITION, part(&region, 500, 0)));
    s.send(&msg(XID, reads(&list)), &head);
    let (h, rest) = s.raw.receive_header().await;
    assert_eq!(h.xid, XID);
    let expected = support::checksum(std::iter::empty())
        ^ support::checksum(support::pattern(2, 500).into_iter()).rotate_left(1);
    assert_eq!(rest[24..28], expected.to_be_bytes());
    // The segments were adjacent and needed one RDMA Read; the next ones are not adjacent.
    assert_eq!(s.server.stats.snapshot().reads, 1);
    let swapped: Vec<u8> = (0..500).map(|i| support::pattern(2, 500)[(i + 250) % 500]).collect();
    let swapped = s.raw.expose(&swapped, Access::RemoteRead);
    let list = [(250, 100), (350, 150), (0, 90), (90, 160)].map(|(at, n)| (POSITION, part(&swapped, at, n)));
    s.send(&msg(XID, reads(&list)), &head);
    assert_eq!(s.raw.receive_header().await.1[24..28], expected.to_be_bytes());
    assert_eq!(s.server.stats.snapshot().reads, 3);
    drop(swapped);
    // One segment more than the limit of 64.
    let list: Vec<_> = (0..65).map(|_| (POSITION, part(&region, 0, 1))).collect();
    s.send(&msg(XID, reads(&list)), &head);
    s.expect_chunk_error().await;
    drop(region);
    s.finish().await;
}

#[tokio::test]
async fn segments_with_one_position_form_one_chunk_in_any_order() {
    let mut s = Scene::new().await;
    let ask = Ask { send: 8, ..Ask::default() };
    let stream = s.stream(ask);
    // Cuts out the position of the seed as a separate chunk between the two halves of the payload. The
    // service expects no chunk there, so the head must be conveyed by the Position-Zero chunk.
    let head = s.raw.expose(&s.head(ask), Access::RemoteRead);
    let data = s.raw.expose(&support::pattern(2, 8), Access::RemoteRead);
    let list = [
        (POSITION, part(&data, 0, 3)),
        (0, part(&head, 0, 40)),
        (POSITION, part(&data, 3, 5)),
        (0, part(&head, 40, 24)),
    ];
    assert_eq!(stream.len(), 72);
    // Bytes after an RDMA_NOMSG header are ignored.
    s.send(&nomsg(XID, reads(&list)), &[0xff; 20]);
    assert_eq!(s.expect_reply().await.0, 0);
    drop((head, data));
    s.finish().await;
}

#[tokio::test]
async fn a_chunk_whose_length_differs_from_its_item_gets_garbage_args() {
    let mut s = Scene::new().await;
    for (length, status) in [(501, 0), (504, 0), (500, 4), (502, 4), (505, 4), (508, 4), (0, 4)] {
        let head = s.head(Ask { send: 501, ..Ask::default() });
        let region = s.raw.expose(&[7; 600], Access::RemoteRead);
        s.send(&msg(XID, reads(&[(POSITION, part(&region, 0, length))])), &head);
        assert_eq!(s.expect_reply().await.0, status, "a chunk of {length} for an item of 501");
    }
    s.finish().await;
}

#[tokio::test]
async fn results_use_their_chunks_or_return_them_unused() {
    let mut s = Scene::new().await;
    let region = s.raw.expose(&[0; 2000], Access::RemoteWrite);
    let chunk = [part(&region, 0, 0), part(&region, 0, 300), part(&region, 300, 700)];
    let lengths = |l: &Lists| l.writes[0].iter().map(|s| s.length).collect::<Vec<_>>();

    // Used to the exact byte.
    let stream = s.stream(Ask { receive: 401, ..Ask::default() });
    s.send(&msg(XID, writes(&[&chunk], None)), &stream);
    let (status, lists) = s.expect_reply().await;
    assert_eq!((status, lengths(&lists)), (0, vec![0, 300, 101]));
    // Smaller than the result.
    let stream = s.stream(Ask { receive: 1001, ..Ask::default() });
    s.send(&msg(XID, writes(&[&chunk], Some(&[part(&region, 0, 2000)]))), &stream);
    s.expect_chunk_error().await;
    // On a procedure without a payload result, and on a call that fails.
    let stream = s.stream(Ask::default());
    s.send(&msg(XID, writes(&[&chunk], None)), &stream);
    let (status, lists) = s.expect_reply().await;
    assert_eq!((status, lengths(&lists)), (0, vec![0, 0, 0]));
    s.send(&msg(XID, writes(&[&chunk], None)), &stream[..60]);
    let (status, lists) = s.expect_reply().await;
    assert_eq!((status, lengths(&lists)), (4, vec![0, 0, 0]));
    // An empty chunk keeps the result inline.
    let stream = s.stream(Ask { receive: 401, ..Ask::default() });
    s.send(&msg(XID, writes(&[&[]], None)), &stream);
    let (status, lists) = s.expect_reply().await;
    assert_eq!((status, lengths(&lists)), (0, vec![]));
    drop(region);
    s.finish().await;
}

#[tokio::test]
async fn small_replies_leave_the_reply_chunk_unused_and_large_ones_must_fit() {
    let mut s = Scene::new().await;
    let region = s.raw.expose(&[0; 9000], Access::RemoteWrite);
    let stream = s.stream(Ask::default());
    s.send(&msg(XID, writes(&[], Some(&[part(&region, 0, 9000)]))), &stream);
    let (status, lists) = s.expect_reply().await;
    assert_eq!((status, lists.reply.unwrap()[0].length), (0, 0));

    let stream = s.stream(Ask { reply_head: 5000, ..Ask::default() });
    s.send(&msg(XID, writes(&[], Some(&[part(&region, 0, 1000), part(&region, 1000, 8000)]))), &stream);
    let (h, rest) = s.raw.receive_header().await;
    let Body::NoMsg(lists) = h.body else { panic!("{h}") };
    assert!(rest.is_empty());
    let lengths: Vec<_> = lists.reply.unwrap().iter().map(|s| s.length).collect();
    assert_eq!(lengths, [1000, 24 + 4 + 4 + 5000 + 4 - 1000]);

    s.send(&msg(XID, writes(&[], Some(&[part(&region, 0, 5000)]))), &stream);
    s.expect_chunk_error().await;
    s.send(&msg(XID, Lists::default()), &stream);
    s.expect_chunk_error().await;
    drop(region);
    s.finish().await;
}

#[tokio::test]
async fn unknown_tags_terminate_only_the_connection() {
    for (link, read) in Link::fabric_and_providers().into_iter().flat_map(|l| [(l, true), (l, false)]) {
        for segment in [bogus(100), Segment { offset: u64::MAX - 100, ..bogus(100) }] {
            let mut s = Scene::over(link, ResponderConfig::default()).await;
            let ask = if read {
                Ask { send: 100, ..Ask::default() }
            } else {
                Ask { receive: 100, ..Ask::default() }
            };
            let head = if read { s.head(ask) } else { s.stream(ask) };
            let lists = if read { reads(&[(POSITION, segment)]) } else { writes(&[&[segment]], None) };
            s.send(&msg(XID, lists), &head);
            while s.raw.receive().await.is_ok() {}
            s.finish().await;
        }
    }
}

#[tokio::test]
async fn access_beyond_region_or_access_right_terminates_the_connection() {
    for (link, case) in Link::fabric_and_providers().into_iter().flat_map(|l| [0, 1, 2].map(|c| (l, c))) {
        if case == 0 && !link.checks_reads() {
            continue;
        }
        let mut s = Scene::over(link, ResponderConfig::default()).await;
        let access = if case == 0 { Access::RemoteWrite } else { Access::RemoteRead };
        let region = s.raw.expose(&[0; 500], access);
        let (at, length) = if case == 1 { (1, 500) } else { (0, 500) };
        let ask = if case == 2 {
            Ask { receive: 500, ..Ask::default() }
        } else {
            Ask { send: 500, ..Ask::default() }
        };
        let head = if case == 2 { s.stream(ask) } else { s.head(ask) };
        let segment = part(&region, at, length);
        let lists = if case == 2 { writes(&[&[segment]], None) } else { reads(&[(POSITION, segment)]) };
        s.send(&msg(XID, lists), &head);
        while s.raw.receive().await.is_ok() {}
        drop(region);
        s.finish().await;
    }
}

#[tokio::test]
async fn credits_are_between_one_and_the_limit() {
    let mut s = Scene::with(ResponderConfig { credits: 5, ..Default::default() }).await;
    let stream = s.stream(Ask::default());
    for (asked, granted) in [(0, 1), (1, 1), (4, 4), (6, 5), (u32::MAX, 5)] {
        s.send(&Header { credits: asked, ..msg(XID, Lists::default()) }, &stream);
        let (h, _) = s.raw.receive_header().await;
        assert_eq!(h.credits, granted, "{asked} requested");
    }
    s.finish().await;
}

#[tokio::test]
async fn more_calls_than_receives_terminate_the_connection() {
    let mut s = Scene::with(ResponderConfig { credits: 2, ..Default::default() }).await;
    let stream = s.stream(Ask { later: true, ..Ask::default() });
    for _ in 0..40 {
        s.send(&msg(XID, Lists::default()), &stream);
    }
    while s.raw.receive().await.is_ok() {}
    assert!(s.service().executed.load(Ordering::SeqCst) <= 2 + 4);
    s.finish().await;
}

/// The peer sends the message repeatedly and receives nothing.
async fn flood(message: &[u8]) {
    let memory = Link::Memory { segment: usize::MAX, frame: None };
    let mut s = Scene::over(memory, ResponderConfig { credits: 8, ..Default::default() }).await;
    for _ in 0..12_000 {
        s.raw.send(message);
        s.raw.push().await;
        tokio::task::yield_now().await;
    }
    let stats = s.server.stats.snapshot();
    assert!(stats.sends < 10_000, "the responder queues replies without limit: {stats:?}");
    while s.raw.receive().await.is_ok() {}
    s.finish().await;
}

#[tokio::test]
async fn a_peer_that_sends_calls_and_receives_no_reply_is_disconnected() {
    let stream = message(&arena(), XID, Ask { reply_head: 2000, ..Ask::default() }).head.to_vec();
    flood(&Raw::message(&msg(XID, Lists::default()), &stream)).await;
}

#[tokio::test]
async fn a_peer_that_sends_invalid_calls_and_receives_no_error_is_disconnected() {
    let mut other_version = Raw::message(&msg(XID, Lists::default()), &[]);
    other_version[7] = 9;
    flood(&other_version).await;
    let mut unknown_procedure = Raw::message(&msg(XID, Lists::default()), &[]);
    unknown_procedure[15] = 9;
    flood(&unknown_procedure).await;
}

fn stalls_after(stall_timeout: Duration) -> ConnectionConfig {
    ConnectionConfig { stall_timeout, ..ConnectionConfig::default() }
}

#[tokio::test]
async fn a_peer_that_answers_no_rdma_read_is_disconnected_and_its_sinks_are_freed() {
    let config =
        ResponderConfig { connection: stalls_after(Duration::from_millis(50)), ..Default::default() };
    let memory = Link::Memory { segment: usize::MAX, frame: None };
    let mut s = Scene::over(memory, config).await;
    let region = s.raw.expose(&[7; 9000], Access::RemoteRead);
    let head = s.head(Ask { send: 9000, ..Ask::default() });
    s.send(&msg(XID, reads(&[(POSITION, region.segment())])), &head);
    s.raw.push().await; // Sends, and never receives.
    let end = tokio::time::timeout(Duration::from_secs(20), &mut s.server.task).await;
    let end = end.expect("the responder waits indefinitely").unwrap();
    assert!(matches!(end, Err(ConnectionError::PeerMisbehaved(_))), "{end:?}");
    assert_eq!(s.server.stats.snapshot().calls_in_progress, 0);
    drop(region);
    let Scene { raw, server, other, arena } = s;
    drop((raw, server));
    support::finish(other.0, other.1, &Arena::new(Default::default())).await;
    settled(&arena).await;
}

#[tokio::test]
async fn calls_in_progress_are_completed_after_their_client_disconnects() {
    let mut s = Scene::new().await;
    s.expect_alive().await;
    let stream = s.stream(Ask { later: true, ..Ask::default() });
    for _ in 0..10 {
        s.send(&msg(XID, Lists::default()), &stream);
    }
    while s.service().executed.load(Ordering::SeqCst) < 1 + 10 {
        tokio::task::yield_now().await;
    }
    s.raw.qp.disconnect();
    let service = s.server.service.clone();
    s.finish().await;
    assert_eq!(service.finished.load(Ordering::SeqCst), 10);
}

#[tokio::test]
async fn a_call_without_memory_for_its_data_waits_and_is_executed_once() {
    let mut s = Scene::with(ResponderConfig { max_transfer: 4 << 20, ..Default::default() }).await;
    let ask = Ask { send: 4 << 20, ..Ask::default() };
    let message = message(&s.arena, XID, ask);
    let region = s.raw.expose(&message.payloads[0].data.to_vec(), Access::RemoteRead);
    let head = s.head(ask);
    let mut hoard = Vec::new();
    while let Ok(b) = s.arena.alloc(64 << 10) {
        hoard.push(b);
    }
    s.send(&msg(XID, reads(&[(POSITION, region.segment())])), &head);
    s.raw.push().await;
    while s.server.stats.snapshot().out_of_memory == 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert_eq!(s.service().executed.load(Ordering::SeqCst), 0);
    drop(hoard);
    assert_eq!(s.expect_reply().await.0, 0);
    assert_eq!(s.service().executed.load(Ordering::SeqCst), 1);
    s.expect_alive().await;
    drop((region, message));
    s.finish().await;
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    /// The responder answers or drops any message, or ends the connection, and releases all resources.
    #[test]
    fn arbitrary_calls_are_handled_safely(
        calls in prop::collection::vec((
            any::<bool>(),
            prop::collection::vec((0_u32..30, 0_u32..3, 0_u64..300, 0_u32..300), 0..4),
            prop::collection::vec(prop::collection::vec((0_u32..3, 0_u64..300, 0_u32..300), 0..3), 0..3),
            prop::option::of(prop::collection::vec((0_u32..3, 0_u64..300, 0_u32..300), 0..3)),
            prop::collection::vec(any::<u8>(), 0..80),
            0_usize..120,
        ), 1..8)
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let mut s = Scene::new().await;
            s.expect_alive().await;
            let regions = [
                s.raw.expose(&s.stream(Ask::default()), Access::RemoteRead),
                s.raw.expose(&[1; 256], Access::RemoteWrite),
            ];
            // Mostly valid segments, so that calls pass the first checks.
            let segment = |(region, at, length): (u32, u64, u32)| match regions.get(region as usize) {
                Some(r) => part(r, at % 64, length % 128),
                None => Segment { offset: at, ..bogus(length) },
            };
            for (long, read, write, reply, edit, at) in calls {
                let lists = Lists {
                    reads: read.into_iter().map(|(position, r, o, l)| ReadSegment { position: position * 4, segment: segment((r, o, l)) }).collect(),
                    writes: write.into_iter().map(|c| c.into_iter().map(segment).collect()).collect(),
                    reply: reply.map(|c| c.into_iter().map(segment).collect()),
                };
                let stream = s.stream(Ask { receive: at, ..Ask::default() });
                let mut b = Raw::message(&if long { nomsg(XID, lists) } else { msg(XID, lists) }, &stream);
                // Every second header is modified.
                if edit.len() % 2 == 0 {
                    let at = at.min(b.len());
                    let end = (at + edit.len()).min(b.len());
                    b[at..end].copy_from_slice(&edit[..end - at]);
                }
                s.raw.send(&b);
                tokio::task::yield_now().await;
            }
            drop(regions);
            s.finish().await;
        });
    }
}
