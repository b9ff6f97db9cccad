//! Numbers of the attributes (RFC 8881 section 5, RFC 7862 section 12.2, RFC 8275, RFC 8276, RFC 9754).

use crate::schema::xdr_enum;

xdr_enum! {
    /// An attribute. `Display` gives the name in the RFCs.
    pub enum Attribute {
        /// `supported_attrs`.
        SupportedAttrs = 0,
        /// `type`.
        FileType = 1,
        /// `fh_expire_type`.
        FhExpireType = 2,
        /// `change`.
        Change = 3,
        /// `size`.
        Size = 4,
        /// `link_support`.
        LinkSupport = 5,
        /// `symlink_support`.
        SymlinkSupport = 6,
        /// `named_attr`.
        NamedAttr = 7,
        /// `fsid`.
        Fsid = 8,
        /// `unique_handles`.
        UniqueHandles = 9,
        /// `lease_time`.
        LeaseTime = 10,
        /// `rdattr_error`.
        RdattrError = 11,
        /// `acl`.
        Acl = 12,
        /// `aclsupport`.
        Aclsupport = 13,
        /// `archive`.
        Archive = 14,
        /// `cansettime`.
        Cansettime = 15,
        /// `case_insensitive`.
        CaseInsensitive = 16,
        /// `case_preserving`.
        CasePreserving = 17,
        /// `chown_restricted`.
        ChownRestricted = 18,
        /// `filehandle`.
        Filehandle = 19,
        /// `fileid`.
        Fileid = 20,
        /// `files_avail`.
        FilesAvail = 21,
        /// `files_free`.
        FilesFree = 22,
        /// `files_total`.
        FilesTotal = 23,
        /// `fs_locations`.
        FsLocations = 24,
        /// `hidden`.
        Hidden = 25,
        /// `homogeneous`.
        Homogeneous = 26,
        /// `maxfilesize`.
        Maxfilesize = 27,
        /// `maxlink`.
        Maxlink = 28,
        /// `maxname`.
        Maxname = 29,
        /// `maxread`.
        Maxread = 30,
        /// `maxwrite`.
        Maxwrite = 31,
        /// `mimetype`.
        Mimetype = 32,
        /// `mode`.
        Mode = 33,
        /// `no_trunc`.
        NoTrunc = 34,
        /// `numlinks`.
        Numlinks = 35,
        /// `owner`.
        Owner = 36,
        /// `owner_group`.
        OwnerGroup = 37,
        /// `quota_avail_hard`.
        QuotaAvailHard = 38,
        /// `quota_avail_soft`.
        QuotaAvailSoft = 39,
        /// `quota_used`.
        QuotaUsed = 40,
        /// `rawdev`.
        Rawdev = 41,
        /// `space_avail`.
        SpaceAvail = 42,
        /// `space_free`.
        SpaceFree = 43,
        /// `space_total`.
        SpaceTotal = 44,
        /// `space_used`.
        SpaceUsed = 45,
        /// `system`.
        System = 46,
        /// `time_access`.
        TimeAccess = 47,
        /// `time_access_set`.
        TimeAccessSet = 48,
        /// `time_backup`.
        TimeBackup = 49,
        /// `time_create`.
        TimeCreate = 50,
        /// `time_delta`.
        TimeDelta = 51,
        /// `time_metadata`.
        TimeMetadata = 52,
        /// `time_modify`.
        TimeModify = 53,
        /// `time_modify_set`.
        TimeModifySet = 54,
        /// `mounted_on_fileid`.
        MountedOnFileid = 55,
        /// `dir_notif_delay`.
        DirNotifDelay = 56,
        /// `dirent_notif_delay`.
        DirentNotifDelay = 57,
        /// `dacl`.
        Dacl = 58,
        /// `sacl`.
        Sacl = 59,
        /// `change_policy`.
        ChangePolicy = 60,
        /// `fs_status`.
        FsStatus = 61,
        /// `fs_layout_types`.
        FsLayoutTypes = 62,
        /// `layout_hint`.
        LayoutHint = 63,
        /// `layout_types`.
        LayoutTypes = 64,
        /// `layout_blksize`.
        LayoutBlksize = 65,
        /// `layout_alignment`.
        LayoutAlignment = 66,
        /// `fs_locations_info`.
        FsLocationsInfo = 67,
        /// `mdsthreshold`.
        Mdsthreshold = 68,
        /// `retention_get`.
        RetentionGet = 69,
        /// `retention_set`.
        RetentionSet = 70,
        /// `retentevt_get`.
        RetentevtGet = 71,
        /// `retentevt_set`.
        RetentevtSet = 72,
        /// `retention_hold`.
        RetentionHold = 73,
        /// `mode_set_masked`.
        ModeSetMasked = 74,
        /// `suppattr_exclcreat`.
        SuppattrExclcreat = 75,
        /// `fs_charset_cap`.
        FsCharsetCap = 76,
        /// `clone_blksize`.
        CloneBlksize = 77,
        /// `space_freed`.
        SpaceFreed = 78,
        /// `change_attr_type`.
        ChangeAttrType = 79,
        /// `sec_label`.
        SecLabel = 80,
        /// `mode_umask`.
        ModeUmask = 81,
        /// `xattr_support`.
        XattrSupport = 82,
        /// `offline`.
        Offline = 83,
        /// `time_deleg_access`.
        TimeDelegAccess = 84,
        /// `time_deleg_modify`.
        TimeDelegModify = 85,
        /// `open_arguments`.
        OpenArguments = 86,
    }
}

