//! Replies to requests.

use std::time::Duration;

use crate::protocol::{InitReply, Message, message::Head};

/// The result of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reply<'a> {
    /// The operation failed with an errno, which is positive.
    Error(i32),
    /// Success without a result.
    Empty,
    /// Data of a read, entries of a directory, the target of a link, or an extended attribute.
    Data(&'a [u8]),
    /// A node that the kernel counts as looked up once more.
    Entry(Entry),
    /// Attributes, and the time for which the kernel may cache them.
    Attributes(Attributes, Duration),
    /// An open file or directory.
    Opened(Opened),
    /// A new file, and the same opened.
    Created(Entry, Opened),
    /// Number of bytes that were written or copied.
    Written(u32),
    /// Number of bytes that were copied, for [`crate::protocol::CopyFileRange::has_long_reply`].
    Copied(u64),
    /// Size of the value of an extended attribute, or of the list of names, in bytes.
    XattrSize(u32),
    /// Statistics of the file system.
    Statistics(Statistics),
    /// A conflicting lock, or the type `F_UNLCK`.
    Lock(Lock),
    /// The offset that a search found, in bytes.
    Offset(u64),
    /// Parameters of the session.
    Init(InitReply),
}

impl<'a> Reply<'a> {
    /// Encodes the reply to the request with the number `unique`.
    pub fn encode(&self, unique: u64) -> Message<'a> {
        let mut head = Head::new();
        let mut data: &[u8] = &[];
        match self {
            Self::Error(errno) => return head.message(unique, errno.saturating_neg(), &[], &[]),
            Self::Empty => {}
            Self::Data(bytes) => data = bytes,
            Self::Entry(entry) => entry.encode(&mut head),
            Self::Attributes(attributes, ttl) => {
                head.u64(ttl.as_secs()).u32(ttl.subsec_nanos()).u32(0);
                attributes.encode(&mut head);
            }
            Self::Opened(opened) => opened.encode(&mut head),
            Self::Created(entry, opened) => {
                entry.encode(&mut head);
                opened.encode(&mut head);
            }
            Self::Written(bytes) | Self::XattrSize(bytes) => drop(head.u32(*bytes).u32(0)),
            Self::Copied(bytes) => drop(head.u64(*bytes)),
            Self::Statistics(statistics) => statistics.encode(&mut head),
            Self::Lock(Lock { start, last, kind }) => drop(head.u64(*start).u64(*last).u32(*kind).u32(0)),
            Self::Offset(offset) => drop(head.u64(*offset)),
            Self::Init(reply) => reply.encode(&mut head),
        }
        head.message(unique, 0, data, &[])
    }
}

/// A time: seconds since 1970, and nanoseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Time {
    /// Seconds since 1970-01-01 00:00:00 UTC.
    pub seconds: i64,
    /// Nanoseconds, less than 1,000,000,000.
    pub nanoseconds: u32,
}

/// Attributes of a node (`fuse_attr`).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Attributes {
    /// Inode number that programs see.
    pub inode: u64,
    /// Size in bytes.
    pub size: u64,
    /// Allocated space, in units of 512 bytes.
    pub blocks: u64,
    /// Time of last access.
    pub atime: Time,
    /// Time of last modification.
    pub mtime: Time,
    /// Time of last change of the attributes.
    pub ctime: Time,
    /// Type and permissions.
    pub mode: u32,
    /// Number of links.
    pub links: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number in the encoding of the kernel (`new_encode_dev`).
    pub device: u32,
    /// Preferred size of reads and writes, in bytes.
    pub block_size: u32,
}

impl Attributes {
    fn encode(&self, out: &mut Head) {
        let times = [self.atime, self.mtime, self.ctime];
        out.u64(self.inode).u64(self.size).u64(self.blocks);
        for time in times {
            out.u64(time.seconds as u64);
        }
        for time in times {
            out.u32(time.nanoseconds);
        }
        out.u32(self.mode).u32(self.links).u32(self.uid).u32(self.gid);
        out.u32(self.device).u32(self.block_size).u32(0);
    }
}

/// A name and the node that it leads to (`fuse_entry_out`).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Entry {
    /// Node ID; 0 if the name does not exist, which the kernel caches then.
    pub node: u64,
    /// Generation: node ID and generation are unique together.
    pub generation: u64,
    /// Time for which the kernel may cache the name.
    pub name_ttl: Duration,
    /// Time for which the kernel may cache the attributes.
    pub attributes_ttl: Duration,
    /// The attributes.
    pub attributes: Attributes,
}

impl Entry {
    pub(crate) fn encode(&self, out: &mut Head) {
        out.u64(self.node).u64(self.generation);
        out.u64(self.name_ttl.as_secs()).u64(self.attributes_ttl.as_secs());
        out.u32(self.name_ttl.subsec_nanos()).u32(self.attributes_ttl.subsec_nanos());
        self.attributes.encode(out);
    }
}

bitflags::bitflags! {
    /// How the kernel treats an open file (`FOPEN_...`).
    #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
    pub struct OpenFlags: u32 {
        /// Reads and writes bypass the page cache.
        const DIRECT_IO = 1 << 0;
        /// Cached pages stay valid.
        const KEEP_CACHE = 1 << 1;
        /// A close sends no [`crate::protocol::Operation::Flush`] (7.35).
        const NOFLUSH = 1 << 5;
        /// Direct writes run in parallel (7.38).
        const PARALLEL_DIRECT_WRITES = 1 << 6;
    }
}

/// An open file (`fuse_open_out`).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Opened {
    /// File handle, which requests on the open file repeat.
    pub handle: u64,
    /// How the kernel treats the file.
    pub flags: OpenFlags,
}

impl Opened {
    fn encode(&self, out: &mut Head) {
        out.u64(self.handle).u32(self.flags.bits()).u32(0);
    }
}

/// Statistics of the file system (`fuse_kstatfs`).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Size of a block in bytes, for the counts of blocks and for reads and writes.
    pub block_size: u32,
    /// Number of blocks.
    pub blocks: u64,
    /// Free blocks.
    pub free_blocks: u64,
    /// Free blocks that users without privileges can allocate.
    pub available_blocks: u64,
    /// Number of files.
    pub files: u64,
    /// Number of files that can be created.
    pub free_files: u64,
    /// Longest name, in bytes.
    pub name_max: u32,
}

impl Statistics {
    fn encode(&self, out: &mut Head) {
        out.u64(self.blocks).u64(self.free_blocks).u64(self.available_blocks);
        out.u64(self.files).u64(self.free_files);
        out.u32(self.block_size).u32(self.name_max).u32(self.block_size).zeros::<28>();
    }
}

/// A lock (`fuse_file_lock`) of an owner that the file system cannot name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lock {
    /// First byte.
    pub start: u64,
    /// Last byte.
    pub last: u64,
    /// Type: `F_RDLCK`, `F_WRLCK` or `F_UNLCK` of fcntl(2).
    pub kind: u32,
}
