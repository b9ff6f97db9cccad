//! The lookup of handles in a memory file system.

use millrace_bench::BenchError;
use millrace_client::Proto;
use millrace_plot::Scale;
use millrace_read_read::Design;
use millrace_simlab::{Lookup, Machines, Storage, simulate};
use millrace_workloads::{Postmark, Sources, Untar};

use crate::{
    Claim, Curves, Picture, Setting, Unit,
    calibration::Testbed,
    lab::{kind, machines, value},
    rule::{Band, Measure, Rule},
};

/// Curves. Their x values are the numbers of files of PM-1, PM-2 and PM-3 of the paper, and of untar.
const POSTMARK: &str = "PostMark, linear, RDMA";
const POSTMARK_FAST: &str = "PostMark, hashed, RDMA";
const POSTMARK_IPOIB: &str = "PostMark, hashed, IPoIB";
const UNTAR: &str = "untar, linear, RDMA";
const UNTAR_FAST: &str = "untar, hashed, RDMA";
const UNTAR_IPOIB: &str = "untar, hashed, IPoIB";

pub(super) const CLAIM: Claim = Claim {
    id: "C10",
    claim: "A memory file system whose lookup time does not grow with the number of files makes metadata workloads \
            several times faster; then the transport matters",
    source: "Beneficial 2006 section 3.3, figure 7",
    figures: "untar up to 11 times, PostMark 2 to 3 times faster with the enhanced tmpfs; then RDMA over IPoIB +10 to \
              19 % in PostMark, +25 % in untar",
    profiles: &["sdr-opensolaris"],
    testbeds: &[Testbed::OpenSolaris],
    conditions: "PostMark with 8192, 16384 and 32676 files and 20000, 40000 and 60000 transactions, without \
                 the deletion at its end; untar of a tree with the shape and size of Linux 2.6.11, 17,090 \
                 files; the Read-Read design, as in OpenSolaris at that time; the x axis is the number of \
                 files",
    rules: &[
        Rule {
            what: "untar, time with linear lookup over hashed, RDMA, most",
            measure: Measure::MostOver(UNTAR, UNTAR_FAST),
            paper: "up to 11",
            band: Band::around(11.0),
        },
        Rule {
            what: "PostMark, time with linear lookup over hashed, RDMA, least",
            measure: Measure::LeastOver(POSTMARK, POSTMARK_FAST),
            paper: "2 to 3",
            band: Band::spanning(2.0, 3.0),
        },
        Rule {
            what: "PostMark, time with linear lookup over hashed, RDMA, most",
            measure: Measure::MostOver(POSTMARK, POSTMARK_FAST),
            paper: "2 to 3",
            band: Band::spanning(2.0, 3.0),
        },
        Rule {
            what: "PostMark with hashed lookup, time of IPoIB over RDMA, least",
            measure: Measure::LeastOver(POSTMARK_IPOIB, POSTMARK_FAST),
            paper: "1.10 to 1.19",
            band: Band::spanning(1.10, 1.19),
        },
        Rule {
            what: "PostMark with hashed lookup, time of IPoIB over RDMA, most",
            measure: Measure::MostOver(POSTMARK_IPOIB, POSTMARK_FAST),
            paper: "1.10 to 1.19",
            band: Band::spanning(1.10, 1.19),
        },
        Rule {
            what: "untar with hashed lookup, time of IPoIB over RDMA, most",
            measure: Measure::MostOver(UNTAR_IPOIB, UNTAR_FAST),
            paper: "1.25",
            band: Band::around(1.25),
        },
    ],
    pictures: &[
        Picture {
            name: "postmark",
            title: "PostMark: simulated seconds (Beneficial 2006, figure 7)",
            x: ("files", Unit::Number),
            y: ("seconds", Scale::Log),
            curves: &[POSTMARK, POSTMARK_FAST, POSTMARK_IPOIB],
            right: None,
            paper: &[],
        },
        Picture {
            name: "untar",
            title: "untar of a source tree: simulated seconds (Beneficial 2006, figure 7)",
            x: ("files", Unit::Number),
            y: ("seconds", Scale::Log),
            curves: &[UNTAR, UNTAR_FAST, UNTAR_IPOIB],
            right: None,
            paper: &[],
        },
    ],
    experiment: run,
    model_gaps: "Linear lookup is several times slower, as in the paper, but by other factors: the 70 ns per \
                 node are assumed, no lock is held during the search, and the shape of the paper's tree is \
                 unknown. IPoIB is faster than RDMA, as in C11: the profile's TCP is that of Linux on faster \
                 machines, without OpenSolaris's socket layer, while each small file over Read-Read is \
                 registered at both ends and needs an additional message.",
    calibrated_gaps: "",
};

