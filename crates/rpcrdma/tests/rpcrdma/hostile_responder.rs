//! A responder that violates the protocol, against the requester: a call returns an error or the connection
//! ends, and no call hangs, returns wrong data or leaves memory exposed.

use std::{sync::Arc, time::Duration};

use millrace_oncrpc::{RpcError, Transport};
use millrace_rdma::{
    Segment, SteeringTag,
    registration::{Invalidation, Registration, Settings, Strategy},
};
use millrace_rpcrdma::{Body, Chunk, Header, Lists, ReadSegment, RequesterConfig, TransportError};

use crate::support::{
    Ask,
    raw::Raw,
    request,
    scene::{READ, Scene, TINY, Waiting, reply_bytes, turns},
};

impl Scene {
    /// Answers the call of `header` correctly.
    fn answer(&mut self, header: &Header) {
        self.reply(header.xid, 32, Lists::default(), &[7]);
    }

    /// Checks that the connection is lost and that its calls fail.
    async fn expect_dead(&mut self) {
        let error = self.call(TINY).await.unwrap().unwrap_err();
        assert!(matches!(error, RpcError::Disconnected { .. }), "{error}");
        assert!(self.client.failure().is_some());
    }
}

async fn first_result(waiting: Waiting) -> Result<u32, RpcError> {
    waiting.await.unwrap().map(|r| r.results().u32().unwrap())
}

async fn expect_bad(waiting: Waiting) {
    let error = waiting.await.unwrap().unwrap_err();
    assert!(matches!(error, RpcError::BadReply { .. }), "{error}");
}

fn lists(header: &Header) -> &Lists {
    match &header.body {
        Body::Msg(l) | Body::NoMsg(l) => l,
        other => panic!("{other:?}"),
    }
}

fn written(segments: &[Segment]) -> Lists {
    Lists { writes: [segments.iter().copied().collect::<Chunk>()].into_iter().collect(), ..Lists::default() }
}

#[tokio::test]
async fn messages_without_an_open_call_are_dropped() {
    let mut s = Scene::new();
    let waiting = s.call(TINY);
    let h = s.receive().await;
    let good = reply_bytes(h.xid, 32, Body::Msg(Lists::default()), &[7]);
    for n in 0..28 {
        s.raw.send(&good[..n]);
        turns().await;
    }
    s.reply(h.xid.wrapping_add(1), 32, Lists::default(), &[1]);
    s.reply(h.xid.wrapping_sub(1), 32, Lists::default(), &[1]);
    for (at, word) in [(4, 2_u32), (12, 2), (12, 3), (12, 77), (16, 5)] {
        let mut bad = good.clone();
        bad[at..at + 4].copy_from_slice(&word.to_be_bytes());
        s.raw.send(&bad);
        turns().await;
    }
    s.raw.send(&good);
    s.raw.send(&good); // A duplicate.
    assert_eq!(first_result(waiting).await.unwrap(), 7);
    s.expect_alive().await;
    assert_eq!(s.client.stats().dropped, 28 + 2 + 5 + 1);
    s.finish().await;
}

#[tokio::test]
async fn chunks_absent_from_the_call_make_the_reply_invalid() {
    let mut s = Scene::new();
    let foreign = Segment { handle: SteeringTag(9), length: 4, offset: 0 };
    for case in 0..8 {
        let waiting = s.call(READ);
        let h = s.receive().await;
        let given = lists(&h).writes[0][0];
        let mut bad = written(&[given]);
        match case {
            0 => bad.writes[0][0].length = 5001,
            1 => bad.writes[0][0].handle.0 ^= 1,
            2 => bad.writes[0][0].offset += 1,
            3 => bad.writes[0].push(given),
            4 => bad.writes.push([given].into_iter().collect()),
            5 => bad.reads.push(ReadSegment { position: 24, segment: foreign }),
            6 => bad.reply = Some([foreign].into_iter().collect()),
            _ => bad.writes[0][0] = foreign,
        }
        s.reply(h.xid, 32, bad, &[7, 0, 5000]);
        expect_bad(waiting).await;
        assert_eq!(s.client.exposed(), (0, 0));
    }
    s.expect_alive().await;
    s.finish().await;
}

