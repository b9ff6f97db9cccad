//! Calls to a requester, from a responder that behaves well or not.

use std::sync::{
    Arc,
    atomic::{AtomicU32, Ordering},
};

use millrace_oncrpc::{CallbackHandler, Message, ReplyHeader, ReplyStatus, Transport};
use millrace_rdma::{ConnectParams, ConnectionError, Segment, SteeringTag};
use millrace_rpcrdma::{Body, Header, Lists, PrivateData, ReadSegment, RequesterConfig};
use millrace_xdr::{Arena, Decoder, Encoder};

use crate::support::{
    raw::Raw,
    scene::{Scene, TINY, rpc_reply, turns},
};

/// Credits that the requester grants.
const GRANTED: u32 = 2;

/// Answers calls with their argument, except an argument of 0, which gets no reply.
struct Handler {
    calls: AtomicU32,
    /// Bytes of a reply beside its header and the argument.
    more: usize,
    arena: Arena,
}

impl CallbackHandler for Handler {
    fn answer(&self, call: &Message) -> Option<Message> {
        self.calls.fetch_add(1, Ordering::SeqCst);
        let mut d = Decoder::new(call);
        let words: Vec<u32> = (0..11).map(|_| d.u32().unwrap()).collect();
        let (xid, argument) = (words[0], words[10]);
        let mut e = Encoder::new(&self.arena, 4096);
        e.put(&ReplyHeader { xid, status: ReplyStatus::Success });
        e.put_u32(argument);
        e.put_raw(&vec![0; self.more]);
        (argument != 0).then(|| e.finish().unwrap())
    }
}

/// A requester whose replies have `more` bytes.
fn scene(more: usize) -> (Scene, Arc<Handler>) {
    let theirs = PrivateData { remote_invalidate: true, send_size: 4096, receive_size: 4096 };
    let params = ConnectParams { private_data: theirs.encode().to_vec(), ..ConnectParams::default() };
    let scene = Scene::over(RequesterConfig::default(), &params);
    let handler = Arc::new(Handler { calls: AtomicU32::new(0), more, arena: scene.arena.clone() });
    scene.client.handle_callbacks(&(Arc::clone(&handler) as Arc<dyn CallbackHandler>));
    (scene, handler)
}

/// An RPC call with one argument, as a server sends it.
fn callback(xid: u32, argument: u32, lists: Lists) -> Vec<u8> {
    let words = [xid, 0, 2, super::PROGRAM, 1, 1, 0, 0, 0, 0, argument];
    let message: Vec<u8> = words.iter().flat_map(|w| w.to_be_bytes()).collect();
    Raw::message(&Header::new(xid, 16, Body::Msg(lists)), &message)
}

/// Makes a call of the requester, and answers it.
async fn expect_alive(s: &mut Scene) {
    let waiting = s.call(TINY);
    let call = s.receive().await;
    let reply = Header::new(call.xid, 32, Body::Msg(Lists::default()));
    s.raw.send(&Raw::message(&reply, &rpc_reply(call.xid, &[7])));
    assert_eq!(waiting.await.unwrap().unwrap().results().u32().unwrap(), 7);
}

/// The next message is the reply to the callback `xid` with this result.
async fn expect_reply(s: &mut Scene, xid: u32, result: u32) {
    let (header, message) = s.raw.receive_header().await;
    assert_eq!(header, Header::new(xid, GRANTED, Body::Msg(Lists::default())));
    assert_eq!(message, rpc_reply(xid, &[result]));
}

