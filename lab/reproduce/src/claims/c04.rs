//! Registration is a large share of an operation's time.

use millrace_bench::BenchError;
use millrace_oncrpc::Stage;
use millrace_plot::Scale;

use crate::{
    Claim, Curves, Picture, Setting, Unit,
    calibration::Testbed,
    lab::{Iozone, share},
    rule::{ABOVE, BELOW, Band, Measure, Rule},
};

const REGISTRATION: &str = "server registration";
const DEREGISTRATION: &str = "server deregistration";
const CLIENT: &str = "client registration";

pub(super) const CLAIM: Claim = Claim {
    id: "C4",
    claim: "Registration at the server is a large share of a READ's time, and more so with several threads",
    source: "TR06 section 7, figure 10",
    figures: "READ of 128 KB: server registration about 5 % at 1 thread, 24 % at 4, 16 % at 8; deregistration 1 to 2 %; \
              client's registration and deregistration below 0.1 %",
    profiles: &["sdr-opensolaris"],
    testbeds: &[Testbed::OpenSolaris],
    conditions: "READ of 128 KiB, Read-Write, dynamic registration at both ends; shares are relative to the \
                 mean latency of a READ at the client; a registration lasts from the time when a \
                 connection's software starts it until the adapter's table has changed",
    rules: &[
        Rule {
            what: "share of server registration at 1 thread, %",
            measure: Measure::At(REGISTRATION, 1.0),
            paper: "about 5",
            band: Band::about(5.0),
        },
        Rule {
            what: "share of server registration at 4 threads, %",
            measure: Measure::At(REGISTRATION, 4.0),
            paper: "about 24",
            band: Band::about(24.0),
        },
        Rule {
            what: "share of server registration at 8 threads, %",
            measure: Measure::At(REGISTRATION, 8.0),
            paper: "about 16",
            band: Band::about(16.0),
        },
        Rule {
            what: "share of server registration, 4 threads over 1",
            measure: Measure::Ratio((REGISTRATION, 4.0), (REGISTRATION, 1.0)),
            paper: "24 / 5 = 4.8",
            band: Band::around(4.8),
        },
        Rule {
            what: "share of server registration, 8 threads over 4",
            measure: Measure::Ratio((REGISTRATION, 8.0), (REGISTRATION, 4.0)),
            paper: "falls again",
            band: BELOW,
        },
        Rule {
            what: "share of server deregistration at 8 threads, %",
            measure: Measure::At(DEREGISTRATION, 8.0),
            paper: "1 to 2",
            band: Band { least: 0.5, most: 4.0 },
        },
        Rule {
            what: "server registration over client registration, least",
            measure: Measure::LeastOver(REGISTRATION, CLIENT),
            paper: "much more",
            band: ABOVE,
        },
    ],
    pictures: &[Picture {
        name: "shares",
        title: "READ of 128 KiB: shares of an operation's time (TR06, figure 10)",
        x: ("threads", Unit::Number),
        y: ("% of an operation's time as the client sees it", Scale::Linear),
        curves: &[REGISTRATION, DEREGISTRATION, CLIENT],
        right: None,
        paper: &[
            (REGISTRATION, &[(1.0, 5.0), (4.0, 24.0), (8.0, 16.0)]),
            (DEREGISTRATION, &[(1.0, 1.5), (4.0, 1.5), (8.0, 1.5)]),
            (CLIENT, &[(1.0, 0.1), (8.0, 0.1)]),
        ],
    }],
    experiment: run,
    model_gaps: "There are three differences. The costs of a registration are assumed, and result in 12 % at \
                 one thread. In the paper the share increases with the number of threads, which wait for \
                 each other's registrations; here they wait for the link, which the paper's machines did not \
                 fill, since tmpfs took 80 % of their time. The model's client has the same registration \
                 costs as its server, while the paper's client had almost none.",
    calibrated_gaps: "",
};

fn run(setting: Setting) -> Result<Curves, BenchError> {
    let mut curves = Curves::default();
    let iozone = Iozone::new("sdr-opensolaris", setting)?;
    for threads in 1..=8 {
        let known = iozone.run(threads)?.read.breakdown.unwrap_or_default();
        let server = known.server.unwrap_or_default();
        let x = threads as f64;
        curves.put(REGISTRATION, x, share(&server, Stage::Registration, known.mean_us));
        curves.put(DEREGISTRATION, x, share(&server, Stage::Deregistration, known.mean_us));
        curves.put(CLIENT, x, share(&known.client, Stage::Registration, known.mean_us));
    }
    Ok(curves)
}
