//! Types used by several procedures (RFC 1813 sections 2.5 and 2.6).

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
    /// `stable_how`: requested or achieved stability of written data.
    pub enum StableHow {
        /// May be lost until COMMIT.
        Unstable = 0,
        /// The data, and the metadata needed to read it, are stable.
        DataSync = 1,
        /// Data and metadata are stable.
        FileSync = 2,
    }
}

xdr_enum! {
    /// `createmode3`.
    pub enum CreateMode {
        /// Use an existing file.
        Unchecked = 0,
        /// Fail if the file exists.
        Guarded = 1,
        /// Fail if the file exists, unless it was created with the same verifier.
        Exclusive = 2,
    }
}

/// Time since the Unix epoch. `nfstime3` has 32 bits for the seconds, 1970 to 2106: encoding replaces other times, which
/// NFSv4 has, by the nearest one, as Linux does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct NfsTime {
    /// Seconds.
    pub seconds: i64,
    /// Nanoseconds, valid below 1,000,000,000 (not checked by decoding).
    pub nanoseconds: u32,
}

impl NfsTime {
    /// The words of `nfstime3`.
    fn words(self) -> [u32; 2] {
        match u32::try_from(self.seconds) {
            Ok(seconds) => [seconds, self.nanoseconds],
            Err(_) if self.seconds < 0 => [0, 0],
            Err(_) => [u32::MAX, 0],
        }
    }
}

impl Encode for NfsTime {
    fn encode(&self, e: &mut Encoder) {
        e.put_words(self.words());
    }
}

impl<'a> Decode<'a> for NfsTime {
    fn decode(d: &mut Decoder<'a>) -> Result<Self, XdrError> {
        Ok(Self { seconds: d.u32()?.into(), nanoseconds: d.u32()? })
    }
}

xdr_struct! {
    /// `specdata3`: a device number.
    #[derive(Default, Hash)]
    pub struct SpecData {
        /// Major number.
        pub major: u32,
        /// Minor number.
        pub minor: u32,
    }
}

/// `fattr3`: attributes, 84 bytes on the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
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
    /// Allocated space in bytes.
    pub used: u64,
    /// Device number of a device.
    pub rdev: SpecData,
    /// File system ID.
    pub fsid: u64,
    /// File ID, unique in its file system.
    pub fileid: u64,
    /// Time of last access.
    pub atime: NfsTime,
    /// Time of last modification of the data.
    pub mtime: NfsTime,
    /// Time of last change of data or attributes.
    pub ctime: NfsTime,
}

/// The words of an unsigned hyper.
fn split(hyper: u64) -> [u32; 2] {
    [(hyper >> 32) as u32, hyper as u32]
}

// Nearly all replies have attributes, and a page of READDIRPLUS has hundreds: their words are converted at once.
impl Encode for Fattr {
    fn encode(&self, e: &mut Encoder) {
        let Self { file_type, mode, nlink, uid, gid, size, used, rdev, fsid, fileid, .. } = *self;
        let Self { atime, mtime, ctime, .. } = *self;
        let [[s1, s0], [u1, u0], [f1, f0], [i1, i0]] = [size, used, fsid, fileid].map(split);
        let [[a1, a0], [m1, m0], [c1, c0]] = [atime, mtime, ctime].map(NfsTime::words);
        let file_type = file_type.number();
        e.put_words([
            file_type, mode, nlink, uid, gid, s1, s0, u1, u0, rdev.major, rdev.minor, f1, f0, i1, i0, a1, a0,
            m1, m0, c1, c0,
        ]);
    }
}

