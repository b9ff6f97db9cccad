//! What a server in another process has counted, by its metrics endpoint.

use std::{
    net::SocketAddr,
    time::{Duration, Instant},
};

use millrace_oncrpc::{
    CallClass, Stage,
    stages::{StageStats, StageSums},
};

use crate::{
    BenchError,
    samples::{self, Sample},
};

/// How long clients may take to acknowledge what they have.
const ACKNOWLEDGED: Duration = Duration::from_secs(2);

/// Counters of a server.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct ServerCounters {
    /// Times that it registered memory.
    pub registrations: f64,
    /// The bytes of its memory that clients could reach, times for how long, in seconds.
    pub exposed_byte_seconds: f64,
    /// The bytes of its memory that clients can reach now: the one value that also falls.
    pub exposed_bytes: f64,
}

impl ServerCounters {
    /// What was added since `before`.
    #[must_use]
    pub fn since(self, before: Self) -> Self {
        Self {
            registrations: self.registrations - before.registrations,
            exposed_byte_seconds: self.exposed_byte_seconds - before.exposed_byte_seconds,
            ..self
        }
    }
}

fn scrape(addr: SocketAddr) -> Result<Vec<Sample>, BenchError> {
    samples::scrape(addr).map_err(BenchError::io("ask the server for its counters"))
}

/// Asks the server whose metrics are at `addr`.
fn counters(addr: SocketAddr) -> Result<ServerCounters, BenchError> {
    let samples = scrape(addr)?;
    let counter = |name: &str| {
        let found = samples.iter().find(|s| s.name == name);
        found.map(|s| s.value).ok_or_else(|| BenchError::Peer(format!("it does not count millrace_{name}")))
    };
    Ok(ServerCounters {
        registrations: counter("rdma_registrations_total")?,
        exposed_byte_seconds: counter("rdma_exposed_byte_seconds_total")?,
        exposed_bytes: counter("rdma_exposed_bytes")?,
    })
}

/// The same once clients have acknowledged all that they were shown (Read-Read): a client has its data before it says
/// so. One that does not keeps nobody waiting for long.
pub(crate) fn settled(addr: SocketAddr) -> Result<ServerCounters, BenchError> {
    let deadline = Instant::now() + ACKNOWLEDGED;
    loop {
        let now = counters(addr)?;
        if now.exposed_bytes == 0.0 || Instant::now() > deadline {
            return Ok(now);
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// What the stages of sampled calls over `transport` took.
pub(crate) fn stages(addr: SocketAddr, transport: &str) -> Result<StageStats, BenchError> {
    Ok(stages_in(&scrape(addr)?, transport))
}

/// What is missing counts as nothing.
fn stages_in(samples: &[Sample], transport: &str) -> StageStats {
    let mut out = StageStats::default();
    for class in CallClass::ALL {
        let of = |name: &str, stage: Option<&str>| {
            let mine = |s: &&Sample| {
                s.name == name
                    && s.label("transport") == Some(transport)
                    && s.label("class") == Some(class.name())
                    && s.label("stage") == stage
            };
            samples.iter().find(mine).map_or(0.0, |s| s.value)
        };
        let calls = of("rpc_sampled_calls_total", None);
        let time = |stage: Stage| {
            let seconds = of("rpc_stage_seconds_total", Some(&stage.to_string())).max(0.0);
            (stage, Duration::from_secs_f64(seconds))
        };
        *out.of_mut(class) = StageSums::new(calls as u64, Stage::SERVER.map(time));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stages_are_found_by_transport_class_and_name() {
        let text = "millrace_rpc_sampled_calls_total{transport=\"rdma\",class=\"read\"} 3\n\
                    millrace_rpc_stage_seconds_total{transport=\"rdma\",class=\"read\",stage=\"reply\"} 2e-6\n\
                    millrace_rpc_stage_seconds_total{transport=\"rdma\",class=\"write\",stage=\"reply\"} 7\n\
                    millrace_rpc_stage_seconds_total{transport=\"tcp\",class=\"read\",stage=\"reply\"} 5\n";
        let sums = StageSums::new(3, [(Stage::Reply, Duration::from_micros(2))]);
        assert_eq!(stages_in(&samples::parse(text), "rdma").of(CallClass::Read), &sums);
    }
}
