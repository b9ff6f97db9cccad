//! The requester's part: reads what replies name, and acknowledges it.

use millrace_buffer::{Buffer, SPAN_BYTES, View};
use millrace_oncrpc::{Message, Stage, Stages};
use millrace_rdma::{ConnectionError, PostError, QueuePair, ReadRequest, SendRequest, WorkId};
use smallvec::SmallVec;

use crate::{
    counters::add,
    design::{Arrived, Pulled, Requesting, Taken},
    header::{Body, Header, Lists, ReadSegment},
    pull::{self, Planned, Pulls, Shape, Sources},
    registration::{AllHeld, Held, Local},
    requester::Marshaller,
};

/// The most segments of one reply's Read list: as many as a call may have.
const MAX_SEGMENTS: usize = 16;
const NO_MEMORY: &str = "there is no memory here to read it into";

/// The requester's end of the design: replies that are being read.
pub(in crate::design) struct Reader {
    pulls: Pulls<Answered>,
    local: Local,
}

/// The call whose results are read.
struct Answered {
    xid: u32,
    stages: Stages,
    /// The registrations of the sinks.
    sinks: AllHeld,
}

/// What a call has for its results.
struct Room {
    /// The most bytes of the reply's head.
    head: usize,
    /// Memory for its payload.
    payload: Option<Buffer>,
}

impl Reader {
    /// Nothing is read yet; `local` registers the sinks.
    pub(in crate::design) fn new(local: Local) -> Self {
        Self { pulls: Pulls::new(usize::MAX), local }
    }

    /// Checks the reply's Read list against what the call asked for, and posts the Reads. Gives the message at once
    /// when the list names no bytes.
    fn read(
        &mut self,
        of: Answered,
        lists: &mut Lists,
        inline: Option<View>,
        room: Room,
        with: &Marshaller,
        qp: &mut dyn QueuePair,
    ) -> Result<Taken, &'static str> {
        if !lists.writes.is_empty() || lists.reply.is_some() {
            return Err("a reply with chunks that the call did not give");
        }
        if lists.reads.len() > MAX_SEGMENTS {
            return Err("a reply with more Read segments than any result needs");
        }
        let payload = room.payload.as_ref().map_or(0, |b| b.len());
        let head = room.head.next_multiple_of(4);
        let shape = pull::check(&mut lists.reads, inline.as_ref(), (head + payload) as u64)?;
        shape.fits(head, payload)?;
        of.stages.end(Stage::Decode);
        let planned = plan(&lists.reads, room.payload, &*qp);
        if planned.is_empty() {
            of.stages.end(Stage::Buffer);
            return Ok(Taken::Message(inline.map(Message::from_view).ok_or("a reply without a message")));
        }
        self.post(of, inline, shape, planned, with, qp)
    }

    /// Posts the Reads of a reply, or none of them.
    fn post(
        &mut self,
        of: Answered,
        inline: Option<View>,
        shape: Shape,
        planned: SmallVec<[Planned; 2]>,
        with: &Marshaller,
        qp: &mut dyn QueuePair,
    ) -> Result<Taken, &'static str> {
        let (long, inline_bytes) = (inline.is_none(), inline.as_ref().map_or(0, |v| v.len()));
        let stages = of.stages.clone();
        let sources = Sources { arena: &with.arena, piece: SPAN_BYTES };
        self.pulls.open(of, inline, shape, planned);
        let mut reads: SmallVec<[ReadRequest; 2]> = SmallVec::new();
        let mut registered = false;
        loop {
            match self.pulls.next_read(&sources) {
                Ok(Some((read, of))) => {
                    of.sinks.extend(self.local.sink(&read.sink));
                    registered |= of.sinks.iter().any(Held::is_for_one);
                    reads.push(read);
                }
                Ok(None) => break,
                Err(_) => {
                    self.pulls.abandon(reads.len());
                    return Err(NO_MEMORY);
                }
            }
        }
        stages.end(Stage::Buffer);
        if registered {
            stages.end(Stage::Registration);
        }
        add(&with.stats.reads, reads.len());
        add(&with.stats.long_replies, usize::from(long));
        add(&with.stats.inline_bytes_in, inline_bytes);
        add(&with.stats.placed_bytes, reads.iter().map(|r| r.from.length as usize).sum());
        for read in reads {
            // A connection that is down fails the call with its next poll.
            qp.post_read(read).or_else(|e| {
                if e == PostError::Closed { Ok(()) } else { Err("RDMA Reads that cannot be posted") }
            })?;
        }
        Ok(Taken::Reading)
    }
}

