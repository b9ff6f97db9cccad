//! Peers that stop or delay RDMA Read responses or the receipt of replies, together with a well-behaved
//! client. iWARP over streams in memory, in virtual time.

use std::{
    future::poll_fn,
    io::{self, IoSlice, IoSliceMut},
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use millrace_admission::{Budget, BudgetConfig, ClientAddr};
use millrace_buffer::{Arena, ArenaConfig};
use millrace_oncrpc::{Transport, serving::CloseReason};
use millrace_rdma::{Access, ConnectParams, ExposedRegion, QueuePair, Segment, SteeringTag};
use millrace_rpcrdma::{
    Accepted, Chunk, Header, Lists, ReadSegment, Requester, RequesterConfig, Responder, ResponderConfig,
    ResponderStats,
};
use millrace_runtime::{
    ByteStream, MemoryStream, RuntimeExt, RuntimeRef, memory_stream, virtual_time::VirtualTime,
};

use raw::{Raw, msg, nomsg};

use crate::support::{Ask, Echo, message, peer, raw, request, verify};

const MIB: usize = 1 << 20;
const MEMORY: usize = 64 * MIB;
const CREDITS: u32 = 64;

struct Server {
    rt: RuntimeRef,
    arena: Arena,
    budget: Budget,
    config: ResponderConfig,
    stats: Arc<ResponderStats>,
    service: Arc<Echo>,
}

fn arena() -> Arena {
    Arena::new(ArenaConfig { limit: 2 * MEMORY, huge_pages: false })
}

fn client(n: u8) -> ClientAddr {
    std::net::IpAddr::from([10, 0, 0, n]).into()
}

impl Server {
    fn new(rt: &RuntimeRef) -> Self {
        let budget =
            BudgetConfig { memory: MEMORY, own: 32 << 10, largest: 2 * MIB, connections: 64, per_client: 64 };
        Self {
            rt: Arc::clone(rt),
            arena: arena(),
            budget: Budget::new(budget, Arc::clone(rt)),
            config: ResponderConfig { credits: CREDITS, ..ResponderConfig::default() },
            stats: Arc::default(),
            service: Arc::default(),
        }
    }

    /// The client's end of a connection to the server.
    async fn connect(
        &self,
        n: u8,
        params: ConnectParams,
        allowed: Option<Arc<AtomicUsize>>,
    ) -> Box<dyn QueuePair> {
        let (ours, theirs) = memory_stream(256 << 10, usize::MAX);
        let stream = Throttled { inner: ours, allowed };
        let accept = self.config.connect_params(ConnectParams::default());
        let connect =
            millrace_rdma_iwarp::connect_over(Arc::clone(&self.rt), arena(), Box::new(stream), params);
        let accept = millrace_rdma_iwarp::accept_over(
            Arc::clone(&self.rt),
            self.arena.clone(),
            Box::new(theirs),
            accept,
        );
        let (ours, theirs) = futures::future::try_join(connect, accept).await.unwrap();
        let (peer, account) = (peer(&*theirs), self.budget.open(client(n)).unwrap());
        let (rt, arena, config) = (Arc::clone(&self.rt), self.arena.clone(), self.config.clone());
        let connection =
            Accepted { qp: theirs, peer, service: self.service.clone(), rt, arena, account, session: None };
        let responder = Responder::new(connection, config, Arc::clone(&self.stats));
        let running = responder.unwrap().run();
        self.rt.spawn("responder", Box::pin(async move { drop(running.await) }));
        ours
    }

    fn executed(&self) -> usize {
        self.service.executed.load(Ordering::SeqCst)
    }

    fn stalled(&self) -> u64 {
        self.config.connection.closed.of(CloseReason::Stalled)
    }
}

/// A stream that accepts a limited number of bytes.
struct Throttled {
    inner: MemoryStream,
    allowed: Option<Arc<AtomicUsize>>,
}

impl ByteStream for Throttled {
    fn poll_read(&mut self, cx: &mut Context<'_>, bufs: &mut [IoSliceMut<'_>]) -> Poll<io::Result<usize>> {
        let Some(allowed) = &self.allowed else { return self.inner.poll_read(cx, bufs) };
        let first = bufs.iter_mut().find(|b| !b.is_empty()).unwrap();
        let most = first.len().min(allowed.load(Ordering::Relaxed));
        if most == 0 {
            return Poll::Pending; // The test polls again.
        }
        let read = self.inner.poll_read(cx, &mut [IoSliceMut::new(&mut first[..most])]);
        if let Poll::Ready(Ok(n)) = read {
            allowed.fetch_sub(n, Ordering::Relaxed);
        }
        read
    }
    fn poll_write(&mut self, cx: &mut Context<'_>, bufs: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        self.inner.poll_write(cx, bufs)
    }
    fn shutdown(&mut self) {
        self.inner.shutdown();
    }
    fn abort(&mut self) {
        self.inner.abort();
    }
    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.inner.local_addr()
    }
    fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.inner.peer_addr()
    }
}

