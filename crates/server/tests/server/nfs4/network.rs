//! A server and clients on a simulated network in virtual time. The clients show the calls that the server makes.

use std::{
    collections::{HashMap, VecDeque},
    future::poll_fn,
    io::{IoSlice, IoSliceMut},
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use futures::{
    StreamExt,
    channel::{mpsc, oneshot},
};
use millrace_nfs::v4::*;
use millrace_oncrpc::{
    CallHeader, CallbackHandler, Credential, Reply, ReplyHeader, ReplyStatus, Request, RpcError, parse_reply,
};
use millrace_rdma::{Completion, ConnectParams, ConnectionError, QueuePair, SendRequest};
use millrace_rdma_sim::{Profile, World};
use millrace_rpcrdma::{Body, Header, Lists, RequesterConfig};
use millrace_runtime::{
    BoxFuture, ByteStream, LocalPort, RuntimeExt, RuntimeRef,
    sync::Mutex,
    timeout,
    tokio_rt::{TcpByteStream, TokioRuntime},
    virtual_time::VirtualTime,
};
use millrace_server::Hosted;
use millrace_xdr::{Arena, Decode, Decoder, Encoder, Message};

use crate::common::{Caller, Calls, Proto, arena, config, sys};

const SERVER: [u8; 4] = [10, 0, 0, 1];
const PORT: u16 = 20049;
/// Credits of the calls and replies of a client over RDMA.
const CREDITS: u32 = 16;

/// A server with the export `/x` on a simulated network.
pub(crate) struct Network {
    world: World,
    pub(crate) hosted: Hosted,
    pub(crate) rt: RuntimeRef,
    pub(crate) proto: Proto,
}

/// Runs a test over TCP and over RDMA.
pub(crate) fn on_both(test: impl AsyncFn(&Network)) {
    on_both_with("8MiB", test);
}

/// The same with these properties of the export: its size, and options.
pub(crate) fn on_both_with(export: &str, test: impl AsyncFn(&Network)) {
    for proto in [Proto::Tcp, Proto::Rdma] {
        eprintln!("{proto:?}");
        let time = VirtualTime::new(1);
        let network = Network::new(&time, proto, export);
        time.block_on(test(&network)).unwrap();
    }
}

impl Network {
    fn new(time: &VirtualTime, proto: Proto, export: &str) -> Self {
        let (rt, world) = (time.runtime(), World::new(time, Profile::named("ndr-400g").unwrap()));
        let config = config(&[&format!("/x=memory:{export},squash=none")]);
        let hosted = Hosted::start(config, Arc::clone(&rt), millrace_server::open).unwrap();
        let at = SocketAddr::from((SERVER, PORT));
        hosted.serve(world.add_host(SERVER.into()).listen(Arc::clone(&rt), at).unwrap());
        hosted.serve_tcp(world.tcp(SERVER.into()).listen(at).unwrap());
        Self { world, hosted, rt, proto }
    }

    /// A connection of the client host `number`.
    pub(crate) async fn connect(&self, number: u8) -> Arc<Wire> {
        let (client, server) = ([10, 0, 1, number].into(), SocketAddr::from((SERVER, PORT)));
        let arena = arena(16 << 20);
        let link: Box<dyn Link> = match self.proto {
            Proto::Tcp => {
                let connecting = self.world.tcp(client).connect(LocalPort::Any, server);
                let (received, unsent) = (Vec::new(), Vec::new());
                Box::new(Stream { stream: connecting.await.unwrap(), received, unsent })
            }
            Proto::Rdma => {
                let private_data = RequesterConfig::default().connect_params().private_data;
                let params = ConnectParams { private_data, ..ConnectParams::default() };
                let provider = self.world.add_host(client);
                let connecting = provider.connect(Arc::clone(&self.rt), arena.clone(), server, params);
                Box::new(Queue::new(connecting.await.unwrap(), arena.clone()))
            }
        };
        Wire::new(link, &self.rt, arena)
    }

    pub(crate) async fn sleep(&self, time: Duration) {
        self.rt.sleep(time).await;
    }

    /// Waits until the server has no connections.
    pub(crate) async fn until_idle(&self) {
        while self.hosted.stats().budget.connections != 0 {
            self.sleep(Duration::from_millis(1)).await;
        }
    }
}

/// Conveys whole RPC messages.
trait Link: Send {
    fn send(&mut self, message: &[u8]);

    /// Sends what was queued, and returns the next message, or `None` at the end of the connection.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Vec<u8>>>;
}

/// TCP with record marking.
struct Stream {
    stream: Box<dyn ByteStream>,
    received: Vec<u8>,
    unsent: Vec<u8>,
}

/// RPC-over-RDMA with inline messages.
struct Queue {
    qp: Box<dyn QueuePair>,
    arena: Arena,
    received: VecDeque<Vec<u8>>,
    completions: Vec<Completion>,
}

impl Link for Stream {
    fn send(&mut self, message: &[u8]) {
        self.unsent.extend((message.len() as u32 | 1 << 31).to_be_bytes());
        self.unsent.extend(message);
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Vec<u8>>> {
        while !self.unsent.is_empty()
            && let Poll::Ready(sent) = self.stream.poll_write(cx, &[IoSlice::new(&self.unsent)])
        {
            match sent {
                Ok(sent) => drop(self.unsent.drain(..sent)),
                Err(_) => return Poll::Ready(None),
            }
        }
        loop {
            if let Some((mark, rest)) = self.received.split_first_chunk()
                && let Some(record) = rest.get(..(u32::from_be_bytes(*mark) & !(1 << 31)) as usize)
            {
                let record = record.to_vec();
                self.received.drain(..4 + record.len());
                return Poll::Ready(Some(record));
            }
            let mut bytes = [0; 4096];
            match self.stream.poll_read(cx, &mut [IoSliceMut::new(&mut bytes)]) {
                Poll::Ready(Ok(n @ 1..)) => self.received.extend(&bytes[..n]),
                Poll::Ready(_) => return Poll::Ready(None),
                Poll::Pending => return Poll::Pending,
            }
        }
    }
}

impl Queue {
    fn new(qp: Box<dyn QueuePair>, arena: Arena) -> Self {
        let mut queue = Self { qp, arena, received: VecDeque::new(), completions: Vec::new() };
        (0..64).for_each(|_| queue.post_receive());
        queue
    }

    fn post_receive(&mut self) {
        // The next poll reports the end of the connection.
        let _ = self.qp.post_receive(self.arena.alloc(4096).unwrap());
    }
}

impl Link for Queue {
    fn send(&mut self, message: &[u8]) {
        let xid = u32::from_be_bytes(message[..4].try_into().unwrap());
        let header = Header::new(xid, CREDITS, Body::Msg(Lists::default()));
        let mut send = vec![0; header.encoded_len()];
        header.encode(&mut send);
        send.extend(message);
        let data = self.arena.copy_from(&send).unwrap().into();
        // The next poll reports the end of the connection.
        let _ = self.qp.post_send(SendRequest { data, invalidate: None, solicited: false, signaled: None });
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Vec<u8>>> {
        loop {
            if let Some(message) = self.received.pop_front() {
                return Poll::Ready(Some(message));
            }
            match self.qp.poll(cx, &mut self.completions) {
                Poll::Ready(Ok(())) => {}
                Poll::Ready(Err(ConnectionError::Local(why))) => panic!("{why}"),
                Poll::Ready(Err(_)) => return Poll::Ready(None),
                Poll::Pending => return Poll::Pending,
            }
            for completion in std::mem::take(&mut self.completions) {
                let Completion::Received { buffer, .. } = completion else { continue };
                let (header, at) = Header::decode(&buffer, 16).unwrap();
                assert_eq!(header.body, Body::Msg(Lists::default()));
                assert_eq!(buffer[at..at + 4], header.xid.to_be_bytes());
                self.received.push_back(buffer[at..].to_vec());
                self.post_receive();
            }
        }
    }
}

/// A callback of one operation after CB_SEQUENCE.
pub(crate) struct Called {
    pub(crate) xid: u32,
    pub(crate) header: CallHeader,
    pub(crate) credential: Credential,
    pub(crate) minor_version: u32,
    pub(crate) sequence: CbSequenceArgs,
    pub(crate) operation: CallbackOperation,
    args: Vec<u8>,
}

impl Called {
    fn decode(call: &[u8]) -> Self {
        let mut d = Decoder::from_bytes(call);
        let (header, credential) = CallHeader::decode(&mut d).unwrap();
        assert_eq!((header.vers, header.proc), (CALLBACK_VERSION, CB_COMPOUND));
        let frame: CallbackArgs<'_> = d.get().unwrap();
        assert_eq!((frame.callback_ident, frame.operations), (0, 2));
        let minor_version = frame.minor_version;
        let first: CallbackOperation = d.get().unwrap();
        assert_eq!(first, CallbackOperation::Sequence);
        let (sequence, operation) = (d.get().unwrap(), d.get().unwrap());
        let args = d.rest().collect::<Vec<_>>().concat();
        Self { xid: header.xid, header, credential, minor_version, sequence, operation, args }
    }

    /// The arguments of the operation.
    pub(crate) fn args<'a, T: Decode<'a>>(&'a self) -> T {
        let mut d = Decoder::from_bytes(&self.args);
        let args = d.get().unwrap();
        assert_eq!(d.remaining(), 0);
        args
    }
}

type Waiting = Arc<Mutex<HashMap<u32, oneshot::Sender<Vec<u8>>>>>;

/// A connection that shows the calls of the server.
pub(crate) struct Wire {
    messages: mpsc::UnboundedSender<Vec<u8>>,
    waiting: Waiting,
    calls: futures::lock::Mutex<mpsc::UnboundedReceiver<Vec<u8>>>,
    last_xid: AtomicU32,
    arena: Arena,
    rt: RuntimeRef,
}

impl Wire {
    /// A connection to a server on the host's network.
    pub(crate) async fn tcp(server: SocketAddr) -> Arc<Self> {
        let stream = Box::new(TcpByteStream::connect(server).await.unwrap());
        let link = Stream { stream, received: Vec::new(), unsent: Vec::new() };
        Self::new(Box::new(link), &TokioRuntime::current(), arena(16 << 20))
    }

    fn new(mut link: Box<dyn Link>, rt: &RuntimeRef, arena: Arena) -> Arc<Self> {
        let (messages, mut unsent) = mpsc::unbounded::<Vec<u8>>();
        let (called, calls) = mpsc::unbounded();
        let waiting = Waiting::default();
        let wire = Self {
            messages,
            waiting: Arc::clone(&waiting),
            calls: calls.into(),
            last_xid: AtomicU32::new(0x1000),
            arena,
            rt: Arc::clone(rt),
        };
        let task = poll_fn(move |cx| {
            while let Poll::Ready(message) = unsent.poll_next_unpin(cx) {
                match message {
                    Some(message) => link.send(&message),
                    None => return Poll::Ready(()),
                }
            }
            while let Poll::Ready(message) = link.poll(cx) {
                let Some(message) = message else {
                    waiting.lock().clear();
                    return Poll::Ready(());
                };
                let xid = u32::from_be_bytes(message[..4].try_into().unwrap());
                match message[4..8] {
                    [0, 0, 0, 1] => waiting.lock().remove(&xid).unwrap().send(message).unwrap(),
                    _ => drop(called.unbounded_send(message)),
                }
            }
            Poll::Pending
        });
        rt.spawn("client", Box::pin(task));
        Arc::new(wire)
    }

    pub(crate) fn caller(self: &Arc<Self>) -> Caller {
        let transport = Arc::clone(self) as Arc<dyn Calls>;
        Caller { transport, arena: self.arena.clone(), rt: Arc::clone(&self.rt), cred: sys(0, 0) }
    }

    /// Sends a message.
    pub(crate) fn send(&self, message: Vec<u8>) {
        drop(self.messages.unbounded_send(message));
    }

    /// The next callback.
    pub(crate) async fn callback(&self) -> Called {
        self.callback_within(Duration::from_secs(60)).await.expect("no callback")
    }

    /// The next callback, if there is one within `time`.
    pub(crate) async fn callback_within(&self, time: Duration) -> Option<Called> {
        let mut calls = self.calls.lock().await;
        timeout(&*self.rt, time, calls.next()).await.flatten().map(|call| Called::decode(&call))
    }

    /// Answers a callback with the status of the operation after CB_SEQUENCE.
    pub(crate) fn answer(&self, called: &Called, status: Status) {
        self.reply(called, Status::Ok, |e, results| {
            results.operation(e, called.operation);
            match status {
                Status::Ok => {}
                _ => results.fail(e, status),
            }
        });
    }

    /// Answers CB_GETATTR.
    pub(crate) fn answer_attributes(&self, called: &Called, attributes: &Attributes<'_>) {
        self.reply(called, Status::Ok, |e, results| {
            results.operation(e, called.operation);
            e.put(attributes);
        });
    }

    /// Answers a callback whose CB_SEQUENCE fails.
    pub(crate) fn answer_sequence(&self, called: &Called, status: Status) {
        self.reply(called, status, |_, _| {});
    }

    fn reply(
        &self,
        called: &Called,
        sequence: Status,
        rest: impl FnOnce(&mut Encoder, &mut CompoundEncoder),
    ) {
        let mut e = Encoder::new(&self.arena, 256);
        e.put(&ReplyHeader { xid: called.xid, status: ReplyStatus::Success });
        let mut results = CompoundEncoder::begin(&mut e, b"");
        results.operation(&mut e, CallbackOperation::Sequence);
        if sequence == Status::Ok {
            let CbSequenceArgs { session, sequence, slot, highest_slot, .. } = called.sequence;
            e.put(&CbSequenceOk { session, sequence, slot, highest_slot, target_highest_slot: highest_slot });
            rest(&mut e, &mut results);
        } else {
            results.fail(&mut e, sequence);
        }
        results.finish(&mut e);
        self.send(e.finish().unwrap().head.to_vec());
    }

    pub(crate) async fn sleep(&self, time: Duration) {
        self.rt.sleep(time).await;
    }
}

impl Calls for Wire {
    fn call(&self, mut request: Request) -> BoxFuture<'_, Result<Reply, RpcError>> {
        let xid = self.last_xid.fetch_add(1, Ordering::Relaxed);
        request.message.set_xid(xid);
        let (sender, reply) = oneshot::channel();
        self.waiting.lock().insert(xid, sender);
        self.send(request.message.gather(&self.arena.copy_from(&[0; 4]).unwrap()).to_vec());
        Box::pin(async move {
            let lost = |_| RpcError::Disconnected { peer: "the server".into(), reason: "lost".into() };
            let reply = self.arena.copy_from(&reply.await.map_err(lost)?).unwrap();
            parse_reply(Message::from_view(reply), &"the server")
        })
    }

    fn handle_callbacks(&self, _: &Arc<dyn CallbackHandler>) {
        panic!("the test answers callbacks by hand");
    }

    fn failure(&self) -> Option<RpcError> {
        None
    }

    fn close(&self) {
        self.messages.close_channel();
    }
}
