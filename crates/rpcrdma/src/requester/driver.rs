//! The driver: owns a requester's queue pair, sends what is queued, and takes replies apart.

use std::{
    task::{Context, Poll},
    time::Duration,
};

use futures::FutureExt;
use millrace_buffer::Buffer;
use millrace_oncrpc::{CallId, Calls, Message, Reply, Request, RpcError, Stage, Stages, parse_reply};
use millrace_rdma::{Completion, ConnectionError, PostError, QueuePair, SendRequest, SteeringTag, WorkId};
use millrace_runtime::{Instant, RuntimeExt, Sleep};

use super::{
    Shared,
    demand::Demand,
    marshal::{CallMemory, Marshaller, Shape},
    state::{CallState, State},
};
use crate::{
    counters::{add, set},
    design::{Arrived, Pulled, Requesting, Taken},
    header::{Body, Header},
    private_data::MAX_INLINE,
};

/// Segments of one reply header: we give two chunks at most, of as many segments as a call of one Send can name.
const MAX_SEGMENTS: usize = MAX_INLINE / 16;
/// Receives beyond the calls in flight, for messages that answer none of them.
const RECEIVE_SLACK: usize = 2;
/// Polls of the queue pair before other tasks of the runtime have their turn.
const ROUNDS: usize = 32;
/// How long the peer may take to close its end of a connection that we ended.
const CLOSE_LIMIT: Duration = Duration::from_secs(5);

/// The part of a connection that one task at a time works with.
pub(super) struct Driver {
    /// `None` once the connection is gone.
    pub(super) qp: Option<Box<dyn QueuePair>>,
    pub(super) marshaller: Marshaller,
    demand: Demand,
    design: Box<dyn Requesting>,
    completions: Vec<Completion>,
    /// Receives that no message has filled yet.
    posted: usize,
    inline_size: usize,
    /// Fires at the earliest deadline there was when it was set, or before.
    timer: Option<Sleep>,
    closing: Option<Sleep>,
}

impl Driver {
    pub(super) fn new(
        qp: Box<dyn QueuePair>,
        design: Box<dyn Requesting>,
        marshaller: Marshaller,
        demand: Demand,
        inline_size: usize,
    ) -> Self {
        Self {
            qp: Some(qp),
            design,
            marshaller,
            demand,
            completions: Vec::new(),
            posted: 0,
            inline_size,
            timer: None,
            closing: None,
        }
    }