/// A well-behaved client.
struct Honest {
    transport: Arc<dyn Transport>,
    arena: Arena,
    rt: RuntimeRef,
}

impl Honest {
    async fn connect(server: &Server, n: u8) -> Self {
        Self::with(server, n, RequesterConfig::default()).await
    }

    async fn with(server: &Server, n: u8, config: RequesterConfig) -> Self {
        let qp = server.connect(n, config.connect_params(), None).await;
        let arena = arena();
        let requester =
            Requester::from_queue_pair(qp, Arc::clone(&server.rt), arena.clone(), config).unwrap();
        Self { transport: requester, arena, rt: Arc::clone(&server.rt) }
    }

    async fn call(&self, ask: Ask) {
        let reply = self.transport.submit(request(&self.arena, ask));
        let reply = millrace_runtime::timeout(&*self.rt, Duration::from_secs(5), reply).await;
        verify(&reply.expect("a reply within five seconds").unwrap(), ask);
    }

    /// Writes and reads 1 MiB and makes a small call, concurrently.
    async fn work(&self) {
        let (write, read) = (Ask { send: MIB, ..Ask::default() }, Ask { receive: MIB, ..Ask::default() });
        let small = Ask::default();
        let (a, b, c) = (self.call(write), self.call(read), self.call(small));
        let (d, e, f) = (self.call(write), self.call(read), self.call(small));
        futures::join!(a, b, c, d, e, f);
    }

    /// Works for `seconds` seconds. Returns the number of completed rounds.
    async fn work_for(&self, seconds: u64) -> u32 {
        let (start, mut rounds) = (self.rt.now(), 0);
        while self.rt.now().duration_since(start) < Duration::from_secs(seconds) {
            self.work().await;
            rounds += 1;
            self.rt.sleep(Duration::from_secs(15)).await;
        }
        rounds
    }
}

/// A connection after one call, and its granted credits.
async fn hostile(server: &Server, n: u8, ird: u16, allowed: Option<Arc<AtomicUsize>>) -> (Raw, u32) {
    let params = ConnectParams { ird, ..RequesterConfig::default().connect_params() };
    let qp = server.connect(n, params, allowed).await;
    let mut raw = Raw::new(qp, &arena());
    let null = message(&raw.arena, 1, Ask::default()).head.to_vec();
    let mut header = msg(1, Lists::default());
    header.credits = CREDITS;
    raw.send(&Raw::message(&header, &null));
    let reply = raw.next().await.unwrap();
    let (reply, _) = Header::decode(&reply, 100).unwrap();
    (raw, reply.credits)
}

/// A segment with a tag that is not exposed; it has no effect until the peer polls.
fn nowhere(length: u32) -> Segment {
    Segment { handle: SteeringTag(0x1234_5678), length, offset: 0 }
}

fn run<F: Future<Output = ()>>(test: impl FnOnce(RuntimeRef) -> F) {
    let time = VirtualTime::new(1);
    let rt = time.runtime();
    time.block_on(test(rt)).unwrap();
}

