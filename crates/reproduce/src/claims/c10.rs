//! How a memory file system looks up handles.

use bench::plot::Scale;

use crate::{
    Claim, Experiment, Picture, Unit,
    rule::{Band, Measure, Rule},
};

/// Places on the x axis: PM-1, PM-2, PM-3 of the paper, and untar.
const POSTMARK: &str = "PostMark, linear, RDMA";
const POSTMARK_FAST: &str = "PostMark, hashed, RDMA";
const POSTMARK_IPOIB: &str = "PostMark, hashed, IPoIB";
const UNTAR: &str = "untar, linear, RDMA";
const UNTAR_FAST: &str = "untar, hashed, RDMA";
const UNTAR_IPOIB: &str = "untar, hashed, IPoIB";

pub(super) const CLAIM: Claim = Claim {
    id: "C10",
    claim: "A memory file system whose look-up of handles does not grow with the files makes metadata workloads several \
            times faster; then the transport shows",
    source: "Beneficial 2006 section 3.3, figure 7",
    figures: "untar up to 11 times, PostMark 2 to 3 times faster with the enhanced tmpfs; then RDMA over IPoIB +10 to \
              19 % in PostMark, +25 % in untar",
    profiles: &["sdr-opensolaris", "ipoib-ud"],
    conditions: "PostMark with 8192, 16384 and 32676 files and 20000, 40000 and 60000 transactions, or a stated part of \
                 them; the x axis is the number of files",
    rules: &[
        Rule {
            what: "untar, time with linear look-up over hashed, RDMA, most",
            measure: Measure::MostOver(UNTAR, UNTAR_FAST),
            paper: "up to 11",
            band: Band::around(11.0),
        },
        Rule {
            what: "PostMark, time with linear look-up over hashed, RDMA, least",
            measure: Measure::LeastOver(POSTMARK, POSTMARK_FAST),
            paper: "2 to 3",
            band: Band::spanning(2.0, 3.0),
        },
        Rule {
            what: "PostMark, time with linear look-up over hashed, RDMA, most",
            measure: Measure::MostOver(POSTMARK, POSTMARK_FAST),
            paper: "2 to 3",
            band: Band::spanning(2.0, 3.0),
        },
        Rule {
            what: "PostMark with hashed look-up, time of IPoIB over RDMA, least",
            measure: Measure::LeastOver(POSTMARK_IPOIB, POSTMARK_FAST),
            paper: "1.10 to 1.19",
            band: Band::spanning(1.10, 1.19),
        },
        Rule {
            what: "PostMark with hashed look-up, time of IPoIB over RDMA, most",
            measure: Measure::MostOver(POSTMARK_IPOIB, POSTMARK_FAST),
            paper: "1.10 to 1.19",
            band: Band::spanning(1.10, 1.19),
        },
        Rule {
            what: "untar with hashed look-up, time of IPoIB over RDMA, most",
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
    experiment: Experiment::Open("the experiment is not written yet"),
    lacks: "",
};
