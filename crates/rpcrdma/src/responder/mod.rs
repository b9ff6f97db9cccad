//! The responder: the server's end of a connection.
//!
//! One task owns the queue pair and everything that belongs to the connection. A call goes through these steps:
//! received; queued until there is room for it in the connection's account; its Reads in flight
//! ([`pull`](crate::pull)) if it has Read chunks; in progress with the service; answered in the way of its
//! [design](crate::design). A call that the service answers at once takes all its steps in one poll, without a task and, in
//! steady state, without the heap.

mod config;
mod stats;

use std::{
    collections::VecDeque,
    future::Future,
    pin::pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use futures::FutureExt;
use millrace_buffer::{Arena, Buffer, OutOfMemory, View, Views};
use millrace_oncrpc::{
    Message, Peer, ReceivedCall, Service, Stage, Stages,
    serving::{Account, Answer, CloseReason, Progress, ServerConnection, slot_bytes},
};
use millrace_rdma::{Completion, ConnectionError, PostError, QueuePair, SendRequest, WorkId, WriteRequest};
use millrace_runtime::{Instant, RuntimeExt, RuntimeRef, Sleep};
use millrace_xdr::ItemPadding;
use smallvec::SmallVec;

use self::config::RECEIVE_SLACK;
pub use self::{
    config::ResponderConfig,
    stats::{ResponderStats, ResponderStatsSnapshot},
};
use crate::{
    chunks::{capacity, common_tag},
    counters::{add, set, sub},
    design::{Acknowledged, DoesNotFit, Limits, Plan, Responding, Setting},
    header::{Body, Header, HeaderError, Lists, MIN_CALL, TransportError, VERSION},
    private_data::{PrivateData, Thresholds},
    pull::{self, Planned, Pulls, Shape, Sources},
    registration::{AllHeld, Held, Local},
};

/// Polls of the queue pair before other tasks of the runtime have their turn.
const ROUNDS: usize = 32;
/// A reply is signaled when the replies since the last one that was take so many bytes, so that memory of which it is not
/// known whether the peer has taken it stays little.
const UNSIGNALED_BYTES: usize = 16 << 10;
/// How many bytes of a call's head are in one view: more than any head has.
const HEAD_BYTES: usize = 64 << 10;
/// What a reply takes beyond its results.
const REPLY_SLACK: u64 = 1024;
/// How long a peer may take to close its end of a connection that we ended.
const CLOSE_LIMIT: Duration = Duration::from_secs(5);

/// What a reply needs to know of its call.
pub(crate) struct ReplyTo {
    pub(crate) xid: u32,
    pub(crate) lists: Lists,
    pub(crate) stages: Stages,
    /// Bytes of the account that the reply takes, or before there is one, the call.
    pub(crate) charge: usize,
}

/// A call whose RDMA Reads are in flight.
struct Arrival {
    to: ReplyTo,
    /// The registrations of their sinks.
    sinks: AllHeld,
}

/// A call that waits for its turn, or for room.
#[allow(clippy::large_enum_variant)] // A box would take memory from the heap for each call.
enum Waiting {
    /// It has Read chunks.
    Chunks { to: ReplyTo, inline: Option<View>, shape: Shape, reads: SmallVec<[Planned; 2]> },
    /// Its Reads are back: this is its number.
    Pulled(usize),
    /// It is complete.
    Whole { to: ReplyTo, call: ReceivedCall },
}

/// A reply for which there was no memory.
struct Unsent {
    plan: Plan,
    invalidate: Option<millrace_rdma::SteeringTag>,
    stages: Stages,
    charge: usize,
}

/// A reply that was posted, and what ends with it.
struct Sent {
    /// Its Send.
    id: u64,
    /// Bytes of the account that it takes.
    charge: usize,
    /// The registrations of the sources of its RDMA Writes.
    sources: AllHeld,
    stages: Stages,
}

/// The server's end of one connection.
pub struct Responder {
    core: ServerConnection<ReplyTo>,
    qp: Box<dyn QueuePair>,
    config: ResponderConfig,
    stats: Arc<ResponderStats>,
    design: Box<dyn Responding>,
    limits: Limits,
    /// Both ends allow Send with Invalidate, and the provider can.
    invalidate: bool,
    zeros: View,
    completions: Vec<Completion>,
    local: Local,
    /// Calls that are not begun, in order.
    waiting: VecDeque<Waiting>,
    arrivals: Pulls<Arrival>,
    unsent: VecDeque<Unsent>,
    /// Replies whose Sends have not been handed over, in order.
    sent: VecDeque<Sent>,
    /// When the messages came that are being handled, if a sampled call is among them.
    came: Option<Instant>,
    /// Receives that no message has filled yet.
    posted: usize,
    outgoing: Outgoing,
    /// Bytes of RDMA Reads that are back.
    read_back: u64,
    /// Watches Reads being answered.
    reading: Progress,
    /// Bytes of replies that were handed over.
    taken: u64,
    /// Watches replies being taken.
    taking: Progress,
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
    /// The last one whose completion will come.
    signaled: u64,
    handed_over: u64,
    /// Bytes of replies since the last one that was signaled.
    bytes: usize,
}

impl Outgoing {
    /// Counts one more Send, of a reply of so many bytes; every `interval`-th is signaled, one after so many bytes, and one
    /// that `must` be. Its completion stands for all before it.
    fn post(&mut self, interval: u64, bytes: usize, must: bool) -> Option<WorkId> {
        self.posted += 1;
        self.bytes += bytes;
        let due = self.posted - self.signaled >= interval || self.bytes >= UNSIGNALED_BYTES;
        if !must && !due {
            return None;
        }
        (self.signaled, self.bytes) = (self.posted, 0);
        Some(WorkId(self.posted))
    }

    /// Sends that may still wait for the peer to take them.
    fn waiting(&self) -> usize {
        usize::try_from(self.posted.saturating_sub(self.handed_over)).unwrap_or(usize::MAX)
    }

    /// Whether a completion is awaited.
    fn is_awaited(&self) -> bool {
        self.signaled > self.handed_over
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
    /// Takes over a connection whose accept carried [`ResponderConfig::connect_params`], and posts its receives. Its memory
    /// is counted in `account`.
    ///
    /// # Errors
    /// When there is no memory for them.
    #[allow(clippy::too_many_arguments)]
    pub fn new(
        qp: Box<dyn QueuePair>,
        peer: Peer,
        service: Arc<dyn Service>,
        rt: RuntimeRef,
        arena: Arena,
        config: ResponderConfig,
        stats: Arc<ResponderStats>,
        account: Account,
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
        let zeros = arena.copy_from(&[0; 4]).map_err(no_memory)?;
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
        let mut core = ServerConnection::new(peer, service, rt, arena, config.connection.clone(), account);
        core.account.take_receives_anyway((1 + RECEIVE_SLACK) * slot_bytes(config.inline_size));
        let mut this = Self {
            core,
            qp,
            config,
            stats,
            design,
            limits,
            invalidate,
            zeros,
            completions: Vec::new(),
            local,
            waiting: VecDeque::new(),
            arrivals: Pulls::new(HEAD_BYTES),
            unsent: VecDeque::new(),
            sent: VecDeque::new(),
            came: None,
            posted: 0,
            outgoing: Outgoing::default(),
            read_back: 0,
            reading: Progress::default(),
            taken: 0,
            taking: Progress::default(),
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
        let Self { core, qp, design, waiting, arrivals, unsent, sent, completions, active, .. } = self;
        drop((design, qp, waiting, arrivals, unsent, sent, completions, active));
        core.finish().await;
        end
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), ConnectionError>> {
        if self.core.poll_evicted(cx).is_ready() {
            return Poll::Ready(Ok(()));
        }
        ready!(self.core.begin_turn(cx));
        for _ in 0..ROUNDS {
            match self.round(cx) {
                Ok(progress) => {
                    if self.poll_ending(cx).is_ready() {
                        return Poll::Ready(Ok(()));
                    }
                    if !progress && !self.watch_idle(cx) {
                        return self.poll_slow(cx).map(Err);
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

    /// Does what can be done now; whether there was anything.
    fn round(&mut self, cx: &mut Context<'_>) -> Result<bool, ConnectionError> {
        let mut progress = false;
        let mut completions = std::mem::take(&mut self.completions);
        match self.qp.poll(cx, &mut completions) {
            Poll::Ready(Ok(())) => {
                progress = true;
                self.came = self.now_if_due(completions.len());
                let handled = completions.drain(..).try_for_each(|c| self.complete(c));
                set(&self.stats.regions_exposed, self.qp.domain().exposed().0);
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
        progress |= self.post_unsent(cx)?;
        Ok(progress)
    }

    /// Calls whose replies are not posted, and replies that the peer has yet to acknowledge.
    fn open_calls(&self) -> usize {
        self.active.count + self.unsent.len() + self.design.unacknowledged()
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

    /// Ready when the peer does not acknowledge replies, or answers our Reads or takes our replies too slowly: they hold
    /// memory.
    fn poll_slow(&mut self, cx: &mut Context<'_>) -> Poll<ConnectionError> {
        if let Poll::Ready(e) = self.design.poll_overdue(cx) {
            return Poll::Ready(e);
        }
        let (rt, limit) = (&self.core.rt, self.config.connection.stall_timeout);
        let what = if self.arrivals.in_flight() == 0 {
            self.reading.rest();
            None
        } else {
            let slow = self.reading.poll(cx, rt, limit, self.read_back).is_ready();
            slow.then_some("it answers RDMA Reads too slowly")
        };
        let what = what.or_else(|| {
            if !self.outgoing.is_awaited() {
                self.taking.rest();
                return None;
            }
            let slow = self.taking.poll(cx, rt, limit, self.taken).is_ready();
            slow.then_some("it takes replies too slowly")
        });
        let Some(what) = what else { return Poll::Pending };
        self.core.closed(CloseReason::Stalled);
        Poll::Ready(ConnectionError::PeerMisbehaved(what.into()))
    }

    /// Begins to end a connection on which no call comes; whether it did. Calls that come from now on are dropped, so the
    /// peer may send them again on another connection.
    fn watch_idle(&mut self, cx: &mut Context<'_>) -> bool {
        if self.open_calls() > 0 || !matches!(self.ending, Ending::No) || self.core.poll_idle(cx).is_pending()
        {
            return false;
        }
        self.ending = Ending::Draining;
        true
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

    /// All Sends up to this one have been handed over: the memory of their replies, and what was registered for them, is not
    /// needed any more.
    fn handed_over(&mut self, id: u64) {
        while let Some(Sent { charge, sources, stages, .. }) = self.sent.pop_front_if(|s| s.id <= id) {
            self.core.account.give(charge);
            self.taken += charge as u64;
            stages.end(Stage::Completion);
            if sources.iter().any(Held::is_for_one) {
                drop(sources);
                stages.end(Stage::Deregistration);
            }
            self.finish(stages);
        }
    }

    fn now_if_due(&self, calls: usize) -> Option<Instant> {
        self.core.config.sampler.as_ref().and_then(|s| s.now_if_due(calls))
    }

    /// Ends the stages of a call.
    fn finish(&self, stages: Stages) {
        if let Some(sampler) = &self.core.config.sampler {
            sampler.finish(stages);
        }
    }

    /// A message came. RFC 8166 section 4.5 and the table of what to answer when.
    fn received(&mut self, buffer: Buffer) -> Result<(), ConnectionError> {
        self.posted = self.posted.saturating_sub(1);
        let turn = self.now_if_due(1);
        let short = buffer.len() < MIN_CALL;
        let decoded = Header::decode(&buffer, self.config.max_segments);
        if let Ok((Header { xid, body: Body::Done, .. }, _)) = &decoded
            && let Some(Acknowledged { stages, charge }) = self.design.done(*xid)
        {
            self.core.account.give(charge);
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
        // Late, obsolete, or nonsense from a requester; no answer is due.
        if matches!(header.body, Body::Done | Body::Error(_)) {
            return self.drop_message(buffer);
        }
        if let Err(what) = self.design.admit(&header.body) {
            tracing::debug!(peer = %self.core.peer.addr, xid = header.xid, "call refused: {what}");
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
        self.queue(ReplyTo { xid: header.xid, lists, stages, charge: 0 }, inline, padding)
    }

    /// The stamps of a call that came, whose message had its turn at `turn`.
    fn sample(&self, xid: u32, turn: Option<Instant>) -> Stages {
        let Some(sampler) = &self.core.config.sampler else { return Stages::NONE };
        let stages = sampler.next_call(self.came.or(turn));
        if let Some(turn) = turn {
            stages.end_at(Stage::Receive, turn);
            stages.set_xid(xid);
        }
        stages
    }

    /// Queues a call whose header is decoded.
    fn queue(
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
                tracing::debug!(peer = %self.core.peer.addr, xid = to.xid, "call refused: {what}");
                return self.answer_error(to.xid);
            }
        };
        to.stages.end(Stage::Decode);
        let reads = pull::plan(&to.lists.reads, None, self.limits.max_transfer);
        match inline {
            Some(inline) if reads.is_empty() => {
                self.queue_whole(to, Message { padding, ..Message::from_view(inline) });
            }
            inline => {
                to.charge = self.memory_of(&to.lists, &reads, &shape);
                self.waiting.push_back(Waiting::Chunks { to, inline, shape, reads });
            }
        }
        Ok(())
    }

    fn queue_whole(&mut self, to: ReplyTo, message: Message) {
        let call = self.core.receive(message);
        self.waiting.push_back(Waiting::Whole { to, call });
    }

    /// Bytes of memory that a call with Read chunks takes: its sinks, or the results for which it has chunks. It must have
    /// all of it before it is begun, since calls that have a part and wait for more might wait for one another.
    fn memory_of(&self, lists: &Lists, reads: &[Planned], shape: &Shape) -> usize {
        let sinks: usize = reads.iter().map(|r| r.memory(self.config.sink_piece)).sum();
        let room = lists.writes.iter().chain(&lists.reply).map(|chunk| capacity(chunk)).sum::<u64>();
        let results = room.min(self.config.max_read()) + REPLY_SLACK;
        (sinks + pull::memory_to_join(reads, shape, HEAD_BYTES)).max(results as usize)
    }

    /// Begins calls that have come, in order, as long as there is room for them and other tasks do not wait; whether there
    /// was one.
    fn begin_calls(&mut self, cx: &mut Context<'_>) -> Result<bool, ConnectionError> {
        let mut progress = false;
        while !self.core.turn.is_over()
            && let Some(next) = self.waiting.pop_front()
        {
            match self.begin(cx, next)? {
                None => progress = true,
                Some(later) => {
                    self.waiting.push_front(later);
                    break;
                }
            }
        }
        Ok(progress)
    }

    /// Begins a call, or gives it back while there is no room for it.
    fn begin(&mut self, cx: &mut Context<'_>, next: Waiting) -> Result<Option<Waiting>, ConnectionError> {
        match next {
            Waiting::Chunks { to, inline, shape, reads } => {
                if self.core.account.poll_take(cx, to.charge).is_pending() {
                    return Ok(Some(Waiting::Chunks { to, inline, shape, reads }));
                }
                self.arrivals.open(Arrival { to, sinks: AllHeld::new() }, inline, shape, reads);
            }
            Waiting::Pulled(at) => {
                if self.core.poll_memory(cx).is_pending() {
                    return Ok(Some(Waiting::Pulled(at)));
                }
                self.all_here(at)?;
            }
            Waiting::Whole { mut to, call } => {
                let Poll::Ready(room) = self.core.poll_room(cx, to.charge, &call) else {
                    return Ok(Some(Waiting::Whole { to, call }));
                };
                to.charge = room.charge();
                let stages = to.stages.clone();
                if let Some(answer) = self.core.call(call, &stages, to, room) {
                    self.answer(answer)?;
                }
            }
        }
        Ok(None)
    }

    /// The arena has no memory, although the account has: what needs it is tried again later.
    fn memory_is_short(&mut self, e: &OutOfMemory) {
        add(&self.stats.out_of_memory, 1);
        self.core.wait_for_memory(e);
    }

    /// Posts the Reads of calls that have begun, as many as may be in flight, with memory taken for each; whether there was
    /// one.
    fn post_reads(&mut self, cx: &mut Context<'_>) -> Result<bool, ConnectionError> {
        let most = usize::from(self.qp.info().ord).max(1);
        let mut progress = false;
        while self.arrivals.has_planned()
            && self.arrivals.in_flight() < most
            && self.core.poll_memory(cx).is_ready()
        {
            let sources = Sources { arena: &self.core.arena, piece: self.config.sink_piece };
            let (read, arrival) = match self.arrivals.next_read(&sources) {
                Ok(Some(next)) => next,
                Ok(None) => break,
                Err(e) => {
                    self.memory_is_short(&e);
                    continue; // It waits.
                }
            };
            let stages = arrival.to.stages.clone();
            stages.end(Stage::Buffer);
            let held = self.local.sink(&read.sink);
            if held.as_ref().is_some_and(Held::is_for_one) {
                stages.end(Stage::Registration);
            }
            arrival.sinks.extend(held);
            add(&self.stats.reads, 1);
            add(&self.stats.read_bytes, read.from.length as usize);
            posted(self.qp.post_read(read))?;
            progress = true;
        }
        Ok(progress)
    }

    /// A Read is back; with the last one of its call the call is queued for the service.
    fn read(&mut self, id: WorkId, sink: Vec<Buffer>) -> Result<(), ConnectionError> {
        self.read_back += sink.iter().map(|b| b.len() as u64).sum::<u64>();
        match self.arrivals.completed(id, sink) {
            Some(at) => self.all_here(at),
            None => Ok(()),
        }
    }

    /// All Reads of a call are back.
    fn all_here(&mut self, at: usize) -> Result<(), ConnectionError> {
        match self.arrivals.take(at, &self.core.arena) {
            Some(Ok((arrival, message))) => self.arrived(arrival, message),
            Some(Err(e)) => {
                self.memory_is_short(&e);
                self.waiting.push_front(Waiting::Pulled(at));
                Ok(())
            }
            None => Ok(()),
        }
    }

    /// A call whose Reads are back is all here. It goes before those that have no memory yet.
    fn arrived(&mut self, arrival: Arrival, message: Message) -> Result<(), ConnectionError> {
        let Arrival { to, sinks } = arrival;
        to.stages.end(Stage::ReadWait);
        if sinks.iter().any(Held::is_for_one) {
            drop(sinks);
            to.stages.end(Stage::Deregistration);
        }
        if message.xid() != Some(to.xid) {
            self.core.account.give(to.charge);
            return self.answer_error(to.xid);
        }
        let call = self.core.receive(message);
        to.stages.end(Stage::Decode);
        self.waiting.push_front(Waiting::Whole { to, call });
        Ok(())
    }

    fn answer(&mut self, answer: Answer<ReplyTo>) -> Result<(), ConnectionError> {
        let Answer { mut to, reply, charge } = answer;
        self.active.end();
        to.charge = self.core.settle(charge, reply.as_ref());
        // The peer keeps the credit of a call that it has no reply to.
        let Some(message) = reply else { return self.replenish() };
        let credits = self.grant()?;
        match self.design.plan(&to, credits, message, &self.limits, &self.zeros) {
            Ok(plan) => {
                self.replenish()?; // A reply that waits for RDMA_DONE needs a receive for that.
                let invalidate = if self.invalidate { common_tag(&to.lists) } else { None };
                // The memory of such a reply is the design's, until then.
                let charge = if plan.until_done { 0 } else { to.charge };
                self.post_reply(Unsent { plan, invalidate, stages: to.stages, charge })
            }
            Err(DoesNotFit) => {
                self.core.account.give(to.charge);
                self.refuse_chunks(to.xid, credits)
            }
        }
    }

    /// Posts replies for which there was no memory; whether there was one. Replies that remain have registered the task
    /// with the timer of the next attempt.
    fn post_unsent(&mut self, cx: &mut Context<'_>) -> Result<bool, ConnectionError> {
        let waiting = self.unsent.len();
        while !self.unsent.is_empty()
            && self.core.poll_memory(cx).is_ready()
            && let Some(reply) = self.unsent.pop_front()
        {
            self.post_reply(reply)?;
        }
        Ok(self.unsent.len() < waiting)
    }

    fn post_reply(&mut self, reply: Unsent) -> Result<(), ConnectionError> {
        let Plan { header, inline, only_head, .. } = &reply.plan;
        let data = match header.with_message(inline, *only_head, &self.core.arena) {
            Ok(data) => data,
            Err(e) => {
                self.memory_is_short(&e);
                self.unsent.push_back(reply);
                return Ok(());
            }
        };
        let Unsent { plan, invalidate, stages, charge } = reply;
        tracing::trace!(peer = %self.core.peer.addr, "reply {}", plan.header);
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
        let ends = for_one || (stages.is_sampled() && !plan.until_done);
        self.post_send(data, invalidate, charge, ends)?;
        stages.end(Stage::Reply);
        // The design stamps a reply that RDMA_DONE ends.
        let stages = if plan.until_done { Stages::NONE } else { stages };
        self.sent.push_back(Sent { id: self.outgoing.posted, charge, sources, stages });
        Ok(())
    }

    fn post_write(&mut self, write: WriteRequest) -> Result<(), ConnectionError> {
        add(&self.stats.writes, 1);
        add(&self.stats.write_bytes, write.data.len());
        posted(self.qp.post_write(write))
    }

    /// Sends a header and what follows it, for a reply that takes `charge` bytes; signaled if something `ends` with it.
    fn post_send(
        &mut self,
        data: Views,
        invalidate: Option<millrace_rdma::SteeringTag>,
        charge: usize,
        ends: bool,
    ) -> Result<(), ConnectionError> {
        add(&self.stats.sends, 1);
        let signaled = self.outgoing.post(self.config.signal_interval() as u64, charge, ends);
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

    /// Without memory even for the header no answer can be given at all, and the connection must be closed (RFC 8166 section
    /// 4.5).
    fn post_error(&mut self, header: &Header) -> Result<(), ConnectionError> {
        let data = header.alone(&self.core.arena).map_err(no_memory)?;
        self.post_send(data, None, 0, false)
    }

    /// Ends a call with ERR_CHUNK.
    fn answer_error(&mut self, xid: u32) -> Result<(), ConnectionError> {
        self.active.end();
        let credits = self.grant()?;
        self.refuse_chunks(xid, credits)
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
            match self.core.arena.alloc(self.config.inline_size) {
                Ok(buffer) => self.post_receive(buffer)?,
                // The grant shrinks until there is memory again; without any receive the connection is of no use.
                Err(_) if self.posted > 0 => break,
                Err(e) => return Err(no_memory(e)),
            }
        }
        Ok(())
    }

    /// Grants `credits`, or as many as there is memory for: the account counts a receive for each. Of calls in progress it is
    /// the memory of their messages. The receives of all connections leave half of the shared memory to calls, since a client
    /// keeps its grant while it is idle.
    fn change_grant(&mut self, credits: u32) {
        let receive = slot_bytes(self.config.inline_size);
        if credits <= self.granted {
            self.core.account.give_receives((self.granted - credits) as usize * receive);
            self.granted = credits;
            return;
        }
        for credits in [credits, self.granted + 1] {
            if self.core.account.take_receives((credits - self.granted) as usize * receive) {
                self.granted = credits;
                return;
            }
        }
    }

    /// The credits of one reply, the receives for which are posted *before* it tells the peer that it may send: as many as
    /// the peer asked for last, within the limit and what is posted; never 0.
    ///
    /// Credits that the peer asks for no more are taken back one with a reply, by not posting the receive of its call
    /// again. All calls that it may have sent before it sees the reply find their receives then, for the call that is
    /// answered was one of those that its old credits allowed.
    fn grant(&mut self) -> Result<u32, ConnectionError> {
        let asked = self.wanted.min(self.config.credits);
        self.change_grant(asked.max(self.granted.saturating_sub(1)).max(1));
        self.replenish()?;
        let room = (self.posted + self.active.count).saturating_sub(self.design.unacknowledged());
        let room = u32::try_from(room).unwrap_or(u32::MAX);
        let credits = self.granted.min(room).max(1);
        set(&self.stats.credits_granted, credits as usize);
        Ok(credits)
    }
}

fn no_memory(e: OutOfMemory) -> ConnectionError {
    ConnectionError::Local(e.to_string())
}

/// A post on a closed connection is no error here: the next poll of the queue pair says why it closed.
fn posted(result: Result<(), PostError>) -> Result<(), ConnectionError> {
    match result {
        Ok(()) | Err(PostError::Closed) => Ok(()),
        Err(e @ PostError::Invalid(_)) => Err(ConnectionError::Local(e.to_string())),
    }
}