impl<'a> Decode<'a> for Fattr {
    fn decode(d: &mut Decoder<'a>) -> Result<Self, XdrError> {
        let at = d.position();
        let w: [u32; FATTR_BYTES / 4] = d.words()?;
        let hyper = |i: usize| u64::from(w[i]) << 32 | u64::from(w[i + 1]);
        let time = |i: usize| NfsTime { seconds: w[i].into(), nanoseconds: w[i + 1] };
        Ok(Self {
            file_type: FileType::try_from(w[0]).map_err(|value| XdrError::Invalid { at, value })?,
            mode: w[1],
            nlink: w[2],
            uid: w[3],
            gid: w[4],
            size: hyper(5),
            used: hyper(7),
            rdev: SpecData { major: w[9], minor: w[10] },
            fsid: hyper(11),
            fileid: hyper(13),
            atime: time(15),
            mtime: time(17),
            ctime: time(19),
        })
    }
}

/// Encoded size of a [`Fattr`] in bytes.
pub const FATTR_BYTES: usize = 84;

/// `post_op_attr`: attributes after an operation, optional for the server.
pub type PostOpAttr = Option<Fattr>;

/// `post_op_fh3`: file handle of a new object, optional for the server.
pub type PostOpHandle = Option<FileHandle>;

xdr_struct! {
    /// `wcc_attr`: attributes that show whether an object has changed.
    pub struct WccAttr {
        /// Size in bytes.
        pub size: u64,
        /// Time of last modification of the data.
        pub mtime: NfsTime,
        /// Time of last change of data or attributes.
        pub ctime: NfsTime,
    }
}

impl From<&Fattr> for WccAttr {
    fn from(a: &Fattr) -> Self {
        Self { size: a.size, mtime: a.mtime, ctime: a.ctime }
    }
}

xdr_struct! {
    /// `wcc_data`: weak cache consistency data.
    #[derive(Default)]
    pub struct WccData {
        /// Attributes before the operation.
        pub before: Option<WccAttr>,
        /// Attributes after the operation.
        pub after: PostOpAttr,
    }
}

/// How to set a time (`set_atime`, `set_mtime`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SetTime {
    /// Do not change.
    #[default]
    DontChange,
    /// Set to the server's time.
    ServerTime,
    /// Set to this time.
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
    /// `sattr3`: attributes to set; `None` leaves an attribute unchanged.
    #[derive(Default)]
    pub struct Sattr {
        /// Permission bits.
        pub mode: Option<u32>,
        /// Owner.
        pub uid: Option<u32>,
        /// Group.
        pub gid: Option<u32>,
        /// Size in bytes; truncates or extends the file.
        pub size: Option<u64>,
        /// Time of last access.
        pub atime: SetTime,
        /// Time of last modification.
        pub mtime: SetTime,
    }
}

/// `diropargs3`: a directory and a name in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DirOpArgs<'a> {
    /// The directory.
    pub dir: FileHandle,
    /// The name: arbitrary bytes, at most [`MAX_NAME`]; not checked for `/`, NUL or emptiness.
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

/// Access rights of ACCESS (RFC 1813 section 3.3.4).
pub mod access {
    /// Read a file, or list a directory.
    pub const READ: u32 = 0x01;
    /// Look up names in a directory.
    pub const LOOKUP: u32 = 0x02;
    /// Modify data, or directory entries.
    pub const MODIFY: u32 = 0x04;
    /// Append data, or add directory entries.
    pub const EXTEND: u32 = 0x08;
    /// Delete directory entries.
    pub const DELETE: u32 = 0x10;
    /// Execute a file.
    pub const EXECUTE: u32 = 0x20;
    /// All access rights.
    pub const ALL: u32 = 0x3f;
}

/// `properties` of FSINFO (RFC 1813 section 3.3.19).
pub mod properties {
    /// Hard links are supported.
    pub const LINK: u32 = 0x01;
    /// Symbolic links are supported.
    pub const SYMLINK: u32 = 0x02;
    /// PATHCONF is the same for all files.
    pub const HOMOGENEOUS: u32 = 0x08;
    /// SETATTR can set times.
    pub const CAN_SET_TIME: u32 = 0x10;
}
