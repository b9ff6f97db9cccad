//! Reading directories of objects.

use std::{ffi::OsStr, io::ErrorKind, os::unix::ffi::OsStrExt, path::Path};

use millrace_client::{
    DirEntry, Error, FileType, ReadDir, is_temporary_name,
    ops::{Attributes, FileHandle},
};

use crate::{Objects, Version};

/// An entry of a directory that is an object or a directory.
#[derive(Debug, Clone)]
pub struct Entry {
    entry: DirEntry,
    handle: Option<FileHandle>,
    attributes: Attributes,
}

impl Entry {
    /// The name.
    pub fn name(&self) -> &OsStr {
        self.entry.file_name()
    }

    /// Whether it is a directory; otherwise it is an object.
    pub fn is_directory(&self) -> bool {
        self.attributes.file_type == FileType::Directory
    }

    /// The version of the object; `None` for a directory, and if the server did not send the handle.
    pub fn version(&self) -> Option<Version> {
        let handle = self.handle.filter(|_| !self.is_directory())?;
        Some(Version { handle, attributes: self.attributes })
    }

    /// The attributes of the object's file or of the directory.
    pub fn attributes(&self) -> &Attributes {
        &self.attributes
    }
}

/// A directory that is being read. It has one page of entries in memory.
#[derive(Debug)]
pub struct Directory {
    objects: Objects,
    entries: ReadDir,
}

impl Objects {
    /// Opens a directory; `None` if there is no directory, such as if another client has just removed it.
    ///
    /// # Errors
    /// As [`millrace_client::Client::read_dir`].
    pub async fn read_dir(&self, path: &Path) -> Result<Option<Directory>, Error> {
        match self.client().read_dir(path).await {
            Ok(entries) => Ok(Some(Directory { objects: self.clone(), entries })),
            Err(e) if is_gone(&e) => Ok(None),
            Err(e) => Err(e),
        }
    }
}

impl Directory {
    /// The next object or directory, `None` at the end. Temporary files, links to directories and special files are
    /// omitted.
    ///
    /// # Errors
    /// The errors of [`ReadDir::next_entry`].
    pub async fn next(&mut self) -> Result<Option<Entry>, Error> {
        loop {
            let entry = match self.entries.next_entry().await {
                Ok(Some(entry)) => entry,
                Ok(None) => return Ok(None),
                Err(e) if is_gone(&e) => return Ok(None),
                Err(e) => return Err(e),
            };
            if let Some(visible) = visible(&self.objects, entry).await? {
                return Ok(Some(visible));
            }
        }
    }
}

async fn visible(objects: &Objects, entry: DirEntry) -> Result<Option<Entry>, Error> {
    let (mut handle, mut attributes) = (entry.handle(), *entry.metadata().attributes());
    match attributes.file_type {
        FileType::Directory => {}
        _ if is_temporary_name(entry.file_name().as_bytes()) => return Ok(None),
        FileType::Regular => {}
        FileType::Symlink => {
            match objects.client().by_handle().resolve(entry.path().as_os_str().as_bytes()).await {
                // Links to directories are not followed, because they may form a cycle.
                Ok((target, of_target)) if of_target.file_type == FileType::Regular => {
                    (handle, attributes) = (Some(target), of_target);
                }
                Err(e) if e.is_unreachable() => return Err(e),
                _ => return Ok(None),
            }
        }
        _ => return Ok(None),
    }
    Ok(Some(Entry { entry, handle, attributes }))
}

/// Whether there is no directory.
fn is_gone(e: &Error) -> bool {
    matches!(e.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory | ErrorKind::StaleNetworkFileHandle)
}
