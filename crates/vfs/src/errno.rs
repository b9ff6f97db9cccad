//! Conversion of errno values to RFC 1813 status codes, for file systems on the system calls of the host.

use rustix::io::Errno;

use crate::FsError;

impl From<Errno> for FsError {
    fn from(e: Errno) -> Self {
        match e {
            Errno::PERM => Self::Perm,
            Errno::NOENT => Self::NoEnt,
            Errno::IO | Errno::REMOTEIO | Errno::NODATA | Errno::BADMSG | Errno::UCLEAN => Self::Io,
            Errno::NXIO => Self::NxIo,
            Errno::ACCESS => Self::Access,
            Errno::EXIST => Self::Exist,
            Errno::XDEV => Self::XDev,
            Errno::NODEV => Self::NoDev,
            Errno::NOTDIR => Self::NotDir,
            Errno::ISDIR => Self::IsDir,
            Errno::INVAL | Errno::ILSEQ | Errno::DOM => Self::Inval,
            Errno::FBIG | Errno::OVERFLOW => Self::FBig,
            Errno::NOSPC => Self::NoSpc,
            Errno::ROFS => Self::RoFs,
            Errno::MLINK => Self::MLink,
            Errno::NAMETOOLONG => Self::NameTooLong,
            Errno::NOTEMPTY => Self::NotEmpty,
            Errno::DQUOT => Self::DQuot,
            Errno::STALE => Self::Stale,
            Errno::OPNOTSUPP | Errno::NOSYS => Self::NotSupp,
            // The name has become a symbolic link; names are never followed.
            Errno::LOOP => Self::NoEnt,
            // A mount point, or a file in use by the host.
            Errno::BUSY | Errno::TXTBSY => Self::Access,
            Errno::AGAIN | Errno::INTR | Errno::NOMEM | Errno::MFILE | Errno::NFILE | Errno::NOBUFS => {
                Self::Jukebox
            }
            other => {
                tracing::warn!(error = %other, "errno without an NFS equivalent");
                Self::ServerFault
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errno_values_map_to_nfs_status() {
        for (errno, expected) in [
            (Errno::NOSPC, FsError::NoSpc),
            (Errno::DQUOT, FsError::DQuot),
            (Errno::ROFS, FsError::RoFs),
            (Errno::MFILE, FsError::Jukebox),
            (Errno::PIPE, FsError::ServerFault),
        ] {
            assert_eq!(FsError::from(errno), expected);
        }
    }
}
