//! Several clients of a server with real disks.

use millrace_bench::BenchError;
use millrace_client::Strategy;
use millrace_plot::Scale;
use millrace_simlab::{Raid, Storage};

use crate::{
    Claim, Curves, Picture, Setting, Unit,
    calibration::Testbed,
    lab::{BLOCK, Iozone, SLOTS, profile, value},
    rule::{Band, Measure, Rule, SAME},
};

const RDMA_8: &str = "RDMA, 8 GB";
const IPOIB_8: &str = "IPoIB, 8 GB";
const GIGE_8: &str = "GigE, 8 GB";
const RDMA_4: &str = "RDMA, 4 GB";
const IPOIB_4: &str = "IPoIB, 4 GB";
const GIGE_4: &str = "GigE, 4 GB";

pub(super) const CLAIM: Claim = Claim {
    id: "C9",
    claim: "With several clients RDMA scales as long as the server's memory holds the files; TCP limits the rate earlier",
    source: "Designing 2007 section 5.3, figure 10",
    figures: "1 GB for each client. 8 GB of server memory: RDMA over 900 MB/s to 7 clients, IPoIB 360; 4 GB: RDMA 883 at \
              3, IPoIB 326; GigE 107 with one",
    profiles: &["ddr-linux-allphys", "ipoib-ud", "gige-2003"],
    testbeds: &[Testbed::LinuxXeons],
    conditions: "READ of 1 MiB by 1 to 8 clients, in blocks of 32 KiB; the sizes of files and of the \
                 server's memory are those of the paper divided by 64; RAID-0 of 8 disks of 30 MB/s; GigE is \
                 the Ethernet and the TCP of gige-2003 in the hosts of ipoib-ud",
    rules: &[
        Rule {
            what: "8 GB: peak of RDMA over peak of IPoIB",
            measure: Measure::Peaks(RDMA_8, IPOIB_8),
            paper: "900 / 360 = 2.5",
            band: Band::around(2.5),
        },
        Rule {
            what: "4 GB: peak of RDMA over peak of IPoIB",
            measure: Measure::Peaks(RDMA_4, IPOIB_4),
            paper: "883 / 326 = 2.71",
            band: Band::around(883.0 / 326.0),
        },
        Rule {
            what: "8 GB: peak of IPoIB over peak of GigE",
            measure: Measure::Peaks(IPOIB_8, GIGE_8),
            paper: "360 / 107 = 3.36",
            band: Band::around(360.0 / 107.0),
        },
        Rule {
            what: "8 GB: RDMA with 7 clients, of its peak",
            measure: Measure::OfPeak(RDMA_8, 7.0),
            paper: "sustained",
            band: SAME,
        },
        Rule {
            what: "4 GB: clients at the peak of RDMA",
            measure: Measure::PeakAt(RDMA_4),
            paper: "3",
            band: Band { least: 2.0, most: 4.0 },
        },
        Rule {
            what: "4 GB: RDMA with 7 clients, of its peak",
            measure: Measure::OfPeak(RDMA_4, 7.0),
            paper: "less: the disks bound it",
            band: Band { least: 0.0, most: 0.9 },
        },
        Rule {
            what: "GigE with one client, of its peak",
            measure: Measure::OfPeak(GIGE_4, 1.0),
            paper: "107 MB/s, saturated",
            band: SAME,
        },
    ],
    pictures: &[
        Picture {
            name: "4gb",
            title: "READ by several clients, 4 GB of server memory (Designing 2007, figure 10a)",
            x: ("clients", Unit::Number),
            y: ("MB/s", Scale::Linear),
            curves: &[RDMA_4, IPOIB_4, GIGE_4],
            right: None,
            paper: &[(RDMA_4, &[(3.0, 883.0)]), (IPOIB_4, &[(3.0, 326.0)]), (GIGE_4, &[(1.0, 107.0)])],
        },
        Picture {
            name: "8gb",
            title: "READ by several clients, 8 GB of server memory (Designing 2007, figure 10b)",
            x: ("clients", Unit::Number),
            y: ("MB/s", Scale::Linear),
            curves: &[RDMA_8, IPOIB_8, GIGE_8],
            right: None,
            paper: &[(RDMA_8, &[(7.0, 900.0)]), (IPOIB_8, &[(7.0, 360.0)])],
        },
    ],
    experiment: run,
    model_gaps: "The main statement holds: RDMA keeps its rate until the files exceed the server's memory, \
                 and then the disks limit every network. But IPoIB has more than twice the paper's rate (830 \
                 instead of 360 MB/s), on two cores that only execute TCP, copies and RPC: the profile does \
                 not contain the other costs of NFS over TCP in Linux at that time. RDMA fills the adapter's \
                 bus, with 1383 instead of 900 MB/s.",
    calibrated_gaps: "",
};

/// Divisor of the paper's file sizes and of its servers' memory.
const PART: u64 = 64;
/// The divisor in a small run.
const SMALL_PART: u64 = 256;

/// A network of the clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Network {
    Rdma,
    Ipoib,
    Ethernet,
}

fn run(setting: Setting) -> Result<Curves, BenchError> {
    let mut curves = Curves::default();
    for (network, large, little) in [
        (Network::Rdma, RDMA_8, RDMA_4),
        (Network::Ipoib, IPOIB_8, IPOIB_4),
        (Network::Ethernet, GIGE_8, GIGE_4),
    ] {
        for (gigabytes, curve) in [(8, large), (4, little)] {
            for clients in 1..=8 {
                curves.put(curve, clients as f64, read(network, gigabytes, clients, setting)?);
            }
        }
    }
    Ok(curves)
}

/// The rate of READ of `clients` clients, of a server with `gigabytes` GB of memory.
pub(crate) fn read(
    network: Network,
    gigabytes: u64,
    clients: usize,
    setting: Setting,
) -> Result<f64, BenchError> {
    let iozone = match network {
        Network::Rdma => Iozone::new("ddr-linux-allphys", setting)?
            .registration(Strategy::AllPhysical, Strategy::AllPhysical),
        Network::Ipoib | Network::Ethernet => Iozone::new("ipoib-ud", setting)?.over_tcp(),
    };
    let part = if setting.small { SMALL_PART } else { PART };
    // A record of 1 MiB in blocks, all in flight concurrently.
    let records = ((1 << 30) / part) as usize / BLOCK;
    let mut iozone = Iozone { record: BLOCK, outstanding: SLOTS, records, ..iozone };
    let machines = &mut iozone.machines;
    if network == Network::Ethernet {
        let ethernet = profile("gige-2003")?;
        let hosts = &mut machines.profile;
        (hosts.link, hosts.adapter, hosts.tcp) = (ethernet.link, ethernet.adapter, ethernet.tcp);
    }
    let mut raid = Raid::eight_disks((gigabytes << 30) / part);
    if let Some(values) = setting.calibration {
        raid = values.page_cache(raid);
    }
    (machines.storage, machines.client_hosts) = (Storage::Raid(raid), clients);
    value(iozone.run(clients)?.read.mb_per_s)
}
