//! An iSCSI target (RFC 7143) on asynchronous byte streams: initiators log in to the SCSI disks of a
//! [`TargetTable`].
//!
//! [`tcp::TcpTarget::serve`] serves one connection in one task. Data of writes is received in its final buffers and
//! passed to the file system without a copy; data of reads is sent from the file system's memory.

mod config;
mod end;
mod full_feature;
mod login;
mod service;
mod stats;
mod table;
mod task;
pub mod tcp;
mod timers;

pub use config::{ConnectionLimits, TableLimits, TargetConfig};
pub use stats::TargetStats;
pub use table::{DuplicateTarget, TargetTable};
