//! NFS version 3 and MOUNT version 3 (RFC 1813), and NFS versions 4.1 and 4.2 (RFC 8881, RFC 7862): types,
//! procedure numbers, and XDR encoding and decoding of all arguments and results.
//!
//! Names in decoded arguments borrow from the message. Data of READ and WRITE and the targets of READLINK and
//! SYMLINK are gather lists ([`millrace_xdr::Views`]), encoded as payloads that a transport may place
//! directly (RFC 8267 section 3). LOOKUP, READ and WRITE do not allocate from the heap.

mod bulk;
#[cfg(feature = "call-counts")]
pub mod call_counts;
mod schema;

pub mod mount;
pub mod v3;
pub mod v4;

pub use bulk::Bulk;
