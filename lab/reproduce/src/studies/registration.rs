//! Registration strategies on a 400 Gb/s adapter.

use millrace_bench::{
    BenchError,
    iozone::{Run, Test},
};
use millrace_client::{Options, Strategy};
use millrace_plot::Scale;
use millrace_rdma_sim::Profile;
use millrace_simlab::{Machines, SimulatedIozone};

use super::Study;
use crate::{Curves, Picture, Setting, Unit, lab};

const PROFILE: &str = "ndr-400g";
const KIB: usize = 1 << 10;
/// Record sizes; the largest is the limit of one call with `all-physical`.
const RECORDS: [usize; 4] = [16 * KIB, 64 * KIB, 256 * KIB, 512 * KIB];
const THREADS: [usize; 5] = [1, 2, 4, 8, 16];
/// Factors of the profile's registration costs.
const FACTORS: [f64; 5] = [0.25, 0.5, 1.0, 2.0, 4.0];
/// Records in flight of one thread.
const OUTSTANDING: usize = 4;
/// Bytes of the file of a thread.
const FILE: usize = 4 << 20;
pub(super) const STRATEGIES: [Strategy; 4] =
    [Strategy::Dynamic, Strategy::Fast, Strategy::Cache, Strategy::AllPhysical];

/// The curves of each strategy, in the order of [`STRATEGIES`].
type Curve = [&'static str; 4];
const READ_1: Curve = ["dynamic", "fast", "cache", "all-physical"];
const READ_16: Curve =
    ["dynamic, 16 threads", "fast, 16 threads", "cache, 16 threads", "all-physical, 16 threads"];
const WRITE_16: Curve = ["WRITE, dynamic", "WRITE, fast", "WRITE, cache", "WRITE, all-physical"];
const BY_THREADS: Curve = ["dynamic, 64 KiB", "fast, 64 KiB", "cache, 64 KiB", "all-physical, 64 KiB"];
const CPU: Curve = ["client, dynamic", "client, fast", "client, cache", "client, all-physical"];
const BY_COST: Curve = ["dynamic by cost", "fast by cost", "cache by cost", "all-physical by cost"];

const fn records(
    name: &'static str,
    title: &'static str,
    y: &'static str,
    curves: &'static Curve,
) -> Picture {
    let x = ("bytes of a record", Unit::Bytes);
    Picture { name, title, x, y: (y, Scale::Linear), curves, right: None, paper: &[] }
}

pub(super) const STUDY: Study = Study {
    name: "registration",
    question: "Which registration strategy is best for which records and threads at 400 Gb/s?",
    page: include_str!("../../../../docs/lab/studies/registration.md"),
    summary: None,
    pictures: &[
        records("one", "READ by record, one thread with four in flight", "MB/s", &READ_1),
        records("read", "READ by record, 16 threads with four in flight each", "MB/s", &READ_16),
        records("write", "WRITE by record, 16 threads with four in flight each", "MB/s", &WRITE_16),
        records("cpu", "Processor time of the client for READ, 16 threads", "CPU s/GB", &CPU),
        Picture {
            name: "threads",
            title: "READ of 64 KiB by threads",
            x: ("threads", Unit::Number),
            y: ("MB/s", Scale::Linear),
            curves: &BY_THREADS,
            right: None,
            paper: &[],
        },
        Picture {
            name: "cost",
            title: "READ of 64 KiB, 16 threads, with other costs of registration",
            x: ("times the profile's registration costs", Unit::Number),
            y: ("MB/s", Scale::Linear),
            curves: &BY_COST,
            right: None,
            paper: &[],
        },
    ],
    experiment: run,
};

/// The rates of WRITE and READ, in 10^6 bytes per second, and the client's CPU seconds per 10^9 bytes of
/// READ.
pub(super) struct Carried {
    write: f64,
    pub(super) read: f64,
    cpu: f64,
}

pub(super) fn carries(
    profile: &Profile,
    setting: Setting,
    strategy: Strategy,
    (threads, record): (usize, usize),
) -> Result<Carried, BenchError> {
    let options = Options::default().registration(strategy);
    let machines = Machines { seed: setting.seed, options, ..Machines::new(profile.clone()) };
    let what = SimulatedIozone { machines, threads, shared_mount: false, size: FILE as u64 };
    let random_ops = if setting.small { 32 } else { 128 };
    let run = |test| Run { test, record, outstanding: OUTSTANDING, passes: 1, random_ops };
    // The first two tests fill the caches of registrations.
    let tests = [Test::Write, Test::Read, Test::RandomWrite, Test::RandomRead];
    let figures = what.run(&tests.map(run))?;
    let of = |n: usize| figures.get(n).ok_or_else(|| BenchError::Client("a figure is missing".into()));
    Ok(Carried {
        write: lab::value(of(2)?.mb_per_s)?,
        read: lab::value(of(3)?.mb_per_s)?,
        cpu: lab::value(of(3)?.client_cpu_s_per_gb)?,
    })
}

/// The machines with registration costs of `factor` times the profile's.
fn costing(mut profile: Profile, factor: f64) -> Profile {
    let r = &mut profile.registration;
    let costs = [
        &mut r.register_ns,
        &mut r.register_page_ns,
        &mut r.deregister_ns,
        &mut r.deregister_page_ns,
        &mut r.table_ns,
        &mut r.bind_ns,
        &mut r.bind_page_ns,
        &mut r.unbind_ns,
    ];
    costs.into_iter().for_each(|ns| *ns = (*ns as f64 * factor).round() as u64);
    profile
}

fn run(setting: Setting) -> Result<Curves, BenchError> {
    let mut out = Curves::default();
    let profile = lab::profile(PROFILE)?;
    let (records, threads, factors) = match setting.small {
        true => (&RECORDS[1..2], &THREADS[..0], &FACTORS[..1]),
        false => (&RECORDS[..], &THREADS[..], &FACTORS[..]),
    };
    for (s, strategy) in STRATEGIES.into_iter().enumerate() {
        for record in records.iter().copied() {
            let at = record as f64;
            out.put(READ_1[s], at, carries(&profile, setting, strategy, (1, record))?.read);
            let many = carries(&profile, setting, strategy, (16, record))?;
            out.put(READ_16[s], at, many.read);
            out.put(WRITE_16[s], at, many.write);
            out.put(CPU[s], at, many.cpu);
        }
        for threads in threads {
            let read = carries(&profile, setting, strategy, (*threads, 64 * KIB))?.read;
            out.put(BY_THREADS[s], *threads as f64, read);
        }
        for factor in factors {
            let read = carries(&costing(profile.clone(), *factor), setting, strategy, (16, 64 * KIB))?.read;
            out.put(BY_COST[s], *factor, read);
        }
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn registration_for_each_operation_is_slowest_and_costs_most() {
        let c = run(Setting::raw(1, true)).unwrap();
        let [dynamic, fast, ..] = READ_16.map(|curve| c.at(curve, 65_536.0).unwrap());
        assert!(fast > 1.2 * dynamic, "{fast} {dynamic}");
        let [dynamic, fast, ..] = CPU.map(|curve| c.at(curve, 65_536.0).unwrap());
        assert!(fast < dynamic, "{fast} {dynamic}");
        // With a quarter of the cost, registration for each operation becomes faster.
        assert!(c.at(BY_COST[0], 0.25) > c.at(READ_16[0], 65_536.0));
    }
}
