//! RDMA beats TCP on the same 1 Gb/s link.

use bench::plot::Scale;

use crate::{
    Claim, Experiment, Picture, Unit,
    rule::{ABOVE, Band, Measure, Rule, SAME},
};

const RDMA: &str = "NFS/RDMA";
const TCP: &str = "NFS/TCP";

pub(super) const CLAIM: Claim = Claim {
    id: "C1",
    claim: "RDMA beats TCP on the same 1 Gb/s link",
    source: "Callaghan 2003, throughput",
    figures: "READs of 256 KB: NFS/TCP peaks at 60 MB/s with 4 read-aheads, NFS/RDMA at 102 MB/s with 8",
    profiles: &["gige-2003"],
    conditions: "one mount, READs of 256 KiB; the Read-Read design, as the prototype had; read-ahead is the number of \
                 READs in flight",
    rules: &[
        Rule {
            what: "peak of READ over read-ahead, RDMA over TCP",
            measure: Measure::Peaks(RDMA, TCP),
            paper: "102 / 60 = 1.7",
            band: Band::around(1.7),
        },
        Rule {
            what: "RDMA over TCP with 8 read-aheads",
            measure: Measure::Ratio((RDMA, 8.0), (TCP, 8.0)),
            paper: "above",
            band: ABOVE,
        },
        Rule {
            what: "RDMA with 8 read-aheads, of its peak",
            measure: Measure::OfPeak(RDMA, 8.0),
            paper: "the peak is there",
            band: SAME,
        },
    ],
    pictures: &[Picture {
        name: "read",
        title: "READ of 256 KiB over 1 Gb/s: MB/s by read-ahead",
        x: ("READs in flight", Unit::Number),
        y: ("MB/s", Scale::Linear),
        curves: &[TCP, RDMA],
        right: None,
        paper: &[(TCP, &[(4.0, 60.0)]), (RDMA, &[(8.0, 102.0)])],
    }],
    experiment: Experiment::Open("the experiment is not written yet"),
    lacks: "",
};
