//! A target that restarts, and a network that fails.

use std::{
    io::{self, IoSlice, IoSliceMut},
    net::SocketAddr,
    sync::Arc,
    task::{Context, Poll, Waker},
    time::Duration,
};

use millrace_admission::{Account, Budget, BudgetConfig};
use millrace_buffer::{Arena, ArenaConfig};
use millrace_iscsi::chap::Mutual;
use millrace_iscsi_initiator::{BlockDevice, Error, Options, Transport, Url};
use millrace_iscsi_target::{
    ConnectionLimits, MAX_COMMAND_MEMORY, TableLimits, TargetConfig, TargetStats, TargetTable,
    iser::IserTarget, tcp::TcpTarget,
};
use millrace_rdma::{
    ConnectParams, ConnectionError, Listener, Provider, QueuePair,
    registration::{Registration, Settings, Strategy},
};
use millrace_rdma_iwarp::{accept_over, connect_over};
use millrace_runtime::{
    BoxFuture, ByteStream, LocalPort, MemoryStream, RuntimeRef, StreamListener, StreamProvider,
    memory_stream,
    virtual_time::{TaskGroup, VirtualTime},
};
use millrace_scsi::{BlockSize, Disk, DiskConfig, Lun, Target};
use millrace_vfs::{
    CreateHow, FileSystemRef, Identity, SetAttr,
    memory::{MemoryConfig, MemoryFs},
};
use parking_lot::Mutex;

pub(crate) const TARGET: &str = "iqn.2026-01.example:target";
pub(crate) const URL: &str = "iscsi://192.0.2.1/iqn.2026-01.example:target/0";

/// A fault of the network.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    None,
    /// Connections fail, and no new one is accepted.
    Refuse,
    /// Nothing is delivered.
    Silence,
}

/// The state of the network, and the task that waits for a change.
struct Network {
    fault: Fault,
    /// Connections with a lower number have failed.
    alive: u64,
    connections: u64,
    /// Bytes delivered to the initiator, and the number of them at which connections fail.
    delivered: u64,
    cuts: Vec<u64>,
    /// Positions of delivered bytes that are changed.
    damage: Vec<u64>,
    waiting: Vec<Waker>,
}

/// A process that serves a device.
struct Process {
    tasks: TaskGroup,
    server: TcpTarget,
    iser: IserTarget,
    budget: Budget,
}

/// The network and the target.
pub(crate) struct Lab {
    transport: Transport,
    pub(crate) rt: RuntimeRef,
    /// Memory of the target, and of its file system, which can take received memory.
    arena: Arena,
    fs: FileSystemRef,
    limits: Mutex<ConnectionLimits>,
    chap: Mutex<Option<Mutual>>,
    identifier: Mutex<u64>,
    block_size: BlockSize,
    network: Arc<Mutex<Network>>,
    process: Mutex<Option<Process>>,
    time: VirtualTimeHandle,
}

/// Creates groups of tasks.
type VirtualTimeHandle = Box<dyn Fn() -> TaskGroup + Send + Sync>;

/// Runs `test` in virtual time, over TCP and with iSER, with a disk of `size` bytes in memory.
pub(crate) fn everywhere(seed: u64, disk: (u64, BlockSize), test: impl AsyncFn(Arc<Lab>)) {
    for transport in [Transport::Tcp, Transport::Iser] {
        run_over(transport, seed, disk, memory, async |lab| test(lab).await);
    }
}

/// Runs `test` in virtual time, over TCP, with a disk of `size` bytes on the file system that `fs` returns.
pub(crate) fn run<F: Future<Output = ()>>(
    seed: u64,
    disk: (u64, BlockSize),
    fs: impl FnOnce(&RuntimeRef, &Arena) -> FileSystemRef,
    test: impl FnOnce(Arc<Lab>) -> F,
) {
    run_over(Transport::Tcp, seed, disk, fs, test);
}

