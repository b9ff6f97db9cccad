//! Credits: requested by demand, granted with posted receives, and withdrawn so that every call finds a
//! receive.

use std::{
    collections::VecDeque,
    future::poll_fn,
    sync::{Arc, Mutex},
    task::Poll,
};

use millrace_admission::Account;
use millrace_buffer::{Arena, ArenaConfig, Buffer};
use millrace_oncrpc::{CallContext, MaybeReady, Message, ReplyHeader, ReplyStatus, Service};
use millrace_rdma::{Completion, ConnectParams, ConnectionError, QueuePair, SendRequest};
use millrace_rpcrdma::{Accepted, Body, Header, Lists, RequesterConfig, Responder, ResponderConfig};
use millrace_xdr::Encoder;
use proptest::prelude::*;
use tokio::sync::oneshot;

use crate::support::{
    Ask, Link, arena, connected, echo,
    fabric::{FabricEnd, pair},
    finish, message, peer,
    raw::Raw,
    rt,
    scene::{Scene, TINY, rpc_reply, turns},
};

/// Receives of a responder in addition to the granted credits.
const SLACK: usize = 4;
const LIMIT: u32 = 24;

/// A service that answers a call when the test requests it.
#[derive(Default)]
struct ManualService(Mutex<Vec<oneshot::Sender<()>>>);

impl ManualService {
    fn answer(&self, which: usize) {
        let mut held = self.0.lock().unwrap();
        if !held.is_empty() {
            let which = which % held.len();
            held.swap_remove(which).send(()).ok();
        }
    }
}

impl Service for ManualService {
    fn call(&self, call: CallContext, mut e: Encoder) -> MaybeReady<'static, Option<Message>> {
        e.put(&ReplyHeader { xid: call.header.xid, status: ReplyStatus::Success });
        let reply = e.finish().unwrap();
        let (told, wait) = oneshot::channel();
        self.0.lock().unwrap().push(told);
        MaybeReady::wait(async move { wait.await.ok().map(|()| reply) })
    }
}

/// A requester that uses all its credits: it sends as many calls as the last processed reply permits, and
/// delays the processing of replies.
struct ExactRequester {
    end: FabricEnd,
    arena: Arena,
    service: Arc<ManualService>,
    task: tokio::task::JoinHandle<Result<(), ConnectionError>>,
    came: VecDeque<Buffer>,
    in_flight: usize,
    limit: usize,
    xid: u32,
}

impl ExactRequester {
    fn new(config: ResponderConfig, theirs: &Arena) -> Self {
        let arena = arena();
        let params = RequesterConfig::default().connect_params();
        let (mut end, server) = pair(usize::MAX, &params, &config.connect_params(ConnectParams::default()));
        for _ in 0..2 * LIMIT {
            end.post_receive(arena.alloc(4096).unwrap()).unwrap();
        }
        let (from, service, stats) = (peer(&server), Arc::new(ManualService::default()), Arc::default());
        let serving = Arc::clone(&service);
        let connection = Accepted {
            qp: Box::new(server),
            peer: from,
            service: serving,
            rt: rt(),
            arena: theirs.clone(),
            account: Account::unlimited(),
            session: None,
        };
        let made = Responder::new(connection, config, stats);
        let task = tokio::spawn(made.unwrap().run());
        Self { end, arena, service, task, came: VecDeque::new(), in_flight: 0, limit: 1, xid: 7 }
    }

    /// Number of calls that it may send now.
    fn free(&self) -> usize {
        self.limit.saturating_sub(self.in_flight)
    }

    /// Sends a call that requests `credits` credits; the call is rejected unless `good`.
    fn send(&mut self, credits: u32, good: bool) {
        self.xid += 1;
        let zeros = self.arena.copy_from(&[0; 4]).unwrap();
        let call = message(&self.arena, self.xid, Ask::default()).gather(&zeros).to_vec();
        let mut bytes = Raw::message(&Header::new(self.xid, credits, Body::Msg(Lists::default())), &call);
        bytes[15] = if good { 0 } else { 9 };
        self.send_bytes(&bytes);
        self.in_flight += 1;
    }

    fn send_bytes(&mut self, bytes: &[u8]) {
        let data = self.arena.copy_from(bytes).unwrap().into();
        self.end.post_send(SendRequest { data, invalidate: None, solicited: false, signaled: None }).unwrap();
    }

    /// Receives replies without processing them.
    async fn turn(&mut self) {
        turns().await;
        let mut out = Vec::new();
        let state = poll_fn(|cx| Poll::Ready(self.end.poll(cx, &mut out))).await;
        assert!(!matches!(state, Poll::Ready(Err(_))), "{state:?}");
        for completion in out {
            if let Completion::Received { buffer, .. } = completion {
                self.came.push_back(buffer);
            }
        }
    }

