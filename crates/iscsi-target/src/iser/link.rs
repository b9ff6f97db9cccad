//! The queue pair of a connection, with its messages.

use std::{
    collections::VecDeque,
    future::poll_fn,
    task::{Context, Poll},
    time::Duration,
};

use millrace_admission::Account;
use millrace_buffer::{Arena, Buffer, OutOfMemory, Views};
use millrace_iscsi::iser::{HEADER_BYTES, Header, Hello, Message, MessageError, Pdu};
use millrace_rdma::{
    Completion, ConnectionError, QueuePair, ReadRequest, Segment, SendRequest, SteeringTag, WorkId,
    WriteRequest, ignore_closed,
    registration::{Local, LocalRegistration, LocalRegistrations, Registration},
};
use millrace_runtime::{RuntimeRef, timeout};

use crate::{end::End, service::Service, task::kept_memory};

/// Time limit for the peer to close its end of a connection that this end closed.
pub(super) const CLOSE_LIMIT: Duration = Duration::from_secs(1);

/// A posted Send and what its completion releases.
struct Sent {
    id: u64,
    /// Bytes of the message.
    message: usize,
    /// Bytes of the RDMA Writes before it.
    written: usize,
    /// Bytes charged to the account: the memory of the message, and that of the task that it ends.
    charge: usize,
    /// Registrations of the sources of the RDMA Writes.
    _sources: LocalRegistrations,
}

/// The queue pair of a connection. Memory of its work must outlive it, so it comes first.
pub(super) struct Link {
    pub(super) qp: Box<dyn QueuePair>,
    arena: Arena,
    local: Local,
    completions: Vec<Completion>,
    /// Received messages that are not processed; at most as many as receives.
    pub(super) inbox: VecDeque<Buffer>,
    /// RDMA Reads that are complete.
    pub(super) reads: Vec<(WorkId, Vec<Buffer>)>,
    /// Number of Sends posted.
    posted: u64,
    /// Sends that are not complete, in order.
    waiting: VecDeque<Sent>,
    /// Bytes of these Sends, without RDMA Writes.
    unsent: usize,
    /// Bytes and registrations of the RDMA Writes since the last Send.
    writes: (usize, LocalRegistrations),
    /// Bytes to charge to the account, and to release from it.
    charged: usize,
    released: usize,
    greeted: bool,
    /// Bytes of messages and of RDMA Reads that were received.
    pub(super) received: u64,
    /// Bytes of messages and of RDMA Writes that the peer has received.
    pub(super) sent: u64,
}

impl Link {
    pub(super) fn new(qp: Box<dyn QueuePair>, service: &Service, registration: &Registration) -> Self {
        let local = registration.local(qp.domain(), &service.rt);
        Self {
            qp,
            arena: service.arena.clone(),
            local,
            completions: Vec::new(),
            inbox: VecDeque::new(),
            reads: Vec::new(),
            posted: 0,
            waiting: VecDeque::new(),
            unsent: 0,
            writes: (0, LocalRegistrations::new()),
            charged: 0,
            released: 0,
            greeted: false,
            received: 0,
            sent: 0,
        }
    }

    /// Bytes of Sends that the peer has not received. The account limits those of RDMA Writes.
    pub(super) fn unsent(&self) -> usize {
        self.unsent
    }

    /// Charges the messages that were posted since the last call, and releases the charges of Sends that have completed.
    pub(super) fn settle(&mut self, account: &mut Account) {
        account.replace(std::mem::take(&mut self.released), std::mem::take(&mut self.charged));
    }

