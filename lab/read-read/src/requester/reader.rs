//! Reads the chunks of replies and acknowledges them.

use std::sync::Arc;

use millrace_buffer::{Buffer, SPAN_BYTES, View};
use millrace_oncrpc::{Message, Stage, Stages};
use smallvec::SmallVec;

use super::marshal::ReplyMemory;
use crate::Counts;
use millrace_rdma::{
    ConnectionError, QueuePair, ReadRequest, SendRequest, WorkId, ignore_closed,
    registration::{Local, LocalRegistration, LocalRegistrations},
};
use millrace_rpcrdma::{
    Body, CallMemory, Header, Lists, Marshaller, ReadSegment,
    counters::add,
    pull::{self, MessageLayout, PlannedRead, Pulls, Sources},
};

/// Maximum number of segments of one reply's Read list: the maximum of a call.
const MAX_SEGMENTS: usize = 16;
const NO_MEMORY: &str = "no memory to read the reply into";

/// Replies with RDMA Reads in flight.
pub(super) struct Reader {
    pulls: Pulls<AnsweredCall>,
    local: Local,
    counts: Arc<Counts>,
}

/// A reply with a decoded header, and the memory of its call.
pub(super) struct ReceivedReply {
    pub(super) xid: u32,
    pub(super) lists: Lists,
    /// The message after the header of an RDMA_MSG; `None` for RDMA_NOMSG.
    pub(super) inline: Option<View>,
    /// Memory of the call's arguments.
    pub(super) memory: Box<CallMemory>,
    /// Memory for its results.
    pub(super) reply: ReplyMemory,
}

/// The result of processing a received reply.
pub(super) enum ReplyOutcome {
    /// The whole message, or the reason why the reply is invalid.
    Message(Result<Message, &'static str>),
    /// RDMA Reads were posted; the completion of the last one returns the message.
    Reading,
}

/// A reply whose RDMA Reads are complete.
pub(super) struct Pulled {
    pub(super) xid: u32,
    pub(super) message: Result<Message, &'static str>,
}

/// A call whose results are being read.
struct AnsweredCall {
    xid: u32,
    stages: Stages,
    /// Registrations of the sinks.
    sinks: LocalRegistrations,
}

impl Reader {
    /// Creates a reader; `local` registers the sinks.
    pub(super) fn new(local: Local, counts: Arc<Counts>) -> Self {
        Self { pulls: Pulls::new(usize::MAX), local, counts }
    }

    /// Validates the reply's Read list against the memory of the call and posts the RDMA Reads. Returns the
    /// message at once if the list contains no bytes.
    fn read(
        &mut self,
        of: AnsweredCall,
        lists: &mut Lists,
        inline: Option<View>,
        reply: ReplyMemory,
        with: &Marshaller,
        qp: &mut dyn QueuePair,
    ) -> Result<ReplyOutcome, &'static str> {
        if !lists.writes.is_empty() || lists.reply.is_some() {
            return Err("a reply with chunks that the call did not give");
        }
        if lists.reads.len() > MAX_SEGMENTS {
            return Err("a reply with more Read segments than any result needs");
        }
        let payload = reply.payload.as_ref().map_or(0, |b| b.len());
        let head = reply.head.next_multiple_of(4);
        let layout = pull::check(&mut lists.reads, inline.as_ref(), (head + payload) as u64)?;
        layout.fits(head, payload)?;
        of.stages.end(Stage::Decode);
        let planned = plan(&lists.reads, reply.payload, &*qp);
        if planned.is_empty() {
            of.stages.end(Stage::Buffer);
            return Ok(ReplyOutcome::Message(
                inline.map(Message::from_view).ok_or("a reply without a message"),
            ));
        }
        self.post(of, inline, layout, planned, with, qp)
    }

    /// Posts all RDMA Reads of a reply, or none.
    fn post(
        &mut self,
        of: AnsweredCall,
        inline: Option<View>,
        layout: MessageLayout,
        planned: SmallVec<[PlannedRead; 2]>,
        with: &Marshaller,
        qp: &mut dyn QueuePair,
    ) -> Result<ReplyOutcome, &'static str> {
        let (long, inline_bytes) = (inline.is_none(), inline.as_ref().map_or(0, |v| v.len()));
        let stages = of.stages.clone();
        let sources = Sources { arena: &with.arena, piece: SPAN_BYTES };
        self.pulls.open(of, inline, layout, planned);
        let mut reads: SmallVec<[ReadRequest; 2]> = SmallVec::new();
        let mut registered = false;
        loop {
            match self.pulls.next_read(&sources) {
                Ok(Some((read, of))) => {
                    of.sinks.extend(self.local.sink(&read.sink));
                    registered |= of.sinks.iter().any(LocalRegistration::is_per_operation);
                    reads.push(read);
                }
                Ok(None) => break,
                Err(_) => {
                    self.pulls.cancel_last(reads.len());
                    return Err(NO_MEMORY);
                }
            }
        }
        stages.end(Stage::Buffer);
        if registered {
            stages.end(Stage::Registration);
        }
        self.counts.result_reads.add(reads.len());
        add(&with.stats.long_replies, usize::from(long));
        add(&with.stats.inline_bytes_in, inline_bytes);
        add(&with.stats.placed_bytes, reads.iter().map(|r| r.from.length as usize).sum());
        for read in reads {
            ignore_closed(qp.post_read(read)).map_err(|_| "RDMA Reads that cannot be posted")?;
        }
        Ok(ReplyOutcome::Reading)
    }
}

