//! The requirements of Read-Write over distance.

use millrace_bench::{
    BenchError,
    iozone::{Run, Test},
};
use millrace_client::{Options, Strategy};
use millrace_plot::Scale;
use millrace_rdma_sim::Profile;
use millrace_server::{ByteSize, Limits};
use millrace_simlab::{Machines, SimulatedIozone};

use super::Study;
use crate::{Curves, Picture, Setting, Unit, lab};

const PROFILE: &str = "wan-100g";
const DISTANCES: [f64; 2] = [1400.0, 6000.0];
const MIB: usize = 1 << 20;
/// Bytes of the file that is read and written in random order.
const FILE: usize = 64 * MIB;
/// Length of one run, in multiples of the calls in flight. Start and end of the run reduce its rate by at
/// most 1/13.
const WINDOWS: usize = 12;
/// Limit of the buffers of each simulated end: more than is in flight over the largest distance.
const MEMORY: usize = 12 << 30;

const NEAR_1: &str = "1,400 miles, 1 MiB";
const NEAR_4: &str = "1,400 miles, 4 MiB";
const FAR_1: &str = "6,000 miles, 1 MiB";
const FAR_4: &str = "6,000 miles, 4 MiB";
/// Curves by test, transfer size and distance; the two tests have no curve in common.
const OF_WRITES: [[&str; 2]; 2] = [[NEAR_1, FAR_1], [NEAR_4, FAR_4]];
const OF_READS: [[&str; 2]; 2] = [
    ["READ, 1,400 miles, 1 MiB", "READ, 6,000 miles, 1 MiB"],
    ["READ, 1,400 miles, 4 MiB", "READ, 6,000 miles, 4 MiB"],
];
const APART: [&str; 2] = ["WRITE, pages apart", "READ, pages apart"];
const JOINED: [&str; 2] = ["WRITE, pages joined", "READ, pages joined"];
const CREDITS: [&str; 2] = ["WRITE by credits", "READ by credits"];
const DEPTH: &str = "WRITE of 4 MiB";

pub(super) const STUDY: Study = Study {
    name: "distance",
    question: "What does Read-Write need to fill 100 Gb/s over 1,400 and 6,000 miles?",
    page: include_str!("../../../../docs/lab/studies/distance.md"),
    summary: None,
    pictures: &[
        Picture {
            name: "write",
            title: "WRITE by connections and bytes of a call",
            x: ("connections (nconnect)", Unit::Number),
            y: ("MB/s", Scale::Linear),
            curves: &[NEAR_1, NEAR_4, FAR_1, FAR_4],
            right: None,
            paper: &[],
        },
        Picture {
            name: "read",
            title: "READ by connections and bytes of a call",
            x: ("connections (nconnect)", Unit::Number),
            y: ("MB/s", Scale::Linear),
            curves: &[OF_READS[0][0], OF_READS[1][0], OF_READS[0][1], OF_READS[1][1]],
            right: None,
            paper: &[],
        },
        Picture {
            name: "credits",
            title: "One connection over 1,400 miles, calls of 1 MiB, by credits",
            x: ("credits", Unit::Number),
            y: ("MB/s", Scale::Linear),
            curves: &CREDITS,
            right: None,
            paper: &[],
        },
        Picture {
            name: "depth",
            title: "One connection over 1,400 miles, by RDMA Reads in flight that the adapters allow",
            x: ("RDMA Reads in flight (IRD and ORD)", Unit::Number),
            y: ("MB/s", Scale::Linear),
            curves: &[DEPTH],
            right: None,
            paper: &[],
        },
        Picture {
            name: "pages",
            title: "Memory named page by page: calls of 512 KiB, one connection",
            x: ("miles", Unit::Number),
            y: ("MB/s", Scale::Log),
            curves: &[APART[0], JOINED[0], APART[1], JOINED[1]],
            right: None,
            paper: &[],
        },
    ],
    experiment: run,
};

/// One client machine that keeps as many calls in flight as it may.
#[derive(Clone)]
struct Setup {
    profile: Profile,
    seed: u64,
    connections: usize,
    credits: u32,
    /// Bytes of one call.
    transfer: usize,
    registration: Strategy,
}

impl Setup {
    fn new(setting: Setting, miles: f64) -> Result<Self, BenchError> {
        let profile = lab::profile_at(PROFILE, miles)?;
        let (credits, registration) = (Options::default().credits, Options::default().registration);
        Ok(Self { profile, seed: setting.seed, connections: 1, credits, transfer: MIB, registration })
    }

    /// Bytes in flight when the link is full, in both directions.
    fn full(&self) -> f64 {
        2.0 * self.profile.one_way().as_secs_f64() * self.profile.link.mb_per_s * 1e6
    }

    fn machines(&self) -> Machines {
        let options = Options::default()
            .nconnect(self.connections)
            .credits(self.credits)
            .registration(self.registration)
            .arena_limit(MEMORY);
        let transfer = ByteSize(self.transfer as u64);
        let limits = Limits {
            rtmax: transfer,
            wtmax: transfer,
            credits: self.credits,
            memory: ByteSize(MEMORY as u64),
            ..Limits::default()
        };
        Machines { seed: self.seed, options, limits, ..Machines::new(self.profile.clone()) }
    }

