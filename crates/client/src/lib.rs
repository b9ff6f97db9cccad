//! An NFS client in user space (NFSv3, 4.1 and 4.2), over RPC-over-RDMA (RFC 8166; in hardware or in software) and over TCP.
//!
//! [`Client`] works by path in the manner of `tokio::fs`; [`File`] implements [`tokio::io::AsyncRead`],
//! [`tokio::io::AsyncWrite`] and [`tokio::io::AsyncSeek`], and moves data into and out of registered memory
//! without a copy. [`blocking`] is the same API without `async`. [`handles`] is the protocol layer: the
//! procedures on file handles, whose vocabulary is [`ops`].
//!
//! ```
//! # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/doc/server.rs"));
//! # fn main() { run(|url| async move {
//! use millrace_client::Client;
//! use tokio::io::{AsyncReadExt, AsyncWriteExt};
//!
//! // The URL names the export: "nfs://server.example/export".
//! let client = Client::connect(&url).await?;
//! let mut file = client.create("greeting").await?;
//! file.write_all(b"hello").await?;
//! file.shutdown().await?; // The data is on stable storage.
//!
//! let mut text = String::new();
//! client.open("greeting").await?.read_to_string(&mut text).await?;
//! assert_eq!(text, "hello");
//! # Ok(()) }) }
//! ```
//!
//! The client re-establishes lost connections and retransmits the calls in flight, within [`RetryPolicy`];
//! [`retransmission`] describes the handling of non-idempotent operations. Every call has a time limit.
//!
//! The crates whose types are in the public API are re-exported: [`buffer`], [`nfs`], [`oncrpc`], [`rdma`],
//! [`rdma_providers`], [`rpcrdma`], [`runtime`]. A program needs no further dependency to name them.

mod atomic_file;
pub mod blocking;
mod builder;
mod client;
mod connect;
mod credential;
mod error;
mod exchange;
mod file;
pub mod handles;
mod kerberos;
mod metadata;
mod mount;
mod open_options;
pub mod ops;
mod options;
mod paths;
mod pool;
mod read_dir;
pub mod retransmission;
mod retry;
mod stats;
mod tls;
mod tree;
mod url;
mod v3;
mod v4;
mod version;

#[cfg(test)]
mod tests;

pub use atomic_file::{AtomicFile, is_temporary_name, temporary_name};
pub use builder::ClientBuilder;
pub use client::Client;
pub use connect::{Connection, Connector, transports};
pub use error::Error;
pub use file::File;
pub use handles::ReadInto;
pub use metadata::{FileTimes, Metadata};
#[doc(no_inline)]
pub use millrace_buffer::{self as buffer, Arena, Buffer, OutOfMemory, View, Views};
#[doc(no_inline)]
pub use millrace_nfs::{self as nfs, v4::SetxattrOption};
#[doc(no_inline)]
pub use millrace_oncrpc::{
    self as oncrpc, Protection, RpcError, SecurityFlavor, Transport, TransportSecurity,
};
#[doc(no_inline)]
pub use millrace_rdma::registration::{Invalidation, RegistrationStats, Strategy};
#[doc(no_inline)]
pub use millrace_rdma::{self as rdma, Provider};
#[doc(no_inline)]
pub use millrace_rdma_providers::{self as rdma_providers, ProviderChoice};
#[doc(no_inline)]
pub use millrace_rpcrdma as rpcrdma;
#[doc(no_inline)]
pub use millrace_runtime::{self as runtime, RuntimeRef, StreamProvider, tokio_rt::TokioRuntime};
pub use millrace_tls::Tls;
pub use mount::exports;
pub use open_options::OpenOptions;
pub use ops::FileType;
pub use options::{Identity, Options, Proto, RetryPolicy};
pub use read_dir::{DirEntry, ReadDir, is_valid_name};
pub use stats::{ConnectionStats, Stats};
pub use tls::TlsFailure;
pub use url::Url;
pub use v4::{Conflict, Delegation, LockKind, Recalled};
pub use version::Version;

/// The program of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}
