//! Tests of a session whose requests a task reads, and of its buffers.
#![allow(clippy::unwrap_used)]

use std::{
    collections::HashSet,
    future::poll_fn,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::Poll,
    time::Duration,
};

use millrace_buffer::{Arena, ArenaConfig, Buffer};
use millrace_fuse_session::{
    channel::{Call, Handler, Session, SessionOptions, WriteData},
    protocol::{InitFlags, Operation, ROOT, Reply, WriteRequest},
    settings::options,
};
use millrace_runtime::tokio_rt::TokioRuntime;
use parking_lot::Mutex;
use rustix::io::Errno;

use super::wire::{Body, Channel, Op};

const LIMIT: Duration = Duration::from_secs(60);

/// Answers all requests, and counts the writes.
#[derive(Clone, Default)]
struct Counter(Arc<AtomicUsize>);

impl Handler for Counter {
    fn capabilities(&self, _offered: InitFlags) -> InitFlags {
        InitFlags::empty()
    }

    fn handle(&self, call: Call, _operation: Operation<'_>) {
        call.error(Errno::NOSYS);
    }

    fn write(&self, call: Call, _write: WriteRequest, data: WriteData<'_>) {
        self.0.fetch_add(1, Ordering::Relaxed);
        call.reply(&Reply::Written(data.len() as u32));
    }
}

fn write_of(length: usize) -> Body {
    let body = Body::default().u64(0).u64(0).u32(length as u32).u32(0).u64(0).u32(0).u32(0);
    body.bytes(&vec![7; length])
}

/// Sends writes of `length` bytes, and returns how many the session handles before other tasks run.
async fn handled_at_once(length: usize) -> Vec<usize> {
    const REQUESTS: usize = 40;
    let (kernel, device) = Channel::new(0);
    let handler = Counter::default();
    let session = Session::start(handler.clone(), device, options(1, None)).unwrap();
    kernel.wait_for_barrier();
    let mut served = Box::pin(session.run_on(&TokioRuntime::current()).unwrap());
    let ended = std::thread::spawn(move || {
        for _ in 0..REQUESTS {
            kernel.post(Op::Write, ROOT, write_of(length));
        }
        kernel.end();
        kernel
    });
    let mut steps = Vec::new();
    let all = poll_fn(|cx| {
        let before = handler.0.load(Ordering::Relaxed);
        let polled = served.as_mut().poll(cx);
        steps.push(handler.0.load(Ordering::Relaxed) - before);
        polled
    });
    tokio::time::timeout(LIMIT, all).await.unwrap().unwrap();
    drop(ended.join().unwrap());
    assert_eq!(steps.iter().sum::<usize>(), REQUESTS);
    steps
}

#[tokio::test]
async fn other_tasks_run_between_batches_of_requests() {
    assert!(handled_at_once(1).await.into_iter().all(|n| n <= 16));
    assert!(handled_at_once(100 << 10).await.into_iter().all(|n| n <= 3));
}

#[tokio::test]
async fn a_task_waits_for_requests() {
    let (kernel, device) = Channel::new(0);
    let session = Session::start(Counter::default(), device, options(1, None)).unwrap();
    kernel.wait_for_barrier();
    let mut served = Box::pin(session.run_on(&TokioRuntime::current()).unwrap());
    for _ in 0..3 {
        tokio::task::yield_now().await;
        assert!(poll_fn(|cx| Poll::Ready(served.as_mut().poll(cx).is_pending())).await);
    }
    kernel.end();
    tokio::time::timeout(LIMIT, served).await.unwrap().unwrap();
}

/// Keeps the buffers of writes if it may.
struct Keeper {
    arena: Arena,
    room: usize,
    writes: Mutex<Vec<Kept>>,
    names: Mutex<Vec<Vec<u8>>>,
}

/// Where the data of a write was received, the data, and the buffer if it was kept.
type Kept = (usize, Vec<u8>, Option<Buffer>);

/// A keeper whose buffers the test examines.
struct Shared(Arc<Keeper>);

impl Handler for Shared {
    fn capabilities(&self, _offered: InitFlags) -> InitFlags {
        InitFlags::empty()
    }

    fn arena(&self) -> Option<&Arena> {
        Some(&self.0.arena)
    }

    fn handle(&self, call: Call, operation: Operation<'_>) {
        if let Operation::Lookup { name } = operation {
            self.0.names.lock().push(name.to_vec());
        }
        call.error(Errno::NOSYS);
    }

    fn write(&self, call: Call, write: WriteRequest, mut data: WriteData<'_>) {
        let (at, copy) = (data.as_ptr() as usize, data.to_vec());
        self.0.writes.lock().push((at, copy, data.take(self.0.room)));
        call.reply(&Reply::Written(write.size));
    }
}

/// Serves writes of `lengths`, with a buffer of 64 KiB in an arena of `limit` bytes, each after a LOOKUP of a long name.
fn received(lengths: &[usize], room: usize, limit: usize) -> Arc<Keeper> {
    let arena = Arena::new(ArenaConfig { limit, huge_pages: false });
    let keeper = Arc::new(Keeper { arena, room, writes: Mutex::default(), names: Mutex::default() });
    let (kernel, device) = Channel::new(0);
    let options = SessionOptions { max_write: 64 << 10, ..options(1, None) };
    let session = Session::start(Shared(Arc::clone(&keeper)), device, options).unwrap();
    kernel.wait_for_barrier();
    let served = std::thread::spawn(move || session.run().unwrap());
    for length in lengths {
        kernel.post(Op::Lookup, ROOT, Body::default().name(&"n".repeat(200)));
        kernel.post(Op::Write, ROOT, write_of(*length));
    }
    kernel.end();
    served.join().unwrap();
    assert_eq!(*keeper.names.lock(), vec![vec![b'n'; 200]; lengths.len()]);
    for (length, (_, data, _)) in lengths.iter().zip(&*keeper.writes.lock()) {
        assert_eq!(*data, vec![7; *length]);
    }
    keeper
}

#[test]
fn a_handler_keeps_the_buffer_into_which_the_data_was_read() {
    let keeper = received(&[60_000, 100, 0, 59_999], 60_000, 8 << 20);
    let writes = keeper.writes.lock();
    let mut buffers = HashSet::new();
    for (at, data, kept) in &*writes {
        let kept = kept.as_ref().unwrap();
        assert!(kept.address() == *at && buffers.insert(*at));
        assert_eq!((kept.len(), &kept[..data.len()]), (60_000, &data[..]));
    }
}

#[test]
fn a_buffer_that_is_too_large_or_too_small_is_not_kept() {
    for room in [32 << 10, (64 << 10) + 1] {
        let keeper = received(&[100, 32 << 10, 100], room, 8 << 20);
        let writes = keeper.writes.lock();
        assert!(writes.iter().all(|(at, _, kept)| *at == writes[0].0 && kept.is_none()), "{room}");
    }
}

#[test]
fn requests_are_read_when_the_arena_is_exhausted() {
    // A span of 4 MiB has 64 buffers, one of which the session keeps.
    let keeper = received(&[100; 70], 64 << 10, 4 << 20);
    let writes = keeper.writes.lock();
    assert_eq!(writes.iter().filter(|(.., kept)| kept.is_some()).count(), 63);
    assert!(writes[63..].iter().all(|(at, ..)| *at == writes[63].0));
}
