//! TCP and RDMA on the same hosts: the exact times of the model.

use std::{
    future::poll_fn,
    io::{self, IoSlice, IoSliceMut},
};

use millrace_rdma::{Access, Memory, MemoryRegion, WriteRequest};
use millrace_rdma_sim::{Faults, Seed};
use millrace_runtime::{ByteStream, LocalPort, RuntimeExt};

use super::{
    model::{A, B, C, TestNetwork, receive, way_ns, with_world},
    *,
};

type Stream = Box<dyn ByteStream>;

pub(super) async fn connect(world: &World, from: [u8; 4], to: [u8; 4]) -> (Stream, Stream) {
    let mut listener = world.tcp(to.into()).listen((to, 0).into()).unwrap();
    let addr = listener.local_addr();
    let connecting = world.tcp(from.into()).connect(LocalPort::Any, addr);
    let (a, b) = tokio::join!(connecting, listener.accept());
    (a.unwrap(), b.unwrap())
}

pub(super) async fn write(stream: &mut Stream, mut bytes: &[u8]) {
    while !bytes.is_empty() {
        let n = poll_fn(|cx| stream.poll_write(cx, &[IoSlice::new(bytes)])).await.unwrap();
        bytes = &bytes[n..];
    }
}

async fn read_some(stream: &mut Stream, most: usize) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; most];
    let n = poll_fn(|cx| stream.poll_read(cx, &mut [IoSliceMut::new(&mut bytes)])).await?;
    bytes.truncate(n);
    Ok(bytes)
}

pub(super) async fn read(stream: &mut Stream, n: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    while bytes.len() < n {
        let more = read_some(stream, (n - bytes.len()).min(64 << 10)).await.unwrap();
        assert!(!more.is_empty(), "the stream ended after {} of {n} bytes", bytes.len());
        bytes.extend(more);
    }
    bytes
}

/// A record of `n` bytes including its mark.
fn record(n: usize) -> Vec<u8> {
    let mut bytes = pattern(n, 1);
    bytes[..4].copy_from_slice(&(0x8000_0000 | (n as u32 - 4)).to_be_bytes());
    bytes
}

fn with_world_of<T>(profile: Profile, test: impl AsyncFnOnce(&TestNetwork) -> T) -> T {
    let time = VirtualTime::new(1);
    let lan = TestNetwork { world: World::new(&time, profile), rt: time.runtime() };
    time.block_on(test(&lan)).expect("the test made no progress")
}

/// A profile on which only the link and the steps named here take time.
fn light() -> Profile {
    let mut p = odd();
    (p.host.cores, p.host.interrupt_ns, p.host.message_ns) = (16, 0, 0);
    (p.tcp.call_ns, p.tcp.send_segment_ns, p.tcp.receive_segment_ns) = (7, 5, 3);
    (p.tcp.send_copies, p.tcp.receive_copies, p.tcp.checksum_mb_per_s, p.tcp.coalesce_ns) = (0, 0, 0.0, 0);
    p
}

/// Time in picoseconds for which a segment occupies a port.
fn segment_ps(bytes: u64) -> u64 {
    ((bytes + u64::from(odd().tcp.header_bytes)) as f64 * 1e6 / odd().link.mb_per_s).round() as u64
}

/// Time in nanoseconds for `bytes` bytes at a rate in 10^6 bytes per second.
fn at_rate(bytes: usize, rate: f64) -> u64 {
    (bytes as f64 * 1e3 / rate).round() as u64
}

/// Delay of the sending adapter.
fn adapter_ns() -> u64 {
    odd().adapter.work_request_ns + odd().adapter.transmit_ns
}

/// Delay from one port to the other without transmission.
fn distance_ns(p: &Profile) -> u64 {
    p.one_way().as_nanos() as u64
}

