//! Configuration of a requester.

use std::{sync::Arc, time::Duration};

#[cfg(feature = "research")]
use crate::header::{MAX_ALIGN, Padding};
use crate::private_data::{DEFAULT_INLINE, Design, MAX_INLINE, PrivateData};
use millrace_rdma::{
    ConnectParams,
    registration::{Registration, Settings, Strategy},
};

/// Limits and sizes of a requester. Out-of-range values are clamped.
#[derive(Clone)]
pub struct RequesterConfig {
    /// The design: which end moves results.
    pub design: Design,
    /// Read-Read design: padding of inline calls with payloads, which are sent as RDMA_MSGP.
    #[cfg(feature = "research")]
    pub padding: Option<Padding>,
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
            design: Design::default(),
            #[cfg(feature = "research")]
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
    /// The private data that the requester sends at connection setup.
    pub fn private_data(&self) -> PrivateData {
        let size = self.inline_size.clamp(DEFAULT_INLINE, MAX_INLINE) & !1023;
        PrivateData {
            design: self.design,
            remote_invalidate: self.may_invalidate(),
            send_size: size,
            receive_size: size,
        }
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

    /// Maximum number of padding bytes before or after an item.
    pub(super) fn max_padding(&self) -> usize {
        #[cfg(feature = "research")]
        if let Some(padding) = self.padding {
            return padding.align as usize;
        }
        4
    }

    pub(super) fn clamped(mut self) -> Self {
        self.credits = self.credits.clamp(1, 16 << 10);
        #[cfg(feature = "research")]
        {
            let clamped =
                |p: Padding| Padding { align: p.align.clamp(4, MAX_ALIGN).next_multiple_of(4), ..p };
            self.padding = self.padding.filter(|_| self.design == Design::ReadRead).map(clamped);
        }
        self.inline_size = self.private_data().receive_size;
        self.max_transfer = self.max_transfer.min(millrace_buffer::SPAN_BYTES);
        self
    }
}
