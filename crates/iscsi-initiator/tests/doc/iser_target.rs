// Included by the documentation test: a target in this process with a disk of 1 MiB in memory, and a queue pair that is
// connected with it, by iWARP on an in-memory stream.

use std::sync::Arc;

use millrace_buffer::ArenaConfig;
use millrace_iscsi::{negotiation::Settings, pdu::Isid};
use millrace_iscsi_target::{ConnectionLimits, TableLimits, TargetConfig, TargetTable, iser::IserTarget};
use millrace_iscsi_initiator::iser::connect_params;
use millrace_admission::{Budget, BudgetConfig};
use millrace_rdma::{ConnectParams, registration::{Registration, Settings as RegistrationSettings, Strategy}};
use millrace_runtime::{RuntimeRef, memory_stream, virtual_time::VirtualTime};
use millrace_scsi::{Disk, DiskConfig, Lun, Target};
use millrace_vfs::{CreateHow, FileSystem, FileSystemRef, Identity, SetAttr, memory::{MemoryConfig, MemoryFs}};

const TARGET: &str = "iqn.2026-01.example:target";

fn arena() -> Arena {
    Arena::new(ArenaConfig { limit: 64 << 20, huge_pages: false })
}

/// The table of targets: one, with one disk.
async fn table(rt: &RuntimeRef) -> Arc<TargetTable> {
    let fs: FileSystemRef = MemoryFs::new(MemoryConfig::new(arena(), rt.clone()));
    let how = CreateHow::Guarded(SetAttr { size: Some(1 << 20), ..SetAttr::default() });
    let file = fs.create(&Identity::root(), &fs.root(), b"disk", &how).await.unwrap().handle;
    let config = DiskConfig {
        block_size: Default::default(),
        read_only: false,
        identifier: 1,
        record_directory: fs.root(),
        record_name: b"reservations".to_vec(),
    };
    let disk = Disk::open(fs.clone(), file, Identity::root(), config).await.unwrap();
    let device = Target::new(millrace_scsi::TargetConfig { name: TARGET.into(), arena: arena() });
    device.add(Lun::default(), disk).unwrap();
    let table = TargetTable::new(TableLimits::default());
    let (name, initiators, addresses) = (TARGET.parse().unwrap(), Vec::new(), Vec::new());
    table.replace(vec![TargetConfig { name, device, initiators, chap: None, xprtsec: Default::default(), addresses }]).unwrap();
    table
}

/// Serves one connection; returns the initiator's end.
async fn connect(rt: &RuntimeRef, arena: Arena) -> Box<dyn QueuePair> {
    let (c, s) = memory_stream(64 << 10, usize::MAX);
    let ours = connect_params(ConnectParams::default(), true);
    let theirs = IserTarget::connect_params(ConnectParams::default());
    let target = IserTarget {
        table: table(rt).await,
        rt: rt.clone(),
        arena: arena.clone(),
        limits: ConnectionLimits::default(),
        stats: Arc::default(),
        registration: Arc::new(Registration::new(RegistrationSettings::new(Strategy::Dynamic))),
    };
    let connect = millrace_rdma_iwarp::connect_over(rt.clone(), arena.clone(), Box::new(c), ours);
    let accept = millrace_rdma_iwarp::accept_over(rt.clone(), arena, Box::new(s), theirs);
    let (initiator, accepted) = futures::future::try_join(connect, accept).await.unwrap();
    let config = BudgetConfig { memory: 16 << 20, own: 64 << 10, largest: 8 << 20, connections: 1, per_client: 1 };
    let account = Budget::new(config, rt.clone()).open(std::net::IpAddr::from([127, 0, 0, 1]).into()).unwrap();
    rt.spawn("target", Box::pin(target.serve(accepted, None, account, std::future::pending())));
    initiator
}

/// Runs `example` in virtual time.
fn run<F: Future<Output = ()>>(example: impl FnOnce(Box<dyn QueuePair>, Arena, InitiatorConfig) -> F) {
    let time = VirtualTime::new(1);
    let done = time.block_on(async {
        let arena = arena();
        let config = InitiatorConfig {
            initiator: "iqn.2026-01.example:host".parse().unwrap(),
            target: Some(TARGET.parse().unwrap()),
            isid: Isid([0x80, 0, 0, 0, 0, 1]),
            cid: 1,
            cmd_sn: 1,
            settings: Settings::default(),
            chap: None,
            random: [7; 33],
            redirects: 0,
        };
        example(connect(&time.runtime(), arena.clone()).await, arena, config).await;
    });
    done.unwrap();
}
