//! Configuration of a requester.

use std::{sync::Arc, time::Duration};

use crate::private_data::{DEFAULT_INLINE, MAX_INLINE, PrivateData};
use millrace_rdma::{
    ConnectParams,
    registration::{Registration, Settings, Strategy},
};

/// Limits and sizes of a requester. Out-of-range values are clamped.
#[derive(Clone)]
pub struct RequesterConfig {
    /// Maximum number of calls in flight, 1 to 16384. Requests credits for the calls in progress, at least 8
    /// and at most this number; the responder may grant fewer.
    pub credits: u32,
    /// Bytes of the largest inline message in both directions: 1024 to 262144.
    pub inline_size: usize,
    /// Bytes of the largest payload of one call: at most 4 MiB.
    pub max_transfer: usize,
    /// Time limit of a call, including its time in the queue.
    pub call_timeout: Duration,
    /// Whether the responder may invalidate a call's tag with its reply.
    pub remote_invalidate: bool,
    /// Whether [`RequesterStatsSnapshot::exposure`](crate::RequesterStatsSnapshot::exposure) is measured,
    /// which reads the clock several times per call; otherwise it is zero.
    pub measure_exposure: bool,
    /// The registration strategy.
    pub registration: Arc<Registration>,
    /// Connection parameters. The requester sets the private data and remote invalidation; values given here are
    /// ignored.
    pub connect: ConnectParams,
}

impl Default for RequesterConfig {
    fn default() -> Self {
        Self {
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
    /// The private data that the requester sends at connection setup.
    pub fn private_data(&self) -> PrivateData {
        let size = self.inline_size.clamp(DEFAULT_INLINE, MAX_INLINE) & !1023;
        PrivateData { remote_invalidate: self.may_invalidate(), send_size: size, receive_size: size }
    }

    /// The parameters for connecting.
    pub fn connect_params(&self) -> ConnectParams {
        ConnectParams {
            private_data: self.private_data().encode().to_vec(),
            remote_invalidate: self.may_invalidate(),
            ..self.connect.clone()
        }
    }

    /// Whether the responder may invalidate a call's tag: only if the strategy does not reuse it.
    fn may_invalidate(&self) -> bool {
        self.remote_invalidate && self.registration.tags_are_single_use()
    }

    /// The configuration within its limits.
    #[must_use]
    pub fn clamped(mut self) -> Self {
        self.credits = self.credits.clamp(1, 16 << 10);
        self.inline_size = self.private_data().receive_size;
        self.max_transfer = self.max_transfer.min(millrace_buffer::SPAN_BYTES);
        self
    }
}
