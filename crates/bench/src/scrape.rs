//! What a server in another process has counted, by its metrics endpoint.

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    time::{Duration, Instant},
};

use oncrpc::{
    CallClass, Stage,
    stages::{StageStats, StageSums},
};

use crate::BenchError;

/// How long a server may take to answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long clients may take to acknowledge what they have.
const ACKNOWLEDGED: Duration = Duration::from_secs(2);
/// More than a server has to say.
const LONGEST: u64 = 1 << 20;

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

/// Asks the server whose metrics are at `addr`.
fn counters(addr: SocketAddr) -> Result<ServerCounters, BenchError> {
    let text = get(addr).map_err(BenchError::io("ask the server for its counters"))?;
    let counter =
        |name: &str| value(&text, name).ok_or_else(|| BenchError::Peer(format!("it does not count {name}")));
    Ok(ServerCounters {
        registrations: counter("millrace_rdma_registrations_total")?,
        exposed_byte_seconds: counter("millrace_rdma_exposed_byte_seconds_total")?,
        exposed_bytes: counter("millrace_rdma_exposed_bytes")?,
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
    let text = get(addr).map_err(BenchError::io("ask the server for its counters"))?;
    Ok(stages_in(&text, transport))
}

/// What is missing counts as nothing.
fn stages_in(text: &str, transport: &str) -> StageStats {
    let mut out = StageStats::default();
    for class in CallClass::ALL {
        let of = format!("transport=\"{transport}\",class=\"{}\"", class.name());
        let calls = value(text, &format!("millrace_rpc_sampled_calls_total{{{of}}}")).unwrap_or(0.0);
        let time = |stage: Stage| {
            let name = format!("millrace_rpc_stage_seconds_total{{{of},stage=\"{stage}\"}}");
            (stage, Duration::from_secs_f64(value(text, &name).unwrap_or(0.0).max(0.0)))
        };
        *out.of_mut(class) = StageSums::new(calls as u64, Stage::SERVER.map(time));
    }
    out
}

fn get(addr: SocketAddr) -> std::io::Result<String> {
    let mut stream = TcpStream::connect_timeout(&addr, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")?;
    let mut text = String::new();
    stream.take(LONGEST).read_to_string(&mut text)?;
    Ok(text)
}

/// The value of a metric, named with its labels if it has any, in the OpenMetrics text format.
fn value(text: &str, name: &str) -> Option<f64> {
    text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_metric_is_found_by_its_whole_name() {
        let text = "# TYPE a counter\na_total 17\na_total_more 3\nb_total 0.25\n# EOF\n";
        assert_eq!([value(text, "a_total"), value(text, "b_total")], [Some(17.0), Some(0.25)]);
        assert_eq!(value(text, "a"), None);
    }

    #[test]
    fn stages_are_found_by_transport_class_and_name() {
        let text = "millrace_rpc_sampled_calls_total{transport=\"rdma\",class=\"read\"} 3\n\
                    millrace_rpc_stage_seconds_total{transport=\"rdma\",class=\"read\",stage=\"reply\"} 2e-6\n\
                    millrace_rpc_stage_seconds_total{transport=\"rdma\",class=\"write\",stage=\"reply\"} 7\n\
                    millrace_rpc_stage_seconds_total{transport=\"tcp\",class=\"read\",stage=\"reply\"} 5\n";
        let sums = StageSums::new(3, [(Stage::Reply, Duration::from_micros(2))]);
        assert_eq!(stages_in(text, "rdma").of(CallClass::Read), &sums);
    }
}
