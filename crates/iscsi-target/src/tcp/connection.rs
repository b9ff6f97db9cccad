//! The full feature phase of a connection.

mod receive;

use std::{
    future::{Future, poll_fn},
    pin::pin,
    task::{Context, Poll, ready},
};

use millrace_admission::Account;
use millrace_iscsi::session::TargetTransmit;

use super::Link;
use crate::{
    end::End,
    full_feature::{FullFeature, Transport},
    login::LoggedIn,
    service::Service,
    task::CHUNK,
    timers::Traffic,
};
use receive::Receiving;

/// One connection, owned by one task.
pub(super) struct Connection<'a> {
    core: FullFeature<'a>,
    link: &'a mut Link,
    receiving: Receiving,
    /// Why the connection ends when all is sent; no further PDU is received.
    closing: Option<End>,
}

impl<'a> Connection<'a> {
    pub(super) fn new(
        service: &'a Service,
        link: &'a mut Link,
        logged_in: LoggedIn,
        account: Account,
    ) -> Self {
        let transport = Transport {
            local: link.stream.local_addr().ok(),
            chunk: CHUNK,
            remote_invalidate: false,
            divides_batches: true,
        };
        let core = FullFeature::new(service, logged_in, account, &transport);
        Self { core, link, receiving: Receiving::default(), closing: None }
    }

    /// Serves the connection to its end.
    pub(super) async fn run(&mut self, stop: impl Future<Output = ()> + Send) -> End {
        let mut stop = pin!(stop);
        poll_fn(|cx| match self.core.poll_order(cx, stop.as_mut()) {
            Poll::Ready(end) => Poll::Ready(end),
            Poll::Pending => self.poll(cx),
        })
        .await
    }

    /// Processes available work; ready at the end of the connection.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<End> {
        self.core.begin_turn(cx);
        loop {
            let mut progress = match self.receive(cx) {
                Ok(progress) => progress,
                // The responses that are queued are sent first.
                Err(end @ End::Invalid(_)) => {
                    self.closing = Some(end);
                    true
                }
                Err(end) => return Poll::Ready(end),
            };
            loop {
                progress |= self.core.run_commands(cx);
                match self.send(cx) {
                    Ok(sent) => progress |= sent,
                    Err(end) => return Poll::Ready(end),
                }
                if !self.core.divided {
                    break;
                }
            }
            if self.closing.is_some() && self.link.output.queued() == 0 {
                return Poll::Ready(self.closing.take().unwrap_or(End::Closed));
            }
            if self.core.turn.is_over() {
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            if progress {
                continue;
            }
            let traffic = Traffic {
                received: self.link.input.received,
                sent: self.link.output.sent(),
                unsent: self.link.output.queued() > 0,
                awaits_data: self.awaits_data(),
            };
            if let Some(end) = ready!(self.core.poll_timers(cx, &traffic)) {
                return Poll::Ready(end);
            }
        }
    }

    /// Whether the connection waits for the peer: for the rest of a PDU, or for requested data.
    fn awaits_data(&self) -> bool {
        let accepts = self.closing.is_none() && !self.receiving.waits_for_memory();
        let begun = !self.link.input.at_start() || self.core.is_fetching();
        accepts && begun && self.core.session.accepts_input()
    }

    /// Encodes PDUs and writes them. Returns whether there is progress.
    fn send(&mut self, cx: &mut Context<'_>) -> Result<bool, End> {
        let mut progress = false;
        loop {
            let mut taken = false;
            let max_queued = self.core.service.limits.max_queued;
            while self.closing.is_none() && self.link.output.queued() < max_queued {
                match self.core.session.poll_transmit() {
                    Some(TargetTransmit::Pdu(pdu)) => self.push(pdu),
                    // Only iSER has RDMA Writes.
                    Some(TargetTransmit::RdmaWrite { .. }) => {}
                    Some(TargetTransmit::Close) => self.closing = Some(self.receiving.end()),
                    None => break,
                }
                taken = true;
            }
            let sent = self.link.output.sent();
            let flushed = self.link.output.poll_flush(cx, &mut *self.link.stream);
            // Sent bytes make room for further PDUs, and for requests.
            taken |= self.link.output.sent() > sent;
            progress |= taken;
            self.core.turn.received(usize::try_from(self.link.output.sent() - sent).unwrap_or(usize::MAX));
            self.core.account.give(self.link.output.take_sent());
            match flushed {
                Poll::Ready(Ok(())) if taken && !self.core.turn.is_over() => {}
                Poll::Ready(Ok(())) | Poll::Pending => return Ok(progress),
                Poll::Ready(Err(e)) => return Err(End::Stream(e)),
            }
        }
    }

    /// Completes the commands that the device executes, and ends the nexus and the session.
    pub(super) async fn finish(self) {
        self.link.output.clear();
        self.core.finish().await;
    }
}
