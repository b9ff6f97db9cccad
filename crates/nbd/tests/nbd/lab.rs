//! A target, and the server for its disk, on their own executor.

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
    time::Duration,
};

use futures::{FutureExt, channel::oneshot};
use millrace_admission::{Budget, BudgetConfig};
use millrace_buffer::{Arena, ArenaConfig};
use millrace_iscsi_initiator::{BlockDevice, Options, Url};
use millrace_iscsi_target::{
    ConnectionLimits, MAX_COMMAND_MEMORY, TableLimits, TargetConfig, TargetTable, tcp::TcpTarget,
};
use millrace_nbd::{Error, Server};
use millrace_runtime::{
    RuntimeRef,
    tokio_rt::{TcpByteStream, TokioRuntime},
};
use millrace_scsi::{BlockSize, Disk, DiskConfig, Lun, Target};
use millrace_vfs::{
    CreateHow, FileSystemRef, Identity, SetAttr,
    memory::{MemoryConfig, MemoryFs},
};
use tokio::{runtime::Runtime, task::JoinSet};

use crate::client::Client;

pub(crate) const TARGET: &str = "iqn.2026-01.example:target";

/// The device of a lab.
pub(crate) struct Config {
    pub(crate) size: u64,
    pub(crate) block_size: BlockSize,
    pub(crate) read_only: bool,
    pub(crate) device: Options,
    pub(crate) server: millrace_nbd::Options,
}

impl Config {
    pub(crate) fn new(size: u64, block_size: BlockSize) -> Self {
        let (device, server) = (Options::default(), millrace_nbd::Options::default());
        Self { size, block_size, read_only: false, device, server }
    }
}

/// The target's file system, and its connections.
struct Backend {
    fs: FileSystemRef,
    rt: RuntimeRef,
    block_size: BlockSize,
    read_only: bool,
    target: Mutex<Option<TcpTarget>>,
    connections: Mutex<JoinSet<()>>,
}

/// A target and a server, which end when this is dropped.
pub(crate) struct Lab {
    dir: tempfile::TempDir,
    backend: Arc<Backend>,
    pub(crate) device: BlockDevice,
    stop: Option<oneshot::Sender<()>>,
    served: Option<tokio::task::JoinHandle<Result<(), Error>>>,
    executor: Runtime,
}

fn arena(limit: usize) -> Arena {
    Arena::new(ArenaConfig { limit, huge_pages: false })
}

/// A file system in memory with the file of a disk of `size` bytes.
pub(crate) async fn file_system(rt: &RuntimeRef, size: u64) -> FileSystemRef {
    let fs: FileSystemRef = MemoryFs::new(MemoryConfig::new(arena(512 << 20), Arc::clone(rt)));
    let how = CreateHow::Guarded(SetAttr { size: Some(size), ..SetAttr::default() });
    fs.create(&Identity::root(), &fs.root(), b"disk", &how).await.unwrap();
    fs
}

/// The target of the disk on `fs`.
pub(crate) async fn target(
    fs: &FileSystemRef,
    rt: &RuntimeRef,
    block_size: BlockSize,
    read_only: bool,
) -> TcpTarget {
    let (file, _) = fs.lookup(&Identity::root(), &fs.root(), b"disk").await.unwrap();
    let config = DiskConfig {
        block_size,
        read_only,
        identifier: 1,
        record_directory: fs.root(),
        record_name: b"reservations".to_vec(),
    };
    let disk = Disk::open(Arc::clone(fs), file, Identity::root(), config).await.unwrap();
    let config = millrace_scsi::TargetConfig { name: TARGET.into(), arena: arena(256 << 20) };
    let device = Target::new(config);
    device.add(Lun::default(), disk).unwrap();
    let table = TargetTable::new(TableLimits::default());
    let (initiators, addresses, name) = (Vec::new(), Vec::new(), TARGET.parse().unwrap());
    table
        .replace(vec![TargetConfig {
            name,
            device,
            initiators,
            chap: None,
            xprtsec: Default::default(),
            addresses,
        }])
        .unwrap();
    let (limits, stats) = (ConnectionLimits::default(), Arc::default());
    TcpTarget { table, rt: Arc::clone(rt), arena: arena(256 << 20), limits, stats }
}

