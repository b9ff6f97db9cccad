//! An iSCSI target (RFC 7143) over TCP and RDMA: initiators log in to the SCSI disks of a [`TargetTable`].
//!
//! [`tcp::TcpTarget::serve`] serves a connection on an asynchronous byte stream, [`iser::IserTarget::serve`] one on a
//! queue pair (RFC 7145), each in one task. Data of writes is received in its final buffers and passed to the file
//! system without a copy, except for immediate data of iSER; the buffers end at multiples of 64 KiB of the medium, so
//! that a file in memory takes whole ones as its blocks. Data of reads is sent from the file system's memory.

mod config;
mod end;
mod full_feature;
pub mod iser;
mod linger;
mod login;
mod reserve;
mod service;
mod stats;
mod table;
mod task;
pub mod tcp;
mod timers;

pub use config::{ConnectionLimits, TableLimits, TargetConfig};
pub use stats::TargetStats;
pub use table::{DuplicateTarget, TargetTable};
pub use task::MAX_COMMAND_MEMORY;
