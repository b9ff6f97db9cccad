//! A responder that sends invalid Read chunks, against the requester: the call returns an error without
//! hanging or exceeding its memory, and every reply gets an RDMA_DONE.

use millrace_oncrpc::{Reply, RpcError, Transport};
use millrace_rdma::{Access, ExposedRegion, Segment, SteeringTag};
use millrace_read_read::{Padding, ReadRead, Requester};
use millrace_rpcrdma::{Body, Header, Lists, Protocol, ReadSegment, RequesterConfig, RequesterTransport};

use crate::{
    params,
    support::{
        self, Ask, fabric, pattern,
        raw::Raw,
        request, rt,
        scene::{READ, TINY, Waiting, reply_bytes, turns},
    },
    words,
};

type Scene = support::scene::Scene<Requester>;

/// Position of the payload of a reply to [`READ`].
const POSITION: u32 = 36;

/// A requester and a responder of the Read-Read design.
fn scene(config: RequesterConfig) -> (Scene, ReadRead) {
    with(config, ReadRead::default())
}

fn with(config: RequesterConfig, protocol: ReadRead) -> (Scene, ReadRead) {
    let arena = support::arena();
    let (c, s) = fabric::pair(usize::MAX, &protocol.connect_params(&config), &params());
    let raw = Raw::new(Box::new(s), &arena);
    let client = Requester::from_queue_pair(Box::new(c), rt(), arena.clone(), config, protocol.clone());
    (Scene { client: client.unwrap(), raw, arena }, protocol)
}

impl Scene {
    async fn finish(self) {
        assert_eq!(self.client.exposed(), (0, 0));
        self.ended().await;
    }

    async fn expect_done(&mut self, xid: u32) {
        let bytes = self.raw.receive().await.unwrap();
        assert_eq!(words(&bytes), [xid, 1, 8, 3]); // At least 8 credits are requested.
    }
}

fn reads(list: &[(u32, Segment)]) -> Lists {
    let reads = list.iter().map(|&(position, segment)| ReadSegment { position, segment });
    Lists { reads: reads.collect(), ..Lists::default() }
}

fn part(of: &ExposedRegion, at: u64, length: u32) -> Segment {
    let s = of.segment();
    Segment { offset: s.offset + at, length, ..s }
}

async fn expect_bad(waiting: Waiting, case: usize) {
    let error = waiting.await.unwrap().unwrap_err();
    assert!(matches!(error, RpcError::BadReply { .. }), "{case}: {error}");
}

fn payload(reply: &Reply) -> Result<Vec<u8>, millrace_xdr::XdrError> {
    let mut d = reply.results();
    d.raw(8)?;
    d.payload(8 << 20).map(|v| v.to_vec())
}

#[tokio::test]
async fn a_result_is_read_into_the_callers_buffer_and_acknowledged() {
    let (mut s, protocol) = scene(RequesterConfig::default());
    let region = s.raw.expose(&pattern(3, 5000), Access::RemoteRead);
    let mut request = request(&s.arena, READ);
    let buffer = s.arena.alloc(5000).unwrap();
    let at = buffer.address();
    request.reply.payload = Some(buffer);
    let waiting = tokio::spawn(s.client.submit(request));
    let h = s.receive().await;
    let Body::Msg(lists) = &h.body else { panic!("{h}") };
    assert!(lists.is_empty(), "a call of this design has no chunks for its results: {h}");
    s.reply(h.xid, 32, reads(&[(POSITION, part(&region, 0, 4097))]), &[7, 0, 4097]);
    s.expect_done(h.xid).await;
    let reply = waiting.await.unwrap().unwrap();
    assert_eq!(payload(&reply).unwrap(), pattern(3, 5000)[..4097]);
    assert_eq!(reply.message.payloads[0].data.iter().next().unwrap().address(), at);
    let (stats, counts) = (s.client.stats(), &protocol.counts);
    let (reads, done) = (counts.result_reads.get(), counts.done_sent.get());
    assert_eq!((reads, done, stats.placed_bytes), (1, 1, 4097));
    assert_eq!(stats.exposure.peak_bytes, 0);
    drop((reply, region));
    s.expect_alive().await;
    s.finish().await;
}

#[tokio::test]
async fn a_result_in_several_segments_arrives_whole() {
    let (mut s, _) = scene(RequesterConfig::default());
    let region = s.raw.expose(&pattern(3, 5000), Access::RemoteRead);
    let waiting = s.call(READ);
    let h = s.receive().await;
    let list = [
        part(&region, 0, 0),
        part(&region, 0, 13),
        part(&region, 13, 4000),
        part(&region, 4013, 0),
        part(&region, 4013, 987),
    ];
    s.reply(h.xid, 32, reads(&list.map(|s| (POSITION, s))), &[7, 0, 5000]);
    s.expect_done(h.xid).await;
    assert_eq!(payload(&waiting.await.unwrap().unwrap()).unwrap(), pattern(3, 5000));
    drop(region);
    s.finish().await;
}

