//! The designs: which end moves results, and the consequences for both ends.
//!
//! A [`Design`] is selected once per connection. The parts that depend on the design are behind two interfaces,
//! [`RequesterDesign`] and [`ResponderDesign`].

// Parts of the interfaces are for the Read-Read design only.
#![cfg_attr(not(feature = "research"), allow(dead_code))]

#[cfg(feature = "research")]
mod read_read;
mod read_write;

#[cfg(feature = "research")]
pub use self::read_read::ExposureLimits;
#[cfg(feature = "research")]
pub(crate) use self::read_read::padded;

use std::{
    sync::Arc,
    task::{Context, Poll},
};

use millrace_buffer::{Arena, Buffer, View, Views};
use millrace_oncrpc::{Message, ReplySpec, Stages};
use millrace_runtime::RuntimeRef;
use millrace_xdr::ItemPadding;
use smallvec::SmallVec;

use crate::{
    call_memory::{CallMemory, SpareMemory},
    counters::{RequesterStats, ResponderStats},
    header::{Body, Header, Lists},
    private_data::{Design, PrivateData, Thresholds, states_read_read},
};
use millrace_rdma::{
    ConnectionError, DomainRef, QueuePair, WorkId, WriteRequest,
    registration::{Local, Registrar, Registration},
};

impl Design {
    /// The chunks of a call for its reply.
    pub(crate) fn plan_reply_chunks(self, spec: &ReplySpec, thresholds: &Thresholds) -> ReplyChunks {
        match self {
            Self::ReadWrite => read_write::plan_reply_chunks(spec, thresholds),
            #[cfg(feature = "research")]
            Self::ReadRead => ReplyChunks { write: false, reply: None },
        }
    }

    /// The requester's part of a connection to a responder that sent `private_data`. `local` registers the sinks
    /// of its RDMA Reads.
    ///
    /// # Errors
    /// The responder uses another design, or serves no RDMA Reads that the design requires.
    #[cfg_attr(not(feature = "research"), allow(unused_variables))]
    pub(crate) fn requester(
        self,
        private_data: &[u8],
        ord: u16,
        local: Local,
    ) -> Result<Box<dyn RequesterDesign>, ConnectionError> {
        let mismatch = |what: &str| Err(ConnectionError::Incompatible(what.into()));
        match (self, states_read_read(private_data)) {
            (Self::ReadWrite, false) => Ok(Box::new(read_write::ReadWrite)),
            (Self::ReadWrite, true) => mismatch(
                "it uses the Read-Read design, with which the server exposes its memory, and this end uses Read-Write; \
                 start the server without that design or use another one, or, for an experiment, connect with \
                 millrace-lab --design read-read",
            ),
            #[cfg(feature = "research")]
            (Self::ReadRead, true) if ord == 0 => {
                mismatch("it serves no RDMA Reads, which the Read-Read design needs")
            }
            #[cfg(feature = "research")]
            (Self::ReadRead, true) => Ok(Box::new(read_read::Reader::new(local))),
            #[cfg(feature = "research")]
            (Self::ReadRead, false) => mismatch(
                "it does not offer the Read-Read design; use the design read-write, or start the server with \
                 millrace-lab serve --design read-read",
            ),
        }
    }

    /// The responder's part of a connection.
    ///
    /// # Errors
    /// The design does not support the registration strategy.
    #[cfg_attr(not(feature = "research"), allow(unused_variables))]
    pub(crate) fn responder(
        self,
        context: ResponderContext,
    ) -> Result<Box<dyn ResponderDesign>, ConnectionError> {
        Ok(match self {
            Self::ReadWrite => Box::new(read_write::ReadWrite),
            #[cfg(feature = "research")]
            Self::ReadRead => Box::new(read_read::Exposer::new(context)?),
        })
    }
}

/// The chunks of a call for its reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ReplyChunks {
    /// Whether the memory for the reply's payload is a Write chunk.
    pub(crate) write: bool,
    /// Bytes of the Reply chunk.
    pub(crate) reply: Option<usize>,
}

/// The connection that the requester's part of a design serves.
pub(crate) struct RequesterContext {
    pub(crate) arena: Arena,
    pub(crate) registrar: Box<dyn Registrar>,
    pub(crate) spare: SpareMemory,
    /// Credits to request with the next message.
    pub(crate) credits: u32,
    pub(crate) stats: Arc<RequesterStats>,
}

/// A reply with a decoded header, and the memory of its call.
pub(crate) struct ReceivedReply {
    pub(crate) xid: u32,
    pub(crate) lists: Lists,
    /// The message after the header of an RDMA_MSG or RDMA_MSGP; `None` for RDMA_NOMSG.
    pub(crate) inline: Option<View>,
    /// The padding of the message.
    pub(crate) padding: Option<ItemPadding>,
    /// Memory of the call.
    pub(crate) memory: Box<CallMemory>,
}

