use std::{
    future::Future,
    pin::pin,
    sync::atomic::{AtomicU64, Ordering},
    task::{Context, Poll, Waker},
};

use futures::channel::oneshot;
use millrace_buffer::{Arena, ArenaConfig};
use millrace_oncrpc::{
    Credential, Message, Peer, ReplyHeader, ReplyStatus, TransportKind, TransportSecurity, call_header,
};
use millrace_runtime::{RuntimeExt, sync::Mutex, virtual_time::VirtualTime};
use millrace_xdr::{Decoder, Views};

use super::{
    harness::{Procedures, Refusal, TestServer},
    *,
};

/// Answers each call with its execution number, when the test permits it.
#[derive(Clone, Default)]
struct Counted(Arc<Counting>);

#[derive(Default)]
struct Counting {
    executed: AtomicU64,
    waiting: Mutex<Vec<oneshot::Sender<()>>>,
    at_once: bool,
    /// The rejection of callers by the export, if any.
    excludes: Mutex<Option<Refusal>>,
    /// The failure of the procedure, if any.
    fails: Mutex<Option<Refusal>>,
}

impl Procedures for Counted {
    fn admit(&self, _: &CallContext) -> Result<(), Refusal> {
        self.0.excludes.lock().map_or(Ok(()), Err)
    }

    fn execute(&self, _: &CallContext, mut reply: Encoder) -> MaybeReady<'static, Result<Encoder, Fault>> {
        let n = self.0.executed.fetch_add(1, Ordering::Relaxed) + 1;
        if let Some(refusal) = *self.0.fails.lock() {
            return MaybeReady::Ready(refusal.answer(reply));
        }
        reply.put(&Status::Ok);
        reply.put_u64(n);
        if self.0.at_once {
            return MaybeReady::Ready(Ok(reply));
        }
        let (tx, rx) = oneshot::channel();
        self.0.waiting.lock().push(tx);
        MaybeReady::wait(async move {
            let _ = rx.await;
            Ok(reply)
        })
    }
}

fn arena() -> Arena {
    Arena::new(ArenaConfig { limit: 16 << 20, huge_pages: false })
}

fn peer(connection: u64) -> Peer {
    let addr = ([127, 0, 0, 1], 1000 + connection as u16).into();
    Peer { addr, local: addr, transport: TransportKind::Tcp, security: TransportSecurity::None, connection }
}

fn call(arena: &Arena, xid: u32, proc: u32, args: u32) -> Message {
    let mut e = Encoder::new(arena, 256);
    call_header(&mut e, millrace_nfs::v3::PROGRAM, 3, proc, &Credential::None);
    e.put_u32(args);
    let mut m = e.finish().unwrap();
    assert!(m.set_xid(xid));
    m
}

fn number(m: Option<Message>) -> Option<u64> {
    m.map(|m| u64::from_be_bytes(*m.head.iter().next().unwrap().last_chunk().unwrap()))
}

fn poll<F: Future>(f: std::pin::Pin<&mut F>) -> Poll<F::Output> {
    f.poll(&mut Context::from_waker(Waker::noop()))
}

fn test_server(at_once: bool, replies: usize) -> (Arc<Counting>, TestServer) {
    test_server_in(&VirtualTime::new(1), at_once, replies)
}

fn test_server_in(time: &VirtualTime, at_once: bool, replies: usize) -> (Arc<Counting>, TestServer) {
    let counting = Arc::new(Counting { at_once, ..Counting::default() });
    let cache = DuplicateRequestCache::new(replies, time.runtime());
    (Arc::clone(&counting), TestServer::new(Counted(counting), cache))
}

fn from(addr: impl Into<std::net::IpAddr>) -> Peer {
    Peer { addr: (addr.into(), 1).into(), ..peer(1) }
}

fn call_ready(s: &TestServer, peer: &Peer, m: Message, a: &Arena) -> Option<u64> {
    match s.call(peer, m, a) {
        MaybeReady::Ready(reply) => number(reply),
        _ => panic!("the call waits"),
    }
}