    /// Processes the next reply and returns its credits.
    fn process_reply(&mut self) -> Option<u32> {
        let mut reply = self.came.pop_front()?;
        let (header, _) = Header::decode(&reply, 16).unwrap();
        reply.set_len(4096);
        self.end.post_receive(reply).unwrap();
        self.in_flight -= 1;
        self.limit = header.credits as usize;
        Some(header.credits)
    }

    /// Makes one call and returns the credits of its reply.
    async fn call(&mut self, credits: u32) -> u32 {
        self.send(credits, true);
        self.turn().await;
        self.service.answer(0);
        self.turn().await;
        self.process_reply().unwrap()
    }

    async fn end(mut self) {
        self.end.disconnect();
        turns().await;
        self.service.0.lock().unwrap().clear(); // The responder completes its calls.
        self.task.await.unwrap().unwrap();
    }
}

fn config() -> ResponderConfig {
    ResponderConfig { credits: LIMIT, ..ResponderConfig::default() }
}

#[derive(Debug, Clone)]
enum Step {
    Send {
        credits: u32,
        good: bool,
    },
    /// A message that is not a call and is dropped.
    Stray,
    Answer(usize),
    Look,
    Turn,
}

fn step() -> impl Strategy<Value = Step> {
    let credits = prop_oneof![0..40_u32, 0..4_u32, Just(LIMIT), Just(u32::MAX)];
    prop_oneof![
        4 => (credits, prop::bool::weighted(0.9)).prop_map(|(credits, good)| Step::Send { credits, good }),
        1 => Just(Step::Stray),
        3 => any::<usize>().prop_map(Step::Answer),
        3 => Just(Step::Look),
        2 => Just(Step::Turn),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, ..ProptestConfig::default() })]

    /// For all sequences of requests and grants, and any delay of replies: each permitted call finds a
    /// receive without using the slack, and no peer has more credits than the limit.
    #[test]
    fn every_call_within_the_credits_finds_a_receive(steps in prop::collection::vec(step(), 0..400)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let mut p = ExactRequester::new(config(), &arena());
            for step in steps {
                match step {
                    Step::Send { credits, good } if p.free() > 0 => p.send(credits, good),
                    Step::Send { .. } => {}
                    Step::Stray => {
                        p.send_bytes(&[0; 10]);
                        p.turn().await;
                    }
                    Step::Answer(which) => p.service.answer(which),
                    Step::Look => drop(p.process_reply()),
                    Step::Turn => p.turn().await,
                }
                let receives = p.end.peer_receives();
                assert!(receives >= p.free() + SLACK, "{receives} receives, {} calls may come", p.free());
                assert!(receives <= LIMIT as usize + SLACK + 1, "{receives}");
                assert!((1..=LIMIT as usize).contains(&p.limit), "{}", p.limit);
            }
            p.end().await;
        });
    }
}

#[tokio::test]
async fn requested_credits_are_granted_at_once_and_withdrawn_one_per_reply() {
    let mut p = ExactRequester::new(config(), &arena());
    assert_eq!(p.end.peer_receives(), 1 + SLACK);
    for _ in 0..3 {
        assert_eq!(p.call(1).await, 1);
    }
    assert_eq!((p.call(20).await, p.end.peer_receives()), (20, 20 + SLACK));
    // A request for 2^32 - 1 credits gets the limit.
    assert_eq!((p.call(u32::MAX).await, p.end.peer_receives()), (LIMIT, LIMIT as usize + SLACK));
    for credits in (1..LIMIT).rev() {
        assert_eq!((p.call(1).await, p.end.peer_receives()), (credits, credits as usize + SLACK));
    }
    assert_eq!((p.call(1).await, p.end.peer_receives()), (1, 1 + SLACK));
    assert_eq!((p.call(6).await, p.call(0).await, p.call(LIMIT).await), (6, 5, LIMIT));
    p.end().await;
}

#[tokio::test]
async fn without_memory_the_grant_is_limited_by_the_posted_receives() {
    let theirs = Arena::new(ArenaConfig { limit: 8 << 20, huge_pages: false });
    let mut p = ExactRequester::new(config(), &theirs);
    p.call(1).await;
    let mut hoard: Vec<_> = std::iter::from_fn(|| theirs.alloc(4096).ok()).collect();
    hoard.truncate(hoard.len() - 10);
    let granted = p.call(LIMIT).await as usize;
    // The receives for unexpected messages may be included in the grant.
    assert!((6..20).contains(&granted) && granted <= p.end.peer_receives(), "{granted}");
    drop(hoard);
    assert_eq!(p.call(LIMIT).await, LIMIT);
    p.end().await;
}

/// The credits that the next `n` calls request.
async fn requested(s: &mut Scene, n: usize) -> Vec<Header> {
    let mut out = Vec::new();
    for _ in 0..n {
        out.push(s.receive().await);
    }
    out
}