/// The RDMA Reads: into the caller's buffer if the payload is one segment, otherwise into buffers of the
/// arena.
fn plan(list: &[ReadSegment], payload: Option<Buffer>, qp: &dyn QueuePair) -> SmallVec<[PlannedRead; 2]> {
    let max_transfer = qp.capabilities().max_transfer;
    let mut bulk = list.iter().filter(|r| r.position != 0 && r.segment.length > 0);
    let one = match (bulk.next(), bulk.next()) {
        (Some(one), None) => (one.segment.length as usize <= max_transfer).then_some(one.position),
        _ => None,
    };
    pull::plan(list, one.zip(payload), max_transfer)
}

impl Reader {
    /// Sends an RDMA_DONE of 16 bytes (RFC 5666 section 3.8), after which the responder may revoke its memory.
    fn send_done(&self, xid: u32, with: &Marshaller, qp: &mut dyn QueuePair) -> Result<(), ConnectionError> {
        let data = Header::new(xid, with.credits, Body::Done).without_message(&with.arena);
        let data = data.map_err(|e| ConnectionError::Local(e.to_string()))?;
        self.counts.done_sent.add(1);
        ignore_closed(qp.post_send(SendRequest { data, invalidate: None, solicited: false, signaled: None }))
    }

    /// Processes a reply: revokes the peer's access to the call's memory, and returns the message.
    ///
    /// # Errors
    /// The connection cannot send any more.
    pub(super) fn take(
        &mut self,
        reply: ReceivedReply,
        with: &Marshaller,
        qp: &mut dyn QueuePair,
    ) -> Result<ReplyOutcome, ConnectionError> {
        let ReceivedReply { xid, mut lists, inline, memory, reply } = reply;
        let stages = memory.stages.clone();
        with.release(memory);
        if lists.is_empty() {
            add(&with.stats.inline_bytes_in, inline.as_ref().map_or(0, |v| v.len()));
            let message = inline.map(Message::from_view).ok_or("a reply without a message");
            return Ok(ReplyOutcome::Message(message));
        }
        let of = AnsweredCall { xid, stages, sinks: LocalRegistrations::new() };
        let taken = self.read(of, &mut lists, inline, reply, with, qp);
        if !matches!(taken, Ok(ReplyOutcome::Reading)) && !lists.reads.is_empty() {
            self.send_done(xid, with, qp)?;
        }
        Ok(taken.unwrap_or_else(|what| ReplyOutcome::Message(Err(what))))
    }

    /// Processes the completion of an RDMA Read.
    ///
    /// # Errors
    /// The connection cannot send any more.
    pub(super) fn completed(
        &mut self,
        id: WorkId,
        sink: Vec<Buffer>,
        with: &Marshaller,
        qp: &mut dyn QueuePair,
    ) -> Result<Option<Pulled>, ConnectionError> {
        let Some(at) = self.pulls.completed(id, sink) else { return Ok(None) };
        let taken = match self.pulls.take(at, &with.arena) {
            Some(Ok((of, message))) => Some((of, Ok(message))),
            _ => self.pulls.drop_at(at).map(|of| (of, Err(NO_MEMORY))),
        };
        let Some((AnsweredCall { xid, stages, sinks }, message)) = taken else { return Ok(None) };
        stages.end(Stage::ReadWait);
        if sinks.iter().any(LocalRegistration::is_per_operation) {
            drop(sinks);
            stages.end(Stage::Deregistration);
        }
        self.send_done(xid, with, qp)?;
        Ok(Some(Pulled { xid, message }))
    }

    /// Drops a reply whose call was cancelled or timed out.
    ///
    /// # Errors
    /// The connection cannot send any more.
    pub(super) fn discard(
        &mut self,
        reply: &Header,
        with: &Marshaller,
        qp: &mut dyn QueuePair,
    ) -> Result<(), ConnectionError> {
        match &reply.body {
            Body::Msg(l) | Body::NoMsg(l) if !l.reads.is_empty() => self.send_done(reply.xid, with, qp),
            _ => Ok(()),
        }
    }

    /// Releases all memory at the end of the connection.
    pub(super) fn end(&mut self) {
        self.pulls = Pulls::new(usize::MAX);
    }
}
