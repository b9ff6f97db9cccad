//! A scripted server: a closure, with transports and a connector that drop connections on its request.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
    },
    time::Duration,
};

use millrace_buffer::{Arena, ArenaConfig};
use millrace_nfs::{
    mount::{self, Dirpath, ExportEntry, MntOk},
    v3::{self, Fattr, FileHandle, FileType, FsinfoOk, NfsTime, Procedure, Status},
};
use millrace_oncrpc::{
    AcceptError, CallContext, CallbackHandler, LastSender, Message, Peer, PendingCall, Reply, ReplyHeader,
    ReplyStatus, Request, RpcError, Transport, TransportKind, TransportSecurity,
};
use millrace_runtime::{BoxFuture, RuntimeRef, sync::Mutex, tokio_rt::TokioRuntime};
use millrace_xdr::{Encode, Encoder};

use crate::{Connection, Connector, Error, Options, Proto, RetryPolicy, Version, handles::Client, ops};

/// Outcome of a call.
pub(super) enum Act {
    /// A reply with these results.
    Answer(Box<dyn Fn(&mut Encoder) + Send>),
    /// A reply with an RPC error.
    Refuse(AcceptError),
    /// The loss of the connection.
    Lose,
    /// No reply.
    Mute,
}

/// A reply with the result `value`.
pub(super) fn answer(value: impl Encode + Send + 'static) -> Act {
    Act::Answer(Box::new(move |e| e.put(&value)))
}

/// A reply with status OK and these results.
pub(super) fn ok(value: impl Encode + Send + 'static) -> Act {
    Act::Answer(Box::new(move |e| {
        e.put(&Status::Ok);
        e.put(&value);
    }))
}

/// A reply with an error status, without the data of the error case, which the client ignores.
pub(super) fn fail(status: Status) -> Act {
    answer(status)
}

type Handler = Box<dyn FnMut(Procedure, &CallContext) -> Act + Send>;

/// The scripted server.
pub(super) struct Script {
    handler: Mutex<Handler>,
    /// Whether MOUNT is offered only on separate connections.
    pub(super) mount_elsewhere: AtomicBool,
    /// Whether NFSv4 is offered.
    pub(super) v4: AtomicBool,
    /// The results of EXPORT; `None` rejects EXPORT.
    pub(super) exports: Mutex<Option<Vec<&'static str>>>,
    /// The exports that MNT accepts.
    pub(super) mountable: Mutex<Vec<&'static str>>,
    /// XIDs and procedures of the received NFS calls.
    pub(super) seen: Mutex<Vec<(u32, Procedure)>>,
    /// Number of connections to refuse.
    pub(super) refuse: AtomicU32,
    pub(super) mount_connections: AtomicU32,
    /// Current and maximum number of concurrent connection setups.
    pub(super) setups: (AtomicU32, AtomicU32),
    arena: Arena,
    xids: AtomicU64,
}

/// The client's form of a handle.
pub(super) fn handle(n: u8) -> ops::FileHandle {
    ops::FileHandle::new(handle3(n).as_bytes()).unwrap()
}

/// A handle of the script.
pub(super) fn handle3(n: u8) -> FileHandle {
    FileHandle::new(&[n]).unwrap()
}

pub(super) fn attributes(file_type: FileType, fileid: u64) -> Fattr {
    let t = NfsTime { seconds: 1, nanoseconds: 0 };
    Fattr {
        file_type,
        mode: 0o644,
        nlink: 1,
        uid: 0,
        gid: 0,
        size: 0,
        used: 0,
        rdev: Default::default(),
        fsid: 1,
        fileid,
        atime: t,
        mtime: t,
        ctime: t,
    }
}

impl Script {
    pub(super) fn new(handler: impl FnMut(Procedure, &CallContext) -> Act + Send + 'static) -> Arc<Self> {
        Arc::new(Self {
            handler: Mutex::new(Box::new(handler)),
            mount_elsewhere: AtomicBool::new(false),
            v4: AtomicBool::new(true),
            exports: Mutex::new(Some(vec!["/e"])),
            mountable: Mutex::new(vec!["/e"]),
            seen: Mutex::default(),
            refuse: AtomicU32::new(0),
            mount_connections: AtomicU32::new(0),
            setups: Default::default(),
            arena: Arena::new(ArenaConfig { limit: 64 << 20, huge_pages: false }),
            xids: AtomicU64::new(1000),
        })
    }

