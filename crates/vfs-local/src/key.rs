//! Storage of the key for the message authentication code of file handles.

use std::{
    fs::{File, OpenOptions},
    io::{self, Write},
    os::{fd::BorrowedFd, unix::fs::OpenOptionsExt},
    path::Path,
};

use rustix::{
    fs::{FlockOperation, XattrFlags},
    io::Errno,
    rand::GetRandomFlags,
};

use super::{LocalError, mac::Key};

/// Readable only with `CAP_SYS_ADMIN`.
const SECRET_ATTRIBUTE: &str = "trusted.millrace.handle_key";
/// For servers without that capability; readable by local users with access to the directory. The key then
/// prevents clients from forging handles; forged handles of local users find nothing, because the index
/// contains only objects inside the export.
const READABLE_ATTRIBUTE: &str = "user.millrace.handle_key";

/// Random bytes.
pub(super) fn random<const N: usize>() -> Result<[u8; N], LocalError> {
    let mut bytes = [0; N];
    let n = rustix::rand::getrandom(&mut bytes, GetRandomFlags::empty())
        .map_err(|e| LocalError::Key { source: e.into() })?;
    if n == N { Ok(bytes) } else { Err(LocalError::Key { source: io::ErrorKind::UnexpectedEof.into() }) }
}

/// Returns the key from an extended attribute of the root, creating it if necessary; `None` if the file
/// system or the process's privileges do not allow it. With `secret`, uses the attribute that only the
/// superuser can read.
pub(super) fn from_attribute(root: BorrowedFd<'_>, secret: bool) -> Result<Option<Key>, LocalError> {
    let name = if secret { SECRET_ATTRIBUTE } else { READABLE_ATTRIBUTE };
    // Twice, since another server may create it at the same time.
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
                let _ = rustix::fs::fsync(root); // Best effort: if the key is lost, handles merely become stale.
                return Ok(Some(fresh));
            }
            Err(Errno::EXIST) => {}
            Err(_) => return Ok(None),
        }
    }
    Ok(None)
}

/// Returns the key in a file ([`secret_file`]).
pub(super) fn from_file(path: &Path) -> Result<Key, LocalError> {
    let fresh = random()?;
    secret_file(path, |bytes| *bytes = fresh).map_err(|source| LocalError::Key { source })
}

/// Returns a 16-byte secret from a file readable only by its owner. If the file does not exist, creates it
/// with a secret from `random`. The secret is on disk when this returns, and the file is never partially
/// written: after a crash it is unchanged or complete. Processes that create it concurrently get the same
/// secret.
///
/// An empty file, or one of zeros, is what a crash can leave of a file written without these precautions; it
/// is replaced.
///
/// # Errors
/// I/O errors, or the file has another length.
pub fn secret_file(path: &Path, random: impl FnOnce(&mut [u8; 16])) -> io::Result<[u8; 16]> {
    if let Some(secret) = read_secret(path)? {
        return Ok(secret);
    }
    let directory = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => File::open(parent)?,
        _ => File::open(".")?,
    };
    // If directories cannot be locked, the first process to create the link below wins.
    let _ = rustix::fs::flock(&directory, FlockOperation::LockExclusive);
    if let Some(secret) = read_secret(path)? {
        return Ok(secret);
    }
    let mut temporary = path.as_os_str().to_owned();
    temporary.push(".new");
    let temporary = Path::new(&temporary);
    let mut secret = [0; 16];
    random(&mut secret);
    remove_if_there(temporary)?;
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(temporary)?;
    file.write_all(&secret)?;
    file.sync_all()?;
    remove_if_there(path)?;
    let linked = std::fs::hard_link(temporary, path);
    remove_if_there(temporary)?;
    match linked {
        Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(e),
        _ => directory.sync_all()?,
    }
    read_secret(path)?
        .ok_or_else(|| io::Error::other(format!("{} was written by another process", path.display())))
}

/// Reads the secret, if the file contains one.
fn read_secret(path: &Path) -> io::Result<Option<[u8; 16]>> {
    let bytes = match std::fs::read(path) {
        Ok(bytes) => bytes,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(e),
    };
    match <[u8; 16]>::try_from(bytes.as_slice()) {
        Ok(secret) => Ok((secret != [0; 16]).then_some(secret)),
        Err(_) if bytes.is_empty() => Ok(None),
        Err(_) => {
            let what = format!("{} is not 16 bytes long; restore or remove it", path.display());
            Err(io::Error::new(io::ErrorKind::InvalidData, what))
        }
    }
}

fn remove_if_there(path: &Path) -> io::Result<()> {
    match std::fs::remove_file(path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    const KEY: &[u8] = b"0123456789abcdef";

    /// States that a crash can leave: any part of the temporary file, before and after the key has its name,
    /// and those of versions that wrote the key in place.
    #[test]
    fn crash_leaves_a_usable_secret_file() {
        let temporary = |len: usize| (".new", &KEY[..len]);
        let whole = ("", KEY);
        type Files<'a> = &'a [(&'a str, &'a [u8])];
        let states: [(Files<'_>, bool); 9] = [
            (&[], false),
            (&[temporary(0)], false),
            (&[temporary(5)], false),
            (&[temporary(16)], false),
            (&[temporary(16), whole], true),
            (&[whole], true),
            (&[("", b"")], false),
            (&[("", &[0; 16])], false),
            (&[("", b""), temporary(16)], false),
        ];
        for (i, (files, kept)) in states.into_iter().enumerate() {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("key");
            for (end, content) in files {
                std::fs::write(dir.path().join(format!("key{end}")), content).unwrap();
            }
            let secret = secret_file(&path, |b| *b = [9; 16]).unwrap();
            assert_eq!(secret, if kept { KEY.try_into().unwrap() } else { [9; 16] }, "state {i}");
            assert_eq!(secret_file(&path, |b| *b = [8; 16]).unwrap(), secret, "state {i}");
            if !kept {
                let mode = std::fs::metadata(&path).unwrap().permissions().mode();
                assert_eq!(mode & 0o777, 0o600, "state {i}");
            }
        }
    }

    #[test]
    fn file_of_another_length_is_not_overwritten() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("key");
        for content in [&b"short"[..], &[1; 17]] {
            std::fs::write(&path, content).unwrap();
            let message = secret_file(&path, |_| panic!("no new secret")).unwrap_err().to_string();
            assert!(message.contains("not 16 bytes long"), "{message}");
            assert_eq!(std::fs::read(&path).unwrap(), content);
        }
    }

    #[test]
    fn concurrent_creators_get_the_same_secret() {
        for left in [None, Some(&b""[..])] {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("key");
            if let Some(content) = left {
                std::fs::write(&path, content).unwrap();
            }
            let secrets: Vec<_> = std::thread::scope(|s| {
                let path = &path;
                let all: Vec<_> =
                    (1..9).map(|i| s.spawn(move || secret_file(path, |b| *b = [i; 16]).unwrap())).collect();
                all.into_iter().map(|t| t.join().unwrap()).collect()
            });
            assert!(secrets.iter().all(|s| *s == secrets[0]), "{secrets:?}");
            assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
        }
    }
}
