//! The honest client of a [`MaliciousServer`], and the effect of the violation.

use std::{io, sync::Arc, time::Duration};

use millrace_buffer::{Arena, ArenaConfig, Buffer};
use millrace_oncrpc::{Reply, ReplySpec, Request, RpcError, Transport};
use millrace_rdma::registration::{Registration, Settings};
use millrace_rdma_iwarp::Iwarp;
use millrace_rpcrdma::{Requester, RequesterConfig};
use millrace_runtime::{RuntimeExt, RuntimeRef};
use millrace_xdr::Encoder;

use crate::{MaliciousServer, Violation, malicious_server::LATE};

/// Size of the buffer that the call exposes, in bytes.
pub const LEN: usize = 64 << 10;
/// Number of buffers of the same size before and after it.
const AROUND: usize = 16;
const PATTERN: u8 = 0xa5;

/// Effect of a violation.
#[derive(Debug)]
pub struct Outcome {
    /// Result of the call.
    pub result: Result<Reply, RpcError>,
    /// Number of bytes changed in memory that the call did not expose.
    pub changed: usize,
    /// Number of regions that were still exposed after the call.
    pub exposed: usize,
}

impl Outcome {
    /// The data of the reply as its caller would see it, if the call succeeded with data.
    pub fn data(&self) -> Option<Vec<u8>> {
        let mut d = self.result.as_ref().ok()?.results();
        d.u32().ok()?;
        Some(d.payload(LEN).ok()?.to_vec())
    }

    /// Number of bytes of the data that the server wrote after its reply.
    pub fn late(&self) -> usize {
        self.data().map_or(0, |d| d.iter().filter(|b| **b == LATE).count())
    }
}

fn guard(arena: &Arena) -> io::Result<Buffer> {
    let mut b = arena.alloc(LEN).map_err(io::Error::other)?;
    b.fill(PATTERN);
    Ok(b)
}

/// Maximum wait for a late write: number of steps, and their duration.
const LATE_STEPS: u32 = 500;
const LATE_STEP: Duration = Duration::from_millis(10);

/// Makes one call to a malicious server, with patterned memory around its buffer. After
/// [`Violation::WritesLate`] it waits a few seconds at most for the end of the connection or a change of the
/// data.
///
/// # Errors
/// No connection.
pub async fn call(
    server: &MaliciousServer,
    violation: Violation,
    rt: RuntimeRef,
    registration: Settings,
    provider: &Iwarp,
) -> io::Result<Outcome> {
    let arena = Arena::new(ArenaConfig { limit: 64 << 20, huge_pages: false });
    let registration = Arc::new(Registration::new(registration));
    let config = RequesterConfig { registration, ..RequesterConfig::default() };
    let clock = Arc::clone(&rt);
    let requester = Requester::connect(provider, rt, arena.clone(), server.addr(), config).await;
    let requester = requester.map_err(io::Error::other)?;
    let mut around = (0..AROUND).map(|_| guard(&arena)).collect::<io::Result<Vec<Buffer>>>()?;
    let buffer = guard(&arena)?;
    for _ in 0..AROUND {
        around.push(guard(&arena)?);
    }
    let mut e = Encoder::new(&arena, 256);
    for word in [0, 0, 2, 0x2000_0001, 1, 1, 0, 0, 0, 0] {
        e.put_u32(word);
    }
    let message = e.finish().map_err(io::Error::other)?;
    let spec = ReplySpec { max_head: 64, payload: Some(buffer), ..ReplySpec::default() };
    let result = requester.submit(Request::new(message, spec)).await;
    let mut outcome = Outcome { result, changed: 0, exposed: 0 };
    for _ in 0..if violation == Violation::WritesLate { LATE_STEPS } else { 0 } {
        if requester.failure().is_some() || outcome.late() > 0 {
            break;
        }
        clock.sleep(LATE_STEP).await;
    }
    outcome.changed = around.iter().flat_map(|b| b.iter()).filter(|b| **b != PATTERN).count();
    outcome.exposed = requester.exposed().0;
    requester.close();
    Ok(outcome)
}
