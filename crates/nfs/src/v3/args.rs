//! Arguments of the procedures (RFC 1813 section 3.3).

use millrace_xdr::{Decode, Decoder, Encode, Encoder, Views, XdrError};

use super::{
    CreateMode, DirOpArgs, FileHandle, FileType, MAX_DATA, MAX_PATH, NfsTime, Sattr, SpecData, StableHow,
    Verifier,
};
use crate::schema::xdr_struct;

xdr_struct! {
    /// GETATTR.
    pub struct GetattrArgs {
        /// The object.
        pub object: FileHandle,
    }
}

xdr_struct! {
    /// SETATTR.
    pub struct SetattrArgs {
        /// The object.
        pub object: FileHandle,
        /// What to set.
        pub attributes: Sattr,
        /// Only if the object's ctime is this.
        pub guard: Option<NfsTime>,
    }
}

xdr_struct! {
    /// LOOKUP.
    pub struct LookupArgs<'a> {
        /// What to look up.
        pub what: DirOpArgs<'a>,
    }
}

xdr_struct! {
    /// ACCESS.
    pub struct AccessArgs {
        /// The object.
        pub object: FileHandle,
        /// The rights asked for: bits of [`access`](super::access).
        pub access: u32,
    }
}

xdr_struct! {
    /// READLINK.
    pub struct ReadlinkArgs {
        /// The symbolic link.
        pub symlink: FileHandle,
    }
}

xdr_struct! {
    /// READ.
    pub struct ReadArgs {
        /// The file.
        pub file: FileHandle,
        /// The first byte.
        pub offset: u64,
        /// Bytes wanted.
        pub count: u32,
    }
}

/// WRITE.
#[derive(Debug, Clone)]
pub struct WriteArgs {
    /// The file.
    pub file: FileHandle,
    /// Where the first byte goes.
    pub offset: u64,
    /// Bytes to write. Decoding does not compare it with the data's length; a server answers a difference with
    /// [`Status::Inval`](super::Status::Inval).
    pub count: u32,
    /// How stable the data shall be.
    pub stable: StableHow,
    /// The data, by reference.
    pub data: Views,
}

impl Encode for WriteArgs {
    fn encode(&self, e: &mut Encoder) {
        e.put(&self.file);
        e.put_u64(self.offset);
        e.put_u32(self.count);
        e.put(&self.stable);
        e.put_payload(self.data.clone());
    }
}

impl<'a> Decode<'a> for WriteArgs {
    fn decode(d: &mut Decoder<'a>) -> Result<Self, XdrError> {
        Ok(Self {
            file: d.get()?,
            offset: d.get()?,
            count: d.get()?,
            stable: d.get()?,
            data: d.payload(MAX_DATA)?,
        })
    }
}

/// `createhow3`: how CREATE treats a file that exists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CreateHow {
    /// Use it (and set its size if that is given).
    Unchecked(Sattr),
    /// Fail.
    Guarded(Sattr),
    /// Fail unless this verifier made it.
    Exclusive(Verifier),
}

impl CreateHow {
    /// Its mode.
    pub const fn mode(&self) -> CreateMode {
        match self {
            Self::Unchecked(_) => CreateMode::Unchecked,
            Self::Guarded(_) => CreateMode::Guarded,
            Self::Exclusive(_) => CreateMode::Exclusive,
        }
    }
}

impl Encode for CreateHow {
    fn encode(&self, e: &mut Encoder) {
        e.put(&self.mode());
        match self {
            Self::Unchecked(a) | Self::Guarded(a) => e.put(a),
            Self::Exclusive(v) => e.put(v),
        }
    }
}

impl<'a> Decode<'a> for CreateHow {
    fn decode(d: &mut Decoder<'a>) -> Result<Self, XdrError> {
        Ok(match d.get()? {
            CreateMode::Unchecked => Self::Unchecked(d.get()?),
            CreateMode::Guarded => Self::Guarded(d.get()?),
            CreateMode::Exclusive => Self::Exclusive(d.get()?),
        })
    }
}

xdr_struct! {
    /// CREATE.
    pub struct CreateArgs<'a> {
        /// Where.
        pub place: DirOpArgs<'a>,
        /// How.
        pub how: CreateHow,
    }
}

xdr_struct! {
    /// MKDIR.
    pub struct MkdirArgs<'a> {
        /// Where.
        pub place: DirOpArgs<'a>,
        /// Attributes of the new directory.
        pub attributes: Sattr,
    }
}

/// SYMLINK.
#[derive(Debug, Clone)]
pub struct SymlinkArgs<'a> {
    /// Where.
    pub place: DirOpArgs<'a>,
    /// Attributes of the new link.
    pub attributes: Sattr,
    /// Its text, by reference; at most [`MAX_PATH`] bytes.
    pub target: Views,
}

