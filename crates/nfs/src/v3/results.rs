//! Results of the procedures (RFC 1813 section 3.3).

use millrace_xdr::{Decode, Decoder, Encode, Encoder, Views, XdrError};

use super::{
    Fattr, FileHandle, MAX_DATA, MAX_PATH, NfsTime, PostOpAttr, PostOpHandle, StableHow, Status, Verifier,
    WccData,
};
use crate::schema::xdr_struct;

/// Result of a procedure: a union discriminated by [`Status`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Res<O, F> {
    /// Success.
    Ok(O),
    /// Failure with this status (never [`Status::Ok`]).
    Err(Status, F),
}

impl<O, F> Res<O, F> {
    /// Converts to a `Result`.
    ///
    /// # Errors
    /// The status, and the data of the failure.
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
                debug_assert_ne!(*s, Status::Ok, "a failure must not have status NFS3_OK");
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
    /// Result of GETATTR.
    pub struct GetattrOk {
        /// The attributes.
        pub attributes: Fattr,
    }
}

/// Failure of GETATTR: no data.
pub type GetattrFail = ();

/// Result of SETATTR: change of the object.
pub type SetattrOk = WccData;
/// Failure of SETATTR: change of the object.
pub type SetattrFail = WccData;

xdr_struct! {
    /// Result of LOOKUP.
    pub struct LookupOk {
        /// File handle of the object.
        pub object: FileHandle,
        /// Attributes of the object.
        pub attributes: PostOpAttr,
        /// Attributes of the directory.
        pub dir: PostOpAttr,
    }
}

/// Failure of LOOKUP: attributes of the directory.
pub type LookupFail = PostOpAttr;

xdr_struct! {
    /// Result of ACCESS.
    pub struct AccessOk {
        /// Attributes of the object.
        pub attributes: PostOpAttr,
        /// The granted subset of the requested rights.
        pub access: u32,
    }
}

/// Failure of ACCESS: attributes of the object.
pub type AccessFail = PostOpAttr;

