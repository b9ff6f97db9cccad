//! The responder: the server's end of a connection.
//!
//! One task owns the queue pair and everything that belongs to the connection. A call goes through these steps:
//! received; its Reads in flight ([`pull`](crate::pull)) if it has Read chunks; in progress with the service; answered
//! in the way of its [design](crate::design). A call that the service answers at once takes all its steps in one poll,
//! without a task and, in steady state, without the heap.

mod config;
mod stats;

use std::{
    collections::VecDeque,
    future::Future,
    pin::{Pin, pin},
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use buffer::{Arena, Buffer, View, Views};
use futures::{FutureExt, StreamExt, stream::FuturesUnordered};
use oncrpc::{Message, Peer, Service, Stage, Stages};
use rdma::{Completion, ConnectionError, PostError, QueuePair, SendRequest, WorkId, WriteRequest};
use runtime::{BoxFuture, Instant, MaybeReady, RuntimeExt, RuntimeRef, Sleep, Standstill};
use xdr::ItemPadding;

use self::config::RECEIVE_SLACK;
pub use self::{
    config::ResponderConfig,
    stats::{ResponderStats, ResponderStatsSnapshot},
};
use crate::{
    chunks::common_tag,
    counters::{add, set, sub},
    design::{DoesNotFit, Limits, Plan, Responding, Setting},
    header::{Body, Header, HeaderError, Lists, MIN_CALL, TransportError, VERSION},
    private_data::{PrivateData, Thresholds},
    pull::{self, Pulls, Shape, Sources},
    registration::{AllHeld, Held, Local},
};

/// Polls of the queue pair before other tasks of the runtime have their turn.
const ROUNDS: usize = 32;
/// How long a peer may take to close its end of a connection that we ended.
const CLOSE_LIMIT: Duration = Duration::from_secs(5);

/// What a reply needs to know of its call.
pub(crate) struct ReplyTo {
    pub(crate) xid: u32,
    pub(crate) lists: Lists,
    pub(crate) stages: Stages,
}

/// A call whose RDMA Reads are in flight.
struct Arrival {
    to: ReplyTo,
    /// The registrations of their sinks.
    sinks: AllHeld,
}

/// A reply that was posted, and what ends with it.
struct Sent {
    /// Its Send.
    id: u64,
    /// The registrations of the sources of its RDMA Writes.
    sources: AllHeld,
    stages: Stages,
}

/// A call that the service has not answered yet.
struct InProgress {
    to: Option<ReplyTo>,
    answer: BoxFuture<'static, Option<Message>>,
}

impl Future for InProgress {
    type Output = (Option<ReplyTo>, Option<Message>);

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.answer.poll_unpin(cx).map(|answer| (self.to.take(), answer))
    }
}

/// The server's end of one connection.
pub struct Responder {
    qp: Box<dyn QueuePair>,
    peer: Peer,
    service: Arc<dyn Service>,
    rt: RuntimeRef,
    arena: Arena,
    config: ResponderConfig,
    stats: Arc<ResponderStats>,
    design: Box<dyn Responding>,
    limits: Limits,
    /// Both ends allow Send with Invalidate, and the provider can.
    invalidate: bool,
    zeros: View,
    completions: Vec<Completion>,
    local: Local,
    arrivals: Pulls<Arrival>,
    in_progress: FuturesUnordered<InProgress>,
    /// Replies of which something ends when their Send has been handed over, in order.
    sent: VecDeque<Sent>,
    /// When the messages came that are being handled, if a sampled call is among them.
    came: Option<Instant>,
    /// Receives that no message has filled yet.
    posted: usize,
    outgoing: Outgoing,
    /// RDMA Reads that are back.
    reads_back: u64,
    /// Runs while Reads are awaited.
    stall: Standstill,
    /// Messages that came.
    received: u64,
    /// Runs while no call is in progress.
    idle: Standstill,
    active: ActiveCalls,
    /// Credits that the peer asked for last.
    wanted: u32,
    /// Credits that it has: those of the last reply, and before the first one 1 (RFC 8166 section 3.3.1).
    granted: u32,
    ending: Ending,
}