fn read_list(segments: &[(u32, Segment)]) -> Lists {
    let reads = segments.iter().map(|&(position, segment)| ReadSegment { position, segment }).collect();
    Lists { reads, ..Lists::default() }
}

#[test]
fn unanswered_reads_hold_a_limited_share_of_memory_for_a_limited_time() {
    run(async |rt| {
        let server = Server::new(&rt);
        let honest = Honest::connect(&server, 9).await;
        let mut all = Vec::new();
        for _ in 0..8 {
            let (mut raw, credits) = hostile(&server, 1, 32, None).await;
            for xid in 2..2 + credits {
                let lists = read_list(&[(0, nowhere((MIB + (64 << 10)) as u32))]);
                raw.send(&Raw::message(&nomsg(xid, lists), &[]));
            }
            raw.push().await;
            all.push(raw);
        }
        honest.work().await;
        let stats = server.budget.stats();
        let held = server.budget.client_in_use(client(1));
        assert!(held > stats.shared / 4 && held < stats.shared * 9 / 10, "{held} of {stats:?}");
        assert!(stats.waiting > 0, "{stats:?}");
        assert!(server.arena.stats().in_use < MEMORY, "{:?}", server.arena.stats());
        let rounds = honest.work_for(300).await;
        assert!(rounds >= 15, "{rounds}");
        assert_eq!(server.stalled(), 8);
        assert_eq!(server.budget.client_in_use(client(1)), 0);
    });
}

/// The sink of an RDMA Read is allocated when the RDMA Read starts, and a Position-Zero chunk is read in
/// parts.
#[test]
fn sinks_are_allocated_when_reads_start() {
    run(async |rt| {
        let server = Server::new(&rt);
        let (mut raw, _) = hostile(&server, 1, 2, None).await;
        let before = server.arena.stats().in_use;
        let far = |n: u64| Segment { offset: n << 32, ..nowhere(100 << 10) };
        for xid in 2..6 {
            let lists = read_list(&[(0, far(1)), (0, far(2)), (0, far(3))]);
            raw.send(&Raw::message(&nomsg(xid, lists), &[]));
        }
        raw.push().await;
        rt.sleep(Duration::from_secs(1)).await;
        assert_eq!(server.stats.snapshot().reads, 2, "as many as the peer serves at once");
        let taken = server.arena.stats().in_use - before;
        assert!(taken <= 2 * (128 << 10) + (32 << 10), "{taken} bytes for two Reads of 100 KiB");
        assert!(server.budget.client_in_use(client(1)) >= 4 * (300 << 10), "they are counted");
    });
}

#[test]
fn a_peer_that_answers_reads_byte_by_byte_is_disconnected() {
    run(async |rt| {
        let server = Server::new(&rt);
        let honest = Honest::connect(&server, 9).await;
        for _ in 0..4 {
            let (mut raw, _) = hostile(&server, 1, 1, None).await;
            let region = raw.expose(&[7; 4096], Access::RemoteRead);
            let byte =
                |n: u64| Segment { length: 1, offset: region.segment().offset + 2 * n, ..region.segment() };
            let mut segments: Vec<_> = (0..150).map(|n| (0, byte(n))).collect();
            segments.push((0, nowhere(MIB as u32)));
            raw.send(&Raw::message(&nomsg(2, read_list(&segments)), &[]));
            raw.push().await;
            let later = Arc::clone(&rt);
            rt.spawn(
                "hostile",
                Box::pin(async move {
                    let _region: ExposedRegion = region;
                    loop {
                        later.sleep(Duration::from_secs(40)).await;
                        // Answers the outstanding RDMA Read.
                        poll_fn(|cx| {
                            drop(raw.qp.poll(cx, &mut Vec::new()));
                            Poll::Ready(())
                        })
                        .await;
                    }
                }),
            );
        }
        honest.work_for(30).await;
        assert!(server.budget.client_in_use(client(1)) > 4 * MIB);
        honest.work_for(120).await;
        assert_eq!(server.stalled(), 4);
        assert_eq!(server.budget.client_in_use(client(1)), 0);
    });
}

