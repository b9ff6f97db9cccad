//! Calls in the reverse direction (RFC 8167): the server calls the client on the queue pair of the client's calls. Here the
//! responder is tested; `requester` tests the other end.

mod requester;

use std::{collections::BTreeSet, net::Ipv4Addr, sync::atomic::Ordering, time::Duration};

use millrace_admission::{Account, Budget, BudgetConfig};
use millrace_buffer::Arena;
use millrace_buffer::slot_bytes;
use millrace_oncrpc::{
    Callbacks, Credential, Message, Reply, ReplyHeader, ReplyStatus, RpcError, call_header,
};
use millrace_rdma::{ConnectParams, ConnectionError, Segment, SteeringTag};
use millrace_rpcrdma::{Body, Header, Lists, PrivateData, ResponderConfig, TransportError};
use millrace_xdr::Encoder;

use crate::support::{
    Ask, Echo, Link, Server, arena, message, queue_pairs,
    raw::{Raw, msg},
    rt, serve_with, settled,
};

const PROGRAM: u32 = 0x4000_0000;
const LIMIT: Duration = Duration::from_secs(20);
/// Credits that the responder uses.
const CREDITS: usize = 16;

type Call = tokio::task::JoinHandle<Result<Reply, RpcError>>;

/// A client that answers each callback by hand, and its server.
struct Scene {
    raw: Raw,
    server: Server,
    callbacks: Callbacks,
    arena: Arena,
}

impl Scene {
    async fn new(link: Link) -> Self {
        Self::with(link, 4096, Account::unlimited()).await
    }

    /// A client with receives of `inline` bytes, and a server with memory of `account`.
    async fn with(link: Link, inline: usize, account: Account) -> Self {
        let (arena, config) = (arena(), ResponderConfig::default());
        let private_data = PrivateData { send_size: inline, receive_size: inline, ..config.private_data() };
        let params =
            ConnectParams { private_data: private_data.encode().to_vec(), ..ConnectParams::default() };
        let accepting = config.connect_params(ConnectParams::default());
        let (c, s) = queue_pairs(link, &arena, params, accepting).await;
        let callbacks = Callbacks::new((Ipv4Addr::LOCALHOST, 1).into());
        let service = Echo { callbacks: Some(callbacks.clone()), ..Echo::default() };
        let server = serve_with(s, &arena, config, account, service);
        let mut scene = Self { raw: Raw::new(c, &arena), server, callbacks, arena };
        scene.echo(0x55).await; // The client calls first.
        scene
    }

    /// Begins a call of `length` bytes after the header.
    fn call(&self, length: usize) -> Call {
        let mut e = Encoder::new(&self.arena, 4096);
        call_header(&mut e, PROGRAM, 1, 1, &Credential::None.encoded());
        e.put_opaque(&vec![7; length]);
        let (callbacks, message) = (self.callbacks.clone(), e.finish().unwrap());
        tokio::spawn(async move { callbacks.call(message, &rt(), LIMIT).await })
    }

    /// A reply as a client sends it, with this number of credits.
    fn answer(&self, xid: u32, credits: u32) -> Vec<u8> {
        let mut e = Encoder::new(&self.arena, 256);
        e.put(&ReplyHeader { xid, status: ReplyStatus::Success });
        e.put_u32(xid ^ 0xffff);
        let reply = e.finish().unwrap().head.to_vec();
        Raw::message(&Header::new(xid, credits, Body::Msg(Lists::default())), &reply)
    }

    /// The XID of the next callback.
    async fn callback(&mut self) -> u32 {
        let (header, message) = self.raw.receive_header().await;
        assert_eq!(header, Header::new(header.xid, CREDITS as u32, Body::Msg(Lists::default())));
        let words = |range: std::ops::Range<usize>| {
            message[range].chunks(4).map(|w| u32::from_be_bytes(w.try_into().unwrap())).collect::<Vec<_>>()
        };
        assert_eq!(words(0..24), [header.xid, 0, 2, PROGRAM, 1, 1]);
        header.xid
    }

    /// A call of the client, whose reply is the next message. Returns the granted credits; the call requests 32.
    async fn echo(&mut self, xid: u32) -> u32 {
        let ask = Ask { receive: 4, seed: xid, ..Ask::default() };
        let call = message(&self.arena, xid, ask).head.to_vec();
        self.raw.send(&Raw::message(&msg(xid, Lists::default()), &call));
        let (header, reply) = self.raw.receive_header().await;
        assert_eq!((header.xid, &reply[..8]), (xid, &[xid.to_be_bytes(), [0, 0, 0, 1]].concat()[..]));
        header.credits
    }