/// Calls received and not answered.
struct ActiveCalls {
    count: usize,
    stats: Arc<ResponderStats>,
}

impl ActiveCalls {
    fn begin(&mut self) {
        self.count += 1;
        add(&self.stats.calls_in_progress, 1);
    }

    fn end(&mut self) {
        self.count = self.count.saturating_sub(1);
        sub(&self.stats.calls_in_progress, 1);
    }
}

impl Drop for ActiveCalls {
    fn drop(&mut self) {
        sub(&self.stats.calls_in_progress, self.count);
    }
}

/// Sends, counted until the provider has handed them over.
#[derive(Default)]
struct Outgoing {
    posted: u64,
    handed_over: u64,
}

impl Outgoing {
    /// Counts one more Send; every `interval`-th is signaled, and one that `must` be. It tells of all before it.
    fn post(&mut self, interval: u64, must: bool) -> Option<WorkId> {
        self.posted += 1;
        (must || self.posted.is_multiple_of(interval)).then_some(WorkId(self.posted))
    }

    /// Sends that may still wait for the peer to take them.
    fn waiting(&self) -> usize {
        usize::try_from(self.posted.saturating_sub(self.handed_over)).unwrap_or(usize::MAX)
    }
}

/// How far a connection is in being ended by us.
enum Ending {
    No,
    /// No new calls; those in progress are answered.
    Draining,
    /// Everything is answered; the peer has until then to close.
    Closing(Sleep),
}

impl Responder {
    /// Takes over a connection whose accept carried [`ResponderConfig::connect_params`], and posts its receives.
    ///
    /// # Errors
    /// When there is no memory for them.
    pub fn new(
        qp: Box<dyn QueuePair>,
        peer: Peer,
        service: Arc<dyn Service>,
        rt: RuntimeRef,
        arena: Arena,
        config: ResponderConfig,
        stats: Arc<ResponderStats>,
    ) -> Result<Self, ConnectionError> {
        let config = config.clamped();
        let local = config.registration.local(qp.domain(), &rt);
        let theirs = PrivateData::decode(&qp.info().private_data);
        let thresholds = Thresholds::negotiate(&config.private_data(), theirs.as_ref());
        let caps = qp.capabilities();
        let invalidate = config.remote_invalidate
            && caps.send_with_invalidate
            && theirs.is_some_and(|p| p.remote_invalidate);
        let limits =
            Limits { inline: thresholds.send, max_transfer: caps.max_transfer, max_pieces: caps.max_pieces };
        let zeros = arena.copy_from(&[0; 4]).map_err(|e| ConnectionError::Local(e.to_string()))?;
        let active = ActiveCalls { count: 0, stats: Arc::clone(&stats) };
        let design = config.design.responding(Setting {
            theirs,
            domain: stats.exposure.meter(qp.domain(), &rt),
            registration: Arc::clone(&config.registration),
            region_pieces: caps.max_region_pieces.max(1),
            segment: caps.max_segment.max(1),
            max_reply: config.max_read(),
            arena: arena.clone(),
            rt: Arc::clone(&rt),
            limits: config.exposure,
            stats: Arc::clone(&stats),
        })?;
        let credits = config.credits.min(design.max_credits(config.max_read())).max(1);
        let config = ResponderConfig { credits, ..config };
        let mut this = Self {
            qp,
            peer,
            service,
            rt,
            arena,
            config,
            stats,
            design,
            limits,
            invalidate,
            zeros,
            completions: Vec::new(),
            local,
            arrivals: Pulls::default(),
            in_progress: FuturesUnordered::new(),
            sent: VecDeque::new(),
            came: None,
            posted: 0,
            outgoing: Outgoing::default(),
            reads_back: 0,
            stall: Standstill::default(),
            received: 0,
            idle: Standstill::default(),
            active,
            wanted: 1,
            granted: 1,
            ending: Ending::No,
        };
        this.replenish()?;
        Ok(this)
    }

