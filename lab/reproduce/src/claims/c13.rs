//! Distance slows small chunks.

use millrace_bench::BenchError;
use millrace_client::Strategy;
use millrace_plot::Scale;
use millrace_simlab::{Operation, Raw};

use crate::{
    Claim, Curves, Picture, Setting, Unit,
    calibration::Testbed,
    lab::{BLOCK, Iozone, SLOTS, profile_at, value},
    rule::{ABOVE, BELOW, Band, CLEARLY, HARDLY, Measure, Rule, SAME},
};

const WRITE_NEAR: &str = "RDMA Write, 0.2 mile";
const READ_NEAR: &str = "RDMA Read, 0.2 mile";
const WRITE_FAR: &str = "RDMA Write, 1400 miles";
const READ_FAR: &str = "RDMA Read, 1400 miles";
const NFS_READ: &str = "NFS READ, RDMA";
const NFS_WRITE: &str = "NFS WRITE, RDMA";
const NFS_READ_UD: &str = "NFS READ, IPoIB-UD";
const NFS_WRITE_UD: &str = "NFS WRITE, IPoIB-UD";

/// The profile of the machines.
const PROFILE: &str = "wan-infinihost";
/// Bytes of a page, which is a chunk in the papers' NFS.
const PAGE: f64 = 4096.0;
/// Bytes of the largest message.
const LARGEST: f64 = 16_777_216.0;

pub(super) const CLAIM: Claim = Claim {
    id: "C13",
    claim: "Distance slows small chunks: over 1400 miles NFS over RDMA in pages is slower than over IPoIB, and nearby faster",
    source: "WAN 2008 sections 2.2 and 2.3, figures 2 and 3",
    figures: "raw: both reach 934 MB/s; 4 KB at 0.2 mile: Write 925, Read 223; at 1400 miles: 14.7, 0.59 MB/s. NFS at \
              0.2 mile: IPoIB-UD 220 both ways, RDMA better for READ and not for WRITE; at 1400 miles IPoIB-UD is best",
    profiles: &[PROFILE],
    testbeds: &[Testbed::WanDatagram],
    conditions: "the profile was set from the raw figures at 4 KiB (docs/lab/simulation.md), so that those rules \
                 only test the model's arithmetic; NFS transfers blocks of 32 KiB in pages, on one mount; \
                 the x axis of NFS is miles",
    rules: &[
        Rule {
            what: "raw 4 KiB at 0.2 mile, RDMA Write over RDMA Read",
            measure: Measure::Ratio((WRITE_NEAR, PAGE), (READ_NEAR, PAGE)),
            paper: "925 / 223 = 4.15",
            band: Band::around(925.0 / 223.0),
        },
        Rule {
            what: "raw 4 KiB at 1400 miles, RDMA Write over RDMA Read",
            measure: Measure::Ratio((WRITE_FAR, PAGE), (READ_FAR, PAGE)),
            paper: "14.7 / 0.59 = 24.9",
            band: Band::around(14.7 / 0.59),
        },
        Rule {
            what: "raw RDMA Write of 4 KiB, 0.2 mile over 1400",
            measure: Measure::Ratio((WRITE_NEAR, PAGE), (WRITE_FAR, PAGE)),
            paper: "925 / 14.7 = 62.9",
            band: Band::around(925.0 / 14.7),
        },
        Rule {
            what: "raw at 0.2 mile, peak of RDMA Write over peak of RDMA Read",
            measure: Measure::Peaks(WRITE_NEAR, READ_NEAR),
            paper: "both 934",
            band: SAME,
        },
        Rule {
            what: "raw at 1400 miles, peak of RDMA Write over peak of RDMA Read",
            measure: Measure::Peaks(WRITE_FAR, READ_FAR),
            paper: "both reach the peak",
            band: SAME,
        },
        Rule {
            what: "raw messages of 16 MiB, 1400 miles over 0.2, RDMA Write",
            measure: Measure::Ratio((WRITE_FAR, LARGEST), (WRITE_NEAR, LARGEST)),
            paper: "both 934",
            band: SAME,
        },
        Rule {
            what: "NFS READ at 0.2 mile, RDMA over IPoIB-UD",
            measure: Measure::Ratio((NFS_READ, 0.2), (NFS_READ_UD, 0.2)),
            paper: "significantly better",
            band: CLEARLY,
        },
        Rule {
            what: "NFS WRITE at 0.2 mile, RDMA over IPoIB-UD",
            measure: Measure::Ratio((NFS_WRITE, 0.2), (NFS_WRITE_UD, 0.2)),
            paper: "not better",
            band: HARDLY,
        },
        Rule {
            what: "NFS READ at 1400 miles, RDMA over IPoIB-UD",
            measure: Measure::Ratio((NFS_READ, 1400.0), (NFS_READ_UD, 1400.0)),
            paper: "below",
            band: BELOW,
        },
        Rule {
            what: "NFS WRITE at 1400 miles, RDMA over IPoIB-UD",
            measure: Measure::Ratio((NFS_WRITE, 1400.0), (NFS_WRITE_UD, 1400.0)),
            paper: "below",
            band: BELOW,
        },
        Rule {
            what: "NFS over RDMA at 1400 miles, READ over WRITE",
            measure: Measure::Ratio((NFS_READ, 1400.0), (NFS_WRITE, 1400.0)),
            paper: "above, as RDMA Write over RDMA Read",
            band: ABOVE,
        },
    ],
    pictures: &[
        Picture {
            name: "raw",
            title: "Raw RDMA by message size and distance (WAN 2008, figure 2)",
            x: ("bytes of a message", Unit::Bytes),
            y: ("MB/s", Scale::Log),
            curves: &[WRITE_NEAR, READ_NEAR, WRITE_FAR, READ_FAR],
            right: None,
            paper: &[
                (WRITE_NEAR, &[(PAGE, 925.0)]),
                (READ_NEAR, &[(PAGE, 223.0)]),
                (WRITE_FAR, &[(PAGE, 14.7)]),
                (READ_FAR, &[(PAGE, 0.59)]),
            ],
        },
        Picture {
            name: "nfs",
            title: "NFS by distance: RDMA in pages of 4 KiB, and IPoIB-UD (WAN 2008, figure 3)",
            x: ("miles", Unit::Number),
            y: ("MB/s", Scale::Log),
            curves: &[NFS_READ, NFS_WRITE, NFS_READ_UD, NFS_WRITE_UD],
            right: None,
            paper: &[(NFS_READ_UD, &[(0.2, 220.0)]), (NFS_WRITE_UD, &[(0.2, 220.0)])],
        },
    ],
    experiment: run,
    model_gaps: "Simulated messages have at most 4 MiB, the largest contiguous piece of memory, while the \
                 paper's are larger: four RDMA Reads of 4 MiB do not fill 1400 miles, and the rate of 16 MiB \
                 is unknown. NFS WRITE over RDMA at 0.2 mile has the paper's 220 MB/s, but IPoIB-UD has more \
                 than twice that rate: its TCP follows a rule of thumb, and the model contains no other cost \
                 of NFS over TCP.",
    calibrated_gaps: "",
};

