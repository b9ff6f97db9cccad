//! NFS version 4, minor versions 1 and 2 (RFC 8881, RFC 7862, RFC 7863, RFC 8276).

mod operation;
mod status;
mod types;

pub use operation::Operation;
pub use status::Status;
pub use types::*;

/// RPC program number.
pub const PROGRAM: u32 = 100_003;
/// Program version.
pub const VERSION: u32 = 4;
/// Maximum length of a file handle in bytes (NFS4_FHSIZE).
pub const MAX_HANDLE: usize = 128;

/// `verifier4`: of a client incarnation, a directory scan, a server instance or an exclusive create.
pub type Verifier = [u8; 8];
