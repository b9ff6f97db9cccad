//! Results of the procedures (RFC 1813 section 3.3).

use millrace_xdr::{Decode, Decoder, Encode, Encoder, Views, XdrError};

use super::{
    Fattr, FileHandle, MAX_DATA, MAX_PATH, NfsTime, PostOpAttr, PostOpHandle, StableHow, Status, Verifier,
    WccData,
};
use crate::schema::xdr_struct;

/// A procedure's result: a union over [`Status`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Res<O, F> {
    /// It was done.
    Ok(O),
    /// It was not, for this reason (never [`Status::Ok`]).
    Err(Status, F),
}

impl<O, F> Res<O, F> {
    /// As a `Result`.
    ///
    /// # Errors
    /// The status and the failure's own data.
    pub fn into_result(self) -> Result<O, (Status, F)> {
        match self {
            Self::Ok(v) => Ok(v),
            Self::Err(s, f) => Err((s, f)),
        }
    }

    /// The status.
    pub fn status(&self) -> Status {
        match self {
            Self::Ok(_) => Status::Ok,
            Self::Err(s, _) => *s,
        }
    }
}

impl<O, F> From<Result<O, (Status, F)>> for Res<O, F> {
    fn from(r: Result<O, (Status, F)>) -> Self {
        match r {
            Ok(v) => Self::Ok(v),
            Err((s, f)) => Self::Err(s, f),
        }
    }
}

impl<O: Encode, F: Encode> Encode for Res<O, F> {
    fn encode(&self, e: &mut Encoder) {
        e.put(&self.status());
        match self {
            Self::Ok(v) => e.put(v),
            Self::Err(s, f) => {
                debug_assert_ne!(*s, Status::Ok, "a failure needs a failing status");
                e.put(f);
            }
        }
    }
}

impl<'a, O: Decode<'a>, F: Decode<'a>> Decode<'a> for Res<O, F> {
    fn decode(d: &mut Decoder<'a>) -> Result<Self, XdrError> {
        match d.get()? {
            Status::Ok => d.get().map(Self::Ok),
            s => Ok(Self::Err(s, d.get()?)),
        }
    }
}

xdr_struct! {
    /// GETATTR.
    pub struct GetattrOk {
        /// The attributes.
        pub attributes: Fattr,
    }
}

/// GETATTR has no data on failure.
pub type GetattrFail = ();

/// SETATTR.
pub type SetattrOk = WccData;
/// SETATTR.
pub type SetattrFail = WccData;

xdr_struct! {
    /// LOOKUP.
    pub struct LookupOk {
        /// The object's handle.
        pub object: FileHandle,
        /// The object's attributes.
        pub attributes: PostOpAttr,
        /// The directory's attributes.
        pub dir: PostOpAttr,
    }
}

/// LOOKUP: the directory's attributes.
pub type LookupFail = PostOpAttr;

xdr_struct! {
    /// ACCESS.
    pub struct AccessOk {
        /// The object's attributes.
        pub attributes: PostOpAttr,
        /// The rights that are granted, of those asked for.
        pub access: u32,
    }
}

/// ACCESS: the object's attributes.
pub type AccessFail = PostOpAttr;

/// READLINK.
#[derive(Debug, Clone)]
pub struct ReadlinkOk {
    /// The link's attributes.
    pub attributes: PostOpAttr,
    /// The link's text, by reference; at most [`MAX_PATH`] bytes.
    pub target: Views,
}

impl Encode for ReadlinkOk {
    fn encode(&self, e: &mut Encoder) {
        e.put(&self.attributes);
        e.put_payload(self.target.clone());
    }
}

impl<'a> Decode<'a> for ReadlinkOk {
    fn decode(d: &mut Decoder<'a>) -> Result<Self, XdrError> {
        Ok(Self { attributes: d.get()?, target: d.payload(MAX_PATH)? })
    }
}

/// READLINK: the link's attributes.
pub type ReadlinkFail = PostOpAttr;

/// READ.
#[derive(Debug, Clone)]
pub struct ReadOk {
    /// The file's attributes.
    pub attributes: PostOpAttr,
    /// Bytes read: the length of `data`.
    pub count: u32,
    /// Whether the last byte read is the file's last one.
    pub eof: bool,
    /// The data, by reference.
    pub data: Views,
}

impl ReadOk {
    /// Appends the XDR form and gives the data away, so that its references are not counted twice.
    pub fn encode_into(self, e: &mut Encoder) {
        e.put(&self.attributes);
        e.put_u32(self.count);
        e.put_bool(self.eof);
        e.put_payload(self.data);
    }
}

impl Encode for ReadOk {
    fn encode(&self, e: &mut Encoder) {
        self.clone().encode_into(e);
    }
}

impl<'a> Decode<'a> for ReadOk {
    /// Refuses a count that is not the data's length.
    fn decode(d: &mut Decoder<'a>) -> Result<Self, XdrError> {
        let attributes = d.get()?;
        let at = d.position();
        let (count, eof) = (d.u32()?, d.bool()?);
        let data = d.payload(MAX_DATA)?;
        if data.len() != count as usize {
            return Err(XdrError::Invalid { at, value: count });
        }
        Ok(Self { attributes, count, eof, data })
    }
}

