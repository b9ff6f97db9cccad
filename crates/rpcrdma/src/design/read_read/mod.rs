//! The Read-Read design (Callaghan 2003, the first OpenSolaris transport; RFC 5666): all bulk data moves by RDMA Read.
//!
//! Calls travel as in the Read-Write design, but bring no chunks for their results. The responder exposes long results
//! and long replies in its own memory and names them in the *reply's* Read list; the requester reads them, READ data
//! straight into its caller's buffer, and sends RDMA_DONE, with which the responder takes its memory back.
//!
//! **What it costs in safety.** For as long as a reply is not acknowledged, the responder's memory can be read by
//! whoever holds or guesses its tag on that connection; and a requester that sends no RDMA_DONE holds the memory. The
//! responder bounds both: so many regions and bytes, for so long. (The iWARP provider's tags are random and belong to
//! one connection, so a tag of another connection cannot be used at all.)
//!
//! RFC 5666 says that an RDMA_DONE consumes a credit. Here a call whose reply has Read chunks keeps its credit until
//! its RDMA_DONE is sent; the responder has posted one receive more for each.

mod exposer;
mod padded;
mod reader;

pub(crate) use self::padded::padded;
pub(super) use self::{exposer::Exposer, reader::Reader};
