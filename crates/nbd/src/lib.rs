//! NBD server on Unix sockets (the [NBD protocol](https://github.com/NetworkBlockDevice/nbd/blob/master/doc/proto.md)):
//! gives QEMU, `nbdcopy` and fio access to a [`BlockDevice`](millrace_iscsi_initiator::BlockDevice) without root.
//!
//! ```
//! # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/../iscsi-initiator/tests/doc/target.rs"));
//! # fn main() { run(|url| async move {
//! use millrace_iscsi_initiator::{BlockDevice, Options, Url};
//! use millrace_nbd::Server;
//!
//! // "iscsi://server.example/iqn.2026-01.example.millrace:memory/0"
//! let url: Url = url.parse()?;
//! let disk = BlockDevice::connect(&url, &Options::default()).await?;
//! # let directory = tempfile::tempdir()?;
//! # let socket = directory.path().join("disk.sock");
//! // The path of the socket: "/run/user/1000/disk.sock".
//! let server = Server::bind(socket, disk.clone(), millrace_nbd::Options::default())?;
//! println!("qemu-img info {}", server.uri());
//! // Serves until the future completes.
//! # let stop = async {};
//! server.serve(stop).await?;
//! disk.close().await;
//! # Ok(()) }) }
//! ```
//!
//! # Protocol
//!
//! The handshake is the fixed newstyle, with `NBD_OPT_EXPORT_NAME`, `NBD_OPT_GO`, `NBD_OPT_INFO`, `NBD_OPT_LIST`,
//! `NBD_OPT_STRUCTURED_REPLY`, `NBD_OPT_LIST_META_CONTEXT`, `NBD_OPT_SET_META_CONTEXT` and `NBD_OPT_ABORT`. There is one
//! export, the default one, whose name is empty. The requests are reads, writes, flushes, trims and writes of zeros, with
//! FUA, and block status. Requests are executed concurrently and answered in the order of their completion. Flushes cover
//! all connections, so that clients may use several. There is no TLS.
//!
//! The metadata context is `base:allocation`: a device with thin provisioning reports which blocks have storage (GET LBA
//! STATUS), and whether the others read as zeros. Other devices have storage for all blocks.
//!
//! Offsets and lengths are multiples of the device's block size, which is announced as the minimum block size. A client
//! that ignores it gets `EINVAL` for other requests.
//!
//! # Limits
//!
//! A client is not trusted. The lengths and the number of options are bounded, as are the time of a handshake, the number of
//! connections, and the requests and bytes in progress of each connection. A connection ends when it violates the protocol,
//! and when for a minute no byte arrives of a request that has begun, or no byte of the replies is received.

mod command;
mod connection;
mod device;
mod error;
mod export;
mod failure;
mod handshake;
mod input;
mod options;
mod output;
mod server;
mod socket;
mod wire;

pub use error::{ConnectionError, Error};
pub use export::Export;
pub use options::Options;
pub use server::Server;
