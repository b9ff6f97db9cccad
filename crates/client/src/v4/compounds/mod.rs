//! The COMPOUNDs of the procedures, and of what only NFSv4 has.
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
mod walk;
mod whole;
mod xattrs;

pub(crate) use changes::GetChangeProof;
pub(crate) use copy::Copy;
pub(crate) use delegate::{Delegate, Delegates};
pub(crate) use file_system::{GetServerInfo, ServerInfo};
pub(crate) use root::{Accepted, Root, Step};
pub(crate) use sparse::{ChangeSpace, Seek};
pub(crate) use walk::{MAX_COMPONENTS, Walk, Walked};
pub(crate) use whole::{Whole, procedure_of};
pub(crate) use xattrs::{ChangeXattr, Getxattr, Listxattrs};
