//! Admission of peers to a server: what of its memory, connections and time each of them has. It has no protocol: RPC over
//! TCP and RDMA, iSCSI and NBD charge to the same [`Budget`].
//!
//! - [`Budget`] and [`Account`]: limits of memory and connections of the clients.
//! - [`ClientQuota`]: limits of what outlives calls and connections.
//! - [`RateMonitor`]: detection of peers that transfer data too slowly.
//! - [`Turn`]: fair sharing of a shard among its connections.
//! - [`Batch`]: replies that are sent while further calls are executed.

mod account;
mod client;
mod kept;
mod ledger;
mod progress;
mod quota;
mod turn;

pub use account::{Account, AdmissionError, Budget, BudgetConfig, BudgetStats};
pub use client::ClientAddr;
pub use progress::{MIN_RATE, RateMonitor};
pub use quota::ClientQuota;
pub use turn::{Batch, Turn};