#[test]
fn calls_are_identified_by_client_xid_procedure_and_checksum() {
    let (a, (_, s)) = (arena(), test_server(true, 100));
    assert_eq!(call_ready(&s, &peer(1), call(&a, 1, 12, 5), &a), Some(1));
    assert_eq!(call_ready(&s, &peer(1), call(&a, 1, 12, 5), &a), Some(1), "same connection");
    assert_eq!(call_ready(&s, &peer(2), call(&a, 1, 12, 5), &a), Some(1), "another port");
    assert_eq!(call_ready(&s, &peer(1), call(&a, 2, 12, 5), &a), Some(2), "another XID");
    assert_eq!(call_ready(&s, &peer(1), call(&a, 1, 13, 5), &a), Some(3), "another procedure");
    assert_eq!(call_ready(&s, &peer(1), call(&a, 1, 12, 6), &a), Some(4), "other arguments");
    let elsewhere = Peer { addr: ([127, 0, 0, 2], 1).into(), ..peer(1) };
    assert_eq!(call_ready(&s, &elsewhere, call(&a, 1, 12, 5), &a), Some(5), "another client");
}

#[test]
fn a_duplicate_of_a_call_in_progress_waits_or_is_dropped() {
    let (a, (service, s)) = (arena(), test_server(false, 100));
    let mut first = pin!(s.call(&peer(1), call(&a, 1, 8, 0), &a).into_future());
    assert!(poll(first.as_mut()).is_pending());
    assert_eq!(call_ready(&s, &peer(1), call(&a, 1, 8, 0), &a), None, "the connection gets one reply");
    let mut second = pin!(s.call(&peer(2), call(&a, 1, 8, 0), &a).into_future());
    assert!(poll(second.as_mut()).is_pending());
    service.waiting.lock().drain(..).for_each(|tx| tx.send(()).unwrap());
    assert!(matches!(poll(first.as_mut()), Poll::Ready(m) if number(m.clone()) == Some(1)));
    assert!(matches!(poll(second.as_mut()), Poll::Ready(m) if number(m.clone()) == Some(1)));
    assert_eq!(call_ready(&s, &peer(3), call(&a, 1, 8, 0), &a), Some(1));
    assert_eq!(service.executed.load(Ordering::Relaxed), 1);
}

#[test]
fn an_unanswered_call_can_be_retransmitted() {
    let (a, (service, s)) = (arena(), test_server(false, 100));
    let first = s.call(&peer(1), call(&a, 1, 8, 0), &a);
    let mut waiting = pin!(s.call(&peer(2), call(&a, 1, 8, 0), &a).into_future());
    assert!(poll(waiting.as_mut()).is_pending());
    drop(first);
    assert!(matches!(poll(waiting.as_mut()), Poll::Ready(None)), "its client retransmits");
    let mut again = pin!(s.call(&peer(2), call(&a, 1, 8, 0), &a).into_future());
    assert!(poll(again.as_mut()).is_pending());
    assert_eq!(service.executed.load(Ordering::Relaxed), 2);
}

#[test]
fn the_oldest_replies_are_evicted_and_freed() {
    let (a, (_, s)) = (arena(), test_server(true, 64));
    for xid in 0..10_000 {
        call_ready(&s, &peer(1), call(&a, xid, 9, xid), &a);
    }
    assert!(s.cache.kept() <= 64);
    assert!(a.stats().in_use <= 64 * 512, "{:?}", a.stats());
    assert_eq!(s.cache.kept_bytes(), a.stats().in_use);
    assert_eq!(call_ready(&s, &peer(1), call(&a, 9_999, 9, 9_999), &a), Some(10_000));
    assert_eq!(call_ready(&s, &peer(1), call(&a, 0, 9, 0), &a), Some(10_001));
}

#[test]
fn a_busy_client_does_not_evict_the_replies_of_others() {
    let (a, (_, s)) = (arena(), test_server(true, 64));
    let quiet = Peer { addr: ([127, 0, 0, 2], 1).into(), ..peer(1) };
    let first = call_ready(&s, &quiet, call(&a, 1, 12, 5), &a);
    for xid in 0..10_000 {
        call_ready(&s, &peer(1), call(&a, xid, 9, xid), &a);
    }
    assert_eq!(call_ready(&s, &quiet, call(&a, 1, 12, 5), &a), first, "executed again");
    assert_eq!(call_ready(&s, &peer(1), call(&a, 9_999, 9, 9_999), &a), Some(10_001));
    // The counts are consistent with more clients than entries.
    for n in 0..20_000_u32 {
        let addr = (std::net::Ipv4Addr::from_bits(0x0a00_0000 + n % 50), 1).into();
        call_ready(&s, &Peer { addr, ..peer(1) }, call(&a, n, 9, n), &a);
    }
    assert!(s.cache.kept() <= 16 * 64);
    let newcomer = Peer { addr: ([10, 0, 1, 0], 1).into(), ..peer(1) };
    let first = call_ready(&s, &newcomer, call(&a, 1, 9, 1), &a);
    assert_eq!(call_ready(&s, &newcomer, call(&a, 1, 9, 1), &a), first, "its only reply was evicted");
    assert_eq!(s.cache.counted(), s.cache.kept());
}

