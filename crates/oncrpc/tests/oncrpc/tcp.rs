//! RPC over TCP: both ends together, and each with a malicious peer.

use std::{
    io::{self, IoSlice, IoSliceMut},
    net::SocketAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll, ready},
    time::Duration,
};

use futures::{StreamExt, future::poll_fn, stream::FuturesUnordered};
use millrace_admission::Budget;
use millrace_oncrpc::{
    Credential, Dispatcher, Program, Reply, ReplySpec, Request, RpcError, Transport, call_header,
    serving::{CloseReason, ConnectionConfig},
    tcp::{TcpClientConfig, TcpServer, TcpServerConfig, TcpStats, TcpTransport},
};
use millrace_runtime::{
    ByteStream, MemoryStream, RuntimeExt, RuntimeRef, memory_stream, tokio_rt::TokioRuntime,
};
use millrace_xdr::{Arena, Encoder, Message};
use proptest::prelude::*;

use crate::common::{Doubler, arena, peer, words};

fn run<F: Future<Output = ()>>(test: impl FnOnce(Bench) -> F) {
    let rt = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    rt.block_on(async { test(Bench::new()).await });
}

struct Bench {
    rt: RuntimeRef,
    arena: Arena,
    stats: Arc<TcpStats>,
    done: Arc<AtomicUsize>,
    budget: Budget,
}

impl Bench {
    fn new() -> Self {
        Self {
            rt: TokioRuntime::current(),
            arena: Arena::new(millrace_buffer::ArenaConfig { limit: 64 << 20, huge_pages: false }),
            stats: Arc::default(),
            done: Arc::default(),
            budget: Budget::unlimited(),
        }
    }

    /// Serves the other end of the returned stream.
    fn serve(&self, capacity: usize, segment: usize, config: TcpServerConfig) -> MemoryStream {
        self.serve_until(capacity, segment, config, std::future::pending())
    }

    fn serve_until(
        &self,
        capacity: usize,
        segment: usize,
        config: TcpServerConfig,
        stop: impl Future<Output = ()> + Send + 'static,
    ) -> MemoryStream {
        let (ours, theirs) = memory_stream(capacity, segment);
        self.serve_stream(Box::new(theirs), config, stop);
        ours
    }

    fn serve_stream(
        &self,
        stream: Box<dyn ByteStream>,
        config: TcpServerConfig,
        stop: impl Future<Output = ()> + Send + 'static,
    ) {
        let program =
            Doubler { rt: Some(Arc::clone(&self.rt)), done: Arc::clone(&self.done), ..Doubler::default() };
        let server = TcpServer {
            service: Arc::new(Dispatcher::new([Arc::new(program) as Arc<dyn Program>])),
            rt: Arc::clone(&self.rt),
            arena: self.arena.clone(),
            config,
            stats: Arc::clone(&self.stats),
        };
        let account = self.budget.open(peer().addr.ip().into()).unwrap();
        self.rt.spawn("server", Box::pin(server.serve(stream, peer(), account, stop)));
    }

    fn client(&self, stream: MemoryStream, config: TcpClientConfig) -> Arc<dyn Transport> {
        TcpTransport::start(Box::new(stream), &self.rt, &self.arena, config).unwrap()
    }

    fn request(&self, proc: u32, args: impl FnOnce(&mut Encoder)) -> Request {
        let mut e = Encoder::new(&self.arena, 128);
        call_header(&mut e, 100_003, 3, proc, &Credential::None);
        args(&mut e);
        Request::new(e.finish().unwrap(), ReplySpec::default())
    }

    async fn call(&self, t: &Arc<dyn Transport>, proc: u32, n: u32) -> Result<u32, RpcError> {
        let reply = t.submit(self.request(proc, |e| e.put_u32(n))).await?;
        Ok(number(&reply))
    }

    async fn settle(&self, what: impl Fn() -> bool) {
        for _ in 0..2000 {
            if what() {
                return;
            }
            self.rt.sleep(Duration::from_millis(1)).await;
        }
        panic!("the condition was not met");
    }
}

