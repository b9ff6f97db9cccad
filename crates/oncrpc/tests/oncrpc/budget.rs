//! TCP peers that send or receive as slowly as possible, together with a well-behaved client. Virtual time.

use std::{
    io::{IoSlice, IoSliceMut},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::Poll,
    time::Duration,
};

use futures::future::poll_fn;
use millrace_admission::{Account, Budget, BudgetConfig, ClientAddr};
use millrace_buffer::SPAN_BYTES;
use millrace_oncrpc::{
    Credential, Dispatcher, PendingCall, Program, ReplySpec, Request, RpcError, Stages, Transport,
    call_header,
    serving::{CloseReason, ConnectionConfig, ServerConnection},
    tcp::{TcpClientConfig, TcpServer, TcpServerConfig, TcpTransport, record::START_BYTES},
};
use millrace_runtime::{
    ByteStream, MemoryStream, RuntimeExt, RuntimeRef, memory_stream, virtual_time::VirtualTime,
};
use millrace_xdr::{Arena, Encoder};

use crate::common::{Doubler, peer, words};

const MIB: usize = 1 << 20;
const MEMORY: usize = 32 * MIB;
const CONNECTIONS: usize = 64;
/// Maximum bytes of a call.
const RECORD: usize = MIB + (64 << 10);

struct Server {
    rt: RuntimeRef,
    arena: Arena,
    budget: Budget,
    config: TcpServerConfig,
    started: Arc<AtomicUsize>,
}

impl Server {
    fn new(rt: &RuntimeRef) -> Self {
        let budget = BudgetConfig {
            memory: MEMORY,
            own: 32 << 10,
            largest: 2 * MIB,
            connections: CONNECTIONS,
            per_client: CONNECTIONS,
        };
        Self {
            rt: Arc::clone(rt),
            arena: Arena::new(millrace_buffer::ArenaConfig { limit: 2 * MEMORY, huge_pages: false }),
            budget: Budget::new(budget, Arc::clone(rt)),
            config: TcpServerConfig { max_record: RECORD, ..TcpServerConfig::default() },
            started: Arc::default(),
        }
    }

    /// A connection from client number `client`; the pipe buffers `capacity` bytes in each direction.
    fn connect(&self, client: u8, capacity: usize) -> MemoryStream {
        let (ours, theirs) = memory_stream(capacity, usize::MAX);
        let program = Doubler {
            rt: Some(Arc::clone(&self.rt)),
            started: Arc::clone(&self.started),
            ..Doubler::default()
        };
        let server = TcpServer {
            service: Arc::new(Dispatcher::new([Arc::new(program) as Arc<dyn Program>])),
            rt: Arc::clone(&self.rt),
            arena: self.arena.clone(),
            config: self.config.clone(),
            stats: Arc::default(),
        };
        let account = self.budget.open(Self::client(client)).unwrap();
        let served = server.serve(Box::new(theirs), peer(), account, std::future::pending());
        self.rt.spawn("server", Box::pin(served));
        ours
    }

    fn client(client: u8) -> ClientAddr {
        std::net::IpAddr::from([10, 0, 0, client]).into()
    }

    fn closed(&self, reason: CloseReason) -> u64 {
        self.config.connection.closed.of(reason)
    }

    /// Memory that all connections share.
    fn shared(&self) -> usize {
        self.budget.stats().shared
    }
}

/// A well-behaved client.
struct Honest {
    transport: Arc<dyn Transport>,
    arena: Arena,
}

impl Honest {
    fn connect(server: &Server, client: u8) -> Self {
        let arena = Arena::new(millrace_buffer::ArenaConfig { limit: 64 * MIB, huge_pages: false });
        let stream = Box::new(server.connect(client, 256 << 10));
        let config = TcpClientConfig { timeout: Duration::from_secs(5), ..TcpClientConfig::default() };
        Self { transport: TcpTransport::start(stream, &server.rt, &arena, config).unwrap(), arena }
    }

