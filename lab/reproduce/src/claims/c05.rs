//! FMR helps READ, and the registration cache helps it much more.

use millrace_bench::BenchError;
use millrace_client::Strategy;
use millrace_plot::Scale;

use crate::{
    Claim, Curves, Picture, Setting, Unit,
    calibration::Testbed,
    lab::{Iozone, value},
    rule::{ABOVE, BELOW, Band, CLEARLY, Measure, Rule},
};

const READ_DYNAMIC: &str = "READ, dynamic";
const READ_FMR: &str = "READ, FMR";
const READ_CACHE: &str = "READ, cache";
const WRITE_DYNAMIC: &str = "WRITE, dynamic";
const WRITE_FMR: &str = "WRITE, FMR";
const WRITE_CACHE: &str = "WRITE, cache";
const CPU_DYNAMIC: &str = "CPU, dynamic";
const CPU_CACHE: &str = "CPU, cache";

pub(super) const CLAIM: Claim = Claim {
    id: "C5",
    claim: "FMR at the server helps READ a little, its registration cache much more; WRITE stays bounded by RDMA Reads",
    source: "Designing 2007 section 5.2, figure 7; TR06 section 8, figures 11 and 12",
    figures: "READ of 128 KB: 350 (dynamic), 400 (FMR), 730 MB/s (cache); WRITE up to 515 MB/s with the cache, FMR \
              modest; client CPU rises with the cache",
    profiles: &["sdr-opensolaris"],
    testbeds: &[Testbed::OpenSolaris],
    conditions: "records of 128 KiB, Read-Write; the strategies are those of the server, as in the paper, \
                 and the client uses dynamic",
    rules: &[
        Rule {
            what: "peak of READ, FMR over dynamic",
            measure: Measure::Peaks(READ_FMR, READ_DYNAMIC),
            paper: "400 / 350 = 1.14",
            band: Band::around(400.0 / 350.0),
        },
        Rule {
            what: "peak of READ, cache over dynamic",
            measure: Measure::Peaks(READ_CACHE, READ_DYNAMIC),
            paper: "730 / 350 = 2.09",
            band: Band::around(730.0 / 350.0),
        },
        Rule {
            what: "peak of WRITE, FMR over dynamic",
            measure: Measure::Peaks(WRITE_FMR, WRITE_DYNAMIC),
            paper: "above, modestly",
            band: ABOVE,
        },
        Rule {
            what: "peak of WRITE, cache over dynamic",
            measure: Measure::Peaks(WRITE_CACHE, WRITE_DYNAMIC),
            paper: "clearly better",
            band: CLEARLY,
        },
        Rule {
            what: "peak with the cache, WRITE over READ",
            measure: Measure::Peaks(WRITE_CACHE, READ_CACHE),
            paper: "515 / 730 = 0.71, bounded by outstanding RDMA Reads",
            band: BELOW,
        },
        Rule {
            what: "client CPU of READ at 8 threads, cache over dynamic",
            measure: Measure::Ratio((CPU_CACHE, 8.0), (CPU_DYNAMIC, 8.0)),
            paper: "above, as the rate is",
            band: ABOVE,
        },
    ],
    pictures: &[
        Picture {
            name: "read",
            title: "READ of 128 KiB: MB/s by the server's registration (TR06, figure 11)",
            x: ("threads", Unit::Number),
            y: ("MB/s", Scale::Linear),
            curves: &[READ_DYNAMIC, READ_FMR, READ_CACHE],
            right: Some(("client CPU % (100 = one core)", &[CPU_DYNAMIC, CPU_CACHE])),
            paper: &[
                (READ_DYNAMIC, &[(8.0, 350.0)]),
                (READ_FMR, &[(8.0, 400.0)]),
                (READ_CACHE, &[(8.0, 730.0)]),
            ],
        },
        Picture {
            name: "write",
            title: "WRITE of 128 KiB: MB/s by the server's registration (TR06, figure 12)",
            x: ("threads", Unit::Number),
            y: ("MB/s", Scale::Linear),
            curves: &[WRITE_DYNAMIC, WRITE_FMR, WRITE_CACHE],
            right: None,
            paper: &[(WRITE_CACHE, &[(8.0, 515.0)])],
        },
    ],
    experiment: run,
    model_gaps: "The order at one and two threads is that of the paper. With more threads the link is full, \
                 which it was not on the paper's machines: tmpfs, which took 80 % of their READ, is one copy \
                 here. WRITE is slower with the cache, probably because Millrace's memory file system keeps \
                 the memory that RDMA Reads have filled as the file's pages. New files therefore always use \
                 memory that is registered for the first time, in whole spans of 4 MiB.",
    calibrated_gaps: "",
};

fn run(setting: Setting) -> Result<Curves, BenchError> {
    let mut curves = Curves::default();
    for (server, read, write, cpu) in [
        (Strategy::Dynamic, READ_DYNAMIC, WRITE_DYNAMIC, Some(CPU_DYNAMIC)),
        (Strategy::Fast, READ_FMR, WRITE_FMR, None),
        (Strategy::Cache, READ_CACHE, WRITE_CACHE, Some(CPU_CACHE)),
    ] {
        let iozone = Iozone::new("sdr-opensolaris", setting)?.registration(Strategy::Dynamic, server);
        for threads in [1, 2, 4, 8] {
            let measured = iozone.run(threads)?;
            let x = threads as f64;
            measured.put(&mut curves, read, write, x)?;
            if let Some(cpu) = cpu {
                curves.put(cpu, x, value(measured.read.client_cpu_percent)?);
            }
        }
    }
    Ok(curves)
}
