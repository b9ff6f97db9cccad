//! iSER.

use millrace_bench::{BenchError, Figure, disk::DiskRun, iozone::Test};
use millrace_client::Strategy;
use millrace_iscsi::negotiation::Settings;
use millrace_iscsi_initiator::Transport;
use millrace_iscsi_target::ConnectionLimits;
use millrace_plot::Scale;
use millrace_rdma_sim::Profile;
use millrace_simlab::{Machines, SimulatedDisk};

use crate::{
    Claim, Curves, Picture, Setting, Unit,
    calibration::Testbed,
    lab::{profile, profile_at, value},
    rule::{ABOVE, BELOW, Band, HARDLY, Measure, Rule, SAME},
};

/// The curves of one transport: READ and WRITE.
type Pair = [&'static str; 2];
const READ: usize = 0;
const WRITE: usize = 1;

const RDMA: Pair = ["READ, RDMA, 0.2 mile", "WRITE, RDMA, 0.2 mile"];
const CM: Pair = ["READ, IPoIB-CM, 0.2 mile", "WRITE, IPoIB-CM, 0.2 mile"];
const UD: Pair = ["READ, IPoIB-UD, 0.2 mile", "WRITE, IPoIB-UD, 0.2 mile"];
const RDMA_FAR: Pair = ["READ, RDMA, 1400 miles", "WRITE, RDMA, 1400 miles"];
const CM_FAR: Pair = ["READ, IPoIB-CM, 1400 miles", "WRITE, IPoIB-CM, 1400 miles"];
const UD_FAR: Pair = ["READ, IPoIB-UD, 1400 miles", "WRITE, IPoIB-UD, 1400 miles"];
const RDMA_TRIPS: Pair = ["READ, RDMA, round trips", "WRITE, RDMA, round trips"];
const CM_TRIPS: Pair = ["READ, IPoIB-CM, round trips", "WRITE, IPoIB-CM, round trips"];
const UD_TRIPS: Pair = ["READ, IPoIB-UD, round trips", "WRITE, IPoIB-UD, round trips"];

/// Bytes of 1 KiB.
const KIB: f64 = 1024.0;
/// Bytes of the largest command.
const LARGEST: f64 = 512.0 * KIB;
/// Bytes of a command from which iSER is faster over 1400 miles.
const CROSSING: f64 = 384.0 * KIB;

/// The band of a hypothesis about the number of round trips of a command, whose figure is a whole number.
const fn trips(number: f64) -> Band {
    Band { least: SAME.least * number, most: SAME.most * number }
}

/// One curve is above the other at every length of a command.
const fn above(what: &'static str, curve: &'static str, other: &'static str, paper: &'static str) -> Rule {
    Rule { what, measure: Measure::LeastOver(curve, other), paper, band: ABOVE }
}

/// The length of a command from which RDMA is at least as fast.
const fn crossing(what: &'static str, rdma: &'static str, tcp: &'static str) -> Rule {
    Rule { what, measure: Measure::AboveFrom(rdma, tcp), paper: "384 KB", band: Band::about(CROSSING) }
}

/// RDMA is slower than TCP with commands of 256 KiB.
const fn below(what: &'static str, rdma: &'static str, tcp: &'static str) -> Rule {
    let measure = Measure::Ratio((rdma, 256.0 * KIB), (tcp, 256.0 * KIB));
    Rule { what, measure, paper: "below, until 384 KB", band: BELOW }
}

/// READ is hardly faster than WRITE, at any length of a command.
const fn equal(what: &'static str, curves: Pair) -> Rule {
    let measure = Measure::MostOver(curves[READ], curves[WRITE]);
    Rule { what, measure, paper: "not much difference", band: HARDLY }
}

/// A hypothesis about the number of round trips of a command of `kib` KiB.
const fn hypothesis(what: &'static str, curve: &'static str, kib: f64, number: f64) -> Rule {
    Rule { what, measure: Measure::At(curve, kib * KIB), paper: "hypothesis", band: trips(number) }
}

/// The rate of READ of 512 KiB over RDMA is in the paper's figure.
const fn in_figure(what: &'static str, curve: &'static str, paper: &'static str, most: f64) -> Rule {
    Rule { what, measure: Measure::At(curve, LARGEST), paper, band: Band { least: 0.0, most } }
}

pub(super) const CLAIM: Claim = Claim {
    id: "C15",
    claim: "iSCSI over RDMA (iSER) is best nearby; over 1400 miles it is slower than IPoIB up to messages of 384 KB",
    source: "WAN 2008 section 2.4, figure 5",
    figures: "best at 0.2 mile, writes below reads, IPoIB-CM above IPoIB-UD; at 1400 miles below IPoIB until messages have \
              384 KB, reads and writes hardly different. The axes of figure 5 end at 800 and 10 MB/s",
    profiles: &["wan-infinihost", "ipoib-cm"],
    testbeds: &[Testbed::WanDatagram, Testbed::WanConnected],
    conditions: "one command at a time, of 4 to 512 KiB, sequential, on a disk in memory, after commands that have \
                 ended the slow start of TCP. The target has the settings of the paper's, whose code is \
                 public: one RDMA Read at a time, RDMA operations of at most 512 KiB, buffers that are \
                 registered once, no immediate data over iSER; over TCP MaxRecvDataSegmentLength 8192, \
                 MaxBurstLength 262144, FirstBurstLength 65536, InitialR2T=Yes, ImmediateData=Yes, \
                 MaxOutstandingR2T=1. The initiator binds a window (FMR) for the memory of each command, in one piece. A \
                 PDU costs its receiver one message, as over RDMA. Hosts and link are those of \
                 wan-infinihost, IPoIB-UD is its TCP, IPoIB-CM is that of ipoib-cm. The time of a command \
                 is also given in round trips of the link; their number is a hypothesis of this project, \
                 from the settings: a WRITE over TCP has 8 KiB of immediate data and then R2Ts of 256 KiB, \
                 one at a time; over iSER it has one RDMA Read",
    rules: &[
        above("READ at 0.2 mile, RDMA over IPoIB-CM, least", RDMA[READ], CM[READ], "best"),
        above("READ at 0.2 mile, RDMA over IPoIB-UD, least", RDMA[READ], UD[READ], "best"),
        above("WRITE at 0.2 mile, RDMA over IPoIB-CM, least", RDMA[WRITE], CM[WRITE], "best"),
        above("WRITE at 0.2 mile, RDMA over IPoIB-UD, least", RDMA[WRITE], UD[WRITE], "best"),
        above("RDMA at 0.2 mile, READ over WRITE, least", RDMA[READ], RDMA[WRITE], "writes lower"),
        above("READ at 0.2 mile, IPoIB-CM over IPoIB-UD, least", CM[READ], UD[READ], "better"),
        above("WRITE at 0.2 mile, IPoIB-CM over IPoIB-UD, least", CM[WRITE], UD[WRITE], "better"),
        in_figure("READ of 512 KiB at 0.2 mile, RDMA, MB/s", RDMA[READ], "the axis ends at 800", 800.0),
        crossing("READ at 1400 miles, bytes from which RDMA is above IPoIB-CM", RDMA_FAR[READ], CM_FAR[READ]),
        crossing("READ at 1400 miles, bytes from which RDMA is above IPoIB-UD", RDMA_FAR[READ], UD_FAR[READ]),
        crossing(
            "WRITE at 1400 miles, bytes from which RDMA is above IPoIB-CM",
            RDMA_FAR[WRITE],
            CM_FAR[WRITE],
        ),
        crossing(
            "WRITE at 1400 miles, bytes from which RDMA is above IPoIB-UD",
            RDMA_FAR[WRITE],
            UD_FAR[WRITE],
        ),
        below("READ of 256 KiB at 1400 miles, RDMA over IPoIB-CM", RDMA_FAR[READ], CM_FAR[READ]),
        below("READ of 256 KiB at 1400 miles, RDMA over IPoIB-UD", RDMA_FAR[READ], UD_FAR[READ]),
        below("WRITE of 256 KiB at 1400 miles, RDMA over IPoIB-CM", RDMA_FAR[WRITE], CM_FAR[WRITE]),
        below("WRITE of 256 KiB at 1400 miles, RDMA over IPoIB-UD", RDMA_FAR[WRITE], UD_FAR[WRITE]),
        equal("RDMA at 1400 miles, READ over WRITE, most", RDMA_FAR),
        equal("IPoIB-CM at 1400 miles, READ over WRITE, most", CM_FAR),
        equal("IPoIB-UD at 1400 miles, READ over WRITE, most", UD_FAR),
        in_figure("READ of 512 KiB at 1400 miles, RDMA, MB/s", RDMA_FAR[READ], "the axis ends at 10", 10.0),
        hypothesis("round trips of a WRITE of 4 KiB, RDMA", RDMA_TRIPS[WRITE], 4.0, 2.0),
        hypothesis("round trips of a WRITE of 512 KiB, RDMA", RDMA_TRIPS[WRITE], 512.0, 2.0),
        hypothesis("round trips of a WRITE of 8 KiB, IPoIB-CM", CM_TRIPS[WRITE], 8.0, 1.0),
        hypothesis("round trips of a WRITE of 16 KiB, IPoIB-CM", CM_TRIPS[WRITE], 16.0, 2.0),
        hypothesis("round trips of a WRITE of 264 KiB, IPoIB-CM", CM_TRIPS[WRITE], 264.0, 2.0),
        hypothesis("round trips of a WRITE of 320 KiB, IPoIB-CM", CM_TRIPS[WRITE], 320.0, 3.0),
        hypothesis("round trips of a WRITE of 512 KiB, IPoIB-CM", CM_TRIPS[WRITE], 512.0, 3.0),
        hypothesis("round trips of a WRITE of 8 KiB, IPoIB-UD", UD_TRIPS[WRITE], 8.0, 1.0),
        hypothesis("round trips of a WRITE of 264 KiB, IPoIB-UD", UD_TRIPS[WRITE], 264.0, 2.0),
        hypothesis("round trips of a WRITE of 512 KiB, IPoIB-UD", UD_TRIPS[WRITE], 512.0, 3.0),
    ],
    pictures: &[
        Picture {
            name: "near",
            title: "iSCSI, one command at a time, at 0.2 mile (WAN 2008, figure 5a)",
            x: ("bytes of a command", Unit::Bytes),
            y: ("MB/s", Scale::Linear),
            curves: &[RDMA[READ], RDMA[WRITE], CM[READ], CM[WRITE], UD[READ], UD[WRITE]],
            right: None,
            paper: &[],
        },
        Picture {
            name: "far",
            title: "iSCSI, one command at a time, at 1400 miles (WAN 2008, figure 5b)",
            x: ("bytes of a command", Unit::Bytes),
            y: ("MB/s", Scale::Linear),
            curves: &[
                RDMA_FAR[READ],
                RDMA_FAR[WRITE],
                CM_FAR[READ],
                CM_FAR[WRITE],
                UD_FAR[READ],
                UD_FAR[WRITE],
            ],
            right: None,
            paper: &[],
        },
        Picture {
            name: "trips",
            title: "The time of a command at 1400 miles, in round trips of the link",
            x: ("bytes of a command", Unit::Bytes),
            y: ("round trips", Scale::Linear),
            curves: &[
                RDMA_TRIPS[READ],
                RDMA_TRIPS[WRITE],
                CM_TRIPS[READ],
                CM_TRIPS[WRITE],
                UD_TRIPS[READ],
                UD_TRIPS[WRITE],
            ],
            right: None,
            paper: &[],
        },
    ],
    experiment: run,
    model_gaps: "At 0.2 mile the assumed costs of a window and of an RDMA Read make short WRITEs over RDMA slower \
                 than over IPoIB-UD. A segment of IPoIB-CM has the same assumed cost at any length, so that small \
                 commands are slower than over IPoIB-UD. At 1400 miles all times are whole round trips, as the \
                 hypothesis predicts: RDMA and IPoIB are equal within 1 % where they take equally many \
                 round trips, so that the crossing is at an arbitrary length there. The WRITE of RDMA takes \
                 twice as long as that of IPoIB up to 8 KiB, and two thirds above 264 KiB, which may be the \
                 paper's crossing. Nothing in the model makes READ take more than one round trip.",
    calibrated_gaps: "",
};

/// KiB of the commands.
const LENGTHS: [usize; 13] = [4, 8, 16, 32, 64, 128, 192, 256, 264, 320, 384, 448, 512];
/// Bytes of the disk.
const DISK: u64 = 16 << 20;

fn run(setting: Setting) -> Result<Curves, BenchError> {
    let mut curves = Curves::default();
    for (miles, rdma, cm, ud) in [(0.2, RDMA, CM, UD), (1400.0, RDMA_FAR, CM_FAR, UD_FAR)] {
        let mut datagrams = profile_at("wan-infinihost", miles)?;
        let mut connected = Profile { tcp: profile("ipoib-cm")?.tcp, ..datagrams.clone() };
        if let Some(values) = setting.calibration {
            values.tcp(Testbed::WanDatagram, &mut datagrams.tcp);
            values.tcp(Testbed::WanConnected, &mut connected.tcp);
        }
        let mut whole = datagrams.clone();
        whole.adapter.segment_bytes = 0;
        for (profile, transport, rates, trips) in [
            (whole, Transport::Iser, rdma, RDMA_TRIPS),
            (connected, Transport::Tcp, cm, CM_TRIPS),
            (datagrams, Transport::Tcp, ud, UD_TRIPS),
        ] {
            let profile = match setting.modification {
                Some(modification) => {
                    let mut machines = Machines::new(profile);
                    modification.machines(&mut machines);
                    machines.profile
                }
                None => profile,
            };
            let round_trip = 2.0 * profile.one_way().as_secs_f64();
            let figures = commands(profile, transport, miles, setting)?;
            for (direction, length, figure) in figures {
                curves.put(rates[direction], length, value(figure.mb_per_s)?);
                if miles > 1.0 {
                    let command = 1.0 / value(figure.ops_per_s)?;
                    curves.put(trips[direction], length, command / round_trip);
                }
            }
        }
    }
    Ok(curves)
}

/// The figures of READ and WRITE with each length of a command.
fn commands(
    profile: Profile,
    transport: Transport,
    miles: f64,
    setting: Setting,
) -> Result<Vec<(usize, f64, Figure)>, BenchError> {
    let mut settings = settings(transport);
    if let (Some(modification), Transport::Tcp) = (setting.modification, transport) {
        modification.session(&mut settings);
    }
    let disk = SimulatedDisk {
        seed: setting.seed,
        limits: ConnectionLimits { settings, ..ConnectionLimits::default() },
        outstanding_reads: 1,
        registration: Strategy::AllPhysical,
        size: DISK,
        ..SimulatedDisk::new(profile, transport)
    };
    let command = |test, record, operations| DiskRun {
        test,
        record,
        outstanding: 1,
        operations,
        span: DISK,
        memory: 0,
        flush: false,
    };
    let operations = match (setting.small, miles > 1.0) {
        (true, _) => 4,
        (false, true) => 20,
        (false, false) => 200,
    };
    // All of the disk, in both directions: more than the window of TCP.
    let mut runs = [Test::Write, Test::Read].map(|test| command(test, 512 << 10, 32)).to_vec();
    let mut what = Vec::new();
    for kib in LENGTHS {
        for (direction, test) in [(READ, Test::Read), (WRITE, Test::Write)] {
            runs.push(command(test, kib << 10, operations));
            what.push((direction, kib as f64 * KIB));
        }
    }
    let figures = disk.run(&runs)?.into_iter().skip(runs.len() - what.len());
    Ok(what
        .into_iter()
        .zip(figures)
        .map(|((direction, length), figure)| (direction, length, figure))
        .collect())
}

/// The parameters that the paper's target negotiated.
fn settings(transport: Transport) -> Settings {
    Settings { max_receive_data: 8192, immediate_data: transport == Transport::Tcp, ..Settings::default() }
}