    fn call(&self, proc: u32, args: impl FnOnce(&mut Encoder), room: usize) -> PendingCall {
        let mut e = Encoder::new(&self.arena, 128);
        call_header(&mut e, 100_003, 3, proc, &Credential::None);
        args(&mut e);
        let reply = ReplySpec { max_head: 128 + room, ..ReplySpec::default() };
        self.transport.submit(Request::new(e.finish().unwrap(), reply))
    }

    /// Writes and reads 1 MiB and makes a small call, concurrently.
    async fn work(&self) -> Result<(), RpcError> {
        let data = || (0..16).map(|_| self.arena.alloc(64 << 10).unwrap().freeze()).collect();
        let write = || self.call(7, |e| e.put_payload(data()), MIB);
        let read = || self.call(10, |e| e.put_u32(MIB as u32), MIB);
        let small = || self.call(1, |e| e.put_u32(1), 0);
        let all = futures::join!(write(), read(), small(), write(), read(), small());
        for result in [all.0, all.1, all.2, all.3, all.4, all.5] {
            result?;
        }
        Ok(())
    }
}

async fn write_all(stream: &mut MemoryStream, mut bytes: &[u8]) {
    while !bytes.is_empty() {
        match poll_fn(|cx| stream.poll_write(cx, &[IoSlice::new(bytes)])).await {
            Ok(n) => bytes = &bytes[n..],
            Err(_) => return,
        }
    }
}

/// Receives up to `max` bytes.
async fn take(stream: &mut MemoryStream, max: usize) -> usize {
    let mut b = vec![0; max];
    poll_fn(|cx| stream.poll_read(cx, &mut [IoSliceMut::new(&mut b)])).await.unwrap()
}

fn record(body: &[u32]) -> Vec<u8> {
    let mut out = words(&[0x8000_0000 + 4 * body.len() as u32]);
    out.extend(words(body));
    out
}

fn call(proc: u32, arg: u32) -> Vec<u8> {
    record(&[1, 0, 2, 100_003, 3, proc, 0, 0, 0, 0, arg])
}

fn run<F: Future<Output = ()>>(test: impl FnOnce(RuntimeRef) -> F) {
    let time = VirtualTime::new(1);
    let rt = time.runtime();
    time.block_on(test(rt)).unwrap();
}

/// Works without errors for `seconds`. Returns the number of completed rounds.
async fn work_for(server: &Server, honest: &Honest, seconds: u64) -> u32 {
    let start = server.rt.now();
    let mut rounds = 0;
    while server.rt.now().duration_since(start) < Duration::from_secs(seconds) {
        honest.work().await.unwrap();
        rounds += 1;
        server.rt.sleep(Duration::from_secs(3)).await;
    }
    rounds
}

#[test]
fn incomplete_records_hold_a_limited_share_of_memory_for_a_limited_time() {
    // Nothing more, a byte every 45 seconds, and 1000 bytes a second.
    for (bytes, every) in [(0, 600), (1, 45), (1000, 1)] {
        run(async |rt| {
            let server = Server::new(&rt);
            let honest = Honest::connect(&server, 9);
            for n in 0..60 {
                let mut stream = server.connect(1 + n % 2, 10_000);
                let later = Arc::clone(&rt);
                rt.spawn(
                    "hostile",
                    Box::pin(async move {
                        write_all(&mut stream, &words(&[0x8010_0000])).await;
                        // Memory is allocated for a record that has begun.
                        write_all(&mut stream, &[0; START_BYTES]).await;
                        loop {
                            later.sleep(Duration::from_secs(every)).await;
                            write_all(&mut stream, &vec![0; bytes]).await;
                        }
                    }),
                );
            }
            work_for(&server, &honest, 1).await;
            let held: Vec<usize> = [1, 2].map(|n| server.budget.client_in_use(Server::client(n))).into();
            assert!(held.iter().all(|held| *held < server.shared() / 2), "{held:?}");
            assert!(server.budget.stats().waiting > 0, "more connections than the memory admits");
            assert!(server.arena.stats().in_use < 8 * MIB, "{:?}", server.arena.stats());
            let rounds = work_for(&server, &honest, 240).await;
            assert!(rounds > 60, "{rounds}");
            // The waiting connections had their time limits after the others.
            work_for(&server, &honest, 600).await;
            assert_eq!(server.closed(CloseReason::Stalled), 60, "{bytes} each {every} s");
            assert!(
                server.budget.client_in_use(Server::client(1))
                    + server.budget.client_in_use(Server::client(2))
                    == 0
            );
        });
    }
}

