//! Notifications, which the file system sends without a request.

use crate::protocol::{Message, message::Head};

/// A notification to the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Notification<'a> {
    /// The attributes of a node, and pages of a file, are no longer valid (`FUSE_NOTIFY_INVAL_INODE`).
    InvalidateNode {
        /// Node ID.
        node: u64,
        /// First byte of the pages; negative for none.
        offset: i64,
        /// Number of bytes; 0 up to the end.
        length: i64,
    },
    /// A name must be looked up before its next use, without detaching mounts below it (`FUSE_NOTIFY_INVAL_ENTRY` with
    /// `FUSE_EXPIRE_ONLY`, 7.38).
    ExpireName {
        /// Node ID of the directory.
        directory: u64,
        /// The name.
        name: &'a [u8],
    },
    /// The kernel puts data into its cache of a file, and extends the file's size to the end of the data
    /// (`FUSE_NOTIFY_STORE`).
    Store {
        /// Node ID.
        node: u64,
        /// Position of the data.
        offset: u64,
        /// The data, not empty: otherwise the size stays.
        data: &'a [u8],
    },
    /// The kernel sends a request, [`crate::protocol::Operation::Other`], with 0 bytes of its cache of a file
    /// (`FUSE_NOTIFY_RETRIEVE`).
    Retrieve {
        /// Number of the request: not 0, and none of the kernel's.
        unique: u64,
        /// Node ID of the file.
        node: u64,
    },
}

impl Notification<'_> {
    /// First minor version with [`Self::ExpireName`].
    pub const EXPIRE_NAME_VERSION: u32 = 38;
}

impl<'a> Notification<'a> {
    /// Encodes the notification.
    pub fn encode(&self) -> Message<'a> {
        const INVAL_INODE: i32 = 2;
        const INVAL_ENTRY: i32 = 3;
        const STORE: i32 = 4;
        const RETRIEVE: i32 = 5;
        const EXPIRE_ONLY: u32 = 1;
        const NO_REQUEST: u64 = 0;
        let mut head = Head::new();
        match *self {
            Self::InvalidateNode { node, offset, length } => {
                head.u64(node).u64(offset as u64).u64(length as u64);
                head.message(NO_REQUEST, INVAL_INODE, &[], &[])
            }
            Self::Store { node, offset, data } => {
                head.u64(node).u64(offset).u32(data.len() as u32).zeros::<4>();
                head.message(NO_REQUEST, STORE, data, &[])
            }
            Self::Retrieve { unique, node } => {
                head.u64(unique).u64(node).zeros::<16>(); // From offset 0, 0 bytes.
                head.message(NO_REQUEST, RETRIEVE, &[], &[])
            }
            Self::ExpireName { directory, name } => {
                head.u64(directory).u32(name.len() as u32).u32(EXPIRE_ONLY);
                head.message(NO_REQUEST, INVAL_ENTRY, name, b"\0")
            }
        }
    }
}