/// READ: the file's attributes.
pub type ReadFail = PostOpAttr;

xdr_struct! {
    /// WRITE.
    pub struct WriteOk {
        /// The file.
        pub file: WccData,
        /// Bytes written.
        pub count: u32,
        /// How stable they are.
        pub committed: StableHow,
        /// The server's instance.
        pub verifier: Verifier,
    }
}

/// WRITE.
pub type WriteFail = WccData;

xdr_struct! {
    /// CREATE, MKDIR, SYMLINK, MKNOD.
    pub struct CreateOk {
        /// The new object's handle.
        pub object: PostOpHandle,
        /// The new object's attributes.
        pub attributes: PostOpAttr,
        /// The directory.
        pub dir: WccData,
    }
}

/// CREATE: the directory.
pub type CreateFail = WccData;
/// MKDIR.
pub type MkdirOk = CreateOk;
/// MKDIR: the directory.
pub type MkdirFail = WccData;
/// SYMLINK.
pub type SymlinkOk = CreateOk;
/// SYMLINK: the directory.
pub type SymlinkFail = WccData;
/// MKNOD.
pub type MknodOk = CreateOk;
/// MKNOD: the directory.
pub type MknodFail = WccData;
/// REMOVE: the directory.
pub type RemoveOk = WccData;
/// REMOVE: the directory.
pub type RemoveFail = WccData;
/// RMDIR: the parent directory.
pub type RmdirOk = WccData;
/// RMDIR: the parent directory.
pub type RmdirFail = WccData;

xdr_struct! {
    /// RENAME.
    #[derive(Default)]
    pub struct RenameOk {
        /// The directory of the old name.
        pub from: WccData,
        /// The directory of the new name.
        pub to: WccData,
    }
}

/// RENAME.
pub type RenameFail = RenameOk;

xdr_struct! {
    /// LINK.
    #[derive(Default)]
    pub struct LinkOk {
        /// The file's attributes.
        pub file: PostOpAttr,
        /// The directory of the new name.
        pub dir: WccData,
    }
}

/// LINK.
pub type LinkFail = LinkOk;

/// READDIR: the directory's attributes.
pub type ReaddirFail = PostOpAttr;
/// READDIRPLUS: the directory's attributes.
pub type ReaddirplusFail = PostOpAttr;

xdr_struct! {
    /// FSSTAT.
    pub struct FsstatOk {
        /// The object's attributes.
        pub attributes: PostOpAttr,
        /// Bytes of the file system.
        pub total_bytes: u64,
        /// Free bytes.
        pub free_bytes: u64,
        /// Free bytes for this user.
        pub available_bytes: u64,
        /// File slots.
        pub total_files: u64,
        /// Free file slots.
        pub free_files: u64,
        /// Free file slots for this user.
        pub available_files: u64,
        /// For how many seconds this will not change (0: volatile).
        pub invariant_seconds: u32,
    }
}

/// FSSTAT: the object's attributes.
pub type FsstatFail = PostOpAttr;

xdr_struct! {
    /// FSINFO. Sizes are in bytes.
    pub struct FsinfoOk {
        /// The object's attributes.
        pub attributes: PostOpAttr,
        /// The most that READ gives.
        pub read_max: u32,
        /// The preferred size of READ.
        pub read_preferred: u32,
        /// READ sizes should be multiples of this.
        pub read_multiple: u32,
        /// The most that WRITE takes.
        pub write_max: u32,
        /// The preferred size of WRITE.
        pub write_preferred: u32,
        /// WRITE sizes should be multiples of this.
        pub write_multiple: u32,
        /// The preferred size of READDIR.
        pub readdir_preferred: u32,
        /// The largest file.
        pub max_file_size: u64,
        /// The resolution of times.
        pub time_delta: NfsTime,
        /// Bits of [`properties`](super::properties).
        pub properties: u32,
    }
}

/// FSINFO: the object's attributes.
pub type FsinfoFail = PostOpAttr;

xdr_struct! {
    /// PATHCONF.
    pub struct PathconfOk {
        /// The object's attributes.
        pub attributes: PostOpAttr,
        /// The most hard links.
        pub link_max: u32,
        /// The most bytes of a name.
        pub name_max: u32,
        /// Whether longer names are refused and not cut.
        pub no_trunc: bool,
        /// Whether only root may give files away.
        pub chown_restricted: bool,
        /// Whether case does not matter in names.
        pub case_insensitive: bool,
        /// Whether case is kept in names.
        pub case_preserving: bool,
    }
}

/// PATHCONF: the object's attributes.
pub type PathconfFail = PostOpAttr;

xdr_struct! {
    /// COMMIT.
    pub struct CommitOk {
        /// The file.
        pub file: WccData,
        /// The server's instance: another one than WRITE gave means that unstable data may be lost.
        pub verifier: Verifier,
    }
}

/// COMMIT.
pub type CommitFail = WccData;
