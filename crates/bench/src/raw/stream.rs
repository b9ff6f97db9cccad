//! A stream of records in one direction.

use std::{
    io::{Read, Write},
    time::{Duration, Instant},
};

use millrace_buffer::{Arena, ArenaConfig, Buffer};
use millrace_program::{
    cpu,
    units::{cpu_s_per_gb, mb_per_s},
};

use super::{RawPeer, Request, read_number};
use crate::{BenchError, Figure, no_halt};

/// Size of a record in memory; writes are parts of records.
const RECORD: usize = 1 << 20;

/// Parameters of a raw TCP stream.
#[derive(Debug, Clone, Copy)]
pub struct Stream {
    /// Size of one `write` in bytes, at most 1 MiB.
    pub write: usize,
    /// Total bytes to send.
    pub total: u64,
    /// Size of the memory that each end uses in rotation, so that the data is not in the processor cache.
    pub working_set: u64,
}

/// Allocates `bytes` bytes as records, and touches every page.
pub(super) fn records(bytes: u64) -> Result<(Arena, Vec<Buffer>), BenchError> {
    let count = usize::try_from(bytes).unwrap_or(usize::MAX).div_ceil(RECORD).max(1);
    let arena = Arena::new(ArenaConfig { limit: count.saturating_mul(RECORD), huge_pages: true });
    let mut out = Vec::with_capacity(count);
    for i in 0..count {
        let mut b = arena.alloc(RECORD)?;
        b.fill(i as u8);
        out.push(b);
    }
    Ok((arena, out))
}

impl Stream {
    /// Runs once.
    ///
    /// # Errors
    /// Memory allocation, the connection or the peer fails.
    pub fn run(&self, peer: &RawPeer) -> Result<Figure, BenchError> {
        if self.write == 0 || self.write > RECORD || self.total == 0 {
            return Err(BenchError::Parameter(
                "invalid parameters: a raw write must have 1 byte to 1 MiB, and the total must be at least 1 byte".into(),
            ));
        }
        let io = || BenchError::io("send the stream");
        let (_arena, records) = records(self.working_set)?;
        let mut s = peer.connect()?;
        let request = Request::Stream { total: self.total, working_set: self.working_set };
        s.write_all(&request.encode()).map_err(io())?;
        s.read_exact(&mut [0; 1]).map_err(io())?;

        let (start, before) = (Instant::now(), cpu::own());
        let mut left = self.total as usize;
        let mut writes = 0_u64;
        'all: loop {
            for piece in records.iter().flat_map(|r| r.chunks(self.write)) {
                if left == 0 {
                    break 'all;
                }
                let piece = &piece[..piece.len().min(left)];
                s.write_all(piece).map_err(io())?;
                left -= piece.len();
                writes += 1;
            }
        }
        let sender = cpu::own() - before;
        let receiver = Duration::from_nanos(read_number(&mut s)?); // Sent after the last byte was received.
        let took = start.elapsed();
        Ok(Figure {
            workload: "raw".into(),
            test: "stream".into(),
            proto: "tcp".into(),
            threads: 1,
            no_halt: Some(no_halt::held()),
            record: self.write as u64,
            outstanding: 1,
            mb_per_s: Some(mb_per_s(self.total, took)),
            ops_per_s: Some(writes as f64 / took.as_secs_f64()),
            client_cpu_s_per_gb: Some(cpu_s_per_gb(sender, self.total)),
            server_cpu_s_per_gb: Some(cpu_s_per_gb(receiver, self.total)),
            ..Figure::default()
        })
    }
}
