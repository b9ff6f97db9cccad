//! The server.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use millrace_admission::{Budget, BudgetConfig};
use millrace_buffer::{Arena, ArenaConfig};
use millrace_iscsi::{
    chap::{Credentials, Mutual, Secret},
    negotiation::Settings,
};
use millrace_iscsi_target::{
    ConnectionLimits, TableLimits, TargetConfig, TargetStats, TargetTable, tcp::TcpTarget,
};
use millrace_runtime::{
    MemoryStream, RuntimeExt, RuntimeRef, memory_stream, timeout, virtual_time::VirtualTime,
};
use millrace_scsi::{BlockSize, Disk, DiskConfig, Lun, Target};
use millrace_vfs::{
    CreateHow, FileSystemRef, Identity, SetAttr,
    memory::{MemoryConfig, MemoryFs},
};

use super::{initiator, slow::Slow};

/// The target that is attacked.
pub(super) const TARGET: &str = "iqn.2026-01.example:target";
/// The target of the correct initiator, which has a password.
pub(super) const HONEST: &str = "iqn.2026-01.example:honest";
/// Blocks of each disk.
pub(super) const BLOCKS: u64 = 128;
/// `MaxBurstLength` and `FirstBurstLength` of both targets.
pub(super) const MAX_BURST: u32 = 16384;
pub(super) const FIRST_BURST: u32 = 4096;
/// Memory of all connections.
const MEMORY: usize = 10 << 20;
/// Maximum memory of one command.
const LARGEST: usize = 8 << 20;
const LOGIN: Duration = Duration::from_secs(5);
const STALL: Duration = Duration::from_secs(10);
const PING: Duration = Duration::from_secs(20);
/// An attack and the concurrent correct initiator end within this time.
const END: Duration = Duration::from_secs(24 * 3600);

/// A server with two targets, each with a disk in memory.
pub(super) struct Scene {
    pub(super) rt: RuntimeRef,
    server: TcpTarget,
    budget: Budget,
    serving: Arc<AtomicU64>,
}

/// The password of [`HONEST`].
pub(super) fn password() -> Mutual {
    let secret = Secret::new(b"the secret of the correct initiator").expect("a secret");
    Mutual::new(Credentials { name: "honest".into(), secret }, None).expect("one secret")
}

async fn device(rt: &RuntimeRef, name: &str, delay: Duration) -> Arc<Target> {
    let arena = Arena::new(ArenaConfig { limit: 16 << 20, huge_pages: false });
    let fs = MemoryFs::new(MemoryConfig::new(arena.clone(), rt.clone()));
    let fs: FileSystemRef = Arc::new(Slow { fs, rt: rt.clone(), delay });
    let how = CreateHow::Guarded(SetAttr { size: Some(BLOCKS * 512), ..SetAttr::default() });
    let (root, directory) = (Identity::root(), fs.root());
    let file = fs.create(&root, &directory, b"disk", &how).await.expect("a file");
    let config = DiskConfig {
        block_size: BlockSize::B512,
        read_only: false,
        identifier: 1,
        record_directory: directory,
        record_name: b"reservations".to_vec(),
    };
    let disk = Disk::open(fs, file.handle, root, config).await.expect("a disk");
    let device = Target::new(millrace_scsi::TargetConfig { name: name.to_owned(), arena });
    device.add(Lun::new(0).expect("a LUN"), disk).expect("a free LUN");
    device
}

impl Scene {
    /// Executes `scenario`, which returns streams that the server has to close, and checks that nothing of it remains. The disks take `delay` for each access.
    pub(super) fn run(delay: Duration, scenario: impl AsyncFnOnce(&Self) -> Vec<MemoryStream>) {
        let time = VirtualTime::new(7);
        let rt = time.runtime();
        let done = time.block_on(async {
            let scene = Self::new(rt, delay).await;
            let ended = timeout(&*scene.rt, END, scenario(&scene)).await;
            let left = ended.expect("the attack and the initiator end");
            scene.rt.sleep(LOGIN + 2 * (STALL + 2 * PING) + Duration::from_secs(60)).await;
            scene.expect_idle();
            initiator::read(&scene).await;
            scene.rt.sleep(Duration::from_secs(5)).await;
            scene.expect_idle();
            drop(left);
        });
        if let Err(stuck) = done {
            panic!("{stuck}");
        }
    }

    async fn new(rt: RuntimeRef, delay: Duration) -> Self {
        let table = TargetTable::new(TableLimits { sessions: 8, logins: 8 });
        let mut targets = Vec::new();
        for (name, chap) in [(TARGET, None), (HONEST, Some(password()))] {
            let device = device(&rt, name, delay).await;
            let name = name.parse().expect("a name");
            targets.push(TargetConfig {
                name,
                device,
                initiators: Vec::new(),
                chap,
                xprtsec: Default::default(),
                addresses: Vec::new(),
            });
        }
        table.replace(targets).expect("different names");
        let limits = ConnectionLimits {
            settings: Settings {
                initial_r2t: false,
                first_burst: FIRST_BURST,
                max_burst: MAX_BURST,
                ..Settings::default()
            },
            max_tasks: 8,
            max_unsolicited: 32 << 10,
            max_queued: 64 << 10,
            login_timeout: LOGIN,
            stall_timeout: STALL,
            ping_interval: PING,
            ..ConnectionLimits::default()
        };
        let config =
            BudgetConfig { memory: MEMORY, own: 64 << 10, largest: LARGEST, connections: 8, per_client: 4 };
        let budget = Budget::new(config, rt.clone());
        let arena = Arena::new(ArenaConfig { limit: 64 << 20, huge_pages: false });
        let server =
            TcpTarget { table, rt: rt.clone(), arena, limits, stats: Arc::new(TargetStats::default()) };
        Self { rt, server, budget, serving: Arc::default() }
    }

    /// Connects from a host; `None` if the server has too many connections. The stream buffers `capacity` bytes, and
    /// returns at most `segment` bytes at once.
    pub(super) fn connect(&self, host: [u8; 4], capacity: usize, segment: usize) -> Option<MemoryStream> {
        let account = self.budget.open(std::net::IpAddr::from(host).into()).ok()?;
        let (ours, theirs) = memory_stream(capacity, segment);
        let (server, serving) = (self.server.clone(), Arc::clone(&self.serving));
        serving.fetch_add(1, Ordering::Relaxed);
        let connection = async move {
            server.serve(Box::new(theirs), None, account, std::future::pending()).await;
            serving.fetch_sub(1, Ordering::Relaxed);
        };
        self.rt.spawn("connection", Box::pin(connection));
        Some(ours)
    }

    /// Checks that all connections have ended, and left nothing behind.
    fn expect_idle(&self) {
        assert_eq!(self.serving.load(Ordering::Relaxed), 0, "open connections");
        assert_eq!(self.server.stats.open.load(Ordering::Relaxed), 0);
        assert_eq!(self.server.table.sessions(), 0, "sessions");
        assert_eq!(self.server.arena.stats().in_use, 0, "bytes of the arena in use");
        let stats = self.budget.stats();
        assert_eq!((stats.in_use, stats.connections, stats.waiting), (0, 0, 0));
        assert!(stats.peak <= MEMORY, "{} bytes in use at a time", stats.peak);
    }
}
