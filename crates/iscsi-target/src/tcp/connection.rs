//! The full feature phase of a connection.

mod commands;
mod data;

use std::{
    collections::{HashMap, VecDeque},
    future::{Future, poll_fn},
    pin::{Pin, pin},
    sync::Arc,
    task::{Context, Poll, ready},
};

use futures::{StreamExt, stream::FuturesUnordered};
use millrace_iscsi::{
    name::TargetAddress,
    session::{TargetConfig, TargetSession, TargetTransmit},
};
use millrace_oncrpc::serving::{Account, Turn};
use millrace_runtime::{BoxFuture, Sleep};
use millrace_scsi::{Aborted, InitiatorPort, Nexus, Response, Target};

use super::{
    Link, TcpTarget,
    end::End,
    input::Broken,
    login::{LoggedIn, PORTAL_GROUP},
    task::{State, Task},
    timers::Timers,
};
use crate::table::{Order, Session};
use data::Receiving;

/// The device of a normal session.
struct Device {
    target: Arc<Target>,
    nexus: Arc<Nexus>,
}

/// A command that the device executes.
struct Running {
    itt: u32,
    result: BoxFuture<'static, Result<Response, Aborted>>,
}

impl Future for Running {
    type Output = (u32, Result<Response, Aborted>);

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let result = ready!(self.result.as_mut().poll(cx));
        Poll::Ready((self.itt, result))
    }
}

/// One connection, owned by one task.
pub(super) struct Connection<'a> {
    server: &'a TcpTarget,
    link: &'a mut Link,
    session: TargetSession,
    registered: Session,
    /// `None` in a discovery session.
    device: Option<Device>,
    names: Names,
    account: Account,
    turn: Turn,
    tasks: HashMap<u32, Task>,
    /// Tags of the commands that are not executed yet, in order of arrival.
    order: VecDeque<u32>,
    /// Tags of the commands that wait for memory, in order of arrival.
    waiting: VecDeque<u32>,
    running: FuturesUnordered<Running>,
    /// Maximum of immediate and unsolicited data of a command.
    first_burst: u32,
    receiving: Receiving,
    /// Runs while the arena lacks memory.
    retry: Option<Sleep>,
    timers: Timers,
    /// Why the connection ends when all is sent; no further PDU is received.
    closing: Option<End>,
}

/// The names of a session, for discovery.
struct Names {
    initiator: millrace_iscsi::name::IscsiName,
    target: Option<millrace_iscsi::name::IscsiName>,
    local: TargetAddress,
}

impl<'a> Connection<'a> {
    pub(super) fn new(
        server: &'a TcpTarget,
        link: &'a mut Link,
        logged_in: LoggedIn,
        account: Account,
    ) -> Self {
        let LoggedIn { established, session: registered, target } = logged_in;
        let session = TargetSession::new(TargetConfig {
            parameters: established.parameters,
            remote_invalidate: false,
            discovery: established.target.is_none(),
            cid: established.cid,
            stat_sn: established.stat_sn,
            exp_cmd_sn: established.cmd_sn,
            max_tasks: server.limits.max_tasks,
            max_unsolicited: server.limits.max_unsolicited,
        });
        // A name that has passed the login is valid.
        let port = InitiatorPort::new(established.initiator.as_str(), established.isid.0).ok();
        let device = target.zip(port).map(|(config, port)| {
            let nexus = config.device.open_nexus(port);
            Device { target: config.device, nexus }
        });
        let local = link.stream.local_addr().ok();
        let local = TargetAddress {
            host: local.map_or_else(String::new, |addr| addr.ip().to_string()),
            port: local.map_or(millrace_iscsi::name::PORT, |addr| addr.port()),
            tag: Some(PORTAL_GROUP),
        };
        Self {
            server,
            link,
            session,
            registered,
            device,
            names: Names { initiator: established.initiator, target: established.target, local },
            account,
            turn: Turn::default(),
            tasks: HashMap::new(),
            order: VecDeque::new(),
            waiting: VecDeque::new(),
            running: FuturesUnordered::new(),
            first_burst: established.parameters.first_burst,
            receiving: Receiving::default(),
            retry: None,
            timers: Timers::default(),
            closing: None,
        }
    }

