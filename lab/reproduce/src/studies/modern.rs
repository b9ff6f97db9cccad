//! Settings for machines of today: strategies, a thousand clients, distance.

use millrace_bench::{
    BenchError,
    iozone::{Run, Test},
};
use millrace_client::{Options, Strategy};
use millrace_plot::Scale;
use millrace_simlab::{Machines, SimulatedIozone};

use super::{
    Study,
    credits::{BUSY, CREDITS, Crowd, pooled},
    page::number,
    registration::{STRATEGIES, carries},
};
use crate::{Curves, Picture, Setting, Unit, lab};

/// Adapters of 100 and of 400 Gb/s.
const PROFILES: [&str; 2] = ["cx5-100g", "cx7-400g"];
const KIB: usize = 1 << 10;
const RECORDS: [usize; 4] = [16 * KIB, 64 * KIB, 256 * KIB, 512 * KIB];
/// Threads of the client, each with a connection and four records in flight.
const THREADS: usize = 16;
/// Bytes of the file that is read over a distance.
const FILE: u64 = 128 << 20;
/// Lengths of the cable, in miles.
const MILES: [f64; 4] = [0.0, 10.0, 100.0, 500.0];

/// READ of each strategy, in the order of [`STRATEGIES`], by profile.
const READ: [[&str; 4]; 2] = [
    ["dynamic, 100 Gb/s", "fast, 100 Gb/s", "cache, 100 Gb/s", "all-physical, 100 Gb/s"],
    ["dynamic, 400 Gb/s", "fast, 400 Gb/s", "cache, 400 Gb/s", "all-physical, 400 Gb/s"],
];
const IDLE: &str = "memory, all idle";
const MEMORY: &str = "memory, all busy";
const P99: [&str; 2] = ["p99, 100 Gb/s", "p99, 400 Gb/s"];
/// Connections and bytes of a READ, at 100 Gb/s; 64 calls are in flight on each connection.
const IN_FLIGHT: [(&str, usize, usize); 4] = [
    ("1 connection, 64 KiB", 1, 64 * KIB),
    ("1 connection, 1 MiB", 1, 1024 * KIB),
    ("4 connections, 64 KiB", 4, 64 * KIB),
    ("4 connections, 1 MiB", 4, 1024 * KIB),
];

pub(super) const STUDY: Study = Study {
    name: "modern",
    question: "Which strategy, credits, transfer sizes and server memory suit 100 and 400 Gb/s?",
    page: include_str!("../../../../docs/lab/studies/modern.md"),
    summary: Some(summary),
    pictures: &[
        Picture {
            name: "strategies",
            title: "READ by one client with 16 threads, by strategy of both ends",
            x: ("bytes of a record", Unit::Bytes),
            y: ("MB/s", Scale::Log),
            curves: &[
                READ[0][0], READ[0][1], READ[0][2], READ[0][3], READ[1][0], READ[1][1], READ[1][2],
                READ[1][3],
            ],
            right: None,
            paper: &[],
        },
        Picture {
            name: "clients",
            title: "1,000 clients: memory of the server, and time of a READ of 4 KiB",
            x: ("credits that the server grants at most", Unit::Number),
            y: ("MB", Scale::Linear),
            curves: &[IDLE, MEMORY],
            right: Some(("microseconds", &P99)),
            paper: &[],
        },
        Picture {
            name: "distance",
            title: "READ by one client at 100 Gb/s, 64 calls in flight on each connection",
            x: ("miles", Unit::Number),
            y: ("MB/s", Scale::Log),
            curves: &[IN_FLIGHT[0].0, IN_FLIGHT[1].0, IN_FLIGHT[2].0, IN_FLIGHT[3].0],
            right: None,
            paper: &[],
        },
    ],
    experiment: run,
};

fn run(setting: Setting) -> Result<Curves, BenchError> {
    let mut out = Curves::default();
    strategies(setting, &mut out)?;
    clients(setting, &mut out)?;
    distance(setting, &mut out)?;
    Ok(out)
}

