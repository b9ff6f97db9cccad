//! ONC RPC over TCP with record marking (RFC 5531 section 11).

mod channel;
mod client;
pub mod record;
mod server;

pub use client::{TcpClientConfig, TcpTransport};
pub use server::{TcpServer, TcpServerConfig, TcpStats};
