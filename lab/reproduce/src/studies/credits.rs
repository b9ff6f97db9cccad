//! Credits and receive buffers for a thousand clients.

use std::time::Duration;

use futures::{StreamExt, TryStreamExt, stream};
use millrace_bench::{BenchError, stats::Latencies};
use millrace_client::{
    Options,
    handles::Client,
    ops::{CreateHow, FileHandle, SetAttributes, StableHow},
};
use millrace_plot::Scale;
use millrace_rdma_sim::Profile;
use millrace_server::Limits;
use millrace_simlab::{Machines, Simulation};

use super::Study;
use crate::{Curves, Picture, Setting, Unit, lab};

const PROFILE: &str = "hdr-200g";
/// Maximum numbers of credits that a server grants.
pub(super) const CREDITS: [u32; 3] = [4, 16, 64];
/// READs that a busy client keeps in flight, as far as its credits allow.
pub(super) const BUSY: usize = 64;
/// One in this many clients is busy, in the phase with few busy clients.
const ONE_IN: usize = 32;
/// Receive buffers of a connection beyond its credits: those of `rpcrdma`'s responder.
const SLACK: u32 = 4;
/// Credits of an idle client: the minimum that `rpcrdma`'s requester requests.
const ASKED: u32 = 8;
/// Bytes of a receive buffer.
const RECEIVE: f64 = 4096.0;
/// Bytes of one READ.
const RECORD: usize = 4096;
const FILE: usize = 1 << 20;
/// Sequential READs of each client after which the server has discarded its earlier demand and reduced its
/// credits.
const QUIET: usize = 2 * 256 + 64;
/// Lengths of the cable for a burst, in miles.
const MILES: [f64; 4] = [0.0, 10.0, 100.0, 1400.0];
/// Clients that are mounted concurrently.
const MOUNTING: usize = 64;
/// Receive buffers that all connections share, in the model.
const SHARED: usize = 1024;

const IDLE: &str = "all idle";
const FEW: &str = "one in 32 was busy";
const ALL: &str = "all were busy";
const AFTER: &str = "all were quiet again";
const STATIC: &str = "static grants (model)";
const ONE_QUEUE: &str = "shared receives (model)";
const JAIN: &str = "Jain's index";
const P50: &str = "p50";
const P99: &str = "p99";
const SLOWEST: &str = "mean of the slowest client";
const LIGHT_P50: &str = "light clients, p50";
const LIGHT_P99: &str = "light clients, p99";
const FIRST: &str = "first burst";
const AGAIN: &str = "the same again";

const fn latency(name: &'static str, title: &'static str, curves: &'static [&'static str]) -> Picture {
    let (x, y) = (("credits that the server grants at most", Unit::Number), ("microseconds", Scale::Log));
    Picture { name, title, x, y, curves, right: None, paper: &[] }
}

pub(super) const STUDY: Study = Study {
    name: "credits",
    question: "How much memory do the receive buffers of a thousand clients need, and is service fair?",
    page: include_str!("../../../../docs/lab/studies/credits.md"),
    summary: None,
    pictures: &[
        Picture {
            name: "memory",
            title: "Memory of the server's receives for 1,000 clients",
            x: ("credits that the server grants at most", Unit::Number),
            y: ("MB", Scale::Log),
            curves: &[STATIC, ALL, FEW, AFTER, IDLE, ONE_QUEUE],
            right: None,
            paper: &[],
        },
        Picture {
            name: "fairness",
            title: "1,000 busy clients: Jain's index of their rates",
            x: ("credits that the server grants at most", Unit::Number),
            y: ("1 is equal", Scale::Linear),
            curves: &[JAIN],
            right: None,
            paper: &[],
        },
        latency("busy", "1,000 busy clients: time of a READ of 4 KiB", &[P50, P99, SLOWEST]),
        latency("light", "One READ at a time beside one busy client in 32", &[LIGHT_P50, LIGHT_P99]),
        Picture {
            name: "burst",
            title: "64 READs of 4 KiB at once from an idle client, until all are back",
            x: ("miles", Unit::Number),
            y: ("microseconds", Scale::Log),
            curves: &[FIRST, AGAIN],
            right: None,
            paper: &[],
        },
    ],
    experiment: run,
};

