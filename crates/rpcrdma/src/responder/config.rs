//! Configuration of a responder.

use std::sync::Arc;

use millrace_buffer::SPAN_BYTES;
use millrace_oncrpc::serving::ConnectionConfig;

use crate::private_data::{DEFAULT_INLINE, MAX_INLINE, PrivateData};
use millrace_rdma::{
    ConnectParams,
    registration::{Registration, Settings, Strategy},
};

/// Receives in addition to the granted credits, so that a peer that slightly exceeds its credits keeps its
/// connection.
pub(super) const RECEIVE_SLACK: usize = 4;
/// Maximum bytes of a call in addition to the largest payload: its head and padding.
const READ_SLACK: usize = 64 << 10;

/// Limits and sizes of a responder. Out-of-range values are clamped.
#[derive(Debug, Clone)]
pub struct ResponderConfig {
    /// Maximum number of credits granted to a connection, 1 to 16384. A connection posts receives for the
    /// credits that its peer requests, up to this limit and to the memory of its account.
    pub credits: u32,
    /// Bytes of the largest inline message in both directions: 1024 to 262144.
    pub inline_size: usize,
    /// Bytes of the largest payload of one call.
    pub max_transfer: usize,
    /// Maximum number of segments in one header, in all lists together: at least 16.
    pub max_segments: usize,
    /// Bytes of the buffers for the data of RDMA Reads: 512 to 4 MiB. The memory file system uses whole
    /// buffers as pages.
    pub sink_piece: usize,
    /// Whether replies may invalidate a tag of the requester, if the requester's private data permits it.
    pub remote_invalidate: bool,
    /// The registration strategy for RDMA Reads and Writes.
    pub registration: Arc<Registration>,
    /// Limits that apply to all transports.
    pub connection: ConnectionConfig,
}

impl Default for ResponderConfig {
    fn default() -> Self {
        Self {
            credits: 64,
            inline_size: 4096,
            max_transfer: 1 << 20,
            max_segments: 264, // A payload of 1 MiB in pages, and 8 more.
            sink_piece: 64 << 10,
            remote_invalidate: true,
            registration: Arc::new(Registration::new(Settings::new(Strategy::Cache))),
            connection: ConnectionConfig::default(),
        }
    }
}

impl ResponderConfig {
    /// The private data that the responder sends at connection setup.
    pub fn private_data(&self) -> PrivateData {
        let size = self.inline_size.clamp(DEFAULT_INLINE, MAX_INLINE) & !1023;
        PrivateData { remote_invalidate: self.remote_invalidate, send_size: size, receive_size: size }
    }

    /// Adds the parameters of a responder to `base`: the private data, no invalidation of this end's tags by
    /// the peer, and a receive for the first call, which may arrive at once.
    pub fn connect_params(&self, base: ConnectParams) -> ConnectParams {
        let ours = self.private_data();
        let first_receive = ours.receive_size;
        ConnectParams {
            private_data: ours.encode().to_vec(),
            remote_invalidate: false,
            first_receive,
            ..base
        }
    }

    /// The configuration within its limits.
    #[must_use]
    pub fn clamped(mut self) -> Self {
        self.credits = self.credits.clamp(1, 16 << 10);
        self.inline_size = self.private_data().receive_size;
        self.max_segments = self.max_segments.max(16);
        self.sink_piece = self.sink_piece.clamp(512, SPAN_BYTES);
        self
    }

    /// Number of Sends per signaled Send.
    pub(crate) fn signal_interval(&self) -> usize {
        (self.credits as usize / 4).max(1)
    }

    /// Maximum number of bytes that one call may convey by RDMA Read.
    pub fn max_read(&self) -> u64 {
        self.max_transfer.saturating_add(READ_SLACK) as u64
    }
}
