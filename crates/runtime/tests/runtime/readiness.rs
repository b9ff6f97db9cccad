//! Tests of watched file descriptors.

use std::{
    future::poll_fn,
    io::{self, Read, Write},
    os::{fd::OwnedFd, unix::net::UnixStream},
    task::{Context, Waker},
    time::Duration,
};

use millrace_runtime::{
    Readiness, timeout,
    tokio_rt::{TokioRuntime, run_shard},
};

const LIMIT: Duration = Duration::from_secs(60);

/// A watched end of a socket pair, a duplicate of that end (an adapter's library keeps one), and the other
/// end.
fn watched() -> (Box<dyn Readiness>, UnixStream, UnixStream) {
    let (ours, peer) = UnixStream::pair().unwrap();
    let watched = TokioRuntime::current().watch(OwnedFd::from(ours.try_clone().unwrap())).unwrap();
    (watched, ours, peer)
}

/// Reads one byte at a time, as single events are taken from a channel.
async fn next(watched: &mut dyn Readiness, ours: &mut UnixStream) -> io::Result<u8> {
    let mut byte = [0];
    let read = poll_fn(|cx| watched.poll_io(cx, &mut || ours.read_exact(&mut byte)));
    timeout(&*TokioRuntime::current(), LIMIT, read).await.expect("a wake-up was lost")?;
    Ok(byte[0])
}

#[test]
fn the_operation_is_not_called_before_data_arrives() {
    run_shard(async {
        let (mut watched, _ours, _peer) = watched();
        let mut tries = 0;
        let mut count = || {
            tries += 1;
            Ok(())
        };
        for _ in 0..3 {
            tokio::task::yield_now().await;
            assert!(watched.poll_io(&mut Context::from_waker(Waker::noop()), &mut count).is_pending());
        }
        assert_eq!(tries, 0);
    })
    .unwrap();
}

#[test]
fn events_of_another_thread_are_not_lost() {
    run_shard(async {
        let (mut watched, mut ours, mut peer) = watched();
        let writer = std::thread::spawn(move || {
            for n in 0..20_000u32 {
                peer.write_all(&[n as u8]).unwrap();
                if n % 7 == 0 {
                    std::thread::yield_now();
                }
            }
        });
        for n in 0..20_000u32 {
            assert_eq!(next(&mut *watched, &mut ours).await.unwrap(), n as u8);
        }
        writer.join().unwrap();
        let end = next(&mut *watched, &mut ours).await.unwrap_err();
        assert_eq!(end.kind(), io::ErrorKind::UnexpectedEof, "errors of the operation are returned");
    })
    .unwrap();
}

#[test]
fn an_error_without_data_is_reported() {
    run_shard(async {
        // epoll reports the closed read end of a pipe as EPOLLERR alone if only reading is watched.
        let (reader, writer) = io::pipe().unwrap();
        let mut watched = TokioRuntime::current().watch(OwnedFd::from(writer)).unwrap();
        assert!(watched.poll_io(&mut Context::from_waker(Waker::noop()), &mut || Ok(())).is_pending());
        let closing = std::thread::spawn(|| drop(reader));
        let failed = poll_fn(|cx| watched.poll_io(cx, &mut || Err(io::ErrorKind::BrokenPipe.into())));
        let failed = timeout(&*TokioRuntime::current(), LIMIT, failed).await.expect("a wake-up was lost");
        assert_eq!(failed.unwrap_err().kind(), io::ErrorKind::BrokenPipe);
        closing.join().unwrap();
    })
    .unwrap();
}

#[test]
fn a_descriptor_can_be_polled_by_another_thread() {
    run_shard(async {
        let (mut watched, mut ours, mut peer) = watched();
        // Another runtime polls; the reactor that registered the descriptor wakes it.
        let other = std::thread::spawn(move || {
            run_shard(async move { next(&mut *watched, &mut ours).await.unwrap() }).unwrap()
        });
        peer.write_all(&[42]).unwrap();
        while !other.is_finished() {
            tokio::task::yield_now().await;
        }
        assert_eq!(other.join().unwrap(), 42);
    })
    .unwrap();
}

#[test]
fn watching_a_regular_file_is_an_error() {
    run_shard(async {
        let file = std::fs::File::open("/proc/self/exe").unwrap();
        assert!(
            TokioRuntime::current().watch(OwnedFd::from(file)).is_err(),
            "a regular file cannot be registered"
        );
    })
    .unwrap();
}
