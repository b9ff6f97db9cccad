//! Callbacks over TCP and RDMA, with a client that answers each by hand.

use std::{
    collections::VecDeque,
    future::poll_fn,
    io::{Read, Write},
    net::{Shutdown, SocketAddr, TcpStream},
    sync::{
        Arc, Mutex,
        mpsc::{Receiver, Sender, channel},
    },
    task::Poll,
    thread,
    time::Duration,
};

use futures::StreamExt;
use millrace_buffer::Arena;
use millrace_nfs::v4::*;
use millrace_oncrpc::{
    CallHeader, PendingCall, ReplyHeader, ReplyStatus, Request, RpcError, Transport, parse_reply,
};
use millrace_rdma::{Completion, ConnectParams, SendRequest};
use millrace_rpcrdma::{Body, Header, Lists, RequesterConfig};
use millrace_runtime::tokio_rt::{TokioRuntime, run_shard};
use millrace_server::{Running, Server};
use millrace_xdr::{Decoder, Encoder, Message};

use crate::{
    common::{Caller, Proto, arena, config, rdma_at, run, sys},
    compound::*,
};

const PROGRAM_OF_CALLBACKS: u32 = 0x4000_0000;

/// A connection that keeps the calls of the server.
struct Wire {
    sender: Sender<Vec<u8>>,
    receiver: Mutex<Receiver<Vec<u8>>>,
    calls: Mutex<VecDeque<Vec<u8>>>,
    arena: Arena,
}

impl Wire {
    /// Connects, and conveys messages in another thread.
    fn connect(server: &Running, proto: Proto) -> Arc<Self> {
        let (sender, outgoing) = channel();
        let (incoming, receiver) = channel();
        match proto {
            Proto::Tcp => over_tcp(server.tcp_addr().unwrap(), outgoing, incoming),
            Proto::Rdma | Proto::ReadRead => over_rdma(server.rdma_addr().unwrap(), outgoing, incoming),
        }
        let (receiver, calls) = (Mutex::new(receiver), Mutex::default());
        Arc::new(Self { sender, receiver, calls, arena: arena(1 << 20) })
    }

    fn caller(self: &Arc<Self>) -> Caller {
        let (transport, rt) = (Arc::clone(self) as Arc<dyn Transport>, TokioRuntime::current());
        Caller { transport, arena: self.arena.clone(), rt, cred: sys(0, 0) }
    }

    fn write(&self, message: &[u8]) {
        self.sender.send(message.to_vec()).unwrap();
    }

    fn read(&self) -> Vec<u8> {
        self.receiver.lock().unwrap().recv_timeout(Duration::from_secs(20)).unwrap()
    }

    /// The next call of the server.
    fn callback(&self) -> Vec<u8> {
        let kept = self.calls.lock().unwrap().pop_front();
        kept.unwrap_or_else(|| self.read())
    }

    /// Answers a callback with the status of CB_SEQUENCE.
    fn answer(&self, notice: &Notice, status: Status) {
        let mut e = Encoder::new(&self.arena, 256);
        e.put(&ReplyHeader { xid: notice.xid, status: ReplyStatus::Success });
        let mut results = CompoundEncoder::begin(&mut e, b"");
        results.operation(&mut e, CallbackOperation::Sequence);
        if status == Status::Ok {
            let CbSequenceArgs { session, sequence, slot, highest_slot, .. } = notice.sequence;
            e.put(&CbSequenceOk { session, sequence, slot, highest_slot, target_highest_slot: highest_slot });
            results.operation(&mut e, CallbackOperation::NotifyLock);
        } else {
            results.fail(&mut e, status);
        }
        results.finish(&mut e);
        let message = e.finish().unwrap();
        self.write(message.head.iter().next().unwrap());
    }
}

impl Transport for Wire {
    fn submit(&self, mut request: Request) -> PendingCall {
        request.message.set_xid(77);
        self.write(&request.message.head.iter().flat_map(|view| view.to_vec()).collect::<Vec<_>>());
        loop {
            let record = self.read();
            if record[4..8] == [0, 0, 0, 1] {
                let message = Message::from_view(self.arena.copy_from(&record).unwrap());
                return PendingCall::complete(None, parse_reply(message, &"the server"));
            }
            self.calls.lock().unwrap().push_back(record);
        }
    }

    fn max_payload(&self) -> usize {
        0
    }

    fn failure(&self) -> Option<RpcError> {
        None
    }

    fn close(&self) {}
}

