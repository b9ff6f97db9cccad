//! The responder: the server's end of a connection. It is that of RFC 8166 with another treatment of replies: long ones
//! are exposed ([`exposer`]).
//!
//! One task owns the queue pair and all state of the connection. The states of a call are: received; queued
//! until its memory is charged to the connection's account; RDMA Reads in flight ([`pull`]), if
//! it has Read chunks; in progress at the service; answered. A call
//! that the service answers immediately passes all states in one poll, without a task and, in steady state,
//! without heap allocation.

mod exposer;

use std::{
    collections::VecDeque,
    future::Future,
    pin::pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use futures::FutureExt;
use millrace_buffer::{Buffer, OutOfMemory, View, Views};
use millrace_oncrpc::{
    CallbackQueue, Message, ReceivedCall, Service, Stage, Stages,
    serving::{Answer, CloseReason, Reservation, ServerConnection},
};
use millrace_runtime::{Instant, RuntimeExt, Sleep};
use smallvec::SmallVec;

use self::exposer::{Acknowledged, Exposer, Exposing, Plan, ReplyTooLong};
use crate::{
    ExposureLimits, ReadRead,
    padding::{HEADER, Padding},
    private_data,
};
use millrace_rdma::{
    Completion, ConnectionError, PostError, QueuePair, SendRequest, WorkId, ignore_closed,
    registration::{Local, LocalRegistration, LocalRegistrations},
};
use millrace_rpcrdma::{
    Accepted, Body, Credits, Header, HeaderError, Lists, MIN_CALL, Progress, ResponderConfig, ResponderStats,
    Thresholds, TransportError, VERSION,
    chunks::{capacity, common_tag},
    counters::add,
    pull::{self, MessageLayout, PlannedRead, Pulls, Sources},
};

/// Polls of the queue pair before the responder yields to other tasks.
const MAX_ITERATIONS: usize = 32;
/// Bytes at the start of a call's head that are contiguous: more than any head has.
const HEAD_BYTES: usize = 64 << 10;
/// Bytes of a reply in addition to its results.
const REPLY_SLACK: u64 = 1024;
/// Time limit for the peer to close its end of a connection that this end closed.
const CLOSE_LIMIT: Duration = Duration::from_secs(5);

/// Properties of a call that its reply needs.
struct ReplyTo {
    xid: u32,
    lists: Lists,
    stages: Stages,
    /// Bytes charged to the account for the reply, or for the call while it has no reply.
    charge: usize,
}

impl AsRef<Stages> for ReplyTo {
    fn as_ref(&self) -> &Stages {
        &self.stages
    }
}

/// A call with RDMA Reads in flight.
struct ReadingCall {
    to: ReplyTo,
    /// Registrations of the sinks.
    sinks: LocalRegistrations,
}

/// A call that waits for its predecessors or for memory of the account.
#[allow(clippy::large_enum_variant)] // A box would take memory from the heap for each call.
enum Waiting {
    /// A call with Read chunks.
    Chunks { to: ReplyTo, inline: Option<View>, layout: MessageLayout, reads: SmallVec<[PlannedRead; 2]> },
    /// The number of a call whose RDMA Reads are complete.
    ReadsComplete(usize),
    /// A complete call.
    Complete { to: ReplyTo, call: ReceivedCall },
}

/// A reply that waits for memory of the arena.
struct DeferredReply {
    plan: Plan,
    invalidate: Option<millrace_rdma::SteeringTag>,
    stages: Stages,
    charge: usize,
}

/// A posted reply and the resources that its completion releases.
struct Sent {
    /// Work request of its Send.
    id: u64,
    /// Bytes charged to the account.
    charge: usize,
    stages: Stages,
}

/// The server's end of one connection.
pub struct Responder {
    core: ServerConnection<ReplyTo>,
    /// Finds the data of calls with padding.
    service: Arc<dyn Service>,
    qp: Box<dyn QueuePair>,
    config: ResponderConfig,
    stats: Arc<ResponderStats>,
    exposer: Exposer,
    /// Whether the requester has agreed to the design.
    is_agreed: bool,
    /// Bytes of the largest RDMA Read.
    max_transfer: usize,
    /// Whether both ends and the provider support Send with Invalidate.
    invalidate: bool,
    completions: Vec<Completion>,
    local: Local,
    /// Calls that are not started, in order.
    waiting: VecDeque<Waiting>,
    pulls: Pulls<ReadingCall>,
    deferred: VecDeque<DeferredReply>,
    /// Replies whose Sends are not complete, in order.
    sent: VecDeque<Sent>,
    /// Time at which the current messages were received, if one of them is a sampled call.
    received_at: Option<Instant>,
    credits: Credits,
    progress: Progress,
    ending: Ending,
}

/// Progress of closing a connection from this end.
enum Ending {
    No,
    /// New calls are dropped; those in progress are answered.
    Draining,
    /// All calls are answered; the timer limits the wait for the peer to close.
    Closing(Sleep),
}

impl Responder {
    /// Creates a responder on a connection that was accepted with
    /// [`accept_params`](millrace_rpcrdma::Protocol::accept_params), and posts its receives.
    ///
    /// # Errors
    /// The arena has no memory for the receives, or the design does not support the registration strategy.
    pub fn new(
        connection: Accepted,
        config: ResponderConfig,
        protocol: ReadRead,
        stats: Arc<ResponderStats>,
    ) -> Result<Self, ConnectionError> {
        let Accepted { qp, peer, service, rt, arena, account, session } = connection;
        let config = config.clamped();
        let local = config.registration.local(qp.domain(), &rt);
        let theirs = private_data::decode(&qp.info().private_data);
        let thresholds = Thresholds::negotiate(&config.private_data(), theirs.as_ref());
        let caps = qp.capabilities();
        let invalidate = config.remote_invalidate
            && caps.send_with_invalidate
            && theirs.is_some_and(|p| p.remote_invalidate);
        let max_transfer = caps.max_transfer;
        // The limits must permit at least one reply.
        let ExposureLimits { regions, bytes, done_timeout } = protocol.exposure;
        let max_reply = config.max_read();
        let limits = ExposureLimits {
            regions: regions.max(16),
            bytes: bytes.max(usize::try_from(max_reply).unwrap_or(usize::MAX)),
            done_timeout,
        };
        let exposer = Exposer::new(Exposing {
            domain: stats.exposure.meter(qp.domain(), &rt),
            registration: Arc::clone(&config.registration),
            region_pieces: caps.max_region_pieces.max(1),
            segment: caps.max_segment.max(1),
            max_reply,
            inline: thresholds.send,
            arena: arena.clone(),
            rt: Arc::clone(&rt),
            limits,
            counts: protocol.counts,
            zeros: arena.copy_from(&[0; 4]).map_err(no_memory)?,
        })?;
        let credits = config.credits.min(exposer.max_credits(max_reply)).max(1);
        let config = ResponderConfig { credits, ..config };
        // The service is notified that this connection has no calls in the reverse direction.
        drop(service.callbacks().cloned().map(CallbackQueue::new));
        let mut core =
            ServerConnection::new(peer, Arc::clone(&service), rt, arena, config.connection.clone(), account);
        if let Some(session) = session {
            core.secured(session);
        }
        let credits = Credits::new(&config, &mut core.account, Arc::clone(&stats));
        let mut this = Self {
            core,
            service,
            qp,
            config,
            stats,
            exposer,
            is_agreed: theirs.is_some(),
            max_transfer,
            invalidate,
            completions: Vec::new(),
            local,
            waiting: VecDeque::new(),
            pulls: Pulls::new(HEAD_BYTES),
            deferred: VecDeque::new(),
            sent: VecDeque::new(),
            received_at: None,
            credits,
            progress: Progress::default(),
            ending: Ending::No,
        };
        this.replenish()?;
        Ok(this)
    }

    /// Serves until the connection ends. Then the peer's resources are released at once. Calls in progress at
    /// the service are completed (a rename is not left unfinished), and their replies dropped.
    ///
    /// # Errors
    /// The reason for the end of the connection, unless the peer closed it or it was idle.
    pub async fn run(self) -> Result<(), ConnectionError> {
        self.run_until(std::future::pending()).await
    }

    /// As [`Self::run`]; when `stop` completes, drops further calls, answers those in progress, and closes.
    ///
    /// # Errors
    /// The reason for the end of the connection, unless the peer closed it or it was idle.
    pub fn run_until(
        self,
        stop: impl Future<Output = ()>,
    ) -> impl Future<Output = Result<(), ConnectionError>> {
        // In a box, because each future that it passes through has room for it.
        let mut this = Box::new(self);
        async move {
            let mut stop = pin!(stop.fuse());
            let end = std::future::poll_fn(|cx| {
                if matches!(this.ending, Ending::No) && stop.poll_unpin(cx).is_ready() {
                    this.drain();
                }
                this.poll(cx)
            })
            .await;
            let Self { qp, exposer, waiting, pulls, deferred, sent, completions, credits, .. } = *this;
            drop((exposer, qp, waiting, pulls, deferred, sent, completions, credits));
            this.core.finish().await;
            end
        }
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), ConnectionError>> {
        if self.core.poll_unwanted(cx).is_ready() {
            return Poll::Ready(Ok(()));
        }
        ready!(self.core.begin_turn(cx));
        for _ in 0..MAX_ITERATIONS {
            match self.run_once(cx) {
                Ok(progress) => {
                    if self.poll_ending(cx).is_ready() {
                        return Poll::Ready(Ok(()));
                    }
                    if !progress && !self.watch_idle(cx) {
                        return self.poll_stalled(cx).map(Err);
                    }
                }
                Err(ConnectionError::Closed) => return Poll::Ready(Ok(())),
                Err(e) => return Poll::Ready(Err(e)),
            }
            if self.core.turn.is_over() {
                break;
            }
        }
        self.qp.flush(cx);
        self.core.end_turn(cx);
        Poll::Pending
    }

    /// Runs one iteration. Returns whether there was progress.
    fn run_once(&mut self, cx: &mut Context<'_>) -> Result<bool, ConnectionError> {
        let mut progress = false;
        let mut completions = std::mem::take(&mut self.completions);
        match self.qp.poll(cx, &mut completions) {
            Poll::Ready(Ok(())) => {
                progress = true;
                self.received_at = self.core.now_if_due(completions.len());
                let handled = completions.drain(..).try_for_each(|c| self.complete(cx, c));
                self.core.batch.end();
                handled?;
            }
            Poll::Ready(Err(e)) => return Err(e),
            Poll::Pending => {}
        }
        self.completions = completions;
        while let Poll::Ready(answer) = self.core.poll_answer(cx) {
            progress = true;
            self.answer(answer)?;
        }
        progress |= self.begin_calls(cx)?;
        progress |= self.post_reads(cx)?;
        progress |= self.post_deferred(cx)?;
        Ok(progress)
    }

    /// Number of calls whose replies are not posted or not acknowledged.
    fn open_calls(&self) -> usize {
        self.credits.active() + self.deferred.len() + self.exposer.unacknowledged()
    }

    /// Starts to close the connection.
    fn drain(&mut self) {
        self.ending = Ending::Draining;
    }

    fn poll_ending(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if matches!(self.ending, Ending::Draining) && self.open_calls() == 0 {
            self.qp.disconnect();
            self.qp.flush(cx);
            self.ending = Ending::Closing(self.core.rt.sleep(CLOSE_LIMIT));
        }
        match &mut self.ending {
            Ending::Closing(limit) => limit.poll_unpin(cx),
            _ => Poll::Pending,
        }
    }

    /// Ready if the peer does not acknowledge replies, or makes no progress with RDMA Reads or Sends, whose
    /// memory it holds.
    fn poll_stalled(&mut self, cx: &mut Context<'_>) -> Poll<ConnectionError> {
        if let Poll::Ready(e) = self.exposer.poll_overdue(cx) {
            return Poll::Ready(e);
        }
        let (rt, limit) = (&self.core.rt, self.core.stall_limit());
        let (reads, replies) = (self.pulls.in_flight() > 0, self.credits.awaits_completion());
        let what = ready!(self.progress.poll_stalled(cx, rt, limit, reads, replies));
        self.core.closed(CloseReason::Stalled);
        Poll::Ready(ConnectionError::PeerMisbehaved(what.into()))
    }

    /// Starts to close an idle connection. Returns whether it was idle. Later calls are dropped; the peer may
    /// send them again on another connection.
    fn watch_idle(&mut self, cx: &mut Context<'_>) -> bool {
        if self.open_calls() > 0 || !matches!(self.ending, Ending::No) || self.core.poll_idle(cx).is_pending()
        {
            return false;
        }
        self.drain();
        true
    }

    fn complete(&mut self, cx: &mut Context<'_>, completion: Completion) -> Result<(), ConnectionError> {
        match completion {
            Completion::Received { buffer, .. } => {
                self.process_message(cx, buffer)?;
                if self.core.batch.call() {
                    self.qp.flush(cx);
                }
                Ok(())
            }
            Completion::Read { id, sink } => self.process_read(id, sink),
            Completion::Sent(id) => {
                self.credits.sent(id);
                self.sends_completed(id.0);
                self.replenish()
            }
        }
    }

    /// Releases the memory and registrations of all replies up to this Send.
    fn sends_completed(&mut self, id: u64) {
        while let Some(Sent { charge, stages, .. }) = self.sent.pop_front_if(|s| s.id <= id) {
            self.core.account.give(charge);
            self.progress.replied(charge as u64);
            stages.end(Stage::Completion);
            self.core.finish_stages(stages);
        }
    }

    /// Processes a message (RFC 8166 section 4.5).
    fn process_message(&mut self, cx: &mut Context<'_>, buffer: Buffer) -> Result<(), ConnectionError> {
        self.credits.received();
        let turn = self.core.now_if_due(1);
        let short = buffer.len() < MIN_CALL;
        let padded = Padding::decode(&buffer);
        let padding = padded.as_ref().map(|(_, padding)| *padding);
        let decoded = match padded {
            Some((header, _)) => Ok((header, HEADER)),
            None => Header::decode(&buffer, self.config.max_segments),
        };
        if let Ok((Header { xid, body: Body::Done, .. }, _)) = &decoded
            && let Some(Acknowledged { stages, charge }) = self.exposer.done(*xid)
        {
            self.core.account.give(charge);
            self.core.finish_stages(stages);
            return self.recycle(buffer);
        }
        let (header, at) = match decoded {
            Ok((Header { body: Body::Error(_), .. }, _)) => return self.drop_message(buffer),
            _ if short => return self.drop_message(buffer),
            Ok(decoded) => decoded,
            Err(HeaderError::Version { xid, vers }) => {
                self.recycle(buffer)?;
                return self.refuse_version(xid, vers);
            }
            Err(e @ HeaderError::Malformed { xid, .. }) => {
                tracing::debug!(peer = %self.core.peer.addr, "{e}");
                self.recycle(buffer)?;
                let credits = self.grant()?;
                return self.refuse_chunks(xid, credits);
            }
            Err(HeaderError::Short(_) | HeaderError::UnknownError { .. }) => {
                return self.drop_message(buffer);
            }
        };
        tracing::trace!(peer = %self.core.peer.addr, "call {header}");
        // Late, obsolete or invalid in a requester's message; RFC 8166 requires no reply.
        if matches!(header.body, Body::Done) {
            return self.drop_message(buffer);
        }
        if let Err(what) = self.admit(&header.body) {
            tracing::debug!(peer = %self.core.peer.addr, xid = header.xid, "call refused: {what}");
            self.recycle(buffer)?;
            let credits = self.grant()?;
            return self.refuse_chunks(header.xid, credits);
        }
        if matches!(self.ending, Ending::Draining | Ending::Closing(_)) {
            return self.drop_message(buffer);
        }
        self.credits.begin_call(header.credits);
        let (lists, inline) = header.body.into_parts(at, buffer.freeze());
        let stages = self.core.sample(self.received_at, turn);
        self.queue(cx, ReplyTo { xid: header.xid, lists, stages, charge: 0 }, inline, padding)
    }

    /// Checks that a message is a call of this design.
    ///
    /// # Errors
    /// The reason; the answer is ERR_CHUNK.
    fn admit(&self, body: &Body) -> Result<(), &'static str> {
        match body {
            _ if !self.is_agreed => Err("the requester has not agreed to the Read-Read design"),
            Body::Msg(l) | Body::NoMsg(l) if !l.writes.is_empty() || l.reply.is_some() => {
                Err("chunks for results, which the Read-Read design does not have")
            }
            _ => Ok(()),
        }
    }

    /// Starts or queues a call with a decoded header.
    fn queue(
        &mut self,
        cx: &mut Context<'_>,
        mut to: ReplyTo,
        inline: Option<View>,
        padding: Option<Padding>,
    ) -> Result<(), ConnectionError> {
        if let Some(inline) = &inline {
            add(&self.stats.inline_bytes_in, inline.len());
            if inline.first_chunk() != Some(&to.xid.to_be_bytes()) {
                return self.answer_error(to.xid);
            }
        }
        let layout = match pull::check(&mut to.lists.reads, inline.as_ref(), self.config.max_read()) {
            Ok(layout) => layout,
            Err(what) => {
                tracing::debug!(peer = %self.core.peer.addr, xid = to.xid, "call refused: {what}");
                return self.answer_error(to.xid);
            }
        };
        to.stages.end(Stage::Decode);
        let reads = pull::plan(&to.lists.reads, None, self.max_transfer);
        match inline {
            Some(inline) if reads.is_empty() => {
                let message = match padding {
                    None => Message::from_view(inline),
                    Some(padding) => {
                        let plan = self.service.plan_of_prefix(&inline, inline.len());
                        let data = plan.data_offset.map(|at| at as usize);
                        padding.remove(inline, data, &self.core.arena).map_err(no_memory)?
                    }
                };
                let call = self.core.receive(message);
                // The queue would move the call several times.
                if self.waiting.is_empty()
                    && !self.core.turn.is_over()
                    && let Poll::Ready(reservation) = self.core.poll_reserve(cx, to.charge, &call)
                {
                    return self.execute(to, call, reservation);
                }
                self.waiting.push_back(Waiting::Complete { to, call });
            }
            inline => {
                to.charge = self.memory_of(&to.lists, &reads, &layout);
                self.waiting.push_back(Waiting::Chunks { to, inline, layout, reads });
            }
        }
        Ok(())
    }

    /// Bytes of memory that a call with Read chunks needs: the maximum of its sinks and its results. All
    /// bytes are charged before the call starts, because calls that hold a part and wait for the rest could
    /// deadlock.
    fn memory_of(&self, lists: &Lists, reads: &[PlannedRead], layout: &MessageLayout) -> usize {
        let sinks: usize = reads.iter().map(|r| r.memory(self.config.sink_piece)).sum();
        let reservation = lists.writes.iter().chain(&lists.reply).map(|chunk| capacity(chunk)).sum::<u64>();
        let results = reservation.min(self.config.max_read()) + REPLY_SLACK;
        (sinks + pull::memory_to_join(reads, layout, HEAD_BYTES)).max(results as usize)
    }

    /// Starts queued calls in order while the account has memory and the turn lasts. Returns whether a call
    /// was started.
    fn begin_calls(&mut self, cx: &mut Context<'_>) -> Result<bool, ConnectionError> {
        let mut progress = false;
        while !self.core.turn.is_over()
            && let Some(next) = self.waiting.front()
        {
            let reservation = match next {
                Waiting::Chunks { to, .. } => self.core.account.poll_take(cx, to.charge).map(|()| None),
                Waiting::ReadsComplete(_) => self.core.memory.poll(cx).map(|()| None),
                Waiting::Complete { to, call } => self.core.poll_reserve(cx, to.charge, call).map(Some),
            };
            let Poll::Ready(reservation) = reservation else { break };
            match (self.waiting.pop_front(), reservation) {
                (Some(Waiting::Chunks { to, inline, layout, reads }), _) => {
                    let reading = ReadingCall { to, sinks: LocalRegistrations::new() };
                    self.pulls.open(reading, inline, layout, reads);
                }
                (Some(Waiting::ReadsComplete(at)), _) => self.reads_completed(at)?,
                (Some(Waiting::Complete { to, call }), Some(reservation)) => {
                    self.execute(to, call, reservation)?;
                }
                (Some(Waiting::Complete { .. }) | None, _) => break, // The queue has not changed.
            }
            progress = true;
        }
        Ok(progress)
    }

    /// Executes a complete call with reserved memory.
    fn execute(
        &mut self,
        mut to: ReplyTo,
        call: ReceivedCall,
        reservation: Reservation,
    ) -> Result<(), ConnectionError> {
        if call.is_discarded() {
            self.core.release(reservation);
            self.credits.end_call();
            self.drain();
            return Ok(());
        }
        to.charge = reservation.charge();
        match self.core.call(call, to, reservation) {
            Some(answer) => self.answer(answer),
            None => Ok(()),
        }
    }

    /// Delays the operation until the arena has memory, which it lacks although the account has not reached
    /// its limit.
    fn wait_for_arena(&mut self, e: &OutOfMemory) {
        add(&self.stats.out_of_memory, 1);
        self.core.wait_for_memory(e);
    }

    /// Posts RDMA Reads of started calls up to the connection's limit, and allocates their sinks. Returns
    /// whether one was posted.
    fn post_reads(&mut self, cx: &mut Context<'_>) -> Result<bool, ConnectionError> {
        let most = usize::from(self.qp.info().ord).max(1);
        let mut progress = false;
        while self.pulls.has_planned()
            && self.pulls.in_flight() < most
            && self.core.memory.poll(cx).is_ready()
        {
            let sources = Sources { arena: &self.core.arena, piece: self.config.sink_piece };
            let (read, reading) = match self.pulls.next_read(&sources) {
                Ok(Some(next)) => next,
                Ok(None) => break,
                Err(e) => {
                    self.wait_for_arena(&e);
                    continue; // The poll then waits for memory.
                }
            };
            let stages = reading.to.stages.clone();
            stages.end(Stage::Buffer);
            let held = self.local.sink(&read.sink);
            if held.as_ref().is_some_and(LocalRegistration::is_per_operation) {
                stages.end(Stage::Registration);
            }
            reading.sinks.extend(held);
            add(&self.stats.reads, 1);
            add(&self.stats.read_bytes, read.from.length as usize);
            ignore_closed(self.qp.post_read(read))?;
            progress = true;
        }
        Ok(progress)
    }

    /// Processes the completion of an RDMA Read. The last one of a call queues the call.
    fn process_read(&mut self, id: WorkId, sink: Vec<Buffer>) -> Result<(), ConnectionError> {
        self.progress.read(sink.iter().map(|b| b.len() as u64).sum());
        match self.pulls.completed(id, sink) {
            Some(at) => self.reads_completed(at),
            None => Ok(()),
        }
    }

    /// Assembles a call whose RDMA Reads are complete.
    fn reads_completed(&mut self, at: usize) -> Result<(), ConnectionError> {
        match self.pulls.take(at, &self.core.arena) {
            Some(Ok((reading, message))) => self.call_complete(reading, message),
            Some(Err(e)) => {
                self.wait_for_arena(&e);
                self.waiting.push_front(Waiting::ReadsComplete(at));
                Ok(())
            }
            None => Ok(()),
        }
    }

    /// Queues a call whose RDMA Reads are complete before the calls without memory.
    fn call_complete(&mut self, reading: ReadingCall, message: Message) -> Result<(), ConnectionError> {
        let ReadingCall { to, sinks } = reading;
        to.stages.end(Stage::ReadWait);
        if sinks.iter().any(LocalRegistration::is_per_operation) {
            drop(sinks);
            to.stages.end(Stage::Deregistration);
        }
        if message.xid() != Some(to.xid) {
            self.core.account.give(to.charge);
            return self.answer_error(to.xid);
        }
        let call = self.core.receive(message);
        to.stages.end(Stage::Decode);
        self.waiting.push_front(Waiting::Complete { to, call });
        Ok(())
    }

    fn answer(&mut self, answer: Answer<ReplyTo>) -> Result<(), ConnectionError> {
        let Answer { mut to, reply, charge } = answer;
        self.credits.end_call();
        to.charge = self.core.settle(charge, reply.as_ref());
        // The peer does not get back the credit of a call without a reply.
        let Some(message) = reply else { return self.replenish() };
        let credits = self.grant()?;
        match self.exposer.plan(&to, credits, message) {
            Ok(plan) => {
                self.replenish()?; // A reply that awaits RDMA_DONE needs a receive for it.
                let invalidate = if self.invalidate { common_tag(&to.lists) } else { None };
                // The design holds the memory of such a reply until RDMA_DONE.
                let charge = if plan.awaits_done { 0 } else { to.charge };
                self.post_reply(DeferredReply { plan, invalidate, stages: to.stages, charge })
            }
            Err(ReplyTooLong) => {
                self.core.account.give(to.charge);
                self.refuse_chunks(to.xid, credits)
            }
        }
    }

    /// Posts deferred replies. Returns whether one was posted. The remaining ones wait for memory.
    fn post_deferred(&mut self, cx: &mut Context<'_>) -> Result<bool, ConnectionError> {
        let waiting = self.deferred.len();
        while !self.deferred.is_empty()
            && self.core.memory.poll(cx).is_ready()
            && let Some(reply) = self.deferred.pop_front()
        {
            self.post_reply(reply)?;
        }
        Ok(self.deferred.len() < waiting)
    }

    fn post_reply(&mut self, mut reply: DeferredReply) -> Result<(), ConnectionError> {
        let Plan { header, inline, only_head, .. } = &mut reply.plan;
        let inline_bytes = inline.len();
        let data = match header.with_message(inline, *only_head, &self.core.arena) {
            Ok(data) => data,
            Err(e) => {
                self.wait_for_arena(&e);
                self.deferred.push_back(reply);
                return Ok(());
            }
        };
        let DeferredReply { plan, invalidate, stages, charge } = reply;
        tracing::trace!(peer = %self.core.peer.addr, "reply {}", plan.header);
        stages.end(Stage::Reply);
        add(&self.stats.inline_bytes_out, inline_bytes);
        add(&self.stats.remote_invalidations, usize::from(invalidate.is_some()));
        let ends = stages.is_sampled() && !plan.awaits_done;
        self.post_send(data, invalidate, charge, ends)?;
        stages.end(Stage::Reply);
        // The design ends the stages of a reply at RDMA_DONE.
        let stages = if plan.awaits_done { Stages::NONE } else { stages };
        self.sent.push_back(Sent { id: self.credits.last_send(), charge, stages });
        Ok(())
    }

    /// Posts a Send for a reply with a charge of `charge` bytes. It is signaled if its completion releases
    /// resources (`ends`).
    fn post_send(
        &mut self,
        data: Views,
        invalidate: Option<millrace_rdma::SteeringTag>,
        charge: usize,
        ends: bool,
    ) -> Result<(), ConnectionError> {
        let signaled = self.credits.send(charge, ends);
        ignore_closed(self.qp.post_send(SendRequest { data, invalidate, solicited: false, signaled }))
    }

    fn refuse_version(&mut self, xid: u32, vers: u32) -> Result<(), ConnectionError> {
        add(&self.stats.version_errors, 1);
        let error = TransportError::Version { low: VERSION, high: VERSION };
        let credits = self.grant()?;
        self.post_error(&Header { xid, vers, credits, body: Body::Error(error) })
    }

    fn refuse_chunks(&mut self, xid: u32, credits: u32) -> Result<(), ConnectionError> {
        add(&self.stats.chunk_errors, 1);
        self.post_error(&Header::new(xid, credits, Body::Error(TransportError::Chunk)))
    }

    /// Without memory for the header, the call cannot be answered, and the connection is closed (RFC 8166
    /// section 4.5).
    fn post_error(&mut self, header: &Header) -> Result<(), ConnectionError> {
        let data = header.without_message(&self.core.arena).map_err(no_memory)?;
        self.post_send(data, None, 0, false)
    }

    /// Answers a call with ERR_CHUNK.
    fn answer_error(&mut self, xid: u32) -> Result<(), ConnectionError> {
        self.credits.end_call();
        let credits = self.grant()?;
        self.refuse_chunks(xid, credits)
    }

    fn drop_message(&mut self, buffer: Buffer) -> Result<(), ConnectionError> {
        add(&self.stats.dropped, 1);
        self.recycle(buffer)
    }

    /// Posts the buffer of a message that was not a call again.
    fn recycle(&mut self, buffer: Buffer) -> Result<(), ConnectionError> {
        if self.credits.wants_receive(self.exposer.unacknowledged()) {
            self.post_receive(buffer)
        } else {
            Ok(())
        }
    }

    fn post_receive(&mut self, mut buffer: Buffer) -> Result<(), ConnectionError> {
        buffer.set_len(self.config.inline_size);
        self.credits.posted();
        ignore_closed(self.qp.post_receive(buffer))
    }

    /// Posts the receives that are due.
    fn replenish(&mut self) -> Result<(), ConnectionError> {
        while self.credits.wants_receive(self.exposer.unacknowledged()) {
            match self.qp.post_empty_receive(&self.core.arena, self.config.inline_size) {
                // The grant shrinks until memory is available; a connection without receives is unusable.
                Err(PostError::NoMemory(_)) if self.credits.has_receives() => break,
                result => ignore_closed(result)?,
            }
            self.credits.posted();
        }
        Ok(())
    }

    /// The credits of one reply.
    fn grant(&mut self) -> Result<u32, ConnectionError> {
        self.credits.adapt(&mut self.core.account);
        self.replenish()?;
        Ok(self.credits.grant(self.exposer.unacknowledged()))
    }
}

fn no_memory(e: OutOfMemory) -> ConnectionError {
    ConnectionError::Local(e.to_string())
}
