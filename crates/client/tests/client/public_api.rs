//! Every type of the public API is accessible through this crate.

use std::{net::SocketAddr, sync::Arc};

use millrace_client::{
    Arena, Buffer, Client, ClientBuilder, Connection, ConnectionStats, Connector, DirEntry, Error, File,
    FileTimes, FileType, Identity, Invalidation, Metadata, OpenOptions, Options, OutOfMemory, Proto,
    Provider, ProviderChoice, ReadDir, ReadInto, RegistrationStats, RetryPolicy, RpcError, RuntimeRef, Stats,
    Strategy, StreamProvider, TokioRuntime, Transport, Url, View, Views, blocking, handles, nfs, oncrpc, ops,
    rdma, rpcrdma, runtime,
};

/// Implements the trait of custom connections with re-exported types only.
struct NoServer;

impl Connector for NoServer {
    fn server(&self) -> String {
        "none".into()
    }

    fn connect(&self) -> runtime::BoxFuture<'static, Result<Connection, Error>> {
        Box::pin(std::future::ready(Err(Error::Closed)))
    }

    fn connect_mount(&self) -> runtime::BoxFuture<'static, Result<Connection, Error>> {
        self.connect()
    }
}

/// Compiled, not run: types of arguments and results of the protocol layer.
#[allow(dead_code)]
async fn types_of_the_protocol_layer(client: &handles::Client) -> Result<(), Error> {
    let root: ops::FileHandle = client.root();
    let attributes: ops::Attributes = client.getattr(root).await?;
    let _: FileType = attributes.file_type;
    let set = ops::SetAttributes { mtime: ops::SetTime::ServerTime, ..ops::SetAttributes::default() };
    let _: ops::Wcc = client.setattr(root, set, Some(ops::NfsTime::default())).await?;
    let made: handles::Object = client.create(root, "f", ops::CreateHow::Guarded(set)).await?;
    let written: handles::Written = client.write(made.handle, 0, b"x", ops::StableHow::FileSync).await?;
    let _: ops::Verifier = written.verifier;
    let page: ops::DirPage = client.readdir_page(root, 0, [0; 8]).await?;
    let _: Vec<ops::DirEntry> = page.entries;
    let _: ops::FsInfo = client.fsinfo(root).await?;
    let _: ops::FsStat = client.fsstat(root).await?;
    let _: ops::PathConf = client.pathconf(root).await?;
    let _: ops::CommitOk = client.commit(made.handle, 0, 0).await?;
    let _: ops::LinkOk = client.link(made.handle, root, "g").await?;
    let _: ops::RenameOk = client.rename(root, "g", root, "h").await?;
    let _: u32 = client.access(root, ops::access::READ).await?;
    let _: Arc<dyn Fn(ops::MknodWhat)> = Arc::new(drop);
    let _: RegistrationStats = client.registration_stats();
    let file: handles::File = client.open("f").await?;
    file.read_stream(0, 1, 1, |_: u64, _: Views| ()).await.map(drop)
}

/// Compiled, not run: types of the fields of errors and statistics.
#[allow(dead_code)]
fn types_of_errors_and_statistics(error: Error, stats: ConnectionStats) {
    let _: Option<rdma::Counters> = stats.queue_pair;
    let _: Option<rpcrdma::RequesterStatsSnapshot> = stats.requester;
    match error {
        Error::Nfs { procedure, status, .. } => {
            let _: (ops::Procedure, ops::Status) = (procedure, status);
        }
        Error::Mount { status, .. } => {
            let _: nfs::mount::Status = status;
        }
        Error::Rpc { error: RpcError::Accept(accept), .. } => {
            let _: oncrpc::AcceptError = accept;
        }
        Error::Rpc { error: RpcError::Auth(auth), .. } => {
            let _: oncrpc::AuthStat = auth;
        }
        Error::Rpc { error: RpcError::Mismatch(mismatch), .. } => {
            let _: oncrpc::RpcMismatch = mismatch;
        }
        Error::OutOfMemory(full) => {
            let _: OutOfMemory = full;
        }
        _ => {}
    }
    let _: fn(&Stats) -> &oncrpc::stages::StageStats = |s| &s.stages;
}

/// Compiled, not run: connections over custom providers.
#[allow(dead_code)]
async fn types_of_connections(
    rt: RuntimeRef,
    rdma: Arc<dyn Provider>,
    tcp: Arc<dyn StreamProvider>,
    at: SocketAddr,
) -> Result<(), Error> {
    handles::Client::connect_over(Arc::clone(&rt), rdma, at, "/", Options::default()).await?;
    handles::Client::connect_over_tcp(rt, tcp, at, "/", Options::default()).await?;
    let _: fn(Arc<dyn Transport>) -> Connection = |transport| Connection::new(transport, "peer");
    Ok(())
}

/// Compiled, not run: options and path-level types.
#[allow(dead_code)]
async fn types_of_paths(url: Url, memory: Arena) -> Result<(), Error> {
    let builder: ClientBuilder = Client::builder(url)
        .runtime(TokioRuntime::current())
        .proto(Some(Proto::Rdma))
        .provider(ProviderChoice::default())
        .rdma_protocol(Default::default())
        .registration(Strategy::Fast)
        .invalidation(Invalidation::default())
        .credential(Identity::default())
        .retry(RetryPolicy::NONE);
    let client: Client = builder.connect().await?;
    let file: File = OpenOptions::new().read(true).open(&client, "f").await?;
    let buffer: Buffer = memory.alloc(1)?;
    let read: ReadInto = file.read_at_into(0, buffer).await?;
    let _: View = read.buffer.freeze();
    let metadata: Metadata = file.metadata().await?;
    let _: FileType = metadata.file_type();
    file.set_times(FileTimes::new()).await?;
    let mut entries: ReadDir = client.read_dir("/").await?;
    let _: Option<DirEntry> = entries.next_entry().await?;
    let _: fn(&blocking::Client, &blocking::File) = |_, _| ();
    Ok(())
}

#[test]
fn futures_and_files_can_move_between_threads() {
    fn send<T: Send>() {}
    fn sync<T: Send + Sync>() {}
    sync::<(Client, File, Error, Options, Metadata, blocking::Client, blocking::File, ClientBuilder)>();
    send::<ReadDir>();
    sync::<NoServer>();
}

/// Compiled, not run: the futures of path operations are `Send`.
#[allow(dead_code)]
fn path_futures_are_send(client: &Client, file: &File, buffer: Buffer) {
    fn send<T: Send>(_: T) {}
    send(client.open("x"));
    send(client.read("x"));
    send(client.write("x", "y"));
    send(client.create_dir_all("x"));
    send(client.remove_dir_all("x"));
    send(client.copy("x", "y"));
    send(client.read_dir("x"));
    send(file.read_at_into(0, buffer));
    send(file.sync_all());
    send(Client::connect("nfs://x/y"));
}
