//! Tests of whole connections, and what they share.

mod hostile;
mod raw;
mod segmentation;
mod startup;
mod tcp;
mod transfer;

use std::{
    sync::{Arc, LazyLock},
    task::{Context, Poll, Waker},
};

use millrace_buffer::{Arena, ArenaConfig, Buffer, Views};
use millrace_rdma::{Completion, ConnectParams, ConnectionError, QueuePair, SendRequest, WorkId};
use millrace_runtime::{BoxFuture, Instant, Runtime, RuntimeRef, Sleep, memory_stream};

use super::{accept_over, connect_over};

/// A runtime without time: sleeps never end. Random numbers run from a fixed seed.
pub(super) struct Still(std::sync::atomic::AtomicU64);

impl Runtime for Still {
    fn now(&self) -> Instant {
        Instant::default()
    }

    fn wall_clock(&self) -> std::time::Duration {
        std::time::Duration::ZERO
    }

    fn sleep_until(&self, _at: Instant) -> Sleep {
        Box::pin(std::future::pending())
    }

    fn spawn(&self, _name: &'static str, _task: BoxFuture<'static, ()>) {
        panic!("nothing is spawned here");
    }

    fn spawn_blocking(&self, _work: Box<dyn FnOnce() + Send>) {
        panic!("nothing is spawned here");
    }

    fn fill_random(&self, bytes: &mut [u8]) {
        for b in bytes {
            let n = self.0.fetch_add(0x9E37_79B9_7F4A_7C15, std::sync::atomic::Ordering::Relaxed);
            let n = (n ^ (n >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
            *b = ((n ^ (n >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB) >> 56) as u8;
        }
    }
}

/// A runtime without time.
pub(super) fn runtime() -> RuntimeRef {
    Arc::new(Still(std::sync::atomic::AtomicU64::new(1)))
}

/// The arena of all tests: each arena maps whole spans.
pub(super) fn arena() -> Arena {
    static SHARED: LazyLock<Arena> =
        LazyLock::new(|| Arena::new(ArenaConfig { limit: 1 << 30, huge_pages: false }));
    SHARED.clone()
}

/// Polls a future once, without a waker.
pub(super) fn poll_once<F: Future + Unpin>(f: &mut F) -> Poll<F::Output> {
    std::pin::Pin::new(f).poll(&mut Context::from_waker(Waker::noop()))
}

pub(super) type Qp = Box<dyn QueuePair>;

/// Two queue pairs of ours over a stream that holds `capacity` bytes and gives `segment` at a time.
pub(super) fn pair(capacity: usize, segment: usize, params: &ConnectParams) -> (Qp, Qp) {
    let (a, b) = memory_stream(capacity, segment);
    let mut i = Box::pin(connect_over(runtime(), arena(), Box::new(a), params.clone()));
    let mut r = Box::pin(accept_over(runtime(), arena(), Box::new(b), params.clone()));
    let (mut x, mut y) = (None, None);
    for _ in 0..1000 {
        if x.is_none()
            && let Poll::Ready(q) = poll_once(&mut i)
        {
            x = Some(q.expect("initiator"));
        }
        if y.is_none()
            && let Poll::Ready(q) = poll_once(&mut r)
        {
            y = Some(q.expect("responder"));
        }
    }
    (x.expect("initiator is done"), y.expect("responder is done"))
}

/// Polls `qp` once; completions go to `out`.
pub(super) fn turn(qp: &mut Qp, out: &mut Vec<Completion>) -> Result<(), ConnectionError> {
    match qp.poll(&mut Context::from_waker(Waker::noop()), out) {
        Poll::Pending | Poll::Ready(Ok(())) => Ok(()),
        Poll::Ready(Err(e)) => Err(e),
    }
}

/// Polls both until `n` completions came to each list, as given.
pub(super) fn run(a: &mut Qp, b: &mut Qp, want: (usize, usize)) -> (Vec<Completion>, Vec<Completion>) {
    let (mut x, mut y) = (Vec::new(), Vec::new());
    for _ in 0..1_000_000 {
        turn(a, &mut x).expect("first end");
        turn(b, &mut y).expect("second end");
        if x.len() >= want.0 && y.len() >= want.1 {
            return (x, y);
        }
    }
    panic!("stuck with {} and {} completions", x.len(), y.len());
}

/// A buffer with `bytes`.
pub(super) fn buffer(bytes: &[u8]) -> Buffer {
    let mut b = arena().alloc(bytes.len()).expect("memory");
    b.copy_from_slice(bytes);
    b
}

/// Bytes that differ everywhere.
pub(super) fn pattern(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|i| ((i * 31 + seed * 17) ^ (i >> 8) ^ (i >> 16)) as u8).collect()
}

/// Views of `bytes`, in pieces of `piece` bytes that do not touch.
pub(super) fn views(bytes: &[u8], piece: usize) -> Views {
    bytes.chunks(piece.max(1)).map(|c| buffer(c).freeze()).collect()
}

/// A plain Send.
pub(super) fn send(bytes: &[u8]) -> SendRequest {
    SendRequest { data: views(bytes, bytes.len()), invalidate: None, solicited: false, signaled: None }
}

/// The received bytes of a completion.
pub(super) fn received(c: &Completion) -> &[u8] {
    match c {
        Completion::Received { buffer, .. } => buffer,
        other => panic!("not a receive: {other:?}"),
    }
}

/// A signaled Send.
pub(super) fn signaled(bytes: &[u8], id: u64) -> SendRequest {
    SendRequest { signaled: Some(WorkId(id)), ..send(bytes) }
}