fn number(reply: &Reply) -> u32 {
    reply.results().u32().unwrap()
}

async fn write_all(stream: &mut dyn ByteStream, mut bytes: &[u8]) {
    while !bytes.is_empty() {
        let n = poll_fn(|cx| stream.poll_write(cx, &[IoSlice::new(bytes)])).await.unwrap();
        bytes = &bytes[n..];
    }
}

async fn read_some(stream: &mut dyn ByteStream, max: usize) -> Vec<u8> {
    let mut b = vec![0; max];
    let n = poll_fn(|cx| stream.poll_read(cx, &mut [IoSliceMut::new(&mut b)])).await.unwrap();
    b.truncate(n);
    b
}

async fn read_exact(stream: &mut dyn ByteStream, len: usize) -> Vec<u8> {
    let mut out = Vec::new();
    while out.len() < len {
        let more = read_some(stream, len - out.len()).await;
        assert!(!more.is_empty(), "the stream ended after {out:02x?}");
        out.extend(more);
    }
    out
}

async fn read_record(stream: &mut dyn ByteStream) -> Vec<u8> {
    let mark = read_exact(stream, 4).await;
    let mark = u32::from_be_bytes(mark[..].try_into().unwrap());
    assert!(mark >= 1 << 31);
    read_exact(stream, (mark & 0x7fff_ffff) as usize).await
}

fn record(body: &[u32]) -> Vec<u8> {
    let mut out = words(&[0x8000_0000 + 4 * body.len() as u32]);
    out.extend(words(body));
    out
}

#[test]
fn a_null_call_over_tcp_is_encoded_byte_for_byte() {
    run(async |b| {
        let mut s = b.serve(1000, 1000, TcpServerConfig::default());
        write_all(&mut s, &record(&[7, 0, 2, 100_003, 3, 0, 0, 0, 0, 0])).await;
        assert_eq!(read_exact(&mut s, 28).await, record(&[7, 1, 0, 0, 0, 0]));
    });
}

#[test]
fn replies_are_sent_in_order_of_completion() {
    run(async |b| {
        let t = b.client(b.serve(10_000, 100, TcpServerConfig::default()), TcpClientConfig::default());
        let slow = b.call(&t, 8, 30);
        let fast = b.call(&t, 1, 4);
        let mut both = FuturesUnordered::new();
        both.push(futures::future::Either::Left(slow));
        both.push(futures::future::Either::Right(fast));
        assert_eq!(both.next().await.unwrap(), Ok(8));
        assert_eq!(both.next().await.unwrap(), Ok(60));
    });
}

#[test]
fn calls_beyond_the_in_flight_limit_are_queued() {
    run(async |b| {
        let server = TcpServerConfig { max_in_flight: 3, max_queued: 100, ..TcpServerConfig::default() };
        let client = TcpClientConfig { max_in_flight: 10, ..TcpClientConfig::default() };
        let t = b.client(b.serve(50, 7, server), client);
        let calls: Vec<_> = (0..300).map(|n| b.call(&t, [1, 2, 8][n as usize % 3], n % 5)).collect();
        for (n, r) in (0u32..).zip(futures::future::join_all(calls).await) {
            assert_eq!(r, Ok(n % 5 * 2));
        }
        assert_eq!(b.stats.calls.load(Ordering::Relaxed), 300);
        assert_eq!(b.stats.replies.load(Ordering::Relaxed), 300);
    });
}

#[test]
fn payloads_are_sent_by_reference_with_padding() {
    run(async |b| {
        let config = TcpServerConfig { max_record: 5 << 20, ..TcpServerConfig::default() };
        let t = b.client(b.serve(1 << 20, 100_000, config), TcpClientConfig::default());
        for len in [0, 1, 2, 3, 4, 4096, 1_000_001, (4 << 20) - 1, 4 << 20] {
            let data: Vec<u8> = (0..len).map(|i| (i / 7) as u8).collect();
            let views = data.chunks(1 << 20).map(|c| b.arena.copy_from(c).unwrap()).collect();
            let reply = t.submit(b.request(7, |e| e.put_payload(views))).await.unwrap();
            assert_eq!(reply.results().payload(8 << 20).unwrap().to_vec(), data, "{len} bytes");
        }
        assert!(matches!(
            t.submit(b.request(99, |_| ())).await,
            Err(RpcError::Accept(millrace_oncrpc::AcceptError::ProcUnavail))
        ));
    });
}

