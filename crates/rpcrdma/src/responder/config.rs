//! How a responder is set up.

use std::sync::Arc;

use millrace_buffer::SPAN_BYTES;
use millrace_oncrpc::serving::ConnectionConfig;
use millrace_rdma::ConnectParams;

use crate::{
    design::{Design, ExposureLimits},
    private_data::{DEFAULT_INLINE, MAX_INLINE, PrivateData},
    registration::{Registration, Settings, Strategy},
};

/// Receives beyond the credits granted, so that a peer that is a little off does not lose its connection.
pub(super) const RECEIVE_SLACK: usize = 4;
/// What a call may carry beyond the largest payload: its head and round-up.
const READ_SLACK: usize = 64 << 10;

/// Limits and sizes of a responder; values out of range are clamped.
#[derive(Debug, Clone)]
pub struct ResponderConfig {
    /// How results reach the requester.
    pub design: Design,
    /// What the Read-Read design may expose of our memory.
    pub exposure: ExposureLimits,
    /// The most credits granted to a connection: at least 1. A connection has receives for as many as its peer asks for,
    /// up to this, as far as its account has memory for them.
    pub credits: u32,
    /// Bytes of the largest inline message, both ways: 1024 to 262144.
    pub inline_size: usize,
    /// Bytes of the largest payload of one call.
    pub max_transfer: usize,
    /// The most segments in one header, all lists together: at least 16.
    pub max_segments: usize,
    /// Bytes of the buffers into which RDMA Reads are placed: 512 to 4 MiB. The memory file system adopts whole
    /// buffers as its pages.
    pub sink_piece: usize,
    /// Whether replies may invalidate a tag of the requester (where its private data allows that).
    pub remote_invalidate: bool,
    /// How the memory of RDMA Reads and Writes is registered.
    pub registration: Arc<Registration>,
    /// Limits that are the same on every transport.
    pub connection: ConnectionConfig,
}

impl Default for ResponderConfig {
    fn default() -> Self {
        Self {
            design: Design::default(),
            exposure: ExposureLimits::default(),
            credits: 64,
            inline_size: 4096,
            max_transfer: 1 << 20,
            max_segments: 264, // A megabyte in pages, and some.
            sink_piece: 64 << 10,
            remote_invalidate: true,
            registration: Arc::new(Registration::new(Settings::new(Strategy::Cache))),
            connection: ConnectionConfig::default(),
        }
    }
}

impl ResponderConfig {
    /// What we say at connection set-up.
    pub fn private_data(&self) -> PrivateData {
        let size = self.inline_size.clamp(DEFAULT_INLINE, MAX_INLINE) & !1023;
        PrivateData {
            design: self.design,
            remote_invalidate: self.remote_invalidate,
            send_size: size,
            receive_size: size,
        }
    }

    /// `base` with what a responder needs to accept a connection: the private data, no invalidation of our tags by the
    /// peer, and a receive for the first call, which may come at once.
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

    pub(super) fn clamped(mut self) -> Self {
        self.credits = self.credits.clamp(1, 16 << 10);
        // Even one reply must be within what may be exposed.
        self.exposure.regions = self.exposure.regions.max(16);
        self.exposure.bytes = self.exposure.bytes.max(self.max_transfer.saturating_add(READ_SLACK));
        self.inline_size = self.private_data().receive_size;
        self.max_segments = self.max_segments.max(16);
        self.sink_piece = self.sink_piece.clamp(512, SPAN_BYTES);
        self
    }

    /// One Send in so many is signaled.
    pub(super) fn signal_interval(&self) -> usize {
        (self.credits as usize / 4).max(1)
    }

    /// The most bytes that one call may make us pull.
    pub(super) fn max_read(&self) -> u64 {
        self.max_transfer.saturating_add(READ_SLACK) as u64
    }
}