    /// Sends the reply to a callback, with this number of credits.
    async fn reply(&mut self, xid: u32, credits: u32) {
        let reply = self.answer(xid, credits);
        self.raw.send(&reply);
        self.raw.push().await;
    }

    /// Ends the connection, with which all resources are released.
    async fn finish(self) {
        let Self { mut raw, server, callbacks, arena } = self;
        raw.qp.disconnect();
        raw.push().await;
        drop(raw);
        drop(server.task.await.unwrap());
        assert!(!callbacks.is_open());
        assert_eq!(server.stats.snapshot().calls_in_progress, 0);
        settled(&arena).await;
    }
}

async fn answered(call: Call, xid: u32) {
    let reply = call.await.unwrap().unwrap();
    assert_eq!(reply.results().u32().unwrap(), xid ^ 0xffff);
}

#[tokio::test]
async fn calls_of_both_directions_share_a_queue_pair() {
    for link in Link::fabric_and_providers() {
        let mut scene = Scene::new(link).await;
        for round in 1..=3 {
            let call = scene.call(16);
            let xid = scene.callback().await;
            // The XIDs of the directions are independent. A callback holds no credit of the client's calls.
            for _ in 0..round {
                assert_eq!(scene.echo(xid).await, 32);
            }
            scene.reply(xid, 16).await;
            answered(call, xid).await;
            scene.echo(xid).await;
        }
        assert_eq!(scene.server.service.executed.load(Ordering::SeqCst), 1 + 1 + 2 + 3 + 3);
        scene.finish().await;
    }
}

#[tokio::test]
async fn callbacks_respect_the_credits_of_their_direction() {
    let mut scene = Scene::new(Link::Fabric).await;
    let calls: Vec<_> = (0..24).map(|_| scene.call(4)).collect();
    let mut seen = BTreeSet::from([scene.callback().await]);
    let mut waiting = seen.clone();
    // Before the first reply there is one credit. A grant of 0 counts as 1, and one of any size as 16.
    for (grant, in_flight) in [(0, 1), (1, 1), (3, 3), (u32::MAX, CREDITS), (2, CREDITS - 1)] {
        // No callback exceeds the credits: the reply to the client's call is the next message.
        scene.echo(9).await;
        let xid = waiting.pop_first().unwrap();
        scene.reply(xid, grant).await;
        while waiting.len() < in_flight {
            let xid = scene.callback().await;
            assert!(seen.insert(xid) && waiting.insert(xid));
        }
    }
    while let Some(xid) = waiting.pop_first() {
        scene.reply(xid, 2).await;
        while waiting.len() < 2 && seen.len() < calls.len() {
            let xid = scene.callback().await;
            assert!(seen.insert(xid) && waiting.insert(xid));
        }
    }
    for call in calls {
        call.await.unwrap().unwrap();
    }
    scene.echo(9).await;
    scene.finish().await;
}

#[tokio::test]
async fn replies_that_answer_no_callback_are_dropped() {
    for link in Link::fabric_and_providers() {
        let mut scene = Scene::new(link).await;
        let call = scene.call(16);
        let xid = scene.callback().await;
        let mut replies = vec![scene.answer(xid ^ 1, 16), scene.answer(u32::MAX, 16)];
        // The XIDs of header and message differ.
        let mut mixed = scene.answer(xid, 16);
        mixed[31] ^= 1;
        replies.push(mixed);
        let expected = scene.server.stats.snapshot().dropped + 30;
        for _ in 0..10 {
            for reply in &replies {
                scene.raw.send(reply);
                scene.echo(1).await;
            }
        }
        scene.reply(xid, 16).await;
        answered(call, xid).await;
        assert_eq!(scene.server.stats.snapshot().dropped, expected);
        // A reply is accepted once.
        scene.reply(xid, 16).await;
        scene.echo(1).await;
        assert_eq!(scene.server.stats.snapshot().dropped, expected + 1);
        scene.finish().await;
    }
}

#[tokio::test]
async fn rejected_and_unreadable_replies_end_only_their_callback() {
    let mut scene = Scene::new(Link::Fabric).await;
    let header = |xid| Header::new(xid, 16, Body::Msg(Lists::default()));
    let error = |xid| Header::new(xid, 16, Body::Error(TransportError::Chunk));
    for case in 0..3 {
        let call = scene.call(16);
        let xid = scene.callback().await;
        let start = [xid.to_be_bytes(), [0, 0, 0, 1]].concat();
        let reply = match case {
            0 => Raw::message(&error(xid), &[]),
            1 => Raw::message(&header(xid), &start),
            _ => Raw::message(&header(xid), &[start, vec![0xff; 4000]].concat()),
        };
        scene.raw.send(&reply);
        let failure = call.await.unwrap().unwrap_err();
        assert!(matches!(failure, RpcError::BadReply { .. }), "{case}: {failure}");
        scene.echo(1).await;
    }
    // An RDMA_ERROR with the XID of no callback is dropped.
    scene.raw.send(&Raw::message(&error(77), &[]));
    scene.echo(1).await;
    scene.finish().await;
}