/// Result of READLINK.
#[derive(Debug, Clone)]
pub struct ReadlinkOk {
    /// Attributes of the link.
    pub attributes: PostOpAttr,
    /// Target of the link, by reference; at most [`MAX_PATH`] bytes.
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

/// Failure of READLINK: attributes of the link.
pub type ReadlinkFail = PostOpAttr;

/// Result of READ.
#[derive(Debug, Clone)]
pub struct ReadOk {
    /// Attributes of the file.
    pub attributes: PostOpAttr,
    /// Number of bytes read: the length of `data`.
    pub count: u32,
    /// Whether the data reaches the end of the file.
    pub eof: bool,
    /// The data, by reference.
    pub data: Views,
}

impl ReadOk {
    /// Encodes the result, and moves the data into the encoder instead of cloning its references.
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
    /// Rejects a count that differs from the length of the data.
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

/// Failure of READ: attributes of the file.
pub type ReadFail = PostOpAttr;

xdr_struct! {
    /// Result of WRITE.
    pub struct WriteOk {
        /// Change of the file.
        pub file: WccData,
        /// Number of bytes written.
        pub count: u32,
        /// Stability of the data.
        pub committed: StableHow,
        /// Write verifier of the server instance.
        pub verifier: Verifier,
    }
}

/// Failure of WRITE: change of the file.
pub type WriteFail = WccData;

xdr_struct! {
    /// Result of CREATE, MKDIR, SYMLINK and MKNOD.
    pub struct CreateOk {
        /// File handle of the new object, if returned.
        pub object: PostOpHandle,
        /// Attributes of the new object, if returned.
        pub attributes: PostOpAttr,
        /// Change of the directory.
        pub dir: WccData,
    }
}

/// Failure of CREATE: change of the directory.
pub type CreateFail = WccData;
/// Result of MKDIR.
pub type MkdirOk = CreateOk;
/// Failure of MKDIR: change of the directory.
pub type MkdirFail = WccData;
/// Result of SYMLINK.
pub type SymlinkOk = CreateOk;
/// Failure of SYMLINK: change of the directory.
pub type SymlinkFail = WccData;
/// Result of MKNOD.
pub type MknodOk = CreateOk;
/// Failure of MKNOD: change of the directory.
pub type MknodFail = WccData;
/// Result of REMOVE: change of the directory.
pub type RemoveOk = WccData;
/// Failure of REMOVE: change of the directory.
pub type RemoveFail = WccData;
/// Result of RMDIR: change of the parent directory.
pub type RmdirOk = WccData;
/// Failure of RMDIR: change of the parent directory.
pub type RmdirFail = WccData;

xdr_struct! {
    /// Result of RENAME.
    #[derive(Default)]
    pub struct RenameOk {
        /// Change of the old directory.
        pub from: WccData,
        /// Change of the new directory.
        pub to: WccData,
    }
}

/// Failure of RENAME: changes of both directories.
pub type RenameFail = RenameOk;

xdr_struct! {
    /// Result of LINK.
    #[derive(Default)]
    pub struct LinkOk {
        /// Attributes of the file.
        pub file: PostOpAttr,
        /// Change of the directory of the new link.
        pub dir: WccData,
    }
}

/// Failure of LINK.
pub type LinkFail = LinkOk;

/// Failure of READDIR: attributes of the directory.
pub type ReaddirFail = PostOpAttr;
/// Failure of READDIRPLUS: attributes of the directory.
pub type ReaddirplusFail = PostOpAttr;

xdr_struct! {
    /// Result of FSSTAT.
    pub struct FsstatOk {
        /// Attributes of the object.
        pub attributes: PostOpAttr,
        /// Total size in bytes.
        pub total_bytes: u64,
        /// Free space in bytes.
        pub free_bytes: u64,
        /// Free space available to the caller, in bytes.
        pub available_bytes: u64,
        /// Total number of files.
        pub total_files: u64,
        /// Number of files that can be created.
        pub free_files: u64,
        /// Number of files that the caller can create.
        pub available_files: u64,
        /// Number of seconds for which this is not expected to change (0: volatile).
        pub invariant_seconds: u32,
    }
}

/// Failure of FSSTAT: attributes of the object.
pub type FsstatFail = PostOpAttr;

xdr_struct! {
    /// Result of FSINFO. Sizes are in bytes.
    pub struct FsinfoOk {
        /// Attributes of the object.
        pub attributes: PostOpAttr,
        /// Maximum size of READ.
        pub read_max: u32,
        /// Preferred size of READ.
        pub read_preferred: u32,
        /// Suggested multiple for the size of READ.
        pub read_multiple: u32,
        /// Maximum size of WRITE.
        pub write_max: u32,
        /// Preferred size of WRITE.
        pub write_preferred: u32,
        /// Suggested multiple for the size of WRITE.
        pub write_multiple: u32,
        /// Preferred size of READDIR.
        pub readdir_preferred: u32,
        /// Maximum file size.
        pub max_file_size: u64,
        /// Granularity of times.
        pub time_delta: NfsTime,
        /// Bits of [`properties`](super::properties).
        pub properties: u32,
    }
}

/// Failure of FSINFO: attributes of the object.
pub type FsinfoFail = PostOpAttr;

xdr_struct! {
    /// Result of PATHCONF.
    pub struct PathconfOk {
        /// Attributes of the object.
        pub attributes: PostOpAttr,
        /// Maximum number of hard links.
        pub link_max: u32,
        /// Maximum length of a name in bytes.
        pub name_max: u32,
        /// Whether longer names are rejected instead of truncated.
        pub no_trunc: bool,
        /// Whether only root may change the owner of a file.
        pub chown_restricted: bool,
        /// Whether names are case-insensitive.
        pub case_insensitive: bool,
        /// Whether the case of names is preserved.
        pub case_preserving: bool,
    }
}

/// Failure of PATHCONF: attributes of the object.
pub type PathconfFail = PostOpAttr;

xdr_struct! {
    /// Result of COMMIT.
    pub struct CommitOk {
        /// Change of the file.
        pub file: WccData,
        /// Write verifier of the server instance; if it differs from that of WRITE, unstable data may be
        /// lost.
        pub verifier: Verifier,
    }
}

/// Failure of COMMIT: change of the file.
pub type CommitFail = WccData;