    /// Mounts `path` from this server.
    pub(super) async fn mount(self: &Arc<Self>, path: &str, retry: RetryPolicy) -> Result<Client, Error> {
        self.mount_with(path, Options { retry, ..nfs3() }).await
    }

    pub(super) async fn mount_with(self: &Arc<Self>, path: &str, options: Options) -> Result<Client, Error> {
        self.mount_on(TokioRuntime::current(), path, options).await
    }

    pub(super) async fn mount_on(
        self: &Arc<Self>,
        rt: RuntimeRef,
        path: &str,
        options: Options,
    ) -> Result<Client, Error> {
        let options = Options { wsize: Some(4096), rsize: Some(4096), ..options };
        let connector = Arc::new(ScriptConnector(Arc::clone(self)));
        Client::mount(rt, self.arena.clone(), connector, path, options).await
    }

    pub(super) async fn client(self: &Arc<Self>) -> Client {
        self.mount("/e", quick()).await.unwrap()
    }

    /// XIDs of the received calls of a procedure.
    pub(super) fn xids(&self, procedure: Procedure) -> Vec<u32> {
        self.seen.lock().iter().filter(|(_, p)| *p == procedure).map(|(x, _)| *x).collect()
    }

    fn act(&self, call: &CallContext, mount_only: bool) -> Act {
        if call.header.prog == mount::PROGRAM {
            return self.mount_call(call, mount_only);
        }
        if call.header.vers != v3::VERSION && !self.v4.load(Ordering::Relaxed) {
            return Act::Refuse(AcceptError::ProgMismatch { low: v3::VERSION, high: v3::VERSION });
        }
        let procedure = Procedure::try_from(call.header.proc).unwrap();
        if (call.header.vers, procedure) == (v3::VERSION, Procedure::Fsinfo) {
            return ok(FSINFO);
        }
        self.seen.lock().push((call.header.xid, procedure));
        (self.handler.lock())(procedure, call)
    }

    fn mount_call(&self, call: &CallContext, mount_only: bool) -> Act {
        if self.mount_elsewhere.load(Ordering::Relaxed) && !mount_only {
            return Act::Refuse(AcceptError::ProgUnavail);
        }
        match mount::Procedure::try_from(call.header.proc).unwrap() {
            mount::Procedure::Export => match self.exports.lock().clone() {
                None => Act::Refuse(AcceptError::ProcUnavail),
                Some(names) => Act::Answer(Box::new(move |e| {
                    let entry =
                        |n: &&'static str| ExportEntry { directory: Dirpath(n.as_bytes()), groups: vec![] };
                    mount::encode_list(&names.iter().map(entry).collect::<Vec<_>>(), e);
                })),
            },
            mount::Procedure::Mnt => {
                let path: Dirpath<'_> = call.args().get().unwrap();
                let known = self.mountable.lock().iter().any(|m| m.as_bytes() == path.0);
                let ok = MntOk { handle: handle3(1), flavors: [1].into_iter().collect() };
                let res = if known { Ok(ok) } else { Err(mount::Status::NoEnt) };
                Act::Answer(Box::new(move |e| mount::encode_mnt(&res, e)))
            }
            _ => Act::Refuse(AcceptError::ProcUnavail),
        }
    }
}

const FSINFO: FsinfoOk = FsinfoOk {
    attributes: None,
    read_max: 1 << 20,
    read_preferred: 1 << 20,
    read_multiple: 4096,
    write_max: 1 << 20,
    write_preferred: 1 << 20,
    write_multiple: 4096,
    readdir_preferred: 8192,
    max_file_size: 1 << 40,
    time_delta: NfsTime { seconds: 0, nanoseconds: 1 },
    properties: 0x1b,
};

/// The version of the script.
pub(super) fn nfs3() -> Options {
    Options::default().vers(Some(Version::V3))
}