/// Many clients hold all shared memory with calls of which the last byte is missing. Small calls of others are
/// executed, on old and on new connections, because each connection has reserved memory.
#[test]
fn small_calls_are_executed_while_bulk_data_holds_all_memory() {
    for own in [32 << 10, 0] {
        run(async |rt| {
            let mut server = Server::new(&rt);
            let config = BudgetConfig {
                memory: MEMORY,
                own,
                largest: 2 * MIB,
                connections: CONNECTIONS,
                per_client: CONNECTIONS,
            };
            server.budget = Budget::new(config, Arc::clone(&rt));
            let small = async |honest: &Honest| {
                let calls = (0..8).map(|_| honest.call(1, |e| e.put_u32(1), 0));
                futures::future::try_join_all(calls).await.map(|replies| replies.len())
            };
            let old = Honest::connect(&server, 100);
            assert_eq!(small(&old).await.unwrap(), 8);
            let mut held = Vec::new();
            for n in 1..60 {
                let mut stream = server.connect(n, 2 * MIB);
                write_all(&mut stream, &words(&[0x8010_0000])).await;
                write_all(&mut stream, &vec![0; MIB - 1]).await;
                held.push(stream);
            }
            rt.sleep(Duration::from_millis(100)).await;
            let stats = server.budget.stats();
            assert!(stats.waiting > 0 && stats.shared - stats.in_use < MIB + (64 << 10), "{stats:?}");
            for honest in [&old, &Honest::connect(&server, 101)] {
                assert_eq!(small(honest).await.is_ok(), own > 0, "{own} bytes are reserved");
            }
            assert_eq!(server.closed(CloseReason::Stalled), 0, "the memory was held all the time");
            drop(held);
        });
    }
}

/// A client that was alone has nearly all memory for calls whose last byte does not come, and others take the rest. When
/// another one waits for memory, connections of the first end, which have fallen behind by a short time.
#[test]
fn stalled_connections_beyond_the_share_end_when_others_need_memory() {
    run(async |rt| {
        let server = Server::new(&rt);
        let mut held = Vec::new();
        for client in std::iter::repeat_n(1, 40).chain(2..6) {
            let mut stream = server.connect(client, 2 * MIB);
            write_all(&mut stream, &words(&[0x8010_0000])).await;
            write_all(&mut stream, &vec![0; MIB - 1]).await;
            rt.sleep(Duration::from_millis(1)).await;
            held.push(stream);
        }
        rt.sleep(Duration::from_secs(6)).await;
        assert_eq!(server.closed(CloseReason::Stalled), 0, "only the client itself waits");
        let stats = server.budget.stats();
        assert!(stats.shared - stats.in_use < MIB, "{stats:?}");
        Honest::connect(&server, 9).work().await.unwrap();
        assert!((1..30).contains(&server.closed(CloseReason::Stalled)));
        for modest in 2..6 {
            assert!(server.budget.client_in_use(Server::client(modest)) > MIB / 2, "client {modest}");
        }
        drop(held);
    });
}

/// Buffers of bulk data that are held in all spans of the arena, up to its limit, leave memory for small records.
#[test]
fn small_calls_are_executed_while_bulk_data_holds_the_arena() {
    run(async |rt| {
        let mut server = Server::new(&rt);
        let limit = millrace_buffer::ArenaConfig { limit: MEMORY, huge_pages: false };
        server.arena = Arena::with_small_reserve(limit, MEMORY / 8, 4096);
        let bulk: Vec<_> = std::iter::from_fn(|| server.arena.alloc(64 << 10).ok()).collect();
        let honest = Honest::connect(&server, 100);
        honest.call(1, |e| e.put_u32(1), 0).await.unwrap();
        drop(bulk);
    });
}

