//! A disk of an iSCSI target on a simulated host, used by another one over TCP or with iSER.

use std::{net::SocketAddr, sync::Arc};

use millrace_admission::Budget;
use millrace_bench::{BenchError, Figure, disk::DiskRun};
use millrace_buffer::{Arena, ArenaConfig};
use millrace_iscsi_initiator::{BlockDevice, IscsiName, Lun, Options, TargetAddress, Transport, Url};
use millrace_iscsi_target::{
    ConnectionLimits, TableLimits, TargetConfig, TargetStats, TargetTable, iser::IserTarget, tcp::TcpTarget,
};
use millrace_rdma::{
    ConnectParams, Listener,
    registration::{Registration, Settings, Strategy},
};
use millrace_rdma_sim::{Framing, Profile, World};
use millrace_runtime::{RuntimeRef, StreamListener, virtual_time::VirtualTime};
use millrace_scsi::{BlockSize, Disk, DiskConfig, Target};
use millrace_vfs::{
    CreateHow, FileSystemRef, Identity, SetAttr,
    memory::{MemoryConfig, MemoryFs},
};

use crate::Hosts;

const PORT: u16 = 3260;
const TARGET: &str = "iqn.2026-01.example.millrace:simulated";
/// Bytes for commands in progress on each host.
const COMMANDS: usize = 64 << 20;

/// Two simulated hosts: a target with a disk in memory, whose file system takes no time, and an initiator with
/// one session.
#[derive(Debug, Clone)]
pub struct SimulatedDisk {
    /// The hosts, and the network between them.
    pub profile: Profile,
    /// The seed of the run. The same seed produces the same figures.
    pub seed: u64,
    /// The transport.
    pub transport: Transport,
    /// The parameters that the target negotiates, and its limits.
    pub limits: ConnectionLimits,
    /// Maximum number of RDMA Reads that the target has in flight, at least 1. The profile may permit fewer.
    pub outstanding_reads: u16,
    /// The target's registration strategy for the memory of RDMA operations.
    pub registration: Strategy,
    /// Bytes of the disk, a multiple of 4096.
    pub size: u64,
}

fn failed(e: impl std::fmt::Display) -> BenchError {
    BenchError::Peer(format!("simulated disk: {e}"))
}

fn arena(limit: usize) -> Arena {
    Arena::new(ArenaConfig { limit, huge_pages: false })
}

impl SimulatedDisk {
    /// A target with the defaults of Millrace, and a disk of 64 MiB.
    pub fn new(profile: Profile, transport: Transport) -> Self {
        Self {
            profile,
            seed: 1,
            transport,
            limits: ConnectionLimits::default(),
            outstanding_reads: u16::MAX,
            registration: Strategy::Cache,
            size: 64 << 20,
        }
    }

    /// Runs the tests one after the other on one connection, and returns a figure for each, whose workload is
    /// marked as simulated.
    ///
    /// # Errors
    /// The initiator cannot log in, a parameter is invalid, or an operation fails.
    pub fn run(&self, runs: &[DiskRun]) -> Result<Vec<Figure>, BenchError> {
        let time = VirtualTime::new(self.seed);
        let hosts = Hosts::new(World::new(&time, self.profile.clone()), 1);
        let rt = time.runtime();
        let stuck = |e| BenchError::Client(format!("the simulation cannot continue: {e}"));
        time.block_on(self.measure(&hosts, &rt, runs)).map_err(stuck)?
    }

    async fn measure(
        &self,
        hosts: &Hosts,
        rt: &RuntimeRef,
        runs: &[DiskRun],
    ) -> Result<Vec<Figure>, BenchError> {
        self.serve(hosts, rt).await?;
        let device = self.connect(hosts, rt).await?;
        let mut figures = Vec::new();
        for run in runs {
            let prepared = run.prepare(&device, rt)?;
            let before = hosts.spent();
            let (outcome, took) = prepared.run().await?;
            let spent = hosts.spent().since(&before);
            figures.push(outcome.figure(self.line(run), took, spent.clients_cpu, Some(spent.server_cpu)));
        }
        device.close().await;
        Ok(figures)
    }