#[test]
fn memory_is_free_after_the_calls() {
    run(async |b| {
        let t = b.client(b.serve(10_000, 1000, TcpServerConfig::default()), TcpClientConfig::default());
        b.call(&t, 1, 1).await.unwrap();
        let before = b.arena.stats().in_use;
        for n in 0..50 {
            b.call(&t, [1, 8][n as usize % 2], 1).await.unwrap();
        }
        assert_eq!(b.arena.stats().in_use, before);
    });
}

#[test]
fn invalid_data_closes_only_its_connection() {
    run(async |b| {
        let streams: [(&str, Vec<u8>); 6] = [
            ("a fragment of 2^31-1", words(&[0x7fff_ffff])),
            ("endless empty fragments", vec![0; 4000]),
            ("an empty record", words(&[0x8000_0000])),
            ("a record of 4 bytes", record(&[7])),
            ("message type 2", record(&[7, 2, 2, 100_003, 3, 0, 0, 0, 0, 0])),
            ("another protocol", b"GET / HTTP/1.1\r\n\r\n".to_vec()),
        ];
        let good = b.client(b.serve(1000, 1000, TcpServerConfig::default()), TcpClientConfig::default());
        for (i, (what, bytes)) in (1..).zip(streams) {
            let mut s = b.serve(10_000, 1000, TcpServerConfig::default());
            write_all(&mut s, &bytes).await;
            assert_eq!(read_some(&mut s, 100).await, [], "{what}");
            assert_eq!(b.stats.malformed.load(Ordering::Relaxed), i, "{what}");
            assert_eq!(b.call(&good, 1, 3).await, Ok(6));
        }
    });
}

#[test]
fn invalid_calls_in_valid_records_are_answered_and_keep_the_connection() {
    run(async |b| {
        let mut s = b.serve(10_000, 1000, TcpServerConfig::default());
        let dropped = record(&[7, 1, 0, 0, 0, 0]);
        let wrong_version = record(&[8, 0, 3, 0, 0, 0]);
        let long_cred = record(&[9, 0, 2, 100_003, 3, 0, 1, 401, 0, 0]);
        let null = record(&[10, 0, 2, 100_003, 3, 0, 0, 0, 0, 0]);
        write_all(&mut s, &[dropped, wrong_version, long_cred, null].concat()).await;
        assert_eq!(read_record(&mut s).await, words(&[8, 1, 1, 0, 2, 2]));
        assert_eq!(read_record(&mut s).await, words(&[9, 1, 1, 1, 1]));
        assert_eq!(read_record(&mut s).await, words(&[10, 1, 0, 0, 0, 0]));
    });
}

#[test]
fn calls_of_a_disconnected_peer_are_completed() {
    run(async |b| {
        let mut s = b.serve(10_000, 1000, TcpServerConfig::default());
        for xid in 0..5 {
            write_all(&mut s, &record(&[xid, 0, 2, 100_003, 3, 8, 0, 0, 0, 0, 20])).await;
        }
        b.settle(|| b.stats.calls.load(Ordering::Relaxed) == 5).await;
        drop(s);
        b.settle(|| b.stats.open.load(Ordering::Relaxed) == 0).await;
        assert_eq!(b.done.load(Ordering::Relaxed), 5);
        assert_eq!(b.arena.stats().in_use, 0);
    });
}

#[test]
fn a_half_closed_peer_gets_its_replies() {
    run(async |b| {
        let mut s = b.serve(10_000, 1000, TcpServerConfig::default());
        write_all(&mut s, &record(&[1, 0, 2, 100_003, 3, 8, 0, 0, 0, 0, 10])).await;
        s.shutdown();
        assert_eq!(read_record(&mut s).await, words(&[1, 1, 0, 0, 0, 0, 20]));
        assert_eq!(read_some(&mut s, 10).await, []);
    });
}

