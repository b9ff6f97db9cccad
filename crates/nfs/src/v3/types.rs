//! Structures that several procedures share (RFC 1813 sections 2.5 and 2.6).

use millrace_xdr::{Decode, Decoder, Encode, Encoder, XdrError};

use super::{FileHandle, MAX_NAME};
use crate::schema::{xdr_enum, xdr_struct};

xdr_enum! {
    /// `ftype3`.
    pub enum FileType {
        /// A regular file.
        Regular = 1,
        /// A directory.
        Directory = 2,
        /// A block device.
        Block = 3,
        /// A character device.
        Character = 4,
        /// A symbolic link.
        Symlink = 5,
        /// A socket.
        Socket = 6,
        /// A named pipe.
        Fifo = 7,
    }
}

xdr_enum! {
    /// `stable_how`: how stable written data shall be, or is.
    pub enum StableHow {
        /// May be lost in a server crash until COMMIT.
        Unstable = 0,
        /// The data and the metadata needed to read it are stable.
        DataSync = 1,
        /// Data and metadata are stable.
        FileSync = 2,
    }
}

xdr_enum! {
    /// `createmode3`.
    pub enum CreateMode {
        /// Use the file if there is one.
        Unchecked = 0,
        /// Fail if there is one.
        Guarded = 1,
        /// Fail if there is one that was not made by this very call (told by a verifier).
        Exclusive = 2,
    }
}

xdr_struct! {
    /// `nfstime3`: a time since the Unix epoch.
    #[derive(PartialOrd, Ord, Hash, Default)]
    pub struct NfsTime {
        /// Seconds.
        pub seconds: u32,
        /// Nanoseconds, below 1 000 000 000 when valid (decoding does not check it).
        pub nanoseconds: u32,
    }
}

xdr_struct! {
    /// `specdata3`: the numbers of a device.
    #[derive(Default, Hash)]
    pub struct SpecData {
        /// Major number.
        pub major: u32,
        /// Minor number.
        pub minor: u32,
    }
}

xdr_struct! {
    /// `fattr3`: attributes, 84 bytes on the wire.
    pub struct Fattr {
        /// Type.
        pub file_type: FileType,
        /// Permission bits (`mode3`): 0x1ff rwx, 0x200 sticky, 0x400 sgid, 0x800 suid.
        pub mode: u32,
        /// Number of hard links.
        pub nlink: u32,
        /// Owner.
        pub uid: u32,
        /// Group.
        pub gid: u32,
        /// Size in bytes.
        pub size: u64,
        /// Bytes on disk.
        pub used: u64,
        /// Device numbers of a device file.
        pub rdev: SpecData,
        /// File system.
        pub fsid: u64,
        /// Number of the file in its file system.
        pub fileid: u64,
        /// Last access.
        pub atime: NfsTime,
        /// Last change of the data.
        pub mtime: NfsTime,
        /// Last change of anything.
        pub ctime: NfsTime,
    }
}

/// Bytes of a [`Fattr`] on the wire.
pub const FATTR_BYTES: usize = 84;

/// `post_op_attr`: attributes after an operation, if the server gives them.
pub type PostOpAttr = Option<Fattr>;

/// `post_op_fh3`: the handle of a new object, if the server gives it.
pub type PostOpHandle = Option<FileHandle>;

xdr_struct! {
    /// `wcc_attr`: what a client compares with its cache.
    pub struct WccAttr {
        /// Size in bytes.
        pub size: u64,
        /// Last change of the data.
        pub mtime: NfsTime,
        /// Last change of anything.
        pub ctime: NfsTime,
    }
}

impl From<&Fattr> for WccAttr {
    fn from(a: &Fattr) -> Self {
        Self { size: a.size, mtime: a.mtime, ctime: a.ctime }
    }
}

xdr_struct! {
    /// `wcc_data`: weak cache consistency.
    #[derive(Default)]
    pub struct WccData {
        /// Just before the operation.
        pub before: Option<WccAttr>,
        /// Just after it.
        pub after: PostOpAttr,
    }
}

impl WccData {
    /// This operation and the `next` one as one. Without attributes of before where the second did not find what the
    /// first one left: somebody else may have changed the object between them.
    #[must_use]
    pub fn then(self, next: Self) -> Self {
        let left = self.after.as_ref().map(WccAttr::from);
        Self { before: self.before.filter(|_| left.is_some() && left == next.before), after: next.after }
    }
}

/// How a time shall be set (`set_atime`, `set_mtime`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SetTime {
    /// Leave it.
    #[default]
    DontChange,
    /// To the server's time.
    ServerTime,
    /// To this time.
    ClientTime(NfsTime),
}

impl Encode for SetTime {
    fn encode(&self, e: &mut Encoder) {
        match self {
            Self::DontChange => e.put_u32(0),
            Self::ServerTime => e.put_u32(1),
            Self::ClientTime(t) => {
                e.put_u32(2);
                e.put(t);
            }
        }
    }
}

impl<'a> Decode<'a> for SetTime {
    fn decode(d: &mut Decoder<'a>) -> Result<Self, XdrError> {
        match d.u32()? {
            0 => Ok(Self::DontChange),
            1 => Ok(Self::ServerTime),
            2 => d.get().map(Self::ClientTime),
            n => Err(d.invalid(n)),
        }
    }
}

xdr_struct! {
    /// `sattr3`: attributes to set; `None` leaves one as it is.
    #[derive(Default)]
    pub struct Sattr {
        /// Permission bits.
        pub mode: Option<u32>,
        /// Owner.
        pub uid: Option<u32>,
        /// Group.
        pub gid: Option<u32>,
        /// Size in bytes: cuts or extends the file.
        pub size: Option<u64>,
        /// Last access.
        pub atime: SetTime,
        /// Last change of the data.
        pub mtime: SetTime,
    }
}

/// `diropargs3`: a name in a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DirOpArgs<'a> {
    /// The directory.
    pub dir: FileHandle,
    /// The name: any bytes, at most [`MAX_NAME`]; not checked for `/`, NUL or emptiness here.
    pub name: &'a [u8],
}

impl Encode for DirOpArgs<'_> {
    fn encode(&self, e: &mut Encoder) {
        e.put(&self.dir);
        e.put_opaque(self.name);
    }
}

impl<'a> Decode<'a> for DirOpArgs<'a> {
    fn decode(d: &mut Decoder<'a>) -> Result<Self, XdrError> {
        Ok(Self { dir: d.get()?, name: d.opaque(MAX_NAME)? })
    }
}

/// Bits of ACCESS (RFC 1813 section 3.3.4).
pub mod access {
    /// Read data, or a directory.
    pub const READ: u32 = 0x01;
    /// Look names up in a directory.
    pub const LOOKUP: u32 = 0x02;
    /// Rewrite data, or change entries.
    pub const MODIFY: u32 = 0x04;
    /// Append data, or add entries.
    pub const EXTEND: u32 = 0x08;
    /// Delete an entry.
    pub const DELETE: u32 = 0x10;
    /// Execute a file.
    pub const EXECUTE: u32 = 0x20;
    /// All of them.
    pub const ALL: u32 = 0x3f;
}

/// Bits of FSINFO's `properties` (RFC 1813 section 3.3.19).
pub mod properties {
    /// Hard links.
    pub const LINK: u32 = 0x01;
    /// Symbolic links.
    pub const SYMLINK: u32 = 0x02;
    /// PATHCONF is the same for every file.
    pub const HOMOGENEOUS: u32 = 0x08;
    /// SETATTR can set times.
    pub const CAN_SET_TIME: u32 = 0x10;
}
