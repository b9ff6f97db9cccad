//! The protocol between the Linux kernel and a FUSE file system, versions 7.31 to 7.46 (`include/uapi/linux/fuse.h`),
//! without I/O.
//!
//! Each read of `/dev/fuse` returns one request: [`Header::decode`] reads its header, [`Operation::decode`] the rest.
//! Operations borrow names from the message, so that decoding allocates nothing. The data of a write is not part of them,
//! so that it can be read into another buffer than the fields before it ([`WriteRequest::DATA`]). A [`Reply`] or a
//! [`Notification`] becomes a [`Message`]: a small buffer and borrowed data, for one writev(2).
//!
//! Over io_uring, requests and replies are in the memory of a [`RingEntry`]; its messages are the same.
//!
//! All numbers have the byte order of the host. Operations that millrace answers only with an error are
//! [`Operation::Other`].

mod directory;
mod error;
mod fields;
mod init;
mod message;
mod notification;
mod operation;
mod reply;
mod request;
mod ring;

pub use directory::{DirectoryEntries, DirectoryEntry};
pub use error::DecodeError;
pub use init::{InitFlags, InitReply, InitRequest, MINOR_VERSIONS};
pub use message::Message;
pub use notification::Notification;
pub use operation::{
    CopyFileRange, FileRange, Forgets, LockRequest, Operation, ReadDirectory, ReadRequest, SetAttributes,
    SetTime, WriteRequest,
};
pub use reply::{Attributes, Entry, Lock, OpenFlags, Opened, Reply, Statistics, Time};
pub use request::Header;
pub use ring::{RingCommand, RingEntry, RingRequest};

/// Node ID of the root directory (`FUSE_ROOT_ID`).
pub const ROOT: u64 = 1;
