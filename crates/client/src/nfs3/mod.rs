//! The protocol layer: every NFSv3 procedure as a method on file handles (RFC 1813 section 3.3), whole-range
//! transfers with many calls in flight, and UNSTABLE data retained until COMMIT.
//!
//! With NFSv4.1 or 4.2 ([`crate::Version`]) each procedure is a COMPOUND in a session; arguments, results and the
//! statuses of errors are those of NFSv3. Results then have no attributes before a change, and the
//! change attribute instead if it was requested ([`crate::Options::attributes_before`]).
//!
//! [`crate::Client`] and [`crate::File`] are built on it; [`crate::Client::nfs3`] gives access to it. Use it
//! for transfers without a copy by file handle, for attributes before and after a call (`wcc_data`), or to
//! walk a directory page by page. Transfers use memory of the client's arena ([`Client::read_into`],
//! [`Client::write_from`]).
//!
//! ```
//! # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/doc/server.rs"));
//! # fn main() { run(|url| async move {
//! use millrace_client::{Options, TokioRuntime, Url, nfs3::Client};
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
mod call;
mod calling;
mod client;
mod compounds;
mod copies;
mod delegations;
mod directory;
mod entries;
mod exclusive;
mod file;
mod locks;
mod mounting;
mod operations;
mod place;
pub(crate) mod resolve;
mod retained;
mod sparse;
mod transfer;
mod whole;
mod writeback;
mod xattrs;

pub use call::SpaceChange;
pub use client::{Client, Object};
pub use delegations::Delegated;
pub use entries::{DirEntry, DirPage};
pub use file::{File, Flow};
pub use sparse::SeekTarget;
pub use transfer::{ReadInto, Written};
