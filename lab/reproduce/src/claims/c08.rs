//! An application: a database.

use millrace_bench::BenchError;
use millrace_client::Strategy;
use millrace_plot::Scale;
use millrace_simlab::simulate;
use millrace_workloads::Oltp;

use crate::{
    Claim, Curves, Picture, Setting, Unit,
    calibration::Testbed,
    lab::{Iozone, kind, value},
    rule::{ABOVE, Band, HARDLY, Measure, Rule, SAME},
};

const DYNAMIC: &str = "dynamic";
const FMR: &str = "FMR";
const CACHE: &str = "cache";
const CPU_DYNAMIC: &str = "CPU us/op, dynamic";
const CPU_CACHE: &str = "CPU us/op, cache";

pub(super) const CLAIM: Claim = Claim {
    id: "C8",
    claim: "The server's registration cache speeds a database workload up by up to 50 %; FMR is about equal to dynamic",
    source: "Designing 2007 section 5.2, figure 8",
    figures: "FileBench OLTP, mean I/O 128 KB: up to +50 % operations per second with the cache; FMR comparable to \
              dynamic; client CPU per operation slightly higher",
    profiles: &["sdr-opensolaris"],
    testbeds: &[Testbed::OpenSolaris],
    conditions: "the x axis is the number of concurrent readers of the workload; files are smaller than the \
                 original's",
    rules: &[
        Rule {
            what: "operations per second, cache over dynamic, most",
            measure: Measure::MostOver(CACHE, DYNAMIC),
            paper: "up to 1.5",
            band: Band::around(1.5),
        },
        Rule {
            what: "operations per second, cache over dynamic, least",
            measure: Measure::LeastOver(CACHE, DYNAMIC),
            paper: "better",
            band: ABOVE,
        },
        Rule {
            what: "peak of operations per second, FMR over dynamic",
            measure: Measure::Peaks(FMR, DYNAMIC),
            paper: "comparable",
            band: SAME,
        },
        Rule {
            what: "client CPU per operation at its largest, cache over dynamic",
            measure: Measure::MostOver(CPU_CACHE, CPU_DYNAMIC),
            paper: "slightly higher",
            band: HARDLY,
        },
    ],
    pictures: &[Picture {
        name: "oltp",
        title: "OLTP: operations per second by the server's registration",
        x: ("readers", Unit::Number),
        y: ("operations/s", Scale::Linear),
        curves: &[DYNAMIC, FMR, CACHE],
        right: Some(("client CPU us/operation", &[CPU_DYNAMIC, CPU_CACHE])),
        paper: &[],
    }],
    experiment: run,
    model_gaps: "The link is full with each strategy (7000 operations of 128 KiB per second), for the reason \
                 given in C5: the simulated tmpfs, which took 80 % of the paper's time, consists of copies \
                 only.",
    calibrated_gaps: "",
};

fn run(setting: Setting) -> Result<Curves, BenchError> {
    let mut curves = Curves::default();
    for (server, rate, cpu) in [
        (Strategy::Dynamic, DYNAMIC, Some(CPU_DYNAMIC)),
        (Strategy::Fast, FMR, None),
        (Strategy::Cache, CACHE, Some(CPU_CACHE)),
    ] {
        let machines =
            Iozone::new("sdr-opensolaris", setting)?.registration(Strategy::Dynamic, server).machines;
        for shadows in [10, 50, 100, 200] {
            let figures = simulate(&oltp(shadows, setting), &machines)?;
            let all = kind(&figures, "all operations")?;
            let operations = value(all.ops_per_s)?;
            curves.put(rate, shadows.into(), operations);
            if let Some(cpu) = cpu {
                let of_a_second = value(all.client_cpu_percent)? / 100.0;
                curves.put(cpu, shadows.into(), of_a_second * 1e6 / operations);
            }
        }
    }
    Ok(curves)
}

/// As many writers as the original has, and about as many reads as take a second.
fn oltp(shadows: u32, setting: Setting) -> Oltp {
    let (reads, file_size) = if setting.small { (300, 1 << 20) } else { (3500, 4 << 20) };
    Oltp { shadows, writers: 10, io: 128 << 10, files: 10, file_size, reads, seed: setting.seed }
}