#[test]
fn a_slow_link_above_the_minimum_rate_keeps_its_connection() {
    run(async |rt| {
        let server = Server::new(&rt);
        let mut stream = server.connect(1, 10_000);
        write_all(&mut stream, &words(&[0x8000_0000 + 44 + MIB as u32])).await;
        write_all(&mut stream, &words(&[1, 0, 2, 100_003, 3, 7, 0, 0, 0, 0, MIB as u32])).await;
        for _ in 0..64 {
            write_all(&mut stream, &vec![1; MIB / 64]).await;
            rt.sleep(Duration::from_millis(990)).await;
        }
        let mut taken = 0;
        while taken < MIB + 32 {
            let n = take(&mut stream, 8 << 10).await;
            assert!(n > 0, "the connection was closed");
            taken += n;
            rt.sleep(Duration::from_millis(490)).await;
        }
        assert_eq!(server.closed(CloseReason::Stalled), 0);
    });
}

#[test]
fn slowly_received_replies_hold_a_limited_share_of_memory_for_a_limited_time() {
    // No further bytes, and 8 KiB every 20 seconds.
    for (bytes, every) in [(1, 10_000), (8 << 10, 20)] {
        run(async |rt| {
            let server = Server::new(&rt);
            let honest = Honest::connect(&server, 9);
            for n in 0..17 {
                let mut stream = server.connect(1 + n % 2, 10_000);
                for _ in 0..64 {
                    write_all(&mut stream, &call(10, MIB as u32)).await;
                }
                let later = Arc::clone(&rt);
                rt.spawn(
                    "hostile",
                    Box::pin(async move {
                        loop {
                            later.sleep(Duration::from_secs(every)).await;
                            if take(&mut stream, bytes).await == 0 {
                                return;
                            }
                        }
                    }),
                );
            }
            let rounds = work_for(&server, &honest, 1).await;
            let started = server.started.load(Ordering::Relaxed) - 2 * rounds as usize;
            assert!(
                started < MEMORY / MIB,
                "{started} of 1088 calls started without memory for their replies"
            );
            assert!(server.arena.stats().in_use < MEMORY, "{:?}", server.arena.stats());
            let rounds = work_for(&server, &honest, 600).await;
            assert!(rounds > 150, "{rounds}");
            assert_eq!(server.closed(CloseReason::Stalled), 17);
            assert_eq!(server.budget.client_in_use(Server::client(1)), 0);
        });
    }
}

#[test]
fn replies_are_charged_before_their_calls_execute() {
    run(async |rt| {
        let mut server = Server::new(&rt);
        server.config.max_queued = 3 * MIB;
        let mut stream = server.connect(1, 1000);
        for _ in 0..20 {
            write_all(&mut stream, &call(10, MIB as u32)).await;
        }
        rt.sleep(Duration::from_secs(1)).await;
        assert_eq!(server.started.load(Ordering::Relaxed), 2, "two replies of 1 MiB and a head each");
        let mut taken = 0;
        while taken < 20 * (MIB + 32) {
            taken += take(&mut stream, MIB).await;
        }
        assert_eq!((server.started.load(Ordering::Relaxed), taken), (20, 20 * (MIB + 32)));
    });
}

/// While a call waits, its connection releases the memory of the previous reply, so that it may get memory at
/// once.
#[test]
fn a_waiting_call_starts_when_its_connection_releases_enough_memory() {
    run(async |rt| {
        let mut server = Server::new(&rt);
        let config =
            BudgetConfig { memory: 92 * (64 << 10), own: 0, largest: 2 * MIB, connections: 8, per_client: 8 };
        server.budget = Budget::new(config, Arc::clone(&rt));
        // Another client, and a queued reply on another connection of the same client.
        let _other = server.connect(2, 1000);
        let mut stays = server.connect(1, 1000);
        write_all(&mut stays, &call(10, MIB as u32)).await;
        let mut stream = server.connect(1, 1000);
        for _ in 0..2 {
            write_all(&mut stream, &call(10, MIB as u32)).await;
        }
        rt.sleep(Duration::from_secs(1)).await;
        let stats = server.budget.stats();
        assert_eq!((server.started.load(Ordering::Relaxed), stats.waiting), (2, 1), "{stats:?}");
        let mut taken = 0;
        while taken < MIB + 32 {
            taken += take(&mut stream, MIB + 32 - taken).await;
        }
        rt.sleep(Duration::from_secs(1)).await;
        let stats = server.budget.stats();
        assert_eq!((server.started.load(Ordering::Relaxed), stats.waiting), (3, 0), "{stats:?}");
    });
}