/// Requests RDMA Writes of 1 MiB to a region, and receives `bytes` bytes of them every `every` seconds.
async fn receive_slowly(server: &Server, n: u8, bytes: usize, every: u64) {
    let allowed = Arc::new(AtomicUsize::new(1 << 40));
    let (mut raw, credits) = hostile(server, n, 32, Some(Arc::clone(&allowed))).await;
    let region = raw.expose(&vec![0; MIB], Access::RemoteWrite);
    allowed.store(0, Ordering::Relaxed);
    for xid in 2..2 + credits {
        let stream = message(&raw.arena, xid, Ask { receive: MIB, ..Ask::default() }).head.to_vec();
        let writes = [Chunk::from_slice(&[region.segment()])].into_iter().collect();
        let lists = Lists { writes, ..Lists::default() };
        raw.send(&Raw::message(&msg(xid, lists), &stream));
    }
    raw.push().await;
    let rt = Arc::clone(&server.rt);
    server.rt.spawn(
        "hostile",
        Box::pin(async move {
            let _region: ExposedRegion = region;
            loop {
                rt.sleep(Duration::from_secs(every)).await;
                allowed.fetch_add(bytes, Ordering::Relaxed);
                let mut out = Vec::new();
                poll_fn(|cx| {
                    drop(raw.qp.poll(cx, &mut out));
                    Poll::Ready(())
                })
                .await;
            }
        }),
    );
}

#[test]
fn slowly_received_replies_hold_a_limited_share_of_memory_for_a_limited_time() {
    for (bytes, every) in [(0, 1000), (8 << 10, 20)] {
        run(async |rt| {
            let server = Server::new(&rt);
            let honest = Honest::connect(&server, 9).await;
            for _ in 0..5 {
                receive_slowly(&server, 1, bytes, every).await;
            }
            honest.work().await;
            let stats = server.budget.stats();
            let held = server.budget.client_in_use(client(1));
            assert!(held > stats.shared / 4 && held < stats.shared * 9 / 10, "{held} of {stats:?}");
            assert!(server.executed() < MEMORY / MIB, "{} calls of 320", server.executed());
            assert!(server.arena.stats().in_use < MEMORY, "{:?}", server.arena.stats());
            let rounds = honest.work_for(300).await;
            assert!(rounds >= 15, "{rounds}");
            assert_eq!(server.stalled(), 5);
            assert_eq!(server.budget.client_in_use(client(1)), 0);
        });
    }
}

#[test]
fn replies_received_at_the_minimum_rate_keep_the_connection() {
    run(async |rt| {
        let server = Server::new(&rt);
        receive_slowly(&server, 1, 100 << 10, 4).await;
        rt.sleep(Duration::from_secs(1200)).await;
        assert_eq!(server.stalled(), 0);
        assert!(server.executed() > 20, "{}", server.executed());
    });
}

#[test]
fn a_single_client_can_use_all_its_credits() {
    run(async |rt| {
        let server = Server::new(&rt);
        let honest = Honest::connect(&server, 9).await;
        honest.call(Ask::default()).await;
        let calls: Vec<_> =
            (0..40).map(|_| honest.call(Ask { send: MIB, receive: MIB, ..Ask::default() })).collect();
        futures::future::join_all(calls).await;
        assert_eq!(server.stats.snapshot().out_of_memory, 0);
    });
}

/// The grants of all clients after one call each would exceed the total memory.
#[test]
fn grants_of_idle_clients_leave_memory_for_calls() {
    run(async |rt| {
        let mut server = Server::new(&rt);
        let config = BudgetConfig {
            memory: 10 * MIB,
            own: 32 << 10,
            largest: 2 * MIB,
            connections: 64,
            per_client: 64,
        };
        server.budget = Budget::new(config, Arc::clone(&rt));
        let mut idle = Vec::new();
        for n in 1..=50 {
            let (raw, credits) = hostile(&server, n, 32, None).await;
            assert!(credits > 1, "the guaranteed memory of a connection permits more");
            idle.push(raw);
        }
        let honest = Honest::connect(&server, 99).await;
        for ask in
            [Ask::default(), Ask { send: MIB, ..Ask::default() }, Ask { receive: MIB, ..Ask::default() }]
        {
            honest.call(ask).await;
        }
        drop(idle);
    });
}

