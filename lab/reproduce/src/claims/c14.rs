//! Larger blocks.

use millrace_bench::BenchError;
use millrace_plot::Scale;

use crate::{
    Claim, Curves, Picture, Setting, Unit,
    calibration::Testbed,
    lab::{Iozone, profile},
    rule::{Band, HARDLY, Measure, Rule},
};

const READ: &str = "READ, IPoIB-CM";
const WRITE: &str = "WRITE, IPoIB-CM";
const SMALLEST: f64 = 32_768.0;
const LARGEST: f64 = 1_048_576.0;

pub(super) const CLAIM: Claim = Claim {
    id: "C14",
    claim: "Larger NFS blocks help READ much, and WRITE hardly",
    source: "WAN 2008 section 2.3, figure 4a",
    figures: "IPoIB-CM at 0.2 mile, blocks of 32 KB to 1 MB: READ 560 to 818 MB/s, WRITE only marginally better",
    profiles: &["wan-infinihost", "ipoib-cm"],
    testbeds: &[Testbed::WanConnected],
    conditions: "NFS over TCP on IPoIB-CM at 0.2 mile, blocks set by rsize and wsize; 16 of them are in \
                 flight, as in Linux over TCP; hosts and link are those of wan-infinihost, TCP is that of \
                 ipoib-cm",
    rules: &[
        Rule {
            what: "READ, blocks of 1 MiB over blocks of 32 KiB",
            measure: Measure::Ratio((READ, LARGEST), (READ, SMALLEST)),
            paper: "818 / 560 = 1.46",
            band: Band::around(818.0 / 560.0),
        },
        Rule {
            what: "WRITE, blocks of 1 MiB over blocks of 32 KiB",
            measure: Measure::Ratio((WRITE, LARGEST), (WRITE, SMALLEST)),
            paper: "marginally better",
            band: HARDLY,
        },
    ],
    pictures: &[Picture {
        name: "blocks",
        title: "NFS over IPoIB-CM by block size at 0.2 mile (WAN 2008, figure 4a)",
        x: ("bytes of a block", Unit::Bytes),
        y: ("MB/s", Scale::Linear),
        curves: &[READ, WRITE],
        right: None,
        paper: &[(READ, &[(SMALLEST, 560.0), (LARGEST, 818.0)])],
    }],
    experiment: run,
    model_gaps: "Larger blocks help WRITE as much as READ, since the simulation contains nothing that limits \
                 only WRITE over TCP: neither the server's page cache nor the order in which Linux's client \
                 flushed pages.",
    calibrated_gaps: "",
};

fn run(setting: Setting) -> Result<Curves, BenchError> {
    let mut curves = Curves::default();
    for block in [32 << 10, 64 << 10, 128 << 10, 256 << 10, 512 << 10, 1 << 20] {
        nfs(block, setting)?.run(1)?.put(&mut curves, READ, WRITE, block as f64)?;
    }
    Ok(curves)
}

/// NFS over IPoIB-CM with blocks of this size.
pub(crate) fn nfs(block: usize, setting: Setting) -> Result<Iozone, BenchError> {
    let mut iozone = Iozone::new("wan-infinihost", setting)?.over_tcp();
    let mut tcp = profile("ipoib-cm")?.tcp;
    if let Some(values) = setting.calibration {
        values.tcp(Testbed::WanConnected, &mut tcp);
    }
    iozone.machines.profile.tcp = tcp;
    let size = if setting.small { 4 << 20 } else { 32 << 20 };
    Ok(Iozone { record: block, records: size / block, outstanding: SLOTS, ..iozone })
}

/// Calls in flight over TCP in Linux 2.6.25 by default.
const SLOTS: usize = 16;
