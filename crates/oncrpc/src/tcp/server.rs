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

use millrace_runtime::{ByteStream, RuntimeExt, RuntimeRef, timeout};
use millrace_tls::{TlsAcceptor, TlsError};
use millrace_xdr::{Arena, Message};

use super::{channel::Channel, record::RecordReader, starttls::Upgrade};
use crate::{
    Peer, ReceivedCall, Service, Stage, Stages, TransportSecurity,
    callbacks::{CallbackQueue, is_reply},
    serving::{Answer, CloseReason, ConnectionConfig, Reservation, ServerConnection},
};
use millrace_admission::{Account, RateMonitor};

/// Time limit for reading after the end of a connection by this end. Unread bytes would make the kernel reset
/// the connection and discard replies in flight.
const LINGER: Duration = Duration::from_secs(1);

/// Bytes that wait for the socket, from which on no callbacks are added.
const CALLBACKS_QUEUED: usize = 64 << 10;

/// Limits of one connection.
#[derive(Debug, Clone)]
pub struct TcpServerConfig {
    /// Maximum bytes of a call: the largest WRITE, and 64 KiB for the rest of the call.
    pub max_record: usize,
    /// Maximum number of calls in progress; reading stops at the limit.
    pub max_in_flight: usize,
    /// Maximum bytes of replies that are queued or in preparation. A call whose reply might exceed the limit
    /// is delayed, unless it is the only one.
    pub max_queued: usize,
    /// Limits that apply to all transports.
    pub connection: ConnectionConfig,
    /// TLS for clients that ask for it; connections share it. The default is none.
    pub tls: Arc<TlsAcceptor>,
}

impl Default for TcpServerConfig {
    fn default() -> Self {
        Self {
            max_record: (1 << 20) + (64 << 10),
            max_in_flight: 128,
            max_queued: 16 << 20,
            connection: ConnectionConfig::default(),
            tls: Arc::default(),
        }
    }
}

/// Counters of the connections that share this value.
#[derive(Debug, Default)]
pub struct TcpStats {
    /// Open connections.
    pub open: AtomicU64,
    /// Calls received.
    pub calls: AtomicU64,
    /// Replies sent or queued.
    pub replies: AtomicU64,
    /// Bytes received.
    pub received: AtomicU64,
    /// Bytes sent.
    pub sent: AtomicU64,
    /// Connections closed because of invalid data from the peer.
    pub malformed: AtomicU64,
}

/// The common state of all TCP connections of a server or shard.
#[derive(Clone)]
pub struct TcpServer {
    /// Executes the calls.
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
    /// Serves one connection until the peer closes it, violates the protocol or is too slow, the account is
    /// evicted, or `stop` completes (then calls in progress are answered first). Memory is charged to
    /// `account`. Calls in progress at the end of the connection are always completed.
    pub fn serve(
        self,
        stream: Box<dyn ByteStream>,
        peer: Peer,
        account: Account,
        stop: impl Future<Output = ()> + Send,
    ) -> impl Future<Output = ()> + Send {
        // In a box, because each future that it passes through has room for it.
        let connection = self.connect(stream, peer, account).map(Box::new);
        async move {
            match connection {
                Ok(connection) => connection.run_until(stop).await,
                Err(e) => tracing::warn!(peer = %peer.addr, "connection rejected: {e}"),
            }
        }
    }

    fn connect(self, stream: Box<dyn ByteStream>, peer: Peer, account: Account) -> io::Result<Connection> {
        let Self { service, rt, arena, config, stats } = self;
        let reader = RecordReader::growing(&arena, config.max_record);
        let channel = Channel::new(stream, &arena, reader)?;
        let limits = config.connection.clone();
        let callbacks = service.callbacks().cloned().map(CallbackQueue::new);
        Ok(Connection {
            callbacks,
            core: ServerConnection::new(peer, service, rt, arena, limits, account),
            config,
            _open: OpenGuard::new(Arc::clone(&stats)),
            stats,
            channel,
            deferred: None,
            queued: VecDeque::new(),
            queued_charge: 0,
            sampled: Vec::new(),
            reading: true,
            writing: true,
            send_rate: RateMonitor::default(),
            receive_rate: RateMonitor::default(),
            upgrade: None,
        })
    }
}

struct OpenGuard(Arc<TcpStats>);

impl OpenGuard {
    fn new(stats: Arc<TcpStats>) -> Self {
        stats.open.fetch_add(1, Ordering::Relaxed);
        Self(stats)
    }
}

