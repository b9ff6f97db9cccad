//! Tests of whole connections, and helpers that they share: runtimes without time, and pairs of connected
//! queue pairs over memory streams.

mod hostile;
mod raw;
mod segmentation;
mod startup;
mod tcp;
mod transfer;

use std::{
    sync::{Arc, LazyLock, Mutex},
    task::{Context, Poll, Waker},
};

use millrace_buffer::{Arena, ArenaConfig, Buffer, Views};
use millrace_rdma::{Completion, ConnectParams, ConnectionError, QueuePair, SendRequest, WorkId};
use millrace_runtime::{BoxFuture, Instant, Runtime, RuntimeRef, Sleep, memory_stream};
use rand_xoshiro::{
    SplitMix64,
    rand_core::{Rng, SeedableRng},
};

use super::{accept_over, connect_over};

/// A runtime without time: sleeps never end. Random numbers have a fixed seed.
pub(super) struct Timeless(Mutex<SplitMix64>);

impl Runtime for Timeless {
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
        panic!("unexpected spawn");
    }

    fn spawn_blocking(&self, _work: Box<dyn FnOnce() + Send>) {
        panic!("unexpected spawn_blocking");
    }

    fn fill_random(&self, bytes: &mut [u8]) {
        self.0.lock().unwrap().fill_bytes(bytes);
    }
}

/// A runtime without time.
pub(super) fn runtime() -> RuntimeRef {
    Arc::new(Timeless(Mutex::new(SplitMix64::seed_from_u64(1))))
}

/// One arena for all tests, because each arena maps whole spans.
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

/// Two queue pairs over a stream that buffers `capacity` bytes and returns at most `segment` bytes per read.
pub(super) fn pair(capacity: usize, segment: usize, params: &ConnectParams) -> (Qp, Qp) {
    let (a, b) = memory_stream(capacity, segment);
    let mut i = Box::pin(connect_over(runtime(), arena(), Box::new(a), params.clone()));
    let mut r = Box::pin(accept_over(runtime(), arena(), Box::new(b), params.clone()));
    let (mut x, mut y) = (None, None);
    for _ in 0..1000 {
        if x.is_none()
            && let Poll::Ready(q) = poll_once(&mut i)
        {
            x = Some(q.expect("initiator failed"));
        }
        if y.is_none()
            && let Poll::Ready(q) = poll_once(&mut r)
        {
            y = Some(q.expect("responder failed"));
        }
    }
    (x.expect("initiator did not finish"), y.expect("responder did not finish"))
}

/// Polls `qp` once, and appends completions to `out`.
pub(super) fn poll_qp(qp: &mut Qp, out: &mut Vec<Completion>) -> Result<(), ConnectionError> {
    match qp.poll(&mut Context::from_waker(Waker::noop()), out) {
        Poll::Pending | Poll::Ready(Ok(())) => Ok(()),
        Poll::Ready(Err(e)) => Err(e),
    }
}

/// Polls both ends until each has at least the number of completions in `want`.
pub(super) fn run(a: &mut Qp, b: &mut Qp, want: (usize, usize)) -> (Vec<Completion>, Vec<Completion>) {
    let (mut x, mut y) = (Vec::new(), Vec::new());
    for _ in 0..1_000_000 {
        poll_qp(a, &mut x).expect("first end failed");
        poll_qp(b, &mut y).expect("second end failed");
        if x.len() >= want.0 && y.len() >= want.1 {
            return (x, y);
        }
    }
    panic!("no progress after {} and {} completions", x.len(), y.len());
}

/// A buffer that contains `bytes`.
pub(super) fn buffer(bytes: &[u8]) -> Buffer {
    let mut b = arena().alloc(bytes.len()).expect("out of memory");
    b.copy_from_slice(bytes);
    b
}

/// `len` bytes that depend on position and `seed`.
pub(super) fn pattern(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|i| ((i * 31 + seed * 17) ^ (i >> 8) ^ (i >> 16)) as u8).collect()
}

/// Views of `bytes` in non-adjacent pieces of `piece` bytes.
pub(super) fn views(bytes: &[u8], piece: usize) -> Views {
    bytes.chunks(piece.max(1)).map(|c| buffer(c).freeze()).collect()
}

/// A plain Send.
pub(super) fn send(bytes: &[u8]) -> SendRequest {
    SendRequest { data: views(bytes, bytes.len()), invalidate: None, solicited: false, signaled: None }
}

/// The received message.
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