    /// Serves the connection to its end.
    pub(super) async fn run(&mut self, stop: impl Future<Output = ()> + Send) -> End {
        let mut stop = pin!(stop);
        let mut stopped = false;
        poll_fn(|cx| {
            let order = self.registered.control.order(cx);
            if order == Order::End || self.account.poll_evicted(cx).is_ready() {
                return Poll::Ready(End::Closed);
            }
            stopped = stopped || stop.as_mut().poll(cx).is_ready();
            if stopped || order == Order::LogOut {
                self.timers.leave(&mut self.session, &self.server.rt, &self.server.limits);
            }
            self.poll(cx)
        })
        .await
    }

    /// Processes available work; ready at the end of the connection.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<End> {
        self.turn = Turn::default();
        loop {
            let mut progress = match self.receive(cx) {
                Ok(progress) => progress,
                Err(end) => return Poll::Ready(end),
            };
            while let Poll::Ready(Some((itt, result))) = self.running.poll_next_unpin(cx) {
                self.completed(itt, result);
                progress = true;
            }
            progress |= self.grant(cx);
            self.process_events();
            progress |= self.execute_ready();
            match self.send(cx) {
                Ok(sent) => progress |= sent,
                Err(end) => return Poll::Ready(end),
            }
            if self.closing.is_some() && self.link.output.queued() == 0 {
                return Poll::Ready(self.closing.take().unwrap_or(End::Closed));
            }
            if self.turn.is_over() {
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            if progress {
                continue;
            }
            let awaits_data = self.awaits_data();
            let Self { timers, server, link, session, .. } = &mut *self;
            if let Some(end) = ready!(timers.poll(cx, &server.rt, &server.limits, link, session, awaits_data))
            {
                return Poll::Ready(end);
            }
        }
    }

    /// Whether only the peer can complete what it has begun to send or was asked for.
    fn awaits_data(&self) -> bool {
        let accepts = self.closing.is_none() && !self.receiving.waits_for_memory();
        let begun = !self.link.input.at_start() || self.tasks.values().any(|t| t.state == State::Fetching);
        accepts && begun && self.session.accepts_input()
    }

    /// Encodes PDUs and writes them. Returns whether there is progress.
    fn send(&mut self, cx: &mut Context<'_>) -> Result<bool, End> {
        let mut progress = false;
        loop {
            let mut taken = false;
            while self.closing.is_none() && self.link.output.queued() < self.server.limits.max_queued {
                match self.session.poll_transmit() {
                    Some(TargetTransmit::Pdu(pdu)) => self.push(pdu),
                    // Only iSER has RDMA Writes.
                    Some(TargetTransmit::RdmaWrite { .. }) => {}
                    Some(TargetTransmit::Close) => self.closing = Some(self.receiving.end()),
                    None => break,
                }
                taken = true;
            }
            progress |= taken;
            let sent = self.link.output.sent;
            let flushed = self.link.output.poll_flush(cx, &mut *self.link.stream);
            self.turn.received(usize::try_from(self.link.output.sent - sent).unwrap_or(usize::MAX));
            self.account.give(self.link.output.take_sent());
            match flushed {
                Poll::Ready(Ok(())) if taken && !self.turn.is_over() => {}
                Poll::Ready(Ok(())) | Poll::Pending => return Ok(progress),
                Poll::Ready(Err(e)) => return Err(Broken::from(e).into()),
            }
        }
    }

    /// Completes the commands that the device executes, and ends the nexus and the session.
    pub(super) async fn finish(mut self) {
        self.link.output.clear();
        self.order.clear();
        self.tasks.retain(|_, task| matches!(task.state, State::Running | State::Aborted));
        let charged: usize = self.tasks.values().map(|task| task.charge).sum();
        self.account.cancel();
        self.account.give(self.account.used().saturating_sub(charged));
        while let Some((itt, _)) = self.running.next().await {
            let charge = self.tasks.remove(&itt).map_or(0, |task| task.charge);
            self.account.give(charge);
        }
        if let Some(Device { target, nexus }) = &self.device {
            target.close_nexus(nexus);
        }
    }
}