#[test]
fn a_stopping_server_answers_calls_in_progress_only() {
    run(async |b| {
        let (stop, stopped) = futures::channel::oneshot::channel::<()>();
        let stopped = async move { _ = stopped.await };
        let mut s = b.serve_until(10_000, 1000, TcpServerConfig::default(), stopped);
        write_all(&mut s, &record(&[1, 0, 2, 100_003, 3, 8, 0, 0, 0, 0, 20])).await;
        b.settle(|| b.stats.calls.load(Ordering::Relaxed) == 1).await;
        stop.send(()).unwrap();
        assert_eq!(read_record(&mut s).await, words(&[1, 1, 0, 0, 0, 0, 40]));
        assert_eq!(read_some(&mut s, 10).await, []);
    });
}

#[test]
fn a_peer_that_does_not_read_is_throttled_and_then_disconnected() {
    run(async |b| {
        let stall_timeout = Duration::from_millis(50);
        let connection = ConnectionConfig { stall_timeout, ..ConnectionConfig::default() };
        let closed = Arc::clone(&connection.closed);
        let config = TcpServerConfig { max_queued: 3000, connection, ..TcpServerConfig::default() };
        let mut s = b.serve(100, 100, config);
        let call = record(&[1, 0, 2, 100_003, 3, 0, 0, 0, 0, 0]);
        let flood = async {
            loop {
                if poll_fn(|cx| s.poll_write(cx, &[IoSlice::new(&call)])).await.is_err() {
                    return;
                }
            }
        };
        millrace_runtime::timeout(&*b.rt, Duration::from_secs(20), flood).await.unwrap();
        assert_eq!(closed.of(CloseReason::Stalled), 1);
        assert!(b.stats.calls.load(Ordering::Relaxed) < 30);
        b.settle(|| b.stats.open.load(Ordering::Relaxed) == 0).await;
    });
}

/// Calls that were received with one read are buffered by the server, so no action of the peer wakes it for
/// them.
#[test]
fn deferred_calls_start_when_replies_or_calls_complete() {
    run(async |b| {
        let one_reply = TcpServerConfig { max_queued: 1, ..TcpServerConfig::default() };
        let one_call = TcpServerConfig { max_in_flight: 1, ..TcpServerConfig::default() };
        for (config, proc) in [(one_reply, 1), (one_call, 2)] {
            let mut s = b.serve(10_000, 10_000, config.clone());
            let call = |n| record(&[n, 0, 2, 100_003, 3, proc, 0, 0, 0, 0, n]);
            let five: Vec<u8> = (1..=5).flat_map(call).collect();
            write_all(&mut s, &five).await;
            for n in 1..=5 {
                let reply =
                    millrace_runtime::timeout(&*b.rt, Duration::from_secs(20), read_record(&mut s)).await;
                let reply = reply.unwrap_or_else(|| panic!("{config:?}: call {n} is not answered"));
                assert_eq!(reply, words(&[n, 1, 0, 0, 0, 0, 2 * n]));
            }
        }
    });
}

#[test]
fn a_peer_with_an_incomplete_call_is_disconnected_and_an_idle_one_is_kept() {
    run(async |b| {
        let stall_timeout = Duration::from_millis(50);
        let connection = ConnectionConfig { stall_timeout, ..ConnectionConfig::default() };
        let closed = Arc::clone(&connection.closed);
        let config = TcpServerConfig { connection, ..TcpServerConfig::default() };
        let mut idle = b.serve(1000, 1000, config.clone());
        let null = record(&[1, 0, 2, 100_003, 3, 0, 0, 0, 0, 0]);
        for started in [&words(&[0x8010_0000])[..], &null[..2], &null[..20]] {
            let mut s = b.serve(1000, 1000, config.clone());
            write_all(&mut s, started).await;
            let end = read_some(&mut s, 100);
            let end = millrace_runtime::timeout(&*b.rt, Duration::from_secs(20), end).await;
            assert_eq!(end.expect("the server waits indefinitely"), []);
        }
        assert_eq!(closed.of(CloseReason::Stalled), 3);
        b.settle(|| b.stats.open.load(Ordering::Relaxed) == 1).await;
        write_all(&mut idle, &null).await;
        assert_eq!(read_record(&mut idle).await.len(), 24);
    });
}