#[tokio::test]
async fn a_long_reply_must_be_in_the_reply_chunk() {
    let mut s = Scene::new();
    for case in 0..5 {
        let waiting = s.call(Ask { reply_head: 6000, ..TINY });
        let h = s.receive().await;
        let given = lists(&h).reply.clone().unwrap()[0];
        let with = |length| Lists {
            reply: Some([Segment { length, ..given }].into_iter().collect()),
            ..Lists::default()
        };
        let header = match case {
            0 => Body::NoMsg(Lists::default()),
            1 => Body::NoMsg(with(0)),
            2 => Body::NoMsg(with(given.length + 1)),
            3 => Body::Msg(with(24)),
            _ => Body::NoMsg(with(24)), // Reports a message, but wrote none with this XID.
        };
        let words = [h.xid, 1, 0, 0, 0, 0, 7];
        let rest: Vec<u8> = words.iter().flat_map(|w| w.to_be_bytes()).collect();
        if case == 4 {
            s.raw.write(&[0xff; 24], given);
        }
        s.raw.send(&Raw::message(&Header::new(h.xid, 32, header), if case == 3 { &rest } else { &[] }));
        expect_bad(waiting).await;
    }
    s.expect_alive().await;
    s.finish().await;
}

#[tokio::test]
async fn messages_other_than_replies_are_invalid_replies() {
    let mut s = Scene::new();
    for case in 0..3 {
        let waiting = s.call(TINY);
        let h = s.receive().await;
        let mut b = reply_bytes(h.xid, 32, Body::Msg(Lists::default()), &[7]);
        match case {
            0 => b.truncate(28),      // no message after the header
            1 => b.truncate(28 + 12), // half a reply header
            _ => b[28] ^= 1,          // another XID
        }
        s.raw.send(&b);
        expect_bad(waiting).await;
    }
    s.expect_alive().await;
    s.finish().await;
}

#[tokio::test]
async fn a_result_shorter_than_its_length_word_is_an_error() {
    let mut s = Scene::new();
    for (claimed, word) in [(100, 101_u32), (0, 100), (100, 96)] {
        let waiting = s.call(READ);
        let h = s.receive().await;
        let given = lists(&h).writes[0][0];
        s.raw.write(&[1; 100], given);
        s.reply(h.xid, 32, written(&[Segment { length: claimed, ..given }]), &[7, 0, word]);
        let reply = waiting.await.unwrap().unwrap();
        let mut d = reply.results();
        assert_eq!((d.u32(), d.u32()), (Ok(7), Ok(0)));
        assert!(d.payload(5000).is_err(), "claimed {claimed}, length word {word}");
    }
    s.finish().await;
}

#[tokio::test]
async fn transport_errors_end_only_their_call() {
    let mut s = Scene::new();
    s.expect_alive().await;
    let other = s.call(TINY);
    let other_header = s.receive().await;
    let answers: [(_, &[&str]); 2] = [
        (TransportError::Chunk, &["ERR_CHUNK", "use smaller transfers", "over TCP"]),
        (TransportError::Version { low: 2, high: 3 }, &["ERR_VERS", "2 to 3", "version 1", "over TCP"]),
    ];
    for (error, says) in answers {
        let waiting = s.call(READ);
        let h = s.receive().await;
        s.raw.send(&Raw::message(&Header::new(h.xid, 32, Body::Error(error)), &[]));
        let e = waiting.await.unwrap().unwrap_err();
        assert!(matches!(&e, RpcError::Unsupported(_)), "{e}");
        assert!(says.iter().all(|part| e.to_string().contains(part)), "{e}");
    }
    s.answer(&other_header);
    assert_eq!(first_result(other).await.unwrap(), 7);
    s.finish().await;
}