    /// The rate over twelve windows, in 10^6 bytes per second. A window is the number of calls that the
    /// credits allow, limited to what fills the link (a WRITE takes two round trips). The first and the last
    /// window, in which the link fills and empties, are included.
    fn carries(&self, test: Test) -> Result<f64, BenchError> {
        let trips = if test == Test::RandomWrite { 2.5 } else { 1.5 };
        let enough = (trips * self.full() / self.transfer as f64).ceil() as usize;
        let outstanding = (self.connections * self.credits as usize).min(enough.max(16));
        let run = |test, windows| Run {
            test,
            record: self.transfer,
            outstanding,
            passes: 1,
            random_ops: (outstanding * windows) as u64,
        };
        let size = FILE as u64;
        let what = SimulatedIozone { machines: self.machines(), threads: 1, shared_mount: true, size };
        let figures = what.run(&[run(Test::Write, 1), run(test, WINDOWS)])?;
        lab::value(figures.get(1).and_then(|f| f.mb_per_s))
    }
}

fn run(setting: Setting) -> Result<Curves, BenchError> {
    let mut out = Curves::default();
    connections(setting, &mut out)?;
    credits(setting, &mut out)?;
    depth(setting, &mut out)?;
    pages(setting, &mut out)?;
    Ok(out)
}

/// The rates of WRITE and READ by number of connections.
fn connections(setting: Setting, out: &mut Curves) -> Result<(), BenchError> {
    let counts: &[usize] = if setting.small { &[1, 2] } else { &[1, 4, 16, 32, 64] };
    for (far, miles) in DISTANCES.iter().enumerate().take(if setting.small { 1 } else { 2 }) {
        for (large, transfer) in [MIB, 4 * MIB].into_iter().enumerate() {
            for connections in counts {
                let setup = Setup { connections: *connections, transfer, ..Setup::new(setting, *miles)? };
                let at = *connections as f64;
                out.put(OF_WRITES[large][far], at, setup.carries(Test::RandomWrite)?);
                out.put(OF_READS[large][far], at, setup.carries(Test::RandomRead)?);
            }
        }
    }
    Ok(())
}

fn credits(setting: Setting, out: &mut Curves) -> Result<(), BenchError> {
    let counts: &[u32] = if setting.small { &[] } else { &[16, 32, 64, 128, 256] };
    for credits in counts {
        let setup = Setup { credits: *credits, ..Setup::new(setting, DISTANCES[0])? };
        for (curve, test) in CREDITS.into_iter().zip([Test::RandomWrite, Test::RandomRead]) {
            out.put(curve, f64::from(*credits), setup.carries(test)?);
        }
    }
    Ok(())
}

fn depth(setting: Setting, out: &mut Curves) -> Result<(), BenchError> {
    let depths: &[u16] = if setting.small { &[4, 16] } else { &[4, 8, 16, 32, 64] };
    for reads in depths {
        let mut setup = Setup { transfer: 4 * MIB, ..Setup::new(setting, DISTANCES[0])? };
        setup.profile.adapter.outstanding_reads = *reads;
        out.put(DEPTH, f64::from(*reads), setup.carries(Test::RandomWrite)?);
    }
    Ok(())
}

/// A client that registers its memory page by page, with separate pages and with adjacent pages.
fn pages(setting: Setting, out: &mut Curves) -> Result<(), BenchError> {
    let miles: &[f64] = if setting.small { &[1400.0] } else { &[0.0, 140.0, 1400.0] };
    for miles in miles {
        for (curves, segment_bytes) in [(APART, 4096), (JOINED, 0)] {
            let strategy = Strategy::AllPhysical;
            let mut setup = Setup {
                transfer: MIB / 2,
                credits: 32,
                registration: strategy,
                ..Setup::new(setting, *miles)?
            };
            setup.profile.adapter.segment_bytes = segment_bytes;
            for (curve, test) in curves.into_iter().zip([Test::RandomWrite, Test::RandomRead]) {
                out.put(curve, *miles, setup.carries(test)?);
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn larger_calls_and_joined_pages_are_faster_over_1400_miles() {
        let c = run(Setting::raw(1, true)).unwrap();
        let at = |curve: &str, x| c.at(curve, x).unwrap();
        // Sixteen RDMA Reads in flight, each four times as large.
        let gain = at(NEAR_4, 1.0) / at(NEAR_1, 1.0);
        assert!((3.0..4.5).contains(&gain), "{gain}");
        let second = at(NEAR_1, 2.0) / at(NEAR_1, 1.0);
        assert!((1.8..2.2).contains(&second), "{second}");
        let deeper = at(DEPTH, 16.0) / at(DEPTH, 4.0);
        assert!((3.0..4.5).contains(&deeper), "{deeper}");
        for ((joined, apart), least) in JOINED.into_iter().zip(APART).zip([50.0, 5.0]) {
            let gain = at(joined, 1400.0) / at(apart, 1400.0);
            assert!(gain > least, "{joined}: {gain}");
        }
    }
}
