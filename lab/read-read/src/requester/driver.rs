//! The driver of a requester's connection: owns the queue pair, sends submitted calls and processes replies.

use std::{
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use futures::FutureExt;
use millrace_buffer::Buffer;
use millrace_oncrpc::{
    Calls, ConnectionDriver, InFlight, Message, Outgoing, Reply, Request, RpcError, parse_reply,
};
use millrace_rdma::{
    Completion, ConnectionError, Counters, QueuePair, SendRequest, SteeringTag, WorkId, ignore_closed,
};
use millrace_rpcrdma::{
    Body, CallMemory, CreditDemand, Header, MAX_INLINE, RequesterConfig,
    counters::{add, set},
};
use millrace_runtime::{RuntimeExt, RuntimeRef, Sleep};
use smallvec::SmallVec;

use super::{
    marshal::{Outbox, ReplyMemory},
    reader::{Pulled, Reader, ReceivedReply, ReplyOutcome},
};

/// Maximum number of segments of a reply header. A call has at most two chunks for results, with as many
/// segments as fit in a Send.
const MAX_SEGMENTS: usize = MAX_INLINE / 16;
/// Receives in addition to the calls in flight.
const RECEIVE_SLACK: usize = 4;
/// Polls of the queue pair before the driver yields to other tasks.
const MAX_ITERATIONS: usize = 32;
/// Time limit for the peer to close its end of a connection that this end closed.
const CLOSE_LIMIT: Duration = Duration::from_secs(5);

/// State of a call in flight.
pub(super) enum CallState {
    /// The responder can access the memory of the arguments.
    Exposed(Box<CallMemory>, ReplyMemory),
    /// The reply was received; its results are being read.
    Reading,
    /// The call timed out, and its memory is revoked. A late reply may invalidate these tags.
    Revoked(SmallVec<[SteeringTag; 4]>),
}

/// State of a connection, owned by its task.
pub(super) struct Driver {
    calls: Calls<CallState>,
    qp: Box<dyn QueuePair>,
    outbox: Outbox,
    reader: Reader,
    demand: CreditDemand,
    /// Maximum number of calls in flight: 1 until the first reply (RFC 8166 section 3.3.1).
    credits: usize,
    completions: Vec<Completion>,
    /// Posted receives without a message.
    posted: usize,
    inline_size: usize,
    closing: Option<Sleep>,
    rt: RuntimeRef,
}

impl ConnectionDriver for Driver {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.calls.poll_submissions(cx);
        for _ in 0..MAX_ITERATIONS {
            match self.run_once(cx) {
                Ok(true) => {}
                Ok(false) => {
                    self.calls.publish_idle();
                    return Poll::Pending;
                }
                Err(e) => {
                    self.terminate(&e);
                    return Poll::Ready(());
                }
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    fn send_now(&mut self, cx: &mut Context<'_>) {
        let stats = Arc::clone(&self.outbox.marshaller.stats);
        let _batch = stats.exposure.batch();
        if self.send_submitted().is_err() {
            // The task's poll returns the error.
            cx.waker().wake_by_ref();
        }
        self.qp.flush(cx);
        self.calls.publish_idle();
    }

    fn may_send(&self) -> bool {
        self.calls.in_flight() < self.credits
    }

    fn end(&mut self) {
        self.terminate(&ConnectionError::Local("the runtime of the connection ended".into()));
    }
}

impl Driver {
    pub(super) fn new(
        calls: Calls<CallState>,
        qp: Box<dyn QueuePair>,
        reader: Reader,
        outbox: Outbox,
        config: &RequesterConfig,
        rt: RuntimeRef,
    ) -> Self {
        Self {
            calls,
            qp,
            outbox,
            reader,
            demand: CreditDemand::new(config.credits),
            credits: 1,
            completions: Vec::new(),
            posted: 0,
            inline_size: config.inline_size,
            closing: None,
            rt,
        }
    }

    /// The queue pair's counters.
    pub(super) fn counters(&self) -> Counters {
        self.qp.counters()
    }

    /// Runs one iteration. Returns whether further work may be ready.
    fn run_once(&mut self, cx: &mut Context<'_>) -> Result<bool, ConnectionError> {
        self.poll_expired(cx)?;
        let stats = Arc::clone(&self.outbox.marshaller.stats);
        if self.calls.submissions().is_closing() {
            self.poll_closing(cx)?;
        } else {
            let _batch = stats.exposure.batch();
            self.send_submitted()?;
        }
        let mut completions = std::mem::take(&mut self.completions);
        match self.qp.poll(cx, &mut completions) {
            Poll::Pending => {
                self.completions = completions;
                return Ok(false);
            }
            Poll::Ready(result) => result?,
        }
        let _batch = stats.exposure.batch();
        for completion in completions.drain(..) {
            match completion {
                Completion::Received { buffer, invalidated } => self.process_message(buffer, invalidated)?,
                Completion::Read { id, sink } => self.process_read(id, sink)?,
                Completion::Sent(_) => {} // No Send is signaled.
            }
        }
        self.completions = completions;
        Ok(true)
    }

    /// Sends submitted calls within the credits.
    fn send_submitted(&mut self) -> Result<(), ConnectionError> {
        self.calls.take_submissions();
        // The memory of a cancelled call stays exposed until the reply comes or the call times out.
        while self.calls.next_cancelled().is_some() {}
        while self.calls.in_flight() < self.credits {
            let Some((call, request)) = self.calls.next_unsent() else { break };
            self.send(call, request)?;
        }
        Ok(())
    }

    fn send(&mut self, call: Outgoing, request: Request) -> Result<(), ConnectionError> {
        let in_flight = self.calls.in_flight() + 1;
        self.outbox.marshaller.credits = self.demand.request(in_flight + self.calls.unsent());
        // RFC 8166 section 3.3.2: a receive for every expected reply is posted before the call.
        let outgoing = self
            .post_receives(in_flight + RECEIVE_SLACK)
            .and_then(|()| self.outbox.marshal(call.xid, request));
        let (outgoing, reply) = match outgoing {
            Ok(outgoing) => outgoing,
            Err(e) => {
                call.reject(e);
                return Ok(());
            }
        };
        add(&self.outbox.marshaller.stats.calls, 1);
        let send = SendRequest { data: outgoing.data, invalidate: None, solicited: false, signaled: None };
        let posted = self.qp.post_send(send);
        self.calls.sent(call, CallState::Exposed(outgoing.exposed, reply));
        ignore_closed(posted)
    }

    fn post_receives(&mut self, wanted: usize) -> Result<(), RpcError> {
        while self.posted < wanted {
            // Allocated now: the program may use all memory of the arena while it waits for a reply.
            let buffer = self.outbox.marshaller.arena.alloc(self.inline_size);
            let buffer = buffer.map_err(|e| RpcError::Local(e.to_string()))?;
            self.recycle(buffer).map_err(|e| RpcError::Local(e.to_string()))?;
        }
        Ok(())
    }

    fn recycle(&mut self, mut buffer: Buffer) -> Result<(), ConnectionError> {
        buffer.set_len(self.inline_size);
        self.posted += 1;
        ignore_closed(self.qp.post_receive(buffer))
    }

    /// Processes a message: a reply, or a message of an unknown form, which is dropped (RFC 8166 section 4.5).
    fn process_message(
        &mut self,
        buffer: Buffer,
        invalidated: Option<SteeringTag>,
    ) -> Result<(), ConnectionError> {
        self.posted = self.posted.saturating_sub(1);
        let (header, at) = match Header::decode(&buffer, MAX_SEGMENTS) {
            Ok((header, at)) if !matches!(header.body, Body::Done) => (header, at),
            other => {
                tracing::debug!("message of the responder dropped: {other:?}");
                return self.drop_message(buffer, invalidated);
            }
        };
        tracing::trace!("reply {header}");
        let call = self.calls.remove(header.xid);
        match call {
            Some(InFlight {
                xid,
                waiter: Some(waiter),
                deadline,
                state: CallState::Exposed(memory, reply),
            }) => {
                self.update_credits(&header);
                let call = InFlight { xid, waiter: Some(waiter), deadline, state: CallState::Reading };
                self.process_reply(call, (memory, reply), header, (buffer, at), invalidated)
            }
            Some(call @ InFlight { state: CallState::Reading, .. }) => {
                self.calls.insert(call);
                self.drop_message(buffer, invalidated)
            }
            Some(InFlight { state: CallState::Exposed(memory, _), .. }) => {
                let tags = memory.tags().collect();
                self.process_late_reply(&header, tags, buffer, invalidated)
            }
            Some(InFlight { state: CallState::Revoked(tags), .. }) => {
                self.process_late_reply(&header, tags, buffer, invalidated)
            }
            None => self.drop_message(buffer, invalidated),
        }
    }

    /// Processes the reply to a call: completes the call, or starts to read its results.
    fn process_reply(
        &mut self,
        call: InFlight<CallState>,
        (memory, reply): (Box<CallMemory>, ReplyMemory),
        header: Header,
        (buffer, at): (Buffer, usize),
        invalidated: Option<SteeringTag>,
    ) -> Result<(), ConnectionError> {
        // RFC 8797 section 4: a reply may only invalidate tags of the call with its XID.
        if let Some(tag) = invalidated {
            if !memory.tags().any(|t| t == tag) {
                drop(memory);
                let why = "the server invalidated memory of another call";
                call.complete(Err(self.calls.submissions().disconnected(why)));
                return Err(invalidated_foreign_tag(tag));
            }
            add(&self.outbox.marshaller.stats.remote_invalidations, 1);
        }
        match self.result_of_reply(header, (buffer, at), memory, reply)? {
            Some(result) => call.complete(result),
            None => self.calls.insert(call),
        }
        Ok(())
    }

    /// Updates the credits from a reply. 0 credits, which RFC 8166 section 3.3.1 forbids, count as 1. The
    /// number of requested credits needs no check: each call requests at least one credit for every call in
    /// flight, including itself.
    fn update_credits(&mut self, header: &Header) {
        self.credits = header.credits.clamp(1, self.demand.limit()) as usize;
        set(&self.outbox.marshaller.stats.credits_granted, header.credits as usize);
    }

    /// Processes the reply to a call that was cancelled or timed out.
    #[cold]
    fn process_late_reply(
        &mut self,
        header: &Header,
        tags: SmallVec<[SteeringTag; 4]>,
        buffer: Buffer,
        invalidated: Option<SteeringTag>,
    ) -> Result<(), ConnectionError> {
        self.update_credits(header);
        self.reader.discard(header, &self.outbox.marshaller, &mut *self.qp)?;
        self.drop_message(buffer, invalidated.filter(|t| !tags.contains(t)))
    }

    /// Processes the completion of an RDMA Read. The last one completes the call.
    fn process_read(&mut self, id: WorkId, sink: Vec<Buffer>) -> Result<(), ConnectionError> {
        let pulled = self.reader.completed(id, sink, &self.outbox.marshaller, &mut *self.qp)?;
        let Some(Pulled { xid, message }) = pulled else { return Ok(()) };
        if let Some(call) = self.calls.remove(xid) {
            call.complete(self.accept(xid, message));
        }
        Ok(())
    }

    /// Revokes the call's memory and returns its result; `None` while the results are being read.
    fn result_of_reply(
        &mut self,
        header: Header,
        (buffer, at): (Buffer, usize),
        memory: Box<CallMemory>,
        reply: ReplyMemory,
    ) -> Result<Option<Result<Reply, RpcError>>, ConnectionError> {
        let xid = header.xid;
        if let Body::Error(e) = &header.body {
            drop(memory);
            add(&self.outbox.marshaller.stats.transport_errors, 1);
            return Ok(Some(Err(RpcError::Unsupported(e.to_string()))));
        }
        let (lists, inline) = header.body.into_parts(at, buffer.freeze());
        let arrived = ReceivedReply { xid, lists, inline, memory, reply };
        match self.reader.take(arrived, &self.outbox.marshaller, &mut *self.qp)? {
            ReplyOutcome::Message(message) => Ok(Some(self.accept(xid, message))),
            ReplyOutcome::Reading => Ok(None),
        }
    }

    /// Checks that a message is the reply to the call `xid`.
    fn accept(&self, xid: u32, message: Result<Message, &'static str>) -> Result<Reply, RpcError> {
        let stats = &self.outbox.marshaller.stats;
        let message = message.and_then(|m| {
            let same = m.xid() == Some(xid);
            if same { Ok(m) } else { Err("the XIDs of header and message differ") }
        });
        match message {
            Ok(message) => {
                add(&stats.replies, 1);
                parse_reply(message, &self.calls.submissions().peer())
            }
            Err(what) => {
                add(&stats.bad_replies, 1);
                Err(RpcError::BadReply { peer: self.calls.submissions().peer().into(), what: what.into() })
            }
        }
    }

    fn drop_message(
        &mut self,
        buffer: Buffer,
        invalidated: Option<SteeringTag>,
    ) -> Result<(), ConnectionError> {
        add(&self.outbox.marshaller.stats.dropped, 1);
        match invalidated {
            Some(tag) => Err(invalidated_foreign_tag(tag)),
            None => self.recycle(buffer),
        }
    }

    /// Fails the calls that timed out, after revoking their memory.
    fn poll_expired(&mut self, cx: &mut Context<'_>) -> Result<(), ConnectionError> {
        let mut expired = false;
        while let Poll::Ready(xid) = self.calls.poll_expired(cx) {
            expired = true;
            let error = self.calls.timed_out();
            let Some(call) = self.calls.get_mut(xid) else { continue };
            if let CallState::Exposed(memory, _) = &call.state {
                let tags = memory.tags().collect();
                call.state = CallState::Revoked(tags);
            }
            if let Some(waiter) = call.waiter.take() {
                add(&self.outbox.marshaller.stats.timeouts, 1);
                waiter.complete(Err(error));
            }
        }
        if expired && self.is_stalled() {
            return Err(ConnectionError::Io("the server answers no calls".into()));
        }
        Ok(())
    }

    /// Whether timed-out calls hold all credits, so that no further call can be sent.
    fn is_stalled(&self) -> bool {
        self.calls.all().filter(|c| c.deadline.is_none()).count() >= self.credits
    }

    fn poll_closing(&mut self, cx: &mut Context<'_>) -> Result<(), ConnectionError> {
        let Some(limit) = &mut self.closing else {
            let abandons = self.calls.in_flight() > 0;
            self.calls.end("closed by this client");
            if abandons {
                // The calls may be sent again on another connection: the server must not receive them later
                // on this connection.
                self.qp.abort();
                return Err(ConnectionError::Closed);
            }
            self.qp.disconnect();
            self.closing = Some(self.rt.sleep(CLOSE_LIMIT));
            return self.poll_closing(cx);
        };
        match limit.poll_unpin(cx) {
            Poll::Ready(()) => Err(ConnectionError::Closed),
            Poll::Pending => Ok(()),
        }
    }

    /// Ends the connection: revokes all memory and fails all calls.
    fn terminate(&mut self, why: &ConnectionError) {
        self.calls.end(why);
        self.completions.clear();
        self.reader.end();
    }
}

fn invalidated_foreign_tag(tag: SteeringTag) -> ConnectionError {
    ConnectionError::PeerMisbehaved(format!("{tag:?} was invalidated by a reply to another call"))
}
