//! Where the key of the handles' mark is kept.

use std::{
    fs::OpenOptions,
    io::{Read, Write},
    os::{fd::BorrowedFd, unix::fs::OpenOptionsExt},
    path::Path,
};

use rustix::{fs::XattrFlags, io::Errno, rand::GetRandomFlags};

use super::{LocalError, mac::Key};

/// Only a process with `CAP_SYS_ADMIN` can read or write this one.
const SECRET: &str = "trusted.millrace.handle_key";
/// For servers without that right. Local users who can read the directory can read it; it then keeps clients from
/// making up handles, and local users are kept inside the export by the index, which knows no handle of an outsider.
const OPEN: &str = "user.millrace.handle_key";

/// Random bytes.
pub(super) fn random<const N: usize>() -> Result<[u8; N], LocalError> {
    let mut bytes = [0; N];
    let n = rustix::rand::getrandom(&mut bytes, GetRandomFlags::empty())
        .map_err(|e| LocalError::Key { source: e.into() })?;
    if n == N { Ok(bytes) } else { Err(LocalError::Key { source: std::io::ErrorKind::UnexpectedEof.into() }) }
}

/// The key in an extended attribute of the root, made at first use; `None` if the file system or our rights do not
/// allow it. With `secret`, in one that only the superuser can read.
pub(super) fn from_attribute(root: BorrowedFd<'_>, secret: bool) -> Result<Option<Key>, LocalError> {
    let name = if secret { SECRET } else { OPEN };
    // Twice: another server may be making it at the same moment.
    for _ in 0..2 {
        let mut key: Key = [0; 16];
        match rustix::fs::fgetxattr(root, name, &mut key) {
            Ok(16) => return Ok(Some(key)),
            Ok(_) => return Ok(None),
            Err(Errno::NODATA) => {}
            Err(_) => return Ok(None),
        }
        let fresh: Key = random()?;
        match rustix::fs::fsetxattr(root, name, &fresh, XattrFlags::CREATE) {
            Ok(()) => {
                let _ = rustix::fs::fsync(root); // Better kept than not; a lost key only ages handles.
                return Ok(Some(fresh));
            }
            Err(Errno::EXIST) => {}
            Err(_) => return Ok(None),
        }
    }
    Ok(None)
}

/// The key in a file of 16 bytes, made at first use and readable by its owner only.
pub(super) fn from_file(path: &Path) -> Result<Key, LocalError> {
    let failed = |source| LocalError::Key { source };
    match OpenOptions::new().write(true).create_new(true).mode(0o600).open(path) {
        Ok(mut file) => {
            let key: Key = random()?;
            file.write_all(&key).and_then(|()| file.sync_all()).map_err(failed)?;
            Ok(key)
        }
        Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => {
            let mut key: Key = [0; 16];
            let mut file = std::fs::File::open(path).map_err(failed)?;
            file.read_exact(&mut key).map_err(failed)?;
            Ok(key)
        }
        Err(e) => Err(failed(e)),
    }
}
