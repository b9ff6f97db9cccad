//! NFS version 4, minor versions 1 and 2 (RFC 8881, RFC 7862, RFC 7863, RFC 8276).
//!
//! A COMPOUND is decoded and encoded operation by operation: [`CompoundArgs`], then for each operation its
//! number ([`Operation`]) and its arguments; [`CompoundEncoder`] encodes the frame of the results. Each
//! operation has a type for its arguments and, if the result has data, one for its success.

mod attribute;
mod attributes;
mod bitmap;
mod callback;
mod compound;
mod copy;
mod delegation;
mod io;
mod lock;
mod modify;
mod namespace;
mod opaque;
mod open;
mod operation;
mod readdir;
mod security;
mod session;
mod sizes;
mod sparse;
mod status;
mod types;
mod valid_errors;
mod values;
mod xattr;

#[cfg(test)]
mod tests;

pub use attribute::Attribute;
pub use attributes::{Attributes, Fattr};
pub use bitmap::{Bitmap, MAX_BITMAP_WORDS};
pub use callback::*;
pub use compound::*;
pub use copy::*;
pub use delegation::*;
pub use io::*;
pub use lock::*;
pub use modify::*;
pub use namespace::*;
pub use opaque::{FileHandle, List, Name, Opaque};
pub use open::*;
pub use operation::Operation;
pub use readdir::{Entry, ReaddirArgs, ReaddirEncoder, ReaddirOk, TooSmall};
pub use security::*;
pub use session::*;
pub use sizes::*;
pub use sparse::*;
pub use status::Status;
pub use types::*;
pub use values::*;
pub use xattr::*;

/// RPC program number.
pub const PROGRAM: u32 = 100_003;
/// Program version.
pub const VERSION: u32 = 4;
/// Maximum length of a file handle in bytes (NFS4_FHSIZE).
pub const MAX_HANDLE: usize = 128;
/// Maximum length of a decoded name in bytes. The protocol has no limit; a file system's limit is smaller and
/// reported as [`Status::NameTooLong`].
pub const MAX_NAME: usize = 4096;
/// Maximum length of a decoded symbolic link target in bytes.
pub const MAX_PATH: usize = 4096;
/// Maximum length of decoded READ or WRITE data in bytes. It is not allocated in advance: the data must be
/// present.
pub const MAX_DATA: usize = 1 << 30;

/// `verifier4`: of a client incarnation, a directory scan, a server instance or an exclusive create.
pub type Verifier = [u8; 8];
