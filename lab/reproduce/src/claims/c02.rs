//! Read-Write is faster than Read-Read for READ.

use millrace_bench::BenchError;
use millrace_plot::Scale;
use millrace_read_read::Design;

use crate::{
    Claim, Curves, Picture, Setting, Unit,
    calibration::Testbed,
    lab::Iozone,
    rule::{ABOVE, Band, Measure, Rule, SAME},
};

const READ_RW: &str = "READ, Read-Write";
const READ_RR: &str = "READ, Read-Read";
const WRITE_RW: &str = "WRITE, Read-Write";
const WRITE_RR: &str = "WRITE, Read-Read";

pub(super) const CLAIM: Claim = Claim {
    id: "C2",
    claim: "Read-Write beats Read-Read for READ, most with one thread; WRITE is the same in both",
    source: "Designing 2007 section 5.1, figures 5 and 6; TR06 section 6",
    figures: "READ of 128 KB: +47 % at 1 thread, about +5 % at 8; saturation at 400 and 375 MB/s; WRITE the same",
    profiles: &["sdr-opensolaris"],
    testbeds: &[Testbed::OpenSolaris],
    conditions: "records of 128 KiB, one in flight for each thread, dynamic registration at both ends; the \
                 files are smaller than the paper's 128 MB, which has no effect, since no cache is involved",
    rules: &[
        Rule {
            what: "READ at 1 thread, Read-Write over Read-Read",
            measure: Measure::Ratio((READ_RW, 1.0), (READ_RR, 1.0)),
            paper: "1.47",
            band: Band::around(1.47),
        },
        Rule {
            what: "READ at 8 threads, Read-Write over Read-Read",
            measure: Measure::Ratio((READ_RW, 8.0), (READ_RR, 8.0)),
            paper: "about 1.05",
            band: Band::around(1.05),
        },
        Rule {
            what: "peak of READ, Read-Write over Read-Read",
            measure: Measure::Peaks(READ_RW, READ_RR),
            paper: "400 / 375 = 1.07",
            band: Band::around(400.0 / 375.0),
        },
        Rule {
            what: "READ with any number of threads, Read-Write over Read-Read, least",
            measure: Measure::LeastOver(READ_RW, READ_RR),
            paper: "better for all",
            band: ABOVE,
        },
        Rule {
            what: "WRITE, Read-Write over Read-Read, most",
            measure: Measure::MostOver(WRITE_RW, WRITE_RR),
            paper: "the same",
            band: SAME,
        },
        Rule {
            what: "WRITE, Read-Write over Read-Read, least",
            measure: Measure::LeastOver(WRITE_RW, WRITE_RR),
            paper: "the same",
            band: SAME,
        },
    ],
    pictures: &[
        Picture {
            name: "read",
            title: "READ of 128 KiB: MB/s by design (as figure 5 of Designing 2007)",
            x: ("threads", Unit::Number),
            y: ("MB/s", Scale::Linear),
            curves: &[READ_RR, READ_RW],
            right: None,
            paper: &[(READ_RR, &[(8.0, 375.0)]), (READ_RW, &[(8.0, 400.0)])],
        },
        Picture {
            name: "write",
            title: "WRITE of 128 KiB: MB/s by design (as figure 6 of Designing 2007)",
            x: ("threads", Unit::Number),
            y: ("MB/s", Scale::Linear),
            curves: &[WRITE_RR, WRITE_RW],
            right: None,
            paper: &[],
        },
    ],
    experiment: run,
    model_gaps: "The order and the trend are those of the paper. At eight threads the gain is slightly \
                 smaller, because both designs fill the adapter. The paper's machines did not, since their \
                 server spent about 80 % of a READ in tmpfs (TR06 section 7); the simulated tmpfs only \
                 copies each byte once.",
    calibrated_gaps: "",
};

fn run(setting: Setting) -> Result<Curves, BenchError> {
    let mut curves = Curves::default();
    for (design, read, write) in
        [(Design::ReadWrite, READ_RW, WRITE_RW), (Design::ReadRead, READ_RR, WRITE_RR)]
    {
        let iozone = Iozone::new("sdr-opensolaris", setting)?.design(design);
        for threads in 1..=8 {
            iozone.run(threads)?.put(&mut curves, read, write, threads as f64)?;
        }
    }
    Ok(curves)
}
