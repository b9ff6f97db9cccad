//! The server's end of a TCP connection.

use std::{
    future::Future,
    io,
    pin::{Pin, pin},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll, ready},
    time::Duration,
};

use futures::{StreamExt, stream::FuturesUnordered};
use runtime::{BoxFuture, ByteStream, MaybeReady, RuntimeRef, Standstill, timeout};
use xdr::{Arena, Message};

use super::channel::Channel;
use crate::{MSG_REPLY, Peer, Sampler, Service, Stage, Stages};

/// Calls taken from a connection before other tasks of the shard get a turn.
const CALLS_PER_TURN: usize = 64;
/// Bytes read from a connection before other tasks of the shard get a turn.
const BYTES_PER_TURN: u64 = 2 << 20;
/// How long a connection that we end is read for the peer's own end, so that an unread byte does not make the kernel
/// reset it under the replies that are still on their way.
const LINGER: Duration = Duration::from_secs(1);

/// Limits of one connection.
#[derive(Debug, Clone)]
pub struct TcpServerConfig {
    /// The most bytes of a call: the largest write and 64 KiB for the rest of it.
    pub max_record: usize,
    /// Calls that may wait for a file system at once; no more are read meanwhile.
    pub max_in_flight: usize,
    /// Bytes of replies that may wait for the peer to read them; no more calls are read meanwhile. One reply may
    /// exceed it.
    pub max_queued: usize,
    /// A peer that takes no byte of a waiting reply for so long, or sends none of a call that it has begun, is given
    /// up.
    pub stall_timeout: Duration,
    /// A connection on which no call came for so long, or up to twice as long, and of which none is in progress, is
    /// closed; `None`: never.
    pub idle_timeout: Option<Duration>,
    /// Chooses the calls whose stages are timed; `None`: none.
    pub sampler: Option<Arc<Sampler>>,
}

