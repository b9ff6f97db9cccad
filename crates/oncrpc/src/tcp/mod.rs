//! ONC RPC over TCP with record marking (RFC 5531 section 11).
//!
//! `TcpTransport` is the client's end of a connection and `TcpServer` the server's; the crates `client` and
//! `server` use them, with or without TLS ([`start_tls`], [`TcpServerConfig::tls`]). [`record`] encodes and decodes records without I/O, into buffers of the arena.

mod channel;
mod client;
pub mod record;
mod server;
mod starttls;

pub use client::{TcpClientConfig, TcpTransport};
pub use server::{TcpServer, TcpServerConfig, TcpStats};
pub use starttls::{StartTlsError, start_tls};
