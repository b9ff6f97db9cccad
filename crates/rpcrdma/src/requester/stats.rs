//! What requesters count.

use crate::counters::counters;

counters! {
    /// Counters of requesters; one value may be shared by several connections.
    RequesterStats, RequesterStatsSnapshot:
    /// Calls sent.
    calls,
    /// Calls whose reply came and was accepted.
    replies,
    /// Calls that had no reply in time.
    timeouts,
    /// Calls cancelled by their callers.
    cancelled,
    /// Calls that were sent as RDMA_NOMSG.
    long_calls,
    /// Calls that were sent as RDMA_MSGP.
    padded_calls,
    /// Replies that came by chunk.
    long_replies,
    /// RDMA Reads of results.
    reads,
    /// RDMA_DONE messages.
    done_sent,
    /// RDMA_ERROR answers.
    transport_errors,
    /// Messages dropped: undecodable, or of no open call.
    dropped,
    /// Replies whose chunks or contents break the protocol.
    bad_replies,
    /// Bytes of RPC messages sent inline.
    inline_bytes_out,
    /// Bytes of RPC messages received inline.
    inline_bytes_in,
    /// Bytes exposed for RDMA Read.
    exposed_read_bytes,
    /// Bytes exposed for RDMA Write.
    exposed_write_bytes,
    /// Bytes that were placed directly, by RDMA Write or by RDMA Reads of ours.
    placed_bytes,
    /// Tags that the responder invalidated.
    remote_invalidations,
    /// The credits that the responder granted last.
    credits_granted,
}
