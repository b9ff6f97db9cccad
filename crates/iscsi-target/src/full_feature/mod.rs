//! The full feature phase of a connection, independently of its transport.

mod arrival;
mod commands;

use std::{
    collections::{HashMap, VecDeque},
    future::Future,
    net::SocketAddr,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use futures::{StreamExt, stream::FuturesUnordered};
use millrace_admission::{Account, Batch, Turn};
use millrace_buffer::{MemoryWait, OutOfMemory, Views};
use millrace_iscsi::{
    discovery::SendTargets,
    iser::RemoteBuffer,
    name::{IscsiName, PORT, TargetAddress},
    session::{TargetConfig, TargetSession},
};
use millrace_runtime::{BoxFuture, Sleep};
use millrace_scsi::{Aborted, InitiatorPort, Nexus, Response, Target};

use crate::{
    end::End,
    login::{LoggedIn, PORTAL_GROUP},
    service::Service,
    table::{Login, Order, Session},
    task::{SpareLists, State, Task},
    timers::{Timers, Traffic},
};
pub(crate) use arrival::Unplaced;

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

/// The names of a session, for discovery.
struct Names {
    initiator: IscsiName,
    target: Option<IscsiName>,
    local: TargetAddress,
}

/// Properties of a transport.
pub(crate) struct Transport {
    /// Address of the target.
    pub(crate) local: Option<SocketAddr>,
    /// Maximum bytes of a buffer.
    pub(crate) chunk: usize,
    /// With iSER, the initiator accepts, and the target posts, Send with Invalidate.
    pub(crate) remote_invalidate: bool,
    /// Whether the responses to commands that are ready together are sent in two parts. Over iSER, 16 READs of 4 KiB are
    /// 1.2 times as fast with it on two cores, and 15 % slower on one.
    pub(crate) divides_batches: bool,
}

/// Data of a write that RDMA Reads transfer.
#[derive(Debug)]
pub(crate) struct RdmaRead {
    pub(crate) itt: u32,
    pub(crate) source: RemoteBuffer,
    /// Offset of the first byte in the task's data, where a buffer begins.
    pub(crate) offset: u32,
}

/// The session of a connection with its commands, owned by the connection's task. The transport receives and sends
/// PDUs, and moves data.
pub(crate) struct FullFeature<'a> {
    pub(crate) service: &'a Service,
    pub(crate) session: TargetSession,
    pub(crate) account: Account,
    pub(crate) turn: Turn,
    /// The commands that are ready together, if their responses are sent in two parts.
    batch: Option<Batch>,
    /// Whether ready commands wait until the responses of the first part of the batch are sent.
    pub(crate) divided: bool,
    pub(crate) tasks: HashMap<u32, Task>,
    /// RDMA Reads that are not started, in order.
    pub(crate) rdma_reads: VecDeque<RdmaRead>,
    registered: Session,
    /// A discovery session counts as a login, and ends within its time limit.
    discovery: Option<(Login, Sleep)>,
    /// `None` in a discovery session.
    device: Option<Device>,
    names: Names,
    /// The answer to SendTargets that has further targets, and the last one that it has had.
    discovered: Option<(SendTargets, Option<IscsiName>)>,
    /// Bytes charged to the account for what the session holds.
    held: usize,
    /// Tags of the commands that are not executed yet, in order of arrival.
    order: VecDeque<u32>,
    /// Tags of the commands that wait for memory, in order of arrival.
    waiting: VecDeque<u32>,
    running: FuturesUnordered<Running>,
    /// Maximum of immediate and unsolicited data of a command.
    first_burst: u32,
    chunk: usize,
    spare: SpareLists,
    /// What the connection waits for while the arena lacks memory within the budget.
    pub(crate) memory: MemoryWait,
    timers: Timers,
    stopped: bool,
    /// Whether sense data was sent whose receipt was not reported to the device yet.
    reported: bool,
}

impl<'a> FullFeature<'a> {
    pub(crate) fn new(
        service: &'a Service,
        logged_in: LoggedIn,
        account: Account,
        transport: &Transport,
    ) -> Self {
        let LoggedIn { established, session: registered, target, discovery } = logged_in;
        let session = TargetSession::new(TargetConfig {
            parameters: established.parameters,
            remote_invalidate: transport.remote_invalidate,
            discovery: established.target.is_none(),
            cid: established.cid,
            stat_sn: established.stat_sn,
            exp_cmd_sn: established.cmd_sn,
            max_tasks: established.window(),
            max_unsolicited: service.limits.max_unsolicited,
        });
        // A name that has passed the login is valid.
        let port = InitiatorPort::new(established.initiator.as_str(), established.isid.0).ok();
        let device = target.zip(port).map(|(config, port)| {
            let nexus = config.device.open_nexus(port);
            Device { target: config.device, nexus }
        });
        let local = TargetAddress {
            host: transport.local.map_or_else(String::new, |addr| addr.ip().to_string()),
            port: transport.local.map_or(PORT, |addr| addr.port()),
            tag: Some(PORTAL_GROUP),
        };
        Self {
            service,
            session,
            account,
            turn: Turn::default(),
            batch: transport.divides_batches.then(Batch::default),
            divided: false,
            tasks: HashMap::new(),
            rdma_reads: VecDeque::new(),
            registered,
            discovery,
            device,
            names: Names { initiator: established.initiator, target: established.target, local },
            discovered: None,
            held: 0,
            order: VecDeque::new(),
            waiting: VecDeque::new(),
            running: FuturesUnordered::new(),
            first_burst: established.parameters.first_burst,
            chunk: transport.chunk,
            spare: SpareLists::default(),
            memory: MemoryWait::new(&service.arena),
            timers: Timers::default(),
            stopped: false,
            reported: false,
        }
    }

