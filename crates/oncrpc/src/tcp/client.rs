//! The client's end of a TCP connection.

use std::{
    collections::VecDeque,
    io,
    sync::Arc,
    task::{Context, Poll, Waker},
    time::Duration,
};

use millrace_runtime::{ByteStream, Instant, RuntimeExt, RuntimeRef, Sleep, poll_gathering};
use millrace_xdr::{Arena, Message};
use parking_lot::Mutex;

use super::{channel::Channel, record::RecordReader};
use crate::{
    CallId, Calls, Finished, MSG_REPLY, Reply, Request, RpcError, Stage, Stages, Transport, parse_reply,
};

/// How a connection behaves.
#[derive(Debug, Clone)]
pub struct TcpClientConfig {
    /// The most bytes of a call or reply.
    pub max_record: usize,
    /// The most bytes of payload that one call may carry; less than `max_record` by the rest of a message.
    pub max_payload: usize,
    /// Calls that may be unanswered at once; further ones wait here.
    pub max_in_flight: usize,
    /// Calls that may be open at once, those that wait here and those whose reply was not fetched included.
    pub max_open: usize,
    /// How long a call may take from its submission before it fails with [`RpcError::TimedOut`].
    pub timeout: Duration,
}

impl Default for TcpClientConfig {
    fn default() -> Self {
        Self {
            max_record: (4 << 20) + (64 << 10),
            max_payload: 4 << 20,
            max_in_flight: 128,
            max_open: 16 << 10,
            timeout: Duration::from_secs(60),
        }
    }
}

/// Bytes of calls that may wait for the socket; further calls stay in the queue, where they can still be cancelled.
const MAX_QUEUED: usize = 4 << 20;

enum CallState {
    Queued(Message, Stages),
    Sent(Stages),
}

struct State {
    calls: Calls<CallState>,
    /// Calls to be sent, in order; some may be cancelled.
    unsent: VecDeque<CallId>,
    in_flight: usize,
    driver: Option<Waker>,
    failure: Option<RpcError>,
    /// The connection ended while calls were unanswered. They will be sent again on another one; what the server has
    /// not received of them must not arrive after that.
    abandons: bool,
}

impl State {
    fn enter(&mut self, request: Request, deadline: Instant) -> Option<CallId> {
        let state = CallState::Queued(request.message, request.stages);
        match request.xid {
            None => self.calls.insert(state, Some(deadline)),
            Some(xid) => self.calls.insert_as(xid, state, Some(deadline)),
        }
    }

    /// The call that a message with this XID may answer, and its stamps.
    fn answered(&mut self, xid: u32) -> Option<(CallId, Stages)> {
        let id = self.calls.by_xid(xid)?;
        match self.calls.get_mut(id) {
            Some(CallState::Sent(stages)) => Some((id, stages.clone())),
            _ => Some((id, Stages::NONE)),
        }
    }

    /// Whether calls wait for nothing but being sent.
    fn may_send(&self, config: &TcpClientConfig) -> bool {
        !self.unsent.is_empty() && self.in_flight < config.max_in_flight
    }

    /// Forgets that a call is on its way, whatever became of it.
    fn settle(&mut self, state: Option<&CallState>) {
        if matches!(state, Some(CallState::Sent(_))) {
            self.in_flight -= 1;
        }
    }

    fn finish(&mut self, id: CallId, result: Result<Reply, RpcError>) -> Option<Finished<CallState>> {
        let finished = self.calls.finish(id, result)?;
        self.settle(finished.state.as_ref());
        Some(finished)
    }
}

struct Shared {
    state: Mutex<State>,
    config: TcpClientConfig,
    peer: String,
    rt: RuntimeRef,
}

impl Shared {
    /// Ends the connection: open calls and later ones fail. The first reason stays.
    fn fail(&self, why: RpcError) {
        let mut st = self.state.lock();
        if st.failure.is_some() {
            return;
        }
        st.failure = Some(why.clone());
        st.abandons = st.in_flight > 0;
        st.unsent.clear();
        let open: Vec<CallId> = st.calls.unanswered().collect();
        let finished: Vec<_> = open.into_iter().filter_map(|id| st.finish(id, Err(why.clone()))).collect();
        let driver = st.driver.take();
        drop(st);
        finished.into_iter().for_each(|f| drop(f.wake()));
        if let Some(w) = driver {
            w.wake();
        }
    }

