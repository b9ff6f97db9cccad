//! One connection: its calls in progress, and when it is to be closed.

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
use millrace_runtime::{BoxFuture, MaybeReady, RuntimeExt, RuntimeRef, Sleep, Standstill};
use millrace_xdr::{Arena, Encoder, Message, OutOfMemory};

use super::{Account, Turn, slot_bytes};
use crate::{Peer, REPLY_HEAD, ReceivedCall, SMALL_REPLY, Sampler, Service, Stages};

/// Of calls up to this, memory is counted beside that of their replies. That of larger ones is free when their reply is
/// made.
const SMALL_CALL: usize = 4096;
/// How long to wait before memory is asked for again where the arena has none, although the budget has.
pub(crate) const MEMORY_RETRY: Duration = Duration::from_millis(10);

/// Limits of one connection that are the same on every transport.
#[derive(Debug, Clone)]
pub struct ConnectionConfig {
    /// A peer that sends the rest of a call, answers RDMA Reads or takes replies more slowly than
    /// [`MIN_RATE`](super::MIN_RATE) loses its connection; it may be late by so much.
    pub stall_timeout: Duration,
    /// A connection on which no call has come so long after it was opened is closed.
    pub first_call_timeout: Duration,
    /// A connection on which no call came for so long, or up to twice as long, and of which none is in progress, is
    /// closed; `None`: never.
    pub idle_timeout: Option<Duration>,
    /// Chooses the calls whose stages are timed; `None`: none.
    pub sampler: Option<Arc<Sampler>>,
    /// Counts connections that are closed, by reason; several may share it.
    pub closed: Arc<CloseStats>,
}

impl Default for ConnectionConfig {
    fn default() -> Self {
        Self {
            stall_timeout: Duration::from_secs(60),
            first_call_timeout: Duration::from_secs(60),
            idle_timeout: None,
            sampler: None,
            closed: Arc::default(),
        }
    }
}

/// Why the server closes a connection that the peer has not ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CloseReason {
    /// No call came for the idle timeout.
    Idle,
    /// No call came at all.
    NoCall,
    /// The peer sent a call, answered RDMA Reads or took replies too slowly.
    Stalled,
    /// There were too many connections, and its client had the most.
    Evicted,
}

impl CloseReason {
    /// All reasons.
    pub const ALL: [Self; 4] = [Self::Idle, Self::NoCall, Self::Stalled, Self::Evicted];

    /// Its name in logs and metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Idle => "idle",
            Self::NoCall => "no_call",
            Self::Stalled => "stalled",
            Self::Evicted => "evicted",
        }
    }
}

/// Connections that were closed, by reason.
#[derive(Debug, Default)]
pub struct CloseStats([AtomicU64; CloseReason::ALL.len()]);

impl CloseStats {
    /// How many for this reason.
    pub fn of(&self, reason: CloseReason) -> u64 {
        self.0.get(reason as usize).map_or(0, |n| n.load(Ordering::Relaxed))
    }

