//! How a requester is set up.

use std::{sync::Arc, time::Duration};

use millrace_rdma::ConnectParams;

use crate::{
    design::Design,
    header::{MAX_ALIGN, Padding},
    private_data::{DEFAULT_INLINE, MAX_INLINE, PrivateData},
    registration::{Registration, Settings, Strategy},
};

/// Limits and sizes of a requester; values out of range are clamped.
#[derive(Clone)]
pub struct RequesterConfig {
    /// How results reach us.
    pub design: Design,
    /// In the Read-Read design: send inline calls with payloads as RDMA_MSGP, padded so.
    pub padding: Option<Padding>,
    /// The most calls in flight: at least 1. As many credits are asked for as there are calls, and 8 at least, up to this;
    /// the responder may grant fewer.
    pub credits: u32,
    /// Bytes of the largest inline message, both ways: 1024 to 262144.
    pub inline_size: usize,
    /// Bytes of the largest payload of one call: at most 4 MiB.
    pub max_transfer: usize,
    /// How long a call may take, its time in the queue included.
    pub call_timeout: Duration,
    /// Whether the responder may invalidate a call's tag with its reply.
    pub remote_invalidate: bool,
    /// Whether [`RequesterStatsSnapshot::exposure`](crate::RequesterStatsSnapshot::exposure) is measured, for which each call
    /// reads the clock several times; else it is zero.
    pub measure_exposure: bool,
    /// How memory is registered.
    pub registration: Arc<Registration>,
    /// The connection set-up; private data and remote invalidation are filled in.
    pub connect: ConnectParams,
}

impl Default for RequesterConfig {
    fn default() -> Self {
        Self {
            design: Design::default(),
            padding: None,
            credits: 128,
            inline_size: 4096,
            max_transfer: millrace_buffer::SPAN_BYTES,
            call_timeout: Duration::from_secs(60),
            remote_invalidate: true,
            measure_exposure: false,
            registration: Arc::new(Registration::new(Settings::new(Strategy::Fast))),
            connect: ConnectParams::default(),
        }
    }
}

impl RequesterConfig {
    /// What we say at connection set-up.
    pub fn private_data(&self) -> PrivateData {
        let size = self.inline_size.clamp(DEFAULT_INLINE, MAX_INLINE) & !1023;
        PrivateData {
            design: self.design,
            remote_invalidate: self.may_invalidate(),
            send_size: size,
            receive_size: size,
        }
    }

    /// The parameters with which a requester connects.
    pub fn connect_params(&self) -> ConnectParams {
        ConnectParams {
            private_data: self.private_data().encode().to_vec(),
            remote_invalidate: self.may_invalidate(),
            ..self.connect.clone()
        }
    }

    /// Whether the responder may invalidate a call's tag: not where the strategy uses it again.
    fn may_invalidate(&self) -> bool {
        self.remote_invalidate && self.registration.tags_end_with_their_call()
    }

    pub(super) fn clamped(mut self) -> Self {
        self.credits = self.credits.clamp(1, 16 << 10);
        self.padding = self
            .design
            .padding(self.padding)
            .map(|p| Padding { align: p.align.clamp(4, MAX_ALIGN).next_multiple_of(4), ..p });
        self.inline_size = self.private_data().receive_size;
        self.max_transfer = self.max_transfer.min(millrace_buffer::SPAN_BYTES);
        self
    }
}
