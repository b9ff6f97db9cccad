//! RDMA is faster than TCP on the same 1 Gb/s link.

use millrace_bench::BenchError;
use millrace_plot::Scale;
use millrace_read_read::Design;

use crate::{
    Claim, Curves, Picture, Setting, Unit,
    calibration::Testbed,
    lab::{Iozone, value},
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
    testbeds: &[Testbed::Solaris],
    conditions: "one mount, READs of 256 KiB; the Read-Read design, as in the prototype; read-ahead is the \
                 number of READs in flight",
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
            paper: "at the peak",
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
    experiment: run,
    model_gaps: "Both transports fill the link. The model's TCP follows the rule of 1 Hz of CPU for 1 bit/s, \
                 so that 900 MHz suffice for 1 Gb/s, but Solaris of 2003 achieved half of that. The \
                 available texts do not give the additional cost of NFS over TCP in that kernel (STREAMS, \
                 copies between its layers), so the profile does not contain it.",
    calibrated_gaps: "",
};

fn run(setting: Setting) -> Result<Curves, BenchError> {
    let mut curves = Curves::default();
    let rdma = Iozone::new("gige-2003", setting)?.design(Design::ReadRead);
    for (iozone, curve) in [(rdma.clone(), RDMA), (rdma.over_tcp(), TCP)] {
        for outstanding in [1, 2, 4, 8, 16] {
            let iozone = Iozone { record: 256 << 10, outstanding, ..iozone.clone() };
            curves.put(curve, outstanding as f64, value(iozone.run(1)?.read.mb_per_s)?);
        }
    }
    Ok(curves)
}
