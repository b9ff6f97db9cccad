//! Calls in the reverse direction on the queue pair: from the server to the client (RFC 8167).
//!
//! The RPC message type distinguishes the messages of the two directions. Their XIDs and credits are independent. Calls
//! in the reverse direction have no chunks, so that this end exposes no memory for them.

use std::task::Context;

use millrace_buffer::{Buffer, OutOfMemory, Views};
use millrace_oncrpc::{CallbackQueue, Callbacks, MSG_REPLY, Message, RpcError};
use millrace_rdma::ConnectionError;

use super::Responder;
use crate::{
    counters::add,
    header::{Body, Header, Lists, MIN_CALL},
};

/// Credits to request, and maximum number of calls without a reply. Linux grants 16.
const CREDITS: u32 = 16;

/// The calls in the reverse direction on a connection.
pub(super) struct ReverseCalls {
    /// `None` if the service makes no calls, or the connection is about to be closed.
    queue: Option<CallbackQueue>,
    /// XIDs of the calls without a reply. For each, a receive is posted and charged to the account.
    unanswered: Vec<u32>,
    /// Credits that the peer granted with its last reply, initially 1 (RFC 8166 section 3.3.1).
    credits: u32,
}

impl ReverseCalls {
    pub(super) fn new(callbacks: Option<Callbacks>) -> Self {
        Self { queue: callbacks.map(CallbackQueue::new), unanswered: Vec::new(), credits: 1 }
    }

    /// Has the task of the connection woken when there are calls to send.
    pub(super) fn register(&mut self, cx: &Context<'_>) {
        if let Some(queue) = &mut self.queue {
            queue.poll(cx.waker());
        }
    }

    /// Ends all calls, and rejects further ones.
    pub(super) fn end(&mut self) {
        self.queue = None;
    }

    /// Number of calls without a reply.
    pub(super) fn unanswered(&self) -> usize {
        self.unanswered.len()
    }

    /// Whether there are calls to send, and a credit for them.
    pub(super) fn is_due(&self) -> bool {
        self.queue.as_ref().is_some_and(CallbackQueue::has_calls)
            && self.unanswered.len() < self.credits as usize
    }

    /// Records the answer to the call with this XID. Returns whether there is such a call.
    fn answered(&mut self, xid: u32) -> bool {
        let call = self.unanswered.iter().position(|other| *other == xid);
        call.map(|at| self.unanswered.swap_remove(at)).is_some()
    }
}

/// Whether a message with this header is an RPC reply. Clients reply to calls in the reverse direction only.
pub(super) fn is_reply(header: &Header, message: &[u8]) -> bool {
    message.get(4..8) == Some(&MSG_REPLY.to_be_bytes()) && matches!(header.body, Body::Msg(_))
}

impl Responder {
    /// Sends calls in the reverse direction, as far as credits and memory for the replies permit. Returns
    /// whether there were any.
    #[cold]
    pub(super) fn send_reverse_calls(&mut self) -> Result<bool, ConnectionError> {
        let mut progress = false;
        while self.reverse.is_due()
            && let Some((xid, call)) = self.next_reverse_call()
        {
            progress = true;
            self.send_reverse_call(xid, &call)?;
        }
        Ok(progress)
    }

    /// The next call, for whose reply a receive is charged to the account. One call needs no available memory.
    fn next_reverse_call(&mut self) -> Option<(u32, Message)> {
        let charge = self.credits.receive_charge();
        if self.reverse.unanswered.is_empty() {
            self.core.account.take_receives_unconditionally(charge);
        } else if !self.core.account.take_receives(charge) {
            return None; // The call waits until another call is answered.
        }
        let next = self.reverse.queue.as_ref().and_then(CallbackQueue::next_call);
        if next.is_none() {
            self.core.account.give_receives(charge);
        }
        next
    }

    /// Sends a call, or ends it if it cannot be sent.
    fn send_reverse_call(&mut self, xid: u32, call: &Message) -> Result<(), ConnectionError> {
        let (length, limit) = (MIN_CALL + call.stream_len(), self.limits.inline);
        if length > limit {
            let why = format!("a callback of {length} bytes is longer than the client's receives of {limit}");
            self.reject_reverse_call(xid, RpcError::Local(why));
            return Ok(());
        }
        let (receive, data) = match self.memory_of_reverse_call(xid, call) {
            Ok(memory) => memory,
            Err(e) => {
                add(&self.stats.out_of_memory, 1);
                self.reject_reverse_call(xid, RpcError::Local(e.to_string()));
                return Ok(());
            }
        };
        self.reverse.unanswered.push(xid);
        self.post_receive(receive)?;
        // The Send is signaled, because no reply to a call may follow.
        self.post_send(data, None, 0, true)
    }

    /// The receive for the reply, and the message of the Send.
    fn memory_of_reverse_call(&self, xid: u32, call: &Message) -> Result<(Buffer, Views), OutOfMemory> {
        let header = Header::new(xid, CREDITS, Body::Msg(Lists::default()));
        tracing::trace!(peer = %self.core.peer.addr, "callback {header}");
        let arena = &self.core.arena;
        let receive = arena.alloc(self.config.inline_size)?;
        let data = header.with_message(&mut call.gather(&self.zeros), call.payloads.is_empty(), arena)?;
        Ok((receive, data))
    }

    /// Ends a call without a posted receive.
    fn reject_reverse_call(&mut self, xid: u32, error: RpcError) {
        self.core.account.give_receives(self.credits.receive_charge());
        self.fail_reverse_call(xid, error);
    }

    fn fail_reverse_call(&self, xid: u32, error: RpcError) {
        if let Some(queue) = &self.reverse.queue {
            queue.fail(xid, error);
        }
    }

    /// Processes a reply. One that answers no call is dropped. As the calls have no chunks, the reply has none.
    #[cold]
    pub(super) fn reverse_reply(
        &mut self,
        header: &Header,
        at: usize,
        buffer: Buffer,
    ) -> Result<(), ConnectionError> {
        if !matches!(&header.body, Body::Msg(lists) if lists.is_empty()) {
            return Err(ConnectionError::PeerMisbehaved("a reply to a callback has chunks".into()));
        }
        let xid = buffer.get(at..).and_then(<[u8]>::first_chunk);
        if xid != Some(&header.xid.to_be_bytes()) || !self.reverse_answered(header.xid) {
            return self.drop_message(buffer);
        }
        self.reverse.credits = header.credits.clamp(1, CREDITS);
        if let Some(queue) = &self.reverse.queue {
            let message = buffer.freeze();
            queue.reply(Message::from_view(message.slice(at, message.len() - at)));
        }
        Ok(())
    }

    /// Ends a call that the peer rejects with an RDMA_ERROR.
    #[cold]
    pub(super) fn reverse_error(&mut self, xid: u32) {
        if self.reverse_answered(xid) {
            let (peer, what) = (self.core.peer.addr.to_string(), "RDMA_ERROR".to_owned());
            self.fail_reverse_call(xid, RpcError::BadReply { peer, what });
        }
    }

    /// Releases the receive of an answered call. Returns whether there is a call with this XID.
    fn reverse_answered(&mut self, xid: u32) -> bool {
        let answered = self.reverse.answered(xid);
        if answered {
            self.core.account.give_receives(self.credits.receive_charge());
        }
        answered
    }
}
