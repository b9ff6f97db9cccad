//! iSCSI initiator in user space: disks of iSCSI targets (RFC 7143) over TCP, and over RDMA with iSER
//! (RFC 7145).
//!
//! [`BlockDevice`] is an asynchronous, cloneable handle to a disk. It reconnects after the loss of the connection and
//! reports if a target that restarted may have lost completed writes. [`discover`] lists the targets of a portal,
//! [`logical_units`] the disks of a target.
//!
//! ```
//! # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/doc/target.rs"));
//! # fn main() { run(|url| async move {
//! use millrace_iscsi_initiator::{BlockDevice, Options, Url};
//!
//! // The URL names the target and the LUN: "iscsi://server.example/iqn.2026-01.example.millrace:memory/0".
//! let url: Url = url.parse()?;
//! let disk = BlockDevice::connect(&url, &Options::default()).await?;
//! println!("{}: {} bytes", disk.identity(), disk.capacity());
//!
//! let first = disk.read_at_into(0, disk.buffer(4096)?).await?;
//! disk.write_at_from(4096, first.freeze().into()).await?;
//! disk.flush().await?;
//! disk.close().await;
//! # Ok(()) }) }
//! ```
//!
//! [`iser`] is the initiator's end of one connection over RDMA, for callers with a queue pair.
//!
//! A target is not trusted: lengths, tags, offsets, text and redirections are checked and bounded, and a violation of the
//! protocol or silence ends the connection.

mod connection;
mod device;
mod discovery;
mod engine;
mod error;
mod exchange;
mod extents;
pub mod iser;
mod login;
mod options;
mod outcome;
mod remedy;
mod unit;
mod url;

pub use device::BlockDevice;
pub use discovery::{discover, logical_units};
pub use error::{Error, Failure};
pub use extents::{BlockState, Extent};
pub use millrace_buffer::{Arena, Buffer, View, Views};
pub use millrace_iscsi::{
    chap::{Credentials, Mutual, Secret},
    discovery::DiscoveredTarget,
    name::{IscsiName, TargetAddress},
    negotiation::DigestPolicy,
};
pub use millrace_scsi::{Lun, Sense};
pub use options::Options;
pub use unit::{Identity, Limits, UnitInfo};
pub use url::{Transport, Url};

/// The program of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}
