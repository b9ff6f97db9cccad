//! A target with one disk in the memory file system.

use std::{
    future::Future,
    net::{IpAddr, Ipv4Addr},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use futures::channel::oneshot;
use millrace_admission::{Account, Budget, BudgetConfig};
use millrace_buffer::{Arena, ArenaConfig};
use millrace_iscsi::{
    login::LoginPdu,
    name::IscsiName,
    pdu::{Isid, LoginRequest, Request, RequestNumbers, Stage},
};
use millrace_iscsi_target::{
    ConnectionLimits, MAX_COMMAND_MEMORY, TableLimits, TargetConfig, TargetStats, TargetTable,
};
use millrace_runtime::{RuntimeExt, RuntimeRef, virtual_time::VirtualTime};
use millrace_scsi::{BlockSize, Disk, DiskConfig, Lun, Target};
use millrace_vfs::{
    CreateHow, FileSystemRef, Identity, SetAttr,
    memory::{MemoryConfig, MemoryFs},
};

pub(crate) const TARGET: &str = "iqn.2026-01.example:target";
pub(crate) const BLOCKS: u64 = 32768;
/// The usual host of initiators.
pub(crate) const HOST: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

pub(crate) fn name(name: &str) -> IscsiName {
    name.parse().unwrap()
}

/// The server's side.
pub(crate) struct Fixture {
    pub(crate) rt: RuntimeRef,
    pub(crate) table: Arc<TargetTable>,
    pub(crate) arena: Arena,
    pub(crate) limits: ConnectionLimits,
    pub(crate) stats: Arc<TargetStats>,
    pub(crate) budget: Budget,
    pub(crate) device: Arc<Target>,
    stop: futures::future::Shared<oneshot::Receiver<()>>,
    pub(crate) stopper: Option<oneshot::Sender<()>>,
    serving: Arc<AtomicU64>,
}

impl Fixture {
    /// A server with a disk on the file system that `wrap` returns.
    pub(crate) async fn new(
        time: &VirtualTime,
        limits: ConnectionLimits,
        wrap: impl FnOnce(FileSystemRef) -> FileSystemRef,
    ) -> Self {
        let rt = time.runtime();
        // One for target, disk and file system, as in a server, so that the file can take received memory.
        let arena = Arena::new(ArenaConfig { limit: 64 << 20, huge_pages: false });
        let fs: FileSystemRef = wrap(MemoryFs::new(MemoryConfig::new(arena.clone(), Arc::clone(&rt))));
        let device = device(&fs, &arena).await;
        let table = TargetTable::new(TableLimits::default());
        table.replace(vec![target(&device)]).unwrap();
        let config = BudgetConfig {
            memory: 32 << 20,
            own: 64 << 10,
            largest: MAX_COMMAND_MEMORY,
            connections: 64,
            per_client: 64,
        };
        let budget = Budget::new(config, Arc::clone(&rt));
        let (stopper, stop) = oneshot::channel();
        let stop = futures::FutureExt::shared(stop);
        Self {
            rt,
            table,
            arena,
            limits,
            stats: Arc::default(),
            budget,
            device,
            stop,
            stopper: Some(stopper),
            serving: Arc::default(),
        }
    }

    /// The account of a connection of the host `addr`.
    pub(crate) fn account_of(&self, addr: IpAddr) -> Account {
        self.budget.open(addr.into()).unwrap()
    }

    /// Completes when the server ends.
    pub(crate) fn stopped(&self) -> impl Future<Output = ()> + Send + use<> {
        let stop = self.stop.clone();
        async move {
            let _stopped = stop.await;
        }
    }

    /// Runs the task of a connection.
    pub(crate) fn spawn(&self, connection: impl Future<Output = ()> + Send + 'static) {
        let serving = Arc::clone(&self.serving);
        serving.fetch_add(1, Ordering::Relaxed);
        self.rt.spawn(
            "connection",
            Box::pin(async move {
                connection.await;
                serving.fetch_sub(1, Ordering::Relaxed);
            }),
        );
    }

    /// Number of connections whose task runs.
    pub(crate) fn serving(&self) -> u64 {
        self.serving.load(Ordering::Relaxed)
    }

    /// Bytes of the arena that are in use for other things than the content of the file system.
    pub(crate) fn transient(&self) -> usize {
        let stats = self.arena.stats();
        stats.in_use - stats.stored
    }

    /// Waits for the end of all connections, and checks that they have no memory.
    pub(crate) async fn expect_idle(&self) {
        for _ in 0..1000 {
            if self.serving() == 0 {
                break;
            }
            self.rt.sleep(Duration::from_millis(100)).await;
        }
        assert_eq!(self.serving(), 0, "connections end");
        assert_eq!(self.budget.stats().in_use, 0);
        assert_eq!(self.budget.stats().connections, 0);
        assert_eq!(self.transient(), 0);
        assert_eq!(self.table.sessions(), 0);
        assert_eq!(self.stats.open.load(Ordering::Relaxed), 0);
    }
}

pub(crate) fn target(device: &Arc<Target>) -> TargetConfig {
    let device = Arc::clone(device);
    TargetConfig {
        name: name(TARGET),
        device,
        initiators: Vec::new(),
        chap: None,
        xprtsec: Default::default(),
        addresses: Vec::new(),
    }
}

pub(crate) async fn device(fs: &FileSystemRef, arena: &Arena) -> Arc<Target> {
    let how = CreateHow::Guarded(SetAttr { size: Some(BLOCKS * 512), ..SetAttr::default() });
    let file = fs.create(&Identity::root(), &fs.root(), b"disk", &how).await.unwrap().handle;
    let config = DiskConfig {
        block_size: BlockSize::B512,
        read_only: false,
        identifier: 0x0123_4567_89ab_cdef,
        record_directory: fs.root(),
        record_name: b"disk.reservations".to_vec(),
    };
    let disk = Disk::open(fs.clone(), file, Identity::root(), config).await.unwrap();
    let arena = arena.clone();
    let device = Target::new(millrace_scsi::TargetConfig { name: TARGET.to_owned(), arena });
    device.add(Lun::new(0).unwrap(), disk).unwrap();
    device
}

/// READ(10) or WRITE(10).
pub(crate) fn rw10(opcode: u8, lba: u32, blocks: u16) -> [u8; 10] {
    let (l, b) = (lba.to_be_bytes(), blocks.to_be_bytes());
    [opcode, 0, l[0], l[1], l[2], l[3], 0, b[0], b[1], 0]
}

/// Bytes that differ between blocks and seeds.
pub(crate) fn pattern(length: usize, seed: usize) -> Vec<u8> {
    (0..length).map(|i| ((i / 512 + seed) * 7 + i % 253) as u8).collect()
}

/// The numbers of the first requests of a session.
pub(crate) const NUMBERS: RequestNumbers = RequestNumbers { cmd_sn: 100, exp_stat_sn: 0 };

/// The names of a login.
pub(crate) const NAMES: &[u8] =
    b"InitiatorName=iqn.2026-01.example:host\0TargetName=iqn.2026-01.example:target\0";

/// A request of the operational stage, which ends the login unless `change` says otherwise.
pub(crate) fn login(change: impl FnOnce(&mut LoginRequest), data: &[u8]) -> LoginPdu {
    let mut request = LoginRequest {
        stage: Stage::Operational,
        next: Some(Stage::FullFeature),
        continued: false,
        version_max: 0,
        version_min: 0,
        isid: Isid([0x80, 0, 0, 0, 0, 1]),
        tsih: 0,
        itt: 0,
        cid: 1,
        numbers: NUMBERS,
    };
    change(&mut request);
    LoginPdu { bhs: Request::Login(request).encode(data.len() as u32), data: data.to_vec() }
}
