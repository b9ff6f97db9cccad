//! The procedures of NFSv3 as COMPOUNDs of NFSv4.
//!
//! READ and WRITE have the stateid of the open of a locked file, so that the server rejects them after it has revoked the
//! locks, and otherwise the anonymous stateid, because the protocol layer has file handles and no opens.

mod attributes;
mod changes;
mod copy;
mod data;
mod delegate;
mod directory;
mod exclusive;
mod file_system;
mod names;
mod root;
mod setattr;
mod sparse;
mod status;
mod walk;
mod whole;
mod xattrs;

pub(super) use changes::GetChangeProof;
pub(super) use copy::Copy;
pub(super) use delegate::{Delegate, Delegates};
pub(super) use file_system::{GetServerInfo, ServerInfo};
pub(super) use root::{Root, Step};
pub(super) use sparse::{ChangeSpace, Seek};
pub(super) use status::v3_status;
pub(super) use walk::{MAX_COMPONENTS, Walk, Walked};
pub(super) use whole::{Whole, procedure_of};
pub(super) use xattrs::{ChangeXattr, Getxattr, Listxattrs};
