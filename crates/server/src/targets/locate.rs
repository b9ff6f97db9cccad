//! The file of a LUN: from the path in the settings to the handle in the file system of an export.

use std::{os::unix::ffi::OsStrExt, sync::Arc};

use millrace_vfs::{Attr, CreateHow, FileKind, FileSystemRef, FsError, Handle, Identity, SetAttr};

use crate::{
    export::Exports,
    file_key::{FileKey, file_key},
    target_settings::{LunSettings, NO_EXPORT},
};

/// The regular file of a LUN.
#[derive(Clone)]
pub(super) struct Located {
    pub(super) fs: FileSystemRef,
    pub(super) directory: Handle,
    pub(super) name: Vec<u8>,
    pub(super) file: Handle,
    /// In the state of NFSv4 clients.
    pub(super) key: FileKey,
    /// Whether the LUN, its export or the file system is read-only.
    pub(super) read_only: bool,
}

impl Located {
    /// Whether both are the same file.
    pub(super) fn is_same_file(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.fs, &other.fs) && self.file == other.file
    }
}

/// Finds the file of `lun` as the superuser, or creates it.
///
/// # Errors
/// The reason, with the required change.
pub(super) async fn locate(lun: &LunSettings, exports: &Exports) -> Result<Located, String> {
    let (export, rest) = exports.find(lun.path.as_os_str().as_bytes()).ok_or(NO_EXPORT)?;
    let fs = Arc::clone(export.whole());
    let mut parts: Vec<&[u8]> = rest.split(|b| *b == b'/').filter(|p| !p.is_empty()).collect();
    let name = parts.pop().ok_or("it is an export; name a file in it")?;
    let mut directory = fs.root();
    for part in parts {
        let (found, attr) = look_up(&fs, &directory, part).await?.ok_or_else(|| {
            format!("there is no directory {}; create it, or correct the path", shown(part))
        })?;
        if attr.kind != FileKind::Directory {
            return Err(format!("{} is not a directory; correct the path", shown(part)));
        }
        directory = found;
    }
    let read_only = lun.read_only || export.policy().read_only || !fs.info().writable;
    let (file, attr) = match look_up(&fs, &directory, name).await? {
        Some(found) => found,
        None => create(&fs, &directory, name, lun, read_only).await?,
    };
    if attr.kind != FileKind::Regular {
        return Err("it is not a regular file; correct the path".into());
    }
    lun.check_file_size(attr.size)?;
    let key = file_key(export, &file);
    Ok(Located { fs, directory, name: name.to_vec(), file, key, read_only })
}

/// Looks up `name`. A symbolic link is an error: following it would be the client's task.
async fn look_up(fs: &FileSystemRef, dir: &Handle, name: &[u8]) -> Result<Option<(Handle, Attr)>, String> {
    match fs.lookup(&Identity::root(), dir, name).await {
        Ok((_, attr)) if attr.kind == FileKind::Symlink => {
            let name = shown(name);
            Err(format!("{name} is a symbolic link, which is not followed; give the path of the file itself"))
        }
        Ok(found) => Ok(Some(found)),
        Err(FsError::NoEnt) => Ok(None),
        Err(e) => Err(format!("cannot look up {}: {e}; check its owner and mode", shown(name))),
    }
}

/// Creates the file with the configured size, accessible to its owner only.
async fn create(
    fs: &FileSystemRef,
    dir: &Handle,
    name: &[u8],
    lun: &LunSettings,
    read_only: bool,
) -> Result<(Handle, Attr), String> {
    let size = lun.size.filter(|_| !read_only).ok_or(
        "the file does not exist; create it (`truncate --size 1G FILE`), or give a writable LUN a size to create it",
    )?;
    let set = SetAttr { mode: Some(0o600), size: Some(size.0), ..SetAttr::default() };
    let failed =
        |e| format!("cannot create the file with {size}: {e}; check the free space and the directory");
    let created = fs.create(&Identity::root(), dir, name, &CreateHow::Guarded(set)).await.map_err(failed)?;
    Ok((created.handle, created.attr))
}

fn shown(name: &[u8]) -> String {
    String::from_utf8_lossy(name).into_owned()
}