#[tokio::test]
async fn a_tag_of_the_call_may_be_invalidated_by_its_reply() {
    let mut s = Scene::new();
    let waiting = s.call(READ);
    let h = s.receive().await;
    let given = lists(&h).writes[0][0];
    s.raw.write(&[5; 4000], given);
    let b = reply_bytes(h.xid, 32, Body::Msg(written(&[Segment { length: 4000, ..given }])), &[7, 0, 4000]);
    s.raw.send_invalidating(&b, Some(given.handle));
    let reply = waiting.await.unwrap().unwrap();
    let mut d = reply.results();
    d.raw(8).unwrap();
    assert_eq!(d.payload(5000).unwrap().to_vec(), [5; 4000]);
    drop(reply);
    assert_eq!(s.client.stats().remote_invalidations, 1);
    s.expect_alive().await;
    s.finish().await;
}

#[tokio::test]
async fn invalidating_a_tag_of_another_call_terminates_the_connection() {
    let mut s = Scene::new();
    s.expect_alive().await;
    let (victim, offender) = (s.call(READ), s.call(TINY));
    let (a, b) = (s.receive().await, s.receive().await);
    let (victims, offenders) = if lists(&a).writes.is_empty() { (b, a) } else { (a, b) };
    let tag = lists(&victims).writes[0][0].handle;
    let bytes = reply_bytes(offenders.xid, 32, Body::Msg(Lists::default()), &[7]);
    s.raw.send_invalidating(&bytes, Some(tag));
    for waiting in [victim, offender] {
        let e = waiting.await.unwrap().unwrap_err();
        assert!(matches!(e, RpcError::Disconnected { .. }), "{e}");
    }
    s.expect_dead().await;
    s.finish().await;
}

#[tokio::test]
async fn grants_are_clamped_to_one_and_the_configured_limit() {
    let mut s = Scene::with(RequesterConfig { credits: 3, ..Default::default() });
    // Before the first reply one call is in flight; then as many as are granted, within the configured limit.
    for (granted, in_flight) in [(0, 1), (1, 1), (u32::MAX, 3), (2, 2)] {
        let first = s.call(TINY);
        let h = s.receive().await;
        s.reply(h.xid, granted, Lists::default(), &[7]);
        assert_eq!(first_result(first).await.unwrap(), 7);
        let calls: Vec<_> = (0..6).map(|_| s.call(TINY)).collect();
        let mut open = Vec::new();
        for _ in 0..in_flight {
            open.push(s.receive().await);
        }
        turns().await;
        assert_eq!(s.client.stats().calls - s.client.stats().replies, in_flight, "{granted} granted");
        for _ in 0..6 {
            let h = if open.is_empty() { s.receive().await } else { open.remove(0) };
            s.reply(h.xid, granted, Lists::default(), &[7]);
        }
        for c in calls {
            assert_eq!(first_result(c).await.unwrap(), 7);
        }
    }
    s.finish().await;
}

#[tokio::test(start_paused = true)]
async fn an_unanswered_call_times_out_and_others_continue() {
    // Memory of the timed-out call is not cached by any strategy: the responder may still write to it.
    for strategy in [Strategy::Dynamic, Strategy::Fast, Strategy::Cache] {
        let registration = Arc::new(Registration::new(Settings {
            invalidation: Invalidation::Batched(9),
            ..Settings::new(strategy)
        }));
        let call_timeout = Duration::from_secs(5);
        let mut s = Scene::with(RequesterConfig { call_timeout, registration, ..Default::default() });
        s.expect_alive().await;
        let silent = s.call(READ);
        let h = s.receive().await;
        let e = silent.await.unwrap().unwrap_err();
        assert!(matches!(e, RpcError::TimedOut { .. }), "{e}");
        assert_eq!(s.client.exposed(), (0, 0));
        s.expect_alive().await;
        // The late reply has no call.
        s.answer(&h);
        s.expect_alive().await;
        s.finish().await;
    }
}

#[tokio::test(start_paused = true)]
async fn timed_out_calls_that_hold_all_credits_terminate_the_connection() {
    let mut s = Scene::with(RequesterConfig { call_timeout: Duration::from_secs(5), ..Default::default() });
    let (sent, queued) = (s.call(READ), s.call(TINY));
    for waiting in [sent, queued] {
        let e = waiting.await.unwrap().unwrap_err();
        assert!(matches!(e, RpcError::TimedOut { .. }), "{e}");
    }
    s.expect_dead().await;
    s.finish().await;
}

