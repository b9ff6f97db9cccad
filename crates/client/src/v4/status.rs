//! The status of a failed operation as that of the procedure.

use millrace_nfs::v4::{Operation, Status};

use crate::{Error, ops};

/// Converts a status: most have the same number in both versions.
///
/// # Errors
/// [`Error::Nfs4`] for a status without a counterpart in NFSv3.
pub(crate) fn status_of(operation: Operation, status: Status) -> Result<ops::Status, Error> {
    use Operation as Op;
    if let Ok(same) = ops::Status::try_from(status.number()) {
        return Ok(same);
    }
    Ok(match status {
        Status::Grace => ops::Status::Jukebox,
        Status::Symlink | Status::WrongType if operation == Op::Open => ops::Status::Exist,
        // A file handle that should be that of a directory.
        Status::Symlink if !matches!(operation, Op::Read | Op::Write | Op::Setattr | Op::Commit) => {
            ops::Status::NotDir
        }
        Status::Symlink | Status::WrongType => ops::Status::Inval,
        Status::BadName | Status::BadChar | Status::BadOwner => ops::Status::Inval,
        Status::AttrNotSupp => ops::Status::NotSupp,
        Status::FhExpired => ops::Status::Stale,
        Status::WrongSec | Status::OpenMode => ops::Status::Access,
        // NVERIFY before SETATTR, the guard, returns NOT_SAME.
        Status::NotSame => ops::Status::NotSync,
        status => return Err(Error::Nfs4 { operation, status }),
    })
}
