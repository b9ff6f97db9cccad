//! Helpers of the tests of requester and responder.
//!
//! `Echo` is a service that returns the data of a call, `Ask` describes a call, and `connected` connects a
//! requester and a responder over each provider (`Link`). `raw` has peers that send arbitrary messages.
#![allow(unreachable_pub, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

pub mod allocations;
pub mod fabric;
pub mod raw;
pub mod scene;

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use millrace_admission::Account;
use millrace_buffer::{Arena, ArenaConfig, Views};
use millrace_oncrpc::{
    AcceptError, CallContext, Callbacks, MaybeReady, Message, Peer, Plan, Reply, ReplyHeader, ReplySpec,
    ReplyStatus, Request, RpcError, SMALL_REPLY, Service, Transport, TransportKind, TransportSecurity,
};
use millrace_rdma::{ConnectParams, QueuePair};
use millrace_rdma_providers::ProviderChoice;
use millrace_rdma_verbs::device_of;
use millrace_rpcrdma::{Accepted, Requester, RequesterConfig, Responder, ResponderConfig, ResponderStats};
use millrace_runtime::{RuntimeRef, tokio_rt::TokioRuntime};
use millrace_xdr::{Decoder, Encoder, XdrError};

pub const PROGRAM: u32 = 0x2000_0001;

/// Bytes of each piece of a call's payload.
pub const PIECE: usize = 60_000;

/// An arena per test, so that leaks are detected.
pub fn arena() -> Arena {
    Arena::new(ArenaConfig { limit: 512 << 20, huge_pages: false })
}

pub fn rt() -> RuntimeRef {
    TokioRuntime::current()
}

/// Bytes that differ between calls.
pub fn pattern(seed: u32, len: usize) -> Vec<u8> {
    (0..len as u32)
        .map(|i| (i.wrapping_mul(31).wrapping_add(seed).wrapping_mul(0x9e37_79b1) >> 24) as u8)
        .collect()
}

pub fn checksum(bytes: impl Iterator<Item = u8>) -> u32 {
    bytes.fold(1, |sum: u32, b| sum.wrapping_mul(16_777_619) ^ u32::from(b))
}

pub fn checksum_views(v: &Views) -> u32 {
    checksum(v.iter().flat_map(|v| v.iter().copied()))
}

/// Parameters of a call to the echo service.
#[derive(Debug, Clone, Copy, Default)]
pub struct Ask {
    /// Bytes of payload in the call.
    pub send: usize,
    /// Bytes of opaque data in the call's head.
    pub head: usize,
    /// Bytes of payload in the reply.
    pub receive: usize,
    /// Bytes of opaque data in the reply's head.
    pub reply_head: usize,
    /// Whether the service answers asynchronously.
    pub later: bool,
    pub seed: u32,
}

/// Replies to [`Ask`]s: a checksum of the received bytes, and the requested bytes.
#[derive(Default)]
pub struct Echo {
    pub executed: AtomicUsize,
    pub finished: Arc<AtomicUsize>,
    pub callbacks: Option<Callbacks>,
}

fn decode(call: &CallContext) -> Result<(Ask, u32), XdrError> {
    let mut d = call.args();
    let seed = d.u32()?;
    let (receive, reply_head) = (d.count(8 << 20, 0)?, d.count(8 << 20, 0)?);
    let later = d.bool()?;
    let head = d.opaque(8 << 20)?;
    let sum = checksum(head.iter().copied());
    let head = head.len();
    let data = d.payload(8 << 20)?;
    let sum = sum ^ checksum_views(&data).rotate_left(1);
    Ok((Ask { send: data.len(), head, receive, reply_head, later, seed }, sum))
}

impl Service for Echo {
    fn callbacks(&self) -> Option<&Callbacks> {
        self.callbacks.as_ref()
    }

    fn plan(&self, call: &CallContext) -> Plan {
        let ask = decode(call).map_or(Ask::default(), |(ask, _)| ask);
        let reply_bytes = (SMALL_REPLY + ask.receive + ask.reply_head) as u32;
        Plan { reply_bytes: Some(reply_bytes), ..Plan::default() }
    }

