//! An NFS client in user space: over RDMA (in hardware or in software) and over TCP.
//!
//! [`nfs3::Client::connect`] mounts an export and gives a client, cheap to clone, for any number of tasks. [`nfs3`] has
//! every NFSv3 procedure as a method on file handles, and files that move whole ranges with many calls in flight.
//!
//! A lost connection is made again and open calls are sent again, within [`RetryPolicy`]; [`retransmission`] says what
//! that means for operations that cannot be repeated. No call waits for ever.

pub mod blocking;
mod connect;
mod error;
mod mount;
pub mod nfs3;
mod options;
mod pool;
pub mod retransmission;
mod stats;
mod url;

#[cfg(test)]
mod tests;

pub use connect::{Connection, Connector};
pub use error::Error;
pub use millrace_buffer::{Arena, Buffer, View, Views};
pub use millrace_rpcrdma::{
    Design, Padding,
    registration::{Invalidation, Strategy},
};
pub use millrace_runtime::tokio_rt::TokioRuntime;
pub use mount::exports;
pub use options::{Identity, Options, Proto, RetryPolicy};
pub use stats::{ConnectionStats, Stats};
pub use url::Url;

/// The programs in the guide.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/guide/library.md")]
mod guide {}
