//! Extended attributes of users (xattr(7)) of local files and directories.

use std::{fs::File, io, path::Path};

use rustix::{
    fs::{XattrFlags, fsetxattr, getxattr, listxattr, lsetxattr},
    io::Errno,
};

use crate::{Error, tree::Xattrs};

/// The namespace.
const USER: &[u8] = b"user.";
/// Attributes of a millrace server on the files of its exports, which clients neither see nor change.
const OF_SERVER: &[u8] = b"millrace.";
/// The ACLs of files and directories.
const ACLS: [&[u8]; 2] = [b"system.posix_acl_access", b"system.posix_acl_default"];
/// Maximum size of the names, or of a value, in bytes (`XATTR_LIST_MAX`, `XATTR_SIZE_MAX`).
const MAX: usize = 64 << 10;
/// The size that most lists of names have at most, in bytes.
const SHORT: usize = 1 << 10;

/// The names, each with a NUL byte at its end. Most files need one system call and no memory.
fn list<T>(path: &Path, read: impl FnOnce(&[u8]) -> T) -> Result<T, Errno> {
    let mut short = [0; SHORT];
    match listxattr(path, &mut short) {
        Ok(size) => Ok(read(short.get(..size).unwrap_or_default())),
        Err(Errno::RANGE) => {
            let mut long = vec![0; MAX];
            let size = listxattr(path, &mut long[..])?;
            Ok(read(long.get(..size).unwrap_or_default()))
        }
        Err(Errno::OPNOTSUPP) => Ok(read(&[])),
        Err(e) => Err(e),
    }
}

fn failed(action: &'static str, path: &Path, name: &[u8]) -> impl FnOnce(Errno) -> Error {
    let (name, path) = (String::from_utf8_lossy(name).into_owned(), path.to_owned());
    move |e| Error::Xattr { action, name, path, source: io::Error::from(e) }
}

/// The attributes of users of `path`; without `keep`, only whether there are some.
pub(crate) fn of(path: &Path, keep: bool) -> Result<Xattrs, Error> {
    let mut found = Xattrs::default();
    let listed = list(path, |list| {
        let names = list.split(|byte| *byte == 0);
        found.lost.acl = names.clone().any(|name| ACLS.contains(&name));
        let of_users = names.filter_map(|name| name.strip_prefix(USER));
        let mut of_users = of_users.filter(|name| !name.starts_with(OF_SERVER));
        if !keep {
            found.lost.xattrs = of_users.next().is_some();
        }
        of_users.map(<[u8]>::to_vec).collect::<Vec<_>>()
    });
    let names = match listed {
        Err(_) if !keep => return Ok(found),
        listed => listed.map_err(|e| {
            let (action, path) = ("list the extended attributes of", path.to_owned());
            Error::Local { action, path, source: e.into() }
        })?,
    };
    if !keep {
        return Ok(found);
    }
    let mut value = vec![0; if names.is_empty() { 0 } else { MAX }];
    for name in names {
        match getxattr(path, full(&name), &mut value[..]) {
            Err(Errno::NODATA) => {} // Removed concurrently.
            read => {
                let size = read.map_err(failed("read", path, &name))?;
                found.keep(name, value.get(..size).unwrap_or_default().to_vec())?;
            }
        }
    }
    Ok(found)
}

fn full(name: &[u8]) -> Vec<u8> {
    [USER, name].concat()
}

/// Sets attributes of users with `set`, which gets the full name. `false` if the file system has none.
fn set_all(
    path: &Path,
    xattrs: &[(Vec<u8>, Vec<u8>)],
    set: impl Fn(&[u8], &[u8]) -> Result<(), Errno>,
) -> Result<bool, Error> {
    for (name, value) in xattrs {
        match set(&full(name), value) {
            Err(Errno::OPNOTSUPP) => return Ok(false),
            done => done.map_err(failed("set", path, name))?,
        }
    }
    Ok(true)
}

/// Sets attributes of users of an open file, which has this path.
pub(crate) fn set(path: &Path, file: &File, xattrs: &[(Vec<u8>, Vec<u8>)]) -> Result<bool, Error> {
    set_all(path, xattrs, |name, value| fsetxattr(file, name, value, XattrFlags::empty()))
}

/// Sets attributes of users of a directory.
pub(crate) fn set_directory(path: &Path, xattrs: &[(Vec<u8>, Vec<u8>)]) -> Result<bool, Error> {
    set_all(path, xattrs, |name, value| lsetxattr(path, name, value, XattrFlags::empty()))
}