/// Clients that hold all shared memory, each with one RDMA Read that it does not answer.
async fn hold_all_memory(server: &Server) -> Vec<Raw> {
    let mut held = Vec::new();
    for n in 1..=55 {
        let (mut raw, credits) = hostile(server, n, 32, None).await;
        for xid in 2..2 + credits {
            let lists = read_list(&[(0, nowhere((MIB + (64 << 10)) as u32))]);
            raw.send(&Raw::message(&nomsg(xid, lists), &[]));
        }
        raw.push().await;
        held.push(raw);
    }
    server.rt.sleep(Duration::from_millis(100)).await;
    let stats = server.budget.stats();
    assert!(stats.waiting > 0 && stats.shared - stats.in_use < MIB, "{stats:?}");
    held
}

/// Makes small calls on each connection, one at a time and eight at once.
async fn small_calls(clients: &[Honest]) {
    for _ in 0..50 {
        for client in clients {
            client.call(Ask::default()).await;
            futures::future::join_all((0..8).map(|_| client.call(Ask::default()))).await;
        }
    }
}

/// Buffers of bulk data that are held in all spans of the arena, up to its limit, leave memory for receives and heads.
#[test]
fn small_calls_are_executed_while_bulk_data_holds_the_arena() {
    run(async |rt| {
        let mut server = Server::new(&rt);
        let limit = ArenaConfig { limit: MEMORY, huge_pages: false };
        server.arena = Arena::with_small_reserve(limit, MEMORY / 8, 4096);
        let old = Honest::connect(&server, 100).await;
        old.call(Ask::default()).await;
        let bulk: Vec<_> = std::iter::from_fn(|| server.arena.alloc(64 << 10).ok()).collect();
        small_calls(&[old, Honest::connect(&server, 101).await]).await;
        assert_eq!(server.stats.snapshot().out_of_memory, 0);
        drop(bulk);
    });
}

/// The receives of a client with four credits have the size of the memory that each connection has reserved.
#[test]
fn small_calls_are_executed_while_bulk_data_holds_all_memory() {
    run(async |rt| {
        let server = Server::new(&rt);
        let connect = async |n| {
            let few = RequesterConfig { credits: 4, ..RequesterConfig::default() };
            [Honest::connect(&server, n).await, Honest::with(&server, n + 1, few).await]
        };
        let old = connect(100).await;
        small_calls(&old).await;
        let held = hold_all_memory(&server).await;
        small_calls(&old).await;
        small_calls(&connect(102).await).await;
        assert_eq!(server.stalled(), 0, "the memory was held all the time");
        drop(held);
    });
}

#[test]
fn long_replies_yield_the_shard_to_other_connections() {
    run(async |rt| {
        let server = Server::new(&rt);
        let honest = Honest::connect(&server, 9).await;
        honest.call(Ask::default()).await;
        for (ask, most) in [
            (Ask { reply_head: 128 << 10, ..Ask::default() }, 2),
            (Ask { receive: 512 << 10, ..Ask::default() }, 4),
        ] {
            let mut all = Vec::new();
            for _ in 0..2 {
                let (mut raw, credits) = hostile(&server, 1, 32, None).await;
                for xid in 2..2 + credits {
                    let stream = message(&raw.arena, xid, ask).head.to_vec();
                    let room = Chunk::from_slice(&[nowhere(MIB as u32)]);
                    let lists = if ask.receive > 0 {
                        Lists { writes: [room].into_iter().collect(), ..Lists::default() }
                    } else {
                        Lists { reply: Some(room), ..Lists::default() }
                    };
                    raw.send(&Raw::message(&msg(xid, lists), &stream));
                }
                raw.push().await;
                all.push(raw);
            }
            let before = server.executed();
            honest.call(Ask::default()).await;
            let between = server.executed() - before - 1;
            assert!(between <= 2 * 6 * most, "{between} calls came first: {ask:?}");
        }
    });
}