#[test]
fn unknown_xids_late_replies_and_calls_from_the_server_are_dropped() {
    run(async |b| {
        let (ours, mut theirs) = memory_stream(10_000, 1000);
        let t = b.client(ours, TcpClientConfig::default());
        let message = async {
            let call = read_record(&mut theirs).await;
            let xid = u32::from_be_bytes(call[..4].try_into().unwrap());
            let unknown = record(&[xid.wrapping_add(1), 1, 0, 0, 0, 0, 1]);
            let callback = record(&[xid, 0, 2, 5, 5, 5, 0, 0, 0, 0]);
            let answer = record(&[xid, 1, 0, 0, 0, 0, 2]);
            let twice = record(&[xid, 1, 0, 0, 0, 0, 3]);
            write_all(&mut theirs, &[unknown, callback, answer, twice].concat()).await;
        };
        let (got, ()) = futures::join!(b.call(&t, 1, 9), message);
        assert_eq!(got, Ok(2));
        assert_eq!(t.failure(), None);
    });
}

#[test]
fn closing_with_unanswered_calls_discards_unsent_data() {
    run(async |b| {
        let (ours, mut theirs) = memory_stream(10_000, 1000);
        let t = b.client(ours, TcpClientConfig::default());
        let call = t.submit(b.request(1, |e| e.put_u32(9)));
        b.rt.sleep(Duration::from_millis(10)).await; // The call is in the stream and unread.
        t.close();
        assert!(matches!(call.await, Err(RpcError::Disconnected { .. })));
        b.rt.sleep(Duration::from_millis(10)).await;
        let late = read_some(&mut theirs, 100).await;
        assert_eq!(late, [], "a call that its caller may send again is delivered late");
    });
}

#[test]
fn invalid_server_messages_fail_the_call_or_the_connection() {
    run(async |b| {
        // The message of the server after the XID, if it has one, and whether the connection survives.
        let invalid: [(&[u32], bool); 6] = [
            (&[0x8000_000c, 0, 1, 2], true),
            (&[0x8000_0010, 0, 1, 0, 0], true),
            (&[0x8000_0014, 0, 1, 0, 0, 401], true),
            (&[0x8000_0004, 0], false),
            (&[0xffff_ffff, 0], false),
            (&[0; 64], false),
        ];
        for (message, survives) in invalid {
            let (ours, mut theirs) = memory_stream(10_000, 1000);
            let t = b.client(ours, TcpClientConfig::default());
            let lying = async {
                let call = read_record(&mut theirs).await;
                let mut bytes = words(message);
                if survives {
                    bytes[4..8].copy_from_slice(&call[..4]);
                }
                write_all(&mut theirs, &bytes).await;
            };
            let (got, ()) = futures::join!(b.call(&t, 1, 9), lying);
            match got {
                Err(RpcError::BadReply { .. }) => assert!(survives, "{message:x?}"),
                Err(RpcError::Disconnected { .. }) => assert!(!survives, "{message:x?}"),
                other => panic!("{message:x?} gives {other:?}"),
            }
            assert_eq!(t.failure().is_none(), survives);
        }
    });
}

#[test]
fn a_lost_connection_fails_open_and_later_calls() {
    run(async |b| {
        let (ours, mut theirs) = memory_stream(10_000, 1000);
        let t = b.client(ours, TcpClientConfig::default());
        let leave = async move {
            read_record(&mut theirs).await;
            // The connection is lost within a reply.
            write_all(&mut theirs, &words(&[0x8000_0100, 0])).await;
        };
        let (first, second, ()) = futures::join!(b.call(&t, 1, 1), b.call(&t, 1, 2), leave);
        for r in [first, second, b.call(&t, 1, 3).await] {
            assert!(matches!(r, Err(RpcError::Disconnected { .. })), "{r:?}");
        }
    });
}

