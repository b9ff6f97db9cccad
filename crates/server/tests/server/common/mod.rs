//! A server in the test's process, and a client that calls single NFS procedures (`Caller`).
//!
//! `everywhere` runs a test over each transport.

#![allow(unreachable_pub, missing_docs, clippy::unwrap_used, clippy::expect_used)] // Helpers of tests, which are to fail.

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use millrace_buffer::{Arena, ArenaConfig};
use millrace_nfs::{
    mount::{self, Dirpath, MntRes},
    v3::{
        self, CreateArgs, CreateHow, CreateOk, DirOpArgs, Fattr, FileHandle, GetattrArgs, GetattrOk,
        LookupArgs, LookupOk, Procedure, ReadArgs, ReadOk, Res, Sattr, StableHow, Status, WccData, WriteArgs,
        WriteOk,
    },
};
use millrace_oncrpc::{
    AuthSys, CallbackHandler, Credential, Reply, ReplySpec, Request, RpcError, Transport,
    tcp::{TcpClientConfig, TcpTransport},
};
use millrace_rdma_providers::ProviderChoice;
use millrace_rpcrdma::{Requester, RequesterConfig};
use millrace_runtime::{
    BoxFuture, RuntimeRef,
    tokio_rt::{TcpByteStream, TokioRuntime, run_shard},
};
use millrace_server::{Config, ExportConfig, Running, Server};
use millrace_xdr::{Decode, Decoder, Encode, Encoder, Message};

/// Sufficient for every reply without entries or payload.
const REPLY_ROOM: usize = 1024;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Proto {
    Tcp,
    Rdma,
}

impl Proto {
    pub const ALL: [Self; 2] = [Self::Tcp, Self::Rdma];
}

pub fn arena(limit: usize) -> Arena {
    Arena::new(ArenaConfig { limit, huge_pages: false })
}

/// The address and provider of RDMA tests: an RDMA device if the environment contains its address.
pub fn rdma_at() -> (IpAddr, ProviderChoice) {
    match std::env::var("MILLRACE_TEST_VERBS") {
        Ok(address) => (address.parse().unwrap(), ProviderChoice::Verbs),
        Err(_) => (Ipv4Addr::LOCALHOST.into(), ProviderChoice::Iwarp),
    }
}

/// A configuration with free ports, on loopback unless RDMA is tested elsewhere.
pub fn config(exports: &[&str]) -> Config {
    let (at, provider) = rdma_at();
    Config {
        exports: exports.iter().map(|e| e.parse::<ExportConfig>().unwrap()).collect(),
        listen_tcp: vec![SocketAddr::from((Ipv4Addr::LOCALHOST, 0))],
        listen_rdma: vec![SocketAddr::new(at, 0)],
        provider,
        shards: Some(2),
        float_shards: true,
        ..Config::default()
    }
}

/// Runs a test on a new executor.
pub fn run(test: impl Future<Output = ()>) {
    run_shard(async {
        tokio::time::timeout(Duration::from_secs(60), test).await.expect("the test hangs");
    })
    .unwrap();
}

/// Runs `test` with a new server for each combination of transport and file system. The test gets a connected
/// caller (root by AUTH_SYS) and the root of the export `/x`.
pub fn everywhere(test: impl AsyncFn(&Caller, FileHandle)) {
    let dir = tempfile::tempdir().unwrap();
    let mut n = 0;
    for backend in ["memory:64MiB", "local"] {
        for proto in Proto::ALL {
            n += 1;
            let export = if backend == "local" {
                let path = dir.path().join(n.to_string());
                std::fs::create_dir(&path).unwrap();
                format!("/x=local:{},squash=none", path.display())
            } else {
                format!("/x={backend},squash=none")
            };
            eprintln!("{proto:?} {backend}");
            run(async {
                let server = Server::start(config(&[&export])).unwrap();
                let caller = Caller::connect(&server, proto).await;
                let root = caller.mount("/x").await.unwrap();
                test(&caller, root).await;
                drop(caller);
                server.stop(Duration::from_secs(5)).await;
            });
        }
    }
}