#[tokio::test]
async fn the_memory_of_a_cancelled_call_is_revoked_at_its_reply() {
    let mut s = Scene::new();
    let cancelled = s.call(READ);
    let h = s.receive().await;
    let given = lists(&h).writes[0][0];
    cancelled.abort();
    drop(cancelled.await);
    let next = s.call(TINY); // Waits: the only credit is in use.
    turns().await;
    assert_eq!((s.client.stats().calls, s.client.exposed().0), (1, 1));
    // The responder does not observe the cancellation.
    s.raw.write(&[5; 4000], given);
    let b = reply_bytes(h.xid, 32, Body::Msg(written(&[Segment { length: 4000, ..given }])), &[7, 0, 4000]);
    s.raw.send_invalidating(&b, Some(given.handle));
    let h = s.receive().await;
    assert_eq!(s.client.exposed(), (0, 0));
    s.answer(&h);
    assert_eq!(first_result(next).await.unwrap(), 7);
    s.finish().await;
}

#[tokio::test(start_paused = true)]
async fn the_memory_of_an_unanswered_cancelled_call_is_revoked_at_its_timeout() {
    let mut s = Scene::with(RequesterConfig { call_timeout: Duration::from_secs(5), ..Default::default() });
    s.expect_alive().await;
    let cancelled = s.call(READ);
    s.receive().await;
    cancelled.abort();
    drop(cancelled.await);
    assert_eq!(s.client.exposed().0, 1);
    tokio::time::sleep(Duration::from_secs(6)).await;
    assert_eq!(s.client.exposed(), (0, 0));
    s.expect_alive().await;
    s.finish().await;
}

#[tokio::test]
async fn queued_calls_can_be_cancelled() {
    let mut s = Scene::new();
    let first = s.call(TINY);
    let h = s.receive().await;
    let (second, third) = (s.call(TINY), s.call(TINY));
    tokio::task::yield_now().await;
    second.abort();
    drop(second.await);
    s.answer(&h);
    assert_eq!(first_result(first).await.unwrap(), 7);
    let h = s.receive().await;
    s.answer(&h);
    assert_eq!(first_result(third).await.unwrap(), 7);
    assert_eq!(s.client.stats().calls, 2);
    s.finish().await;
}

#[tokio::test]
async fn a_lost_connection_fails_every_call_and_returns_all_memory() {
    let mut s = Scene::new();
    s.expect_alive().await;
    let calls: Vec<_> = (0..50).map(|_| s.call(Ask { send: 8000, receive: 8000, ..TINY })).collect();
    s.receive().await;
    s.raw.qp.disconnect();
    for c in calls {
        let e = c.await.unwrap().unwrap_err();
        assert!(matches!(e, RpcError::Disconnected { .. }), "{e}");
    }
    s.expect_dead().await;
    s.finish().await;
}

#[tokio::test]
async fn close_fails_open_calls_and_rejects_new_ones() {
    let mut s = Scene::new();
    let waiting = s.call(READ);
    s.receive().await;
    s.client.close();
    let e = waiting.await.unwrap().unwrap_err();
    assert!(matches!(e, RpcError::Disconnected { .. }), "{e}");
    s.expect_dead().await;
    s.finish().await;
}

#[test]
fn calls_fail_when_the_runtime_of_the_connection_ends() {
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let first = runtime();
    let (client, raw, arena) = first.block_on(async {
        let s = Scene::new();
        tokio::task::yield_now().await;
        (s.client, s.raw, s.arena)
    });
    let call = client.submit(request(&arena, READ));
    drop(first);
    let e = runtime().block_on(call).unwrap_err();
    assert!(matches!(e, RpcError::Disconnected { .. }), "{e}");
    assert_eq!(client.exposed(), (0, 0));
    drop((client, raw));
    assert_eq!(arena.stats().in_use, 0);
}
