//! Counters of requesters.

use crate::counters::counters;

counters! {
    /// Counters of requesters. Several connections may share one value.
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
    /// Calls sent as RDMA_MSGP.
    padded_calls,
    /// Replies conveyed by chunk.
    long_replies,
    /// RDMA Reads of results.
    reads,
    /// RDMA_DONE messages sent.
    done_sent,
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
    /// Bytes placed directly, by RDMA Writes of the responder or RDMA Reads of this end.
    placed_bytes,
    /// Tags invalidated by the responder.
    remote_invalidations,
    /// Credits in the last grant of the responder.
    credits_granted,
}