    /// Drives the connection; `Ready` once it is down and all its calls have failed.
    pub(super) fn poll(&mut self, shared: &Shared, cx: &mut Context<'_>) -> Poll<()> {
        shared.register_driver(cx.waker());
        for _ in 0..ROUNDS {
            match self.round(shared, cx) {
                Ok(true) => {}
                Ok(false) => return Poll::Pending,
                Err(e) => {
                    self.end(shared, &e);
                    return Poll::Ready(());
                }
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// One turn: whether there may be more to do at once.
    fn round(&mut self, shared: &Shared, cx: &mut Context<'_>) -> Result<bool, ConnectionError> {
        self.poll_timer(shared, cx)?;
        let batch = shared.stats.exposure.batch();
        let closing = self.send_queued(shared)?;
        drop(batch);
        if closing {
            self.poll_closing(shared, cx)?;
        }
        let Some(qp) = self.qp.as_mut() else { return Err(ConnectionError::Closed) };
        let mut completions = std::mem::take(&mut self.completions);
        match qp.poll(cx, &mut completions) {
            Poll::Pending => {
                self.completions = completions;
                return Ok(false);
            }
            Poll::Ready(result) => result?,
        }
        let _batch = shared.stats.exposure.batch();
        for completion in completions.drain(..) {
            match completion {
                Completion::Received { buffer, invalidated } => self.received(shared, buffer, invalidated)?,
                Completion::Read { id, sink } => self.read(shared, id, sink)?,
                Completion::Sent(_) => {}
            }
        }
        self.completions = completions;
        Ok(true)
    }

    /// Sends queued calls as far as there are credits, and pushes them out. Called by whoever submits to an idle
    /// connection, so that the call need not wait for the driver's task.
    pub(super) fn send_now(&mut self, shared: &Shared, cx: &mut Context<'_>) {
        if self.timer.is_none() || self.send_queued(shared).is_err() {
            // The task sets the timer, and finds the error again.
            cx.waker().wake_by_ref();
        }
        if let Some(qp) = self.qp.as_mut() {
            qp.flush(cx);
        }
    }

    /// Sends queued calls as far as there are credits, unless the connection is closing: whether it is.
    fn send_queued(&mut self, shared: &Shared) -> Result<bool, ConnectionError> {
        loop {
            let (next, in_flight, waiting) = {
                let mut state = shared.state.lock();
                if state.closing {
                    return Ok(true);
                }
                (state.next_to_send(), state.in_flight, state.queue.len())
            };
            let Some((id, request, shape, deadline)) = next else { return Ok(false) };
            self.marshaller.credits = self.demand.ask(in_flight + waiting);
            self.send(shared, id, (request, shape), deadline, in_flight)?;
        }
    }

    fn send(
        &mut self,
        shared: &Shared,
        id: CallId,
        (request, shape): (Request, Shape),
        deadline: Instant,
        in_flight: usize,
    ) -> Result<(), ConnectionError> {
        // RFC 8166 section 3.3.2: a receive for every expected reply, before the call.
        let stages = request.stages.clone();
        stages.end(Stage::Queue);
        let outgoing = self
            .post_receives(in_flight + RECEIVE_SLACK)
            .and_then(|()| self.marshaller.marshal(Calls::<CallState>::xid(id), request, shape));
        let mut state = shared.state.lock();
        let outgoing = match outgoing {
            Ok(o) => o,
            Err(e) => {
                state.in_flight -= 1;
                let finished = state.calls.finish(id, Err(e));
                drop(state);
                drop(finished.and_then(millrace_oncrpc::Finished::wake));
                return Ok(());
            }
        };
        match state.calls.get_mut(id) {
            Some(stage) => *stage = CallState::Sent(outgoing.exposed, deadline),
            None => {
                // Cancelled meanwhile. Its memory was never known to the peer.
                state.in_flight -= 1;
                return Ok(());
            }
        }
        drop(state);
        add(&self.marshaller.stats.calls, 1);
        let Some(qp) = self.qp.as_mut() else { return Err(ConnectionError::Closed) };
        let send = SendRequest { data: outgoing.data, invalidate: None, solicited: false, signaled: None };
        posted(qp.post_send(send))?;
        stages.end(Stage::Send);
        Ok(())
    }

    fn post_receives(&mut self, wanted: usize) -> Result<(), RpcError> {
        while self.posted < wanted {
            let buffer = self.marshaller.arena.alloc(self.inline_size);
            let buffer = buffer.map_err(|e| RpcError::Local(e.to_string()))?;
            self.recycle(buffer).map_err(|e| RpcError::Local(e.to_string()))?;
        }
        Ok(())
    }

    fn recycle(&mut self, mut buffer: Buffer) -> Result<(), ConnectionError> {
        buffer.set_len(self.inline_size);
        self.posted += 1;
        self.qp.as_mut().map_or(Ok(()), |qp| posted(qp.post_receive(buffer)))
    }

    /// A message came: a reply, or nothing we know of, which is dropped (RFC 8166 section 4.5).
    fn received(
        &mut self,
        shared: &Shared,
        buffer: Buffer,
        invalidated: Option<SteeringTag>,
    ) -> Result<(), ConnectionError> {
        self.posted = self.posted.saturating_sub(1);
        let decoded = Header::decode(&buffer, MAX_SEGMENTS);
        let (header, at) = match decoded {
            Ok((header, at)) if self.design.knows(&header.body) => (header, at),
            other => {
                tracing::debug!("message of the responder dropped: {other:?}");
                return self.drop_message(buffer, invalidated);
            }
        };
        tracing::trace!("reply {header}");
        let sent = {
            let mut state = shared.state.lock();
            let sent = state.take_sent(header.xid);
            if sent.is_some() {
                self.granted(&mut state, &header);
            }
            sent
        };
        let Some((id, memory, deadline)) = sent else {
            return self.unexpected(shared, &header, buffer, invalidated);
        };
        memory.stages().end(Stage::Wait);
        // RFC 8797 section 4: only tags of the XID that is answered may be invalidated.
        if let Some(tag) = invalidated {
            if !memory.tags().any(|t| t == tag) {
                shared.finish(id, Err(shared.lost("the server invalidated memory of another call")));
                return Err(foreign(tag));
            }
            add(&self.marshaller.stats.remote_invalidations, 1);
        }
        match self.take_apart(shared, header, buffer, at, (id, memory))? {
            Some(result) => shared.answer(id, result),
            None => shared.state.lock().reading(id, deadline),
        }
        Ok(())
    }

    fn granted(&self, state: &mut State, header: &Header) {
        state.granted(header.credits, self.demand.most());
        set(&self.marshaller.stats.credits_granted, header.credits as usize);
    }

    /// A reply came for which nobody waits: late, or to no call of ours.
    #[cold]
    fn unexpected(
        &mut self,
        shared: &Shared,
        header: &Header,
        buffer: Buffer,
        invalidated: Option<SteeringTag>,
    ) -> Result<(), ConnectionError> {
        let abandoned = {
            let mut state = shared.state.lock();
            let abandoned = state.take_abandoned(header.xid);
            if abandoned.is_some() {
                self.granted(&mut state, header);
            }
            abandoned
        };
        if let Some(qp) = self.qp.as_mut().filter(|_| abandoned.is_some()) {
            self.design.discard(header, &self.marshaller, &mut **qp)?;
        }
        let known = abandoned.as_ref().is_some_and(|a| invalidated.is_none_or(|t| a.tags.contains(&t)));
        drop(abandoned);
        self.drop_message(buffer, invalidated.filter(|_| !known))
    }

    /// A Read of a reply's results is done; with the last one the call is.
    fn read(&mut self, shared: &Shared, id: WorkId, sink: Vec<Buffer>) -> Result<(), ConnectionError> {
        let Some(qp) = self.qp.as_mut() else { return Ok(()) };
        let pulled = self.design.completed(id, sink, &self.marshaller, &mut **qp)?;
        let Some(Pulled { id, xid, message, stages }) = pulled else { return Ok(()) };
        if shared.state.lock().take_read(id) {
            shared.finish(id, self.accept(shared, xid, message, &stages));
        }
        Ok(())
    }

    /// Takes back the call's memory and builds what its caller gets; `None` when that is still being read.
    fn take_apart(
        &mut self,
        shared: &Shared,
        header: Header,
        buffer: Buffer,
        at: usize,
        (id, memory): (CallId, CallMemory),
    ) -> Result<Option<Result<Reply, RpcError>>, ConnectionError> {
        let (xid, stages) = (header.xid, memory.stages().clone());
        if let Body::Error(e) = &header.body {
            drop(memory);
            add(&self.marshaller.stats.transport_errors, 1);
            return Ok(Some(Err(RpcError::Unsupported(e.to_string()))));
        }
        let message = buffer.freeze();
        let (lists, inline, padding) = header.body.into_parts(at, &message);
        drop(message);
        let Some(qp) = self.qp.as_mut() else { return Err(ConnectionError::Closed) };
        let arrived = Arrived { id, xid, lists, inline, padding, memory };
        match self.design.take(arrived, &self.marshaller, &mut **qp)? {
            Taken::Message(message) => Ok(Some(self.accept(shared, xid, message, &stages))),
            Taken::Reading => Ok(None),
        }
    }

    /// Checks that a message is the reply to the call `xid`.
    fn accept(
        &self,
        shared: &Shared,
        xid: u32,
        message: Result<Message, &'static str>,
        stages: &Stages,
    ) -> Result<Reply, RpcError> {
        let stats = &self.marshaller.stats;
        let message = message.and_then(|m| {
            let same = m.xid() == Some(xid);
            if same { Ok(m) } else { Err("the XIDs of header and message differ") }
        });
        match message {
            Ok(message) => {
                add(&stats.replies, 1);
                let reply = parse_reply(message, &shared.peer);
                stages.end(Stage::Decode);
                reply
            }
            Err(what) => {
                add(&stats.bad_replies, 1);
                Err(RpcError::BadReply { peer: shared.peer.to_string(), what: what.into() })
            }
        }
    }

    fn drop_message(
        &mut self,
        buffer: Buffer,
        invalidated: Option<SteeringTag>,
    ) -> Result<(), ConnectionError> {
        add(&self.marshaller.stats.dropped, 1);
        match invalidated {
            Some(tag) => Err(foreign(tag)),
            None => self.recycle(buffer),
        }
    }

    fn poll_timer(&mut self, shared: &Shared, cx: &mut Context<'_>) -> Result<(), ConnectionError> {
        loop {
            if let Some(timer) = self.timer.as_mut() {
                if timer.poll_unpin(cx).is_pending() {
                    return Ok(());
                }
                self.timer = None;
                self.expire(shared)?;
            }
            let now = shared.rt.now();
            let Some(at) = shared.state.lock().next_deadline(now) else { return Ok(()) };
            self.timer = Some(shared.rt.sleep_until(at));
        }
    }

    /// Fails the calls whose time is up. Their memory is taken back first.
    fn expire(&mut self, shared: &Shared) -> Result<(), ConnectionError> {
        let now = shared.rt.now();
        loop {
            let mut state = shared.state.lock();
            let Some((id, exposed)) = state.take_expired(now) else {
                let stuck = state.is_stuck(now);
                drop(state);
                let silent = || ConnectionError::Io("the server answers no calls".into());
                return if stuck { Err(silent()) } else { Ok(()) };
            };
            drop(state);
            drop(exposed);
            if let Some(id) = id {
                add(&self.marshaller.stats.timeouts, 1);
                let after = shared.call_timeout;
                shared.finish(id, Err(RpcError::TimedOut { peer: shared.peer.to_string(), after }));
            }
        }
    }

    fn poll_closing(&mut self, shared: &Shared, cx: &mut Context<'_>) -> Result<(), ConnectionError> {
        if self.closing.is_none() {
            let abandons = shared.state.lock().in_flight > 0;
            self.fail_calls(shared, "closed by this side");
            if abandons {
                // The calls will be sent again on another connection: what the server has not received of them must
                // not arrive after that.
                if let Some(qp) = self.qp.as_mut() {
                    qp.abort();
                }
                return Err(ConnectionError::Closed);
            }
            if let Some(qp) = self.qp.as_mut() {
                qp.disconnect();
            }
            self.closing = Some(shared.rt.sleep(CLOSE_LIMIT));
        }
        match self.closing.as_mut().map(|limit| limit.poll_unpin(cx)) {
            Some(Poll::Ready(())) => Err(ConnectionError::Closed),
            _ => Ok(()),
        }
    }

    /// The connection is gone: nothing of it stays exposed, and every call fails.
    pub(super) fn end(&mut self, shared: &Shared, why: &ConnectionError) {
        self.fail_calls(shared, &why.to_string());
        self.completions.clear();
        self.design.end();
        self.timer = None;
        self.closing = None;
        self.qp = None;
    }

    fn fail_calls(&mut self, shared: &Shared, reason: &str) {
        let failure = shared.lost(reason);
        let mut state = shared.state.lock();
        let failure = state.failure.get_or_insert(failure).clone();
        state.queue.clear();
        let abandoned = std::mem::take(&mut state.abandoned);
        let open: Vec<CallId> = state.calls.unanswered().collect();
        drop(state);
        drop(abandoned);
        for id in open {
            let stage =
                shared.state.lock().calls.get_mut(id).map(|s| std::mem::replace(s, CallState::Driver));
            if let Some(CallState::Sent(exposed, _)) = stage {
                drop(exposed);
            }
            shared.finish(id, Err(failure.clone()));
        }
    }
}

fn foreign(tag: SteeringTag) -> ConnectionError {
    ConnectionError::PeerMisbehaved(format!("{tag:?} was invalidated by a reply to another call"))
}

/// A post on a closed connection is no error here: the next poll of the queue pair says why it closed.
fn posted(result: Result<(), PostError>) -> Result<(), ConnectionError> {
    match result {
        Ok(()) | Err(PostError::Closed) => Ok(()),
        Err(e @ PostError::Invalid(_)) => Err(ConnectionError::Local(e.to_string())),
    }
}
