//! Round trips of messages.

use std::{
    io::{Read, Write},
    time::{Duration, Instant},
};

use millrace_program::{
    cpu,
    units::{cpu_s_per_gb, cpu_us_per_op},
};

use super::{RawPeer, Request, read_number};
use crate::{BenchError, Figure, no_halt, stats::Latencies};

/// Parameters of a ping-pong measurement.
#[derive(Debug, Clone, Copy)]
pub struct PingPong {
    /// Number of round trips.
    pub count: u64,
    /// Size of the request in bytes.
    pub ping: u64,
    /// Size of the reply in bytes.
    pub pong: u64,
}

impl PingPong {
    /// Runs once over a TCP connection.
    ///
    /// # Errors
    /// The connection or the peer fails.
    pub fn run_tcp(&self, peer: &RawPeer) -> Result<Figure, BenchError> {
        self.check()?;
        let io = || BenchError::io("exchange messages");
        let mut s = peer.connect()?;
        let request = Request::PingPong { count: self.count, ping: self.ping, pong: self.pong };
        s.write_all(&request.encode()).map_err(io())?;
        let (ping, mut pong) = (vec![7; self.ping as usize], vec![0; self.pong as usize]);
        let mut latencies = Latencies::new();
        let (start, before) = (Instant::now(), cpu::own());
        for _ in 0..self.count {
            let sent = Instant::now();
            s.write_all(&ping).map_err(io())?;
            s.read_exact(&mut pong).map_err(io())?;
            latencies.record(sent.elapsed());
        }
        let (took, client) = (start.elapsed(), cpu::own() - before);
        let server = Duration::from_nanos(read_number(&mut s)?);
        Ok(self.figure("tcp", None, &latencies, Cost { took, client, server }))
    }

    pub(super) fn check(&self) -> Result<(), BenchError> {
        const MOST: u64 = 1 << 20;
        if self.count == 0 || !(1..=MOST).contains(&self.ping) || !(1..=MOST).contains(&self.pong) {
            return Err(BenchError::Parameter(
                "invalid parameters: ping and pong must have 1 byte to 1 MiB, and the count must be at least 1".into(),
            ));
        }
        Ok(())
    }

    pub(super) fn figure(
        &self,
        proto: &str,
        provider: Option<&str>,
        latencies: &Latencies,
        cost: Cost,
    ) -> Figure {
        let bytes = self.count * (self.ping + self.pong);
        Figure {
            workload: "raw".into(),
            test: format!("ping-pong {}+{} B", self.ping, self.pong),
            proto: proto.into(),
            provider: provider.map(Into::into),
            threads: 1,
            no_halt: Some(no_halt::held()),
            record: self.pong,
            outstanding: 1,
            ops_per_s: Some(self.count as f64 / cost.took.as_secs_f64()),
            p50_us: Some(latencies.percentile_us(50.0)),
            p99_us: Some(latencies.percentile_us(99.0)),
            client_cpu_s_per_gb: Some(cpu_s_per_gb(cost.client, bytes)),
            server_cpu_s_per_gb: Some(cpu_s_per_gb(cost.server, bytes)),
            client_cpu_us_per_op: Some(cpu_us_per_op(cost.client, self.count)),
            server_cpu_us_per_op: Some(cpu_us_per_op(cost.server, self.count)),
            ..Figure::default()
        }
    }
}

/// Duration and processor times of a run.
pub(super) struct Cost {
    pub(super) took: Duration,
    pub(super) client: Duration,
    pub(super) server: Duration,
}
