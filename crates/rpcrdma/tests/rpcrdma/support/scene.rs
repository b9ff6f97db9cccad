//! A requester, with a bare queue pair as its responder.

use std::sync::Arc;

use millrace_buffer::Arena;
use millrace_oncrpc::{Reply, RpcError, Transport};
use millrace_rdma::ConnectParams;
use millrace_rpcrdma::{Body, Header, Lists, PrivateData, Requester, RequesterConfig};

use super::{Ask, arena, fabric, raw::Raw, request, rt, settled};

pub type Waiting = tokio::task::JoinHandle<Result<Reply, RpcError>>;

/// The largest reply head of a default [`Ask`].
pub const TINY: Ask = Ask { send: 0, head: 0, receive: 0, reply_head: 0, later: false, seed: 0 };
pub const READ: Ask = Ask { receive: 5000, ..TINY };

/// A requester `C` and its peer.
pub struct Scene<C = Requester> {
    pub client: Arc<C>,
    pub raw: Raw,
    pub arena: Arena,
}

impl Scene {
    pub fn new() -> Self {
        Self::with(RequesterConfig::default())
    }

    /// Connects to a responder that may invalidate tags.
    pub fn with(config: RequesterConfig) -> Self {
        let theirs = PrivateData { remote_invalidate: true, send_size: 4096, receive_size: 4096 };
        let params = ConnectParams { private_data: theirs.encode().to_vec(), ..ConnectParams::default() };
        Self::over(config, &params)
    }

    /// Connects to a responder with the connection parameters `theirs`.
    pub fn over(config: RequesterConfig, theirs: &ConnectParams) -> Self {
        let arena = arena();
        let (c, s) = fabric::pair(usize::MAX, &config.connect_params(), theirs);
        let raw = Raw::new(Box::new(s), &arena);
        let client = Requester::from_queue_pair(Box::new(c), rt(), arena.clone(), config).unwrap();
        Self { client, raw, arena }
    }

    pub async fn finish(self) {
        assert_eq!(self.client.exposed(), (0, 0));
        self.ended().await;
    }
}

impl<C: Transport> Scene<C> {
    pub fn call(&self, ask: Ask) -> Waiting {
        tokio::spawn(self.client.submit(request(&self.arena, ask)))
    }

    /// The next call's header.
    pub async fn receive(&mut self) -> Header {
        self.raw.receive_header().await.0
    }

    pub fn reply(&mut self, xid: u32, credits: u32, lists: Lists, results: &[u32]) {
        self.raw.send(&reply_bytes(xid, credits, Body::Msg(lists), results));
    }

    /// Checks that the connection conveys calls.
    pub async fn expect_alive(&mut self) {
        let waiting = self.call(TINY);
        let header = self.receive().await;
        self.reply(header.xid, 32, Lists::default(), &[7, 0, 0]);
        assert_eq!(waiting.await.unwrap().unwrap().results().u32(), Ok(7));
    }

    /// Ends both sides, and waits until all buffers are returned.
    pub async fn ended(self) {
        self.client.close();
        let Self { client, raw, arena } = self;
        drop((client, raw));
        settled(&arena).await;
    }
}

/// A message with an RPC reply that has these words as results.
pub fn reply_bytes(xid: u32, credits: u32, body: Body, results: &[u32]) -> Vec<u8> {
    Raw::message(&Header::new(xid, credits, body), &rpc_reply(xid, results))
}

/// An RPC reply with these words as results.
pub fn rpc_reply(xid: u32, results: &[u32]) -> Vec<u8> {
    [xid, 1, 0, 0, 0, 0].iter().chain(results).flat_map(|w| w.to_be_bytes()).collect()
}

/// Yields until the requester has received messages (it posts few receives in addition to those it needs).
pub async fn turns() {
    for _ in 0..50 {
        tokio::task::yield_now().await;
    }
}
