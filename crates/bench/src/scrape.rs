//! Counters of a server in another process, through its metrics endpoint.

use std::{
    net::SocketAddr,
    time::{Duration, Instant},
};

use millrace_oncrpc::{
    CallClass, Stage,
    stages::{StageStats, StageSums},
};
use millrace_program::samples::{self, Sample};

use crate::BenchError;

/// Time limit for clients to acknowledge exposed memory.
const ACKNOWLEDGE_TIMEOUT: Duration = Duration::from_secs(2);

/// Counters of a server.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct ServerCounters {
    /// Number of memory registrations.
    pub registrations: f64,
    /// Bytes of its memory that clients could access, integrated over time, in byte-seconds.
    pub exposed_byte_seconds: f64,
    /// Bytes of its memory that clients can access now; unlike the others, it can decrease.
    pub exposed_bytes: f64,
}

impl ServerCounters {
    /// The increase since `before`.
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
    samples::scrape(addr).map_err(BenchError::io("read the counters of the server"))
}

/// Reads the counters at `addr`.
fn counters(addr: SocketAddr) -> Result<ServerCounters, BenchError> {
    let samples = scrape(addr)?;
    let counter = |name: &str| {
        let found = samples.iter().find(|s| s.name == name);
        found.map(|s| s.value).ok_or_else(|| BenchError::Peer(format!("it has no metric millrace_{name}")))
    };
    Ok(ServerCounters {
        registrations: counter("rdma_registrations_total")?,
        exposed_byte_seconds: counter("rdma_exposed_byte_seconds_total")?,
        exposed_bytes: counter("rdma_exposed_bytes")?,
    })
}

/// Reads the counters after clients have acknowledged all exposed memory: a client has its data
/// before it acknowledges. Waits at most [`ACKNOWLEDGE_TIMEOUT`].
pub(crate) fn settled(addr: SocketAddr) -> Result<ServerCounters, BenchError> {
    let deadline = Instant::now() + ACKNOWLEDGE_TIMEOUT;
    loop {
        let now = counters(addr)?;
        if now.exposed_bytes == 0.0 || Instant::now() > deadline {
            return Ok(now);
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Reads the total stage times of sampled calls over `transport`.
pub(crate) fn stages(addr: SocketAddr, transport: &str) -> Result<StageStats, BenchError> {
    Ok(stages_in(&scrape(addr)?, transport))
}

/// Missing metrics count as 0.
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
    fn stages_are_selected_by_transport_class_and_name() {
        let text = "millrace_rpc_sampled_calls_total{transport=\"rdma\",class=\"read\"} 3\n\
                    millrace_rpc_stage_seconds_total{transport=\"rdma\",class=\"read\",stage=\"reply\"} 2e-6\n\
                    millrace_rpc_stage_seconds_total{transport=\"rdma\",class=\"write\",stage=\"reply\"} 7\n\
                    millrace_rpc_stage_seconds_total{transport=\"tcp\",class=\"read\",stage=\"reply\"} 5\n";
        let sums = StageSums::new(3, [(Stage::Reply, Duration::from_micros(2))]);
        assert_eq!(stages_in(&samples::parse(text), "rdma").of(CallClass::Read), &sums);
    }
}