#[test]
fn the_time_of_a_ping_pong_is_that_of_the_formula() {
    for bytes in [4, 5, 128, 1000, 1448] {
        with_world(1, async |lan| {
            let (mut a, mut b) = connect(&lan.world, A, B).await;
            let (t, h, start) = (odd().tcp, odd().host, lan.now());
            for _ in 0..10 {
                write(&mut a, &record(bytes)).await;
                assert_eq!(read(&mut b, bytes).await, record(bytes));
                write(&mut b, &record(bytes)).await;
                read(&mut a, bytes).await;
            }
            let sum = at_rate(bytes, t.checksum_mb_per_s);
            let written = t.call_ns + t.send_segment_ns + sum + at_rate(bytes, h.copy_mb_per_s);
            let taken = t.coalesce_ns + h.interrupt_ns + t.receive_segment_ns + sum;
            let read = t.call_ns + h.message_ns + at_rate(2 * bytes, h.copy_mb_per_s);
            let one_way = written + adapter_ns() + way_ns(segment_ps(bytes as u64)) + taken + read;
            assert_eq!(lan.now() - start, 20 * one_way, "{bytes} bytes");
            // Everything except interrupt coalescing is processor time of one of the hosts.
            let cpu = written + taken - t.coalesce_ns + read;
            assert_eq!(lan.world.host_use(A.into()).cpu_ns, 10 * cpu);
            assert_eq!(lan.world.host_use(B.into()).bytes_in, 10 * bytes as u64);
        });
    }
}

#[test]
fn connecting_takes_the_time_of_the_handshake() {
    with_world(1, async |lan| {
        let mut listener = lan.world.tcp(B.into()).listen((B, 2049).into()).unwrap();
        let one_way = distance_ns(&odd());
        let connect = async {
            let stream = lan.world.tcp(A.into()).connect(LocalPort::Reserved, (B, 2049).into()).await;
            (stream.unwrap(), lan.now())
        };
        let accept = async { (listener.accept().await.unwrap(), lan.now()) };
        let ((a, connected), (b, accepted)) = tokio::join!(connect, accept);
        assert_eq!((connected, accepted), (2 * one_way, 3 * one_way));
        assert_eq!(a.peer_addr().unwrap(), SocketAddr::from((B, 2049)));
        assert_eq!(a.local_addr().unwrap(), b.peer_addr().unwrap());
        assert!(a.local_addr().unwrap().port() < 1024);
    });
}

#[test]
fn a_stream_keeps_the_link_full() {
    with_world_of(light(), async |lan| {
        let (mut a, mut b) = connect(&lan.world, A, B).await;
        let (n, start, t) = (100 * 1448 + 700, lan.now(), light().tcp);
        write(&mut a, &record(n)).await;
        assert_eq!(read(&mut b, n).await, record(n));
        let ps = 100 * segment_ps(1448) + segment_ps(700);
        let software = 2 * t.call_ns + t.send_segment_ns + t.receive_segment_ns;
        assert_eq!(lan.now() - start, software + adapter_ns() + way_ns(ps));
    });
}

#[test]
fn one_window_is_transferred_per_round_trip() {
    let mut p = light().at_distance(1000.0).unwrap();
    p.tcp.window_bytes = 10 * 1448;
    p.tcp.initial_window_bytes = p.tcp.window_bytes;
    let far = distance_ns(&p);
    with_world_of(p.clone(), async |lan| {
        let (mut a, mut b) = connect(&lan.world, A, B).await;
        const WINDOWS: u64 = 7;
        let (n, start) = ((WINDOWS * p.tcp.window_bytes) as usize, lan.now());
        let bytes = record(n);
        tokio::join!(write(&mut a, &bytes), read(&mut b, n));
        let software = 2 * p.tcp.call_ns + p.tcp.send_segment_ns + p.tcp.receive_segment_ns;
        let there = |ps: u64| software + adapter_ns() + ps.div_ceil(1000) + far + p.adapter.receive_ns;
        // The first segment of a window is sent when the first one of the previous window is acknowledged as
        // read.
        let round = there(segment_ps(1448)) + far;
        assert_eq!(lan.now() - start, (WINDOWS - 1) * round + there(10 * segment_ps(1448)));
    });
}

#[test]
fn slow_start_doubles_the_data_in_flight_in_each_round_trip() {
    let mut p = light().at_distance(1000.0).unwrap();
    p.tcp.initial_window_bytes = 2 * 1448;
    let far = distance_ns(&p);
    with_world_of(p.clone(), async |lan| {
        let (mut a, mut b) = connect(&lan.world, A, B).await;
        let (n, start) = ((2 + 4 + 8 + 16) * 1448, lan.now());
        write(&mut a, &record(n)).await;
        read(&mut b, n).await;
        // One call writes all data.
        let software = p.tcp.call_ns + p.tcp.send_segment_ns + p.tcp.receive_segment_ns;
        let there = |ps: u64| software + adapter_ns() + ps.div_ceil(1000) + far + p.adapter.receive_ns;
        let rounds = 3 * (there(segment_ps(1448)) + far);
        assert_eq!(lan.now() - start, rounds + there(16 * segment_ps(1448)) + p.tcp.call_ns);
    });
}

