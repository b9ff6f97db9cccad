//! All-physical registration is best for READ and worse for WRITE.

use millrace_bench::BenchError;
use millrace_client::Strategy;
use millrace_plot::Scale;

use crate::{
    Claim, Curves, Picture, Setting, Unit,
    calibration::Testbed,
    lab::Iozone,
    rule::{ABOVE, BELOW, Band, Measure, Rule},
};

const READ_DYNAMIC: &str = "READ, dynamic";
const READ_FMR: &str = "READ, FMR";
const READ_ALL: &str = "READ, all-physical";
const WRITE_DYNAMIC: &str = "WRITE, dynamic";
const WRITE_FMR: &str = "WRITE, FMR";
const WRITE_ALL: &str = "WRITE, all-physical";

pub(super) const CLAIM: Claim = Claim {
    id: "C7",
    claim: "All-physical registration is best for READ, and worse than FMR for WRITE, which then takes more RDMA Reads",
    source: "TR06 section 8, figures 14 and 15; Designing 2007 section 5.2, figure 9",
    figures: "Linux: READ about 900 MB/s; WRITE below FMR; with regular registration READ peaks at 440 and WRITE at \
              240 MB/s (TR06 figures 7 and 8)",
    profiles: &["ddr-linux-allphys"],
    testbeds: &[Testbed::LinuxOpterons],
    conditions: "records of 128 KiB, Read-Write, the same strategy at both ends; only all-physical exposes \
                 memory page by page, the other strategies as one segment",
    rules: &[
        Rule {
            what: "READ with any number of threads, all-physical over FMR, least",
            measure: Measure::LeastOver(READ_ALL, READ_FMR),
            paper: "best",
            band: ABOVE,
        },
        Rule {
            what: "READ with any number of threads, all-physical over dynamic, least",
            measure: Measure::LeastOver(READ_ALL, READ_DYNAMIC),
            paper: "best",
            band: ABOVE,
        },
        Rule {
            what: "peak of WRITE, all-physical over FMR",
            measure: Measure::Peaks(WRITE_ALL, WRITE_FMR),
            paper: "below",
            band: BELOW,
        },
        Rule {
            what: "peak of READ, all-physical over dynamic",
            measure: Measure::Peaks(READ_ALL, READ_DYNAMIC),
            paper: "900 / 440 = 2.05",
            band: Band::around(900.0 / 440.0),
        },
    ],
    pictures: &[
        Picture {
            name: "read",
            title: "READ of 128 KiB: MB/s by registration on Linux (TR06, figure 14)",
            x: ("threads", Unit::Number),
            y: ("MB/s", Scale::Linear),
            curves: &[READ_DYNAMIC, READ_FMR, READ_ALL],
            right: None,
            paper: &[(READ_DYNAMIC, &[(8.0, 440.0)]), (READ_ALL, &[(8.0, 900.0)])],
        },
        Picture {
            name: "write",
            title: "WRITE of 128 KiB: MB/s by registration on Linux (TR06, figure 15)",
            x: ("threads", Unit::Number),
            y: ("MB/s", Scale::Linear),
            curves: &[WRITE_DYNAMIC, WRITE_FMR, WRITE_ALL],
            right: None,
            paper: &[(WRITE_DYNAMIC, &[(8.0, 240.0)])],
        },
    ],
    experiment: run,
    model_gaps: "At one thread the order is that of the paper. At four and eight threads all strategies fill \
                 the adapter's bus, and all-physical is slower by a few tenths of a percent, since pages \
                 need more packets. The model does not contain what limited the paper's machines to 440 and \
                 900 MB/s: its files in memory take no time.",
    calibrated_gaps: "",
};

fn run(setting: Setting) -> Result<Curves, BenchError> {
    let mut curves = Curves::default();
    for (strategy, read, write) in [
        (Strategy::Dynamic, READ_DYNAMIC, WRITE_DYNAMIC),
        (Strategy::Fast, READ_FMR, WRITE_FMR),
        (Strategy::AllPhysical, READ_ALL, WRITE_ALL),
    ] {
        let iozone = iozone(strategy, setting)?;
        for threads in [1, 2, 4, 8] {
            iozone.run(threads)?.put(&mut curves, read, write, threads as f64)?;
        }
    }
    Ok(curves)
}

/// IOzone with the same strategy at both ends.
pub(crate) fn iozone(strategy: Strategy, setting: Setting) -> Result<Iozone, BenchError> {
    let mut iozone = Iozone::new("ddr-linux-allphys", setting)?.registration(strategy, strategy);
    if strategy != Strategy::AllPhysical {
        iozone.machines.profile.adapter.segment_bytes = 0;
    }
    if let Some(values) = setting.calibration {
        values.linux_opterons(&mut iozone.machines)?;
    }
    Ok(iozone)
}