impl Drop for OpenGuard {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A call that waits for memory for its reply.
struct DeferredCall {
    call: ReceivedCall,
    stages: Stages,
    /// Bytes charged to the account.
    charge: usize,
}

/// A reply that waits for the socket.
struct QueuedReply {
    /// Total of sent bytes at which the reply is completely sent.
    end: u64,
    /// Bytes charged to the account.
    charge: usize,
}

/// One connection, owned by one task.
struct Connection {
    core: ServerConnection<Stages>,
    /// Calls in the reverse direction.
    callbacks: Option<CallbackQueue>,
    config: TcpServerConfig,
    stats: Arc<TcpStats>,
    /// Counts the connection as open.
    _open: OpenGuard,
    channel: Channel,
    deferred: Option<DeferredCall>,
    queued: VecDeque<QueuedReply>,
    queued_charge: usize,
    /// Sampled calls whose replies wait for the socket.
    sampled: Vec<Stages>,
    /// Whether further calls are read.
    reading: bool,
    /// Whether replies can be sent.
    writing: bool,
    /// Detects a peer that receives replies too slowly.
    send_rate: RateMonitor,
    /// Detects a peer that sends a call too slowly.
    receive_rate: RateMonitor,
    /// The transition to TLS.
    upgrade: Option<Box<Upgrade>>,
}

impl Connection {
    /// Serves until the end of the connection, or until `stop` completes and the calls in progress are answered.
    async fn run_until(mut self: Box<Self>, stop: impl Future<Output = ()>) {
        let mut stop = pin!(stop);
        let mut stopped = false;
        std::future::poll_fn(|cx| {
            if !stopped && stop.as_mut().poll(cx).is_ready() {
                stopped = true;
                self.stop_reading();
            }
            self.poll(cx)
        })
        .await;
        if self.writing {
            self.channel.shutdown();
            let rt = Arc::clone(&self.core.rt);
            timeout(&*rt, LINGER, std::future::poll_fn(|cx| self.channel.poll_discard(cx))).await;
        }
    }

