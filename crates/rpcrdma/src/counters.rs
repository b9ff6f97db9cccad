//! Counters of requesters and responders, which several connections of a thread may share.
//!
//! One thread at a time changes a counter, so a load and a store suffice: an atomic addition costs some twenty cycles,
//! and each call changes about ten counters.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use millrace_rdma::{ExposureMeter, ExposureStats};

/// Defines a struct of counters and its snapshot. Both include the exposure of this end's memory.
macro_rules! counters {
    (
        $(#[doc = $live_doc:literal])+ $live:ident, $snapshot:ident:
        $($(#[doc = $doc:literal])+ $name:ident,)*
    ) => {
        $(#[doc = $live_doc])+
        #[derive(Debug, Default)]
        pub struct $live {
            $($(#[doc = $doc])+ pub $name: AtomicU64,)*
            /// Meter of the exposure of this end's memory.
            pub exposure: Arc<ExposureMeter>,
        }

        #[doc = concat!("A snapshot of [`", stringify!($live), "`].")]
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
        pub struct $snapshot {
            $($(#[doc = $doc])+ pub $name: u64,)*
            /// Exposure of this end's memory to peers.
            pub exposure: ExposureStats,
        }

        impl $live {
            /// Returns the current values.
            pub fn snapshot(&self) -> $snapshot {
                $snapshot {
                    $($name: self.$name.load(Ordering::Relaxed),)*
                    exposure: self.exposure.snapshot(),
                }
            }
        }
    };
}

counters! {
    /// Counters of requesters. Several connections may share one value if one thread at a time runs them.
    RequesterStats, RequesterStatsSnapshot:
    /// Calls sent.
    calls,
    /// Accepted replies.
    replies,
    /// Calls without a reply within the time limit.
    timeouts,
    /// Calls cancelled by their callers.
    cancelled,
    /// Calls sent as RDMA_NOMSG.
    long_calls,
    /// Replies conveyed by chunk.
    long_replies,
    /// RDMA_ERROR messages received.
    transport_errors,
    /// Messages dropped: malformed, or without an open call.
    dropped,
    /// Replies with chunks or contents that violate the protocol.
    bad_replies,
    /// Bytes of RPC messages sent inline.
    inline_bytes_out,
    /// Bytes of RPC messages received inline.
    inline_bytes_in,
    /// Bytes exposed for RDMA Read.
    exposed_read_bytes,
    /// Bytes exposed for RDMA Write.
    exposed_write_bytes,
    /// Bytes placed directly, by RDMA Writes of the responder.
    placed_bytes,
    /// Tags invalidated by the responder.
    remote_invalidations,
    /// Credits in the last grant of the responder.
    credits_granted,
}

counters! {
    /// Counters of responders. Several connections may share one value if one thread at a time runs them.
    ResponderStats, ResponderStatsSnapshot:
    /// Calls received with a valid header.
    calls,
    /// Calls in progress now, including those with RDMA Reads in flight.
    calls_in_progress,
    /// Sends posted: replies and errors.
    sends,
    /// RDMA Writes posted.
    writes,
    /// RDMA Reads posted.
    reads,
    /// Bytes written by RDMA Write.
    write_bytes,
    /// Bytes read by RDMA Read.
    read_bytes,
    /// Bytes of RPC messages received inline.
    inline_bytes_in,
    /// Bytes of RPC messages sent inline.
    inline_bytes_out,
    /// Replies posted as Send with Invalidate.
    remote_invalidations,
    /// ERR_VERS errors sent.
    version_errors,
    /// ERR_CHUNK errors sent.
    chunk_errors,
    /// Messages dropped without an answer (too short, RDMA_ERROR, RDMA_DONE).
    dropped,
    /// Waits for memory of the arena within the budget.
    out_of_memory,
    /// Credits granted in the last reply.
    credits_granted,
}

/// Adds `n` to a counter that only this thread changes.
pub fn add(counter: &AtomicU64, n: usize) {
    counter.store(counter.load(Ordering::Relaxed).wrapping_add(n as u64), Ordering::Relaxed);
}

/// Subtracts `n` from a counter that only this thread changes.
pub(crate) fn sub(counter: &AtomicU64, n: usize) {
    counter.store(counter.load(Ordering::Relaxed).wrapping_sub(n as u64), Ordering::Relaxed);
}

/// Sets a counter that only this thread changes.
pub fn set(counter: &AtomicU64, n: usize) {
    counter.store(n as u64, Ordering::Relaxed);
}
