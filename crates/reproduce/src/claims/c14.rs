//! Larger blocks.

use bench::plot::Scale;

use crate::{
    Claim, Experiment, Picture, Unit,
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
    profiles: &["ipoib-cm"],
    conditions: "NFS over TCP on IPoIB-CM at 0.2 mile, blocks set by rsize and wsize; a request of 16 MB is made of as \
                 many blocks as it takes",
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
    experiment: Experiment::Open("the experiment is not written yet"),
    lacks: "",
};