#[test]
fn a_call_times_out_and_the_next_is_answered() {
    run(async |b| {
        let (ours, mut theirs) = memory_stream(10_000, 1000);
        let timeout = Duration::from_millis(30);
        let t = b.client(ours, TcpClientConfig { timeout, max_in_flight: 1, ..TcpClientConfig::default() });
        let got = b.call(&t, 1, 1).await;
        assert!(matches!(got, Err(RpcError::TimedOut { .. })), "{got:?}");
        read_record(&mut theirs).await;
        let answer = async {
            let call = read_record(&mut theirs).await;
            let xid = u32::from_be_bytes(call[..4].try_into().unwrap());
            write_all(&mut theirs, &record(&[xid, 1, 0, 0, 0, 0, 5])).await;
        };
        let (got, ()) = futures::join!(b.call(&t, 1, 2), answer);
        assert_eq!(got, Ok(5));
    });
}

#[test]
fn a_cancelled_call_frees_its_slot() {
    run(async |b| {
        let config = TcpClientConfig { max_in_flight: 1, max_open: 2, ..TcpClientConfig::default() };
        let t = b.client(b.serve(10_000, 1000, TcpServerConfig::default()), config);
        for n in 0..20 {
            let mut sent = t.submit(b.request(8, |e| e.put_u32(10_000)));
            assert!(futures::poll!(&mut sent).is_pending());
            tokio::task::yield_now().await;
            let queued = t.submit(b.request(1, |e| e.put_u32(1)));
            let refused = t.submit(b.request(1, |e| e.put_u32(1))).await;
            assert!(matches!(refused, Err(RpcError::Local(_))), "{refused:?}");
            drop((sent, queued));
            assert_eq!(b.call(&t, 1, n).await, Ok(2 * n));
        }
    });
}

#[test]
fn a_requested_xid_is_used_by_one_call_at_a_time() {
    run(async |b| {
        let (ours, mut theirs) = memory_stream(10_000, 1000);
        let t = b.client(ours, TcpClientConfig::default());
        let request = || Request { xid: Some(0xcafe_0001), ..b.request(1, |e| e.put_u32(1)) };
        let answer = async {
            let call = read_record(&mut theirs).await;
            assert_eq!(call[..4], words(&[0xcafe_0001]));
            assert!(matches!(t.submit(request()).await, Err(RpcError::Local(_))));
            write_all(&mut theirs, &record(&[0xcafe_0001, 1, 0, 0, 0, 0, 5])).await;
        };
        let (got, ()) = futures::join!(t.submit(request()), answer);
        assert_eq!(number(&got.unwrap()), 5);
    });
}

#[test]
fn closing_ends_open_calls_and_the_stream() {
    run(async |b| {
        let (ours, mut theirs) = memory_stream(10_000, 1000);
        let t = b.client(ours, TcpClientConfig::default());
        let open = b.call(&t, 1, 1);
        let close = async {
            read_record(&mut theirs).await;
            t.close();
            assert_eq!(read_some(&mut theirs, 10).await, []);
        };
        let (got, ()) = futures::join!(open, close);
        assert!(matches!(got, Err(RpcError::Disconnected { .. })), "{got:?}");
    });
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn every_call_gets_its_reply_with_any_segmentation(
        capacity in 1usize..5000, segment in 1usize..3000, calls in prop::collection::vec((0usize..4, 0u32..3, 0usize..4000), 1..30),
    ) {
        run(async |b| {
            let t = b.client(b.serve(capacity, segment, TcpServerConfig::default()), TcpClientConfig::default());
            let all = calls.iter().enumerate().map(async |(i, (kind, n, len))| {
                if *kind == 3 {
                    let data = vec![i as u8; *len];
                    let view = b.arena.copy_from(&data).unwrap();
                    let reply = t.submit(b.request(7, |e| e.put_payload(view.into()))).await.unwrap();
                    assert_eq!(reply.results().payload(5000).unwrap().to_vec(), data);
                } else {
                    assert_eq!(b.call(&t, [1, 2, 8][*kind], *n).await, Ok(2 * n));
                }
            });
            futures::future::join_all(all).await;
        });
    }

    #[test]
    fn the_server_survives_arbitrary_bytes(bytes in prop::collection::vec(any::<u8>(), 0..600), good in 0usize..44) {
        run(async |b| {
            let mut s = b.serve(10_000, 100, TcpServerConfig::default());
            let call = record(&[7, 0, 2, 100_003, 3, 1, 0, 0, 0, 0]);
            write_all(&mut s, &call[..good]).await;
            write_all(&mut s, &bytes).await;
            s.shutdown();
            b.settle(|| b.stats.open.load(Ordering::Relaxed) == 0).await;
            assert_eq!(b.arena.stats().in_use, 0);
        });
    }
}