fn over_tcp(address: SocketAddr, outgoing: Receiver<Vec<u8>>, incoming: Sender<Vec<u8>>) {
    let mut stream = TcpStream::connect(address).unwrap();
    let mut received = stream.try_clone().unwrap();
    thread::spawn(move || {
        for record in outgoing {
            let mark = (record.len() as u32 | 1 << 31).to_be_bytes();
            stream.write_all(&[&mark, &*record].concat()).unwrap();
        }
        stream.shutdown(Shutdown::Both)
    });
    thread::spawn(move || {
        let mut mark = [0; 4];
        while received.read_exact(&mut mark).is_ok() {
            let mut record = vec![0; (u32::from_be_bytes(mark) & !(1 << 31)) as usize];
            received.read_exact(&mut record).unwrap();
            drop(incoming.send(record));
        }
    });
}

/// Each message in one Send, with 16 credits.
fn over_rdma(address: SocketAddr, outgoing: Receiver<Vec<u8>>, incoming: Sender<Vec<u8>>) {
    let (to_task, mut outgoing_messages) = futures::channel::mpsc::unbounded::<Vec<u8>>();
    thread::spawn(move || outgoing.into_iter().try_for_each(|message| to_task.unbounded_send(message)));
    thread::spawn(move || {
        run_shard(async move {
            let (rt, arena) = (TokioRuntime::current(), arena(16 << 20));
            let private_data = RequesterConfig::default().connect_params().private_data;
            let params = ConnectParams { private_data, ..ConnectParams::default() };
            let provider = rdma_at().1.to_connect(address.ip()).unwrap().provider;
            let mut qp = provider.connect(rt, arena.clone(), address, params).await.unwrap();
            for _ in 0..32 {
                qp.post_receive(arena.alloc(4096).unwrap()).unwrap();
            }
            let mut completions = Vec::new();
            poll_fn(|cx| {
                while let Poll::Ready(message) = outgoing_messages.poll_next_unpin(cx) {
                    let Some(message) = message else { return Poll::Ready(()) };
                    let xid = u32::from_be_bytes(message[..4].try_into().unwrap());
                    let header = Header::new(xid, 16, Body::Msg(Lists::default()));
                    let mut send = vec![0; header.encoded_len()];
                    header.encode(&mut send);
                    send.extend(message);
                    let data = arena.copy_from(&send).unwrap().into();
                    let send = SendRequest { data, invalidate: None, solicited: false, signaled: None };
                    let _ = qp.post_send(send);
                }
                while let Poll::Ready(result) = qp.poll(cx, &mut completions) {
                    if result.is_err() {
                        return Poll::Ready(());
                    }
                    for completion in completions.drain(..) {
                        let Completion::Received { buffer, .. } = completion else { continue };
                        let (header, at) = Header::decode(&buffer, 16).unwrap();
                        assert_eq!(header.body, Body::Msg(Lists::default()));
                        assert_eq!(buffer[at..at + 4], header.xid.to_be_bytes());
                        drop(incoming.send(buffer[at..].to_vec()));
                        qp.post_receive(arena.alloc(4096).unwrap()).unwrap();
                    }
                }
                Poll::Pending
            })
            .await;
        })
    });
}

/// A decoded callback CB_NOTIFY_LOCK.
struct Notice {
    xid: u32,
    sequence: CbSequenceArgs,
    handle: Vec<u8>,
    owner: Vec<u8>,
}

impl Notice {
    fn decode(call: &[u8]) -> Self {
        let mut d = Decoder::from_bytes(call);
        let header = CallHeader::decode(&mut d).unwrap();
        assert_eq!(
            (header.prog, header.vers, header.proc),
            (PROGRAM_OF_CALLBACKS, CALLBACK_VERSION, CB_COMPOUND)
        );
        let frame: CallbackArgs<'_> = d.get().unwrap();
        assert_eq!((frame.minor_version, frame.callback_ident, frame.operations), (1, 0, 2));
        assert_eq!(d.u32().unwrap(), CallbackOperation::Sequence.number());
        let sequence: CbSequenceArgs = d.get().unwrap();
        assert_eq!(d.u32().unwrap(), CallbackOperation::NotifyLock.number());
        let args: CbNotifyLockArgs<'_> = d.get().unwrap();
        assert_eq!(d.remaining(), 0);
        let (handle, owner) = (args.handle.to_vec(), args.owner.owner.to_vec());
        Self { xid: header.xid, sequence, handle, owner }
    }
}

/// A client that holds a lock of a file, and one that waits for it.
struct Scene {
    proto: Proto,
    server: Running,
    holder: Caller,
    wire: Arc<Wire>,
    waiter: Caller,
    sessions: [Session; 2],
    opens: [Stateid; 2],
    file: Vec<u8>,
}

fn owner(owner: &[u8]) -> StateOwner<'_> {
    StateOwner { client_id: ClientId { number: 0 }, owner: Opaque(owner) }
}

