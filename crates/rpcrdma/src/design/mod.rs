//! The designs: which end starts the transfer of results, and what that asks of both ends.
//!
//! [`Design`] is chosen once per connection. What both ends do in their design's way is behind two interfaces,
//! [`Requesting`] and [`Responding`]; no other module asks which design it serves.

mod read_read;
mod read_write;

pub(crate) use self::read_read::padded;

use std::{
    fmt,
    str::FromStr,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use millrace_buffer::{Arena, Buffer, View, Views};
use millrace_oncrpc::{Message, ReplySpec, Stages};
use millrace_rdma::{ConnectionError, DomainRef, QueuePair, WorkId, WriteRequest};
use millrace_runtime::RuntimeRef;
use millrace_xdr::ItemPadding;
use smallvec::SmallVec;

use crate::{
    header::{Body, Header, Lists, Padding},
    private_data::{PrivateData, Thresholds},
    registration::{Local, Registration},
    requester::{CallMemory, Marshaller},
    responder::{ReplyTo, ResponderStats},
};

/// Which end moves a call's results.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum Design {
    /// The Read-Write design (RFC 8166): the responder writes results into memory that the requester exposes, and
    /// exposes none itself.
    #[default]
    ReadWrite,
    /// The Read-Read design (Callaghan 2003, RFC 5666): the responder exposes its own memory, the requester reads
    /// results from it, and says with RDMA_DONE when it has. For experiments: whoever can connect can read what it is
    /// not meant to by guessing tags, and hold the responder's memory by never sending RDMA_DONE.
    ReadRead,
}

impl fmt::Display for Design {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::ReadWrite => "read-write",
            Self::ReadRead => "read-read",
        })
    }
}

impl FromStr for Design {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        match s {
            "read-write" => Ok(Self::ReadWrite),
            "read-read" => Ok(Self::ReadRead),
            _ => Err(format!("unknown design {s:?}: use read-write or read-read")),
        }
    }
}

/// What the responder of the Read-Read design may expose on one connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExposureLimits {
    /// The most regions.
    pub regions: usize,
    /// The most bytes.
    pub bytes: usize,
    /// A requester that does not send RDMA_DONE so long after its reply loses its connection, and the memory is out
    /// of its reach.
    pub done_timeout: Duration,
}

impl Default for ExposureLimits {
    fn default() -> Self {
        Self { regions: 1024, bytes: 128 << 20, done_timeout: Duration::from_secs(30) }
    }
}

impl Design {
    /// What a call brings for its results.
    pub(crate) fn expect(self, spec: &ReplySpec, thresholds: &Thresholds) -> Expected {
        match self {
            Self::ReadWrite => read_write::expect(spec, thresholds),
            Self::ReadRead => Expected { write: false, reply: None },
        }
    }

    /// The padding that a requester may use, of that which is wanted.
    pub(crate) fn padding(self, wanted: Option<Padding>) -> Option<Padding> {
        match self {
            Self::ReadWrite => None,
            Self::ReadRead => wanted,
        }
    }

    /// The requester's part of a connection to a responder that said `theirs`. `local` registers the sinks of its RDMA
    /// Reads, if it has any.
    ///
    /// # Errors
    /// When the responder uses another design.
    pub(crate) fn requesting(
        self,
        theirs: Option<&PrivateData>,
        ord: u16,
        local: Local,
    ) -> Result<Box<dyn Requesting>, ConnectionError> {
        let other = theirs.map_or(Self::ReadWrite, |p| p.design);
        let mismatch = |what: &str| Err(ConnectionError::Incompatible(what.into()));
        match (self, other) {
            (Self::ReadWrite, Self::ReadWrite) => Ok(Box::new(read_write::ReadWrite)),
            (Self::ReadRead, Self::ReadRead) if ord == 0 => {
                mismatch("it serves no RDMA Reads, which the Read-Read design needs")
            }
            (Self::ReadRead, Self::ReadRead) => Ok(Box::new(read_read::Reader::new(local))),
            (Self::ReadWrite, Self::ReadRead) => mismatch(
                "it uses the Read-Read design, and this end Read-Write; start the server without it, or connect with \
                 millrace-lab --design read-read (its buffers are exposed then)",
            ),
            (Self::ReadRead, Self::ReadWrite) => mismatch(
                "it does not offer the Read-Read design; use the design read-write, or start the server with millrace-lab serve --design read-read",
            ),
        }
    }

    /// The responder's part.
    ///
    /// # Errors
    /// When the registration strategy is not for this.
    pub(crate) fn responding(self, setting: Setting) -> Result<Box<dyn Responding>, ConnectionError> {
        Ok(match self {
            Self::ReadWrite => Box::new(read_write::ReadWrite),
            Self::ReadRead => Box::new(read_read::Exposer::new(setting)?),
        })
    }
}

/// What a call brings for its results.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Expected {
    /// A Write chunk over the memory for the reply's payload.
    pub(crate) write: bool,
    /// Bytes of the Reply chunk.
    pub(crate) reply: Option<usize>,
}