    /// Processes available work; ready at the end of the connection.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.writing && self.core.poll_unwanted(cx).is_ready() {
            self.close();
        }
        if self.callbacks.as_mut().is_some_and(|callbacks| callbacks.poll(cx.waker())) {
            self.send_callbacks();
        }
        let before = (self.channel.received, self.channel.sent);
        let end = self.run(cx);
        self.stats.received.fetch_add(self.channel.received - before.0, Ordering::Relaxed);
        self.stats.sent.fetch_add(self.channel.sent - before.1, Ordering::Relaxed);
        end
    }

    /// Queues callbacks for the socket, unless the peer receives too slowly.
    fn send_callbacks(&mut self) {
        let Some(callbacks) = self.callbacks.as_ref().filter(|_| self.writing) else { return };
        while self.channel.writer.queued() < CALLBACKS_QUEUED
            && let Some((xid, call)) = callbacks.next_call()
        {
            if let Err(e) = self.channel.writer.push(&call, Some(xid)) {
                tracing::error!(peer = %self.core.peer.addr, "callback dropped: {e}");
            }
        }
    }

    fn run(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.channel.yield_memory(cx);
        ready!(self.core.begin_turn(cx));
        if self.upgrade.is_some() {
            ready!(self.poll_upgrade(cx));
        }
        loop {
            self.take_calls(cx);
            self.core.batch.end();
            // Calls that are buffered but not taken: no further bytes will wake the task for them.
            let deferred = !self.may_take();
            let used = self.core.account.used();
            while let Poll::Ready(answer) = self.core.poll_answer(cx) {
                self.reply(answer);
            }
            self.flush(cx);
            if self.upgrade.is_some() {
                cx.waker().wake_by_ref(); // The next turn proceeds with it.
                return Poll::Pending;
            }
            if !self.reading && self.core.in_progress() == 0 && (!self.writing || self.channel.is_flushed()) {
                return Poll::Ready(());
            }
            if self.core.turn.is_over() {
                self.core.end_turn(cx);
                return Poll::Pending;
            }
            if deferred && self.may_take() {
                continue;
            }
            // A waiting call made its request when the connection used more memory.
            if self.core.account.waits() && self.core.account.used() < used {
                continue;
            }
            if !self.may_take() || self.deferred.is_some() || !self.fill(cx) {
                return Poll::Pending;
            }
        }
    }

    /// Whether the limits of calls and replies of this connection permit another call.
    fn may_take(&self) -> bool {
        let reply = self.deferred.as_ref().and_then(|deferred_call| deferred_call.call.reply_bytes());
        self.reading
            && self.core.in_progress() < self.config.max_in_flight
            && self.may_queue(reply)
            && self.upgrade.is_none()
    }

    /// Whether the limit permits another queued reply of `reply` bytes.
    fn may_queue(&self, reply: Option<usize>) -> bool {
        let pending = self.core.charged() + self.queued_charge;
        pending == 0 || pending + reply.unwrap_or(1) <= self.config.max_queued
    }

    /// Starts received calls.
    fn take_calls(&mut self, cx: &mut Context<'_>) {
        while !self.core.turn.is_over() && self.may_take() {
            let deferred_call = match self.deferred.take() {
                Some(deferred_call) => deferred_call,
                None => match self.poll_record(cx) {
                    Poll::Ready(Ok(Some(message))) => match self.process_record(message) {
                        Some(deferred_call) => deferred_call,
                        None => continue,
                    },
                    Poll::Ready(Ok(None)) => return,
                    Poll::Ready(Err(e)) => return self.fail(&e),
                    Poll::Pending => return self.receive_rate.pause(),
                },
            };
            if !self.may_queue(deferred_call.call.reply_bytes()) {
                self.deferred = Some(deferred_call);
                return;
            }
            let Poll::Ready(reservation) =
                self.core.poll_reserve(cx, deferred_call.charge, &deferred_call.call)
            else {
                self.deferred = Some(deferred_call);
                return;
            };
            self.call(deferred_call.call, deferred_call.stages, reservation);
            if self.core.batch.call() {
                self.flush(cx);
            }
        }
    }

    /// The next received record, if it is complete.
    fn poll_record(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Option<Message>>> {
        let ServerConnection { account, service, .. } = &mut self.core;
        self.channel.poll_call(cx, account, |start, len| {
            service.plan_of_prefix(start, len).data_offset.map(|offset| offset as usize)
        })
    }

    /// Decodes a complete record. `None` if it is the reply to a callback.
    fn process_record(&mut self, message: Message) -> Option<DeferredCall> {
        self.receive_rate.pause();
        let admitted = self.channel.take_admitted();
        if let Some(callbacks) = self.callbacks.as_ref().filter(|_| is_reply(&message)) {
            self.core.account.give(admitted);
            callbacks.reply(message);
            return None;
        }
        let charge = message.head.iter().map(|view| view.capacity()).sum();
        self.core.account.replace(admitted, charge);
        let stages = self.core.sample(None, None);
        let mut call = self.core.receive(message);
        if call.is_tls_probe() && self.begin_upgrade(&mut call) {
            self.core.account.give(charge);
            return None;
        }
        Some(DeferredCall { call, stages, charge })
    }

    /// Begins the transition to TLS for which `call` asks. Returns `false` if the call is to be executed instead: without a
    /// certificate the server answers as one without TLS, and a wrong probe is rejected.
    #[cold]
    fn begin_upgrade(&mut self, call: &mut ReceivedCall) -> bool {
        let has_tls = self.core.peer.security != TransportSecurity::None;
        if !has_tls && !self.config.tls.is_enabled() {
            return false;
        }
        let Some(xid) = call.tls_probe(has_tls) else { return false };
        // Bytes behind the probe were not protected, and would be attributed to the session (as CVE-2011-0411 of SMTP).
        if !self.channel.is_quiescent() || self.core.in_progress() > 0 {
            self.fail(&io::Error::new(io::ErrorKind::InvalidData, "calls around a probe for TLS"));
        } else {
            let limit = self.core.config.first_call_timeout;
            self.upgrade = Some(Box::new(Upgrade::new(xid, self.core.rt.sleep(limit))));
        }
        true
    }

    /// Proceeds with the transition to TLS. Ready at its end, and after a failure, which closes the connection.
    #[cold]
    fn poll_upgrade(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let Some(mut upgrade) = self.upgrade.take() else { return Poll::Ready(()) };
        if !self.reading {
            self.close(); // The server stops.
            return Poll::Ready(());
        }
        match upgrade.poll(cx, &mut self.channel, &mut self.core, &self.config.tls) {
            Poll::Pending => {
                self.upgrade = Some(upgrade);
                return Poll::Pending;
            }
            Poll::Ready(Ok(session)) => self.core.secured(session),
            Poll::Ready(Err(why)) => {
                tracing::warn!(peer = %self.core.peer.addr, "TLS handshake failed: {why}");
                self.close();
            }
        }
        Poll::Ready(())
    }

    fn call(&mut self, call: ReceivedCall, stages: Stages, reservation: Reservation) {
        // A record that is not an RPC message shows that the stream has another protocol. A reply is dropped,
        // because it may answer a call of an earlier connection.
        if !call.is_rpc() {
            self.core.release(reservation);
            return self
                .fail(&io::Error::new(io::ErrorKind::InvalidData, "a record that is not an RPC message"));
        }
        if call.is_discarded() {
            self.core.release(reservation);
            return self.fail(&io::Error::other("a call was discarded"));
        }
        self.stats.calls.fetch_add(1, Ordering::Relaxed);
        if let Some(answer) = self.core.call(call, stages, reservation) {
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
                self.queued.push_back(QueuedReply { end, charge });
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
            Poll::Ready(Ok(())) => {
                self.replies_sent();
                if self.callbacks.as_ref().is_some_and(CallbackQueue::has_calls) {
                    cx.waker().wake_by_ref(); // The next turn sends the callbacks.
                }
            }
            Poll::Ready(Err(e)) => self.fail(&e),
            Poll::Pending => self.check_send_rate(cx),
        }
    }

    /// Releases the memory of completely sent replies.
    fn release_sent(&mut self) {
        let sent = self.channel.sent;
        while let Some(reply) = self.queued.pop_front_if(|reply| reply.end <= sent) {
            self.queued_charge -= reply.charge;
            self.core.account.give(reply.charge);
        }
    }

    /// Completes the samples when the socket has accepted all replies.
    fn replies_sent(&mut self) {
        self.send_rate.pause();
        for stages in self.sampled.drain(..) {
            stages.end(Stage::Completion);
            self.core.finish_stages(stages);
        }
    }

    /// Closes the connection of a peer that receives replies too slowly.
    fn check_send_rate(&mut self, cx: &mut Context<'_>) {
        let limit = self.core.stall_limit();
        if self.send_rate.poll(cx, &self.core.rt, limit, self.channel.sent).is_ready() {
            self.core.closed(CloseReason::Stalled);
            self.close();
        }
    }

    /// Closes the connection of a peer that sends a call too slowly. Returns whether it was closed.
    fn check_receive_rate(&mut self, cx: &mut Context<'_>) -> bool {
        let limit = self.core.stall_limit();
        let stalled = self.channel.awaits_peer()
            && self.receive_rate.poll(cx, &self.core.rt, limit, self.channel.received).is_ready();
        if stalled {
            self.core.closed(CloseReason::Stalled);
            self.close();
        }
        stalled
    }

    /// Stops reading from an idle connection. Returns whether reading was stopped. The peer may send later
    /// calls again on another connection.
    fn check_idle(&mut self, cx: &mut Context<'_>) -> bool {
        let quiescent = self.core.in_progress() == 0 && self.channel.is_quiescent();
        let idle = quiescent && self.core.poll_idle(cx).is_ready();
        if idle {
            self.stop_reading();
        }
        idle
    }

    /// Reads once. Returns whether there is progress.
    fn fill(&mut self, cx: &mut Context<'_>) -> bool {
        let before = self.channel.received;
        match self.channel.poll_fill(cx) {
            Poll::Ready(Ok(true)) => self.core.turn.received((self.channel.received - before) as usize),
            Poll::Ready(Ok(false)) => self.stop_reading(),
            Poll::Ready(Err(e)) => self.fail(&e),
            Poll::Pending => return self.check_receive_rate(cx) || self.check_idle(cx),
        }
        true
    }

    /// Stops reading calls.
    fn stop_reading(&mut self) {
        self.reading = false;
        self.callbacks = None; // Replies to callbacks would not be read.
        self.core.account.cancel();
        if let Some(call) = self.deferred.take() {
            self.core.account.give(call.charge);
        }
    }

    /// Closes the connection because of an error.
    fn fail(&mut self, why: &io::Error) {
        if let Some(why) = TlsError::of(why) {
            tracing::debug!(peer = %self.core.peer.addr, "connection ended: {why}");
        } else if why.kind() == io::ErrorKind::InvalidData {
            self.stats.malformed.fetch_add(1, Ordering::Relaxed);
            tracing::warn!(peer = %self.core.peer.addr, "connection closed: {why}; the peer may use another protocol, such as RDMA");
        } else {
            tracing::debug!(peer = %self.core.peer.addr, "connection ended: {why}");
        }
        self.close();
    }

    /// Closes the connection immediately. Calls in progress are completed, and their replies dropped.
    fn close(&mut self) {
        self.stop_reading();
        self.writing = false;
        self.upgrade = None;
        let mut charge = self.channel.clear();
        charge += self.queued.drain(..).map(|reply| reply.charge).sum::<usize>();
        self.queued_charge = 0;
        self.core.account.give(charge);
        self.channel.shutdown();
    }
}
