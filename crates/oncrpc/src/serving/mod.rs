//! The parts of a server's connection that are independent of the transport.
//!
//! - [`Budget`] and [`Account`]: limits of memory and connections of the clients.
//! - [`ClientQuota`]: limits of what outlives calls and connections.
//! - [`ServerConnection`]: calls in progress, and closing of the connection.
//! - [`RateMonitor`]: detection of peers that transfer data too slowly.
//! - [`Turn`]: fair sharing of a shard among its connections.
//! - [`Batch`]: replies that are sent while further calls are executed.

mod account;
mod client;
mod connection;
mod kept;
mod ledger;
mod progress;
mod quota;
mod turn;

pub use account::{Account, AdmissionError, Budget, BudgetConfig, BudgetStats};
pub use client::ClientAddr;
pub(crate) use connection::MEMORY_RETRY;
pub use connection::{Answer, CloseReason, CloseStats, ConnectionConfig, Reservation, ServerConnection};
pub use progress::{MIN_RATE, RateMonitor};
pub use quota::ClientQuota;
pub use turn::{Batch, Turn};

/// Size in bytes of the arena's slot for `len` bytes.
pub fn slot_bytes(len: usize) -> usize {
    len.next_power_of_two().max(512)
}