    fn plan_of_prefix(&self, start: &[u8], _: usize) -> Plan {
        let mut d = Decoder::from_bytes(start);
        let decoded = d.raw(56).and_then(|_| d.opaque(8 << 20));
        Plan { data_offset: decoded.ok().map(|_| d.position() as u32 + 4), ..Plan::default() }
    }

    fn call(&self, call: CallContext, mut e: Encoder) -> MaybeReady<'static, Option<Message>> {
        self.executed.fetch_add(1, Ordering::SeqCst);
        let status = |status| ReplyHeader { xid: call.header.xid, status };
        let Ok((ask, sum)) = decode(&call) else {
            e.put(&status(ReplyStatus::Accept(AcceptError::GarbageArgs)));
            return MaybeReady::Ready(e.finish().ok());
        };
        e.put(&status(ReplyStatus::Success));
        e.put_u32(sum);
        e.put_opaque(&pattern(ask.seed, ask.reply_head));
        let mut data = Views::new();
        let bytes = pattern(ask.seed.wrapping_add(1), ask.receive);
        for piece in bytes.chunks(64 << 10) {
            data.push(e.arena().copy_from(piece).unwrap());
        }
        e.put_payload(data);
        let reply = e.finish().ok();
        if !ask.later {
            return MaybeReady::Ready(reply);
        }
        let finished = Arc::clone(&self.finished);
        MaybeReady::wait(async move {
            for _ in 0..3 {
                tokio::task::yield_now().await;
            }
            finished.fetch_add(1, Ordering::SeqCst);
            reply
        })
    }
}

/// The call message of an [`Ask`].
pub fn message(arena: &Arena, xid: u32, ask: Ask) -> Message {
    let mut e = Encoder::new(arena, 256);
    for word in [xid, 0, 2, PROGRAM, 1, 1, 0, 0, 0, 0, ask.seed, ask.receive as u32, ask.reply_head as u32] {
        e.put_u32(word);
    }
    e.put_bool(ask.later);
    e.put_opaque(&pattern(ask.seed, ask.head));
    let mut data = Views::new();
    for piece in pattern(ask.seed + 2, ask.send).chunks(PIECE) {
        data.push(arena.copy_from(piece).unwrap());
    }
    e.put_payload(data);
    e.finish().unwrap()
}

pub fn request(arena: &Arena, ask: Ask) -> Request {
    let max_head = 24 + 4 + 4 + ask.reply_head.next_multiple_of(4) + 4;
    let payload = (ask.receive > 0).then(|| arena.alloc(ask.receive).unwrap());
    Request::new(message(arena, 0, ask), ReplySpec { max_head, payload, ..ReplySpec::default() })
}

/// Checks all bytes of a reply.
pub fn verify(reply: &Reply, ask: Ask) {
    let mut d = reply.results();
    let sum = checksum(pattern(ask.seed, ask.head).into_iter())
        ^ checksum(pattern(ask.seed + 2, ask.send).into_iter()).rotate_left(1);
    assert_eq!(d.u32().unwrap(), sum, "{ask:?}: the server received other bytes");
    assert!(d.opaque(8 << 20).unwrap() == &pattern(ask.seed, ask.reply_head)[..], "{ask:?}: head");
    assert!(
        d.payload(8 << 20).unwrap().to_vec() == pattern(ask.seed.wrapping_add(1), ask.receive),
        "{ask:?}: payload"
    );
    assert_eq!(d.remaining(), 0);
}

pub async fn call(to: &Arc<impl Transport>, arena: &Arena, ask: Ask) -> Result<Reply, RpcError> {
    to.submit(request(arena, ask)).await
}

/// As [`call`], and checks the reply.
pub async fn echo(to: &Arc<impl Transport>, arena: &Arena, ask: Ask) {
    match call(to, arena, ask).await {
        Ok(reply) => verify(&reply, ask),
        Err(e) => panic!("{ask:?}: {e}"),
    }
}