fn run(setting: Setting) -> Result<Curves, BenchError> {
    let mut curves = Curves::default();
    raw(&mut curves, setting)?;
    for miles in [0.2, 10.0, 100.0, 1400.0] {
        let rdma = nfs(miles, setting)?;
        for (iozone, read, write) in
            [(rdma.clone(), NFS_READ, NFS_WRITE), (rdma.over_tcp(), NFS_READ_UD, NFS_WRITE_UD)]
        {
            iozone.run(1)?.put(&mut curves, read, write, miles)?;
        }
    }
    Ok(curves)
}

/// NFS over RDMA in pages over this distance.
pub(crate) fn nfs(miles: f64, setting: Setting) -> Result<Iozone, BenchError> {
    let mut rdma = Iozone::new(PROFILE, setting)?.registration(Strategy::AllPhysical, Strategy::AllPhysical);
    rdma.machines.profile.link = profile_at(PROFILE, miles)?.link;
    let records = if setting.small { 64 } else { 1024 };
    Ok(Iozone { record: BLOCK, outstanding: SLOTS, records, ..rdma })
}

fn raw(curves: &mut Curves, setting: Setting) -> Result<(), BenchError> {
    for (miles, operation, curve) in [
        (0.2, Operation::Write, WRITE_NEAR),
        (0.2, Operation::Read, READ_NEAR),
        (1400.0, Operation::Write, WRITE_FAR),
        (1400.0, Operation::Read, READ_FAR),
    ] {
        // The column of raw numbers has no messages above 4 MiB, since it stays as it was when it was published.
        let largest = if setting.calibration.is_some() { 16 << 20 } else { 4 << 20 };
        let messages = (12..=24).step_by(2).map(|power| 1 << power).filter(|n| *n <= largest);
        for message in messages {
            // Many times the data in flight, so that the start and the end have little influence.
            let count = ((if setting.small { 4 << 20 } else { 64 << 20 }) / message).max(40);
            let what = Raw { profile: profile_at(PROFILE, miles)?, operation, message, count };
            curves.put(curve, message as f64, value(what.run()?.mb_per_s)?);
        }
    }
    Ok(())
}