/// Many retries with negligible delays.
pub(super) fn quick() -> RetryPolicy {
    RetryPolicy {
        max_elapsed: Duration::from_secs(20),
        first_delay: Duration::from_micros(10),
        max_delay: Duration::from_micros(100),
    }
}

/// Decodes arguments from the client under test.
pub(super) fn args<'c, T: millrace_xdr::Decode<'c>>(call: &'c CallContext) -> T {
    call.args().get().unwrap()
}

struct ScriptConnector(Arc<Script>);

impl Connector for ScriptConnector {
    fn server(&self) -> String {
        "script".into()
    }

    fn connect(&self) -> BoxFuture<'static, Result<Connection, Error>> {
        let script = Arc::clone(&self.0);
        Box::pin(async move {
            let (now, most) = &script.setups;
            most.fetch_max(now.fetch_add(1, Ordering::Relaxed) + 1, Ordering::Relaxed);
            tokio::task::yield_now().await;
            now.fetch_sub(1, Ordering::Relaxed);
            let spend = |n: u32| n.checked_sub(1);
            if script.refuse.fetch_update(Ordering::Relaxed, Ordering::Relaxed, spend).is_ok() {
                let reason = "refused by the script".into();
                return Err(Error::Connect {
                    server: "script".into(),
                    proto: Proto::Tcp,
                    reason,
                    source: None,
                });
            }
            Ok(Connection::new(Arc::new(ScriptTransport::new(script, false)), "script"))
        })
    }

    fn connect_mount(&self) -> BoxFuture<'static, Result<Connection, Error>> {
        let script = Arc::clone(&self.0);
        script.mount_connections.fetch_add(1, Ordering::Relaxed);
        Box::pin(async { Ok(Connection::new(Arc::new(ScriptTransport::new(script, true)), "script")) })
    }
}

struct ScriptTransport {
    script: Arc<Script>,
    mount_only: bool,
    failure: Mutex<Option<RpcError>>,
}

impl ScriptTransport {
    fn new(script: Arc<Script>, mount_only: bool) -> Self {
        Self { script, mount_only, failure: Mutex::default() }
    }

    fn lose(&self) -> RpcError {
        let e = RpcError::Disconnected { peer: "script".into(), reason: "lost by the script".into() };
        self.failure.lock().get_or_insert(e).clone()
    }

    fn execute(&self, message: Message, xid: u32) -> Result<Reply, RpcError> {
        let addr = "127.0.0.1:1".parse().unwrap();
        let peer = Peer {
            addr,
            local: addr,
            transport: TransportKind::Tcp,
            security: TransportSecurity::None,
            connection: 0,
        };
        let mut call = CallContext::parse(message, &mut LastSender::new(peer)).unwrap();
        call.header.xid = xid;
        match self.script.act(&call, self.mount_only) {
            Act::Answer(results) => {
                let mut e = Encoder::new(&self.script.arena, 256);
                e.put(&ReplyHeader { xid, status: ReplyStatus::Success });
                let results_at = e.len();
                results(&mut e);
                Ok(Reply { message: e.finish().unwrap(), results_at })
            }
            Act::Refuse(e) => Err(RpcError::Accept(e)),
            Act::Lose => Err(self.lose()),
            Act::Mute => Err(RpcError::TimedOut { peer: "script".into(), after: Duration::from_secs(1) }),
        }
    }
}

impl Transport for ScriptTransport {
    fn submit(&self, request: Request) -> PendingCall {
        if let Some(e) = self.failure() {
            return PendingCall::complete(None, Err(e));
        }
        let fresh = self.script.xids.fetch_add(1, Ordering::Relaxed);
        let xid = request.xid.unwrap_or(fresh as u32);
        PendingCall::complete(Some(xid), self.execute(request.message, xid))
    }

    fn max_payload(&self) -> usize {
        v3::MAX_DATA
    }

    /// The script makes no calls to the client.
    fn handle_callbacks(&self, _: &Arc<dyn CallbackHandler>) {}

    fn failure(&self) -> Option<RpcError> {
        self.failure.lock().clone()
    }

    fn close(&self) {
        self.lose();
    }
}

/// Runs a test on a new runtime.
pub(super) fn run(test: impl Future<Output = ()>) {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(test);
}
