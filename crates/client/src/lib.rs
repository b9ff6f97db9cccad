//! An NFS client in user space: over RDMA (in hardware or in software) and over TCP.
//!
//! [`Client::connect`] mounts an export and gives a [`Client`], cheap to clone, for any number of tasks. Every NFSv3
//! procedure is an `async` method on file handles; [`Client::resolve`] turns paths into handles; [`File`] moves whole
//! ranges with many calls in flight. Data is read into and written from caller-owned arena memory without a copy
//! ([`Client::read_into`], [`Client::write_from`]). [`blocking`] offers the same without `async`.
//!
//! A lost connection is made again and open calls are sent again, within [`RetryPolicy`]; [`retransmission`] says what
//! that means for operations that cannot be repeated. No call waits for ever.
//!
//! ```no_run
//! # async fn example() -> Result<(), millrace_client::Error> {
//! use millrace_client::{Client, Options, TokioRuntime, Url};
//!
//! let url: Url = "nfs://server.example/export/dir?proto=rdma&nconnect=2".parse()?;
//! let client = Client::connect(TokioRuntime::current(), &url, Options::default()).await?;
//! let file = client.open("dir/data.bin").await?;
//! let mut sum = 0_u64;
//! file.read_stream(0, u64::MAX, 8, |_offset, data| {
//!     sum += data.iter().flat_map(|v| v.iter()).map(|b| u64::from(*b)).sum::<u64>();
//! })
//! .await?;
//! # Ok(())
//! # }
//! ```

pub mod blocking;
mod client;
mod connect;
mod directory;
mod error;
mod file;
mod mount;
mod operations;
mod options;
mod pool;
mod ranges;
mod resolve;
mod retained;
pub mod retransmission;
mod stats;
mod transfer;
mod url;
mod writeback;

#[cfg(test)]
mod tests;

pub use client::{Client, Object};
pub use connect::{Connection, Connector};
pub use directory::{DirEntry, DirPage};
pub use error::Error;
pub use file::{File, Flow};
pub use millrace_buffer::{Arena, Buffer, View, Views};
pub use millrace_rpcrdma::{
    Design, Padding,
    registration::{Invalidation, Strategy},
};
pub use millrace_runtime::tokio_rt::TokioRuntime;
pub use mount::exports;
pub use options::{Identity, Options, Proto, RetryPolicy};
pub use stats::{ConnectionStats, Stats};
pub use transfer::{ReadInto, Written};
pub use url::Url;

/// The programs in the guide.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/guide/library.md")]
mod guide {}
