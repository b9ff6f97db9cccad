//! Time limits of a connection in the full feature phase.

use std::{
    task::{Context, Poll, ready},
    time::Duration,
};

use millrace_admission::RateMonitor;
use millrace_iscsi::session::TargetSession;
use millrace_runtime::{RuntimeExt, RuntimeRef, Sleep, StallTimer};

use crate::{config::ConnectionLimits, end::End};

/// The end of a session by the target.
enum Leaving {
    /// The initiator was requested to log out.
    Asked(Sleep),
    /// The end of the connection was announced.
    Announced(Sleep),
}

/// The progress of a connection: bytes so far, and whether it waits for the peer.
pub(crate) struct Traffic {
    /// Bytes received.
    pub(crate) received: u64,
    /// Bytes that the peer, or the network on its behalf, has accepted.
    pub(crate) sent: u64,
    /// Whether something that was sent is not accepted yet.
    pub(crate) unsent: bool,
    /// Whether the connection waits for the peer: for the rest of a PDU, or for requested data.
    pub(crate) awaits_data: bool,
}

/// Time limits of a connection.
#[derive(Default)]
pub(crate) struct Timers {
    send: RateMonitor,
    receive: RateMonitor,
    quiet: StallTimer,
    leaving: Option<Leaving>,
}

impl Timers {
    /// Asks the initiator to log out, once.
    pub(crate) fn leave(&mut self, session: &mut TargetSession, rt: &RuntimeRef, limits: &ConnectionLimits) {
        if self.leaving.is_none() {
            let seconds = u16::try_from(limits.logout_timeout.as_secs()).unwrap_or(u16::MAX);
            session.request_logout(seconds);
            self.leaving = Some(Leaving::Asked(rt.sleep(limits.logout_timeout)));
        }
    }

    /// Polls all timers; ready when the connection ends. `Ready(None)`: the session has something to send. The initiator
    /// may fall behind in a transfer by `stall`.
    pub(crate) fn poll(
        &mut self,
        cx: &mut Context<'_>,
        rt: &RuntimeRef,
        limits: &ConnectionLimits,
        stall: Duration,
        session: &mut TargetSession,
        traffic: &Traffic,
    ) -> Poll<Option<End>> {
        if !traffic.unsent {
            self.send.pause();
        } else if self.send.poll(cx, rt, stall, traffic.sent).is_ready() {
            return Poll::Ready(Some(End::Stalled));
        }
        if !traffic.awaits_data {
            self.receive.pause();
        } else if self.receive.poll(cx, rt, stall, traffic.received).is_ready() {
            return Poll::Ready(Some(End::Stalled));
        }
        let mut news = self.poll_quiet(cx, rt, limits, session, traffic);
        if news.is_pending() {
            news = self.poll_leaving(cx, rt, limits, session);
        }
        news
    }

    fn poll_quiet(
        &mut self,
        cx: &mut Context<'_>,
        rt: &RuntimeRef,
        limits: &ConnectionLimits,
        session: &mut TargetSession,
        traffic: &Traffic,
    ) -> Poll<Option<End>> {
        ready!(self.quiet.poll(cx, rt, limits.ping_interval, traffic.received));
        self.quiet = StallTimer::default();
        if session.ping_outstanding() {
            return Poll::Ready(Some(End::Stalled));
        }
        session.ping();
        Poll::Ready(None)
    }

    fn poll_leaving(
        &mut self,
        cx: &mut Context<'_>,
        rt: &RuntimeRef,
        limits: &ConnectionLimits,
        session: &mut TargetSession,
    ) -> Poll<Option<End>> {
        let Some(Leaving::Asked(sleep) | Leaving::Announced(sleep)) = &mut self.leaving else {
            return Poll::Pending;
        };
        ready!(sleep.as_mut().poll(cx));
        if let Some(Leaving::Announced(_)) = self.leaving {
            return Poll::Ready(Some(End::Closed));
        }
        session.drop_connection();
        self.leaving = Some(Leaving::Announced(rt.sleep(limits.logout_timeout)));
        Poll::Ready(None)
    }
}
