//! A target and the hosts of initiators on a simulated network.

use std::{cell::RefCell, future::pending, net::SocketAddr, sync::Arc};

use millrace_admission::{Budget, BudgetConfig};
use millrace_buffer::ArenaConfig;
use millrace_iscsi_initiator::{Arena, Lun, Options, Transport, Url};
use millrace_iscsi_target::{
    ConnectionLimits, MAX_COMMAND_MEMORY, TableLimits, TargetConfig, TargetStats, TargetTable,
    iser::IserTarget, tcp::TcpTarget,
};
use millrace_rdma::{
    ConnectParams, Listener,
    registration::{Registration, Settings, Strategy},
};
use millrace_rdma_sim::World;
use millrace_runtime::{
    RuntimeRef, StreamListener,
    virtual_time::{TaskGroup, VirtualTime},
};
use millrace_scsi::{BlockSize, Disk, DiskConfig, InitiatorPort, Management, Target};
use millrace_vfs::{CreateHow, FileSystemRef, Identity, SetAttr};

const NAME: &str = "iqn.2026-01.example:target";
const FILE: &[u8] = b"disk";
const TARGET: [u8; 4] = [10, 0, 0, 1];
const INITIATOR: [u8; 4] = [10, 0, 1, 1];
const PORT: u16 = 3260;

/// The process of the target.
struct Process {
    tasks: TaskGroup,
    device: Arc<Target>,
}

/// The network and the target.
pub(crate) struct Cluster {
    pub(crate) world: World,
    pub(crate) rt: RuntimeRef,
    pub(crate) stats: Arc<TargetStats>,
    /// Memory of the target for connections.
    pub(crate) memory: Arena,
    fs: FileSystemRef,
    block_size: BlockSize,
    process: Option<Process>,
}

fn arena() -> Arena {
    Arena::new(ArenaConfig { limit: 64 << 20, huge_pages: false })
}

impl Cluster {
    /// Creates the network, and a disk of `size` bytes on `fs`. The target is not started.
    pub(crate) async fn new(
        time: &VirtualTime,
        world: World,
        fs: FileSystemRef,
        (size, block_size): (u64, BlockSize),
    ) -> Self {
        let how = CreateHow::Guarded(SetAttr { size: Some(size), ..SetAttr::default() });
        fs.create(&Identity::root(), &fs.root(), FILE, &how).await.unwrap();
        let stats = Arc::default();
        Self { world, rt: time.runtime(), stats, memory: arena(), fs, block_size, process: None }
    }

    /// Starts the target's process.
    pub(crate) async fn start(cluster: &RefCell<Self>, time: &VirtualTime) {
        let (fs, block_size) = (Arc::clone(&cluster.borrow().fs), cluster.borrow().block_size);
        let (file, _) = fs.lookup(&Identity::root(), &fs.root(), FILE).await.unwrap();
        let config = DiskConfig {
            block_size,
            read_only: false,
            identifier: 1,
            record_directory: fs.root(),
            record_name: b"reservations".to_vec(),
        };
        let disk = Disk::open(fs, file, Identity::root(), config).await.unwrap();
        cluster.borrow_mut().serve(time, disk);
    }

    /// Serves `disk` with a new process.
    fn serve(&mut self, time: &VirtualTime, disk: Arc<Disk>) {
        let device = Target::new(millrace_scsi::TargetConfig { name: NAME.into(), arena: arena() });
        device.add(Lun::default(), disk).unwrap();
        let table = TargetTable::new(TableLimits::default());
        let (initiators, addresses) = (Vec::new(), Vec::new());
        let target = TargetConfig {
            name: NAME.parse().unwrap(),
            device: Arc::clone(&device),
            initiators,
            chap: None,
            xprtsec: Default::default(),
            addresses,
        };
        table.replace(vec![target]).unwrap();
        let tasks = time.group();
        let (rt, arena, stats) = (tasks.runtime(), self.memory.clone(), Arc::clone(&self.stats));
        let limits = ConnectionLimits::default();
        let tcp = TcpTarget {
            table: Arc::clone(&table),
            rt: Arc::clone(&rt),
            arena: arena.clone(),
            limits: limits.clone(),
            stats: Arc::clone(&stats),
        };
        let registration = Arc::new(Registration::new(Settings::new(Strategy::Dynamic)));
        let iser = IserTarget { table, rt: Arc::clone(&rt), arena, limits, stats, registration };
        let largest = MAX_COMMAND_MEMORY;
        let config =
            BudgetConfig { memory: 64 << 20, own: 64 << 10, largest, connections: 64, per_client: 64 };
        let budget = Budget::new(config, Arc::clone(&rt));
        let (address, host) = (SocketAddr::from((TARGET, PORT)), self.world.add_host(TARGET.into()));
        let rdma = host.listen(Arc::clone(&rt), address).unwrap();
        rt.spawn("accept RDMA", Box::pin(accept_rdma(rdma, iser, budget.clone())));
        let streams = self.world.tcp(TARGET.into()).listen(address).unwrap();
        rt.spawn("accept TCP", Box::pin(accept_tcp(streams, tcp, budget)));
        self.process = Some(Process { tasks, device });
    }

    /// Crashes the target's host; only the file system persists.
    pub(crate) fn crash(&mut self) {
        self.world.crash(TARGET.into());
        if let Some(process) = self.process.take() {
            process.tasks.end();
        }
    }

    /// Another initiator resets the disk.
    pub(crate) fn reset(&self) {
        if let Some(Process { device, .. }) = &self.process {
            let other = device.open_nexus(InitiatorPort::new("iqn.2026-01.example:other", [0; 6]).unwrap());
            device.manage(&other, Management::LunReset(Lun::default().to_bytes())).unwrap();
            device.close_nexus(&other);
        }
    }

    /// Options of a device on the initiator's host.
    pub(crate) fn options(&self) -> Options {
        let mut options = Options::default();
        options.initiator = "iqn.2026-01.example:initiator".parse().unwrap();
        options.runtime = Some(Arc::clone(&self.rt));
        options.streams = Some(self.world.tcp(INITIATOR.into()));
        options.rdma = Some(self.world.add_host(INITIATOR.into()));
        options
    }
}

/// The URL of the disk.
pub(crate) fn url(transport: Transport) -> Url {
    let mut url: Url = format!("iscsi://10.0.0.1:{PORT}/{NAME}/0").parse().unwrap();
    url.transport = transport;
    url
}

async fn accept_rdma(mut listener: Box<dyn Listener>, target: IserTarget, budget: Budget) {
    while let Ok(incoming) = listener.accept().await {
        let Ok(account) = budget.open(incoming.peer().ip().into()) else { continue };
        let target = target.clone();
        let params = IserTarget::connect_params(ConnectParams::default());
        let accepted = incoming.accept(Arc::clone(&target.rt), target.arena.clone(), params);
        Arc::clone(&target.rt).spawn(
            "connection",
            Box::pin(async move {
                if let Ok(qp) = accepted.await {
                    target.serve(qp, None, account, pending()).await;
                }
            }),
        );
    }
}

async fn accept_tcp(mut listener: Box<dyn StreamListener>, target: TcpTarget, budget: Budget) {
    while let Ok(stream) = listener.accept().await {
        let Some(account) = stream.peer_addr().ok().and_then(|peer| budget.open(peer.ip().into()).ok())
        else {
            continue;
        };
        let target = target.clone();
        Arc::clone(&target.rt).spawn("connection", Box::pin(target.serve(stream, None, account, pending())));
    }
}
