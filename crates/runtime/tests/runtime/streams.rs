//! Tests of byte streams, in memory and over sockets.

use std::{
    future::poll_fn,
    io::{self, IoSlice, IoSliceMut, Read},
    net::{TcpListener, TcpStream},
    sync::Arc,
    task::{Context, Poll, Wake, Waker},
    time::Duration,
};

use millrace_runtime::{
    ByteStream, LocalPort, memory_stream, timeout,
    tokio_rt::{TcpByteStream, TokioRuntime, run_shard},
};
use proptest::prelude::*;

/// Pseudo-random numbers from a seed.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % limit
    }
}

fn byte_at(position: usize) -> u8 {
    (position ^ (position >> 8) ^ (position >> 16)) as u8
}

/// Sends `total` bytes in pieces of random sizes, then ends the direction.
async fn send(
    stream: &tokio::sync::Mutex<dyn ByteStream>,
    total: usize,
    mut random: Random,
    max_pieces: usize,
) {
    let mut at = 0;
    while at < total {
        let piece = 1 + random.below(3000);
        let pieces: Vec<Vec<u8>> = (0..1 + random.below(max_pieces))
            .map(|i| {
                (i * piece..(i + 1) * piece).map(|o| at + o).filter(|p| *p < total).map(byte_at).collect()
            })
            .collect();
        let slices: Vec<_> = pieces.iter().map(|p| IoSlice::new(p)).collect();
        at += poll_fn(|cx| with(stream, cx, |s, cx| s.poll_write(cx, &slices))).await.unwrap();
        if random.below(8) == 0 {
            tokio::task::yield_now().await;
        }
    }
    with_now(stream, |s| s.shutdown()).await;
}

/// Receives to the end, usually with buffers larger than the available data. Returns the number of bytes.
async fn receive(
    stream: &tokio::sync::Mutex<dyn ByteStream>,
    mut random: Random,
    max_pieces: usize,
) -> usize {
    let mut at = 0;
    loop {
        let room = 1 + random.below(9000);
        let mut pieces: Vec<Vec<u8>> = (0..1 + random.below(max_pieces)).map(|_| vec![0; room]).collect();
        let mut slices: Vec<_> = pieces.iter_mut().map(|p| IoSliceMut::new(p)).collect();
        let n = poll_fn(|cx| with(stream, cx, |s, cx| s.poll_read(cx, &mut slices))).await.unwrap();
        if n == 0 {
            return at;
        }
        for (i, b) in pieces.iter().flatten().take(n).enumerate() {
            assert_eq!(*b, byte_at(at + i), "byte {}", at + i);
        }
        at += n;
    }
}

fn with<T>(
    stream: &tokio::sync::Mutex<dyn ByteStream>,
    cx: &mut Context<'_>,
    f: impl FnOnce(&mut dyn ByteStream, &mut Context<'_>) -> Poll<T>,
) -> Poll<T> {
    f(&mut *stream.try_lock().unwrap(), cx)
}

async fn with_now(stream: &tokio::sync::Mutex<dyn ByteStream>, f: impl FnOnce(&mut dyn ByteStream)) {
    f(&mut *stream.lock().await);
}

fn pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let a = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    (a, listener.accept().unwrap().0)
}

/// Transfers in both directions over sockets whose ends belong to two threads. If a readiness were cleared
/// wrongly, one end would wait forever.
fn stress(seed: u64, total: usize, max_pieces: usize) {
    let (a, b) = pair();
    let end = move |socket: TcpStream, seed: u64| {
        run_shard(async move {
            let stream = tokio::sync::Mutex::new(TcpByteStream::new(socket).unwrap());
            // One end as two futures of one task, as in a connection's task.
            let both = futures::future::join(
                send(&stream, total, Random(seed), max_pieces),
                receive(&stream, Random(seed + 1), max_pieces),
            );
            let rt = TokioRuntime::current();
            let Some(((), got)) = timeout(&*rt, Duration::from_secs(60), both).await else {
                panic!("a wake-up was lost")
            };
            assert_eq!(got, total);
        })
        .unwrap();
    };
    let other = std::thread::spawn(move || end(b, seed + 10));
    end(a, seed + 20);
    other.join().unwrap();
}

