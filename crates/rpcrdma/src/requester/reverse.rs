//! Calls in the reverse direction on the queue pair: from the server to this client (RFC 8167).
//!
//! The RPC message type distinguishes the messages of the two directions. Their XIDs and credits are independent. Calls
//! and replies in the reverse direction have no chunks.

use millrace_buffer::View;
use millrace_oncrpc::{CallbackHandlerRef, MSG_CALL, Message};
use millrace_rdma::{SendRequest, WorkId};

use super::marshal::Marshaller;
use crate::header::{Body, Header, Lists};

/// Credits that this end grants, for which receives are posted; and maximum number of replies that the lower layer has
/// not taken.
pub(super) const CREDITS: usize = 2;

/// The replies to calls in the reverse direction.
pub(super) struct ReverseReplies {
    handler: CallbackHandlerRef,
    /// Replies that the lower layer has not taken.
    unsent: usize,
}

impl ReverseReplies {
    pub(super) fn new(handler: CallbackHandlerRef) -> Self {
        Self { handler, unsent: 0 }
    }

    /// The lower layer has taken a reply. Only these Sends are signaled.
    pub(super) fn sent(&mut self) {
        self.unsent = self.unsent.saturating_sub(1);
    }

    /// The Send of the reply to the call in `message`. There is none for a call that the handler drops, nor if the header
    /// has another XID, the reply is too long for the server's receives, or there is no memory for it. A peer that sends
    /// calls and does not receive the replies gets no others.
    pub(super) fn reply(
        &mut self,
        header: &Header,
        message: View,
        marshaller: &Marshaller,
    ) -> Option<SendRequest> {
        let same_xid = message.first_chunk() == Some(&header.xid.to_be_bytes());
        if !same_xid || self.unsent >= CREDITS {
            return None;
        }
        let handler = self.handler.lock().clone()?;
        let reply = handler.answer(&Message::from_view(message))?;
        let header = Header::new(header.xid, CREDITS as u32, Body::Msg(Lists::default()));
        tracing::trace!("reply to a callback {header}");
        let mut stream = reply.gather(marshaller.zeros());
        let data = header.with_message(&mut stream, reply.payloads.is_empty(), &marshaller.arena).ok()?;
        if data.len() > marshaller.thresholds().send {
            return None;
        }
        self.unsent += 1;
        // The Send is signaled, because no message of the server may follow.
        Some(SendRequest { data, invalidate: None, solicited: false, signaled: Some(WorkId(0)) })
    }
}

/// Whether a message with this header is an RPC call without chunks. Servers call in the reverse direction only.
pub(super) fn is_call(header: &Header, message: &[u8]) -> bool {
    message.get(4..8) == Some(&MSG_CALL.to_be_bytes())
        && matches!(&header.body, Body::Msg(lists) if lists.is_empty())
}