    /// Drives the queue pair. Returns whether there were completions, and otherwise registers the task.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Result<bool, End> {
        let polled = self.qp.poll(cx, &mut self.completions);
        let mut completions = std::mem::take(&mut self.completions);
        for completion in completions.drain(..) {
            match completion {
                Completion::Received { buffer, .. } => {
                    self.received += buffer.len() as u64;
                    self.inbox.push_back(buffer);
                }
                Completion::Sent(WorkId(id)) => self.sent_up_to(id),
                Completion::Read { id, sink } => {
                    self.received += sink.iter().map(|buffer| buffer.len() as u64).sum::<u64>();
                    self.reads.push((id, sink));
                }
            }
        }
        self.completions = completions;
        match polled {
            Poll::Ready(Ok(())) => Ok(true),
            Poll::Ready(Err(e)) => Err(End::QueuePair(e)),
            Poll::Pending => Ok(false),
        }
    }

    fn sent_up_to(&mut self, id: u64) {
        while let Some(sent) = self.waiting.pop_front_if(|sent| sent.id <= id) {
            self.unsent -= sent.message;
            self.sent += (sent.message + sent.written) as u64;
            self.released += sent.charge;
        }
    }

    /// Posts `count` receives.
    pub(super) fn post_receives(&mut self, count: u32) -> Result<(), End> {
        for _ in 0..count {
            let buffer = self.arena.alloc(super::MESSAGE).map_err(|e| local(e.to_string()))?;
            ignore_closed(self.qp.post_receive(buffer)).map_err(End::QueuePair)?;
        }
        Ok(())
    }

    /// Posts the receive of a message again.
    pub(super) fn recycle(&mut self, mut buffer: Buffer) -> Result<(), End> {
        buffer.set_len(super::MESSAGE);
        ignore_closed(self.qp.post_receive(buffer)).map_err(End::QueuePair)
    }

    /// Decodes a message. A Hello is answered (RFC 7145 section 5.1.3), and has no PDU.
    pub(super) fn decode<'a>(&mut self, message: &'a [u8]) -> Result<Option<Pdu<'a>>, End> {
        match Message::decode(message).map_err(End::Message)? {
            Message::Pdu(pdu) => Ok(Some(pdu)),
            Message::Hello(hello) if !self.greeted => {
                self.greeted = true;
                self.answer_hello(hello)?;
                Ok(None)
            }
            Message::Hello(_) => Err(End::Message(MessageError::Unexpected("Hello"))),
            Message::HelloReply(_) => Err(End::Message(MessageError::Unexpected("HelloReply"))),
        }
    }

    fn answer_hello(&mut self, hello: Hello) -> Result<(), End> {
        let reply = hello.reply(self.qp.info().ord);
        let message: [u8; HEADER_BYTES] = Header::HelloReply(reply).encode();
        let data = self.arena.copy_from(&message).map_err(|e| local(e.to_string()))?;
        self.post_send(data.into(), None, 0)?;
        if reply.rejected {
            return Err(End::Refused("the initiator does not support version 10 of iSER".into()));
        }
        Ok(())
    }

    /// A message of a prefix and data, in memory of the arena.
    pub(super) fn message(&self, prefix: &[u8], data: &[u8]) -> Result<Views, OutOfMemory> {
        let mut buffer = self.arena.alloc(prefix.len() + data.len())?;
        buffer[..prefix.len()].copy_from_slice(prefix);
        buffer[prefix.len()..].copy_from_slice(data);
        Ok(buffer.freeze().into())
    }

    /// Posts a Send, which invalidates `invalidate`, and releases `charge` bytes, besides its own, when it completes.
    pub(super) fn post_send(
        &mut self,
        data: Views,
        invalidate: Option<u32>,
        charge: usize,
    ) -> Result<(), End> {
        let (written, sources) = std::mem::take(&mut self.writes);
        let message = data.len();
        let memory: usize = data.iter().map(kept_memory).sum();
        self.posted += 1;
        self.unsent += message;
        self.charged += memory;
        let charge = charge + memory;
        self.waiting.push_back(Sent { id: self.posted, message, written, charge, _sources: sources });
        let invalidate = invalidate.map(SteeringTag);
        let signaled = Some(WorkId(self.posted));
        let sent = self.qp.post_send(SendRequest { data, invalidate, solicited: true, signaled });
        ignore_closed(sent).map_err(End::QueuePair)
    }

    /// Posts RDMA Writes of at most `chunk` bytes to `to`, memory of the peer. A Send follows.
    pub(super) fn post_writes(&mut self, data: &Views, to: Segment, chunk: usize) -> Result<(), End> {
        let mut at = 0;
        while at < data.len() {
            let part = data.slice(at, chunk.min(data.len() - at));
            // The part is not longer than the data, whose length has 32 bits.
            let length = part.len() as u32;
            let to = Segment { length, offset: to.offset.wrapping_add(at as u64), ..to };
            self.writes.1.extend(self.local.source(&part));
            at += part.len();
            ignore_closed(self.qp.post_write(WriteRequest { data: part, to })).map_err(End::QueuePair)?;
        }
        self.writes.0 += data.len();
        Ok(())
    }

    /// Posts an RDMA Read. Returns the registration of its sink, to be held until the Read completes.
    pub(super) fn post_read(&mut self, read: ReadRequest) -> Result<Option<LocalRegistration>, End> {
        let registration = self.local.sink(&read.sink);
        ignore_closed(self.qp.post_read(read)).map_err(End::QueuePair)?;
        Ok(registration)
    }

    /// Closes the connection after posted work is sent, and waits for the peer to close it.
    pub(super) async fn close(&mut self, rt: &RuntimeRef) {
        self.qp.disconnect();
        let ended = poll_fn(|cx| {
            loop {
                match self.poll(cx) {
                    Ok(true) => {}
                    Ok(false) => return Poll::Pending,
                    Err(_) => return Poll::Ready(()),
                }
            }
        });
        timeout(&**rt, CLOSE_LIMIT, ended).await;
    }
}

fn local(what: String) -> End {
    End::QueuePair(ConnectionError::Local(what))
}