#[tokio::test]
async fn a_reply_with_chunks_costs_the_connection() {
    let segment = Segment { handle: SteeringTag(1), length: 64, offset: 0 };
    let reads = [millrace_rpcrdma::ReadSegment { position: 4, segment }];
    for lists in [
        Lists { reads: reads.into_iter().collect(), ..Lists::default() },
        Lists { writes: [[segment].into_iter().collect()].into_iter().collect(), ..Lists::default() },
        Lists { reply: Some([segment].into_iter().collect()), ..Lists::default() },
    ] {
        let mut scene = Scene::new(Link::Fabric).await;
        let call = scene.call(16);
        let xid = scene.callback().await;
        let reply = scene.answer(xid, 16)[28..].to_vec();
        scene.raw.send(&Raw::message(&Header::new(xid, 16, Body::Msg(lists)), &reply));
        assert!(matches!(call.await.unwrap(), Err(RpcError::Disconnected { .. })));
        let end = scene.server.task.await.unwrap().unwrap_err();
        assert!(matches!(end, ConnectionError::PeerMisbehaved(_)), "{end}");
        assert_eq!(scene.server.stats.snapshot().reads, 0);
        drop((scene.raw, scene.server.service));
        settled(&scene.arena).await;
    }
}

#[tokio::test]
async fn a_reply_longer_than_the_servers_receives_costs_the_connection() {
    for link in Link::fabric_and_providers() {
        let mut scene = Scene::new(link).await;
        let call = scene.call(16);
        let xid = scene.callback().await;
        let reply = [scene.answer(xid, 16), vec![0; 5000]].concat();
        scene.raw.send(&reply);
        scene.raw.push().await;
        assert!(matches!(call.await.unwrap(), Err(RpcError::Disconnected { .. })));
        drop((scene.server.task.await.unwrap(), scene.raw, scene.server.service));
        settled(&scene.arena).await;
    }
}

#[tokio::test]
async fn a_callback_longer_than_the_clients_receives_fails() {
    let mut scene = Scene::with(Link::Fabric, 1024, Account::unlimited()).await;
    // Headers of 28 and 40 bytes precede the length and the data.
    let (fits, exceeds) = (1024 - 28 - 40 - 4, 1024 - 28 - 40);
    let failure = scene.call(exceeds).await.unwrap().unwrap_err();
    assert!(matches!(&failure, RpcError::Local(why) if why.contains("1028 bytes")), "{failure}");
    let call = scene.call(fits);
    let xid = scene.callback().await;
    scene.reply(xid, 16).await;
    answered(call, xid).await;
    scene.finish().await;
}

#[tokio::test]
async fn without_memory_for_more_receives_one_callback_is_in_flight() {
    // The credits of the client's calls use the memory for receives.
    let own = 16 * slot_bytes(4096);
    let limits = BudgetConfig { memory: own, own, largest: own, connections: 1, per_client: 1 };
    let budget = Budget::new(limits, rt());
    let account = budget.open(std::net::IpAddr::from(Ipv4Addr::LOCALHOST).into()).unwrap();
    let mut scene = Scene::with(Link::Fabric, 4096, account).await;
    for _ in 0..32 {
        assert!(scene.echo(1).await < 20);
    }
    let calls: Vec<_> = (0..20).map(|_| scene.call(4)).collect();
    for _ in 0..calls.len() {
        let xid = scene.callback().await;
        scene.echo(1).await;
        scene.reply(xid, 16).await;
    }
    for call in calls {
        call.await.unwrap().unwrap();
    }
    scene.finish().await;
}

#[tokio::test]
async fn callbacks_fail_with_their_connection() {
    for link in Link::fabric_and_providers() {
        let mut scene = Scene::new(link).await;
        let calls: Vec<_> = (0..3).map(|_| scene.call(4)).collect();
        scene.callback().await;
        let callbacks = scene.callbacks.clone();
        scene.finish().await;
        for call in calls {
            assert!(matches!(call.await.unwrap(), Err(RpcError::Disconnected { .. })));
        }
        let later = callbacks.call(Message::default(), &rt(), LIMIT).await;
        assert!(matches!(later, Err(RpcError::Disconnected { .. })));
    }
}
