//! iSER (RFC 7145): the messages of Sends with their headers, and the private data of connection setup.
//!
//! Control-type PDUs are one Send each: the [`Header`], the basic header segment, additional header segments and the
//! data segment, without digests. Data-In, R2T and solicited Data-Out PDUs are replaced by RDMA Writes and RDMA
//! Reads, which the target issues on the buffers that a SCSI Command advertises.

mod header;
mod message;
mod private_data;

pub use header::{Advertised, Header, HeaderError, Hello, HelloReply, RemoteBuffer};
pub use message::{Message, MessageError, PREFIX_BYTES, Pdu, max_message, prefix};
pub use private_data::PrivateData;

/// Length of the header in bytes.
pub const HEADER_BYTES: usize = 28;
/// The version of the protocol (RFC 7145 section 9.3).
pub const VERSION: u8 = 10;