pub fn peer(qp: &dyn QueuePair) -> Peer {
    Peer {
        addr: qp.info().peer,
        local: qp.info().local,
        transport: TransportKind::Rdma,
        security: TransportSecurity::None,
        connection: 1,
    }
}

/// An accepted connection, without limits of memory.
pub fn accepted(qp: Box<dyn QueuePair>, service: Arc<dyn Service>, arena: &Arena) -> Accepted {
    let peer = peer(&*qp);
    Accepted {
        qp,
        peer,
        service,
        rt: rt(),
        arena: arena.clone(),
        account: Account::unlimited(),
        session: None,
    }
}

/// A running responder with the echo service.
pub struct Server {
    pub service: Arc<Echo>,
    pub stats: Arc<ResponderStats>,
    pub task: tokio::task::JoinHandle<Result<(), millrace_rdma::ConnectionError>>,
}

impl Server {
    /// Waits for the end, which the client has requested, and checks that all resources are released.
    pub async fn ended(self, arena: &Arena) {
        self.task.await.unwrap().unwrap();
        let stats = self.stats.snapshot();
        assert_eq!((stats.exposure.regions, stats.exposure.bytes, stats.calls_in_progress), (0, 0, 0));
        drop(self.service);
        settled(arena).await;
    }
}

pub fn serve(qp: Box<dyn QueuePair>, arena: &Arena, config: ResponderConfig) -> Server {
    serve_for(qp, arena, config, Account::unlimited())
}

/// As [`serve`], with memory charged to `account`.
pub fn serve_for(qp: Box<dyn QueuePair>, arena: &Arena, config: ResponderConfig, account: Account) -> Server {
    serve_with(qp, arena, config, account, Echo::default())
}

/// As [`serve_for`], with a service.
pub fn serve_with(
    qp: Box<dyn QueuePair>,
    arena: &Arena,
    config: ResponderConfig,
    account: Account,
    service: Echo,
) -> Server {
    let service = Arc::new(service);
    let stats = Arc::new(ResponderStats::default());
    // The responder is created, and posts receives, before its task starts: on the fabric, a Send needs a
    // receive when it is posted.
    let connection = Accepted { account, ..accepted(qp, service.clone(), arena) };
    let responder = Responder::new(connection, config, Arc::clone(&stats)).unwrap();
    let task = tokio::spawn(responder.run());
    Server { service, stats, task }
}

/// The transport of a connection.
#[derive(Debug, Clone, Copy)]
pub enum Link {
    /// The in-process fabric.
    Fabric,
    /// The fabric with contiguous regions.
    Contiguous,
    /// iWARP over a memory stream with segments of at most `segment` bytes and frames of at most `frame`
    /// bytes.
    Memory { segment: usize, frame: Option<usize> },
    /// iWARP over loopback TCP.
    Tcp,
    /// The host's RDMA device with this address.
    Verbs(IpAddr),
}

/// The RDMA device whose address the environment variable contains.
fn device() -> Option<Link> {
    let address = std::env::var("MILLRACE_TEST_VERBS").ok()?;
    Some(Link::Verbs(address.parse().expect("MILLRACE_TEST_VERBS is an IP address")))
}

impl Link {
    /// All transports.
    pub fn all() -> Vec<Self> {
        let memory = [(usize::MAX, None), (1461, Some(1400)), (7, Some(64))];
        let memory = memory.map(|(segment, frame)| Self::Memory { segment, frame });
        [Self::Fabric, Self::Contiguous].into_iter().chain(memory).chain(Self::providers()).collect()
    }

    /// The providers over a network.
    pub fn providers() -> Vec<Self> {
        [Self::Tcp].into_iter().chain(device()).collect()
    }

    /// The fabric, which completes work at once, and the providers.
    pub fn fabric_and_providers() -> Vec<Self> {
        [Self::Fabric].into_iter().chain(Self::providers()).collect()
    }

    /// Transports that require registration of local memory.
    pub fn registering() -> Vec<Self> {
        [Self::Fabric].into_iter().chain(device()).collect()
    }