/// Latencies of a client's calls.
pub(super) type Times = Vec<Duration>;

/// Clients of one server, and the file that they read.
pub(super) struct Crowd {
    simulation: Simulation,
    clients: Vec<Client>,
    file: FileHandle,
}

fn failed(e: millrace_client::Error) -> BenchError {
    BenchError::Client(e.to_string())
}

async fn make(client: &Client) -> Result<FileHandle, BenchError> {
    let how =
        CreateHow::Unchecked(SetAttributes { mode: Some(0o600), size: Some(0), ..SetAttributes::default() });
    let file = client.create(client.root(), "file", how).await.map_err(failed)?.handle;
    let mut data = client.buffer(FILE).map_err(failed)?;
    data.fill(7);
    client.write_from(file, 0, data.freeze().into(), StableHow::FileSync).await.map_err(failed)?;
    Ok(file)
}

/// Reads `count` records in order, `outstanding` concurrently.
async fn read(
    client: &Client,
    file: FileHandle,
    outstanding: usize,
    count: usize,
) -> Result<Times, BenchError> {
    let one = async |n: usize| {
        let buffer = client.buffer(RECORD)?;
        let sent = client.runtime().now();
        client.read_into(file, (n * RECORD % FILE) as u64, buffer).await?;
        Ok(client.runtime().now().duration_since(sent))
    };
    stream::iter(0..count).map(one).buffer_unordered(outstanding.max(1)).try_collect().await.map_err(failed)
}

impl Crowd {
    pub(super) fn new(profile: Profile, seed: u64, credits: u32, count: usize) -> Result<Self, BenchError> {
        let limits = Limits { credits, max_connections: Some(count + 1), ..Limits::default() };
        let options = Options::default().credits(BUSY as u32);
        let machines = Machines { seed, options, limits, client_hosts: count, ..Machines::new(profile) };
        let simulation = machines.start(2 * FILE as u64)?;
        let (clients, file) = simulation.run(async {
            let mounts = stream::iter(0..count).map(|host| simulation.mount(host));
            let clients: Vec<_> = mounts.buffered(MOUNTING).try_collect().await?;
            let first = clients.first().ok_or_else(|| BenchError::Parameter("no clients".into()))?;
            let file = make(first).await?;
            Ok((clients, file))
        })?;
        Ok(Self { simulation, clients, file })
    }

    /// Runs READs of every client, with the number in flight and the total number that `work` returns for it.
    /// Returns the latencies of each.
    pub(super) fn all(&self, work: impl Fn(usize) -> (usize, usize)) -> Result<Vec<Times>, BenchError> {
        let reading = |(n, client)| {
            let (flight, count) = work(n);
            read(client, self.file, flight, count)
        };
        let reading: Vec<_> = self.clients.iter().enumerate().map(reading).collect();
        self.simulation.run(futures::future::try_join_all(reading))
    }

    /// Memory of the server's buffers without that of the file, in 10^6 bytes.
    pub(super) fn memory(&self) -> f64 {
        self.simulation.server_stats().memory.in_use.saturating_sub(FILE) as f64 / 1e6
    }
}

/// The mean latency, in microseconds.
fn mean_us(times: &Times) -> f64 {
    times.iter().sum::<Duration>().as_secs_f64() * 1e6 / times.len().max(1) as f64
}

pub(super) fn pooled<'a>(clients: impl Iterator<Item = &'a Times>) -> Latencies {
    let mut all = Latencies::new();
    clients.flatten().for_each(|t| all.record(*t));
    all
}

/// Jain's index of fairness: 1 when all are equal, 1/n when one has everything (Jain, Chiu and Hawe 1984).
fn jain(rates: &[f64]) -> f64 {
    let (sum, squares) = rates.iter().fold((0.0, 0.0), |(s, q), r| (s + r, q + r * r));
    sum * sum / (rates.len() as f64 * squares).max(f64::MIN_POSITIVE)
}

