//! `fattr4`: attributes as a bitmap and the values in ascending order of their numbers (RFC 8881 section
//! 3.3.10).

use millrace_xdr::{Decode, Decoder, Encode, Encoder, XdrError};

use super::{
    Attribute, Bitmap, ChangeAttrType, FileHandle, FileType, Fsid, ModeUmask, NfsTime, OpenArguments, Owner,
    SetTime, SpecData, Status,
};

/// Maximum size in bytes of the values of received attributes. The largest are two owners and a file handle.
const MAX_VALUES: usize = 64 << 10;

/// Declares the attributes that have values here, in ascending order of their numbers.
macro_rules! attributes {
    ($($(#[$m:meta])* $field:ident: $t:ty = $attribute:ident),* $(,)?) => {
        /// Values of attributes; `None` for an attribute without value. A server fills in those it supports
        /// (costly ones only if requested) and encodes the requested ones.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
        pub struct Attributes<'a> {
            $($(#[$m])* pub $field: Option<$t>),*
        }

        impl<'a> Attributes<'a> {
            /// All attributes that can have a value here.
            pub const KNOWN: Bitmap = Bitmap::of(&[$(Attribute::$attribute),*]);

            /// The attributes that have a value.
            pub fn present(&self) -> Bitmap {
                let mut set = Bitmap::EMPTY;
                $(if self.$field.is_some() { set.insert(Attribute::$attribute); })*
                set
            }

            /// The attributes that have the same value in both.
            fn equal(&self, other: &Self) -> Bitmap {
                let mut set = Bitmap::EMPTY;
                $(if self.$field.is_some() && self.$field == other.$field {
                    set.insert(Attribute::$attribute);
                })*
                set
            }

            fn encode_values(&self, e: &mut Encoder, set: Bitmap) {
                $(if set.contains(Attribute::$attribute) && let Some(v) = &self.$field { e.put(v); })*
            }

            /// `set` must be a subset of [`Self::KNOWN`].
            fn decode_values(d: &mut Decoder<'a>, set: Bitmap) -> Result<Self, XdrError> {
                let mut values = Self::default();
                $(if set.contains(Attribute::$attribute) { values.$field = Some(d.get()?); })*
                Ok(values)
            }
        }
    };
}

attributes! {
    /// Attributes that the server supports for the object.
    supported_attrs: Bitmap = SupportedAttrs,
    /// Type.
    file_type: FileType = FileType,
    /// When file handles expire; 0: never.
    fh_expire_type: u32 = FhExpireType,
    /// Changes whenever the data or the metadata change.
    change: u64 = Change,
    /// Size in bytes.
    size: u64 = Size,
    /// Whether hard links are supported.
    link_support: bool = LinkSupport,
    /// Whether symbolic links are supported.
    symlink_support: bool = SymlinkSupport,
    /// Whether the object has named attributes.
    named_attr: bool = NamedAttr,
    /// File system ID.
    fsid: Fsid = Fsid,
    /// Whether two handles always refer to two objects.
    unique_handles: bool = UniqueHandles,
    /// Duration of a lease in seconds.
    lease_time: u32 = LeaseTime,
    /// Why the attributes of a directory entry are missing; [`Status::Ok`] if they are not.
    rdattr_error: Status = RdattrError,
    /// Supported types of access control entries; 0: none.
    aclsupport: u32 = Aclsupport,
    /// Whether times can be set.
    cansettime: bool = Cansettime,
    /// Whether names are case-insensitive.
    case_insensitive: bool = CaseInsensitive,
    /// Whether the case of names is preserved.
    case_preserving: bool = CasePreserving,
    /// Whether only a privileged user may change the owner of a file.
    chown_restricted: bool = ChownRestricted,
    /// File handle.
    filehandle: FileHandle<'a> = Filehandle,
    /// File ID, unique in its file system.
    fileid: u64 = Fileid,
    /// Number of files that the caller can create.
    files_avail: u64 = FilesAvail,
    /// Number of files that can be created.
    files_free: u64 = FilesFree,
    /// Total number of files.
    files_total: u64 = FilesTotal,
    /// Whether all objects of the file system have the same values of its attributes.
    homogeneous: bool = Homogeneous,
    /// Maximum file size in bytes.
    maxfilesize: u64 = Maxfilesize,
    /// Maximum number of hard links.
    maxlink: u32 = Maxlink,
    /// Maximum length of a name in bytes.
    maxname: u32 = Maxname,
    /// Maximum size of READ in bytes.
    maxread: u64 = Maxread,
    /// Maximum size of WRITE in bytes.
    maxwrite: u64 = Maxwrite,
    /// Permission bits: 0x1ff rwx, 0x200 sticky, 0x400 sgid, 0x800 suid.
    mode: u32 = Mode,
    /// Whether longer names are rejected instead of truncated.
    no_trunc: bool = NoTrunc,
    /// Number of hard links.
    numlinks: u32 = Numlinks,
    /// Owner.
    owner: Owner<'a> = Owner,
    /// Group.
    owner_group: Owner<'a> = OwnerGroup,
    /// Device number of a device.
    rawdev: SpecData = Rawdev,
    /// Free space available to the caller, in bytes.
    space_avail: u64 = SpaceAvail,
    /// Free space in bytes.
    space_free: u64 = SpaceFree,
    /// Total space in bytes.
    space_total: u64 = SpaceTotal,
    /// Allocated space of the object in bytes.
    space_used: u64 = SpaceUsed,
    /// Time of last access.
    time_access: NfsTime = TimeAccess,
    /// Sets the time of last access (SETATTR only).
    time_access_set: SetTime = TimeAccessSet,
    /// Time of creation.
    time_create: NfsTime = TimeCreate,
    /// Granularity of times.
    time_delta: NfsTime = TimeDelta,
    /// Time of last change of data or metadata.
    time_metadata: NfsTime = TimeMetadata,
    /// Time of last modification of the data.
    time_modify: NfsTime = TimeModify,
    /// Sets the time of last modification (SETATTR only).
    time_modify_set: SetTime = TimeModifySet,
    /// File ID of the directory that a mount point covers; otherwise the file ID.
    mounted_on_fileid: u64 = MountedOnFileid,
    /// Attributes that OPEN can set with an exclusive create (EXCLUSIVE4_1).
    suppattr_exclcreat: Bitmap = SuppattrExclcreat,
    /// Block size in bytes to which CLONE is aligned.
    clone_blksize: u32 = CloneBlksize,
    /// Space in bytes that is freed when the object is deleted.
    space_freed: u64 = SpaceFreed,
    /// How the change attribute changes.
    change_attr_type: ChangeAttrType = ChangeAttrType,
    /// Permission bits and umask of a new object (CREATE and OPEN only).
    mode_umask: ModeUmask = ModeUmask,
    /// Whether extended attributes are supported.
    xattr_support: bool = XattrSupport,
    /// Time of last access at the holder of a delegation that includes the times (SETATTR and CB_GETATTR only).
    time_deleg_access: NfsTime = TimeDelegAccess,
    /// Time of last modification at the holder of such a delegation (SETATTR and CB_GETATTR only).
    time_deleg_modify: NfsTime = TimeDelegModify,
    /// Arguments of OPEN that the server supports.
    open_arguments: OpenArguments = OpenArguments,
}

impl Attributes<'_> {
    /// The mandatory attributes of minor version 1 (RFC 8881 section 5.6).
    pub const MANDATORY: Bitmap = Bitmap::of(&[
        Attribute::SupportedAttrs,
        Attribute::FileType,
        Attribute::FhExpireType,
        Attribute::Change,
        Attribute::Size,
        Attribute::LinkSupport,
        Attribute::SymlinkSupport,
        Attribute::NamedAttr,
        Attribute::Fsid,
        Attribute::UniqueHandles,
        Attribute::LeaseTime,
        Attribute::RdattrError,
        Attribute::Filehandle,
        Attribute::SuppattrExclcreat,
    ]);

    /// The attributes that SETATTR, CREATE or OPEN can set.
    pub const SETTABLE: Bitmap = Bitmap::of(&[
        Attribute::Size,
        Attribute::Mode,
        Attribute::Owner,
        Attribute::OwnerGroup,
        Attribute::TimeAccessSet,
        Attribute::TimeModifySet,
        Attribute::ModeUmask,
        Attribute::TimeDelegAccess,
        Attribute::TimeDelegModify,
    ]);

    /// The times that a delegation may include (RFC 9754 section 5).
    pub const DELEGATED_TIMES: Bitmap = Bitmap::of(&[Attribute::TimeDelegAccess, Attribute::TimeDelegModify]);

    /// The attributes that cannot be read. VERIFY, NVERIFY, GETATTR and READDIR do not accept them.
    pub const WRITE_ONLY: Bitmap = Self::DELEGATED_TIMES
        .with(Attribute::TimeAccessSet)
        .with(Attribute::TimeModifySet)
        .with(Attribute::ModeUmask);

    /// Encodes a `fattr4` with those of the `requested` attributes that have a value.
    pub fn encode_requested(&self, e: &mut Encoder, requested: Bitmap) {
        let set = self.present().intersection(requested);
        e.put(&set);
        let length = e.len();
        e.put_u32(0);
        self.encode_values(e, set);
        // All values are padded to words. The length is wrong if the arena is exhausted; the message fails then.
        let bytes = e.len().saturating_sub(length + 4);
        e.patch_u32(length, bytes as u32);
    }
}

/// A `fattr4` with all values.
impl Encode for Attributes<'_> {
    fn encode(&self, e: &mut Encoder) {
        self.encode_requested(e, Attributes::KNOWN);
    }
}

/// A `fattr4` with attributes in [`Attributes::KNOWN`] only, such as a client receives.
impl<'a> Decode<'a> for Attributes<'a> {
    fn decode(d: &mut Decoder<'a>) -> Result<Self, XdrError> {
        d.get::<Fattr<'a>>()?.decode_values()
    }
}

