//! The verbs provider on a real RDMA device, hardware or software (the kernel's rxe and siw).
//!
//! The tests run where `MILLRACE_TEST_VERBS` has the address of such a device, as in
//! `MILLRACE_TEST_VERBS=10.99.0.1 cargo test -p millrace-rdma --test verbs`; elsewhere each says so and passes.
//! With `MILLRACE_TEST_RXE_WINDOWS` set, they use memory windows on rxe too.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod endings;
mod exposure;
mod setup;
mod shared;
mod transfer;

use std::{
    future::poll_fn,
    net::{IpAddr, SocketAddr},
    sync::LazyLock,
    task::Poll,
    time::Duration,
};

use buffer::{Arena, ArenaConfig, Buffer, Views};
use rdma::{
    Completion, ConnectParams, ConnectionError, Incoming, Listener, Provider, QueuePair, SendRequest, WorkId,
    provider::verbs::Verbs,
};
use runtime::{RuntimeRef, tokio_rt::TokioRuntime};

type Qp = Box<dyn QueuePair>;

/// What would take longer is stuck.
const LIMIT: Duration = Duration::from_secs(30);

/// The arena of all tests.
fn arena() -> Arena {
    static SHARED: LazyLock<Arena> =
        LazyLock::new(|| Arena::new(ArenaConfig { limit: 256 << 20, huge_pages: false }));
    SHARED.clone()
}

/// A device to test on.
struct Lab {
    verbs: Verbs,
    rt: RuntimeRef,
    ip: IpAddr,
}

/// Runs `test` on the device that the environment names, if it names one.
fn on_a_device(test: impl AsyncFnOnce(Lab)) {
    let Ok(address) = std::env::var("MILLRACE_TEST_VERBS") else {
        eprintln!("skipped: MILLRACE_TEST_VERBS has no address of an RDMA device");
        return;
    };
    if std::env::var_os("MILLRACE_TEST_RXE_WINDOWS").is_some() {
        rdma::provider::verbs::trust_rxe_windows();
    }
    let ip = address.parse().expect("MILLRACE_TEST_VERBS is an address");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let done = runtime.block_on(async {
        let lab = Lab { verbs: Verbs::new().expect("rdma-core"), rt: TokioRuntime::current(), ip };
        tokio::time::timeout(LIMIT, test(lab)).await
    });
    done.expect("the test is stuck");
}

impl Lab {
    fn listen(&self) -> Box<dyn Listener> {
        self.verbs.listen(self.rt.clone(), SocketAddr::new(self.ip, 0)).expect("listen")
    }

    async fn connect(&self, to: SocketAddr, params: ConnectParams) -> Result<Qp, ConnectionError> {
        self.verbs.connect(self.rt.clone(), arena(), to, params).await
    }

    async fn accept(&self, i: Box<dyn Incoming>, params: ConnectParams) -> Result<Qp, ConnectionError> {
        i.accept(self.rt.clone(), arena(), params).await
    }

    /// Two ends of a connection: the one that connected, and the one that accepted.
    async fn pair(&self, params: &ConnectParams) -> (Qp, Qp) {
        let mut listener = self.listen();
        let to = listener.local_addr();
        let (a, b) = tokio::join!(self.connect(to, params.clone()), async {
            let incoming = listener.accept().await.expect("a request");
            self.accept(incoming, params.clone()).await
        });
        (a.expect("connected"), b.expect("accepted"))
    }
}

/// Whether the device of the environment is an iWARP one, where some limits are others.
fn is_iwarp(qp: &Qp) -> bool {
    !qp.info().crc
}

/// Polls both until `want` completions came to each, as given.
async fn run(a: &mut Qp, b: &mut Qp, want: (usize, usize)) -> (Vec<Completion>, Vec<Completion>) {
    let (mut x, mut y) = (Vec::new(), Vec::new());
    poll_fn(|cx| {
        loop {
            let one = a.poll(cx, &mut x);
            let other = b.poll(cx, &mut y);
            for end in [&one, &other] {
                assert!(!matches!(end, Poll::Ready(Err(_))), "{end:?} after {} and {}", x.len(), y.len());
            }
            if x.len() >= want.0 && y.len() >= want.1 {
                return Poll::Ready(());
            }
            if one.is_pending() && other.is_pending() {
                return Poll::Pending;
            }
        }
    })
    .await;
    (x, y)
}

/// Polls both until `a` is down; why. It must have no completions.
async fn end_of(a: &mut Qp, b: &mut Qp) -> ConnectionError {
    let (mut x, mut y) = (Vec::new(), Vec::new());
    poll_fn(|cx| {
        loop {
            let other = b.poll(cx, &mut y);
            let one = a.poll(cx, &mut x);
            assert!(x.is_empty(), "{x:?}");
            match one {
                Poll::Ready(Err(e)) => return Poll::Ready(e),
                Poll::Pending if !matches!(other, Poll::Ready(Ok(()))) => return Poll::Pending,
                _ => {}
            }
        }
    })
    .await
}

/// Polls `a` until it is down; why. Completions are dropped.
async fn end_alone(a: &mut Qp) -> ConnectionError {
    let mut x = Vec::new();
    poll_fn(|cx| {
        loop {
            match a.poll(cx, &mut x) {
                Poll::Ready(Err(e)) => return Poll::Ready(e),
                Poll::Ready(Ok(())) => x.clear(),
                Poll::Pending => return Poll::Pending,
            }
        }
    })
    .await
}

/// A buffer with `bytes`.
fn buffer(bytes: &[u8]) -> Buffer {
    let mut b = arena().alloc(bytes.len()).expect("memory");
    b.copy_from_slice(bytes);
    b
}

/// Bytes that differ everywhere.
fn pattern(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|i| ((i * 31 + seed * 17) ^ (i >> 8) ^ (i >> 16)) as u8).collect()
}

/// Views of `bytes`, in pieces of `piece` bytes that do not touch.
fn views(bytes: &[u8], piece: usize) -> Views {
    bytes.chunks(piece.max(1)).map(|c| buffer(c).freeze()).collect()
}

/// A plain Send.
fn send(bytes: &[u8]) -> SendRequest {
    SendRequest { data: views(bytes, bytes.len()), invalidate: None, solicited: false, signaled: None }
}

/// A signaled Send.
fn signaled(bytes: &[u8], id: u64) -> SendRequest {
    SendRequest { signaled: Some(WorkId(id)), ..send(bytes) }
}

/// The received bytes of a completion.
fn received(c: &Completion) -> &[u8] {
    match c {
        Completion::Received { buffer, .. } => buffer,
        other => panic!("not a receive: {other:?}"),
    }
}

/// Sends `text` from `a` to `b`, and waits until it is there.
async fn tell(a: &mut Qp, b: &mut Qp, text: &[u8]) {
    b.post_receive(buffer(&[0; 512])).unwrap();
    // The receive must be there first: an iWARP device ends the connection otherwise.
    b.flush(&mut std::task::Context::from_waker(std::task::Waker::noop()));
    a.post_send(send(text)).unwrap();
    let (_, y) = run(a, b, (0, 1)).await;
    assert_eq!(received(&y[0]), text);
}