/// The Reads: into the caller's own buffer if the payload is one segment, else into memory of ours.
fn plan(list: &[ReadSegment], payload: Option<Buffer>, qp: &dyn QueuePair) -> SmallVec<[Planned; 2]> {
    let max_transfer = qp.capabilities().max_transfer;
    let mut bulk = list.iter().filter(|r| r.position != 0 && r.segment.length > 0);
    let one = match (bulk.next(), bulk.next()) {
        (Some(one), None) => (one.segment.length as usize <= max_transfer).then_some(one.position),
        _ => None,
    };
    pull::plan(list, one.zip(payload), max_transfer)
}

/// Sends the 16 bytes of an RDMA_DONE (RFC 5666 section 3.8): the responder may take its memory back.
fn done(xid: u32, with: &Marshaller, qp: &mut dyn QueuePair) -> Result<(), ConnectionError> {
    let data = Header::new(xid, with.credits, Body::Done).alone(&with.arena);
    let data = data.map_err(|e| ConnectionError::Local(e.to_string()))?;
    add(&with.stats.done_sent, 1);
    let sent = qp.post_send(SendRequest { data, invalidate: None, solicited: false, signaled: None });
    match sent {
        Ok(()) | Err(PostError::Closed) => Ok(()),
        Err(e @ PostError::Invalid(_)) => Err(ConnectionError::Local(e.to_string())),
    }
}

impl Requesting for Reader {
    fn knows(&self, body: &Body) -> bool {
        !matches!(body, Body::Done)
    }

    fn take(
        &mut self,
        reply: Arrived,
        with: &Marshaller,
        qp: &mut dyn QueuePair,
    ) -> Result<Taken, ConnectionError> {
        let Arrived { xid, mut lists, inline, padding, memory } = reply;
        let (head, stages) = (memory.max_head(), memory.stages().clone());
        let payload = memory.take_back(&*with.lending, 0, 0).kept;
        if lists.is_empty() {
            add(&with.stats.inline_bytes_in, inline.as_ref().map_or(0, |v| v.len()));
            let message = inline.map(|v| Message { padding, ..Message::from_view(v) });
            return Ok(Taken::Message(message.ok_or("a reply without a message")));
        }
        let taken = if padding.is_some() {
            Err("an RDMA_MSGP reply with chunks")
        } else {
            self.read(
                Answered { xid, stages, sinks: AllHeld::new() },
                &mut lists,
                inline,
                Room { head, payload },
                with,
                qp,
            )
        };
        if !matches!(taken, Ok(Taken::Reading)) && !lists.reads.is_empty() {
            done(xid, with, qp)?;
        }
        Ok(taken.unwrap_or_else(|what| Taken::Message(Err(what))))
    }

    fn completed(
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
        let Some((Answered { xid, stages, sinks }, message)) = taken else { return Ok(None) };
        stages.end(Stage::ReadWait);
        if sinks.iter().any(Held::is_for_one) {
            drop(sinks);
            stages.end(Stage::Deregistration);
        }
        done(xid, with, qp)?;
        Ok(Some(Pulled { xid, message, stages }))
    }

    fn discard(
        &mut self,
        reply: &Header,
        with: &Marshaller,
        qp: &mut dyn QueuePair,
    ) -> Result<(), ConnectionError> {
        match &reply.body {
            Body::Msg(l) | Body::NoMsg(l) | Body::PaddedMsg(_, l) if !l.reads.is_empty() => {
                done(reply.xid, with, qp)
            }
            _ => Ok(()),
        }
    }

    fn end(&mut self) {
        self.pulls = Pulls::new(usize::MAX);
    }
}
