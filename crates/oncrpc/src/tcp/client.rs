//! The client's end of a TCP connection.

use std::{
    io,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use millrace_runtime::{ByteStream, RuntimeRef};
use millrace_xdr::{Arena, Buffer, Message};

use super::{
    channel::Channel,
    record::{RecordReader, START_BYTES, STASH_BYTES},
};
use crate::{
    CallbackHandler, CallbackHandlerRef, Calls, Connection, ConnectionDriver, MSG_CALL, MSG_REPLY, Outgoing,
    PendingCall, Request, RpcError, Submissions, Transport, gss::ReplyCheck, parse_reply,
};

/// Limits of a client's connection.
#[derive(Debug, Clone)]
pub struct TcpClientConfig {
    /// Maximum bytes of a call or reply.
    pub max_record: usize,
    /// Maximum bytes of payload of one call; smaller than `max_record` by the rest of a message.
    pub max_payload: usize,
    /// Maximum number of unanswered calls; further calls are queued in the client.
    pub max_in_flight: usize,
    /// Maximum number of open calls, including queued ones and those whose result was not received by the
    /// caller.
    pub max_open: usize,
    /// Time limit of a call from its submission, after which it fails with [`RpcError::TimedOut`].
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

/// Maximum bytes of calls that wait for the socket; further calls stay in the queue, where they can be
/// cancelled.
const MAX_QUEUED: usize = 4 << 20;

/// Bytes that wait for the socket, from which on calls of the server get no reply: it does not receive them.
const MAX_REPLIES_QUEUED: usize = 64 << 10;

/// One TCP connection to a server. Dropping it closes the connection.
pub struct TcpTransport {
    connection: Connection<Driver>,
    max_payload: usize,
    handler: CallbackHandlerRef,
}

impl TcpTransport {
    /// Starts a client on a connected stream; its task runs on `rt`. Replies are received in memory of
    /// `arena`.
    ///
    /// # Errors
    /// [`RpcError::Local`] if the arena has no memory, [`RpcError::Disconnected`] if the stream is
    /// disconnected.
    pub fn start(
        stream: Box<dyn ByteStream>,
        rt: &RuntimeRef,
        arena: &Arena,
        config: TcpClientConfig,
    ) -> Result<Arc<Self>, RpcError> {
        let peer = stream
            .peer_addr()
            .map_err(|e| RpcError::Disconnected { peer: "the server".into(), reason: e.to_string() })?;
        let channel = Channel::new(stream, arena, RecordReader::placing(arena, config.max_record))
            .map_err(|e| RpcError::Local(e.to_string()))?;
        let submissions = Submissions::new(peer);
        let calls = Calls::new(Arc::clone(&submissions), Arc::clone(rt), config.max_open, config.timeout);
        let max_payload = config.max_payload;
        let handler = CallbackHandlerRef::default();
        let driver = Driver { calls, channel, config, handler: Arc::clone(&handler) };
        Ok(Arc::new(Self {
            connection: Connection::start(rt, "rpc-tcp-client", submissions, driver),
            max_payload,
            handler,
        }))
    }
}

impl Transport for TcpTransport {
    fn submit(&self, request: Request) -> PendingCall {
        self.connection.submit(request)
    }

    fn max_payload(&self) -> usize {
        self.max_payload
    }

    fn handle_callbacks(&self, handler: &Arc<dyn CallbackHandler>) {
        *self.handler.lock() = Some(Arc::clone(handler));
    }

    fn failure(&self) -> Option<RpcError> {
        self.connection.failure()
    }

    fn close(&self) {
        self.connection.close();
    }
}

/// A call in flight.
struct Sent {
    /// For the reply to a protected call.
    check: Option<ReplyCheck>,
    /// The memory for the payload of the reply, and its usual position in the reply.
    payload: Option<(usize, Buffer)>,
}

/// State of the connection, owned by its task.
struct Driver {
    calls: Calls<Sent>,
    channel: Channel,
    config: TcpClientConfig,
    handler: CallbackHandlerRef,
}

impl ConnectionDriver for Driver {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.calls.poll_submissions(cx);
        let run = if self.calls.submissions().is_closing() {
            Err(io::Error::other("closed by this client"))
        } else {
            self.run(cx)
        };
        match run {
            Ok(()) => {
                self.calls.publish_idle();
                Poll::Pending
            }
            Err(e) => {
                tracing::debug!(peer = self.calls.submissions().peer(), "connection lost: {e}");
                self.terminate(e);
                Poll::Ready(())
            }
        }
    }

    fn send_now(&mut self, cx: &mut Context<'_>) {
        self.calls.take_submissions();
        let sent = self.send().and_then(|()| match self.channel.poll_flush(cx) {
            Poll::Ready(result) => result,
            Poll::Pending => Ok(()),
        });
        self.calls.publish_idle();
        if sent.is_err() {
            // The task's poll returns the error.
            cx.waker().wake_by_ref();
        }
    }

    fn may_send(&self) -> bool {
        self.calls.in_flight() < self.config.max_in_flight
    }

    fn end(&mut self) {
        self.terminate("the runtime of this client has ended");
    }
}

impl Driver {
    /// Ends the connection. Unanswered calls may be sent again on another connection, so the server must not
    /// receive them later on this one.
    fn terminate(&mut self, reason: impl ToString) {
        let has_unanswered = self.calls.in_flight() > 0;
        self.channel.writer.clear();
        if has_unanswered {
            self.channel.abort();
        } else {
            self.channel.shutdown();
        }
        self.calls.end(reason);
    }

    /// Processes available work.
    fn run(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        self.remove_cancelled();
        loop {
            while let Poll::Ready(Some(message)) = self.poll_message(cx)? {
                self.received(message)?;
            }
            self.calls.take_submissions();
            self.send()?;
            // Further calls may be sent after the socket has accepted these.
            let flushed = self.channel.poll_flush(cx)?.is_ready();
            match self.channel.poll_fill(cx)? {
                Poll::Ready(true) => {}
                Poll::Ready(false) => return Err(io::Error::other("the server closed it")),
                Poll::Pending if flushed && self.has_more_to_send() => {}
                Poll::Pending => break,
            }
        }
        while let Poll::Ready(xid) = self.calls.poll_expired(cx) {
            let error = self.calls.timed_out();
            if let Some(call) = self.calls.remove(xid) {
                call.complete(Err(error));
            }
        }
        Ok(())
    }

    fn poll_message(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Option<Message>>> {
        let calls = &mut self.calls;
        self.channel.poll_reply(cx, |start, len| placement(calls, start, len))
    }

    fn remove_cancelled(&mut self) {
        while let Some(xid) = self.calls.next_cancelled() {
            drop(self.calls.remove(xid));
        }
    }

    fn has_more_to_send(&self) -> bool {
        self.calls.unsent() > 0 && self.may_send()
    }

    fn received(&mut self, message: Message) -> io::Result<()> {
        let word = |at: usize| {
            let head = message.head.iter().next()?;
            head.get(at..at + 4)?.first_chunk().map(|b| u32::from_be_bytes(*b))
        };
        let (Some(xid), Some(kind)) = (word(0), word(4)) else {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "a record that is not an RPC message"));
        };
        if kind == MSG_CALL {
            return self.called(&message);
        }
        let call = if kind == MSG_REPLY { self.calls.remove(xid) } else { None };
        let peer = self.calls.submissions().peer();
        let Some(call) = call else {
            tracing::debug!(peer, xid, "dropped a message without an open call");
            return Ok(());
        };
        let result = match &call.state.check {
            None => parse_reply(message, &peer),
            Some(check) => check.open(message, &peer),
        };
        call.complete(result);
        Ok(())
    }

    /// Answers a call of the server.
    fn called(&mut self, call: &Message) -> io::Result<()> {
        let handler = self.handler.lock().clone();
        let Some(handler) = handler.filter(|_| self.channel.writer.queued() < MAX_REPLIES_QUEUED) else {
            tracing::debug!(peer = self.calls.submissions().peer(), "dropped a call of the server");
            return Ok(());
        };
        match handler.answer(call) {
            Some(reply) => self.channel.writer.push(&reply, None).map_err(io::Error::other),
            None => Ok(()),
        }
    }

    /// Queues the calls that may be sent now.
    fn send(&mut self) -> io::Result<()> {
        while self.calls.in_flight() < self.config.max_in_flight && self.channel.writer.queued() < MAX_QUEUED
        {
            let Some((call, request)) = self.calls.next_unsent() else { break };
            self.send_call(call, request)?;
        }
        Ok(())
    }

    fn send_call(&mut self, call: Outgoing, request: Request) -> io::Result<()> {
        let Request { mut message, mut reply, seal, .. } = request;
        let mut check = None;
        if let Some(seal) = seal {
            reply = seal.reply_spec(reply);
            let connection = Arc::as_ptr(self.calls.submissions()).addr();
            match seal.apply(message, call.xid, connection) {
                Ok(sealed) => (message, check) = (sealed.0, Some(sealed.1)),
                Err(e) => {
                    call.reject(e);
                    return Ok(());
                }
            }
        }
        let (len, max) = (message.stream_len(), self.config.max_record);
        if len > max {
            call.reject(RpcError::Unsupported(format!("a call of {len} bytes, where {max} is the limit")));
            return Ok(());
        }
        let pushed = self.channel.writer.push(&message, Some(call.xid));
        // Small payloads are not placed, and their memory is not kept.
        let placed = |b: &Buffer| b.len() > STASH_BYTES && (4..=START_BYTES).contains(&reply.payload_offset);
        let payload = reply.payload.filter(placed).map(|buffer| (reply.payload_offset, buffer));
        self.calls.sent(call, Sent { check, payload });
        pushed.map_err(io::Error::other)
    }
}

/// The memory of the caller for the payload of a reply of `len` bytes, and its position in the reply, which starts with
/// `start`. `None` if the reply is not the usual one of the call.
fn placement(calls: &mut Calls<Sent>, start: &[u8], len: usize) -> Option<(usize, Buffer)> {
    let word = |at: usize| start.get(at..at + 4)?.first_chunk().map(|b| u32::from_be_bytes(*b));
    if word(4)? != MSG_REPLY {
        return None;
    }
    let payload = &mut calls.get_mut(word(0)?)?.state.payload;
    let (offset, buffer) = payload.as_ref()?;
    let bytes = word(offset - 4)? as usize;
    let fits = bytes <= buffer.len() && offset.checked_add(bytes)? <= len;
    let (offset, mut buffer) = payload.take_if(|_| fits)?;
    buffer.set_len(bytes);
    Some((offset, buffer))
}
