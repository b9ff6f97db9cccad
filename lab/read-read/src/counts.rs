//! Counters of what only this design has.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counters of the connections of a [`ReadRead`](crate::ReadRead).
#[derive(Debug, Default)]
pub struct Counts {
    /// Calls sent as RDMA_MSGP.
    pub padded_calls: Count,
    /// RDMA Reads of results by requesters.
    pub result_reads: Count,
    /// RDMA_DONE messages sent by requesters.
    pub done_sent: Count,
    /// RDMA_DONE messages that released memory of responders.
    pub done_received: Count,
    /// Replies of responders that would have exceeded [`ExposureLimits`](crate::ExposureLimits).
    pub exposures_refused: Count,
}

/// One counter.
#[derive(Debug, Default)]
pub struct Count(AtomicU64);

impl Count {
    pub(crate) fn add(&self, n: usize) {
        self.0.fetch_add(n as u64, Ordering::Relaxed);
    }

    /// The value.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}
