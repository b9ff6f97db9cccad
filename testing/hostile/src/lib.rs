//! A hostile peer: bare iWARP (MPA, DDP, RDMAP) and RPC-over-RDMA over an ordinary TCP socket.
//!
//! It shares no code with the rest of the project, so that an error there is not repeated here, and it can
//! violate any rule of the protocols. [`Peer`] implements the wire protocols; [`attack`] and [`hold`] attack
//! servers with it; [`MaliciousServer`] is a server that violates the protocol towards its client. (Only
//! [`victim`] uses the project: it is the client under attack.) `millrace-lab security` and the tests of this
//! crate use the same attacks.

pub mod attack;
mod calls;
pub mod hold;
mod malicious_server;
pub mod victim;
mod wire;

pub use calls::{Files, Source};
pub use malicious_server::{MaliciousServer, Violation};
pub use wire::{Event, Peer};

/// Private data at connection setup (RFC 8797): 4096 bytes inline, no remote invalidation.
pub const READ_WRITE: &[u8] = &[0xf6, 0xab, 0x0e, 0x18, 1, 0, 3, 3];
/// Private data with the same properties for the Read-Read design.
pub const READ_READ: &[u8] = &[b'R', b'd', b'R', b'd', 1, 0, 3, 3];
