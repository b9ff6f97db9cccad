//! Counters.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counters of the connections that share this value.
#[derive(Debug, Default)]
pub struct TargetStats {
    /// Open connections.
    pub open: AtomicU64,
    /// Connections accepted.
    pub connections: AtomicU64,
    /// Logins to targets that succeeded.
    pub logins: AtomicU64,
    /// Discovery sessions.
    pub discoveries: AtomicU64,
    /// Logins that were refused or violated the protocol.
    pub logins_refused: AtomicU64,
    /// Commands with data from the target.
    pub reads: AtomicU64,
    /// Commands with data to the target.
    pub writes: AtomicU64,
    /// Commands without data.
    pub others: AtomicU64,
    /// Commands that ended with a status other than GOOD.
    pub failed: AtomicU64,
    /// Bytes of data of reads.
    pub read_bytes: AtomicU64,
    /// Bytes of data of writes.
    pub written_bytes: AtomicU64,
    /// Bytes received.
    pub received: AtomicU64,
    /// Bytes sent.
    pub sent: AtomicU64,
    /// Commands aborted.
    pub aborted: AtomicU64,
    /// Connections closed because of a violation of the protocol or a wrong digest.
    pub malformed: AtomicU64,
    /// Connections closed because the initiator was too slow, or did not answer a NOP-In.
    pub stalled: AtomicU64,
}

/// Adds 1.
pub(crate) fn count(counter: &AtomicU64) {
    add(counter, 1);
}

/// Adds `n`.
pub(crate) fn add(counter: &AtomicU64, n: u64) {
    counter.fetch_add(n, Ordering::Relaxed);
}