/// A reply whose header is decoded and whose call is known.
pub(crate) struct Arrived {
    pub(crate) xid: u32,
    pub(crate) lists: Lists,
    /// What follows the header of an RDMA_MSG or RDMA_MSGP; `None` for RDMA_NOMSG.
    pub(crate) inline: Option<View>,
    /// How that is padded.
    pub(crate) padding: Option<ItemPadding>,
    /// The memory of its call.
    pub(crate) memory: CallMemory,
}

/// A reply taken apart.
pub(crate) enum Taken {
    /// The whole message, or what is wrong with the reply.
    Message(Result<Message, &'static str>),
    /// RDMA Reads were posted; the message comes with the last of their completions.
    Reading,
}

/// A reply whose RDMA Reads are done.
pub(crate) struct Pulled {
    pub(crate) xid: u32,
    pub(crate) message: Result<Message, &'static str>,
    /// The stamps of its call.
    pub(crate) stages: Stages,
}

/// What the requester does in its design's way.
pub(crate) trait Requesting: Send {
    /// Whether a message may have this body.
    fn knows(&self, body: &Body) -> bool;

    /// Takes a reply apart: makes the peer unable to reach the call's memory, and gives the message.
    ///
    /// # Errors
    /// When nothing can be sent any more.
    fn take(
        &mut self,
        reply: Arrived,
        with: &Marshaller,
        qp: &mut dyn QueuePair,
    ) -> Result<Taken, ConnectionError>;

    /// Takes the completion of an RDMA Read.
    ///
    /// # Errors
    /// When nothing can be sent any more.
    fn completed(
        &mut self,
        id: WorkId,
        sink: Vec<Buffer>,
        with: &Marshaller,
        qp: &mut dyn QueuePair,
    ) -> Result<Option<Pulled>, ConnectionError>;

    /// A reply for which nobody waits any more is dropped.
    ///
    /// # Errors
    /// When nothing can be sent any more.
    fn discard(
        &mut self,
        reply: &Header,
        with: &Marshaller,
        qp: &mut dyn QueuePair,
    ) -> Result<(), ConnectionError>;

    /// The connection is gone: lets go of all memory.
    fn end(&mut self);
}

/// What a reply must fit.
pub(crate) struct Limits {
    /// Bytes of the largest Send.
    pub(crate) inline: usize,
    /// Bytes of the largest RDMA Write.
    pub(crate) max_transfer: usize,
    /// Pieces of one RDMA Write.
    pub(crate) max_pieces: usize,
}

/// A reply, ready to be posted: the writes, then a Send of the header and `inline`.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) header: Header,
    pub(crate) writes: SmallVec<[WriteRequest; 2]>,
    pub(crate) inline: Views,
    /// `inline` is a head without payloads.
    pub(crate) only_head: bool,
    /// Memory is exposed with it, until RDMA_DONE.
    pub(crate) until_done: bool,
}

/// The reply cannot travel: ERR_CHUNK.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct DoesNotFit;

/// What the responder's part of a design is made from.
pub(crate) struct Setting {
    /// What the requester said.
    pub(crate) theirs: Option<PrivateData>,
    /// The connection's domain.
    pub(crate) domain: DomainRef,
    /// By what means memory is exposed.
    pub(crate) registration: Arc<Registration>,
    /// The most pieces of one region, at least 1.
    pub(crate) region_pieces: usize,
    /// The most bytes of one segment.
    pub(crate) segment: usize,
    /// The most bytes that one reply exposes.
    pub(crate) max_reply: u64,
    pub(crate) arena: Arena,
    pub(crate) rt: RuntimeRef,
    pub(crate) limits: ExposureLimits,
    pub(crate) stats: Arc<ResponderStats>,
}

/// A reply that the requester has acknowledged.
pub(crate) struct Acknowledged {
    /// The stamps of its call.
    pub(crate) stages: Stages,
    /// Bytes of the account that it took.
    pub(crate) charge: usize,
}

/// What the responder does in its design's way.
pub(crate) trait Responding: Send {
    /// Whether a message is a call of this design.
    ///
    /// # Errors
    /// Why not; the answer is ERR_CHUNK.
    fn admit(&self, body: &Body) -> Result<(), &'static str>;

    /// The most calls in progress whose replies, with up to `max_reply` bytes by chunk, are within the limits.
    fn max_credits(&self, max_reply: u64) -> u32;

    /// Plans the reply `message` to the call `to`. `zeros` supplies padding.
    ///
    /// # Errors
    /// When it fits neither inline nor what is there for it.
    fn plan(
        &mut self,
        to: &ReplyTo,
        credits: u32,
        message: Message,
        limits: &Limits,
        zeros: &View,
    ) -> Result<Plan, DoesNotFit>;

    /// Replies that the requester has not acknowledged: a receive is posted for each, beyond those for calls.
    fn unacknowledged(&self) -> usize;

    /// RDMA_DONE came: takes back what the reply with this XID exposes. `None` when no reply with this XID waits for it.
    fn done(&mut self, xid: u32) -> Option<Acknowledged>;

    /// Ready when the requester has not acknowledged a reply in time.
    fn poll_overdue(&mut self, cx: &mut Context<'_>) -> Poll<ConnectionError>;
}