/// Executes calls on a connection.
pub trait Calls: Send + Sync {
    fn call(&self, request: Request) -> BoxFuture<'_, Result<Reply, RpcError>>;

    /// Has `handler` answer the calls of the server from now on.
    fn handle_callbacks(&self, handler: &Arc<dyn CallbackHandler>);

    /// The reason why the connection is unusable, if it is.
    fn failure(&self) -> Option<RpcError>;

    fn close(&self);
}

impl<T: Transport> Calls for T {
    fn call(&self, request: Request) -> BoxFuture<'_, Result<Reply, RpcError>> {
        Box::pin(self.submit(request))
    }

    fn handle_callbacks(&self, handler: &Arc<dyn CallbackHandler>) {
        Transport::handle_callbacks(self, handler);
    }

    fn failure(&self) -> Option<RpcError> {
        Transport::failure(self)
    }

    fn close(&self) {
        Transport::close(self);
    }
}

/// The client's end of a connection.
pub struct Caller {
    pub transport: Arc<dyn Calls>,
    pub arena: Arena,
    pub rt: RuntimeRef,
    pub cred: Credential,
}

pub fn sys(uid: u32, gid: u32) -> Credential {
    Credential::Sys(AuthSys { uid, gid, ..AuthSys::default() })
}

impl Caller {
    pub async fn connect(server: &Running, proto: Proto) -> Self {
        let (rt, arena) = (TokioRuntime::current(), arena(64 << 20));
        let transport: Arc<dyn Calls> = match proto {
            Proto::Tcp => tcp(&rt, &arena, server.tcp_addr().unwrap()).await.unwrap(),
            Proto::Rdma => {
                let config = RequesterConfig::default();
                let addr = server.rdma_addr().unwrap();
                let provider = rdma_at().1.to_connect(addr).unwrap().provider;
                Requester::connect(&*provider, Arc::clone(&rt), arena.clone(), addr, config).await.unwrap()
            }
        };
        Self { transport, arena, rt, cred: sys(0, 0) }
    }

    pub fn with(&self, cred: Credential) -> Self {
        Self {
            transport: Arc::clone(&self.transport),
            arena: self.arena.clone(),
            rt: Arc::clone(&self.rt),
            cred,
        }
    }

    pub fn message(&self, prog: u32, vers: u32, proc: u32, args: &impl Encode) -> Message {
        let mut e = Encoder::new(&self.arena, 512);
        millrace_oncrpc::call_header(&mut e, prog, vers, proc, &self.cred);
        e.put(args);
        e.finish().unwrap()
    }

    pub async fn send(&self, message: Message, room: usize, xid: Option<u32>) -> Result<Reply, RpcError> {
        let reply = ReplySpec { max_head: REPLY_ROOM + room, ..ReplySpec::default() };
        self.transport.call(Request { xid, ..Request::new(message, reply) }).await
    }

    pub async fn reply(&self, proc: Procedure, args: &impl Encode, room: usize) -> Result<Reply, RpcError> {
        let message = self.message(v3::PROGRAM, v3::VERSION, proc.number(), args);
        let has_data = matches!(proc, Procedure::Read | Procedure::Readlink);
        let payload = has_data.then(|| self.arena.alloc(2 << 20).unwrap());
        let reply = ReplySpec { max_head: REPLY_ROOM + room, payload, ..ReplySpec::default() };
        self.transport.call(Request::new(message, reply)).await
    }

    /// Calls an NFS procedure.
    pub async fn nfs<R: for<'a> Decode<'a>>(&self, proc: Procedure, args: &impl Encode) -> R {
        self.reply(proc, args, 0).await.unwrap().results().get().unwrap()
    }