#[test]
fn no_wake_up_is_lost_over_tcp() {
    for seed in 0..4 {
        stress(seed, 6 << 20, 8);
    }
}

#[test]
fn a_call_with_more_than_iov_max_pieces_keeps_the_readiness() {
    let (a, b) = pair();
    run_shard(async {
        let (mut a, mut b) = (TcpByteStream::new(a).unwrap(), TcpByteStream::new(b).unwrap());
        let bytes: Vec<u8> = (0..6000).map(byte_at).collect();
        let slices: Vec<_> = bytes.chunks(1).map(IoSlice::new).collect();
        let mut sent = poll_fn(|cx| a.poll_write(cx, &slices)).await.unwrap();
        assert!(sent < 6000, "more than IOV_MAX pieces were written");
        while sent < 6000 {
            let more = a.poll_write(&mut Context::from_waker(Waker::noop()), &slices[sent..]);
            let Poll::Ready(Ok(n)) = more else { panic!("{more:?} after {sent} bytes") };
            sent += n;
        }
        let mut room = vec![0; 6000];
        let mut slices: Vec<_> = room.chunks_mut(1).map(IoSliceMut::new).collect();
        let mut got = poll_fn(|cx| b.poll_read(cx, &mut slices)).await.unwrap();
        while got < 6000 {
            let more = b.poll_read(&mut Context::from_waker(Waker::noop()), &mut slices[got..]);
            let Poll::Ready(Ok(n)) = more else { panic!("{more:?} after {got} bytes") };
            got += n;
        }
        assert_eq!(room, bytes);
    })
    .unwrap();
}

#[test]
fn a_close_is_the_end_of_the_stream_and_a_reset_is_an_error() {
    let (a, b) = pair();
    run_shard(async {
        let mut a = TcpByteStream::new(a).unwrap();
        assert_eq!(a.peer_addr().unwrap(), b.local_addr().unwrap());
        assert_eq!(a.local_addr().unwrap(), b.peer_addr().unwrap());
        drop(b);
        let mut byte = [0; 10];
        let n = poll_fn(|cx| a.poll_read(cx, &mut [IoSliceMut::new(&mut byte)])).await.unwrap();
        assert_eq!(n, 0);
        let error = loop {
            match poll_fn(|cx| a.poll_write(cx, &[IoSlice::new(b"x")])).await {
                Ok(_) => tokio::task::yield_now().await,
                Err(e) => break e,
            }
        };
        assert!(
            matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset),
            "{error}"
        );
    })
    .unwrap();
}

#[test]
fn data_is_read_before_the_end_of_the_stream() {
    let (a, b) = pair();
    run_shard(async {
        let mut a = TcpByteStream::new(a).unwrap();
        {
            use std::io::Write;
            (&b).write_all(b"last words").unwrap();
        }
        drop(b);
        // The short read into the large buffer clears the readiness. The end of the stream must be reported
        // nevertheless.
        let mut room = [0; 1000];
        let mut got: Vec<u8> = Vec::new();
        loop {
            let n = poll_fn(|cx| a.poll_read(cx, &mut [IoSliceMut::new(&mut room)])).await.unwrap();
            if n == 0 {
                break;
            }
            got.extend(&room[..n]);
        }
        assert_eq!(got, b"last words");
    })
    .unwrap();
}

#[test]
fn an_aborted_stream_is_reset_without_undelivered_data() {
    let (a, b) = pair();
    run_shard(async {
        let mut a = TcpByteStream::new(a).unwrap();
        let data = vec![7; 64 << 10];
        let mut sent = 0;
        // More than the peer's receive buffer holds.
        sent += poll_fn(|cx| a.poll_write(cx, &[IoSlice::new(&data)])).await.unwrap();
        while let Poll::Ready(n) = poll_fn(|cx| Poll::Ready(a.poll_write(cx, &[IoSlice::new(&data)]))).await {
            sent += n.unwrap();
        }
        a.abort();
        drop(a);
        let (mut room, mut got) = (vec![0; 64 << 10], 0);
        let error = loop {
            match Read::read(&mut &b, &mut room) {
                Ok(0) => panic!("the stream ended without a reset"),
                Ok(n) => got += n,
                Err(e) => break e,
            }
        };
        assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
        assert!(got < sent, "{got} of {sent} bytes");
    })
    .unwrap();
}

