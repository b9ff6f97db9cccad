//! Files of an export as objects: the common part of `millrace-object-store` and `millrace-opendal`.
//!
//! An object is a regular file, or a symbolic link to one. It is never changed in place: [`AtomicFile`] replaces it by
//! another file. A handle therefore identifies one version of an object; reads of a handle fail with the kind
//! [`ErrorKind::StaleNetworkFileHandle`] after the version has been replaced or removed.
//!
//! Objects are read as [`Bytes`] in memory of the client's arena, without a copy. READs and WRITEs in flight, and the
//! memory that callers hold, each use at most a quarter of the arena: operations beyond that wait, and further data for
//! callers is copied.

mod directory;
mod memory;
mod names;
mod read;
mod update;
mod version;
mod write;

use std::{io::ErrorKind, os::unix::ffi::OsStrExt, path::Path};

pub use bytes::Bytes;
use millrace_client::{AtomicFile, Client, Error, FileType};

use self::memory::Memory;
pub use self::{
    directory::{Directory, Entry},
    version::Version,
};

/// The objects of an export. Clones share the limits of memory.
#[derive(Debug, Clone)]
pub struct Objects {
    client: Client,
    memory: Memory,
}

/// Whether a change may replace an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// It replaces an object of the name.
    Replace,
    /// It fails with the kind [`ErrorKind::AlreadyExists`] if the name exists: exactly one of several clients creates it.
    Create,
}

impl Objects {
    /// Returns the objects of the export of `client`.
    pub fn new(client: Client) -> Self {
        let memory = Memory::new(&client);
        Self { client, memory }
    }

    /// The client.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// The present version of the object at `path`.
    ///
    /// # Errors
    /// Kind [`ErrorKind::NotFound`], [`ErrorKind::NotADirectory`] if an object is a part of the path,
    /// [`ErrorKind::IsADirectory`]; the errors of [`millrace_client::handles::Client::resolve`].
    pub async fn find(&self, path: &Path) -> Result<Version, Error> {
        let (handle, attributes) = self.client.by_handle().resolve(path.as_os_str().as_bytes()).await?;
        let (kind, reason) = match attributes.file_type {
            FileType::Regular => return Ok(Version { handle, attributes }),
            FileType::Directory => (ErrorKind::IsADirectory, "a directory".to_owned()),
            other => (ErrorKind::NotFound, format!("not a regular file but a {other:?}").to_lowercase()),
        };
        Err(Error::Path { path: path.to_string_lossy().into_owned(), reason, kind })
    }
}

/// Whether the error of a read means that the version of the object has been replaced, removed or truncated.
pub fn is_replaced(e: &Error) -> bool {
    e.kind() == ErrorKind::StaleNetworkFileHandle
}

/// Whether the error of [`Objects::find`] means that there is no object.
fn is_absent(e: &Error) -> bool {
    use ErrorKind as K;
    matches!(e.kind(), K::NotFound | K::NotADirectory | K::IsADirectory | K::StaleNetworkFileHandle)
}

/// Gives a complete file its name.
///
/// # Errors
/// As [`AtomicFile::replace`] and [`AtomicFile::create_new`].
pub async fn publish(file: &mut AtomicFile, mode: Mode) -> Result<Version, Error> {
    let metadata = match mode {
        Mode::Replace => file.replace().await?,
        Mode::Create => file.create_new().await?,
    };
    Ok(Version { handle: file.file().handle(), attributes: *metadata.attributes() })
}
