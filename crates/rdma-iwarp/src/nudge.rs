//! Works around a responder that misses the first message.
//!
//! Linux's siw sends its MPA reply before it watches the socket for FPDUs. A message that arrives directly
//! after the reply stays unread in that socket until more bytes arrive, which never happens on a connection
//! with one call in flight. So an initiator that gets no answer sends a few empty RDMA Writes: they place no
//! data, their tag is not checked (RFC 5040 section 5.4.2), and every implementation accepts them as
//! ready-to-receive messages (RFC 6581 section 4).

use std::{
    task::{Context, Poll},
    time::Duration,
};

use millrace_runtime::{RuntimeExt, RuntimeRef, Sleep};

/// Delay before the first empty Write; doubled for each further one.
const FIRST: Duration = Duration::from_millis(50);
/// Number of empty Writes.
const TIMES: u32 = 4;

/// Schedule of empty Writes of an initiator that has sent a message and received nothing.
#[derive(Default)]
pub(super) struct Nudge {
    timer: Option<Sleep>,
    sent: u32,
}

impl Nudge {
    /// Whether the timer runs.
    pub(super) fn is_armed(&self) -> bool {
        self.timer.is_some()
    }

    /// Starts the timer. `Ready(true)` when an empty Write is due; `Ready(false)` after the last one.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>, rt: &RuntimeRef) -> Poll<bool> {
        let timer = self.timer.get_or_insert_with(|| rt.sleep(FIRST * (1 << self.sent)));
        std::task::ready!(timer.as_mut().poll(cx));
        self.timer = None;
        self.sent += 1;
        Poll::Ready(self.sent <= TIMES)
    }
}
