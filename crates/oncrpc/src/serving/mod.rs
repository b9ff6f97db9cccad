//! The server's end of a connection, as far as it is the same on every transport.
//!
//! - [`Budget`] and [`Account`]: how much memory and how many connections the clients of a server hold.
//! - [`ServerConnection`]: calls in progress, and when to close the connection.
//! - [`Progress`]: peers that send or take bytes too slowly.
//! - [`Turn`]: how much a connection does before the others of its shard.

mod account;
mod client;
mod connection;
mod ledger;
mod progress;
mod turn;

pub use account::{Account, Budget, BudgetConfig, BudgetStats, Full};
pub use client::ClientAddr;
pub(crate) use connection::MEMORY_RETRY;
pub use connection::{Answer, CloseReason, CloseStats, ConnectionConfig, Room, ServerConnection};
pub use progress::{MIN_RATE, Progress};
pub use turn::Turn;

/// Bytes of the arena's slot in which `len` bytes lie.
pub fn slot_bytes(len: usize) -> usize {
    len.next_power_of_two().max(512)
}
