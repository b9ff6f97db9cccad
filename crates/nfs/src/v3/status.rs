//! `nfsstat3` (RFC 1813 section 2.6).

use crate::schema::xdr_enum;

xdr_enum! {
    /// The outcome of a procedure. `Display` gives a description.
    pub enum Status {
        /// NFS3_OK.
        Ok = 0,
        /// NFS3ERR_PERM.
        Perm = 1,
        /// NFS3ERR_NOENT.
        NoEnt = 2,
        /// NFS3ERR_IO.
        Io = 5,
        /// NFS3ERR_NXIO.
        NxIo = 6,
        /// NFS3ERR_ACCES.
        Access = 13,
        /// NFS3ERR_EXIST.
        Exist = 17,
        /// NFS3ERR_XDEV.
        XDev = 18,
        /// NFS3ERR_NODEV.
        NoDev = 19,
        /// NFS3ERR_NOTDIR.
        NotDir = 20,
        /// NFS3ERR_ISDIR.
        IsDir = 21,
        /// NFS3ERR_INVAL.
        Inval = 22,
        /// NFS3ERR_FBIG.
        FBig = 27,
        /// NFS3ERR_NOSPC.
        NoSpc = 28,
        /// NFS3ERR_ROFS.
        RoFs = 30,
        /// NFS3ERR_MLINK.
        MLink = 31,
        /// NFS3ERR_NAMETOOLONG.
        NameTooLong = 63,
        /// NFS3ERR_NOTEMPTY.
        NotEmpty = 66,
        /// NFS3ERR_DQUOT.
        DQuot = 69,
        /// NFS3ERR_STALE.
        Stale = 70,
        /// NFS3ERR_REMOTE.
        Remote = 71,
        /// NFS3ERR_BADHANDLE.
        BadHandle = 10001,
        /// NFS3ERR_NOT_SYNC.
        NotSync = 10002,
        /// NFS3ERR_BAD_COOKIE.
        BadCookie = 10003,
        /// NFS3ERR_NOTSUPP.
        NotSupp = 10004,
        /// NFS3ERR_TOOSMALL.
        TooSmall = 10005,
        /// NFS3ERR_SERVERFAULT.
        ServerFault = 10006,
        /// NFS3ERR_BADTYPE.
        BadType = 10007,
        /// NFS3ERR_JUKEBOX: the server needs time; try again later.
        Jukebox = 10008,
    }
}

impl Status {
    /// Name in RFC 1813.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ok => "NFS3_OK",
            Self::Perm => "NFS3ERR_PERM",
            Self::NoEnt => "NFS3ERR_NOENT",
            Self::Io => "NFS3ERR_IO",
            Self::NxIo => "NFS3ERR_NXIO",
            Self::Access => "NFS3ERR_ACCES",
            Self::Exist => "NFS3ERR_EXIST",
            Self::XDev => "NFS3ERR_XDEV",
            Self::NoDev => "NFS3ERR_NODEV",
            Self::NotDir => "NFS3ERR_NOTDIR",
            Self::IsDir => "NFS3ERR_ISDIR",
            Self::Inval => "NFS3ERR_INVAL",
            Self::FBig => "NFS3ERR_FBIG",
            Self::NoSpc => "NFS3ERR_NOSPC",
            Self::RoFs => "NFS3ERR_ROFS",
            Self::MLink => "NFS3ERR_MLINK",
            Self::NameTooLong => "NFS3ERR_NAMETOOLONG",
            Self::NotEmpty => "NFS3ERR_NOTEMPTY",
            Self::DQuot => "NFS3ERR_DQUOT",
            Self::Stale => "NFS3ERR_STALE",
            Self::Remote => "NFS3ERR_REMOTE",
            Self::BadHandle => "NFS3ERR_BADHANDLE",
            Self::NotSync => "NFS3ERR_NOT_SYNC",
            Self::BadCookie => "NFS3ERR_BAD_COOKIE",
            Self::NotSupp => "NFS3ERR_NOTSUPP",
            Self::TooSmall => "NFS3ERR_TOOSMALL",
            Self::ServerFault => "NFS3ERR_SERVERFAULT",
            Self::BadType => "NFS3ERR_BADTYPE",
            Self::Jukebox => "NFS3ERR_JUKEBOX",
        }
    }
}

impl std::fmt::Display for Status {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Ok => "no error",
            Self::Perm => "the operation is not permitted to this user",
            Self::NoEnt => "no such file or directory",
            Self::Io => "input/output error on the server",
            Self::NxIo => "no such device or address",
            Self::Access => "permission denied",
            Self::Exist => "the file exists",
            Self::XDev => "the two names are on different file systems",
            Self::NoDev => "no such device",
            Self::NotDir => "not a directory",
            Self::IsDir => "is a directory",
            Self::Inval => "invalid argument",
            Self::FBig => "the file would be larger than the server allows",
            Self::NoSpc => "no space left on the server",
            Self::RoFs => "the file system is read-only",
            Self::MLink => "too many hard links",
            Self::NameTooLong => "the name is too long",
            Self::NotEmpty => "the directory is not empty",
            Self::DQuot => "the user's quota on the server is exhausted",
            Self::Stale => "the file handle is stale: the file was removed or the export has changed",
            Self::Remote => "the file is on another server",
            Self::BadHandle => "invalid file handle",
            Self::NotSync => "the file has changed since its attributes were read",
            Self::BadCookie => "the directory has changed; read it again from the start",
            Self::NotSupp => "the server does not support this operation",
            Self::TooSmall => "the reply buffer is too small",
            Self::ServerFault => "the server failed",
            Self::BadType => "the server does not support files of this type",
            Self::Jukebox => "the server needs more time; try again later",
        })
    }
}

impl std::error::Error for Status {}
