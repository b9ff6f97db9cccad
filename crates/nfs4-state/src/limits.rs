//! The parameters of a server's state.

use std::time::Duration;

/// Identity of a server instance.
#[derive(Debug, Clone, Copy)]
pub struct Identity {
    /// Number of this instance.
    pub epoch: u32,
    /// Random bytes. Client IDs, session IDs and stateids are derived from both, so that a peer can guess none of another
    /// client, and none of an earlier instance is valid.
    pub secret: [u8; 16],
}

/// Limits on what clients may hold, and times. What is limited for all clients together is divided among their addresses:
/// [`ClientQuota`](millrace_admission::ClientQuota).
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Time after which a lease expires that its client does not renew (attribute `lease_time`).
    pub lease: Duration,
    /// Time after its last renewal when a client is removed even if no other client needs its state.
    pub courtesy: Duration,
    /// Maximum number of confirmed clients.
    pub clients: usize,
    /// Number of client records that no CREATE_SESSION has confirmed. The oldest one of the address with most is dropped.
    pub unconfirmed: usize,
    /// The same for the records that one network address has created.
    pub unconfirmed_per_address: usize,
    /// Number of sessions of a client.
    pub sessions_per_client: usize,
    /// Number of slots of a session, at least 1.
    pub slots: u32,
    /// Size of a request in bytes, from the RPC header on.
    pub request_bytes: u32,
    /// Size of a reply in bytes, from the RPC header on.
    pub response_bytes: u32,
    /// Size of a reply that a slot keeps, in bytes.
    pub cached_bytes: u32,
    /// Sum of the sizes of the replies that all slots of all sessions may keep, in bytes.
    pub total_cached_bytes: u64,
    /// Number of operations of a COMPOUND.
    pub operations: u32,
    /// Number of stateids of a client: opens, and lock owners of a file.
    pub stateids_per_client: usize,
    /// Number of lock owners with a stateid for an open, which CLOSE visits.
    pub lock_owners_per_open: usize,
    /// Number of byte ranges that these have locked: CLOSE, and a LOCK or LOCKU that includes them, visits all.
    pub ranges_per_open: usize,
    /// Number of byte ranges that a client has locked.
    pub ranges_per_client: usize,
    /// Bytes of the heap for the stateids and locked ranges of all clients.
    pub heap: usize,
    /// Number of blocking requests for locks of a client that wait for a notice.
    pub waiting_per_client: usize,
    /// Number of delegations of a client. They count as stateids, too.
    pub delegations_per_client: usize,
    /// Number of delegations of all clients.
    pub delegations: usize,
    /// Time after the recall of a delegation, and after its end, in which the file is not delegated again.
    pub delegation_pause: Duration,
    /// Whether the server calls clients back; otherwise it grants no back channel.
    pub back_channel: bool,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            lease: Duration::from_secs(90),
            courtesy: Duration::from_secs(24 * 60 * 60),
            clients: 4096,
            unconfirmed: 1024,
            unconfirmed_per_address: 32,
            sessions_per_client: 16,
            slots: 64,
            request_bytes: (1 << 20) + 4096,
            response_bytes: (1 << 20) + 4096,
            cached_bytes: 4096,
            total_cached_bytes: 256 << 20,
            operations: 64,
            stateids_per_client: 1 << 16,
            lock_owners_per_open: 1 << 12,
            ranges_per_open: 1 << 14,
            ranges_per_client: 1 << 20,
            heap: 1 << 30,
            waiting_per_client: 256,
            delegations_per_client: 1 << 14,
            delegations: 1 << 17,
            delegation_pause: Duration::from_secs(30),
            back_channel: false,
        }
    }
}