impl Scene {
    async fn new(proto: Proto) -> Self {
        let server = Server::start(config(&["/x=memory:8MiB,squash=none"])).unwrap();
        let holder = Caller::connect(&server, Proto::Tcp).await;
        let wire = Wire::connect(&server, proto);
        let waiter = wire.caller();
        let sessions = [Session::new(&holder, b"holder").await, Session::new(&waiter, b"waiter").await];
        let mut opens = Vec::new();
        let mut file = Vec::new();
        for (c, s) in [&holder, &waiter].into_iter().zip(&sessions) {
            let root = s.path(c, "x").await.unwrap();
            let results = s.send(c, [putfh(&root), open(b"o", "f", 3, 0, true), getfh()]).await;
            let ok: OpenOk<'_> = results.skip(&[Operation::Putfh]).take(Operation::Open);
            assert_eq!(ok.flags & open_flags::MAY_NOTIFY_LOCK, open_flags::MAY_NOTIFY_LOCK);
            opens.push(ok.stateid);
            let handle: GetfhOk<'_> = results.take(Operation::Getfh);
            file = handle.handle.to_vec();
        }
        Self { proto, server, holder, wire, waiter, sessions, opens: opens.try_into().unwrap(), file }
    }

    /// The client locks the file, or waits for its lock.
    async fn lock(&self, n: usize) -> Result<Stateid, Status> {
        let c = [&self.holder, &self.waiter][n];
        let args = LockArgs {
            lock_type: LockType::WriteWaiting,
            reclaim: false,
            offset: 0,
            length: u64::MAX,
            locker: Locker::New {
                open_seqid: 0,
                open_stateid: self.opens[n],
                lock_seqid: 0,
                owner: owner(if n == 0 { b"holder" } else { b"waiter" }),
            },
        };
        let lock: Op = Box::new(move |e| {
            e.put(&Operation::Lock);
            e.put(&args);
        });
        let results = self.sessions[n].send(c, [putfh(&self.file), lock]).await;
        if results.status != Status::Ok {
            return Err(results.status);
        }
        let ok: StateidOk = results.skip(&[Operation::Putfh]).take(Operation::Lock);
        Ok(ok.stateid)
    }

    async fn unlock(&self, n: usize, stateid: Stateid) {
        let c = [&self.holder, &self.waiter][n];
        let args = LockuArgs { lock_type: LockType::Write, seqid: 0, stateid, offset: 0, length: u64::MAX };
        let status = self.sessions[n].status(c, [putfh(&self.file), op(Operation::Locku, args)]).await;
        assert_eq!(status, Status::Ok);
    }

    /// The holder locks and unlocks the file, for which the other client waits. Returns the notice.
    async fn notice(&self) -> Notice {
        let held = self.lock(0).await.unwrap();
        assert_eq!(self.lock(1).await, Err(Status::Denied));
        self.unlock(0, held).await;
        let notice = Notice::decode(&self.wire.callback());
        assert_eq!((&notice.handle, &*notice.owner), (&self.file, &b"waiter"[..]));
        notice
    }

    /// Status flags of SEQUENCE of the waiter.
    async fn flags(&self) -> u32 {
        let results = send(&self.waiter, 2, &[sequence(self.sessions[1].sequence(false))]).await;
        let ok: SequenceOk = results.take(Operation::Sequence);
        ok.status_flags
    }

