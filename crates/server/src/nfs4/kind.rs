//! The types of objects that operations accept.

use millrace_nfs::v4::Status;
use millrace_vfs::{Attr, FileKind, FsError};

use super::{convert, object::File};

/// Checks that an object is a regular file.
///
/// # Errors
/// ISDIR, SYMLINK, or WRONG_TYPE.
pub(super) fn check_regular(attr: &Attr) -> Result<(), Status> {
    match attr.kind {
        FileKind::Regular => Ok(()),
        FileKind::Directory => Err(Status::IsDir),
        FileKind::Symlink => Err(Status::Symlink),
        _ => Err(Status::WrongType),
    }
}

/// Checks that `file` is a regular file.
///
/// # Errors
/// Those of [`check_regular`], and those of the file system.
pub(super) async fn check_file(file: &File) -> Result<(), Status> {
    check_regular(&file.fs().getattr(&file.handle).await.map_err(convert::status)?)
}

/// The status of a failed operation on the data of `file`. File systems have no errors for the types of objects without
/// data, but NFSv4 has (RFC 8881 sections 15.1.2.9, 18.3, 18.22, 18.30, 18.32).
pub(super) async fn data_error(file: &File, error: FsError) -> Status {
    let status = convert::status(error);
    match status {
        Status::Inval | Status::NxIo | Status::NotSupp => check_file(file).await.err().unwrap_or(status),
        _ => status,
    }
}

/// The status of an operation that failed in `dir`, which may not be a directory.
pub(super) async fn directory_error(dir: &File, status: Status) -> Status {
    if !matches!(status, Status::NotDir | Status::Inval | Status::BadName | Status::BadChar) {
        return status;
    }
    match dir.fs().getattr(&dir.handle).await.map(|attr| attr.kind) {
        Ok(FileKind::Directory) => status,
        Ok(FileKind::Symlink) => Status::Symlink,
        Ok(_) => Status::NotDir,
        Err(error) => convert::status(error),
    }
}