#[test]
fn a_long_call_for_a_long_reply_gets_garbage_args() {
    run(async |rt| {
        let server = Server::new(&rt);
        let mut stream = server.connect(1, 1 << 20);
        let mut long = words(&[0x8000_0000 + 44 + 100_000]);
        long.extend(words(&[1, 0, 2, 100_003, 3, 10, 0, 0, 0, 0, MIB as u32]));
        long.resize(4 + 44 + 100_000, 0);
        write_all(&mut stream, &long).await;
        let mut reply = vec![0; 28];
        poll_fn(|cx| stream.poll_read(cx, &mut [IoSliceMut::new(&mut reply)])).await.unwrap();
        assert_eq!(reply, record(&[1, 1, 0, 0, 0, 4]), "GARBAGE_ARGS");
        assert_eq!(server.started.load(Ordering::Relaxed), 0);
    });
}

#[test]
fn a_call_waits_for_memory_for_its_reply() {
    run(async |rt| {
        let mut server = Server::new(&rt);
        server.arena = Arena::new(millrace_buffer::ArenaConfig { limit: 1, huge_pages: false });
        let mut stream = server.connect(1, 1000);
        rt.sleep(Duration::from_secs(1)).await;
        let mut held = Vec::new();
        while let Ok(b) = server.arena.alloc(1) {
            held.push(b);
        }
        held.pop(); // Memory for the call.
        write_all(&mut stream, &call(9, 100)).await;
        rt.sleep(Duration::from_secs(100)).await;
        assert_eq!(server.started.load(Ordering::Relaxed), 0);
        drop(held);
        assert_eq!(take(&mut stream, 200).await, 132);
        assert_eq!(server.started.load(Ordering::Relaxed), 1);
    });
}

/// Counts the calls of a connection with many waiting calls between two calls of another connection.
#[test]
fn long_replies_yield_the_shard_to_other_connections() {
    run(async |rt| {
        let mut server = Server::new(&rt);
        server.config.max_queued = 1 << 30;
        let honest = Honest::connect(&server, 9);
        honest.call(1, |e| e.put_u32(1), 0).await.unwrap();
        for (proc, bytes, calls, most) in [(9, 128 << 10, 50, 1), (10, 512 << 10, 100, 4), (9, 100, 1000, 64)]
        {
            let mut hostile: Vec<_> = (0..2).map(|n| server.connect(n, 1 << 30)).collect();
            for stream in &mut hostile {
                let all: Vec<u8> = (0..calls).flat_map(|_| call(proc, bytes)).collect();
                write_all(stream, &all).await;
            }
            let before = server.started.load(Ordering::Relaxed);
            honest.call(1, |e| e.put_u32(1), 0).await.unwrap();
            let between = server.started.load(Ordering::Relaxed) - before;
            // A call and its reply pass through a few tasks, and each of the two connections may have a turn
            // before each task.
            assert!(between <= 2 * 6 * most, "{between} calls of procedure {proc} came first");
            assert!(2 * calls > 2 * 6 * most);
            for stream in &mut hostile {
                let mut left = calls * (32 + bytes as usize);
                while left > 0 {
                    left -= take(stream, left).await;
                }
            }
        }
    });
}

#[test]
fn a_client_with_many_connections_has_as_many_turns_as_one_with_one() {
    run(async |rt| {
        let mut server = Server::new(&rt);
        server.config.max_queued = 1 << 30;
        let honest = Honest::connect(&server, 9);
        honest.call(1, |e| e.put_u32(1), 0).await.unwrap();
        let mut hostile: Vec<_> = (0..30).map(|_| server.connect(1, 1 << 30)).collect();
        for stream in &mut hostile {
            let all: Vec<u8> = (0..20).flat_map(|_| call(9, 128 << 10)).collect();
            write_all(stream, &all).await;
        }
        // Each connection has its first turn.
        honest.call(1, |e| e.put_u32(1), 0).await.unwrap();
        for _ in 0..20 {
            let before = server.started.load(Ordering::Relaxed);
            honest.call(1, |e| e.put_u32(1), 0).await.unwrap();
            let between = server.started.load(Ordering::Relaxed) - before;
            assert!(between <= 30, "{between} listings came first");
        }
    });
}