    fn disconnected(&self, reason: impl ToString) -> RpcError {
        RpcError::Disconnected { peer: self.peer.clone(), reason: reason.to_string() }
    }
}

/// One TCP connection to a server. Dropping it ends the connection.
pub struct TcpTransport {
    shared: Arc<Shared>,
}

impl TcpTransport {
    /// Takes over a connected stream; the task that drives it runs on `rt`. Replies are received into `arena`.
    ///
    /// # Errors
    /// [`RpcError::Local`] when the arena has no room, [`RpcError::Disconnected`] when the stream has no peer any more.
    pub fn start(
        stream: Box<dyn ByteStream>,
        rt: &RuntimeRef,
        arena: &Arena,
        config: TcpClientConfig,
    ) -> Result<Arc<Self>, RpcError> {
        let peer = stream
            .peer_addr()
            .map_err(|e| RpcError::Disconnected { peer: "the server".into(), reason: e.to_string() })?;
        let channel =
            Channel::new(stream, Arc::clone(rt), arena, RecordReader::new(arena, config.max_record))
                .map_err(|e| RpcError::Local(e.to_string()))?;
        let state = State {
            calls: Calls::new(rt.random_u64() as u32, config.max_open),
            unsent: VecDeque::new(),
            in_flight: 0,
            driver: None,
            failure: None,
            abandons: false,
        };
        let shared =
            Arc::new(Shared { state: Mutex::new(state), config, peer: peer.to_string(), rt: Arc::clone(rt) });
        let mut driver = Driver { shared: Arc::clone(&shared), channel, timer: None };
        let common = Arc::clone(&shared);
        let may_send = move || common.state.lock().may_send(&common.config);
        rt.spawn("rpc-tcp-client", Box::pin(poll_gathering(may_send, move |cx| driver.poll(cx))));
        Ok(Arc::new(Self { shared }))
    }
}

impl Transport for TcpTransport {
    fn submit(&self, request: Request) -> Result<CallId, RpcError> {
        let config = &self.shared.config;
        let len = request.message.stream_len();
        if len > config.max_record {
            let max = config.max_record;
            return Err(RpcError::Unsupported(format!("a call of {len} bytes, where {max} is the limit")));
        }
        let deadline = self.shared.rt.now() + config.timeout;
        let mut st = self.shared.state.lock();
        if let Some(e) = &st.failure {
            return Err(e.clone());
        }
        let id = st.enter(request, deadline).ok_or_else(|| {
            RpcError::Local(format!(
                "no place for a call: {} are open on this connection, or one has this XID",
                config.max_open
            ))
        })?;
        if st.unsent.len() >= 2 * config.max_open {
            let State { calls, unsent, .. } = &mut *st;
            unsent.retain(|id| calls.get_mut(*id).is_some());
        }
        st.unsent.push_back(id);
        let driver = st.driver.take();
        drop(st);
        if let Some(w) = driver {
            w.wake();
        }
        Ok(id)
    }

    fn poll_reply(&self, id: CallId, cx: &mut Context<'_>) -> Poll<Result<Reply, RpcError>> {
        self.shared.state.lock().calls.poll(id, cx)
    }

    fn cancel(&self, id: CallId) {
        let mut st = self.shared.state.lock();
        let state = st.calls.remove(id);
        st.settle(state.as_ref());
        let driver = if st.unsent.is_empty() { None } else { st.driver.take() };
        drop(st);
        if let Some(w) = driver {
            w.wake();
        }
    }

    fn max_payload(&self) -> usize {
        self.shared.config.max_payload
    }

    fn failure(&self) -> Option<RpcError> {
        self.shared.state.lock().failure.clone()
    }

    fn close(&self) {
        self.shared.fail(self.shared.disconnected("closed by this client"));
    }
}

impl Drop for TcpTransport {
    fn drop(&mut self) {
        self.close();
    }
}

/// What the connection's task owns.
struct Driver {
    shared: Arc<Shared>,
    channel: Channel,
    /// Runs to the deadline of the call that was the oldest when it was set. It is left to run when that call is
    /// answered, so that a timer is made once in a timeout and not once in a call.
    timer: Option<Sleep>,
}

impl Drop for Driver {
    fn drop(&mut self) {
        self.shared.fail(self.shared.disconnected("the runtime of this client has ended"));
    }
}