/// The memory budget of a target.
pub(crate) fn budget(rt: &RuntimeRef) -> Budget {
    let largest = MAX_COMMAND_MEMORY;
    let config = BudgetConfig { memory: 256 << 20, own: 64 << 10, largest, connections: 64, per_client: 64 };
    Budget::new(config, Arc::clone(rt))
}

impl Backend {
    async fn new(config: &Config) -> Arc<Self> {
        let rt = TokioRuntime::current();
        let fs = file_system(&rt, config.size).await;
        let (block_size, read_only) = (config.block_size, config.read_only);
        let (target, connections) = (Mutex::default(), Mutex::default());
        let backend = Arc::new(Self { fs, rt, block_size, read_only, target, connections });
        backend.start().await;
        backend
    }

    /// Starts the target's process.
    async fn start(&self) {
        let target = target(&self.fs, &self.rt, self.block_size, self.read_only).await;
        *self.target.lock().unwrap() = Some(target);
    }

    /// Ends the target's process: connections end, and new ones are closed.
    async fn kill(&self) {
        drop(self.target.lock().unwrap().take());
        let mut connections = std::mem::take(&mut *self.connections.lock().unwrap());
        connections.shutdown().await;
    }

    async fn listen(self: Arc<Self>) -> SocketAddr {
        let budget = budget(&self.rt);
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move {
            while let Ok((stream, peer)) = listener.accept().await {
                let Some(target) = self.target.lock().unwrap().clone() else { continue };
                let account = budget.open(peer.ip().into()).unwrap();
                let stream = Box::new(TcpByteStream::new(stream.into_std().unwrap()).unwrap());
                let served = target.serve(stream, None, account, std::future::pending());
                self.connections.lock().unwrap().spawn(served);
            }
        });
        address
    }
}

impl Lab {
    /// A target and a server with blocks of 512 bytes.
    pub(crate) fn new(size: u64) -> Self {
        Self::with(Config::new(size, BlockSize::B512))
    }

    pub(crate) fn with(config: Config) -> Self {
        let mut executor = tokio::runtime::Builder::new_multi_thread();
        let executor = executor.worker_threads(2).enable_all().build().unwrap();
        let dir = tempfile::tempdir().unwrap();
        let (stop, stopped) = oneshot::channel();
        let (backend, device, server) = executor.block_on(async {
            let backend = Backend::new(&config).await;
            let address = Arc::clone(&backend).listen().await;
            let url: Url = format!("iscsi://{address}/{TARGET}/0").parse().unwrap();
            let device = BlockDevice::connect(&url, &config.device).await.unwrap();
            let server = Server::bind(dir.path().join("disk.sock"), device.clone(), config.server);
            (backend, device, server.unwrap())
        });
        let served = executor.spawn(server.serve(stopped.map(drop)));
        Self { dir, backend, device, stop: Some(stop), served: Some(served), executor }
    }

    /// The path of the socket.
    pub(crate) fn path(&self) -> PathBuf {
        self.dir.path().join("disk.sock")
    }

    /// A client in the transmission phase, with structured replies.
    pub(crate) fn client(&self) -> Client {
        Client::connect(&self.path(), true)
    }

    /// Begins the end of the server.
    pub(crate) fn stop(&mut self) {
        drop(self.stop.take());
    }

    /// Ends the server, and returns its result.
    pub(crate) fn end(&mut self) -> Result<(), Error> {
        self.stop();
        let served = self.served.take().unwrap();
        let ended = async { tokio::time::timeout(Duration::from_secs(30), served).await };
        self.executor.block_on(ended).expect("the server ends").unwrap()
    }

    /// Ends the target's process.
    pub(crate) fn kill_target(&self) {
        self.executor.block_on(self.backend.kill());
    }

    /// Ends the target's process and starts it again.
    pub(crate) fn restart_target(&self) {
        self.kill_target();
        self.executor.block_on(self.backend.start());
    }

    /// Listens on another path.
    pub(crate) fn bind(&self, path: &Path) -> Result<Server, Error> {
        Server::bind(path, self.device.clone(), millrace_nbd::Options::default())
    }
}