impl Attribute {
    /// Name in the RFCs.
    pub const fn name(self) -> &'static str {
        match self {
            Self::SupportedAttrs => "supported_attrs",
            Self::FileType => "type",
            Self::FhExpireType => "fh_expire_type",
            Self::Change => "change",
            Self::Size => "size",
            Self::LinkSupport => "link_support",
            Self::SymlinkSupport => "symlink_support",
            Self::NamedAttr => "named_attr",
            Self::Fsid => "fsid",
            Self::UniqueHandles => "unique_handles",
            Self::LeaseTime => "lease_time",
            Self::RdattrError => "rdattr_error",
            Self::Acl => "acl",
            Self::Aclsupport => "aclsupport",
            Self::Archive => "archive",
            Self::Cansettime => "cansettime",
            Self::CaseInsensitive => "case_insensitive",
            Self::CasePreserving => "case_preserving",
            Self::ChownRestricted => "chown_restricted",
            Self::Filehandle => "filehandle",
            Self::Fileid => "fileid",
            Self::FilesAvail => "files_avail",
            Self::FilesFree => "files_free",
            Self::FilesTotal => "files_total",
            Self::FsLocations => "fs_locations",
            Self::Hidden => "hidden",
            Self::Homogeneous => "homogeneous",
            Self::Maxfilesize => "maxfilesize",
            Self::Maxlink => "maxlink",
            Self::Maxname => "maxname",
            Self::Maxread => "maxread",
            Self::Maxwrite => "maxwrite",
            Self::Mimetype => "mimetype",
            Self::Mode => "mode",
            Self::NoTrunc => "no_trunc",
            Self::Numlinks => "numlinks",
            Self::Owner => "owner",
            Self::OwnerGroup => "owner_group",
            Self::QuotaAvailHard => "quota_avail_hard",
            Self::QuotaAvailSoft => "quota_avail_soft",
            Self::QuotaUsed => "quota_used",
            Self::Rawdev => "rawdev",
            Self::SpaceAvail => "space_avail",
            Self::SpaceFree => "space_free",
            Self::SpaceTotal => "space_total",
            Self::SpaceUsed => "space_used",
            Self::System => "system",
            Self::TimeAccess => "time_access",
            Self::TimeAccessSet => "time_access_set",
            Self::TimeBackup => "time_backup",
            Self::TimeCreate => "time_create",
            Self::TimeDelta => "time_delta",
            Self::TimeMetadata => "time_metadata",
            Self::TimeModify => "time_modify",
            Self::TimeModifySet => "time_modify_set",
            Self::MountedOnFileid => "mounted_on_fileid",
            Self::DirNotifDelay => "dir_notif_delay",
            Self::DirentNotifDelay => "dirent_notif_delay",
            Self::Dacl => "dacl",
            Self::Sacl => "sacl",
            Self::ChangePolicy => "change_policy",
            Self::FsStatus => "fs_status",
            Self::FsLayoutTypes => "fs_layout_types",
            Self::LayoutHint => "layout_hint",
            Self::LayoutTypes => "layout_types",
            Self::LayoutBlksize => "layout_blksize",
            Self::LayoutAlignment => "layout_alignment",
            Self::FsLocationsInfo => "fs_locations_info",
            Self::Mdsthreshold => "mdsthreshold",
            Self::RetentionGet => "retention_get",
            Self::RetentionSet => "retention_set",
            Self::RetentevtGet => "retentevt_get",
            Self::RetentevtSet => "retentevt_set",
            Self::RetentionHold => "retention_hold",
            Self::ModeSetMasked => "mode_set_masked",
            Self::SuppattrExclcreat => "suppattr_exclcreat",
            Self::FsCharsetCap => "fs_charset_cap",
            Self::CloneBlksize => "clone_blksize",
            Self::SpaceFreed => "space_freed",
            Self::ChangeAttrType => "change_attr_type",
            Self::SecLabel => "sec_label",
            Self::ModeUmask => "mode_umask",
            Self::XattrSupport => "xattr_support",
            Self::Offline => "offline",
            Self::TimeDelegAccess => "time_deleg_access",
            Self::TimeDelegModify => "time_deleg_modify",
            Self::OpenArguments => "open_arguments",
        }
    }
}

impl std::fmt::Display for Attribute {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}