#[test]
fn a_receive_queue_is_emptied_by_one_core_at_a_time() {
    let run_with = |queues: u32| {
        let mut p = light();
        (p.tcp.receive_queues, p.tcp.receive_segment_ns) = (queues, 50_000);
        (p.host.interrupt_ns, p.tcp.coalesce_ns) = (4001, 2503);
        with_world_of(p, async |lan| {
            let (mut a, mut x) = connect(&lan.world, A, B).await;
            let (mut c, mut y) = connect(&lan.world, C, B).await;
            let (n, start) = (20 * 1448, lan.now());
            let bytes = record(n);
            tokio::join!(write(&mut a, &bytes), write(&mut c, &bytes));
            tokio::join!(read(&mut x, n), read(&mut y, n));
            lan.now() - start
        })
    };
    let first = 7 + 5 + adapter_ns() + way_ns(segment_ps(1448)) + 2503 + 4001;
    assert_eq!(run_with(1), first + 40 * 50_000 + 7);
    // The first segment of the second connection follows that of the first one through the same port.
    let second = first + segment_ps(1448).div_ceil(1000) + 20 * 50_000 + 7;
    assert!(run_with(2).abs_diff(second) <= 1, "{} for {second}", run_with(2));
}

#[test]
fn tcp_and_rdma_share_the_port() {
    with_world_of(light(), async |lan| {
        let (mut a, mut b) = lan.connect(A, B, &ConnectParams::default()).await;
        let (mut x, mut y) = connect(&lan.world, A, B).await;
        let region = MemoryRegion::new(b.domain(), Memory::Owned(buffer(&vec![0; 1 << 20])));
        let region = region.expose(Access::RemoteWrite).unwrap();
        receive(&mut b, 1);
        lan.rt.sleep(Duration::from_millis(1)).await;
        let (start, n) = (lan.now(), 150 * 1448);
        let data = views(&pattern(1 << 20, 1), 1 << 20);
        for _ in 0..4 {
            a.post_write(WriteRequest { data: data.clone(), to: region.segment() }).unwrap();
        }
        a.post_send(send(b"done")).unwrap();
        let rdma = async {
            run(&mut a, &mut b, (0, 1)).await;
            lan.now() - start
        };
        let tcp = async {
            write(&mut x, &record(n)).await;
            read(&mut y, n).await;
            lan.now() - start
        };
        let (rdma, tcp) = tokio::join!(rdma, tcp);
        // Each gets half of the link, so TCP takes the time of twice its data.
        let alone = 150 * segment_ps(1448) / 1000;
        assert!((2 * alone..2 * alone + 200_000).contains(&tcp), "{tcp} instead of {alone}");
        // RDMA is delayed only by the data that TCP sent.
        let both = alone + (4 << 20) * 1000 / 937;
        assert!(rdma > both && rdma < both + both / 10, "{rdma} instead of {both}");
    });
}

#[test]
fn failed_connects_return_errors() {
    with_world(1, async |lan| {
        let tcp = lan.world.tcp(A.into());
        let kind = |r: io::Result<Stream>| r.err().map(|e| e.kind());
        let refused = tcp.connect(LocalPort::Any, (A, 1).into()).await;
        assert_eq!(kind(refused), Some(io::ErrorKind::ConnectionRefused));
        let nowhere = tcp.connect(LocalPort::Any, (B, 1).into()).await;
        assert_eq!(kind(nowhere), Some(io::ErrorKind::HostUnreachable));
        let listen = |addr: ([u8; 4], u16)| tcp.listen(addr.into()).err().map(|e| e.kind());
        assert_eq!(listen((C, 1)), Some(io::ErrorKind::AddrNotAvailable));
        let held = tcp.listen((A, 1).into()).unwrap();
        assert_eq!(listen((A, 1)), Some(io::ErrorKind::AddrInUse));
        // Closing a listener resets its waiting connections.
        let mut waits = tcp.connect(LocalPort::Any, (A, 1).into()).await.unwrap();
        lan.rt.sleep(Duration::from_millis(1)).await;
        drop(held);
        let error = read_some(&mut waits, 1).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
    });
}

