//! The number of outstanding RDMA Reads limits WRITE.

use millrace_bench::BenchError;
use millrace_client::Strategy;
use millrace_plot::Scale;
use millrace_read_read::Design;

use crate::{
    Claim, Curves, Picture, Setting, Unit,
    calibration::Testbed,
    lab::{Iozone, value},
    rule::{ABOVE, Band, Measure, Rule},
};

const FEW: &str = "4 RDMA Reads";
const MORE: &str = "8 RDMA Reads";
const INFINIHOST: &str = "InfiniHost III (4 RDMA Reads)";
const CONNECTX: &str = "ConnectX (16 RDMA Reads)";

pub(super) const CLAIM: Claim = Claim {
    id: "C12",
    claim: "The number of RDMA Reads in flight bounds WRITE",
    source: "Beneficial 2006 section 5, figure 11; WAN 2008 section 2.3, figures 3a and 4b",
    figures: "PCI-Express adapters, which have more outstanding RDMA Reads: +24 % WRITE of 16 KB at 16 threads; ConnectX \
              (16 reads) 650 MB/s of WRITE, InfiniHost III (4) about the 220 of IPoIB",
    profiles: &["sdr-opensolaris", "wan-infinihost", "wan-connectx"],
    testbeds: &[Testbed::OpenSolaris],
    conditions: "all threads share one mount with one connection, which limits the RDMA Reads. Beneficial \
                 2006 does not state the limit of its adapters: 4 and 8 are assumed, and everything else is \
                 the same. WAN: 0.2 mile, blocks of 32 KiB in pages, eight of them in flight for each \
                 thread, which requests 16 MB at a time",
    rules: &[
        Rule {
            what: "WRITE of 16 KiB at 16 threads, 8 RDMA Reads over 4",
            measure: Measure::Ratio((MORE, 16.0), (FEW, 16.0)),
            paper: "1.24",
            band: Band::around(1.24),
        },
        Rule {
            what: "peak of WRITE of 32 KiB, ConnectX over InfiniHost III",
            measure: Measure::Peaks(CONNECTX, INFINIHOST),
            paper: "650 / 220 = 2.95",
            band: Band::around(650.0 / 220.0),
        },
        Rule {
            what: "WRITE of 32 KiB with any number of threads, ConnectX over InfiniHost III, least",
            measure: Measure::LeastOver(CONNECTX, INFINIHOST),
            paper: "better",
            band: ABOVE,
        },
    ],
    pictures: &[
        Picture {
            name: "write",
            title: "WRITE of 16 KiB by threads of one mount (Beneficial 2006, figure 11)",
            x: ("threads", Unit::Number),
            y: ("MB/s", Scale::Linear),
            curves: &[FEW, MORE],
            right: None,
            paper: &[],
        },
        Picture {
            name: "wan",
            title: "WRITE of 32 KiB at 0.2 mile by adapter (WAN 2008, figure 4b)",
            x: ("threads", Unit::Number),
            y: ("MB/s", Scale::Linear),
            curves: &[INFINIHOST, CONNECTX],
            right: None,
            paper: &[(CONNECTX, &[(8.0, 650.0)])],
        },
    ],
    experiment: run,
    model_gaps: "The second half of the claim holds. For the first: a WRITE of 16 KiB takes 60 us of the \
                 only connection, whose software processes one operation after another. Most of that is the \
                 profile's cost of registration and deregistration, of which 40 us for the adapter's table \
                 are assumed, so that four RDMA Reads in flight always suffice. The paper's adapters also \
                 differ in their bus (PCI-X and PCI-Express), which is the same here.",
    calibrated_gaps: "",
};

fn run(setting: Setting) -> Result<Curves, BenchError> {
    let mut curves = Curves::default();
    for (reads, curve) in [(4, FEW), (8, MORE)] {
        let mut iozone = Iozone::new("sdr-opensolaris", setting)?.design(Design::ReadRead);
        iozone.machines.profile.adapter.outstanding_reads = reads;
        let iozone = Iozone { record: 16 << 10, ..iozone };
        for threads in [1, 2, 4, 8, 16] {
            curves.put(curve, threads as f64, value(iozone.run(threads)?.write.mb_per_s)?);
        }
    }
    for (profile, curve) in [("wan-infinihost", INFINIHOST), ("wan-connectx", CONNECTX)] {
        let iozone =
            Iozone::new(profile, setting)?.registration(Strategy::AllPhysical, Strategy::AllPhysical);
        let iozone = Iozone { record: 32 << 10, outstanding: 8, ..iozone };
        for threads in [1, 2, 4, 8] {
            curves.put(curve, threads as f64, value(iozone.run(threads)?.write.mb_per_s)?);
        }
    }
    Ok(curves)
}
