//! A hostile peer: bare iWARP (MPA, DDP, RDMAP) and RPC-over-RDMA over an ordinary TCP socket.
//!
//! It shares no code with the rest of the project, so that a mistake there is not repeated here, and it keeps no rule
//! that it does not want to keep. [`Peer`] speaks the wire, [`attack`] and [`hold`] attack servers with it, and [`Liar`] is a server
//! that lies to its client. ([`victim`] alone uses the project: it is the end that is lied to.) `millrace-lab security` and the tests of this crate use the same attacks.

pub mod attack;
mod calls;
pub mod hold;
mod liar;
pub mod victim;
mod wire;

pub use calls::{Files, Source};
pub use liar::{Liar, Lie};
pub use wire::{Event, Peer};

/// What a peer says of itself at connection set-up (RFC 8797): 4096 bytes inline, no remote invalidation.
pub const READ_WRITE: &[u8] = &[0xf6, 0xab, 0x0e, 0x18, 1, 0, 3, 3];
/// The same for the Read-Read design.
pub const READ_READ: &[u8] = &[b'R', b'd', b'R', b'd', 1, 0, 3, 3];