    /// The parameters of a run, as a figure without measurements.
    fn line(&self, run: &DiskRun) -> Figure {
        let rdma = self.transport == Transport::Iser;
        Figure {
            workload: format!("simulated disk on {}", self.profile.name),
            test: run.test.to_string(),
            proto: if rdma { "iser" } else { "iscsi" }.into(),
            provider: rdma.then(|| "sim".into()),
            server_registration: rdma.then(|| self.registration.to_string()),
            threads: 1,
            client_hosts: Some(1),
            record: run.record as u64,
            outstanding: run.outstanding,
            ..Figure::default()
        }
    }

    /// Starts the target.
    async fn serve(&self, hosts: &Hosts, rt: &RuntimeRef) -> Result<(), BenchError> {
        let (table, stats) = (self.table(rt).await?, Arc::new(TargetStats::default()));
        let (rt, memory, limits) = (Arc::clone(rt), arena(COMMANDS), self.limits.clone());
        let tcp = TcpTarget { table, rt, arena: memory, limits, stats };
        let at = SocketAddr::new(Hosts::SERVER, PORT);
        match self.transport {
            Transport::Tcp => {
                let listener = hosts.world().tcp_with(Hosts::SERVER, Framing::Iscsi).listen(at);
                let listener = listener.map_err(failed)?;
                tcp.rt.clone().spawn("simulated target", Box::pin(accept_tcp(listener, tcp)));
            }
            Transport::Iser => {
                let settings = Settings { trust_peer: true, ..Settings::new(self.registration) };
                let registration = Arc::new(Registration::new(settings));
                let TcpTarget { table, rt, arena, limits, stats } = tcp;
                let target = IserTarget { table, rt: Arc::clone(&rt), arena, limits, stats, registration };
                let listener = hosts.server().listen(Arc::clone(&rt), at).map_err(failed)?;
                let ord = self.outstanding_reads;
                let params = IserTarget::connect_params(ConnectParams { ord, ..ConnectParams::default() });
                rt.spawn("simulated target", Box::pin(accept_rdma(listener, target, params)));
            }
        }
        Ok(())
    }

    /// The target with its disk.
    async fn table(&self, rt: &RuntimeRef) -> Result<Arc<TargetTable>, BenchError> {
        let size = usize::try_from(self.size).map_err(failed)?;
        // Old and new data exist at the same time.
        let fs: FileSystemRef = MemoryFs::new(MemoryConfig::new(arena(2 * size + COMMANDS), Arc::clone(rt)));
        let how = CreateHow::Guarded(SetAttr { size: Some(self.size), ..SetAttr::default() });
        let root = Identity::root();
        let file = fs.create(&root, &fs.root(), b"disk", &how).await.map_err(failed)?;
        let config = DiskConfig {
            block_size: BlockSize::B512,
            read_only: false,
            identifier: 1,
            record_directory: fs.root(),
            record_name: b"reservations".to_vec(),
        };
        let disk = Disk::open(fs, file.handle, root, config).await.map_err(failed)?;
        let device = Target::new(millrace_scsi::TargetConfig { name: TARGET.into(), arena: arena(COMMANDS) });
        device.add(Lun::default(), disk).map_err(failed)?;
        let (name, initiators, addresses) = (TARGET.parse().map_err(failed)?, Vec::new(), Vec::new());
        let table = TargetTable::new(TableLimits::default());
        let target =
            TargetConfig { name, device, initiators, chap: None, xprtsec: Default::default(), addresses };
        table.replace(vec![target]).map_err(failed)?;
        Ok(table)
    }

    async fn connect(&self, hosts: &Hosts, rt: &RuntimeRef) -> Result<BlockDevice, BenchError> {
        let mut options = Options::default();
        // The name of this host would change the length of messages.
        options.initiator = "iqn.2026-01.example.millrace:initiator".parse().map_err(failed)?;
        options.runtime = Some(Arc::clone(rt));
        options.streams = Some(hosts.world().tcp_with(hosts.address(0), Framing::Iscsi));
        options.rdma = Some(hosts.client(0));
        let address = TargetAddress { host: Hosts::SERVER.to_string(), port: PORT, tag: None };
        let target: IscsiName = TARGET.parse().map_err(failed)?;
        let url = Url::new(self.transport, address, Some(target), Some(Lun::default()));
        BlockDevice::connect(&url, &options).await.map_err(failed)
    }
}