fn run_over<F: Future<Output = ()>>(
    transport: Transport,
    seed: u64,
    (size, block_size): (u64, BlockSize),
    fs: impl FnOnce(&RuntimeRef, &Arena) -> FileSystemRef,
    test: impl FnOnce(Arc<Lab>) -> F,
) {
    let time = Arc::new(VirtualTime::new(seed));
    let rt = time.runtime();
    let arena = Arena::new(ArenaConfig { limit: 64 << 20, huge_pages: false });
    let fs = fs(&rt, &arena);
    let groups = Arc::downgrade(&time);
    let group = move || groups.upgrade().unwrap().group();
    let network = Network {
        fault: Fault::None,
        alive: 0,
        connections: 0,
        delivered: 0,
        cuts: Vec::new(),
        damage: Vec::new(),
        waiting: Vec::new(),
    };
    let lab = Arc::new(Lab {
        transport,
        rt,
        arena,
        fs,
        limits: Mutex::default(),
        chap: Mutex::new(None),
        identifier: Mutex::new(0x0123_4567_89ab_cdef),
        block_size,
        network: Arc::new(Mutex::new(network)),
        process: Mutex::new(None),
        time: Box::new(group),
    });
    time.block_on(async move {
        let how = CreateHow::Guarded(SetAttr { size: Some(size), ..SetAttr::default() });
        lab.fs.create(&Identity::root(), &lab.fs.root(), b"disk", &how).await.unwrap();
        lab.start().await;
        test(Arc::clone(&lab)).await;
        lab.process.lock().take();
    })
    .unwrap();
}

/// A file system in memory that loses nothing.
pub(crate) fn memory(rt: &RuntimeRef, arena: &Arena) -> FileSystemRef {
    MemoryFs::new(MemoryConfig::new(arena.clone(), Arc::clone(rt)))
}

impl Lab {
    /// Starts the target's process.
    pub(crate) async fn start(self: &Arc<Self>) {
        let (disk, _) = self.fs.lookup(&Identity::root(), &self.fs.root(), b"disk").await.unwrap();
        let config = DiskConfig {
            block_size: self.block_size,
            read_only: false,
            identifier: *self.identifier.lock(),
            record_directory: self.fs.root(),
            record_name: b"disk.reservations".to_vec(),
        };
        let disk = Disk::open(self.fs.clone(), disk, Identity::root(), config).await.unwrap();
        let device =
            Target::new(millrace_scsi::TargetConfig { name: TARGET.into(), arena: self.arena.clone() });
        device.add(Lun::default(), disk).unwrap();
        let table = TargetTable::new(TableLimits::default());
        let chap = self.chap.lock().clone();
        let target = TargetConfig {
            name: TARGET.parse().unwrap(),
            device,
            initiators: Vec::new(),
            chap,
            addresses: Vec::new(),
            xprtsec: Default::default(),
        };
        table.replace(vec![target]).unwrap();
        let tasks = (self.time)();
        let (rt, stats) = (tasks.runtime(), Arc::new(TargetStats::default()));
        let limits = self.limits.lock().clone();
        let server = TcpTarget { table, rt: Arc::clone(&rt), arena: self.arena.clone(), limits, stats };
        let TcpTarget { table, rt: own, arena: memory, limits, stats } = server.clone();
        let registration = Arc::new(Registration::new(Settings::new(Strategy::Dynamic)));
        let iser = IserTarget { table, rt: own, arena: memory, limits, stats, registration };
        let config = BudgetConfig {
            memory: 64 << 20,
            own: 64 << 10,
            largest: MAX_COMMAND_MEMORY,
            connections: 64,
            per_client: 64,
        };
        *self.process.lock() = Some(Process { tasks, server, iser, budget: Budget::new(config, rt) });
    }

    /// Ends the target's process with its connections.
    pub(crate) fn kill(&self) {
        if let Some(process) = self.process.lock().take() {
            process.tasks.end();
        }
        self.cut();
    }

    /// Stops the process and starts it again.
    pub(crate) async fn restart(self: &Arc<Self>) {
        self.kill();
        self.start().await;
    }

    /// Interrupts all connections.
    pub(crate) fn cut(&self) {
        let mut network = self.network.lock();
        network.alive = network.connections;
        network.waiting.drain(..).for_each(Waker::wake);
    }