fn reply(s: &mut Scene, to: &[Header], credits: u32) {
    for h in to {
        let body = Body::Msg(Lists::default());
        s.raw.send(&Raw::message(&Header::new(h.xid, credits, body), &rpc_reply(h.xid, &[7, 0, 0])));
    }
}

fn no_private_data() -> ConnectParams {
    ResponderConfig::default().connect_params(ConnectParams::default())
}

#[tokio::test]
async fn a_burst_requests_its_credits_with_the_first_calls_sent() {
    let mut s = Scene::over(RequesterConfig { credits: 64, ..Default::default() }, &no_private_data());
    let first = s.call(TINY);
    let h = requested(&mut s, 1).await;
    assert_eq!(h[0].credits, 8);
    reply(&mut s, &h, 8);
    first.await.unwrap().unwrap();
    let calls: Vec<_> = (0..80).map(|_| s.call(TINY)).collect();
    turns().await;
    let open = requested(&mut s, 8).await;
    assert_eq!(s.client.stats().calls, 1 + 8);
    // The first call was sent before the others were submitted.
    assert!(open[1..].iter().all(|h| h.credits == 64), "{open:?}");
    reply(&mut s, &open[..1], 64);
    let mut more = requested(&mut s, 64 - 7).await;
    turns().await;
    assert_eq!(s.client.stats().calls - s.client.stats().replies, 64);
    more.extend_from_slice(&open[1..]);
    reply(&mut s, &more, 64);
    let last = requested(&mut s, 80 - 65).await;
    reply(&mut s, &last, 64);
    for call in calls {
        call.await.unwrap().unwrap();
    }
    s.finish().await;
}

#[tokio::test]
async fn grants_above_the_request_are_used() {
    let mut s = Scene::over(RequesterConfig { credits: 64, ..Default::default() }, &no_private_data());
    let first = s.call(TINY);
    let h = requested(&mut s, 1).await;
    reply(&mut s, &h, 50); // As Linux, whose grant is constant.
    first.await.unwrap().unwrap();
    let calls: Vec<_> = (0..60).map(|_| s.call(TINY)).collect();
    let mut open = requested(&mut s, 50).await;
    turns().await;
    assert_eq!(s.client.stats().calls, 1 + 50);
    // RFC 8166 section 3.3.1: at most the requested number of calls is in flight.
    assert!(open.iter().enumerate().all(|(n, h)| h.credits as usize > n), "{open:?}");
    reply(&mut s, &open[..20], 50);
    open.drain(..20);
    open.extend(requested(&mut s, 10).await);
    reply(&mut s, &open, 50);
    for call in calls {
        call.await.unwrap().unwrap();
    }
    s.finish().await;
}

#[tokio::test]
async fn a_grant_below_the_calls_in_flight_delays_further_calls() {
    let mut s = Scene::over(RequesterConfig { credits: 64, ..Default::default() }, &no_private_data());
    let calls: Vec<_> = (0..30).map(|_| s.call(TINY)).collect();
    let h = requested(&mut s, 1).await;
    reply(&mut s, &h, 20);
    let open = requested(&mut s, 20).await;
    for (n, h) in open.iter().enumerate() {
        reply(&mut s, std::slice::from_ref(h), 3);
        turns().await;
        let in_flight = s.client.stats().calls - s.client.stats().replies;
        assert_eq!(in_flight as usize, (19 - n).max(3), "{n}");
    }
    let rest = requested(&mut s, 3).await;
    reply(&mut s, &rest, 64);
    let rest = requested(&mut s, 6).await;
    reply(&mut s, &rest, 64);
    for call in calls {
        call.await.unwrap().unwrap();
    }
    s.finish().await;
}

#[tokio::test]
async fn credits_follow_bursts_with_every_provider() {
    for link in Link::fabric_and_providers() {
        let a = arena();
        let (client, server) =
            connected(link, &a, RequesterConfig::default(), ResponderConfig::default()).await;
        let burst = async |seed| {
            let ask = |n: u32| Ask {
                seed: seed + n,
                receive: 3 * n as usize,
                later: !n.is_multiple_of(3),
                ..Ask::default()
            };
            futures::future::join_all((0..200).map(|n| echo(&client, &a, ask(n)))).await;
        };
        echo(&client, &a, Ask::default()).await;
        assert_eq!(client.stats().credits_granted, 8);
        for _ in 0..2 {
            burst(1).await;
            assert_eq!(client.stats().credits_granted, 64);
            for seed in 0..600 {
                echo(&client, &a, Ask { seed, ..Ask::default() }).await;
            }
            assert_eq!(client.stats().credits_granted, 8);
        }
        burst(2).await;
        finish(client, server, &a).await;
    }
}