impl Encode for SymlinkArgs<'_> {
    fn encode(&self, e: &mut Encoder) {
        e.put(&self.place);
        e.put(&self.attributes);
        e.put_payload(self.target.clone());
    }
}

impl<'a> Decode<'a> for SymlinkArgs<'a> {
    fn decode(d: &mut Decoder<'a>) -> Result<Self, XdrError> {
        Ok(Self { place: d.get()?, attributes: d.get()?, target: d.payload(MAX_PATH)? })
    }
}

/// `mknoddata3`: what MKNOD makes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MknodWhat {
    /// A character device.
    Character(Sattr, SpecData),
    /// A block device.
    Block(Sattr, SpecData),
    /// A socket.
    Socket(Sattr),
    /// A named pipe.
    Fifo(Sattr),
    /// A type that MKNOD does not make (regular file, directory, symbolic link): a server answers
    /// [`Status::BadType`](super::Status::BadType).
    Other(FileType),
}

impl MknodWhat {
    /// Its type.
    pub const fn file_type(&self) -> FileType {
        match self {
            Self::Character(..) => FileType::Character,
            Self::Block(..) => FileType::Block,
            Self::Socket(_) => FileType::Socket,
            Self::Fifo(_) => FileType::Fifo,
            Self::Other(t) => *t,
        }
    }
}

impl Encode for MknodWhat {
    fn encode(&self, e: &mut Encoder) {
        e.put(&self.file_type());
        match self {
            Self::Character(a, s) | Self::Block(a, s) => {
                e.put(a);
                e.put(s);
            }
            Self::Socket(a) | Self::Fifo(a) => e.put(a),
            Self::Other(_) => {}
        }
    }
}

impl<'a> Decode<'a> for MknodWhat {
    fn decode(d: &mut Decoder<'a>) -> Result<Self, XdrError> {
        Ok(match d.get()? {
            FileType::Character => Self::Character(d.get()?, d.get()?),
            FileType::Block => Self::Block(d.get()?, d.get()?),
            FileType::Socket => Self::Socket(d.get()?),
            FileType::Fifo => Self::Fifo(d.get()?),
            t => Self::Other(t),
        })
    }
}

xdr_struct! {
    /// MKNOD.
    pub struct MknodArgs<'a> {
        /// Where.
        pub place: DirOpArgs<'a>,
        /// What.
        pub what: MknodWhat,
    }
}

xdr_struct! {
    /// REMOVE.
    pub struct RemoveArgs<'a> {
        /// What to remove.
        pub object: DirOpArgs<'a>,
    }
}

xdr_struct! {
    /// RMDIR.
    pub struct RmdirArgs<'a> {
        /// What to remove.
        pub object: DirOpArgs<'a>,
    }
}

xdr_struct! {
    /// RENAME.
    pub struct RenameArgs<'a> {
        /// The present name.
        pub from: DirOpArgs<'a>,
        /// The new name.
        pub to: DirOpArgs<'a>,
    }
}

xdr_struct! {
    /// LINK.
    pub struct LinkArgs<'a> {
        /// The file.
        pub file: FileHandle,
        /// Its further name.
        pub link: DirOpArgs<'a>,
    }
}

xdr_struct! {
    /// READDIR.
    pub struct ReaddirArgs {
        /// The directory.
        pub dir: FileHandle,
        /// Zero, or the cookie of the last entry that was used.
        pub cookie: u64,
        /// Zero, or the verifier that came with that cookie.
        pub verifier: Verifier,
        /// The most bytes of the result, from the attributes to the end-of-directory mark.
        pub count: u32,
    }
}

xdr_struct! {
    /// READDIRPLUS.
    pub struct ReaddirplusArgs {
        /// The directory.
        pub dir: FileHandle,
        /// Zero, or the cookie of the last entry that was used.
        pub cookie: u64,
        /// Zero, or the verifier that came with that cookie.
        pub verifier: Verifier,
        /// A hint: the most bytes of names, file numbers and cookies.
        pub dircount: u32,
        /// The most bytes of the result, from the attributes to the end-of-directory mark.
        pub maxcount: u32,
    }
}

xdr_struct! {
    /// FSSTAT.
    pub struct FsstatArgs {
        /// Any object of the file system.
        pub root: FileHandle,
    }
}

xdr_struct! {
    /// FSINFO.
    pub struct FsinfoArgs {
        /// Any object of the file system.
        pub root: FileHandle,
    }
}

xdr_struct! {
    /// PATHCONF.
    pub struct PathconfArgs {
        /// The object.
        pub object: FileHandle,
    }
}

xdr_struct! {
    /// COMMIT.
    pub struct CommitArgs {
        /// The file.
        pub file: FileHandle,
        /// The first byte.
        pub offset: u64,
        /// Bytes; zero: to the end of the file.
        pub count: u32,
    }
}