    /// Whether a peer can invalidate tags.
    pub fn can_be_invalidated(self) -> bool {
        match self {
            Self::Verbs(address) => {
                let provider = ProviderChoice::Verbs.to_listen(address).unwrap().provider;
                provider.can_be_invalidated(SocketAddr::new(address, 0))
            }
            _ => true,
        }
    }

    /// Whether the peer can only read memory that is exposed for reading; Linux's siw permits reads of all
    /// registered memory.
    pub fn checks_reads(self) -> bool {
        match self {
            Self::Verbs(address) => !device_of(address).unwrap().unwrap().starts_with("siw"),
            _ => true,
        }
    }

    /// Whether transfers are slow.
    pub fn is_slow(self) -> bool {
        matches!(self, Self::Memory { segment: 0..=99, .. })
    }
}

/// Connects both ends.
pub async fn queue_pairs(
    link: Link,
    arena: &Arena,
    mut client: ConnectParams,
    mut server: ConnectParams,
) -> (Box<dyn QueuePair>, Box<dyn QueuePair>) {
    match link {
        Link::Fabric | Link::Contiguous => {
            let pieces = if matches!(link, Link::Contiguous) { 1 } else { usize::MAX };
            let (c, s) = fabric::pair(pieces, &client, &server);
            (Box::new(c), Box::new(s))
        }
        Link::Memory { segment, frame } => {
            let (c, s) = millrace_runtime::memory_stream(256 << 10, segment);
            (client.max_frame, server.max_frame) = (frame, frame);
            let connect = millrace_rdma_iwarp::connect_over(rt(), arena.clone(), Box::new(c), client);
            let accept = millrace_rdma_iwarp::accept_over(rt(), arena.clone(), Box::new(s), server);
            futures::future::try_join(connect, accept).await.unwrap()
        }
        Link::Tcp => {
            over_network(ProviderChoice::Iwarp, Ipv4Addr::LOCALHOST.into(), arena, client, server).await
        }
        Link::Verbs(address) => over_network(ProviderChoice::Verbs, address, arena, client, server).await,
    }
}

async fn over_network(
    choice: ProviderChoice,
    address: IpAddr,
    arena: &Arena,
    client: ConnectParams,
    server: ConnectParams,
) -> (Box<dyn QueuePair>, Box<dyn QueuePair>) {
    let provider = choice.to_listen(address).unwrap().provider;
    let mut listener = provider.listen(rt(), SocketAddr::new(address, 0)).unwrap();
    let connect = provider.connect(rt(), arena.clone(), listener.local_addr(), client);
    let accept = async {
        let incoming = listener.accept().await.unwrap();
        incoming.accept(rt(), arena.clone(), server).await
    };
    futures::future::try_join(connect, accept).await.unwrap()
}

/// A requester and a responder with the echo service, connected.
pub async fn connected(
    link: Link,
    arena: &Arena,
    mut client: RequesterConfig,
    server: ResponderConfig,
) -> (Arc<Requester>, Server) {
    client.remote_invalidate &= link.can_be_invalidated(); // As `Requester::connect` does.
    let params = (client.connect_params(), server.connect_params(ConnectParams::default()));
    let (c, s) = queue_pairs(link, arena, params.0, params.1).await;
    let server = serve(s, arena, server);
    (Requester::from_queue_pair(c, rt(), arena.clone(), client).unwrap(), server)
}

/// Ends both sides and checks that all resources are released.
pub async fn finish(client: Arc<Requester>, server: Server, arena: &Arena) {
    assert_eq!(client.exposed(), (0, 0));
    ended(client, server, arena).await;
}

/// As [`finish`], for a client that keeps memory exposed between calls.
pub async fn ended(client: Arc<Requester>, server: Server, arena: &Arena) {
    client.close();
    drop(client);
    server.ended(arena).await;
}

/// Waits until all buffers are returned.
pub async fn settled(arena: &Arena) {
    for turn in 0..3000 {
        if arena.stats().in_use == 0 {
            return;
        }
        // A task on another thread may need more time.
        if turn > 1000 {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        tokio::task::yield_now().await;
    }
    panic!("memory is still in use: {:?}", arena.stats());
}