/// What to use, and what that gains.
fn summary(curves: &Curves) -> String {
    let at = |curve: &str, x: f64| curves.at(curve, x).map_or_else(|| "-".to_owned(), number);
    let mut rows = vec![
        "| for | use | 100 Gb/s | 400 Gb/s | instead of | 100 Gb/s | 400 Gb/s |".to_owned(),
        "|---|---|---|---|---|---|---|".to_owned(),
    ];
    for record in RECORDS {
        let (x, kib) = (record as f64, record / KIB);
        let [dynamic, fast] = [0, 1].map(|s| READ.map(|curves| format!("{} MB/s", at(curves[s], x))));
        rows.push(format!(
            "| one client, records of {kib} KiB | `fast`, the default | {} | {} | `dynamic` | {} | {} |",
            fast[0], fast[1], dynamic[0], dynamic[1]
        ));
    }
    let memory = |credits| format!("{} MB", at(MEMORY, credits));
    let slow = |credits| P99.map(|p99| format!("p99 {} us", at(p99, credits)));
    for (credits, other) in [(16.0, 64.0), (4.0, 16.0)] {
        let (own, others) = (slow(credits), slow(other));
        rows.push(format!(
            "| 1,000 busy clients, READ of 4 KiB | `credits = {credits}`, {} of server memory | {} | {} | {other}, {} | {} | {} |",
            memory(credits), own[0], own[1], memory(other), others[0], others[1]
        ));
    }
    for (miles, use_, instead) in [(10.0, 0, 1), (100.0, 1, 0), (500.0, 3, 2)] {
        let rate = |n: usize| format!("{} MB/s", at(IN_FLIGHT[n].0, miles));
        rows.push(format!(
            "| one client over {miles} miles | {} | {} | | {} | {} | |",
            IN_FLIGHT[use_].0,
            rate(use_),
            IN_FLIGHT[instead].0,
            rate(instead)
        ));
    }
    rows.join("\n") + "\n"
}

fn strategies(setting: Setting, out: &mut Curves) -> Result<(), BenchError> {
    let records = if setting.small { &RECORDS[1..2] } else { &RECORDS[..] };
    for (name, curves) in PROFILES.into_iter().zip(READ) {
        let profile = lab::profile(name)?;
        for (strategy, curve) in STRATEGIES.into_iter().zip(curves) {
            for record in records {
                let read = carries(&profile, setting, strategy, (THREADS, *record))?.read;
                out.put(curve, *record as f64, read);
            }
        }
    }
    Ok(())
}

fn clients(setting: Setting, out: &mut Curves) -> Result<(), BenchError> {
    let (count, credits) = if setting.small { (64, &CREDITS[1..2]) } else { (1000, &CREDITS[..]) };
    for (name, p99) in PROFILES.into_iter().zip(P99) {
        for credits in credits {
            let at = f64::from(*credits);
            let crowd = Crowd::new(lab::profile(name)?, setting.seed, *credits, count)?;
            out.put(IDLE, at, crowd.memory());
            let times = crowd.all(|_| (BUSY, 2 * BUSY))?;
            out.put(MEMORY, at, crowd.memory());
            out.put(p99, at, pooled(times.iter()).percentile_us(99.0));
        }
    }
    Ok(())
}

fn distance(setting: Setting, out: &mut Curves) -> Result<(), BenchError> {
    for miles in if setting.small { &MILES[2..3] } else { &MILES[..] } {
        for (curve, connections, record) in IN_FLIGHT {
            let profile = lab::profile_at(PROFILES[0], *miles)?;
            let options = Options::default().registration(Strategy::Fast).nconnect(connections);
            let machines = Machines { seed: setting.seed, options, ..Machines::new(profile) };
            let calls = BUSY * connections;
            let what = SimulatedIozone { machines, threads: 1, shared_mount: true, size: FILE };
            // The first pass warms the connection up: credits follow the demand.
            let run = |test| Run { test, record, outstanding: calls, passes: 1, random_ops: 0 };
            let figures = what.run(&[Test::Write, Test::Read, Test::Read].map(run))?;
            out.put(curve, *miles, lab::value(figures.last().and_then(|f| f.mb_per_s))?);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_data_in_flight_helps_over_a_distance_and_windows_help_everywhere() {
        let c = run(Setting::raw(1, true)).unwrap();
        for curves in READ {
            let [dynamic, fast, ..] = curves.map(|curve| c.at(curve, 65_536.0).unwrap());
            assert!(fast > 2.0 * dynamic, "{fast} {dynamic}");
        }
        let at = |n: usize| c.at(IN_FLIGHT[n].0, 100.0).unwrap();
        assert!(at(1) > at(0) && at(2) > 2.0 * at(0), "{} {} {}", at(0), at(1), at(2));
        assert!(c.at(MEMORY, 16.0) >= c.at(IDLE, 16.0));
    }
}
