//! The server's end of a TCP connection.

use std::{
    collections::VecDeque,
    future::Future,
    io,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll, ready},
    time::Duration,
};

use millrace_runtime::{ByteStream, RuntimeRef, timeout};
use millrace_xdr::{Arena, Message};

use super::{channel::Channel, record::RecordReader};
use crate::{
    Peer, ReceivedCall, Service, Stage, Stages,
    serving::{Account, Answer, CloseReason, ConnectionConfig, Progress, Room, ServerConnection},
};

/// How long a connection that we end is read for the peer's own end, so that an unread byte does not make the kernel
/// reset it under the replies that are still on their way.
const LINGER: Duration = Duration::from_secs(1);

/// Limits of one connection.
#[derive(Debug, Clone)]
pub struct TcpServerConfig {
    /// The most bytes of a call: the largest write and 64 KiB for the rest of it.
    pub max_record: usize,
    /// Calls that may be in progress at once; no more are read meanwhile.
    pub max_in_flight: usize,
    /// Bytes of replies that may wait for the peer to take them or be in the making; no call is begun whose reply may
    /// exceed it, unless it is the only one.
    pub max_queued: usize,
    /// Limits that are the same on every transport.
    pub connection: ConnectionConfig,
}

impl Default for TcpServerConfig {
    fn default() -> Self {
        Self {
            max_record: (1 << 20) + (64 << 10),
            max_in_flight: 128,
            max_queued: 16 << 20,
            connection: ConnectionConfig::default(),
        }
    }
}

/// Counters over all connections that were given them.
#[derive(Debug, Default)]
pub struct TcpStats {
    /// Connections that are open.
    pub open: AtomicU64,
    /// Calls that came.
    pub calls: AtomicU64,
    /// Replies that were sent or queued.
    pub replies: AtomicU64,
    /// Bytes received.
    pub received: AtomicU64,
    /// Bytes sent.
    pub sent: AtomicU64,
    /// Connections that were closed because of what the peer sent.
    pub malformed: AtomicU64,
}

/// What all TCP connections of a server (or of one of its shards) share.
#[derive(Clone)]
pub struct TcpServer {
    /// Where calls go.
    pub service: Arc<dyn Service>,
    /// The executor of the shard.
    pub rt: RuntimeRef,
    /// Memory for calls and replies.
    pub arena: Arena,
    /// Limits.
    pub config: TcpServerConfig,
    /// Counters.
    pub stats: Arc<TcpStats>,
}

impl TcpServer {
    /// Serves one connection, whose memory is counted in `account`, until the peer ends it, breaks the protocol or is too
    /// slow, `stop` completes (then the calls that were begun are answered first), or the account is evicted. Calls that
    /// are in progress at the connection's end are run to their end in any case.
    pub async fn serve(
        self,
        stream: Box<dyn ByteStream>,
        peer: Peer,
        account: Account,
        stop: impl Future<Output = ()> + Send,
    ) {
        self.stats.open.fetch_add(1, Ordering::Relaxed);
        let _open = OpenGuard(Arc::clone(&self.stats));
        let Self { service, rt, arena, config, stats } = self;
        let reader = RecordReader::growing(&arena, config.max_record);
        let channel = match Channel::new(stream, Arc::clone(&rt), &arena, reader) {
            Ok(channel) => channel,
            Err(e) => return tracing::warn!(peer = %peer.addr, "connection refused: {e}"),
        };
        let limits = config.connection.clone();
        let mut connection = Connection {
            core: ServerConnection::new(peer, service, Arc::clone(&rt), arena, limits, account),
            config,
            stats,
            channel,
            held_back: None,
            queued: VecDeque::new(),
            queued_charge: 0,
            sampled: Vec::new(),
            reading: true,
            writing: true,
            untaken: Progress::default(),
            unsent: Progress::default(),
        };
        let mut stop = pin!(stop);
        let mut stopped = false;
        std::future::poll_fn(|cx| {
            if !stopped && stop.as_mut().poll(cx).is_ready() {
                stopped = true;
                connection.stop_reading();
            }
            connection.poll(cx)
        })
        .await;
        if connection.writing {
            connection.channel.shutdown();
            timeout(&*rt, LINGER, std::future::poll_fn(|cx| connection.channel.poll_discard(cx))).await;
        }
    }
}

struct OpenGuard(Arc<TcpStats>);

