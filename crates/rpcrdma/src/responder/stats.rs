//! What responders count.

use crate::counters::counters;

counters! {
    /// Counters of responders; one value may be shared by all connections of a server.
    ResponderStats, ResponderStatsSnapshot:
    /// Calls received with a usable header.
    calls,
    /// Calls in progress now, Reads included.
    calls_in_progress,
    /// Sends: replies and errors.
    sends,
    /// RDMA Writes posted.
    writes,
    /// RDMA Reads posted.
    reads,
    /// Bytes pushed by RDMA Write.
    write_bytes,
    /// Bytes pulled by RDMA Read.
    read_bytes,
    /// Bytes of RPC messages received inline.
    inline_bytes_in,
    /// Bytes of RPC messages sent inline.
    inline_bytes_out,
    /// Replies sent with Send with Invalidate.
    remote_invalidations,
    /// ERR_VERS answers.
    version_errors,
    /// ERR_CHUNK answers.
    chunk_errors,
    /// Messages dropped without an answer (too short, RDMA_ERROR, RDMA_DONE for no reply).
    dropped,
    /// RDMA_DONE messages with which memory was taken back.
    done_received,
    /// Replies refused because they would have exposed more than the limits allow.
    exposures_refused,
    /// Times that something had to wait because the arena had no memory, although the budget had.
    out_of_memory,
    /// Credits granted in the last reply.
    credits_granted,
    /// Regions that the peer could reach, at the last look: none in the Read-Write design (on a provider whose Reads
    /// need an exposed sink, those).
    regions_exposed,
}