    /// Waits until the flags are as expected.
    async fn until_flags(&self, expected: u32) {
        while self.flags().await != expected {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    async fn until_notified(&self, expected: u64) {
        while self.server.stats().nfs4_locks_notified != expected {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    async fn bind(&self) -> Direction {
        let args = BindConnToSessionArgs {
            session: self.sessions[1].ok.session,
            direction: RequestedDirection::ForeOrBoth,
            use_rdma: false,
        };
        let results = send(&self.waiter, 2, &[op(Operation::BindConnToSession, args)]).await;
        let ok: BindConnToSessionOk = results.take(Operation::BindConnToSession);
        ok.direction
    }
}

/// Runs a test over TCP and over RDMA.
fn on_both(test: impl AsyncFn(Proto)) {
    for proto in [Proto::Tcp, Proto::Rdma] {
        eprintln!("{proto:?}");
        run(test(proto));
    }
}

const PATH_DOWN_SESSION: u32 = 0x200;
const FAULT: u32 = 0x400;

#[test]
fn a_client_that_waits_for_a_lock_is_notified() {
    on_both(async |proto| {
        let scene = Scene::new(proto).await;
        for number in 1..=3 {
            let notice = scene.notice().await;
            assert_eq!((notice.sequence.slot, notice.sequence.sequence), (0, number));
            assert_eq!(notice.sequence.session, scene.sessions[1].ok.session);
            scene.wire.answer(&notice, Status::Ok);
            scene.until_notified(number.into()).await;
            let stateid = scene.lock(1).await.unwrap();
            scene.unlock(1, stateid).await;
        }
        assert_eq!(scene.flags().await, 0);
    });
}

#[test]
fn callbacks_continue_on_another_connection() {
    on_both(async |proto| {
        let mut scene = Scene::new(proto).await;
        let lost = scene.notice().await;
        // The connection ends without an answer.
        scene.wire = Wire::connect(&scene.server, scene.proto);
        scene.waiter = scene.wire.caller();
        scene.until_flags(PATH_DOWN_SESSION).await;
        assert_eq!(scene.bind().await, Direction::Both);
        assert_eq!(scene.flags().await, 0);
        // The result of the lost callback is unknown: its number is used again until the client rejects it.
        let repeated = scene.notice().await;
        assert_eq!(repeated.sequence, lost.sequence);
        scene.wire.answer(&repeated, Status::RetryUncachedRep);
        let next = Notice::decode(&scene.wire.callback());
        assert_eq!(next.sequence.sequence, lost.sequence.sequence + 1);
        scene.wire.answer(&next, Status::Ok);
        scene.until_notified(1).await;
        assert_eq!(scene.flags().await, 0);
    });
}

#[test]
fn hostile_replies_end_only_their_callback() {
    on_both(async |proto| {
        let scene = Scene::new(proto).await;
        let notice = scene.notice().await;
        let header = |xid: u32| [xid.to_be_bytes(), 1_u32.to_be_bytes()].concat();
        // Replies to no call, of any length, are dropped.
        scene.wire.write(&header(notice.xid ^ 0x8000));
        // A Send longer than the server's receives would end the connection.
        let long = vec![0xff; if proto == Proto::Rdma { 4000 } else { 100_000 }];
        scene.wire.write(&[header(notice.xid ^ 0x8000), long.clone()].concat());
        assert_eq!(scene.flags().await, 0);
        // Each of these ends the callback, and the path is down until the client binds a connection.
        let mut expected = notice;
        for reply in [
            header(expected.xid),
            [header(expected.xid + 1), long].concat(),
            [header(expected.xid + 2), vec![0xff; 40]].concat(),
            [header(expected.xid + 3), vec![0; 16]].concat(),
        ] {
            assert_eq!(reply[..4], expected.xid.to_be_bytes());
            scene.wire.write(&reply);
            scene.until_flags(PATH_DOWN_SESSION).await;
            assert_eq!(scene.bind().await, Direction::Both);
            let next = scene.notice().await;
            assert_eq!(next.sequence, expected.sequence);
            expected = next;
        }
        // A reply is accepted once.
        scene.wire.answer(&expected, Status::Ok);
        scene.wire.answer(&expected, Status::Ok);
        scene.until_notified(1).await;
        // SEQUENCE reports that the client rejects the session of the back channel.
        let notice = scene.notice().await;
        scene.wire.answer(&notice, Status::BadSession);
        scene.until_flags(FAULT).await;
    });
}

#[test]
fn the_client_is_called_as_it_asks() {
    on_both(async |proto| {
        let scene = Scene::new(proto).await;
        let (c, s) = (&scene.waiter, &scene.sessions[1]);
        let security = CallbackSecurity::Sys(AuthSys {
            stamp: 1,
            machine_name: Opaque(b"host"),
            uid: 7,
            gid: 8,
            gids: List(vec![9]),
        });
        let control = |security| {
            let args = BackchannelCtlArgs { callback_program: 5, callback_security: List(vec![security]) };
            op(Operation::BackchannelCtl, args)
        };
        let gss = GssHandles { service: 1, from_server: Opaque(b"a"), from_client: Opaque(b"b") };
        assert_eq!(s.status(c, [control(CallbackSecurity::Gss(gss))]).await, Status::Inval);
        assert_eq!(s.status(c, [control(security)]).await, Status::Ok);
        let held = scene.lock(0).await.unwrap();
        assert_eq!(scene.lock(1).await, Err(Status::Denied));
        scene.unlock(0, held).await;
        let call = scene.wire.callback();
        let header = CallHeader::decode(&mut Decoder::from_bytes(&call)).unwrap();
        let millrace_oncrpc::Credential::Sys(sys) = header.cred else { panic!("{header:?}") };
        assert_eq!((header.prog, sys.uid, sys.gid, &sys.gids[..]), (5, 7, 8, &[9][..]));
    });
}
