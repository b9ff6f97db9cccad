//! Waking a responder that has overlooked the first message.
//!
//! Linux's siw sends its MPA reply before it watches the socket for FPDUs. A message that follows the reply at once lies
//! in that socket unnoticed until more bytes come, which on a connection with one call in flight is never. So an
//! initiator that gets no answer sends a few empty RDMA Writes: they place nothing, their tag is not checked (RFC 5040
//! section 5.4.2), and they are ready-to-receive messages for every implementation (RFC 6581 section 4).

use std::{
    task::{Context, Poll},
    time::Duration,
};

use millrace_runtime::{RuntimeExt, RuntimeRef, Sleep};

/// The wait before the first empty Write; it doubles with each further one.
const FIRST: Duration = Duration::from_millis(50);
/// How many are sent.
const TIMES: u32 = 4;

/// When an initiator that has sent something and received nothing sends an empty Write.
#[derive(Default)]
pub(super) struct Nudge {
    timer: Option<Sleep>,
    sent: u32,
}

impl Nudge {
    /// Whether the clock runs.
    pub(super) fn is_armed(&self) -> bool {
        self.timer.is_some()
    }

    /// Starts the clock; `Ready` when it is time for an empty Write, and for a last time `Ready(false)` when there
    /// have been enough.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>, rt: &RuntimeRef) -> Poll<bool> {
        let timer = self.timer.get_or_insert_with(|| rt.sleep(FIRST * (1 << self.sent)));
        std::task::ready!(timer.as_mut().poll(cx));
        self.timer = None;
        self.sent += 1;
        Poll::Ready(self.sent <= TIMES)
    }
}