#[test]
fn a_message_with_a_head_in_pieces_is_sent_whole() {
    run(async |b| {
        let t = b.client(b.serve(10_000, 1000, TcpServerConfig::default()), TcpClientConfig::default());
        let whole = b.request(1, |e| e.put_u32(21)).message.head.to_vec();
        let head = whole.chunks(3).map(|c| arena().copy_from(c).unwrap()).collect();
        let message = Message { head, ..Default::default() };
        let reply = t.submit(Request::new(message, ReplySpec::default())).await.unwrap();
        assert_eq!(number(&reply), 42);
    });
}

// A multi-threaded executor runs a task that another task wakes before the waiting tasks.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn calls_of_ready_tasks_are_sent_together() {
    const CALLS: usize = 8;
    let b = Bench::new();
    let (ours, mut theirs) = memory_stream(10_000, 10_000);
    let t = b.client(ours, TcpClientConfig::default());
    let server = tokio::spawn(async move { read_some(&mut theirs, 10_000).await });
    let requests: Vec<_> = (0..CALLS).map(|_| b.request(1, |e| e.put_u32(7))).collect();
    let record = 4 + requests[0].message.stream_len();
    tokio::spawn(async move {
        for request in requests {
            let t = Arc::clone(&t);
            tokio::spawn(async move { t.submit(request).await });
        }
    });
    assert_eq!(server.await.unwrap().len(), CALLS * record);
}

/// A stream that records the size of each write.
struct Recorded {
    inner: MemoryStream,
    writes: Arc<Mutex<Vec<usize>>>,
}

impl ByteStream for Recorded {
    fn poll_read(&mut self, cx: &mut Context<'_>, bufs: &mut [IoSliceMut<'_>]) -> Poll<io::Result<usize>> {
        self.inner.poll_read(cx, bufs)
    }
    fn poll_write(&mut self, cx: &mut Context<'_>, bufs: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        let written = ready!(self.inner.poll_write(cx, bufs))?;
        self.writes.lock().unwrap().push(written);
        Poll::Ready(Ok(written))
    }
    fn abort(&mut self) {
        self.inner.abort();
    }
    fn shutdown(&mut self) {
        self.inner.shutdown();
    }
    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.inner.local_addr()
    }
    fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.inner.peer_addr()
    }
}

#[test]
fn replies_to_calls_received_together_are_sent_in_two_parts() {
    const REPLY: usize = 28;
    run(async |b| {
        let (mut ours, inner) = memory_stream(10_000, 10_000);
        let writes = Arc::new(Mutex::new(Vec::new()));
        let stream = Recorded { inner, writes: Arc::clone(&writes) };
        b.serve_stream(Box::new(stream), TcpServerConfig::default(), std::future::pending());
        for (calls, parts) in [(4, vec![4]), (16, vec![8, 8]), (40, vec![8, 32]), (40, vec![20, 20])] {
            let batch: Vec<u8> =
                (0..calls).flat_map(|xid| record(&[xid, 0, 2, 100_003, 3, 0, 0, 0, 0, 0])).collect();
            write_all(&mut ours, &batch).await;
            read_exact(&mut ours, REPLY * calls as usize).await;
            let sent = std::mem::take(&mut *writes.lock().unwrap());
            assert_eq!(sent, parts.iter().map(|n| n * REPLY).collect::<Vec<_>>());
        }
    });
}