#[test]
fn results_of_calls_without_effect_are_not_cached() {
    let (a, (service, s)) = (arena(), test_server(true, 64));
    let refusals = [
        Refusal::Rpc(Fault::Auth(millrace_oncrpc::AuthStat::TooWeak)),
        Refusal::Rpc(Fault::GarbageArgs),
        Refusal::Rpc(Fault::SystemErr),
        Refusal::Nfs(Status::BadHandle),
        Refusal::Nfs(Status::Stale),
        Refusal::Nfs(Status::Access),
        Refusal::Nfs(Status::RoFs),
        Refusal::Nfs(Status::Jukebox),
    ];
    for (n, refusal) in refusals.into_iter().enumerate() {
        *service.fails.lock() = Some(refusal);
        call_ready(&s, &peer(1), call(&a, n as u32, 12, 0), &a);
        assert_eq!(s.cache.kept(), 0, "{refusal:?}");
    }
    // A failure that depends on the state of the file system is an outcome, because the state may change.
    *service.fails.lock() = Some(Refusal::Nfs(Status::NoEnt));
    call_ready(&s, &peer(1), call(&a, 1000, 12, 0), &a);
    assert_eq!(s.cache.kept(), 1);
    assert_eq!(a.stats().in_use, s.cache.kept_bytes());
}

#[test]
fn a_rejected_caller_gets_no_cached_results() {
    let (a, (service, s)) = (arena(), test_server(true, 64));
    let first = call_ready(&s, &peer(1), call(&a, 1, 12, 0), &a);
    *service.excludes.lock() = Some(Refusal::Rpc(Fault::Auth(millrace_oncrpc::AuthStat::TooWeak)));
    let refused = s.call(&peer(1), call(&a, 1, 12, 0), &a);
    let MaybeReady::Ready(Some(refused)) = refused else { panic!("no answer") };
    let header = Decoder::new(&refused).get::<ReplyHeader>().unwrap();
    assert_eq!(header.status, ReplyStatus::Auth(millrace_oncrpc::AuthStat::TooWeak));
    *service.excludes.lock() = None;
    assert_eq!(call_ready(&s, &peer(1), call(&a, 1, 12, 0), &a), first, "executed again");
}

#[test]
fn a_replay_equals_the_first_reply() {
    let (a, (_, s)) = (arena(), test_server(true, 64));
    let reply = || match s.call(&peer(1), call(&a, 7, 12, 0), &a) {
        MaybeReady::Ready(Some(reply)) => reply.head.to_vec(),
        _ => panic!("no answer"),
    };
    assert_eq!(reply(), reply());
}

#[test]
fn rejected_callers_evict_nothing() {
    let (a, (service, s)) = (arena(), test_server(true, 4096));
    let victim = from([10, 0, 0, 1]);
    let first = call_ready(&s, &victim, call(&a, 1, 12, 0), &a);
    *service.excludes.lock() = Some(Refusal::Nfs(Status::Stale));
    for n in 0..20_000_u32 {
        call_ready(&s, &from(std::net::Ipv4Addr::from_bits(0x0b00_0000 + n)), call(&a, n, 12, n), &a);
    }
    *service.excludes.lock() = None;
    assert_eq!(call_ready(&s, &victim, call(&a, 1, 12, 0), &a), first, "executed again");
}

