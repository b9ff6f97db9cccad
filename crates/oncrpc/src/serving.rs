//! A server's connection, independent of the transport: its calls in progress, and the conditions for closing it.

use std::{
    future::Future,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll, ready},
    time::Duration,
};

use futures::{StreamExt, stream::FuturesUnordered};
use millrace_runtime::{BoxFuture, Instant, MaybeReady, RuntimeExt, RuntimeRef, Sleep, StallTimer};
use millrace_tls::ServerSession;
use millrace_xdr::{Arena, Encoder, Message, OutOfMemory};

use crate::{
    LastSender, Peer, REPLY_HEAD, ReceivedCall, SMALL_CALL, SMALL_REPLY, Sampler, Service, Stage, Stages,
    gss::{GssServer, LastContext},
};
use millrace_admission::{Account, Batch, Turn};
use millrace_buffer::{MemoryWait, slot_bytes};

/// Limits of one connection that apply to all transports.
#[derive(Debug, Clone)]
pub struct ConnectionConfig {
    /// Tolerated delay of a transfer: a peer that sends a call, answers RDMA Reads or receives replies more
    /// slowly than [`MIN_RATE`](millrace_admission::MIN_RATE), with this tolerance, is disconnected.
    pub stall_timeout: Duration,
    /// Time limit for the first call of a connection.
    pub first_call_timeout: Duration,
    /// A connection without calls in progress is closed after this time without a new call, or up to twice
    /// this time; `None`: never.
    pub idle_timeout: Option<Duration>,
    /// Selects the calls whose stages are recorded; `None`: none.
    pub sampler: Option<Arc<Sampler>>,
    /// Counts closed connections by reason; connections may share it.
    pub closed: Arc<CloseStats>,
    /// The security contexts of calls with RPCSEC_GSS; all connections of a server share it. The default is none.
    pub gss: Arc<GssServer>,
}

impl Default for ConnectionConfig {
    fn default() -> Self {
        Self {
            stall_timeout: Duration::from_secs(60),
            first_call_timeout: Duration::from_secs(60),
            idle_timeout: None,
            sampler: None,
            closed: Arc::default(),
            gss: Arc::default(),
        }
    }
}

/// The reason why the server closes a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CloseReason {
    /// No call within the idle timeout.
    Idle,
    /// No first call within its time limit.
    NoCall,
    /// The peer sent a call, answered RDMA Reads or received replies too slowly.
    Stalled,
    /// The connection limit was reached, and the client had the most connections.
    Evicted,
    /// The client's certificate is not trusted any more.
    Untrusted,
}

impl CloseReason {
    /// All reasons.
    pub const ALL: [Self; 5] = [Self::Idle, Self::NoCall, Self::Stalled, Self::Evicted, Self::Untrusted];

    /// Name in logs and metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Idle => "idle",
            Self::NoCall => "no_call",
            Self::Stalled => "stalled",
            Self::Evicted => "evicted",
            Self::Untrusted => "untrusted",
        }
    }
}

/// Number of closed connections by reason.
#[derive(Debug, Default)]
pub struct CloseStats([AtomicU64; CloseReason::ALL.len()]);

impl CloseStats {
    /// Number of connections that were closed for this reason.
    pub fn of(&self, reason: CloseReason) -> u64 {
        self.0.get(reason as usize).map_or(0, |n| n.load(Ordering::Relaxed))
    }

