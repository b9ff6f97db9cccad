//! The queue pair of a connection, with its messages.

use std::{
    collections::VecDeque,
    task::{Context, Poll, ready},
};

use millrace_buffer::{Arena, Buffer};
use millrace_iscsi::{
    iser::{Advertised, Message, MessageError, PREFIX_BYTES, Pdu, prefix},
    pdu::Bhs,
};
use millrace_rdma::{Completion, QueuePair, SendRequest, SteeringTag, WorkId, ignore_closed};

use crate::iser::Error;

/// Maximum number of Sends that are posted and not complete.
const MAX_SENDS: u64 = 256;

/// A received message.
pub(crate) struct Received {
    buffer: Buffer,
    /// The tag that the target invalidated with it.
    pub(crate) invalidated: Option<u32>,
}

impl Received {
    /// The PDU. An initiator that sends no Hello receives no HelloReply.
    pub(crate) fn pdu(&self) -> Result<Pdu<'_>, MessageError> {
        match Message::decode(&self.buffer)? {
            Message::Pdu(pdu) => Ok(pdu),
            Message::Hello(_) => Err(MessageError::Unexpected("Hello")),
            Message::HelloReply(_) => Err(MessageError::Unexpected("HelloReply")),
        }
    }
}

/// The messages of a queue pair.
pub(crate) struct Messages {
    pub(crate) qp: Box<dyn QueuePair>,
    arena: Arena,
    completions: Vec<Completion>,
    /// At most as many as receives.
    inbox: VecDeque<Received>,
    /// Receives without a message.
    posted: usize,
    receive_length: usize,
    sends: u64,
    sends_completed: u64,
}

impl Messages {
    pub(crate) fn new(qp: Box<dyn QueuePair>, arena: Arena, receive_length: usize) -> Self {
        Self {
            qp,
            arena,
            completions: Vec::new(),
            inbox: VecDeque::new(),
            posted: 0,
            receive_length,
            sends: 0,
            sends_completed: 0,
        }
    }

    /// Sets the length of the receives that are posted from now on.
    pub(crate) fn set_receive_length(&mut self, length: usize) {
        self.receive_length = length;
    }

    /// Posts receives until there are `due`.
    pub(crate) fn post_receives(&mut self, due: usize) -> Result<(), Error> {
        while self.posted < due {
            let buffer = self.arena.alloc(self.receive_length)?;
            self.posted += 1;
            ignore_closed(self.qp.post_receive(buffer))?;
        }
        Ok(())
    }

    /// Whether another message can be sent now.
    pub(crate) fn has_room(&self) -> bool {
        self.sends - self.sends_completed < MAX_SENDS
    }

    /// Posts a message with a data segment of `length` bytes, which `fill` writes.
    pub(crate) fn send(
        &mut self,
        advertised: Advertised,
        bhs: &Bhs,
        length: usize,
        fill: impl FnOnce(&mut [u8]),
    ) -> Result<(), Error> {
        let mut buffer = self.arena.alloc(PREFIX_BYTES + length)?;
        buffer[..PREFIX_BYTES].copy_from_slice(&prefix(advertised, bhs));
        fill(&mut buffer[PREFIX_BYTES..]);
        self.sends += 1;
        let (data, signaled) = (buffer.freeze().into(), Some(WorkId(self.sends)));
        let sent = self.qp.post_send(SendRequest { data, invalidate: None, solicited: true, signaled });
        ignore_closed(sent).map_err(Error::from)
    }

    /// The next received message.
    pub(crate) fn next(&mut self) -> Option<Received> {
        self.inbox.pop_front()
    }

    /// Drives the queue pair until there are completions.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        let polled = self.qp.poll(cx, &mut self.completions);
        for completion in self.completions.drain(..) {
            match completion {
                Completion::Received { buffer, invalidated } => {
                    self.posted = self.posted.saturating_sub(1);
                    let invalidated = invalidated.map(|SteeringTag(stag)| stag);
                    self.inbox.push_back(Received { buffer, invalidated });
                }
                Completion::Sent(WorkId(id)) => self.sends_completed = id,
                // An initiator posts no RDMA Reads.
                Completion::Read { .. } => {}
            }
        }
        Poll::Ready(ready!(polled).map_err(Error::from))
    }
}