/// The result of processing a received reply.
pub(crate) enum ReplyOutcome {
    /// The whole message, or the reason why the reply is invalid.
    Message(Result<Message, &'static str>),
    /// RDMA Reads were posted; the completion of the last one returns the message.
    Reading,
}

/// A reply whose RDMA Reads are complete.
pub(crate) struct Pulled {
    pub(crate) xid: u32,
    pub(crate) message: Result<Message, &'static str>,
    /// Stages of the call.
    pub(crate) stages: Stages,
}

/// The requester's part of a design.
pub(crate) trait RequesterDesign: Send {
    /// Whether the design allows this message body.
    fn accepts(&self, body: &Body) -> bool;

    /// Processes a reply: revokes the peer's access to the call's memory, and returns the message.
    ///
    /// # Errors
    /// The connection cannot send any more.
    fn take(
        &mut self,
        reply: ReceivedReply,
        with: &RequesterContext,
        qp: &mut dyn QueuePair,
    ) -> Result<ReplyOutcome, ConnectionError>;

    /// Processes the completion of an RDMA Read.
    ///
    /// # Errors
    /// The connection cannot send any more.
    fn completed(
        &mut self,
        id: WorkId,
        sink: Vec<Buffer>,
        with: &RequesterContext,
        qp: &mut dyn QueuePair,
    ) -> Result<Option<Pulled>, ConnectionError>;

    /// Drops a reply whose call was cancelled or timed out.
    ///
    /// # Errors
    /// The connection cannot send any more.
    fn discard(
        &mut self,
        reply: &Header,
        with: &RequesterContext,
        qp: &mut dyn QueuePair,
    ) -> Result<(), ConnectionError>;

    /// Releases all memory at the end of the connection.
    fn end(&mut self);
}

/// Properties of a call that its reply needs.
pub(crate) struct ReplyTo {
    pub(crate) xid: u32,
    pub(crate) lists: Lists,
    pub(crate) stages: Stages,
    /// Bytes charged to the account for the reply, or for the call while it has no reply.
    pub(crate) charge: usize,
}

/// Limits of a reply.
pub(crate) struct Limits {
    /// Bytes of the largest Send.
    pub(crate) inline: usize,
    /// Bytes of the largest RDMA Write.
    pub(crate) max_transfer: usize,
    /// Maximum number of pieces of one RDMA Write.
    pub(crate) max_pieces: usize,
}

/// A reply to be posted: the RDMA Writes, then a Send of the header and `inline`.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) header: Header,
    pub(crate) writes: SmallVec<[WriteRequest; 2]>,
    pub(crate) inline: Views,
    /// Whether `inline` is a head without payloads.
    pub(crate) only_head: bool,
    /// Whether the reply exposes memory until RDMA_DONE.
    pub(crate) awaits_done: bool,
}

/// The reply fits neither inline nor in the call's chunks. The answer is ERR_CHUNK.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ReplyTooLong;

/// The connection that the responder's part of a design serves.
pub(crate) struct ResponderContext {
    /// The requester's private data.
    pub(crate) theirs: Option<PrivateData>,
    /// The protection domain.
    pub(crate) domain: DomainRef,
    /// The registration strategy.
    pub(crate) registration: Arc<Registration>,
    /// Maximum number of pieces of one region, at least 1.
    pub(crate) region_pieces: usize,
    /// Maximum number of bytes of one segment.
    pub(crate) segment: usize,
    /// Maximum number of bytes that one reply exposes.
    pub(crate) max_reply: u64,
    pub(crate) arena: Arena,
    pub(crate) rt: RuntimeRef,
    #[cfg(feature = "research")]
    pub(crate) limits: ExposureLimits,
    pub(crate) stats: Arc<ResponderStats>,
}

/// A reply that the requester acknowledged.
pub(crate) struct Acknowledged {
    /// Stages of the call.
    pub(crate) stages: Stages,
    /// Bytes that were charged to the account for the reply.
    pub(crate) charge: usize,
}

/// The responder's part of a design.
pub(crate) trait ResponderDesign: Send {
    /// Checks that a message is a call of this design.
    ///
    /// # Errors
    /// The reason; the answer is ERR_CHUNK.
    fn admit(&self, body: &Body) -> Result<(), &'static str>;

    /// Maximum number of calls in progress whose replies, each with up to `max_reply` bytes in chunks, are
    /// within the limits.
    fn max_credits(&self, max_reply: u64) -> u32;

    /// Plans the reply `message` to the call `to`. `zeros` supplies XDR padding.
    ///
    /// # Errors
    /// The reply fits neither inline nor in the call's chunks.
    fn plan(
        &mut self,
        to: &ReplyTo,
        credits: u32,
        message: Message,
        limits: &Limits,
        zeros: &View,
    ) -> Result<Plan, ReplyTooLong>;

    /// Number of replies that await RDMA_DONE. The responder posts one additional receive for each.
    fn unacknowledged(&self) -> usize;

    /// Processes an RDMA_DONE: revokes the exposed memory of the reply with this XID. `None` if no such reply
    /// awaits it.
    fn done(&mut self, xid: u32) -> Option<Acknowledged>;

    /// Ready if the time limit of an unacknowledged reply has expired.
    fn poll_overdue(&mut self, cx: &mut Context<'_>) -> Poll<ConnectionError>;
}
