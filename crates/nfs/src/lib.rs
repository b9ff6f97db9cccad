//! NFS version 3 and MOUNT version 3 (RFC 1813): types, procedure numbers, and the XDR form of every argument and
//! result, both ways (a server decodes arguments and encodes results, a client the reverse).
//!
//! Names in decoded arguments borrow from the message; data of READ and WRITE and the text of READLINK and SYMLINK are
//! gathered by reference ([`millrace_xdr::Views`]) and travel as payloads that a transport may place directly (RFC 8267
//! section 3). Nothing on the LOOKUP, READ and WRITE paths allocates from the heap.

mod schema;

pub mod mount;
pub mod v3;