/// A `fattr4` in a message: the values are not decoded yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fattr<'a> {
    /// The attributes.
    pub set: Bitmap,
    /// Whether there is an attribute that a [`Bitmap`] cannot contain.
    pub higher: bool,
    /// The encoded values.
    pub values: &'a [u8],
}

impl<'a> Decode<'a> for Fattr<'a> {
    fn decode(d: &mut Decoder<'a>) -> Result<Self, XdrError> {
        let (set, higher) = Bitmap::decode_any(d)?;
        Ok(Self { set, higher, values: d.opaque(MAX_VALUES)? })
    }
}

impl<'a> Fattr<'a> {
    /// Decodes the values.
    ///
    /// # Errors
    /// [`XdrError::Invalid`] with the number of an attribute that is not in [`Attributes::KNOWN`], whose value
    /// has an unknown length; an invalid value; values longer or shorter than those of the attributes.
    pub fn decode_values(&self) -> Result<Attributes<'a>, XdrError> {
        if let Some(value) = self.set.difference(Attributes::KNOWN).iter().next() {
            return Err(XdrError::Invalid { at: 0, value });
        }
        if self.higher {
            return Err(XdrError::Invalid { at: 0, value: u32::MAX });
        }
        let mut d = Decoder::from_bytes(self.values);
        let values = Attributes::decode_values(&mut d, self.set)?;
        match d.remaining() {
            0 => Ok(values),
            _ => Err(XdrError::TooLong { at: 0, len: self.values.len(), max: d.position() }),
        }
    }

    /// The values for SETATTR, CREATE or OPEN (RFC 8881 sections 5.5 and 18.30).
    ///
    /// # Errors
    /// [`Status::AttrNotSupp`]: an attribute is not `supported`. [`Status::Inval`]: an attribute is read-only, a time has
    /// 1,000,000,000 nanoseconds or more, or two attributes set the same: `mode` and `mode_umask` (RFC 8275), or a time
    /// and its delegated time. [`Status::BadXdr`]: the values do not match the attributes.
    pub fn to_set(&self, supported: Bitmap) -> Result<Attributes<'a>, Status> {
        if self.higher || !self.set.difference(supported).is_empty() {
            return Err(Status::AttrNotSupp);
        }
        if !self.set.difference(Attributes::SETTABLE).is_empty() {
            return Err(Status::Inval);
        }
        let values = self.decode_values().map_err(|_| Status::BadXdr)?;
        let invalid = |set: Option<SetTime>, delegated: Option<NfsTime>| match (set, delegated) {
            (Some(SetTime::ClientTime(t)), None) | (None, Some(t)) => t.nanoseconds >= 1_000_000_000,
            (set, delegated) => set.is_some() && delegated.is_some(),
        };
        let modes = values.mode.is_some() && values.mode_umask.is_some();
        let access = invalid(values.time_access_set, values.time_deleg_access);
        let modify = invalid(values.time_modify_set, values.time_deleg_modify);
        if modes || access || modify { Err(Status::Inval) } else { Ok(values) }
    }

    /// Whether all values are equal to the `current` ones, for VERIFY and NVERIFY (RFC 8881 section 18.31). An
    /// attribute without a current value differs.
    ///
    /// # Errors
    /// [`Status::AttrNotSupp`]: an attribute is not `supported`. [`Status::Inval`]: an attribute cannot be read.
    /// [`Status::BadXdr`]: the values do not match the attributes.
    pub fn is_same(&self, current: &Attributes<'_>, supported: Bitmap) -> Result<bool, Status> {
        self.can_verify(supported)?;
        let values = self.decode_values().map_err(|_| Status::BadXdr)?;
        Ok(values.equal(current) == self.set)
    }

    fn can_verify(&self, supported: Bitmap) -> Result<(), Status> {
        if self.higher || !self.set.difference(supported).is_empty() {
            return Err(Status::AttrNotSupp);
        }
        let unreadable = Attributes::WRITE_ONLY.with(Attribute::RdattrError);
        if self.set.intersects(unreadable) { Err(Status::Inval) } else { Ok(()) }
    }
}