impl Driver {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let end = match self.turn(cx) {
            Ok(true) => Poll::Ready(()),
            Ok(false) => Poll::Pending,
            Err(e) => {
                tracing::debug!(peer = self.shared.peer, "connection lost: {e}");
                self.shared.fail(self.shared.disconnected(e));
                Poll::Ready(())
            }
        };
        if end.is_ready() {
            self.channel.writer.clear();
            if self.shared.state.lock().abandons {
                self.channel.abort();
            } else {
                self.channel.shutdown();
            }
        }
        end
    }

    /// Runs until nothing can be done now; whether the connection was closed.
    fn turn(&mut self, cx: &mut Context<'_>) -> io::Result<bool> {
        loop {
            while let Poll::Ready(Some(message)) = self.channel.poll_record(cx)? {
                self.reply(message)?;
            }
            if !self.send(cx)? {
                return Ok(true);
            }
            // More calls may be sent once the socket has taken these.
            let flushed = self.channel.poll_flush(cx)?.is_ready();
            match self.channel.poll_fill(cx)? {
                Poll::Ready(true) => {}
                Poll::Ready(false) => return Err(io::Error::other("the server closed it")),
                Poll::Pending if flushed && self.has_more_to_send() => {}
                Poll::Pending => break,
            }
        }
        self.expire(cx);
        Ok(false)
    }

    fn has_more_to_send(&self) -> bool {
        let st = self.shared.state.lock();
        st.failure.is_some() || st.may_send(&self.shared.config)
    }

    fn reply(&mut self, message: Message) -> io::Result<()> {
        let word = |at: usize| {
            let head = message.head.iter().next()?;
            head.get(at..at + 4)?.first_chunk().map(|b| u32::from_be_bytes(*b))
        };
        let (Some(xid), Some(kind)) = (word(0), word(4)) else {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "a record that is no RPC message"));
        };
        let Some((id, stages)) = self.shared.state.lock().answered(xid).filter(|_| kind == MSG_REPLY) else {
            tracing::debug!(peer = self.shared.peer, xid, "dropped a message that answers no call");
            return Ok(());
        };
        stages.end(Stage::Wait);
        let result = parse_reply(message, &self.shared.peer);
        stages.end(Stage::Decode);
        let finished = self.shared.state.lock().finish(id, result);
        drop(finished.map(Finished::wake));
        Ok(())
    }

    /// Queues the calls that may be sent now. False when the connection was closed.
    fn send(&mut self, cx: &Context<'_>) -> io::Result<bool> {
        let mut guard = self.shared.state.lock();
        let st = &mut *guard;
        if st.failure.is_some() {
            return Ok(false);
        }
        match &mut st.driver {
            Some(w) => w.clone_from(cx.waker()),
            None => st.driver = Some(cx.waker().clone()),
        }
        while st.in_flight < self.shared.config.max_in_flight && self.channel.writer.queued() < MAX_QUEUED {
            let Some(id) = st.unsent.pop_front() else { break };
            let Some(state) = st.calls.get_mut(id) else { continue }; // cancelled or timed out
            if let CallState::Queued(message, stages) =
                std::mem::replace(state, CallState::Sent(Stages::NONE))
            {
                st.in_flight += 1;
                stages.end(Stage::Queue);
                let xid = Some(Calls::<CallState>::xid(id));
                self.channel.writer.push(&message, xid).map_err(io::Error::other)?;
                stages.end(Stage::Send);
                *state = CallState::Sent(stages);
            }
        }
        Ok(true)
    }

    /// Fails the calls whose time has passed.
    fn expire(&mut self, cx: &mut Context<'_>) {
        let after = self.shared.config.timeout;
        loop {
            if self.timer.is_none() {
                let first = self.shared.state.lock().calls.first_deadline();
                self.timer = first.map(|(at, _)| self.shared.rt.sleep_until(at));
            }
            let Some(timer) = &mut self.timer else { return };
            if timer.as_mut().poll(cx).is_pending() {
                return;
            }
            self.timer = None;
            let now = self.shared.rt.now();
            loop {
                let mut st = self.shared.state.lock();
                let Some((_, id)) = st.calls.first_deadline().filter(|(at, _)| *at <= now) else { break };
                let e = RpcError::TimedOut { peer: self.shared.peer.clone(), after };
                let finished = st.finish(id, Err(e));
                drop(st);
                drop(finished.map(Finished::wake));
            }
        }
    }
}