impl Drop for OpenGuard {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A call for whose reply there was no room yet.
struct HeldBack {
    call: ReceivedCall,
    /// Bytes of the account that it uses.
    charge: usize,
}

/// A reply that waits for the socket.
struct Queued {
    /// The count of bytes sent when it is gone.
    end: u64,
    /// Bytes of the account that it uses.
    charge: usize,
}

/// One connection; one task owns it.
struct Connection {
    core: ServerConnection<Stages>,
    config: TcpServerConfig,
    stats: Arc<TcpStats>,
    channel: Channel,
    held_back: Option<HeldBack>,
    queued: VecDeque<Queued>,
    queued_charge: usize,
    /// Sampled calls whose replies wait for the socket.
    sampled: Vec<Stages>,
    /// Whether further calls are wanted.
    reading: bool,
    /// Whether replies can still be sent.
    writing: bool,
    /// Watches replies being taken.
    untaken: Progress,
    /// Watches a call being sent.
    unsent: Progress,
}

impl Connection {
    /// Runs until nothing can be done now; ready when the connection is at its end.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.writing && self.core.poll_evicted(cx).is_ready() {
            self.close();
        }
        let before = (self.channel.received, self.channel.sent);
        let end = self.turns(cx);
        self.stats.received.fetch_add(self.channel.received - before.0, Ordering::Relaxed);
        self.stats.sent.fetch_add(self.channel.sent - before.1, Ordering::Relaxed);
        end
    }

    fn turns(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        ready!(self.core.begin_turn(cx));
        loop {
            self.take_calls(cx);
            // Calls that have been read but not taken: no byte that comes will wake us for them.
            let held_back = !self.may_take();
            let used = self.core.account.used();
            while let Poll::Ready(answer) = self.core.poll_answer(cx) {
                self.reply(answer);
            }
            self.flush(cx);
            if !self.reading
                && self.core.in_progress() == 0
                && (!self.writing || self.channel.writer.queued() == 0)
            {
                return Poll::Ready(());
            }
            if self.core.turn.is_over() {
                self.core.end_turn(cx);
                return Poll::Pending;
            }
            if held_back && self.may_take() {
                continue;
            }
            // A call that waits for memory asked for it as a connection that uses more.
            if self.core.account.waits() && self.core.account.used() < used {
                continue;
            }
            if !self.may_take() || self.held_back.is_some() || !self.fill(cx) {
                return Poll::Pending;
            }
        }
    }

    /// Whether another call may be taken as far as the calls and replies of this connection are concerned.
    fn may_take(&self) -> bool {
        let reply = self.held_back.as_ref().and_then(|held| held.call.reply_bytes());
        self.reading && self.core.in_progress() < self.config.max_in_flight && self.may_queue(reply)
    }

    /// Whether the peer may have a reply of so many bytes waiting too.
    fn may_queue(&self, reply: Option<usize>) -> bool {
        let pending = self.core.charged() + self.queued_charge;
        pending == 0 || pending + reply.unwrap_or(1) <= self.config.max_queued
    }

    /// Starts the calls that are here.
    fn take_calls(&mut self, cx: &mut Context<'_>) {
        while !self.core.turn.is_over() && self.may_take() {
            let held = match self.held_back.take() {
                Some(held) => held,
                None => match self.channel.poll_call(cx, &mut self.core.account) {
                    Poll::Ready(Ok(Some(message))) => self.received(message),
                    Poll::Ready(Ok(None)) => return,
                    Poll::Ready(Err(e)) => return self.give_up(&e),
                    Poll::Pending => return self.unsent.rest(),
                },
            };
            if !self.may_queue(held.call.reply_bytes()) {
                self.held_back = Some(held);
                return;
            }
            let Poll::Ready(room) = self.core.poll_room(cx, held.charge, &held.call) else {
                self.held_back = Some(held);
                return;
            };
            self.call(held.call, room);
        }
    }

    /// A whole record is here.
    fn received(&mut self, message: Message) -> HeldBack {
        self.unsent.rest();
        let admitted = self.channel.take_admitted();
        let charge = message.head.iter().map(|view| view.capacity()).sum();
        self.core.account.replace(admitted, charge);
        HeldBack { call: self.core.receive(message), charge }
    }

    fn call(&mut self, call: ReceivedCall, room: Room) {
        // A stream of anything but RPC messages is not one of records at all. A reply may answer a call of an earlier
        // connection: it is dropped.
        if !call.is_rpc() {
            self.core.abandon(room);
            return self
                .give_up(&io::Error::new(io::ErrorKind::InvalidData, "a record that is no RPC message"));
        }
        self.stats.calls.fetch_add(1, Ordering::Relaxed);
        let sampler = self.core.config.sampler.as_deref();
        let stages = sampler.map_or(Stages::NONE, |s| s.next_call(None));
        if let Some(answer) = self.core.call(call, &stages, stages.clone(), room) {
            self.reply(answer);
        }
    }

    fn reply(&mut self, answer: Answer<Stages>) {
        let Answer { to: stages, reply, charge } = answer;
        let reply = reply.filter(|_| self.writing);
        let charge = self.core.settle(charge, reply.as_ref());
        let Some(reply) = reply else { return };
        match self.channel.writer.push(&reply, None) {
            Ok(()) => {
                let end = self.channel.sent + self.channel.writer.queued() as u64;
                self.queued.push_back(Queued { end, charge });
                self.queued_charge += charge;
                self.stats.replies.fetch_add(1, Ordering::Relaxed);
                if stages.is_sampled() {
                    stages.end(Stage::Reply);
                    self.sampled.push(stages);
                }
            }
            Err(e) => {
                self.core.account.give(charge);
                tracing::error!(peer = %self.core.peer.addr, "reply dropped: {e}");
            }
        }
    }

    fn flush(&mut self, cx: &mut Context<'_>) {
        if !self.writing {
            return;
        }
        let flushed = self.channel.poll_flush(cx);
        self.release_sent();
        match flushed {
            Poll::Ready(Ok(())) => self.taken(),
            Poll::Ready(Err(e)) => self.give_up(&e),
            Poll::Pending => self.watch_taking(cx),
        }
    }

    /// Gives back the memory of replies that are gone.
    fn release_sent(&mut self) {
        let sent = self.channel.sent;
        while let Some(gone) = self.queued.pop_front_if(|reply| reply.end <= sent) {
            self.queued_charge -= gone.charge;
            self.core.account.give(gone.charge);
        }
    }

    /// The socket has taken all replies.
    fn taken(&mut self) {
        self.untaken.rest();
        let Some(sampler) = &self.core.config.sampler else { return };
        for stages in self.sampled.drain(..) {
            stages.end(Stage::Completion);
            sampler.finish(stages);
        }
    }

    /// Closes the connection of a peer that takes replies too slowly.
    fn watch_taking(&mut self, cx: &mut Context<'_>) {
        let limit = self.core.config.stall_timeout;
        if self.untaken.poll(cx, &self.core.rt, limit, self.channel.sent).is_ready() {
            self.core.closed(CloseReason::Stalled);
            self.close();
        }
    }

    /// Closes the connection of a peer that has begun a call and sends the rest too slowly; whether it did.
    fn watch_sending(&mut self, cx: &mut Context<'_>) -> bool {
        let limit = self.core.config.stall_timeout;
        let stalled = self.channel.awaits_rest()
            && self.unsent.poll(cx, &self.core.rt, limit, self.channel.received).is_ready();
        if stalled {
            self.core.closed(CloseReason::Stalled);
            self.close();
        }
        stalled
    }

    /// Ends a connection on which no call comes; whether it did. What comes from now on is not taken, so the peer may send
    /// it again on another connection.
    fn watch_idle(&mut self, cx: &mut Context<'_>) -> bool {
        let at_rest = self.core.in_progress() == 0 && self.channel.is_at_rest();
        let idle = at_rest && self.core.poll_idle(cx).is_ready();
        if idle {
            self.stop_reading();
        }
        idle
    }

    /// Reads once; whether there is something new.
    fn fill(&mut self, cx: &mut Context<'_>) -> bool {
        let before = self.channel.received;
        match self.channel.poll_fill(cx) {
            Poll::Ready(Ok(true)) => self.core.turn.received((self.channel.received - before) as usize),
            Poll::Ready(Ok(false)) => self.stop_reading(),
            Poll::Ready(Err(e)) => self.give_up(&e),
            Poll::Pending => return self.watch_sending(cx) || self.watch_idle(cx),
        }
        true
    }

    /// No more calls are taken.
    fn stop_reading(&mut self) {
        self.reading = false;
        self.core.account.cancel();
        if let Some(call) = self.held_back.take() {
            self.core.account.give(call.charge);
        }
    }

    /// Ends the connection because of an error.
    fn give_up(&mut self, why: &io::Error) {
        if why.kind() == io::ErrorKind::InvalidData {
            self.stats.malformed.fetch_add(1, Ordering::Relaxed);
            tracing::warn!(peer = %self.core.peer.addr, "connection closed: {why}; does it speak another protocol, such as RDMA?");
        } else {
            tracing::debug!(peer = %self.core.peer.addr, "connection ended: {why}");
        }
        self.close();
    }

    /// Ends the connection at once: calls in progress go on, and their replies are dropped.
    fn close(&mut self) {
        self.stop_reading();
        self.writing = false;
        let mut charge = self.channel.clear();
        charge += self.queued.drain(..).map(|reply| reply.charge).sum::<usize>();
        self.queued_charge = 0;
        self.core.account.give(charge);
        self.channel.shutdown();
    }
}