fn run(setting: Setting) -> Result<Curves, BenchError> {
    let mut curves = Curves::default();
    for (lookup, proto, postmark_curve, untar_curve) in [
        (Lookup::Linear, Proto::Rdma, POSTMARK, UNTAR),
        (Lookup::Hashed, Proto::Rdma, POSTMARK_FAST, UNTAR_FAST),
        (Lookup::Hashed, Proto::Tcp, POSTMARK_IPOIB, UNTAR_IPOIB),
    ] {
        let machines = hosts(lookup, proto, setting)?;
        for (files, transactions) in sizes(setting) {
            let seconds = postmark(files, transactions, &machines)?;
            curves.put(postmark_curve, files.into(), seconds);
        }
        let files = if setting.small { 200 } else { 17_090 };
        curves.put(untar_curve, files.into(), untar(files, &machines)?);
    }
    Ok(curves)
}

fn hosts(lookup: Lookup, proto: Proto, setting: Setting) -> Result<Machines, BenchError> {
    let mut machines = machines("sdr-opensolaris", setting)?;
    (machines.options.rdma_protocol, machines.options.proto) = (Design::ReadRead.protocol(), Some(proto));
    if let Storage::Tmpfs(tmpfs) = &mut machines.storage {
        tmpfs.lookup = lookup;
    }
    if let Some(modification) = setting.modification {
        modification.machines(&mut machines);
    }
    Ok(machines)
}

/// The time of untar over IPoIB, divided by that over RDMA, with hashed lookup.
pub(crate) fn untar_ratio(files: u32, setting: Setting) -> Result<f64, BenchError> {
    let seconds = |proto| untar(files, &hosts(Lookup::Hashed, proto, setting)?);
    Ok(seconds(Proto::Tcp)? / seconds(Proto::Rdma)?)
}

/// Seconds of untar.
fn untar(files: u32, machines: &Machines) -> Result<f64, BenchError> {
    let figures = simulate(&Untar { sources: Sources { files, seed: machines.seed } }, machines)?;
    Ok(f64::from(files) / value(kind(&figures, "untar")?.ops_per_s)?)
}

/// Files and transactions of PM-1, PM-2 and PM-3 (Beneficial 2006, table 1).
fn sizes(setting: Setting) -> Vec<(u32, u32)> {
    let paper = vec![(8192, 20_000), (16_384, 40_000), (32_676, 60_000)];
    if setting.small { paper.into_iter().map(|(f, t)| (f / 128, t / 128)).collect() } else { paper }
}

/// Seconds of PostMark, without its end, which deletes the remaining files.
fn postmark(files: u32, transactions: u32, machines: &Machines) -> Result<f64, BenchError> {
    let (low, high) = Postmark::SIZES;
    let what = Postmark { files, transactions, low, high, seed: machines.seed };
    let figures = simulate(&what, machines)?;
    let seconds =
        |count: u32, test| Ok::<_, BenchError>(f64::from(count) / value(kind(&figures, test)?.ops_per_s)?);
    Ok(seconds(files, "create")? + seconds(transactions, "transaction")?)
}
