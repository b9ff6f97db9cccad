//! The registration cache of the client.

use millrace_bench::BenchError;
use millrace_client::Strategy;
use millrace_plot::Scale;

use crate::{
    Claim, Curves, Picture, Setting, Unit,
    calibration::Testbed,
    lab::{Iozone, value},
    rule::{ABOVE, BELOW, Band, Measure, Rule, SAME},
};

const SMALL_DIRECT: &str = "16 KiB, zero-copy";
const SMALL_CACHE: &str = "16 KiB, cache";
const LARGE_DIRECT: &str = "1 MiB, zero-copy";
const LARGE_CACHE: &str = "1 MiB, cache";
const CPU_DIRECT: &str = "CPU, 1 MiB, zero-copy";
const CPU_CACHE: &str = "CPU, 1 MiB, cache";

pub(super) const CLAIM: Claim = Claim {
    id: "C6",
    claim: "A registration cache of the client is better for small records, and equal for large ones with enough \
            threads, at the cost of more CPU time",
    source: "TR06 section 8, figure 13",
    figures: "peak of READ up to +100 % with small records; with large ones less at few threads, the same at many; \
              more client CPU",
    profiles: &["sdr-opensolaris"],
    testbeds: &[Testbed::OpenSolaris],
    conditions: "READ, Read-Write, the server with its cache; zero-copy is dynamic registration at the \
                 client. The text does not give the record sizes of the figure: 16 KiB and 1 MiB are the \
                 smallest and the largest size of the paper",
    rules: &[
        Rule {
            what: "peak with records of 16 KiB, cache over zero-copy",
            measure: Measure::Peaks(SMALL_CACHE, SMALL_DIRECT),
            paper: "up to 2",
            band: Band::around(2.0),
        },
        Rule {
            what: "records of 1 MiB at 1 thread, cache over zero-copy",
            measure: Measure::Ratio((LARGE_CACHE, 1.0), (LARGE_DIRECT, 1.0)),
            paper: "below",
            band: BELOW,
        },
        Rule {
            what: "records of 1 MiB at 8 threads, cache over zero-copy",
            measure: Measure::Ratio((LARGE_CACHE, 8.0), (LARGE_DIRECT, 8.0)),
            paper: "the same",
            band: SAME,
        },
        Rule {
            what: "client CPU with records of 1 MiB at 8 threads, cache over zero-copy",
            measure: Measure::Ratio((CPU_CACHE, 8.0), (CPU_DIRECT, 8.0)),
            paper: "above",
            band: ABOVE,
        },
    ],
    pictures: &[
        Picture {
            name: "read",
            title: "READ: MB/s with and without the client's cache (TR06, figure 13)",
            x: ("threads", Unit::Number),
            y: ("MB/s", Scale::Linear),
            curves: &[SMALL_DIRECT, SMALL_CACHE, LARGE_DIRECT, LARGE_CACHE],
            right: None,
            paper: &[],
        },
        Picture {
            name: "cpu",
            title: "READ of 1 MiB: client CPU with and without the client's cache",
            x: ("threads", Unit::Number),
            y: ("client CPU % (100 = one core)", Scale::Linear),
            curves: &[CPU_DIRECT, CPU_CACHE],
            right: None,
            paper: &[],
        },
    ],
    experiment: run,
    model_gaps: "",
    calibrated_gaps: "",
};

fn run(setting: Setting) -> Result<Curves, BenchError> {
    let mut curves = Curves::default();
    for (client, record, rate, cpu) in [
        (Strategy::Dynamic, 16 << 10, SMALL_DIRECT, None),
        (Strategy::Cache, 16 << 10, SMALL_CACHE, None),
        (Strategy::Dynamic, 1 << 20, LARGE_DIRECT, Some(CPU_DIRECT)),
        (Strategy::Cache, 1 << 20, LARGE_CACHE, Some(CPU_CACHE)),
    ] {
        let iozone = Iozone::new("sdr-opensolaris", setting)?.registration(client, Strategy::Cache);
        let iozone = Iozone { record, records: records(record, setting), ..iozone };
        for threads in [1, 2, 4, 8] {
            let read = iozone.run(threads)?.read;
            curves.put(rate, threads as f64, value(read.mb_per_s)?);
            if let Some(cpu) = cpu {
                curves.put(cpu, threads as f64, value(read.client_cpu_percent)?);
            }
        }
    }
    Ok(curves)
}

/// Number of records of a file; files with large records have fewer.
fn records(record: usize, setting: Setting) -> usize {
    let most = if setting.small { 32 } else { 256 };
    ((8 << 20) / record).clamp(4, most)
}