    /// Interrupts all connections each time that one of these numbers of bytes was delivered to the initiator.
    pub(crate) fn cut_at(&self, mut bytes: Vec<u64>) {
        bytes.sort_unstable_by(|a, b| b.cmp(a));
        let mut network = self.network.lock();
        let now = network.delivered;
        network.cuts = bytes.into_iter().map(|n| now + n).collect();
    }

    /// Changes the bytes at these positions of what is delivered to the initiator.
    pub(crate) fn damage_at(&self, positions: Vec<u64>) {
        let mut network = self.network.lock();
        let now = network.delivered;
        network.damage = positions.into_iter().map(|n| now + n).collect();
    }

    /// Sets the fault of present and later connections.
    pub(crate) fn fault(&self, fault: Fault) {
        let mut network = self.network.lock();
        network.fault = fault;
        network.waiting.drain(..).for_each(Waker::wake);
        drop(network);
        if fault == Fault::Refuse {
            self.cut();
        }
    }

    /// Number of connections so far.
    pub(crate) fn connections(&self) -> u64 {
        self.network.lock().connections
    }

    /// Changes the limits and settings from the next start on.
    pub(crate) fn configure(&self, change: impl FnOnce(&mut ConnectionLimits)) {
        change(&mut self.limits.lock());
    }

    /// Requires CHAP from the next start on.
    pub(crate) fn require_chap(&self, chap: Mutual) {
        *self.chap.lock() = Some(chap);
    }

    /// The next start serves another device.
    pub(crate) fn replace_device(&self) {
        *self.identifier.lock() += 1;
    }

    pub(crate) fn options(self: &Arc<Self>) -> Options {
        let mut options = Options::default();
        options.runtime = Some(Arc::clone(&self.rt));
        options.streams = Some(Arc::new(Client(Arc::clone(self))));
        options.rdma = Some(Arc::new(Client(Arc::clone(self))));
        options
    }

    pub(crate) async fn connect(self: &Arc<Self>) -> BlockDevice {
        self.connect_with(&self.options()).await.unwrap()
    }

    pub(crate) async fn connect_with(self: &Arc<Self>, options: &Options) -> Result<BlockDevice, Error> {
        BlockDevice::connect(&self.url(), options).await
    }

    pub(crate) fn url(&self) -> Url {
        let mut url = url();
        url.transport = self.transport;
        url
    }

    pub(crate) async fn sleep(&self, seconds: u64) {
        self.rt.sleep_until(self.rt.now() + Duration::from_secs(seconds)).await;
    }
}

pub(crate) fn url() -> Url {
    URL.parse().unwrap()
}

/// The initiator's host.
struct Client(Arc<Lab>);

impl Client {
    /// A connection that a task of the target's process serves.
    fn open(
        &self,
        serve: impl FnOnce(&Process, MemoryStream, Account) -> BoxFuture<'static, ()>,
    ) -> io::Result<Faulty> {
        let process = self.0.process.lock();
        let mut network = self.0.network.lock();
        let Some(process) = process.as_ref().filter(|_| network.fault != Fault::Refuse) else {
            return Err(io::ErrorKind::ConnectionRefused.into());
        };
        network.connections += 1;
        let number = network.connections;
        let (ours, theirs) = memory_stream(1 << 16, usize::MAX);
        let account = process.budget.open(std::net::IpAddr::from([127, 0, 0, 1]).into()).unwrap();
        process.server.rt.spawn("connection", serve(process, theirs, account));
        Ok(Faulty { inner: ours, number, network: Arc::clone(&self.0.network) })
    }
}

impl StreamProvider for Client {
    fn connect(&self, _: LocalPort, _: SocketAddr) -> BoxFuture<'static, io::Result<Box<dyn ByteStream>>> {
        let opened = self.open(|process, stream, account| {
            Box::pin(process.server.clone().serve(Box::new(stream), None, account, std::future::pending()))
        });
        Box::pin(async { opened.map(|stream| Box::new(stream) as Box<dyn ByteStream>) })
    }

    fn listen(&self, _: SocketAddr) -> io::Result<Box<dyn StreamListener>> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

