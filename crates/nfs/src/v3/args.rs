//! Arguments of the procedures (RFC 1813 section 3.3).

use millrace_xdr::{Decode, Decoder, Encode, Encoder, Views, XdrError};

use super::{
    CreateMode, DirOpArgs, FileHandle, FileType, MAX_DATA, MAX_PATH, NfsTime, Sattr, SpecData, StableHow,
    Verifier,
};
use crate::schema::xdr_struct;

xdr_struct! {
    /// Arguments of GETATTR.
    pub struct GetattrArgs {
        /// The object.
        pub object: FileHandle,
    }
}

xdr_struct! {
    /// Arguments of SETATTR.
    pub struct SetattrArgs {
        /// The object.
        pub object: FileHandle,
        /// Attributes to set.
        pub attributes: Sattr,
        /// If given, the required ctime of the object.
        pub guard: Option<NfsTime>,
    }
}

xdr_struct! {
    /// Arguments of LOOKUP.
    pub struct LookupArgs<'a> {
        /// Directory and name.
        pub what: DirOpArgs<'a>,
    }
}

xdr_struct! {
    /// Arguments of ACCESS.
    pub struct AccessArgs {
        /// The object.
        pub object: FileHandle,
        /// Requested access rights: bits of [`access`](super::access).
        pub access: u32,
    }
}

xdr_struct! {
    /// Arguments of READLINK.
    pub struct ReadlinkArgs {
        /// The symbolic link.
        pub symlink: FileHandle,
    }
}

xdr_struct! {
    /// Arguments of READ.
    pub struct ReadArgs {
        /// The file.
        pub file: FileHandle,
        /// Offset in bytes.
        pub offset: u64,
        /// Number of bytes.
        pub count: u32,
    }
}

/// Arguments of WRITE.
#[derive(Debug, Clone)]
pub struct WriteArgs {
    /// The file.
    pub file: FileHandle,
    /// Offset in bytes.
    pub offset: u64,
    /// Number of bytes. Decoding does not compare it with the length of the data; a server rejects a mismatch
    /// with [`Status::Inval`](super::Status::Inval).
    pub count: u32,
    /// Required stability.
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

/// `createhow3`: how CREATE handles an existing file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CreateHow {
    /// Use it, and set its size if given.
    Unchecked(Sattr),
    /// Fail.
    Guarded(Sattr),
    /// Fail unless it was created with this verifier.
    Exclusive(Verifier),
}

impl CreateHow {
    /// The discriminant.
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
    /// Arguments of CREATE.
    pub struct CreateArgs<'a> {
        /// Directory and name (`where`).
        pub where_: DirOpArgs<'a>,
        /// How to create the file.
        pub how: CreateHow,
    }
}

xdr_struct! {
    /// Arguments of MKDIR.
    pub struct MkdirArgs<'a> {
        /// Directory and name (`where`).
        pub where_: DirOpArgs<'a>,
        /// Attributes of the new directory.
        pub attributes: Sattr,
    }
}

/// Arguments of SYMLINK.
#[derive(Debug, Clone)]
pub struct SymlinkArgs<'a> {
    /// Directory and name (`where`).
    pub where_: DirOpArgs<'a>,
    /// Attributes of the new link.
    pub attributes: Sattr,
    /// Target of the link, by reference; at most [`MAX_PATH`] bytes.
    pub target: Views,
}

impl Encode for SymlinkArgs<'_> {
    fn encode(&self, e: &mut Encoder) {
        e.put(&self.where_);
        e.put(&self.attributes);
        e.put_payload(self.target.clone());
    }
}

impl<'a> Decode<'a> for SymlinkArgs<'a> {
    fn decode(d: &mut Decoder<'a>) -> Result<Self, XdrError> {
        Ok(Self { where_: d.get()?, attributes: d.get()?, target: d.payload(MAX_PATH)? })
    }
}

/// `mknoddata3`: the object that MKNOD creates.
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
    /// A type that MKNOD does not create (regular file, directory, symbolic link); a server rejects it with
    /// [`Status::BadType`](super::Status::BadType).
    Other(FileType),
}

impl MknodWhat {
    /// Type of the object.
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
    /// Arguments of MKNOD.
    pub struct MknodArgs<'a> {
        /// Directory and name (`where`).
        pub where_: DirOpArgs<'a>,
        /// The object to create.
        pub what: MknodWhat,
    }
}

xdr_struct! {
    /// Arguments of REMOVE.
    pub struct RemoveArgs<'a> {
        /// Directory and name.
        pub object: DirOpArgs<'a>,
    }
}

xdr_struct! {
    /// Arguments of RMDIR.
    pub struct RmdirArgs<'a> {
        /// Directory and name.
        pub object: DirOpArgs<'a>,
    }
}

xdr_struct! {
    /// Arguments of RENAME.
    pub struct RenameArgs<'a> {
        /// Old directory and name.
        pub from: DirOpArgs<'a>,
        /// New directory and name.
        pub to: DirOpArgs<'a>,
    }
}

xdr_struct! {
    /// Arguments of LINK.
    pub struct LinkArgs<'a> {
        /// The file.
        pub file: FileHandle,
        /// Directory and name of the new link.
        pub link: DirOpArgs<'a>,
    }
}

xdr_struct! {
    /// Arguments of READDIR.
    pub struct ReaddirArgs {
        /// The directory.
        pub dir: FileHandle,
        /// Cookie of the last entry processed; 0 to start.
        pub cookie: u64,
        /// Verifier returned with the cookie; 0 to start.
        pub verifier: Verifier,
        /// Maximum size of the result in bytes, from the attributes to the `eof` flag.
        pub count: u32,
    }
}

xdr_struct! {
    /// Arguments of READDIRPLUS.
    pub struct ReaddirplusArgs {
        /// The directory.
        pub dir: FileHandle,
        /// Cookie of the last entry processed; 0 to start.
        pub cookie: u64,
        /// Verifier returned with the cookie; 0 to start.
        pub verifier: Verifier,
        /// Hint: maximum size of names, file IDs and cookies in bytes.
        pub dircount: u32,
        /// Maximum size of the result in bytes, from the attributes to the `eof` flag.
        pub maxcount: u32,
    }
}

xdr_struct! {
    /// Arguments of FSSTAT.
    pub struct FsstatArgs {
        /// Any object of the file system.
        pub root: FileHandle,
    }
}

xdr_struct! {
    /// Arguments of FSINFO.
    pub struct FsinfoArgs {
        /// Any object of the file system.
        pub root: FileHandle,
    }
}

xdr_struct! {
    /// Arguments of PATHCONF.
    pub struct PathconfArgs {
        /// The object.
        pub object: FileHandle,
    }
}

xdr_struct! {
    /// Arguments of COMMIT.
    pub struct CommitArgs {
        /// The file.
        pub file: FileHandle,
        /// Offset in bytes.
        pub offset: u64,
        /// Number of bytes; 0: to the end of the file.
        pub count: u32,
    }
}