    fn count(&self, reason: CloseReason) {
        if let Some(n) = self.0.get(reason as usize) {
            n.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Room for a call: it can be begun.
pub struct Room {
    /// Bytes of the account that the call uses.
    charge: usize,
    reply: Encoder,
}

impl Room {
    /// Bytes of the account that the call uses.
    pub fn charge(&self) -> usize {
        self.charge
    }
}

/// The outcome of a call. `to` is what the transport needs to send the reply.
pub struct Answer<T> {
    /// What the transport gave with the call.
    pub to: T,
    /// The reply, if there is one.
    pub reply: Option<Message>,
    /// Bytes of the account that the call uses.
    pub charge: usize,
}

/// A call that the service has not answered yet.
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

/// What a server does on one connection whatever its transport: it makes room for calls, gives them to the service, and
/// notices when the connection is to be closed. The transport's task owns it.
pub struct ServerConnection<T> {
    /// The peer.
    pub peer: Peer,
    /// The executor of the connection's task.
    pub rt: RuntimeRef,
    /// Memory for calls and replies.
    pub arena: Arena,
    /// Limits.
    pub config: ConnectionConfig,
    /// The memory that the connection uses.
    pub account: Account,
    /// What was done since other tasks had their turn.
    pub turn: Turn,
    service: Arc<dyn Service>,
    in_progress: FuturesUnordered<InProgress<T>>,
    /// Bytes of the account that calls in progress use.
    charged: usize,
    calls: u64,
    /// Turns that are passed over.
    passes: usize,
    /// Runs until the next turn may begin.
    delay: Option<Sleep>,
    idle: Standstill,
    /// Runs while there is no memory for the head of a reply.
    retry: Option<Sleep>,
}

impl<T: Unpin> ServerConnection<T> {
    /// A connection of `peer` on which no call has come.
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
            arena,
            config,
            account,
            turn: Turn::default(),
            service,
            in_progress: FuturesUnordered::new(),
            charged: 0,
            calls: 0,
            passes: 0,
            delay: None,
            idle: Standstill::default(),
            retry: None,
        }
    }

    /// Begins a turn: other tasks had theirs. Pending where another connection is to have it.
    pub fn begin_turn(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if let Some(delay) = &mut self.delay {
            ready!(delay.as_mut().poll(cx));
            self.delay = None;
        }
        if self.passes > 0 {
            self.passes -= 1;
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        self.turn = Turn::default();
        Poll::Ready(())
    }

    /// Ends a turn before everything is done: other tasks have theirs.
    pub fn end_turn(&mut self, cx: &mut Context<'_>) {
        let connections = self.account.connections();
        self.passes = self.turn.passes(connections);
        if self.turn.is_long() {
            let now = self.account.now();
            let delay = self.turn.delay(now, connections);
            self.delay = self.account.others_called(now).then(|| self.rt.sleep(delay));
        }
        cx.waker().wake_by_ref();
    }

    /// Calls that the service has not answered.
    pub fn in_progress(&self) -> usize {
        self.in_progress.len()
    }

    /// Bytes that these calls use.
    pub fn charged(&self) -> usize {
        self.charged
    }

    /// Decodes the RPC header of a message that has arrived.
    pub fn receive(&self, message: Message) -> ReceivedCall {
        ReceivedCall::parse(message, &self.peer, &*self.service)
    }

    /// Reserves memory for the reply to `call`, which uses `used` bytes of the account.
    pub fn poll_room(&mut self, cx: &mut Context<'_>, used: usize, call: &ReceivedCall) -> Poll<Room> {
        ready!(self.poll_memory(cx));
        let reply = call.reply_bytes().unwrap_or(SMALL_REPLY);
        let more = if used > SMALL_CALL { reply.saturating_sub(used) } else { reply };
        if more > 0 {
            ready!(self.account.poll_take(cx, more));
        }
        match Encoder::try_new(&self.arena, REPLY_HEAD) {
            Ok(reply) => Poll::Ready(Room { charge: used + more, reply }),
            Err(e) => {
                self.account.give(more);
                self.wait_for_memory(&e);
                cx.waker().wake_by_ref(); // To poll the timer.
                Poll::Pending
            }
        }
    }

    /// The arena has no memory, although the account has: what needs it is to be tried again when
    /// [`Self::poll_memory`] is ready.
    pub fn wait_for_memory(&mut self, e: &OutOfMemory) {
        tracing::debug!(peer = %self.peer.addr, "a call waits: {e}");
        let rt = &self.rt;
        self.retry.get_or_insert_with(|| rt.sleep(MEMORY_RETRY));
    }

    /// Ready unless the arena had no memory just now.
    pub fn poll_memory(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if let Some(retry) = &mut self.retry {
            ready!(retry.as_mut().poll(cx));
            self.retry = None;
        }
        Poll::Ready(())
    }

    /// Gives back the room of a call that is not begun.
    pub fn abandon(&mut self, room: Room) {
        self.account.give(room.charge);
    }

    fn begin_call(&mut self) {
        let account = &self.account;
        self.turn.call(|| account.touch());
        self.calls += 1;
    }

    /// Executes a call; the answer, if it is there at once. `stages` are those of the call.
    pub fn call(&mut self, call: ReceivedCall, stages: &Stages, to: T, room: Room) -> Option<Answer<T>> {
        self.begin_call();
        let Room { charge, reply } = room;
        let reply = match call.execute(&*self.service, stages, reply) {
            MaybeReady::Ready(reply) => reply,
            MaybeReady::Pending(answer) => {
                self.in_progress.push(InProgress { to: Some(to), charge, answer });
                self.charged += charge;
                return None;
            }
            MaybeReady::Taken => None,
        };
        Some(self.answered(to, reply, charge))
    }

    fn answered(&mut self, to: T, reply: Option<Message>, charge: usize) -> Answer<T> {
        if let Some(reply) = &reply {
            self.turn.reply(reply);
        }
        Answer { to, reply, charge }
    }

    /// The next answer to a call that was in progress.
    pub fn poll_answer(&mut self, cx: &mut Context<'_>) -> Poll<Answer<T>> {
        while let Poll::Ready(Some((to, charge, reply))) = self.in_progress.poll_next_unpin(cx) {
            self.charged -= charge;
            if let Some(to) = to {
                return Poll::Ready(self.answered(to, reply, charge));
            }
        }
        Poll::Pending
    }

    /// A call is answered with `reply`: the account counts the reply instead of the call from now on, until that is sent.
    /// Gives how much that is.
    pub fn settle(&mut self, charge: usize, reply: Option<&Message>) -> usize {
        let after = reply.map_or(0, |r| {
            let bulk: usize = r.payloads.iter().map(|p| p.data.len()).sum();
            slot_bytes(r.head.len()) + bulk
        });
        self.account.replace(charge, after);
        after
    }

    /// Ready when the connection has to be closed because there are too many.
    pub fn poll_evicted(&mut self, cx: &mut Context<'_>) -> Poll<CloseReason> {
        ready!(self.account.poll_evicted(cx));
        Poll::Ready(self.closed(CloseReason::Evicted))
    }

    /// Ready when no call came for too long. To be polled while none is in progress and nothing of one has come.
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

    /// Counts and logs that the connection is closed.
    pub fn closed(&self, reason: CloseReason) -> CloseReason {
        self.config.closed.count(reason);
        tracing::debug!(peer = %self.peer.addr, reason = reason.name(), "closing a connection");
        reason
    }

    /// The connection has ended: gives back its memory at once but for that of calls in progress, which are run to their end (a
    /// rename is not left half done).
    pub async fn finish(mut self) {
        self.account.give(self.account.used() - self.charged);
        self.account.cancel();
        while let Some((_, charge, _)) = self.in_progress.next().await {
            self.account.give(charge);
        }
    }
}
