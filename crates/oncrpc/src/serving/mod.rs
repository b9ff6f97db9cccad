//! The server's end of a connection, as far as it is the same on every transport.
//!
//! - [`Budget`] and [`Account`]: how much memory and how many connections the clients of a server hold.
//! - [`Progress`]: peers that send or take bytes too slowly.
//! - [`Turn`]: how much a connection does before the others of its shard.

mod account;
mod client;
mod ledger;
mod progress;
mod turn;

pub use account::{Account, Budget, BudgetConfig, BudgetStats, Full};
pub use client::ClientAddr;
pub use progress::{MIN_RATE, Progress};
pub use turn::Turn;
