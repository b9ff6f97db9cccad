//! Applications: a database.

use bench::plot::Scale;

use crate::{
    Claim, Experiment, Picture, Unit,
    rule::{ABOVE, Band, HARDLY, Measure, Rule, SAME},
};

const DYNAMIC: &str = "dynamic";
const FMR: &str = "FMR";
const CACHE: &str = "cache";
const CPU_DYNAMIC: &str = "CPU us/op, dynamic";
const CPU_CACHE: &str = "CPU us/op, cache";

pub(super) const CLAIM: Claim = Claim {
    id: "C8",
    claim: "The server's registration cache speeds a database workload up by up to 50 %; FMR is about equal to dynamic",
    source: "Designing 2007 section 5.2, figure 8",
    figures: "FileBench OLTP, mean I/O 128 KB: up to +50 % operations per second with the cache; FMR comparable to \
              dynamic; client CPU per operation slightly higher",
    profiles: &["sdr-opensolaris"],
    conditions: "the x axis is the number of readers that the workload has at once; files are smaller than the original's",
    rules: &[
        Rule {
            what: "operations per second, cache over dynamic, most",
            measure: Measure::MostOver(CACHE, DYNAMIC),
            paper: "up to 1.5",
            band: Band::around(1.5),
        },
        Rule {
            what: "operations per second, cache over dynamic, least",
            measure: Measure::LeastOver(CACHE, DYNAMIC),
            paper: "better",
            band: ABOVE,
        },
        Rule {
            what: "peak of operations per second, FMR over dynamic",
            measure: Measure::Peaks(FMR, DYNAMIC),
            paper: "comparable",
            band: SAME,
        },
        Rule {
            what: "client CPU per operation at its largest, cache over dynamic",
            measure: Measure::MostOver(CPU_CACHE, CPU_DYNAMIC),
            paper: "slightly higher",
            band: HARDLY,
        },
    ],
    pictures: &[Picture {
        name: "oltp",
        title: "OLTP: operations per second by the server's registration",
        x: ("readers", Unit::Number),
        y: ("operations/s", Scale::Linear),
        curves: &[DYNAMIC, FMR, CACHE],
        right: Some(("client CPU us/operation", &[CPU_DYNAMIC, CPU_CACHE])),
        paper: &[],
    }],
    experiment: Experiment::Open("the experiment is not written yet"),
    lacks: "",
};
