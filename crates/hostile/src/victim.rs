//! The honest client's end of a connection to a [`Liar`]: what the lie came to.

use std::{io, sync::Arc, time::Duration};

use millrace_buffer::{Arena, ArenaConfig, Buffer};
use millrace_oncrpc::{Reply, ReplySpec, Request, RpcError, Transport};
use millrace_rdma_iwarp::Iwarp;
use millrace_rpcrdma::{
    Requester, RequesterConfig,
    registration::{Registration, Settings},
};
use millrace_runtime::{RuntimeExt, RuntimeRef};
use millrace_xdr::Encoder;

use crate::{Liar, Lie, liar::LATE};

/// Bytes of the buffer that the call exposes.
pub const LEN: usize = 64 << 10;
/// Buffers of the same size before and behind it.
const AROUND: usize = 16;
const PATTERN: u8 = 0xa5;

/// What a lie came to.
#[derive(Debug)]
pub struct Outcome {
    /// How the call ended.
    pub result: Result<Reply, RpcError>,
    /// Bytes changed in memory that the call did not expose.
    pub changed: usize,
    /// Regions that were still exposed when the call had ended.
    pub exposed: usize,
}

impl Outcome {
    /// The data of the reply, if the call has ended with data: every byte, as its caller would see it.
    pub fn data(&self) -> Option<Vec<u8>> {
        let mut d = self.result.as_ref().ok()?.results();
        d.u32().ok()?;
        Some(d.payload(LEN).ok()?.to_vec())
    }

    /// Bytes of the data that the liar wrote after its reply.
    pub fn late(&self) -> usize {
        self.data().map_or(0, |d| d.iter().filter(|b| **b == LATE).count())
    }
}

fn guard(arena: &Arena) -> io::Result<Buffer> {
    let mut b = arena.alloc(LEN).map_err(io::Error::other)?;
    b.fill(PATTERN);
    Ok(b)
}

/// How long a late write is waited for, in steps of so long.
const LATE_STEPS: u32 = 500;
const LATE_STEP: Duration = Duration::from_millis(10);

/// Makes one call to a liar, with patterned memory around its buffer. After [`Lie::WritesLate`] it waits until the
/// connection has ended by it, or the data has changed; for a few seconds at most.
///
/// # Errors
/// When there is no connection.
pub async fn call(
    liar: &Liar,
    lie: Lie,
    rt: RuntimeRef,
    registration: Settings,
    provider: &Iwarp,
) -> io::Result<Outcome> {
    let arena = Arena::new(ArenaConfig { limit: 64 << 20, huge_pages: false });
    let registration = Arc::new(Registration::new(registration));
    let config = RequesterConfig { registration, ..RequesterConfig::default() };
    let clock = Arc::clone(&rt);
    let requester = Requester::connect(provider, rt, arena.clone(), liar.addr(), config).await;
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
    let spec = ReplySpec { max_head: 64, payload: Some(buffer) };
    let result = requester.submit(Request::new(message, spec)).await;
    let mut outcome = Outcome { result, changed: 0, exposed: 0 };
    for _ in 0..if lie == Lie::WritesLate { LATE_STEPS } else { 0 } {
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