    /// Ready when the session ends at once: it is reinstated, another client needs its place, the account is evicted, the
    /// target wants more protection, the client is not trusted any more, or the time for a discovery has passed. When `stop` completes, or the
    /// target is removed, the initiator is requested to log out.
    pub(crate) fn poll_order(
        &mut self,
        cx: &mut Context<'_>,
        stop: Pin<&mut (impl Future<Output = ()> + Send)>,
    ) -> Poll<End> {
        let order = self.registered.control.order(cx);
        if order == Order::End || self.account.poll_evicted(cx).is_ready() {
            return Poll::Ready(End::Closed);
        }
        if let Poll::Ready(end) = self.service.poll_untrusted(cx) {
            return Poll::Ready(end);
        }
        if self.discovery.as_mut().is_some_and(|(_, limit)| limit.as_mut().poll(cx).is_ready()) {
            return Poll::Ready(End::Stalled);
        }
        self.stopped = self.stopped || stop.poll(cx).is_ready();
        if self.stopped || order == Order::LogOut {
            self.timers.leave(&mut self.session, &self.service.rt, &self.service.limits);
        }
        Poll::Pending
    }

    /// Takes the results of the device, gives memory to commands, and executes those whose data is there. Returns
    /// whether there is progress.
    pub(crate) fn run_commands(&mut self, cx: &mut Context<'_>) -> bool {
        let mut progress = false;
        self.confirm_sense();
        while let Poll::Ready(Some((itt, result))) = self.running.poll_next_unpin(cx) {
            self.completed(itt, result);
            progress = true;
        }
        progress |= self.grant(cx);
        self.process_events();
        progress | self.execute_ready()
    }

    /// Notifies the device if the initiator has received all sense data.
    fn confirm_sense(&mut self) {
        if self.reported
            && self.session.sense_acknowledged()
            && let Some(Device { target, nexus }) = &self.device
        {
            self.reported = false;
            target.sense_received(nexus);
        }
    }

    /// Polls all timers; ready when the connection ends. `Ready(None)`: the session has something to send.
    pub(crate) fn poll_timers(&mut self, cx: &mut Context<'_>, traffic: &Traffic) -> Poll<Option<End>> {
        let Self { timers, service, session, account, .. } = self;
        let stall = account.stall_limit(service.limits.stall_timeout);
        timers.poll(cx, &service.rt, &service.limits, stall, session, traffic)
    }

    /// Starts a turn after other tasks ran.
    pub(crate) fn begin_turn(&mut self, cx: &mut Context<'_>) {
        self.turn = Turn::default();
        // Others get the memory for which this task was woken, if it takes none in this turn.
        let _waits = self.memory.poll(cx);
    }

    /// The arena lacks memory that the budget permits.
    pub(crate) fn wait_for_memory(&mut self, e: &OutOfMemory) {
        tracing::debug!("a command waits: {e}");
        self.memory.begin(e);
    }

    /// `length` bytes at `offset` of the data of a read that has completed.
    pub(crate) fn data_in(&self, itt: u32, offset: u32, length: u32) -> Views {
        let (offset, length) = (offset as usize, length as usize);
        let data = self.tasks.get(&itt).map(|task| &task.data_in);
        let data = data.filter(|data| offset.saturating_add(length) <= data.len());
        data.map_or_else(Views::new, |data| data.slice(offset, length))
    }

    /// Whether a write waits for data that only the peer can complete.
    pub(crate) fn is_fetching(&self) -> bool {
        self.tasks.values().any(|task| task.state == State::Fetching)
    }

    /// Completes the commands that the device executes, and ends the nexus and the session.
    pub(crate) async fn finish(mut self) {
        self.order.clear();
        self.tasks.retain(|_, task| matches!(task.state, State::Running | State::Aborted) && !task.reading);
        self.account.cancel();
        self.memory.end();
        let kept: usize = self.tasks.values().map(|task| task.charge).sum();
        self.account.give(self.account.used() - kept);
        while let Some((itt, _)) = self.running.next().await {
            let charge = self.tasks.remove(&itt).map_or(0, |task| task.charge);
            self.account.give(charge);
        }
        self.confirm_sense();
        if let Some(Device { target, nexus }) = &self.device {
            target.close_nexus(nexus);
        }
    }
}
