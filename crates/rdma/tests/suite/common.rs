//! Helpers of the conformance tests: [`Lab`], and operations on the two ends of a connection.
#![allow(dead_code)] // No provider's tests use all of it.

use std::{
    future::poll_fn,
    net::{IpAddr, SocketAddr},
    sync::{Arc, LazyLock},
    task::Poll,
};

use millrace_buffer::{Arena, ArenaConfig, Buffer, Views};
use millrace_rdma::{
    Completion, ConnectParams, ConnectionError, Incoming, Listener, Provider, QueuePair, SendRequest, WorkId,
};
use millrace_runtime::RuntimeRef;

pub(crate) type Qp = Box<dyn QueuePair>;

/// One arena for all tests, which run concurrently.
pub(crate) fn arena() -> Arena {
    static SHARED: LazyLock<Arena> =
        LazyLock::new(|| Arena::new(ArenaConfig { limit: 1 << 30, huge_pages: false }));
    SHARED.clone()
}

/// A provider with an address of a device to test.
pub(crate) struct Lab {
    pub(crate) provider: Arc<dyn Provider>,
    pub(crate) rt: RuntimeRef,
    pub(crate) ip: IpAddr,
}

impl Lab {
    /// Whether the provider is software iWARP, which needs no device.
    pub(crate) fn is_software(&self) -> bool {
        self.provider.name() == "iwarp"
    }

    pub(crate) fn listen(&self) -> Box<dyn Listener> {
        self.provider.listen(self.rt.clone(), SocketAddr::new(self.ip, 0)).expect("cannot listen")
    }

    pub(crate) async fn connect(&self, to: SocketAddr, params: ConnectParams) -> Result<Qp, ConnectionError> {
        self.provider.connect(self.rt.clone(), arena(), to, params).await
    }

    pub(crate) async fn accept(
        &self,
        i: Box<dyn Incoming>,
        params: ConnectParams,
    ) -> Result<Qp, ConnectionError> {
        i.accept(self.rt.clone(), arena(), params).await
    }

    /// Connects to itself; returns the active and the passive end.
    pub(crate) async fn pair(&self, params: &ConnectParams) -> (Qp, Qp) {
        let mut listener = self.listen();
        let to = listener.local_addr();
        let (a, b) = tokio::join!(self.connect(to, params.clone()), async {
            let incoming = listener.accept().await.expect("no connection request");
            self.accept(incoming, params.clone()).await
        });
        (a.expect("cannot connect"), b.expect("cannot accept"))
    }
}

/// Whether the device is an iWARP device, which has different limits.
pub(crate) fn is_iwarp(qp: &Qp) -> bool {
    !qp.info().crc
}

/// Polls both ends until each has at least the number of completions in `want`.
pub(crate) async fn run(a: &mut Qp, b: &mut Qp, want: (usize, usize)) -> (Vec<Completion>, Vec<Completion>) {
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

/// Polls both ends until `a` fails, and returns its error. `a` must have no completions.
pub(crate) async fn poll_both_until_error(a: &mut Qp, b: &mut Qp) -> ConnectionError {
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

/// Polls `a` until it fails, and returns its error. Ignores completions.
pub(crate) async fn poll_until_error(a: &mut Qp) -> ConnectionError {
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

/// A buffer that contains `bytes`.
pub(crate) fn buffer(bytes: &[u8]) -> Buffer {
    let mut b = arena().alloc(bytes.len()).expect("out of memory");
    b.copy_from_slice(bytes);
    b
}

/// `len` bytes that depend on position and `seed`.
pub(crate) fn pattern(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|i| ((i * 31 + seed * 17) ^ (i >> 8) ^ (i >> 16)) as u8).collect()
}

/// Views of `bytes` in non-adjacent pieces of `piece` bytes.
pub(crate) fn views(bytes: &[u8], piece: usize) -> Views {
    bytes.chunks(piece.max(1)).map(|c| buffer(c).freeze()).collect()
}

/// A plain Send.
pub(crate) fn send(bytes: &[u8]) -> SendRequest {
    SendRequest { data: views(bytes, bytes.len()), invalidate: None, solicited: false, signaled: None }
}

/// A signaled Send.
pub(crate) fn signaled(bytes: &[u8], id: u64) -> SendRequest {
    SendRequest { signaled: Some(WorkId(id)), ..send(bytes) }
}

/// The received message.
pub(crate) fn received(c: &Completion) -> &[u8] {
    match c {
        Completion::Received { buffer, .. } => buffer,
        other => panic!("not a receive: {other:?}"),
    }
}

/// Sends `text` from `a` to `b`, and waits for its delivery.
pub(crate) async fn deliver(a: &mut Qp, b: &mut Qp, text: &[u8]) {
    b.post_receive(buffer(&[0; 512])).unwrap();
    // An iWARP device ends the connection if the message arrives before the receive is posted.
    b.flush(&mut std::task::Context::from_waker(std::task::Waker::noop()));
    a.post_send(send(text)).unwrap();
    let (_, y) = run(a, b, (0, 1)).await;
    assert_eq!(received(&y[0]), text);
}