impl Default for TcpServerConfig {
    fn default() -> Self {
        Self {
            max_record: (1 << 20) + (64 << 10),
            max_in_flight: 128,
            max_queued: 4 << 20,
            stall_timeout: Duration::from_secs(60),
            idle_timeout: None,
            sampler: None,
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
    /// Connections that were closed because the peer did not take its replies, or did not end a call.
    pub stalled: AtomicU64,
    /// Connections that were closed because no call came for long.
    pub idle: AtomicU64,
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
    /// Serves one connection until the peer ends it, breaks the protocol or is silent for too long, or `stop` completes
    /// (then the calls at hand are answered first). Calls that the connection's end finds at work are run to their end in any case.
    pub async fn serve(self, stream: Box<dyn ByteStream>, peer: Peer, stop: impl Future<Output = ()> + Send) {
        self.stats.open.fetch_add(1, Ordering::Relaxed);
        let _open = OpenGuard(Arc::clone(&self.stats));
        let rt = Arc::clone(&self.rt);
        let channel = match Channel::new(stream, Arc::clone(&rt), &self.arena, self.config.max_record) {
            Ok(channel) => channel,
            Err(e) => return tracing::warn!(peer = %peer.addr, "connection refused: {e}"),
        };
        let mut connection = Connection {
            server: self,
            peer,
            channel,
            waiting: FuturesUnordered::new(),
            sampled: Vec::new(),
            reading: true,
            writing: true,
            untaken: Standstill::default(),
            unsent: Standstill::default(),
            idle: Standstill::default(),
        };
        let mut stop = pin!(stop);
        let mut stopped = false;
        std::future::poll_fn(|cx| {
            if !stopped && stop.as_mut().poll(cx).is_ready() {
                (stopped, connection.reading) = (true, false);
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

/// A call that the service has not answered yet.
struct InProgress {
    stages: Stages,
    answer: BoxFuture<'static, Option<Message>>,
}

impl Future for InProgress {
    type Output = (Stages, Option<Message>);

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let answer = ready!(self.answer.as_mut().poll(cx));
        Poll::Ready((std::mem::take(&mut self.stages), answer))
    }
}

/// One connection; one task owns it.
struct Connection {
    server: TcpServer,
    peer: Peer,
    channel: Channel,
    waiting: FuturesUnordered<InProgress>,
    /// Sampled calls whose replies wait for the socket.
    sampled: Vec<Stages>,
    /// Whether further calls are wanted.
    reading: bool,
    /// Whether replies can still be sent.
    writing: bool,
    /// Runs while a reply waits for the peer to take it.
    untaken: Standstill,
    /// Runs while a call waits for the peer to send the rest of it: its memory is taken already.
    unsent: Standstill,
    /// Runs while no call is in progress.
    idle: Standstill,
}

impl Connection {
    /// Runs until nothing can be done now; ready when the connection is at its end.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let before = (self.channel.received, self.channel.sent);
        let end = self.turns(cx);
        let stats = &self.server.stats;
        stats.received.fetch_add(self.channel.received - before.0, Ordering::Relaxed);
        stats.sent.fetch_add(self.channel.sent - before.1, Ordering::Relaxed);
        end
    }

    fn turns(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let (mut calls, start) = (0, self.channel.received);
        loop {
            calls += self.take_calls(cx);
            // Calls that have been read but not taken: no byte that comes will wake us for them.
            let held_back = !self.may_read();
            while let Poll::Ready(Some((stages, reply))) = self.waiting.poll_next_unpin(cx) {
                self.reply(stages, reply);
            }
            self.flush(cx);
            if !self.reading
                && self.waiting.is_empty()
                && (!self.writing || self.channel.writer.queued() == 0)
            {
                return Poll::Ready(());
            }
            if calls >= CALLS_PER_TURN || self.channel.received - start >= BYTES_PER_TURN {
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            if held_back && self.may_read() {
                continue;
            }
            if !self.may_read() || !self.fill(cx) {
                return Poll::Pending;
            }
        }
    }

    fn may_read(&self) -> bool {
        let config = &self.server.config;
        self.reading
            && self.waiting.len() < config.max_in_flight
            && self.channel.writer.queued() < config.max_queued
    }

    /// Starts the calls that are here; how many.
    fn take_calls(&mut self, cx: &mut Context<'_>) -> usize {
        let mut calls = 0;
        while calls < CALLS_PER_TURN && self.may_read() {
            match self.channel.poll_record(cx) {
                Poll::Ready(Ok(Some(message))) => self.call(message),
                Poll::Ready(Ok(None)) | Poll::Pending => break,
                Poll::Ready(Err(e)) => self.give_up(&e),
            }
            calls += 1;
        }
        calls
    }

    fn call(&mut self, message: Message) {
        // A stream in which something else than RPC messages comes is not one of records at all. A reply may be a late
        // answer to a call of another connection's life: it is dropped by the service.
        let kind = message.head.iter().next().and_then(|v| v.get(4..8)?.first_chunk());
        if kind.is_none_or(|k| u32::from_be_bytes(*k) > MSG_REPLY) {
            return self
                .give_up(&io::Error::new(io::ErrorKind::InvalidData, "a record that is no RPC message"));
        }
        self.server.stats.calls.fetch_add(1, Ordering::Relaxed);
        let sampler = self.server.config.sampler.as_deref();
        let stages = sampler.map_or(Stages::NONE, |s| s.next_call(None));
        match self.server.service.call(&self.peer, message, &self.server.arena, &stages) {
            MaybeReady::Ready(reply) => self.reply(stages, reply),
            MaybeReady::Pending(answer) => self.waiting.push(InProgress { stages, answer }),
            MaybeReady::Taken => {}
        }
    }

    fn reply(&mut self, stages: Stages, reply: Option<Message>) {
        let Some(reply) = reply.filter(|_| self.writing) else { return };
        match self.channel.writer.push(&reply, None) {
            Ok(()) => {
                self.server.stats.replies.fetch_add(1, Ordering::Relaxed);
                if stages.is_sampled() {
                    stages.end(Stage::Reply);
                    self.sampled.push(stages);
                }
            }
            Err(e) => tracing::error!(peer = %self.peer.addr, "reply dropped: {e}"),
        }
    }

    fn flush(&mut self, cx: &mut Context<'_>) {
        if !self.writing {
            return;
        }
        match self.channel.poll_flush(cx) {
            Poll::Ready(Ok(())) => self.taken(),
            Poll::Ready(Err(e)) => self.give_up(&e),
            Poll::Pending => self.watch_taking(cx),
        }
    }

    /// The socket has taken all replies.
    fn taken(&mut self) {
        let Some(sampler) = &self.server.config.sampler else { return };
        for stages in self.sampled.drain(..) {
            stages.end(Stage::Completion);
            sampler.finish(stages);
        }
    }

    /// Gives up a peer that takes nothing.
    fn watch_taking(&mut self, cx: &mut Context<'_>) {
        let TcpServer { rt, config, .. } = &self.server;
        if self.untaken.poll(cx, rt, config.stall_timeout, self.channel.sent).is_ready() {
            self.stalled();
        }
    }

    /// Gives up a peer that has begun a call and does not end it; whether it did.
    fn watch_sending(&mut self, cx: &mut Context<'_>) -> bool {
        let TcpServer { rt, config, .. } = &self.server;
        let given_up = self.channel.awaits_rest()
            && self.unsent.poll(cx, rt, config.stall_timeout, self.channel.received).is_ready();
        if given_up {
            self.stalled();
        }
        given_up
    }

    /// Ends a connection that nobody uses; whether it did. What comes from now on is not taken, so the peer may send it
    /// again on another connection.
    fn watch_idle(&mut self, cx: &mut Context<'_>) -> bool {
        let TcpServer { rt, config, stats, .. } = &self.server;
        let Some(limit) =
            config.idle_timeout.filter(|_| self.waiting.is_empty() && self.channel.is_at_rest())
        else {
            return false;
        };
        let idle = self.idle.poll(cx, rt, limit, self.channel.received).is_ready();
        if idle {
            stats.idle.fetch_add(1, Ordering::Relaxed);
            tracing::debug!(peer = %self.peer.addr, "connection closed: no call for {limit:?}");
            self.reading = false;
        }
        idle
    }

    fn stalled(&mut self) {
        self.server.stats.stalled.fetch_add(1, Ordering::Relaxed);
        self.give_up(&io::ErrorKind::TimedOut.into());
    }

    /// Reads once; whether there is something new.
    fn fill(&mut self, cx: &mut Context<'_>) -> bool {
        match self.channel.poll_fill(cx) {
            Poll::Ready(Ok(true)) => return true,
            Poll::Ready(Ok(false)) => self.reading = false,
            Poll::Ready(Err(e)) => self.give_up(&e),
            Poll::Pending => return self.watch_sending(cx) || self.watch_idle(cx),
        }
        true
    }

    /// The peer is gone or of no use: calls at work go on, replies are dropped.
    fn give_up(&mut self, why: &io::Error) {
        if why.kind() == io::ErrorKind::InvalidData {
            self.server.stats.malformed.fetch_add(1, Ordering::Relaxed);
            tracing::warn!(peer = %self.peer.addr, "connection closed: {why}; does it speak another protocol, such as RDMA?");
        } else {
            tracing::debug!(peer = %self.peer.addr, "connection ended: {why}");
        }
        (self.reading, self.writing) = (false, false);
        self.channel.writer.clear();
        self.channel.shutdown();
    }
}
