//! The driver of a requester's connection: owns the queue pair, sends submitted calls and processes replies.

use std::{
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use futures::FutureExt;
use millrace_buffer::Buffer;
use millrace_oncrpc::{
    CallbackHandlerRef, Calls, ConnectionDriver, InFlight, Message, Outgoing, Reply, Request, RpcError,
    Waiter, gss::ReplyCheck, parse_reply,
};
use millrace_rdma::{
    Completion, ConnectionError, Counters, QueuePair, SendRequest, SteeringTag, ignore_closed,
};
use millrace_runtime::{RuntimeExt, RuntimeRef, Sleep};
use smallvec::SmallVec;

use super::{
    RequesterConfig,
    demand::CreditDemand,
    marshal::Marshaller,
    reverse::{self, ReverseReplies},
};
use crate::{
    call_memory::CallMemory,
    counters::{add, set},
    header::{Body, Header},
    private_data::MAX_INLINE,
};

/// Maximum number of segments of a reply header. A call has at most two chunks for results, with as many
/// segments as fit in a Send.
const MAX_SEGMENTS: usize = MAX_INLINE / 16;
/// Receives in addition to the calls in flight: for calls in the reverse direction, and for other messages.
const RECEIVE_SLACK: usize = reverse::CREDITS + 2;
/// Polls of the queue pair before the driver yields to other tasks.
const MAX_ITERATIONS: usize = 32;
/// Time limit for the peer to close its end of a connection that this end closed.
const CLOSE_LIMIT: Duration = Duration::from_secs(5);

/// State of a call in flight.
pub(super) enum CallState {
    /// The responder can access this memory.
    Exposed(Box<CallMemory>),
    /// The call timed out, and its memory is revoked. A late reply may invalidate these tags.
    Revoked(SmallVec<[SteeringTag; 4]>),
}

/// State of a connection, owned by its task.
pub(super) struct Driver {
    calls: Calls<CallState>,
    qp: Box<dyn QueuePair>,
    marshaller: Marshaller,
    demand: CreditDemand,
    reverse: ReverseReplies,
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
        let stats = Arc::clone(&self.marshaller.stats);
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
        marshaller: Marshaller,
        config: &RequesterConfig,
        handler: CallbackHandlerRef,
        rt: RuntimeRef,
    ) -> Self {
        Self {
            calls,
            qp,
            marshaller,
            demand: CreditDemand::new(config.credits),
            reverse: ReverseReplies::new(handler),
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
        let stats = Arc::clone(&self.marshaller.stats);
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
                Completion::Sent(_) => self.reverse.sent(),
                Completion::Read { .. } => {} // The requester posts no RDMA Reads.
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
        self.marshaller.credits = self.demand.request(in_flight + self.calls.unsent());
        // RFC 8166 section 3.3.2: a receive for every expected reply is posted before the call.
        let outgoing = self
            .post_receives(in_flight + RECEIVE_SLACK)
            .and_then(|()| self.marshaller.marshal(call.xid, request));
        let outgoing = match outgoing {
            Ok(outgoing) => outgoing,
            Err(e) => {
                call.reject(e);
                return Ok(());
            }
        };
        add(&self.marshaller.stats.calls, 1);
        let send = SendRequest { data: outgoing.data, invalidate: None, solicited: false, signaled: None };
        let posted = self.qp.post_send(send);
        self.calls.sent(call, CallState::Exposed(outgoing.exposed));
        ignore_closed(posted)
    }

    fn post_receives(&mut self, wanted: usize) -> Result<(), RpcError> {
        while self.posted < wanted {
            // Allocated now: the program may use all memory of the arena while it waits for a reply.
            let buffer = self.marshaller.arena.alloc(self.inline_size);
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

    /// Processes a message: a reply, a call in the reverse direction, or a message of an unknown form, which is dropped
    /// (RFC 8166 section 4.5).
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
        if invalidated.is_none() && reverse::is_call(&header, buffer.get(at..).unwrap_or_default()) {
            return self.process_call(&header, at, buffer);
        }
        tracing::trace!("reply {header}");
        let call = self.calls.remove(header.xid);
        match call {
            Some(InFlight { waiter: Some(waiter), state: CallState::Exposed(memory), .. }) => {
                self.update_credits(&header);
                self.process_reply(waiter, memory, header, (buffer, at), invalidated)
            }
            Some(InFlight { state: CallState::Exposed(memory), .. }) => {
                let tags = memory.tags().collect();
                self.process_late_reply(&header, tags, buffer, invalidated)
            }
            Some(InFlight { state: CallState::Revoked(tags), .. }) => {
                self.process_late_reply(&header, tags, buffer, invalidated)
            }
            None => self.drop_message(buffer, invalidated),
        }
    }

    /// Answers a call of the server, whose message is in `buffer` from `at`. A receive replaces that of the call before the
    /// reply permits another call. A call that gets no reply is dropped: the server repeats it, or uses another connection.
    #[cold]
    fn process_call(&mut self, header: &Header, at: usize, buffer: Buffer) -> Result<(), ConnectionError> {
        let Ok(next) = self.marshaller.arena.alloc(self.inline_size) else {
            return self.drop_message(buffer, None);
        };
        let message = buffer.freeze();
        let message = message.slice(at, message.len() - at);
        let reply = self.reverse.reply(header, message, &self.marshaller);
        self.recycle(next)?;
        match reply {
            Some(reply) => ignore_closed(self.qp.post_send(reply)),
            None => {
                add(&self.marshaller.stats.dropped, 1);
                Ok(())
            }
        }
    }

    /// Processes the reply to a call, and completes the call.
    fn process_reply(
        &mut self,
        waiter: Waiter,
        memory: Box<CallMemory>,
        header: Header,
        (buffer, at): (Buffer, usize),
        invalidated: Option<SteeringTag>,
    ) -> Result<(), ConnectionError> {
        // RFC 8797 section 4: a reply may only invalidate tags of the call with its XID.
        if let Some(tag) = invalidated {
            if !memory.tags().any(|t| t == tag) {
                drop(memory);
                let why = "the server invalidated memory of another call";
                waiter.complete(Err(self.calls.submissions().disconnected(why)));
                return Err(invalidated_foreign_tag(tag));
            }
            add(&self.marshaller.stats.remote_invalidations, 1);
        }
        waiter.complete(self.result_of_reply(header, buffer, at, memory));
        Ok(())
    }

    /// Updates the credits from a reply. 0 credits, which RFC 8166 section 3.3.1 forbids, count as 1. The
    /// number of requested credits needs no check: each call requests at least one credit for every call in
    /// flight, including itself.
    fn update_credits(&mut self, header: &Header) {
        self.credits = header.credits.clamp(1, self.demand.limit()) as usize;
        set(&self.marshaller.stats.credits_granted, header.credits as usize);
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
        self.drop_message(buffer, invalidated.filter(|t| !tags.contains(t)))
    }

    /// Revokes the call's memory and returns its result.
    fn result_of_reply(
        &mut self,
        header: Header,
        buffer: Buffer,
        at: usize,
        mut memory: Box<CallMemory>,
    ) -> Result<Reply, RpcError> {
        let (xid, check) = (header.xid, memory.check.take());
        if let Body::Error(e) = &header.body {
            drop(memory);
            add(&self.marshaller.stats.transport_errors, 1);
            return Err(RpcError::Unsupported(e.to_string()));
        }
        let (lists, inline) = header.body.into_parts(at, buffer.freeze());
        let message = self.marshaller.message_of_reply(&lists, inline, memory);
        self.accept(xid, message, check.as_ref())
    }

    /// Checks that a message is the reply to the call `xid`.
    fn accept(
        &self,
        xid: u32,
        message: Result<Message, &'static str>,
        check: Option<&ReplyCheck>,
    ) -> Result<Reply, RpcError> {
        let stats = &self.marshaller.stats;
        let message = message.and_then(|m| {
            let same = m.xid() == Some(xid);
            if same { Ok(m) } else { Err("the XIDs of header and message differ") }
        });
        match message {
            Ok(message) => {
                add(&stats.replies, 1);
                let peer = self.calls.submissions().peer();
                match check {
                    None => parse_reply(message, &peer),
                    Some(check) => check.open(message, &peer),
                }
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
        add(&self.marshaller.stats.dropped, 1);
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
            if let CallState::Exposed(memory) = &call.state {
                let tags = memory.tags().collect();
                call.state = CallState::Revoked(tags);
            }
            if let Some(waiter) = call.waiter.take() {
                add(&self.marshaller.stats.timeouts, 1);
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
    }
}

fn invalidated_foreign_tag(tag: SteeringTag) -> ConnectionError {
    ConnectionError::PeerMisbehaved(format!("{tag:?} was invalidated by a reply to another call"))
}
