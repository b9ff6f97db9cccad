//! The status of a failed operation as that of the procedure.

use millrace_nfs::{
    v3,
    v4::{Operation, Status},
};

use crate::Error;

/// Converts a status: most have the same number in both versions.
///
/// # Errors
/// [`Error::Nfs4`] for a status without a counterpart in NFSv3.
pub(crate) fn v3_status(operation: Operation, status: Status) -> Result<v3::Status, Error> {
    use Operation as Op;
    if let Ok(same) = v3::Status::try_from(status.number()) {
        return Ok(same);
    }
    Ok(match status {
        Status::Grace => v3::Status::Jukebox,
        Status::Symlink | Status::WrongType if operation == Op::Open => v3::Status::Exist,
        // A file handle that should be that of a directory.
        Status::Symlink if !matches!(operation, Op::Read | Op::Write | Op::Setattr | Op::Commit) => {
            v3::Status::NotDir
        }
        Status::Symlink | Status::WrongType => v3::Status::Inval,
        Status::BadName | Status::BadChar | Status::BadOwner => v3::Status::Inval,
        Status::AttrNotSupp => v3::Status::NotSupp,
        Status::FhExpired => v3::Status::Stale,
        Status::WrongSec | Status::OpenMode => v3::Status::Access,
        // NVERIFY before SETATTR, the guard, returns NOT_SAME.
        Status::NotSame => v3::Status::NotSync,
        status => return Err(Error::Nfs4 { operation, status }),
    })
}