#[tokio::test]
async fn a_long_reply_is_read_from_its_position_zero_chunk() {
    let (mut s, _) = scene(RequesterConfig::default());
    let waiting = s.call(Ask { reply_head: 3000, ..READ });
    let h = s.receive().await;
    let head = reply_bytes(h.xid, 32, Body::Msg(Lists::default()), &[7, 0, 5000]);
    let head = s.raw.expose(&head[28..], Access::RemoteRead);
    let data = s.raw.expose(&pattern(3, 5000), Access::RemoteRead);
    let lists = reads(&[(POSITION, data.segment()), (0, part(&head, 0, 20)), (0, part(&head, 20, 16))]);
    s.raw.send(&Raw::message(&Header::new(h.xid, 32, Body::NoMsg(lists)), &[]));
    s.expect_done(h.xid).await;
    assert_eq!(payload(&waiting.await.unwrap().unwrap()).unwrap(), pattern(3, 5000));
    drop((head, data));
    s.finish().await;
}

#[tokio::test]
async fn read_chunks_without_memory_in_the_call_make_the_reply_invalid_and_are_acknowledged() {
    let (mut s, protocol) = scene(RequesterConfig::default());
    let region = s.raw.expose(&[9; 20_000], Access::RemoteRead);
    let chunk = || [part(&region, 0, 100)].into_iter().collect::<millrace_rpcrdma::Chunk>();
    for case in 0..9 {
        let waiting = s.call(if case == 0 { TINY } else { READ });
        let h = s.receive().await;
        let whole = part(&region, 0, 5000);
        let (body, done) = match case {
            0 => (Body::Msg(reads(&[(POSITION, part(&region, 0, 4))])), true), // no payload was requested
            1 => (Body::Msg(reads(&[(POSITION, part(&region, 0, 5001))])), true),
            2 => (Body::Msg(reads(&[(POSITION, whole), (POSITION, part(&region, 0, 1))])), true),
            3 => (
                Body::Msg(reads(&[(POSITION, part(&region, 0, 40)), (POSITION + 80, part(&region, 0, 4))])),
                true,
            ),
            4 => (Body::Msg(reads(&[(0, part(&region, 0, 40))])), true), // beside an inline message
            5 => (Body::NoMsg(reads(&[(0, part(&region, 0, 9000))])), true), // longer than any reply
            6 => (Body::NoMsg(reads(&[(POSITION, whole)])), true),       // no message
            7 => (Body::Msg(Lists { writes: [chunk()].into_iter().collect(), ..Lists::default() }), false),
            _ => (Body::Msg(Lists { reply: Some(chunk()), ..reads(&[(POSITION, whole)]) }), true),
        };
        s.raw.send(&reply_bytes(h.xid, 32, body, &[7, 0, 5000]));
        expect_bad(waiting, case).await;
        if done {
            s.expect_done(h.xid).await;
        }
    }
    drop(region);
    s.expect_alive().await;
    assert_eq!(protocol.counts.result_reads.get(), 0);
    s.finish().await;
}

#[tokio::test]
async fn a_chunk_of_wrong_position_or_length_is_not_a_result() {
    let (mut s, _) = scene(RequesterConfig::default());
    let region = s.raw.expose(&[9; 5000], Access::RemoteRead);
    for (position, length, word) in
        [(POSITION - 4, 400, 400), (POSITION, 400, 401), (POSITION, 400, 395), (POSITION, 0, 400)]
    {
        let waiting = s.call(READ);
        let h = s.receive().await;
        s.reply(h.xid, 32, reads(&[(position, part(&region, 0, length))]), &[7, 0, word]);
        s.expect_done(h.xid).await;
        let reply = waiting.await.unwrap().unwrap();
        assert!(payload(&reply).is_err(), "{position} {length} {word}");
    }
    drop(region);
    s.expect_alive().await;
    s.finish().await;
}

#[tokio::test]
async fn a_list_of_too_many_segments_makes_the_reply_invalid() {
    let (mut s, _) = scene(RequesterConfig::default());
    let region = s.raw.expose(&[9; 5000], Access::RemoteRead);
    for (segments, fits) in [(16, true), (17, false)] {
        let waiting = s.call(READ);
        let h = s.receive().await;
        let list: Vec<_> = (0..segments).map(|i| (POSITION, part(&region, i, 1))).collect();
        s.reply(h.xid, 32, reads(&list), &[7, 0, segments as u32]);
        match waiting.await.unwrap() {
            Ok(reply) => assert_eq!((payload(&reply).unwrap().len(), fits), (16, true)),
            Err(e) => assert!(matches!(e, RpcError::BadReply { .. }) && !fits, "{e}"),
        }
        s.expect_done(h.xid).await;
    }
    drop(region);
    s.expect_alive().await;
    s.finish().await;
}

#[tokio::test]
async fn an_unknown_tag_terminates_the_connection() {
    let (mut s, _) = scene(RequesterConfig::default());
    let waiting = s.call(READ);
    let h = s.receive().await;
    let bogus = Segment { handle: SteeringTag(77), length: 400, offset: 0 };
    s.reply(h.xid, 32, reads(&[(POSITION, bogus)]), &[7, 0, 400]);
    let e = waiting.await.unwrap().unwrap_err();
    assert!(matches!(e, RpcError::Disconnected { .. }), "{e}");
    s.finish().await;
}