    /// Serves until the connection ends. Then everything the peer held is released at once; calls that the service
    /// still works on are seen through to their end (a rename is not left half done), and their replies dropped.
    ///
    /// # Errors
    /// Why the connection ended, if not in the ordinary way.
    pub async fn run(self) -> Result<(), ConnectionError> {
        self.run_until(std::future::pending()).await
    }

    /// As [`Self::run`]; when `stop` completes, takes no further calls, answers those in progress, and closes.
    ///
    /// # Errors
    /// Why the connection ended, if not in the ordinary way.
    pub async fn run_until(mut self, stop: impl Future<Output = ()>) -> Result<(), ConnectionError> {
        let mut stop = pin!(stop.fuse());
        let end = std::future::poll_fn(|cx| {
            if matches!(self.ending, Ending::No) && stop.poll_unpin(cx).is_ready() {
                self.ending = Ending::Draining;
            }
            self.poll(cx)
        })
        .await;
        let Self { qp, design, arrivals, sent, completions, active, mut in_progress, .. } = self;
        drop((design, qp, arrivals, sent, completions, active));
        while in_progress.next().await.is_some() {}
        end
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), ConnectionError>> {
        for _ in 0..ROUNDS {
            let mut progress = false;
            let mut completions = std::mem::take(&mut self.completions);
            match self.qp.poll(cx, &mut completions) {
                Poll::Ready(Ok(())) => {
                    progress = true;
                    self.came = self.now_if_due(completions.len());
                    let handled = completions.drain(..).try_for_each(|c| self.complete(c));
                    set(&self.stats.regions_exposed, self.qp.domain().exposed().0);
                    if let Err(e) = handled {
                        return Poll::Ready(Err(e));
                    }
                }
                Poll::Ready(Err(ConnectionError::Closed)) => return Poll::Ready(Ok(())),
                Poll::Ready(Err(e)) => return Poll::Ready(Err(e)),
                Poll::Pending => {}
            }
            self.completions = completions;
            while let Poll::Ready(Some((to, answer))) = self.in_progress.poll_next_unpin(cx) {
                progress = true;
                if let Some(to) = to
                    && let Err(e) = self.answer(to, answer)
                {
                    return Poll::Ready(Err(e));
                }
            }
            if self.poll_ending(cx).is_ready() {
                return Poll::Ready(Ok(()));
            }
            if !progress {
                if let Poll::Ready(e) = self.design.poll_overdue(cx) {
                    return Poll::Ready(Err(e));
                }
                if !self.watch_idle(cx) {
                    return self.poll_stall(cx).map(Err);
                }
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    fn poll_ending(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let open = self.active.count + self.design.unacknowledged();
        if matches!(self.ending, Ending::Draining) && open == 0 {
            self.qp.disconnect();
            self.qp.flush(cx);
            self.ending = Ending::Closing(self.rt.sleep(CLOSE_LIMIT));
        }
        match &mut self.ending {
            Ending::Closing(limit) => limit.poll_unpin(cx),
            _ => Poll::Pending,
        }
    }

    /// Ready when the peer has answered none of our Reads for too long: they hold memory of everybody's.
    fn poll_stall(&mut self, cx: &mut Context<'_>) -> Poll<ConnectionError> {
        let limit = self.config.stall_timeout;
        if self.arrivals.is_empty() || self.stall.poll(cx, &self.rt, limit, self.reads_back).is_pending() {
            return Poll::Pending;
        }
        let what = format!("it answered no RDMA Read for {limit:?}");
        Poll::Ready(ConnectionError::PeerMisbehaved(what))
    }

    /// Begins to end a connection that nobody uses; whether it did. Calls that come from now on are dropped, so the peer
    /// may send them again on another connection.
    fn watch_idle(&mut self, cx: &mut Context<'_>) -> bool {
        let in_use = self.active.count + self.design.unacknowledged() > 0;
        let Some(limit) = self.config.idle_timeout else { return false };
        if in_use || !matches!(self.ending, Ending::No) {
            return false;
        }
        let idle = self.idle.poll(cx, &self.rt, limit, self.received).is_ready();
        if idle {
            add(&self.stats.idle_closed, 1);
            tracing::debug!(peer = %self.peer.addr, "connection closed: no call for {limit:?}");
            self.ending = Ending::Draining;
        }
        idle
    }

    fn complete(&mut self, completion: Completion) -> Result<(), ConnectionError> {
        match completion {
            Completion::Received { buffer, .. } => self.received(buffer),
            Completion::Read { id, sink } => self.read(id, sink),
            Completion::Sent(id) => {
                self.outgoing.handed_over = id.0;
                self.handed_over(id.0);
                self.replenish()
            }
        }
    }

    /// All Sends up to this one have been handed over: what was registered for their replies is not needed any more.
    fn handed_over(&mut self, id: u64) {
        while self.sent.front().is_some_and(|s| s.id <= id) {
            let Some(Sent { sources, stages, .. }) = self.sent.pop_front() else { return };
            stages.end(Stage::Completion);
            if sources.iter().any(Held::is_for_one) {
                drop(sources);
                stages.end(Stage::Deregistration);
            }
            self.finish(stages);
        }
    }

    fn now_if_due(&self, calls: usize) -> Option<Instant> {
        self.config.sampler.as_ref().and_then(|s| s.now_if_due(calls))
    }

    /// Ends the stages of a call.
    fn finish(&self, stages: Stages) {
        if let Some(sampler) = &self.config.sampler {
            sampler.finish(stages);
        }
    }

    /// A message came. RFC 8166 section 4.5 and the table of what to answer when.
    fn received(&mut self, buffer: Buffer) -> Result<(), ConnectionError> {
        self.posted = self.posted.saturating_sub(1);
        self.received += 1;
        let turn = self.now_if_due(1);
        let short = buffer.len() < MIN_CALL;
        let decoded = Header::decode(&buffer, self.config.max_segments);
        if let Ok((Header { xid, body: Body::Done, .. }, _)) = &decoded
            && let Some(stages) = self.design.done(*xid)
        {
            self.finish(stages);
            return self.recycle(buffer);
        }
        let (header, at) = match decoded {
            _ if short => return self.drop_message(buffer),
            Ok(decoded) => decoded,
            Err(HeaderError::Version { xid, vers }) => {
                self.recycle(buffer)?;
                return self.refuse_version(xid, vers);
            }
            Err(e @ HeaderError::Malformed { xid, .. }) => {
                tracing::debug!(peer = %self.peer.addr, "{e}");
                self.recycle(buffer)?;
                let credits = self.grant()?;
                return self.refuse_chunks(xid, credits);
            }
            Err(HeaderError::Short(_) | HeaderError::UnknownError { .. }) => {
                return self.drop_message(buffer);
            }
        };
        tracing::trace!(peer = %self.peer.addr, "call {header}");
        // Late, obsolete, or nonsense from a requester; no answer is due.
        if matches!(header.body, Body::Done | Body::Error(_)) {
            return self.drop_message(buffer);
        }
        if let Err(what) = self.design.admit(&header.body) {
            tracing::debug!(peer = %self.peer.addr, xid = header.xid, "call refused: {what}");
            self.recycle(buffer)?;
            let credits = self.grant()?;
            return self.refuse_chunks(header.xid, credits);
        }
        if matches!(self.ending, Ending::Draining | Ending::Closing(_)) {
            return self.drop_message(buffer);
        }
        self.wanted = header.credits;
        add(&self.stats.calls, 1);
        self.active.begin();
        let message = buffer.freeze();
        let (lists, inline, padding) = header.body.into_parts(at, &message);
        drop(message);
        let stages = self.sample(header.xid, turn);
        self.begin(ReplyTo { xid: header.xid, lists, stages }, inline, padding)
    }

    /// The stamps of a call that came, whose message had its turn at `turn`.
    fn sample(&self, xid: u32, turn: Option<Instant>) -> Stages {
        let Some(sampler) = &self.config.sampler else { return Stages::NONE };
        let stages = sampler.next_call(self.came.or(turn));
        if let Some(turn) = turn {
            stages.end_at(Stage::Receive, turn);
            stages.set_xid(xid);
        }
        stages
    }

    /// Begins a call whose header is decoded.
    fn begin(
        &mut self,
        mut to: ReplyTo,
        inline: Option<View>,
        padding: Option<ItemPadding>,
    ) -> Result<(), ConnectionError> {
        if let Some(inline) = &inline {
            add(&self.stats.inline_bytes_in, inline.len());
            if inline.first_chunk() != Some(&to.xid.to_be_bytes()) {
                return self.answer_error(to.xid);
            }
        }
        let shape = match pull::check(&mut to.lists.reads, inline.as_ref(), self.config.max_read()) {
            Ok(shape) => shape,
            Err(what) => {
                tracing::debug!(peer = %self.peer.addr, xid = to.xid, "call refused: {what}");
                return self.answer_error(to.xid);
            }
        };
        if to.lists.reads.iter().all(|r| r.segment.length == 0)
            && let Some(inline) = inline
        {
            return self.dispatch(to, Message { padding, ..Message::from_view(inline) });
        }
        self.pull(to, inline, shape)
    }

    /// Posts the Reads of a call.
    fn pull(&mut self, to: ReplyTo, inline: Option<View>, shape: Shape) -> Result<(), ConnectionError> {
        let sources = Sources {
            arena: &self.arena,
            piece: self.config.sink_piece,
            max_transfer: self.limits.max_transfer,
        };
        to.stages.end(Stage::Decode);
        match self.arrivals.plan(&to.lists.reads, None, &sources) {
            Ok(reads) => {
                add(&self.stats.reads, reads.len());
                add(&self.stats.read_bytes, reads.iter().map(|r| r.from.length as usize).sum());
                to.stages.end(Stage::Buffer);
                let sinks: AllHeld = reads.iter().filter_map(|r| self.local.sink(&r.sink)).collect();
                if sinks.iter().any(Held::is_for_one) {
                    to.stages.end(Stage::Registration);
                }
                posted(self.arrivals.post(Arrival { to, sinks }, inline, shape, reads, &mut *self.qp))
            }
            Err(e) => {
                tracing::warn!(peer = %self.peer.addr, "call refused: {e}");
                self.answer_out_of_memory(to)
            }
        }
    }

    /// A Read is done; with the last one of its call the call is dispatched.
    fn read(&mut self, id: WorkId, sink: Vec<Buffer>) -> Result<(), ConnectionError> {
        self.reads_back += 1;
        let arrived = self.arrivals.completed(id, sink, &self.arena);
        let Some((Arrival { to, sinks }, message)) = arrived else { return Ok(()) };
        to.stages.end(Stage::ReadWait);
        if sinks.iter().any(Held::is_for_one) {
            drop(sinks);
            to.stages.end(Stage::Deregistration);
        }
        match message {
            Ok(message) if message.xid() == Some(to.xid) => self.dispatch(to, message),
            Ok(_) => self.answer_error(to.xid),
            Err(e) => {
                tracing::warn!(peer = %self.peer.addr, "call refused: {e}");
                self.answer_out_of_memory(to)
            }
        }
    }

    fn dispatch(&mut self, to: ReplyTo, message: Message) -> Result<(), ConnectionError> {
        to.stages.end(Stage::Decode);
        match self.service.call(&self.peer, message, &self.arena, &to.stages) {
            MaybeReady::Ready(answer) => self.answer(to, answer),
            MaybeReady::Pending(answer) => {
                self.in_progress.push(InProgress { to: Some(to), answer });
                Ok(())
            }
            MaybeReady::Taken => self.answer(to, None),
        }
    }

    fn answer(&mut self, to: ReplyTo, answer: Option<Message>) -> Result<(), ConnectionError> {
        self.active.end();
        // The peer keeps the credit of a call that it has no reply to.
        let Some(message) = answer else { return self.replenish() };
        let credits = self.grant()?;
        match self.design.plan(&to, credits, message, &self.limits, &self.zeros) {
            Ok(plan) => {
                self.replenish()?; // A reply that waits for RDMA_DONE needs a receive for that.
                let invalidate = if self.invalidate { common_tag(&to.lists) } else { None };
                self.post_reply(plan, invalidate, to.stages)
            }
            Err(DoesNotFit) => self.refuse_chunks(to.xid, credits),
        }
    }

    fn post_reply(
        &mut self,
        plan: Plan,
        invalidate: Option<rdma::SteeringTag>,
        stages: Stages,
    ) -> Result<(), ConnectionError> {
        tracing::trace!(peer = %self.peer.addr, "reply {}", plan.header);
        stages.end(Stage::Reply);
        let sources: AllHeld = plan.writes.iter().filter_map(|w| self.local.source(&w.data)).collect();
        let for_one = sources.iter().any(Held::is_for_one);
        if for_one {
            stages.end(Stage::Registration);
        }
        if !plan.writes.is_empty() {
            for write in plan.writes {
                self.post_write(write)?;
            }
            stages.end(Stage::WritePost);
        }
        add(&self.stats.inline_bytes_out, plan.inline.len());
        add(&self.stats.remote_invalidations, usize::from(invalidate.is_some()));
        let until_done = plan.until_done;
        let ends = for_one || (stages.is_sampled() && !until_done);
        let data = plan.header.with_message(&plan.inline, plan.only_head, &self.arena).map_err(no_memory)?;
        self.post_send(data, invalidate, ends)?;
        stages.end(Stage::Reply);
        // What is only kept waits for the next Send that is signaled anyway.
        if ends || !sources.is_empty() {
            // The design stamps a reply that RDMA_DONE ends.
            let stages = if until_done { Stages::NONE } else { stages };
            self.sent.push_back(Sent { id: self.outgoing.posted, sources, stages });
        }
        Ok(())
    }

    fn post_write(&mut self, write: WriteRequest) -> Result<(), ConnectionError> {
        add(&self.stats.writes, 1);
        add(&self.stats.write_bytes, write.data.len());
        posted(self.qp.post_write(write))
    }

    /// Sends a header and what follows it; `signaled` if something `ends` with it. Without memory even for the header no answer can be given at all, and the
    /// connection must be closed (RFC 8166 section 4.5).
    fn post_send(
        &mut self,
        data: Views,
        invalidate: Option<rdma::SteeringTag>,
        ends: bool,
    ) -> Result<(), ConnectionError> {
        add(&self.stats.sends, 1);
        let signaled = self.outgoing.post(self.config.signal_interval() as u64, ends);
        posted(self.qp.post_send(SendRequest { data, invalidate, solicited: false, signaled }))
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

    fn post_error(&mut self, header: &Header) -> Result<(), ConnectionError> {
        let data = header.alone(&self.arena).map_err(no_memory)?;
        self.post_send(data, None, false)
    }

    /// Ends a call with ERR_CHUNK.
    fn answer_error(&mut self, xid: u32) -> Result<(), ConnectionError> {
        self.active.end();
        let credits = self.grant()?;
        self.refuse_chunks(xid, credits)
    }

    /// Ends a call for which there is no memory with the RPC status SYSTEM_ERR (RFC 5531 section 9).
    fn answer_out_of_memory(&mut self, to: ReplyTo) -> Result<(), ConnectionError> {
        const REPLY: u32 = 1;
        const SYSTEM_ERR: u32 = 5;
        add(&self.stats.out_of_memory, 1);
        let words = [to.xid, REPLY, 0, 0, 0, SYSTEM_ERR];
        let mut b = self.arena.alloc(4 * words.len()).map_err(no_memory)?;
        for (bytes, word) in b.chunks_exact_mut(4).zip(words) {
            bytes.copy_from_slice(&word.to_be_bytes());
        }
        self.answer(to, Some(Message::from_view(b.freeze())))
    }

    fn drop_message(&mut self, buffer: Buffer) -> Result<(), ConnectionError> {
        add(&self.stats.dropped, 1);
        self.recycle(buffer)
    }

    /// Posts the buffer of a message that was not a call again.
    fn recycle(&mut self, buffer: Buffer) -> Result<(), ConnectionError> {
        if self.posted < self.receives_due() { self.post_receive(buffer) } else { Ok(()) }
    }

    fn post_receive(&mut self, mut buffer: Buffer) -> Result<(), ConnectionError> {
        buffer.set_len(self.config.inline_size);
        self.posted += 1;
        posted(self.qp.post_receive(buffer))
    }

    /// Receives that shall be posted: one for every credit of the peer that no call in progress holds, and the slack. So
    /// a peer that sends more than it was granted runs out of receives, and never makes us hold more calls than that.
    ///
    /// A peer has a credit back only with the reply, so one that keeps to its credits has at most the limit of replies
    /// waiting. Those beyond come from a peer that sends and does not read: they cost receives too.
    fn receives_due(&self) -> usize {
        let most = self.config.credits as usize;
        let unread = self.outgoing.waiting().saturating_sub(most + self.config.signal_interval());
        let free = self.granted as usize + RECEIVE_SLACK + self.design.unacknowledged();
        free.saturating_sub(self.active.count + unread)
    }

    /// Posts the receives that are due.
    fn replenish(&mut self) -> Result<(), ConnectionError> {
        while self.posted < self.receives_due() {
            match self.arena.alloc(self.config.inline_size) {
                Ok(buffer) => self.post_receive(buffer)?,
                // The grant shrinks until there is memory again; without any receive the connection is useless.
                Err(_) if self.posted > 0 => break,
                Err(e) => return Err(no_memory(e)),
            }
        }
        Ok(())
    }

    /// The credits of one reply, the receives for which are posted *before* it tells the peer that it may send: as many as
    /// the peer asked for last, within the limit and what is posted; never 0.
    ///
    /// Credits that the peer asks for no more are taken back one with a reply, by not posting the receive of its call
    /// again. All calls that it may have sent before it sees the reply find their receives then, for the call that is
    /// answered was one of those that its old credits allowed.
    fn grant(&mut self) -> Result<u32, ConnectionError> {
        let asked = self.wanted.min(self.config.credits);
        self.granted = asked.max(self.granted.saturating_sub(1)).max(1);
        self.replenish()?;
        let room = (self.posted + self.active.count).saturating_sub(self.design.unacknowledged());
        let room = u32::try_from(room).unwrap_or(u32::MAX);
        let credits = self.granted.min(room).max(1);
        set(&self.stats.credits_granted, credits as usize);
        Ok(credits)
    }
}

fn no_memory(e: buffer::OutOfMemory) -> ConnectionError {
    ConnectionError::Local(e.to_string())
}

/// A post on a closed connection is no error here: the next poll of the queue pair says why it closed.
fn posted(result: Result<(), PostError>) -> Result<(), ConnectionError> {
    match result {
        Ok(()) | Err(PostError::Closed) => Ok(()),
        Err(e @ PostError::Invalid(_)) => Err(ConnectionError::Local(e.to_string())),
    }
}