#[test]
fn the_cache_grows_for_a_minute_and_then_shrinks() {
    let time = VirtualTime::new(1);
    let (a, (_, s)) = (arena(), test_server_in(&time, true, 256));
    let victim = from([10, 0, 0, 1]);
    let mine: Vec<_> = (0..8).map(|xid| call_ready(&s, &victim, call(&a, xid, 12, xid), &a)).collect();
    for n in 0..3000_u32 {
        let other = from(std::net::Ipv4Addr::from_bits(0x0b00_0000 + n % 1500));
        call_ready(&s, &other, call(&a, n, 12, n), &a);
    }
    assert!((2900..=16 * 256).contains(&s.cache.kept()), "{}", s.cache.kept());
    for (xid, first) in mine.iter().enumerate() {
        assert_eq!(
            call_ready(&s, &victim, call(&a, xid as u32, 12, xid as u32), &a),
            *first,
            "executed again"
        );
    }
    time.block_on(time.runtime().sleep(std::time::Duration::from_secs(61))).unwrap();
    for n in 0..1000_u32 {
        call_ready(&s, &from([12, 0, 0, 1]), call(&a, n, 12, n), &a);
    }
    assert!(s.cache.kept() <= 256 + 16, "{}", s.cache.kept());
    assert_eq!(s.cache.counted(), s.cache.kept());
}

#[test]
fn an_ipv6_prefix_has_the_share_of_one_client() {
    let (a, (_, s)) = (arena(), test_server(true, 64));
    let quiet = from([10, 0, 0, 1]);
    let first = call_ready(&s, &quiet, call(&a, 1, 12, 0), &a);
    for n in 0..20_000_u32 {
        let addr = std::net::Ipv6Addr::from_bits(0x2001_0db8 << 96 | u128::from(n));
        call_ready(&s, &from(addr), call(&a, n, 12, n), &a);
    }
    assert!(s.cache.kept() <= 64 + 1, "{}", s.cache.kept());
    assert_eq!(call_ready(&s, &quiet, call(&a, 1, 12, 0), &a), first, "executed again");
    // Two addresses of a prefix are different callers.
    let addr = |n: u128| std::net::Ipv6Addr::from_bits(0x2001_0db8 << 96 | n);
    let one = call_ready(&s, &from(addr(1)), call(&a, 99, 12, 7), &a);
    assert_ne!(call_ready(&s, &from(addr(2)), call(&a, 99, 12, 7), &a), one);
}

#[test]
fn a_new_client_must_retry_if_its_reply_cannot_be_cached() {
    let time = VirtualTime::new(1);
    let (a, (service, s)) = (arena(), test_server_in(&time, true, 16));
    let at = |n: u32| from(std::net::Ipv4Addr::from_bits(0x0b00_0000 + n));
    for n in 0..2000 {
        s.call(&at(n), call(&a, n, 12, n), &a);
    }
    assert_eq!(s.cache.kept(), 16 * 16, "each client has one entry, and each part is full");
    let executed = service.executed.load(Ordering::Relaxed);
    let MaybeReady::Ready(Some(reply)) = s.call(&at(5000), call(&a, 5, 12, 5), &a) else {
        panic!("no answer")
    };
    let mut d = Decoder::new(&reply);
    assert_eq!(d.get::<ReplyHeader>().unwrap(), ReplyHeader { xid: 5, status: ReplyStatus::Success });
    assert_eq!(d.u32(), Ok(Status::Jukebox as u32));
    assert_eq!(service.executed.load(Ordering::Relaxed), executed);
    time.block_on(time.runtime().sleep(std::time::Duration::from_secs(61))).unwrap();
    assert_eq!(call_ready(&s, &at(5000), call(&a, 5, 12, 5), &a), Some(executed + 1));
}

#[test]
fn data_is_part_of_the_checksum_with_and_without_chunks() {
    let (a, (_, s)) = (arena(), test_server(true, 64));
    let write = |in_chunk: bool, data: &[u8]| {
        let mut e = Encoder::new(&a, 128 << 10);
        call_header(&mut e, millrace_nfs::v3::PROGRAM, 3, 7, &Credential::None);
        e.put_u64(0);
        if in_chunk {
            e.put_payload(Views::from(a.copy_from(data).unwrap()));
        } else {
            e.put_opaque(data);
        }
        let mut m = e.finish().unwrap();
        assert!(m.set_xid(7));
        m
    };
    for len in [1, 3, 100, 800, 1000, 100_000] {
        let one = vec![1; len];
        let mut other = one.clone();
        other[len - 1] = 2;
        let first = call_ready(&s, &peer(1), write(true, &one), &a);
        assert_eq!(call_ready(&s, &peer(1), write(false, &one), &a), first, "{len} bytes");
        let second = call_ready(&s, &peer(1), write(true, &other), &a);
        assert_ne!(second, first, "{len} other bytes");
        assert_eq!(call_ready(&s, &peer(1), write(false, &other), &a), second);
    }
}
