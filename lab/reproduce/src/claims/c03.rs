//! Read-Write needs less CPU time of the client.

use millrace_bench::BenchError;
use millrace_plot::Scale;
use millrace_read_read::Design;

use crate::{
    Claim, Curves, Picture, Setting, Unit,
    calibration::Testbed,
    lab::{Iozone, value},
    rule::{ABOVE, Band, Measure, Rule},
};

const MB_RW: &str = "Read-Write";
const MB_RR: &str = "Read-Read";
const CPU_RW: &str = "CPU, Read-Write";
const CPU_RR: &str = "CPU, Read-Read";

pub(super) const CLAIM: Claim = Claim {
    id: "C3",
    claim: "Read-Write needs less CPU time of the client for READ",
    source: "Designing 2007 section 5.1, figure 5; TR06 section 6",
    figures: "client CPU for READ of 128 KB: 2 % at 1 thread to 5 % at 8 (Read-Write), 4 % to 24 % (Read-Read)",
    profiles: &["sdr-opensolaris"],
    testbeds: &[Testbed::OpenSolaris],
    conditions: "as C2; CPU is the client's CPU time divided by the duration of the test, with 100 % for one \
                 core, while the papers' is relative to the whole machine: the rules use only ratios",
    rules: &[
        Rule {
            what: "client CPU at 1 thread, Read-Read over Read-Write",
            measure: Measure::Ratio((CPU_RR, 1.0), (CPU_RW, 1.0)),
            paper: "4 / 2 = 2",
            band: Band::around(2.0),
        },
        Rule {
            what: "client CPU at 8 threads, Read-Read over Read-Write",
            measure: Measure::Ratio((CPU_RR, 8.0), (CPU_RW, 8.0)),
            paper: "24 / 5 = 4.8",
            band: Band::around(4.8),
        },
        Rule {
            what: "client CPU with any number of threads, Read-Read over Read-Write, least",
            measure: Measure::LeastOver(CPU_RR, CPU_RW),
            paper: "lower for all",
            band: ABOVE,
        },
        Rule {
            what: "client CPU of Read-Read, 8 threads over 1",
            measure: Measure::Ratio((CPU_RR, 8.0), (CPU_RR, 1.0)),
            paper: "24 / 4 = 6",
            band: Band::around(6.0),
        },
        Rule {
            what: "client CPU of Read-Write, 8 threads over 1",
            measure: Measure::Ratio((CPU_RW, 8.0), (CPU_RW, 1.0)),
            paper: "5 / 2 = 2.5",
            band: Band::around(2.5),
        },
    ],
    pictures: &[Picture {
        name: "read",
        title: "READ of 128 KiB: MB/s and client CPU by design (Designing 2007, figure 5)",
        x: ("threads", Unit::Number),
        y: ("MB/s", Scale::Linear),
        curves: &[MB_RR, MB_RW],
        right: Some(("client CPU % (100 = one core)", &[CPU_RR, CPU_RW])),
        paper: &[],
    }],
    experiment: run,
    model_gaps: "The paper's Read-Read client copied data that its Read-Write client received in place. \
                 Millrace's client receives in place with both designs, so that the difference consists only \
                 of RDMA_DONE and the completions of RDMA Reads.",
    calibrated_gaps: "",
};

fn run(setting: Setting) -> Result<Curves, BenchError> {
    let mut curves = Curves::default();
    for (design, rate, cpu) in [(Design::ReadWrite, MB_RW, CPU_RW), (Design::ReadRead, MB_RR, CPU_RR)] {
        let iozone = Iozone::new("sdr-opensolaris", setting)?.design(design);
        for threads in [1, 2, 4, 8] {
            let read = iozone.run(threads)?.read;
            curves.put(rate, threads as f64, value(read.mb_per_s)?);
            curves.put(cpu, threads as f64, value(read.client_cpu_percent)?);
        }
    }
    Ok(curves)
}