    /// Calls an NFS procedure whose result borrows from the reply.
    pub async fn nfs_with<R>(
        &self,
        proc: Procedure,
        args: &impl Encode,
        room: usize,
        read: impl FnOnce(&mut Decoder<'_>) -> R,
    ) -> R {
        let reply = self.reply(proc, args, room).await.unwrap();
        let mut d = reply.results();
        let out = read(&mut d);
        assert_eq!(d.remaining(), 0, "bytes after the results of {proc}");
        out
    }

    pub async fn mount_reply(&self, proc: mount::Procedure, args: &impl Encode) -> Result<Reply, RpcError> {
        self.send(self.message(mount::PROGRAM, mount::VERSION, proc.number(), args), 4096, None).await
    }

    pub async fn mount(&self, path: &str) -> MntHandle {
        let reply = self.mount_reply(mount::Procedure::Mnt, &Dirpath(path.as_bytes())).await.unwrap();
        let res: MntRes = mount::decode_mnt(&mut reply.results()).unwrap();
        res.map(|ok| {
            assert_eq!(ok.flavors[0], 1, "AUTH_SYS");
            ok.handle
        })
    }

    pub async fn create(&self, dir: FileHandle, name: &str) -> FileHandle {
        self.create_how(dir, name, CreateHow::Guarded(Sattr::default())).await.unwrap()
    }

    pub async fn create_how(
        &self,
        dir: FileHandle,
        name: &str,
        how: CreateHow,
    ) -> Result<FileHandle, Status> {
        let args = CreateArgs { where_: at(dir, name), how };
        let res: Res<CreateOk, WccData> = self.nfs(Procedure::Create, &args).await;
        match res {
            Res::Ok(ok) => {
                assert!(ok.attributes.is_some() && ok.dir.after.is_some());
                Ok(ok.object.unwrap())
            }
            Res::Err(s, wcc) => {
                assert!(wcc.after.is_some() || matches!(s, Status::Stale | Status::BadHandle), "{s:?}");
                Err(s)
            }
        }
    }

    pub async fn lookup(&self, dir: FileHandle, name: &str) -> Result<(FileHandle, Fattr), Status> {
        let res: Res<LookupOk, v3::PostOpAttr> =
            self.nfs(Procedure::Lookup, &LookupArgs { what: at(dir, name) }).await;
        let ok = res.into_result().map_err(|(s, _)| s)?;
        assert!(ok.dir.is_some());
        Ok((ok.object, ok.attributes.unwrap()))
    }

    pub async fn getattr(&self, object: FileHandle) -> Result<Fattr, Status> {
        let res: Res<GetattrOk, ()> = self.nfs(Procedure::Getattr, &GetattrArgs { object }).await;
        res.into_result().map(|ok| ok.attributes).map_err(|(s, ())| s)
    }

    pub async fn write(
        &self,
        file: FileHandle,
        offset: u64,
        data: &[u8],
        stable: StableHow,
    ) -> Result<WriteOk, Status> {
        let mut buffer = self.arena.alloc(data.len()).unwrap();
        buffer.copy_from_slice(data);
        let data = buffer.freeze().into();
        self.write_args(&WriteArgs { file, offset, count: data_len(&data), stable, data }).await
    }

    pub async fn write_args(&self, args: &WriteArgs) -> Result<WriteOk, Status> {
        let res: Res<WriteOk, WccData> = self.nfs(Procedure::Write, args).await;
        res.into_result().map_err(|(s, _)| s)
    }

    pub async fn read(&self, file: FileHandle, offset: u64, count: u32) -> Result<(Vec<u8>, bool), Status> {
        let res: Res<ReadOk, v3::PostOpAttr> =
            self.nfs(Procedure::Read, &ReadArgs { file, offset, count }).await;
        let ok = res.into_result().map_err(|(s, _)| s)?;
        assert!(ok.attributes.is_some());
        Ok((ok.data.to_vec(), ok.eof))
    }
}

type MntHandle = Result<FileHandle, mount::Status>;

fn data_len(data: &millrace_xdr::Views) -> u32 {
    u32::try_from(data.len()).unwrap()
}

pub async fn tcp(rt: &RuntimeRef, arena: &Arena, addr: SocketAddr) -> Result<Arc<TcpTransport>, RpcError> {
    let stream = TcpByteStream::connect(addr).await.map_err(|e| RpcError::Local(e.to_string()))?;
    let config = TcpClientConfig { timeout: Duration::from_secs(20), ..TcpClientConfig::default() };
    TcpTransport::start(Box::new(stream), rt, arena, config)
}

pub fn at(dir: FileHandle, name: &str) -> DirOpArgs<'_> {
    DirOpArgs { dir, name: name.as_bytes() }
}
