//! The designs: which end starts the transfer of results, and what that asks of both ends.
//!
//! [`Design`] is chosen once per connection. What both ends do in their design's way is behind two interfaces,
//! [`Requesting`] and [`Responding`]; no other module asks which design it serves.

pub(crate) mod read_write;

use buffer::View;
use rdma::WriteRequest;
use smallvec::SmallVec;
use xdr::{Message, Views};

use crate::{
    header::{Header, Lists},
    private_data::Thresholds,
    requester::{CallMemory, Marshaller},
    responder::ReplyTo,
};

/// Which end moves a call's results.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Design {
    /// The Read-Write design (RFC 8166): the responder writes results into memory that the requester exposes, and
    /// exposes none itself.
    #[default]
    ReadWrite,
}

impl Design {
    /// What a call brings for its results.
    pub(crate) fn expect(self, spec: &oncrpc::ReplySpec, thresholds: &Thresholds) -> Expected {
        match self {
            Self::ReadWrite => read_write::expect(spec, thresholds),
        }
    }

    /// The requester's part.
    pub(crate) fn requesting(self) -> Box<dyn Requesting> {
        match self {
            Self::ReadWrite => Box::new(read_write::ReadWrite),
        }
    }

    /// The responder's part.
    pub(crate) fn responding(self) -> Box<dyn Responding> {
        match self {
            Self::ReadWrite => Box::new(read_write::ReadWrite),
        }
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
pub(crate) struct Arrived<'a> {
    pub(crate) lists: &'a Lists,
    /// What follows the header of an RDMA_MSG; `None` for RDMA_NOMSG.
    pub(crate) inline: Option<View>,
    /// The memory of its call.
    pub(crate) memory: CallMemory,
}

/// What the requester does in its design's way.
pub(crate) trait Requesting: Send {
    /// Takes a reply apart: makes the peer unable to reach the call's memory, and gives the message.
    ///
    /// # Errors
    /// What is wrong with the reply.
    fn take(&mut self, reply: Arrived<'_>, with: &Marshaller) -> Result<Message, &'static str>;
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
}

/// The reply cannot travel: ERR_CHUNK.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct DoesNotFit;

/// What the responder does in its design's way.
pub(crate) trait Responding: Send {
    /// Plans the reply `message` to the call `to`. `zeros` supplies padding.
    ///
    /// # Errors
    /// When it fits neither inline nor what the call brought.
    fn plan(
        &mut self,
        to: &ReplyTo,
        credits: u32,
        message: Message,
        limits: &Limits,
        zeros: &View,
    ) -> Result<Plan, DoesNotFit>;
}