#[tokio::test]
async fn a_second_reply_while_the_first_is_read_is_dropped() {
    let (mut s, protocol) = scene(RequesterConfig::default());
    let region = s.raw.expose(&pattern(3, 5000), Access::RemoteRead);
    let waiting = s.call(READ);
    let h = s.receive().await;
    let bytes = reply_bytes(h.xid, 32, Body::Msg(reads(&[(POSITION, region.segment())])), &[7, 0, 5000]);
    s.raw.send(&bytes);
    s.raw.send(&bytes);
    s.raw.send(&bytes);
    s.expect_done(h.xid).await;
    assert_eq!(payload(&waiting.await.unwrap().unwrap()).unwrap(), pattern(3, 5000));
    drop(region);
    s.expect_alive().await;
    assert_eq!((s.client.stats().dropped, protocol.counts.done_sent.get()), (2, 1));
    s.finish().await;
}

#[tokio::test]
async fn the_result_of_a_cancelled_call_is_acknowledged_unread() {
    let (mut s, protocol) = scene(RequesterConfig::default());
    let region = s.raw.expose(&[9; 5000], Access::RemoteRead);
    let cancelled = s.call(READ);
    let h = s.receive().await;
    cancelled.abort();
    drop(cancelled.await);
    let next = s.call(TINY); // Waits: the only credit is in use.
    turns().await;
    s.reply(h.xid, 32, reads(&[(POSITION, region.segment())]), &[7, 0, 5000]);
    s.expect_done(h.xid).await;
    let h = s.receive().await;
    s.reply(h.xid, 32, Lists::default(), &[7, 0, 0]);
    assert_eq!(next.await.unwrap().unwrap().results().u32(), Ok(7));
    assert_eq!(protocol.counts.result_reads.get(), 0);
    drop(region);
    s.finish().await;
}

#[tokio::test]
async fn a_call_whose_result_is_being_read_keeps_its_credit() {
    let (mut s, _) = scene(RequesterConfig { credits: 1, ..Default::default() });
    let region = s.raw.expose(&[9; 5000], Access::RemoteRead);
    let (first, second) = (s.call(READ), s.call(READ));
    for _ in 0..2 {
        let h = s.receive().await;
        s.reply(h.xid, 32, reads(&[(POSITION, region.segment())]), &[7, 0, 5000]);
        // The acknowledgement is sent before the next call.
        assert_eq!(words(&s.raw.receive().await.unwrap()), [h.xid, 1, 1, 3]);
    }
    assert!(first.await.unwrap().is_ok() && second.await.unwrap().is_ok());
    drop(region);
    s.finish().await;
}

#[tokio::test]
async fn inline_calls_are_padded_if_configured() {
    let padding = Some(Padding { align: 512, threshold: 1000 });
    let (mut s, _) = with(RequesterConfig::default(), ReadRead { padding, ..ReadRead::default() });
    let waiting = s.call(Ask { send: 1001, ..TINY });
    let bytes = s.raw.receive().await.unwrap();
    let w = words(&bytes);
    assert_eq!((&w[1..9], w[9]), (&[1, 8, 2, 512, 1000, 0, 0, 0][..], w[0]));
    assert_eq!(w[24], 1001);
    assert!(bytes[100..512].iter().all(|b| *b == 0));
    assert_eq!((&bytes[512..1513], &bytes[1513..]), (&pattern(2, 1001)[..], &[0; 3][..]));
    s.reply(w[0], 32, Lists::default(), &[7, 0, 0]);
    assert!(waiting.await.unwrap().is_ok());
    // Below the threshold, and where pad bytes do not fit: without padding.
    for send in [999, 3900] {
        let waiting = s.call(Ask { send, ..TINY });
        let h = s.receive().await;
        assert!(matches!(h.body, Body::Msg(_)), "{h}");
        s.reply(h.xid, 32, Lists::default(), &[7, 0, 0]);
        assert!(waiting.await.unwrap().is_ok());
    }
    s.finish().await;
}

#[tokio::test]
async fn a_padded_reply_is_dropped_as_an_unknown_procedure() {
    let (mut s, _) = scene(RequesterConfig::default());
    let waiting = s.call(READ);
    let h = s.receive().await;
    let words = [h.xid, 1, 32, 2, 128, 64, 0, 0, 0];
    let mut bytes: Vec<u8> = words.into_iter().flat_map(u32::to_be_bytes).collect();
    bytes.extend(&reply_bytes(h.xid, 32, Body::Msg(Lists::default()), &[7, 0, 100])[28..]);
    bytes.resize(128, 0);
    bytes.extend([5; 100]);
    s.raw.send(&bytes);
    s.reply(h.xid, 32, Lists::default(), &[7, 0, 0]);
    assert_eq!(payload(&waiting.await.unwrap().unwrap()).unwrap(), [0; 0]);
    assert_eq!(s.client.stats().dropped, 1);
    s.finish().await;
}