#[test]
fn a_stream_ends_after_the_written_data() {
    with_world(1, async |lan| {
        let (mut a, mut b) = connect(&lan.world, A, B).await;
        let bytes = record(30_000);
        write(&mut a, &bytes).await;
        a.shutdown();
        let refused = poll_fn(|cx| a.poll_write(cx, &[IoSlice::new(b"more")])).await.unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::BrokenPipe);
        assert_eq!(read(&mut b, bytes.len()).await, bytes);
        assert!(read_some(&mut b, 10).await.unwrap().is_empty());
        // The other direction stays open, and a dropped stream still sends written data.
        write(&mut b, &bytes).await;
        drop(b);
        assert_eq!(read(&mut a, bytes.len()).await, bytes);
        assert!(read_some(&mut a, 10).await.unwrap().is_empty());
    });
}

#[test]
fn data_after_a_close_resets_the_connection() {
    with_world(1, async |lan| {
        for early in [false, true] {
            let (mut a, b) = connect(&lan.world, A, B).await;
            let dropped = early.then_some(b);
            write(&mut a, &record(1000)).await;
            lan.rt.sleep(Duration::from_millis(1)).await;
            drop(dropped);
            let error = read_some(&mut a, 1).await.unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
        }
    });
}

#[test]
fn a_stopped_reader_stops_the_writer_at_the_window() {
    with_world(1, async |lan| {
        let (mut a, mut b) = connect(&lan.world, A, B).await;
        let window = odd().tcp.window_bytes as usize;
        let bytes = record(window + 1000);
        let n = poll_fn(|cx| a.poll_write(cx, &[IoSlice::new(&bytes)])).await.unwrap();
        assert_eq!(n, window);
        lan.rt.sleep(Duration::from_secs(10)).await;
        let more = poll_fn(|cx| Poll::Ready(a.poll_write(cx, &[IoSlice::new(&bytes[n..])]))).await;
        assert!(more.is_pending());
        let rest = bytes[n..].to_vec();
        let (_, all) = tokio::join!(write(&mut a, &rest), read(&mut b, bytes.len()));
        assert_eq!(all, bytes);
    });
}

#[test]
fn a_crashed_host_resets_its_peers_and_can_listen_again() {
    with_world(1, async |lan| {
        let (mut a, mut b) = connect(&lan.world, A, B).await;
        let mut listener = lan.world.tcp(B.into()).listen((B, 2049).into()).unwrap();
        lan.world.crash(B.into());
        for end in [&mut a, &mut b] {
            let error = read_some(end, 1).await.unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
        }
        assert!(listener.accept().await.is_err());
        assert!(lan.world.tcp(B.into()).listen((B, 2049).into()).is_ok());
        connect(&lan.world, A, B).await;
    });
}

/// Sends at most 1000 records until a fault ends the stream, and returns the trace.
fn run_with_faults(seed: u64) -> String {
    with_world(seed, async |lan| {
        let (mut a, mut b) = connect(&lan.world, A, B).await;
        let ms = Duration::from_millis;
        lan.world.set_faults(Faults {
            lose_one_in: 300,
            delay_one_in: 20,
            longest_delay: ms(3),
            stall_one_in: 50,
            longest_stall: ms(5),
        });
        let bytes = record(3000);
        for _ in 0..1000 {
            let wrote = poll_fn(|cx| a.poll_write(cx, &[IoSlice::new(&bytes)])).await;
            let mut left = wrote.unwrap_or_default();
            while left > 0 {
                let Ok(some) = read_some(&mut b, left).await else { break };
                left -= some.len();
            }
            if left > 0 {
                break;
            }
        }
        lan.world.trace()
    })
}

#[test]
fn the_same_seed_gives_the_same_trace_to_the_byte() {
    for seed in 0..10 {
        let trace = run_with_faults(seed);
        assert_eq!(trace, run_with_faults(seed));
        assert_ne!(trace, run_with_faults(seed + 1));
        assert!(trace.contains("fault: the connection is lost"));
        assert_eq!(trace.parse(), Ok(Seed(seed)));
    }
}
