//! A disk over iSER, over iSCSI, and as a file over NFS/RDMA.

use millrace_bench::{
    BenchError, Figure,
    disk::DiskRun,
    iozone::{Run, Test},
};
use millrace_client::{Options, Strategy};
use millrace_iscsi_initiator::Transport;
use millrace_plot::Scale;
use millrace_rdma_sim::Profile;
use millrace_simlab::{Machines, SimulatedDisk, SimulatedIozone};

use super::Study;
use crate::{Curves, Picture, Setting, Unit, lab};

const PROFILE: &str = "ndr-400g";
/// Operations in flight.
const DEPTHS: [usize; 5] = [1, 2, 4, 8, 16];
/// Bytes of a large and of a small operation.
const LARGE: usize = 512 << 10;
const SMALL: usize = 4 << 10;
/// Bytes of the disk, and of the file.
const SIZE: u64 = 64 << 20;

/// The curves of each means of access, in the order of [`ACCESS`].
type Curve = [&'static str; 4];
const READ: Curve = ["READ, iSER", "READ, NFS/RDMA, dynamic", "READ, NFS/RDMA, fast", "READ, iSCSI"];
const WRITE: Curve = ["WRITE, iSER", "WRITE, NFS/RDMA, dynamic", "WRITE, NFS/RDMA, fast", "WRITE, iSCSI"];
const RANDOM: Curve = ["4 KiB, iSER", "4 KiB, NFS/RDMA, dynamic", "4 KiB, NFS/RDMA, fast", "4 KiB, iSCSI"];
const CLIENT: Curve =
    ["client, iSER", "client, NFS/RDMA, dynamic", "client, NFS/RDMA, fast", "client, iSCSI"];
const SERVER: Curve =
    ["server, iSER", "server, NFS/RDMA, dynamic", "server, NFS/RDMA, fast", "server, iSCSI"];

const ACCESS: [Access; 4] = [
    Access::Disk(Transport::Iser),
    Access::File(Strategy::Dynamic),
    Access::File(Strategy::Fast),
    Access::Disk(Transport::Tcp),
];

/// How the initiator or client reaches the data.
#[derive(Clone, Copy)]
enum Access {
    Disk(Transport),
    /// A file over NFS/RDMA, with the client's registration strategy.
    File(Strategy),
}

const fn by_depth(
    name: &'static str,
    title: &'static str,
    y: (&'static str, Scale),
    curves: &'static Curve,
) -> Picture {
    Picture { name, title, x: ("operations in flight", Unit::Number), y, curves, right: None, paper: &[] }
}

pub(super) const STUDY: Study = Study {
    name: "block",
    question: "How fast is a disk over 400 Gb/s: with iSER, with iSCSI, and as a file over NFS/RDMA?",
    page: include_str!("../../../../docs/lab/studies/block.md"),
    summary: None,
    pictures: &[
        by_depth(
            "read",
            "Sequential READ of 512 KiB by operations in flight",
            ("MB/s", Scale::Linear),
            &READ,
        ),
        by_depth(
            "write",
            "Sequential WRITE of 512 KiB by operations in flight",
            ("MB/s", Scale::Linear),
            &WRITE,
        ),
        by_depth(
            "random",
            "Random READ of 4 KiB by operations in flight",
            ("operations/s", Scale::Linear),
            &RANDOM,
        ),
        by_depth(
            "client",
            "Processor time of the client for READ of 512 KiB",
            ("CPU s/GB", Scale::Linear),
            &CLIENT,
        ),
        by_depth(
            "server",
            "Processor time of the server for READ of 512 KiB",
            ("CPU s/GB", Scale::Linear),
            &SERVER,
        ),
    ],
    experiment: run,
};

impl Access {
    /// The figures of WRITE, READ and random READ with `depth` operations in flight.
    fn measure(self, profile: Profile, setting: Setting, depth: usize) -> Result<[Figure; 3], BenchError> {
        let operations = if setting.small { 256 } else { 4096 };
        // The first two tests fill the caches of registrations, and end the slow start of TCP.
        let figures = match self {
            Self::Disk(transport) => disk(profile, setting, transport, depth, operations)?,
            Self::File(strategy) => file(profile, setting, strategy, depth, operations)?,
        };
        let measured: Result<[Figure; 3], _> = figures.into_iter().skip(2).collect::<Vec<_>>().try_into();
        measured.map_err(|_| BenchError::Client("a figure is missing".into()))
    }
}

fn disk(
    profile: Profile,
    setting: Setting,
    transport: Transport,
    outstanding: usize,
    random: u64,
) -> Result<Vec<Figure>, BenchError> {
    let disk = SimulatedDisk { seed: setting.seed, size: SIZE, ..SimulatedDisk::new(profile, transport) };
    let large = |test| DiskRun {
        test,
        record: LARGE,
        outstanding,
        operations: SIZE / LARGE as u64,
        span: SIZE,
        memory: 0,
        flush: true,
    };
    let random = DiskRun { record: SMALL, operations: random, ..large(Test::RandomRead) };
    let [write, read] = [Test::Write, Test::Read].map(large);
    disk.run(&[write, read, write, read, random])
}

fn file(
    profile: Profile,
    setting: Setting,
    strategy: Strategy,
    outstanding: usize,
    random_ops: u64,
) -> Result<Vec<Figure>, BenchError> {
    let options = Options::default().registration(strategy);
    let server_registration = Some(Strategy::Cache);
    let machines = Machines { seed: setting.seed, options, server_registration, ..Machines::new(profile) };
    let what = SimulatedIozone { machines, threads: 1, shared_mount: true, size: SIZE };
    let large = |test| Run { test, record: LARGE, outstanding, passes: 1, random_ops };
    let random = Run { record: SMALL, ..large(Test::RandomRead) };
    let [write, read, rewrite, reread] = [Test::Write, Test::Read, Test::Rewrite, Test::Reread].map(large);
    what.run(&[write, read, rewrite, reread, random])
}

fn run(setting: Setting) -> Result<Curves, BenchError> {
    let mut out = Curves::default();
    let depths = if setting.small { &DEPTHS[3..4] } else { &DEPTHS[..] };
    for (n, access) in ACCESS.into_iter().enumerate() {
        for depth in depths {
            let at = *depth as f64;
            let [write, read, random] = access.measure(lab::profile(PROFILE)?, setting, *depth)?;
            out.put(WRITE[n], at, lab::value(write.mb_per_s)?);
            out.put(READ[n], at, lab::value(read.mb_per_s)?);
            out.put(RANDOM[n], at, lab::value(random.ops_per_s)?);
            out.put(CLIENT[n], at, lab::value(read.client_cpu_s_per_gb)?);
            out.put(SERVER[n], at, lab::value(read.server_cpu_s_per_gb)?);
        }
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rdma_is_faster_than_tcp_and_needs_less_cpu_time() {
        let c = run(Setting::raw(1, true)).unwrap();
        for curves in [READ, WRITE, RANDOM] {
            let [iser, nfs, _, iscsi] = curves.map(|curve| c.at(curve, 8.0).unwrap());
            assert!(iser > iscsi && nfs > iscsi, "{curves:?}: {iser} {nfs} {iscsi}");
        }
        for curves in [CLIENT, SERVER] {
            let [iser, _, _, iscsi] = curves.map(|curve| c.at(curve, 8.0).unwrap());
            assert!(iser < iscsi, "{curves:?}: {iser} {iscsi}");
        }
    }
}