#[test]
fn connecting_to_a_closed_port_is_refused() {
    let addr = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let refused = run_shard(TcpByteStream::connect(addr)).unwrap();
    assert_eq!(refused.err().unwrap().kind(), io::ErrorKind::ConnectionRefused);
}

#[test]
fn a_reserved_port_is_used_if_permitted() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let may = (665..1024).any(|p| TcpListener::bind(("127.0.0.1", p)).is_ok());
    run_shard(async {
        let connect = async || {
            let s = TcpByteStream::connect_from(LocalPort::Reserved, listener.local_addr().unwrap()).await;
            let s = s.unwrap();
            (s.local_addr().unwrap().port(), s)
        };
        // Enough connections to encounter ports in use.
        let streams = futures::future::join_all((0..64).map(|_| connect())).await;
        for (port, _) in &streams {
            assert_eq!(*port < 1024, may, "port {port}");
        }
    })
    .unwrap();
}

struct Count(std::sync::atomic::AtomicUsize);

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    }
}

#[test]
fn a_memory_stream_wakes_its_peer_and_ends_like_a_socket() {
    let (mut a, mut b) = memory_stream(4, 3);
    let count = Arc::new(Count(Default::default()));
    let woken = || count.0.load(std::sync::atomic::Ordering::Relaxed);
    let waker = Waker::from(Arc::clone(&count));
    let cx = &mut Context::from_waker(&waker);
    let mut room = [0; 10];
    assert!(a.poll_read(cx, &mut [IoSliceMut::new(&mut room)]).is_pending());
    assert!(matches!(b.poll_write(cx, &[IoSlice::new(b"abc"), IoSlice::new(b"def")]), Poll::Ready(Ok(4))));
    assert_eq!(woken(), 1, "the reader");
    assert!(b.poll_write(cx, &[IoSlice::new(b"e")]).is_pending(), "the buffer is not full");
    let (x, y) = room.split_at_mut(2);
    let read = a.poll_read(cx, &mut [IoSliceMut::new(x), IoSliceMut::new(y)]);
    assert!(matches!(read, Poll::Ready(Ok(3))), "a segment");
    assert_eq!(&room[..3], b"abc");
    assert_eq!(woken(), 2, "the writer");
    b.shutdown();
    assert!(matches!(b.poll_write(cx, &[IoSlice::new(b"e")]), Poll::Ready(Err(_))));
    assert!(matches!(a.poll_read(cx, &mut [IoSliceMut::new(&mut room)]), Poll::Ready(Ok(1))));
    assert!(matches!(a.poll_read(cx, &mut [IoSliceMut::new(&mut room)]), Poll::Ready(Ok(0))));
    assert!(
        matches!(a.poll_write(cx, &[IoSlice::new(b"back")]), Poll::Ready(Ok(4))),
        "the other direction is closed"
    );
    assert!(a.poll_write(cx, &[IoSlice::new(b"!")]).is_pending());
    drop(b);
    assert_eq!(woken(), 3, "the writer was not woken by the close");
    assert!(matches!(a.poll_write(cx, &[IoSlice::new(b"!")]), Poll::Ready(Err(_))));
    assert_eq!((a.local_addr().unwrap().port(), a.peer_addr().unwrap().port()), (1, 2));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]

    #[test]
    fn a_memory_stream_transfers_all_bytes_in_order(capacity in 1usize..5000, segment in 1usize..4000, seed: u64) {
        let (a, b) = memory_stream(capacity, segment);
        let (a, b) = (tokio::sync::Mutex::new(a), tokio::sync::Mutex::new(b));
        run_shard(async {
            let ((), got) = futures::join!(send(&a, 20_000, Random(seed), 5), receive(&b, Random(!seed), 5));
            assert_eq!(got, 20_000);
        })
        .unwrap();
    }
}