#[tokio::test]
async fn a_call_of_the_server_is_answered_between_calls_with_its_xid() {
    let (mut s, handler) = scene(0);
    expect_alive(&mut s).await;
    for round in 1..50 {
        let waiting = s.call(TINY);
        let call = s.receive().await;
        // The XIDs of the directions are independent.
        s.raw.send(&callback(call.xid, round, Lists::default()));
        s.raw.send(&callback(call.xid ^ 1, round + 1, Lists::default()));
        expect_reply(&mut s, call.xid, round).await;
        expect_reply(&mut s, call.xid ^ 1, round + 1).await;
        let reply = Header::new(call.xid, 32, Body::Msg(Lists::default()));
        s.raw.send(&Raw::message(&reply, &rpc_reply(call.xid, &[round])));
        assert_eq!(waiting.await.unwrap().unwrap().results().u32().unwrap(), round);
    }
    assert_eq!(handler.calls.load(Ordering::SeqCst), 98);
    assert_eq!(s.client.stats().dropped, 0);
    s.finish().await;
}

#[tokio::test]
async fn calls_that_get_no_reply_are_dropped_and_their_receives_posted_again() {
    let segment = Segment { handle: SteeringTag(1), length: 64, offset: 0 };
    let with_chunks = [
        Lists { reads: [ReadSegment { position: 4, segment }].into_iter().collect(), ..Lists::default() },
        Lists { writes: [[segment].into_iter().collect()].into_iter().collect(), ..Lists::default() },
        Lists { reply: Some([segment].into_iter().collect()), ..Lists::default() },
    ];
    let (mut s, handler) = scene(0);
    expect_alive(&mut s).await;
    let mut dropped = 0;
    for _ in 0..20 {
        for lists in &with_chunks {
            s.raw.send(&callback(5, 1, lists.clone()));
            turns().await;
        }
        // The handler has no reply; the XIDs of header and message differ; the message ends after its type.
        s.raw.send(&callback(5, 0, Lists::default()));
        turns().await;
        let mut mixed = callback(5, 1, Lists::default());
        mixed[31] ^= 1;
        s.raw.send(&mixed);
        turns().await;
        dropped += 5;
    }
    assert_eq!(
        handler.calls.load(Ordering::SeqCst),
        20,
        "only calls with an XID and without chunks are handled"
    );
    expect_alive(&mut s).await;
    assert_eq!(s.client.stats().dropped, dropped);
    s.finish().await;
}

#[tokio::test]
async fn without_a_handler_calls_are_dropped() {
    let mut s = Scene::over(RequesterConfig::default(), &ConnectParams::default());
    expect_alive(&mut s).await;
    for xid in 0..20 {
        s.raw.send(&callback(xid, 1, Lists::default()));
        turns().await;
    }
    expect_alive(&mut s).await;
    assert_eq!(s.client.stats().dropped, 20);
    s.finish().await;
}

/// Without private data the server receives messages of 1024 bytes.
#[tokio::test]
async fn a_reply_longer_than_the_servers_receives_is_dropped() {
    for (more, fits) in [(1024 - 28 - 24 - 4, true), (1024 - 28 - 24, false)] {
        let mut s = Scene::over(RequesterConfig::default(), &ConnectParams::default());
        let handler = Handler { calls: AtomicU32::new(0), more, arena: s.arena.clone() };
        s.client.handle_callbacks(&(Arc::new(handler) as Arc<dyn CallbackHandler>));
        expect_alive(&mut s).await;
        s.raw.send(&callback(1, 1, Lists::default()));
        turns().await;
        if fits {
            assert_eq!(s.receive().await.xid, 1);
        }
        expect_alive(&mut s).await;
        assert_eq!(s.client.stats().dropped, u64::from(!fits));
        s.finish().await;
    }
}

#[tokio::test]
async fn a_call_that_invalidates_memory_costs_the_connection() {
    let (mut s, handler) = scene(0);
    expect_alive(&mut s).await;
    s.raw.send_invalidating(&callback(1, 1, Lists::default()), Some(SteeringTag(9)));
    let end = s.raw.receive().await.unwrap_err();
    assert!(!matches!(end, ConnectionError::Local(_)), "{end}");
    assert_eq!(handler.calls.load(Ordering::SeqCst), 0);
    s.finish().await;
}