async fn accept_tcp(mut listener: Box<dyn StreamListener>, target: TcpTarget) {
    while let Ok(stream) = listener.accept().await {
        let Ok(account) = Budget::unlimited().open(Hosts::SERVER.into()) else { return };
        let serving = target.clone().serve(stream, None, account, std::future::pending());
        target.rt.spawn("simulated session", Box::pin(serving));
    }
}

async fn accept_rdma(mut listener: Box<dyn Listener>, target: IserTarget, params: ConnectParams) {
    while let Ok(incoming) = listener.accept().await {
        let (rt, arena) = (Arc::clone(&target.rt), target.arena.clone());
        let Ok(qp) = incoming.accept(rt, arena, params.clone()).await else { continue };
        let Ok(account) = Budget::unlimited().open(Hosts::SERVER.into()) else { return };
        let serving = target.clone().serve(qp, None, account, std::future::pending());
        target.rt.spawn("simulated session", Box::pin(serving));
    }
}

#[cfg(test)]
mod tests {
    use millrace_bench::iozone::Test;
    use millrace_iscsi::negotiation::Settings as Negotiated;

    use super::*;

    fn run(test: Test, record: usize, operations: u64) -> DiskRun {
        DiskRun { test, record, outstanding: 1, operations, span: 8 << 20, memory: 0, flush: false }
    }

    fn far(transport: Transport) -> SimulatedDisk {
        let profile = Profile::named("wan-infinihost").unwrap().at_distance(1400.0).unwrap();
        let mut profile = Profile { tcp: Profile::named("ipoib-cm").unwrap().tcp, ..profile };
        profile.adapter.segment_bytes = 0;
        SimulatedDisk { size: 8 << 20, ..SimulatedDisk::new(profile, transport) }
    }

    /// The time of a command in round trips.
    fn trips(what: &SimulatedDisk, test: Test, record: usize) -> f64 {
        let warm = run(Test::Write, 256 << 10, 16);
        let figures = what.run(&[warm, run(test, record, 4)]).unwrap();
        1.0 / figures[1].ops_per_s.unwrap() / (2.0 * what.profile.one_way().as_secs_f64())
    }

    #[test]
    fn a_write_takes_the_round_trips_of_what_was_negotiated() {
        let mut tcp = far(Transport::Tcp);
        let near = |trips: f64, number: f64| assert!((trips - number).abs() < 0.1, "{trips} {number}");
        // All data of the WRITE is unsolicited.
        near(trips(&tcp, Test::Write, 64 << 10), 1.0);
        tcp.limits.settings = Negotiated { max_receive_data: 8192, ..Negotiated::default() };
        // Immediate data, and one R2T.
        near(trips(&tcp, Test::Write, 8 << 10), 1.0);
        near(trips(&tcp, Test::Write, 64 << 10), 2.0);
        // Immediate data, and one RDMA Read.
        let iser = far(Transport::Iser);
        near(trips(&iser, Test::Write, 8 << 10), 1.0);
        near(trips(&iser, Test::Write, 64 << 10), 2.0);
        near(trips(&iser, Test::Read, 64 << 10), 1.0);
    }

    #[test]
    fn figures_are_marked_and_repeat_with_the_same_seed() {
        let what = |transport| SimulatedDisk {
            size: 8 << 20,
            ..SimulatedDisk::new(Profile::named("ndr-400g").unwrap(), transport)
        };
        let json = |transport| {
            let runs = [Test::Write, Test::Read, Test::RandomRead]
                .map(|test| DiskRun { outstanding: 4, ..run(test, 64 << 10, 64) });
            what(transport).run(&runs).unwrap().iter().map(Figure::json).collect::<Vec<_>>()
        };
        for transport in [Transport::Tcp, Transport::Iser] {
            let figures = json(transport);
            assert!(figures.iter().all(|f| f.contains("simulated disk on ndr-400g")), "{figures:?}");
            assert_eq!(figures, json(transport));
        }
    }

    #[test]
    fn an_invalid_run_is_refused() {
        let refused = far(Transport::Tcp).run(&[run(Test::Read, 16 << 20, 1)]).unwrap_err();
        assert!(refused.to_string().contains("of the disk"), "{refused}");
    }
}