    fn count(&self, reason: CloseReason) {
        if let Some(n) = self.0.get(reason as usize) {
            n.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Reserved memory for a call that can be started.
pub struct Reservation {
    /// Bytes charged to the account for the call.
    charge: usize,
    reply: Encoder,
}

impl Reservation {
    /// Bytes charged to the account for the call.
    pub fn charge(&self) -> usize {
        self.charge
    }
}

/// The outcome of a call.
pub struct Answer<T> {
    /// The transport's context of the call.
    pub to: T,
    /// The reply, if one is sent.
    pub reply: Option<Message>,
    /// Bytes charged to the account for the call.
    pub charge: usize,
}

/// A call in progress at the service.
struct InProgress<T> {
    to: Option<T>,
    charge: usize,
    answer: BoxFuture<'static, Option<Message>>,
}

impl<T: Unpin> Future for InProgress<T> {
    type Output = (Option<T>, usize, Option<Message>);

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let reply = ready!(self.answer.as_mut().poll(cx));
        Poll::Ready((self.to.take(), self.charge, reply))
    }
}

/// The transport-independent part of a server's connection: reserves memory for calls, passes them to the
/// service, and determines when to close the connection. The transport's task owns it.
pub struct ServerConnection<T> {
    /// The peer.
    pub peer: Peer,
    /// The executor of the connection's task.
    pub rt: RuntimeRef,
    /// Memory for calls and replies.
    pub arena: Arena,
    /// Limits.
    pub config: ConnectionConfig,
    /// The connection's account in the budget.
    pub account: Account,
    /// Work since the last yield to other tasks.
    pub turn: Turn,
    /// The calls that were received together.
    pub batch: Batch,
    pub(crate) service: Arc<dyn Service>,
    /// The TLS of the connection.
    session: Option<Box<ServerSession>>,
    last_sender: LastSender,
    last_context: LastContext,
    /// `None` before the first call that the service does not answer immediately.
    in_progress: Option<FuturesUnordered<InProgress<T>>>,
    /// Bytes charged to the account for calls in progress.
    charged: usize,
    calls: u64,
    /// Number of turns to skip.
    skipped_turns: usize,
    /// Delays the next turn.
    delay: Option<Sleep>,
    idle: StallTimer,
    /// What the connection waits for while the arena lacks memory within the budget.
    pub memory: MemoryWait,
}

/// The times of calls: a transport begins those of a call when it receives it, and ends the stages that it has itself;
/// the stages between belong to the connection.
impl<T> ServerConnection<T> {
    /// The present time, if one of the next `calls` calls is sampled.
    pub fn now_if_due(&self, calls: usize) -> Option<Instant> {
        self.config.sampler.as_ref().and_then(|s| s.now_if_due(calls))
    }

    /// The stages of the next call, which was received at `received` and is processed since `turn`, or since now.
    pub fn sample(&self, received: Option<Instant>, turn: Option<Instant>) -> Stages {
        let Some(sampler) = &self.config.sampler else { return Stages::NONE };
        let stages = sampler.next_call(received.or(turn));
        if let Some(turn) = turn {
            stages.end_at(Stage::Receive, turn);
        }
        stages
    }

    /// Adds up the times of a call whose reply is sent.
    pub fn finish_stages(&self, stages: Stages) {
        if let Some(sampler) = &self.config.sampler {
            sampler.finish(stages);
        }
    }
}

impl<T: Unpin + AsRef<Stages>> ServerConnection<T> {
    /// Creates a connection without calls.
    pub fn new(
        peer: Peer,
        service: Arc<dyn Service>,
        rt: RuntimeRef,
        arena: Arena,
        config: ConnectionConfig,
        account: Account,
    ) -> Self {
        Self {
            peer,
            rt,
            memory: MemoryWait::new(&arena),
            arena,
            config,
            account,
            turn: Turn::default(),
            batch: Batch::default(),
            service,
            session: None,
            last_sender: LastSender::new(peer),
            last_context: LastContext::default(),
            in_progress: None,
            charged: 0,
            calls: 0,
            skipped_turns: 0,
            delay: None,
            idle: StallTimer::default(),
        }
    }

    /// Starts a turn after other tasks ran. Pending if the connection must leave this turn to others.
    pub fn begin_turn(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        // Others get the memory for which this task was woken, if it takes none in this turn.
        let _waits = self.memory.poll(cx);
        if let Some(delay) = &mut self.delay {
            ready!(delay.as_mut().poll(cx));
            self.delay = None;
        }
        if self.skipped_turns > 0 {
            self.skipped_turns -= 1;
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        self.turn = Turn::default();
        Poll::Ready(())
    }

    /// Ends a turn with work remaining, and yields to other tasks.
    pub fn end_turn(&mut self, cx: &mut Context<'_>) {
        let connections = self.account.connections();
        self.skipped_turns = self.turn.skipped_turns(connections);
        if self.turn.is_long() {
            let now = self.account.now();
            let delay = self.turn.delay(now, connections);
            self.delay = self.account.others_called(now).then(|| self.rt.sleep(delay));
        }
        cx.waker().wake_by_ref();
    }

    /// Number of calls in progress at the service.
    pub fn in_progress(&self) -> usize {
        self.in_progress.as_ref().map_or(0, FuturesUnordered::len)
    }

    /// Bytes charged to the account for calls in progress.
    pub fn charged(&self) -> usize {
        self.charged
    }

    /// Records that the connection, which has no call in progress, has TLS.
    pub fn secured(&mut self, session: ServerSession) {
        let certificate = session.certificate().cloned();
        tracing::debug!(peer = %self.peer.addr, ?certificate, "TLS is established");
        self.peer.security = session.security();
        self.last_sender = LastSender::new(self.peer).with_certificate(certificate);
        self.last_context = LastContext::default();
        self.session = Some(Box::new(session));
    }

    /// Decodes the RPC header of a received message, and opens its arguments if they are protected.
    #[inline]
    pub fn receive(&mut self, message: Message) -> ReceivedCall {
        let mut call = ReceivedCall::parse(message, &mut self.last_sender, &*self.service);
        if call.has_gss() {
            call.verify(&self.config.gss, &mut self.last_context, &*self.service, &self.rt, &self.arena);
        }
        call
    }

    /// Reserves memory for the reply to `call`, for which `used` bytes are charged already.
    pub fn poll_reserve(
        &mut self,
        cx: &mut Context<'_>,
        used: usize,
        call: &ReceivedCall,
    ) -> Poll<Reservation> {
        let reply = call.reply_bytes().unwrap_or(SMALL_REPLY);
        let more = if used > SMALL_CALL { reply.saturating_sub(used) } else { reply };
        loop {
            ready!(self.memory.poll(cx));
            if more > 0 {
                ready!(self.account.poll_take(cx, more));
            }
            match Encoder::try_new(&self.arena, REPLY_HEAD) {
                Ok(reply) => return Poll::Ready(Reservation { charge: used + more, reply }),
                Err(e) => {
                    self.account.give(more);
                    self.wait_for_memory(&e);
                }
            }
        }
    }

    /// Records that the arena lacks memory within the budget. The operation is to be repeated when
    /// [`MemoryWait::poll`] of [`Self::memory`] is ready.
    pub fn wait_for_memory(&mut self, e: &OutOfMemory) {
        tracing::debug!(peer = %self.peer.addr, "a call waits: {e}");
        self.memory.begin(e);
    }

    /// Releases the reservation of a call that is not started.
    pub fn release(&mut self, reservation: Reservation) {
        self.account.give(reservation.charge);
    }

    fn begin_call(&mut self) {
        let account = &self.account;
        self.turn.call(|| account.touch());
        self.calls += 1;
    }

    /// Executes a call. Returns the answer if it is available immediately.
    pub fn call(&mut self, call: ReceivedCall, to: T, reservation: Reservation) -> Option<Answer<T>> {
        self.begin_call();
        let stages = to.as_ref();
        if stages.is_sampled() {
            call.identify(stages);
            stages.end(Stage::Decode);
        }
        let Reservation { charge, reply } = reservation;
        let reply = match call.execute(&*self.service, reply) {
            MaybeReady::Ready(reply) => reply,
            MaybeReady::Pending(answer) => {
                let in_progress = self.in_progress.get_or_insert_default();
                in_progress.push(InProgress { to: Some(to), charge, answer });
                self.charged += charge;
                return None;
            }
        };
        Some(self.answered(to, reply, charge))
    }

    fn answered(&mut self, to: T, reply: Option<Message>, charge: usize) -> Answer<T> {
        to.as_ref().end(Stage::Execution);
        if let Some(reply) = &reply {
            // Behind the first view, the results of a protected reply follow.
            let encoded = reply.head.iter().next().map_or(0, |view| view.len());
            let bulk: usize = reply.payloads.iter().map(|p| p.data.len()).sum();
            self.turn.reply(encoded, reply.head.len() - encoded + bulk);
        }
        Answer { to, reply, charge }
    }

    /// The next answer to a call in progress.
    pub fn poll_answer(&mut self, cx: &mut Context<'_>) -> Poll<Answer<T>> {
        // Polling an empty set costs several accesses to its memory.
        while let Some(in_progress) = self.in_progress.as_mut().filter(|calls| !calls.is_empty())
            && let Poll::Ready(Some((to, charge, reply))) = in_progress.poll_next_unpin(cx)
        {
            self.charged -= charge;
            if let Some(to) = to {
                return Poll::Ready(self.answered(to, reply, charge));
            }
        }
        Poll::Pending
    }

    /// Replaces the charge of an answered call by that of its reply, which remains until the reply is sent.
    /// Returns the new charge in bytes.
    pub fn settle(&mut self, charge: usize, reply: Option<&Message>) -> usize {
        let after = reply.map_or(0, |r| {
            let bulk: usize = r.payloads.iter().map(|p| p.data.len()).sum();
            slot_bytes(r.head.len()) + bulk
        });
        self.account.replace(charge, after);
        after
    }

    /// The time that the peer may fall behind in a transfer at present ([`Account::stall_limit`]).
    pub fn stall_limit(&self) -> Duration {
        self.account.stall_limit(self.config.stall_timeout)
    }

    /// Ready when the connection must be closed because of the connection limit, or because its client's certificate is not
    /// trusted any more.
    pub fn poll_unwanted(&mut self, cx: &mut Context<'_>) -> Poll<CloseReason> {
        if let Some(session) = &self.session
            && let Poll::Ready(why) = session.poll_refused(cx)
        {
            tracing::info!(peer = %self.peer.addr, certificate = ?session.certificate(), "connection closed: {why}");
            return Poll::Ready(self.closed(CloseReason::Untrusted));
        }
        ready!(self.account.poll_evicted(cx));
        Poll::Ready(self.closed(CloseReason::Evicted))
    }

    /// Ready when a time limit for the next call has expired. To be polled while no call is in progress or
    /// partially received.
    pub fn poll_idle(&mut self, cx: &mut Context<'_>) -> Poll<CloseReason> {
        let (first, idle) = (self.config.first_call_timeout, self.config.idle_timeout);
        let (limit, reason) = match (self.calls, idle) {
            (0, _) => (first.min(idle.unwrap_or(first)), CloseReason::NoCall),
            (_, Some(limit)) => (limit, CloseReason::Idle),
            (_, None) => return Poll::Pending,
        };
        ready!(self.idle.poll(cx, &self.rt, limit, self.calls));
        Poll::Ready(self.closed(reason))
    }

    /// Counts and logs the closing of the connection.
    pub fn closed(&self, reason: CloseReason) -> CloseReason {
        self.config.closed.count(reason);
        tracing::debug!(peer = %self.peer.addr, reason = reason.name(), "closing a connection");
        reason
    }

    /// Releases the memory of an ended connection, and completes its calls in progress (a rename is not left
    /// unfinished), whose memory is released afterwards.
    pub async fn finish(&mut self) {
        self.account.give(self.account.used() - self.charged);
        self.account.cancel();
        self.memory.end();
        while let Some(in_progress) = &mut self.in_progress
            && let Some((_, charge, _)) = in_progress.next().await
        {
            self.account.give(charge);
        }
    }
}