/// iWARP on streams of the network.
impl Provider for Client {
    fn name(&self) -> &'static str {
        "iwarp"
    }

    fn connect(
        &self,
        rt: RuntimeRef,
        arena: Arena,
        _: SocketAddr,
        params: ConnectParams,
    ) -> BoxFuture<'static, Result<Box<dyn QueuePair>, ConnectionError>> {
        let opened = self.open(|process, stream, account| {
            let target = process.iser.clone();
            let accept = IserTarget::connect_params(ConnectParams::default());
            let accepted =
                accept_over(Arc::clone(&target.rt), target.arena.clone(), Box::new(stream), accept);
            Box::pin(async move {
                if let Ok(qp) = accepted.await {
                    target.serve(qp, None, account, std::future::pending()).await;
                }
            })
        });
        Box::pin(async move {
            let stream = opened.map_err(|e| ConnectionError::Io(e.to_string()))?;
            connect_over(rt, arena, Box::new(stream), params).await
        })
    }

    fn listen(&self, _: RuntimeRef, _: SocketAddr) -> io::Result<Box<dyn Listener>> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

/// A stream with the faults of the network.
struct Faulty {
    inner: MemoryStream,
    number: u64,
    network: Arc<Mutex<Network>>,
}

impl Faulty {
    fn poll_fault(&self, cx: &Context<'_>) -> Poll<io::Result<()>> {
        let mut network = self.network.lock();
        if self.number <= network.alive {
            return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
        }
        network.waiting.push(cx.waker().clone());
        if network.fault == Fault::Silence { Poll::Pending } else { Poll::Ready(Ok(())) }
    }
}

impl ByteStream for Faulty {
    fn poll_read(&mut self, cx: &mut Context<'_>, bufs: &mut [IoSliceMut<'_>]) -> Poll<io::Result<usize>> {
        std::task::ready!(self.poll_fault(cx))?;
        let n = std::task::ready!(self.inner.poll_read(cx, bufs))?;
        let mut network = self.network.lock();
        let start = network.delivered;
        network.delivered += n as u64;
        for at in network.damage.extract_if(.., |at| (start..start + n as u64).contains(at)) {
            change(bufs, (at - start) as usize);
        }
        let delivered = network.delivered;
        while network.cuts.pop_if(|at| *at <= delivered).is_some() {
            network.alive = network.connections;
        }
        Poll::Ready(Ok(n))
    }

    fn poll_write(&mut self, cx: &mut Context<'_>, bufs: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        std::task::ready!(self.poll_fault(cx))?;
        self.inner.poll_write(cx, bufs)
    }

    fn shutdown(&mut self) {
        self.inner.shutdown();
    }

    fn abort(&mut self) {
        self.inner.abort();
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.inner.local_addr()
    }

    fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.inner.peer_addr()
    }
}

/// Changes byte `at` of `bufs`.
fn change(bufs: &mut [IoSliceMut<'_>], mut at: usize) {
    for buf in bufs {
        match buf.get_mut(at) {
            Some(byte) => return *byte ^= 0x11,
            None => at -= buf.len(),
        }
    }
}

/// A buffer with these bytes.
pub(crate) fn buffer(disk: &BlockDevice, bytes: &[u8]) -> millrace_iscsi_initiator::Buffer {
    let mut buffer = disk.buffer(bytes.len()).unwrap();
    buffer.copy_from_slice(bytes);
    buffer
}

pub(crate) async fn write(disk: &BlockDevice, offset: u64, bytes: &[u8]) -> Result<(), Error> {
    disk.write_at_from(offset, buffer(disk, bytes).freeze().into()).await
}

pub(crate) async fn read(disk: &BlockDevice, offset: u64, length: usize) -> Result<Vec<u8>, Error> {
    let buffer = buffer(disk, &vec![0xee; length]);
    Ok(disk.read_at_into(offset, buffer).await?.to_vec())
}

/// Bytes that differ from one block to another.
pub(crate) fn pattern(length: usize, seed: u64) -> Vec<u8> {
    (0..length as u64).map(|i| (i / 512 * 31 + i * 7 + seed) as u8).collect()
}
