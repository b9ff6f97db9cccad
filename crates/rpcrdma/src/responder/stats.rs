//! Counters of responders.

use crate::counters::counters;

counters! {
    /// Counters of responders. All connections of a server may share one value.
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
    /// Messages dropped without an answer (too short, RDMA_ERROR, RDMA_DONE for no reply).
    dropped,
    /// RDMA_DONE messages that released memory.
    done_received,
    /// Replies rejected because they would exceed the exposure limits.
    exposures_refused,
    /// Waits for memory of the arena within the budget.
    out_of_memory,
    /// Credits granted in the last reply.
    credits_granted,
    /// Exposed regions after the last completions; zero in the Read-Write design, except on a provider whose
    /// RDMA Reads expose their sinks.
    regions_exposed,
}