fn run(setting: Setting) -> Result<Curves, BenchError> {
    let (count, credits) = if setting.small { (64, &CREDITS[1..2]) } else { (1000, &CREDITS[..]) };
    let mut out = Curves::default();
    for credits in credits {
        crowd(setting, *credits, count, &mut out)?;
    }
    for miles in if setting.small { &MILES[3..] } else { &MILES[..] } {
        burst(setting, *miles, &mut out)?;
    }
    Ok(out)
}

/// One server, and many clients that are idle, light, busy, and light again.
fn crowd(setting: Setting, credits: u32, count: usize, out: &mut Curves) -> Result<(), BenchError> {
    let at = f64::from(credits);
    let crowd = Crowd::new(lab::profile(PROFILE)?, setting.seed, credits, count)?;
    let idle = crowd.memory();
    out.put(IDLE, at, idle);
    let receives = |credits| count as f64 * f64::from(credits + SLACK) * RECEIVE / 1e6;
    let rest = idle - receives(credits.min(ASKED));
    out.put(STATIC, at, rest + receives(credits));
    out.put(ONE_QUEUE, at, rest + SHARED as f64 * RECEIVE / 1e6);
    let mixed = crowd.all(|n| if n % ONE_IN == 0 { (BUSY, 16 * BUSY) } else { (1, 16) })?;
    out.put(FEW, at, crowd.memory());
    let light = pooled(mixed.iter().enumerate().filter(|(n, _)| n % ONE_IN != 0).map(|(_, t)| t));
    out.put(LIGHT_P50, at, light.percentile_us(50.0));
    out.put(LIGHT_P99, at, light.percentile_us(99.0));
    let busy = crowd.all(|_| (BUSY, 2 * BUSY))?;
    out.put(ALL, at, crowd.memory());
    let all = pooled(busy.iter());
    out.put(P50, at, all.percentile_us(50.0));
    out.put(P99, at, all.percentile_us(99.0));
    out.put(SLOWEST, at, busy.iter().map(mean_us).fold(0.0, f64::max));
    out.put(JAIN, at, jain(&busy.iter().map(|t| 1e6 / mean_us(t)).collect::<Vec<_>>()));
    crowd.all(|_| (1, QUIET))?;
    out.put(AFTER, at, crowd.memory());
    Ok(())
}

/// One distant client, whose burst must wait for credits, and the same burst with sufficient credits.
fn burst(setting: Setting, miles: f64, out: &mut Curves) -> Result<(), BenchError> {
    let far = Crowd::new(lab::profile_at(PROFILE, miles)?, setting.seed, BUSY as u32, 1)?;
    for curve in [FIRST, AGAIN] {
        let times = far.all(|_| (BUSY, BUSY))?;
        let last = times.iter().flatten().max().copied().unwrap_or_default();
        out.put(curve, miles, last.as_secs_f64() * 1e6);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn receives_follow_the_demand_of_each_client_and_service_is_fair() {
        let c = run(Setting::raw(1, true)).unwrap();
        let at = |curve: &str| c.at(curve, 16.0).unwrap();
        assert!(at(IDLE) < 0.8 * at(STATIC), "{} {}", at(IDLE), at(STATIC));
        assert!(at(IDLE) < at(FEW) && at(FEW) < at(ALL) && at(ALL) < 1.05 * at(STATIC));
        assert!(at(AFTER) <= at(IDLE), "{} {}", at(AFTER), at(IDLE));
        assert!(at(JAIN) > 0.9, "{}", at(JAIN));
        assert!(at(P50) <= at(P99));
        // The credits for the whole burst arrive with the first reply, after an additional round trip.
        let trips = c.at(FIRST, 1400.0).unwrap() / c.at(AGAIN, 1400.0).unwrap();
        assert!((1.9..2.1).contains(&trips), "{trips}");
    }

    #[test]
    fn the_index_is_1_for_equal_rates_and_1_over_n_for_a_single_one() {
        assert!((jain(&[3.0, 3.0, 3.0]) - 1.0).abs() < 1e-12);
        assert!((jain(&[1.0, 0.0, 0.0, 0.0]) - 0.25).abs() < 1e-12);
    }
}