#[test]
fn connections_without_a_first_call_are_closed_before_idle_ones() {
    run(async |rt| {
        let mut server = Server::new(&rt);
        let timeouts = (Duration::from_secs(60), Some(Duration::from_secs(360)));
        (server.config.connection.first_call_timeout, server.config.connection.idle_timeout) = timeouts;
        let mut silent = server.connect(1, 1000);
        let mut idle = server.connect(1, 1000);
        write_all(&mut idle, &call(0, 0)).await;
        assert_eq!(take(&mut idle, 28).await, 28);
        let start = rt.now();
        assert_eq!(take(&mut silent, 1).await, 0);
        assert_eq!(rt.now().duration_since(start), Duration::from_secs(60));
        assert_eq!((server.closed(CloseReason::NoCall), server.closed(CloseReason::Idle)), (1, 0));
        assert_eq!(take(&mut idle, 1).await, 0);
        assert_eq!((server.closed(CloseReason::NoCall), server.closed(CloseReason::Idle)), (1, 1));
    });
}

#[test]
fn an_evicted_connection_ends_at_once_and_frees_its_memory() {
    run(async |rt| {
        let server = Server::new(&rt);
        let mut streams: Vec<_> = (0..CONNECTIONS).map(|_| server.connect(1, 1000)).collect();
        // The first connection has unreceived replies, and all are older than those of other clients.
        for _ in 0..3 {
            write_all(&mut streams[0], &call(10, MIB as u32)).await;
        }
        rt.sleep(Duration::from_secs(1)).await;
        assert!(server.budget.client_in_use(Server::client(1)) > 2 * MIB);
        for stream in &mut streams[1..] {
            write_all(stream, &call(0, 0)).await;
        }
        rt.sleep(Duration::from_secs(1)).await;
        let honest = Honest::connect(&server, 9);
        honest.work().await.unwrap();
        assert_eq!(server.closed(CloseReason::Evicted), 1);
        assert!(server.budget.client_in_use(Server::client(1)) < MIB);
        while take(&mut streams[0], 10_000).await > 0 {}
        assert_eq!(server.budget.stats().connections, CONNECTIONS);
    });
}

/// A connection that waited for memory may take long to end, because its calls in progress are completed.
#[test]
fn an_ended_connection_leaves_memory_to_those_that_wait() {
    let time = VirtualTime::new(1);
    let arena = Arena::new(millrace_buffer::ArenaConfig { limit: SPAN_BYTES, huge_pages: false });
    let service = Arc::new(Dispatcher::new([]));
    let (rt, config, account) = (time.runtime(), ConnectionConfig::default(), Account::unlimited());
    let mut ended =
        ServerConnection::<Stages>::new(peer(), service, Arc::clone(&rt), arena.clone(), config, account);
    time.block_on(async {
        let held = arena.alloc(SPAN_BYTES).unwrap();
        ended.wait_for_memory(&arena.alloc(SPAN_BYTES).unwrap_err());
        assert!(poll_fn(|cx| Poll::Ready(ended.memory.poll(cx).is_pending())).await);
        let (got, other) = (Arc::new(AtomicUsize::new(0)), arena.clone());
        let counted = Arc::clone(&got);
        let waiting = async move {
            drop(other.wait_for(|arena| arena.alloc(SPAN_BYTES)).await.unwrap());
            counted.fetch_add(1, Ordering::Relaxed);
        };
        rt.spawn("other", Box::pin(waiting));
        rt.sleep(Duration::from_secs(1)).await;
        ended.finish().await;
        drop(held);
        rt.sleep(Duration::from_secs(1)).await;
        assert_eq!(got.load(Ordering::Relaxed), 1, "the other one is not woken");
    })
    .unwrap();
}
