//! The protocol layer: every procedure as a method on file handles, whole-range transfers with many calls in flight, and
//! UNSTABLE data retained until COMMIT.
//!
//! With NFSv3 a procedure is a call (RFC 1813 section 3.3); with NFSv4.1 or 4.2 ([`crate::Version`]) it is a COMPOUND in a
//! session. Arguments, results and statuses are those of [`crate::ops`] in any case. With NFSv4, results have no attributes
//! before a change, and the change attribute instead if it was requested ([`crate::Options::attributes_before`]).
//!
//! [`crate::Client`] and [`crate::File`] are built on it; [`crate::Client::by_handle`] gives access to it. Use it
//! for transfers without a copy by file handle, for attributes before and after a call (`wcc_data`), or to
//! walk a directory page by page. Transfers use memory of the client's arena ([`Client::read_into`],
//! [`Client::write_from`]).
//!
//! ```
//! # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/doc/server.rs"));
//! # fn main() { run(|url| async move {
//! use millrace_client::{Options, TokioRuntime, Url, handles::Client};
//!
//! // "nfs://server.example/export?proto=rdma&nconnect=2"
//! let url: Url = url.parse()?;
//! let client = Client::connect(TokioRuntime::current(), &url, Options::default()).await?;
//! # millrace_client::Client::from(client.clone()).write("data.bin", [1; 1000]).await?;
//! let file = client.open("data.bin").await?;
//! let mut sum = 0_u64;
//! file.read_stream(0, u64::MAX, 8, |_offset, data| {
//!     sum += data.iter().flat_map(|v| v.iter()).map(|b| u64::from(*b)).sum::<u64>();
//! })
//! .await?;
//! # assert_eq!(sum, 1000);
//! # Ok(()) }) }
//! ```

pub mod blocking;
mod client;
mod copies;
mod delegations;
mod directory;
mod exclusive;
mod file;
mod locks;
mod mounting;
mod operations;
pub(crate) mod resolve;
mod retained;
mod sparse;
mod transfer;
mod whole;
mod writeback;
mod xattrs;

pub use client::{Client, Object};
pub use delegations::Delegated;
pub use file::{File, Flow};
pub use sparse::SeekTarget;
pub use transfer::{ReadInto, Written};
