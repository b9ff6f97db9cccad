//! SCSI disks (SPC-4, SBC-3) on files of any [`FileSystem`](millrace_vfs::FileSystem).
//!
//! A [`Disk`] is a logical unit on a regular file. A [`Target`] has disks at LUNs and executes the commands that a
//! transport receives:
//!
//! 1. [`Target::open_nexus`] when a session begins, [`Target::close_nexus`] when it ends.
//! 2. For each command in order of arrival: [`Target::task`], and [`Target::transfer`] for the number of bytes to
//!    fetch from the initiator.
//! 3. [`Target::execute`] when the data is there, in order of arrival. The result is polled to completion.
//! 4. [`Target::manage`] for task management.
//!
//! Data is passed by reference in both directions. [`initiator`] has the commands and replies for the other role.

mod attention;
mod bytes;
mod cdb;
mod config;
mod disk;
mod failure;
pub mod initiator;
mod lun;
mod medium;
mod nexus;
pub mod reservation;
mod sense;
mod target;

pub use cdb::CDB_LEN;
pub use config::TargetConfig;
pub use disk::{BlockSize, Disk, DiskConfig, DiskUsage, MAX_TRANSFER_BYTES, OpenError, Transfer};
pub use lun::{InvalidLun, Lun};
pub use nexus::Nexus;
pub use reservation::InitiatorPort;
pub use sense::{AdditionalSense, FieldPointer, Sense, SenseKey, Status};
pub use target::{
    Aborted, AddError, MAX_LUNS, Management, NoSuchLun, Request, Response, Target, Task, TaskAttribute,
};
