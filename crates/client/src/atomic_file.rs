//! Files that appear under their name when they are complete.

use std::{
    io::ErrorKind,
    path::{Path, PathBuf},
};

use millrace_runtime::RuntimeExt;

use crate::{
    Client, Error, Metadata, handles,
    ops::{Attributes, CreateHow, FileHandle, SetAttributes},
    paths::bytes,
    tree::copy_data,
};

/// The marker of temporary names, before 16 hexadecimal digits.
const MARKER: &str = ".millrace-";
/// Number of hexadecimal digits of a temporary name.
const DIGITS: usize = 16;
/// Maximum number of attempts to create a file in a directory that other clients remove meanwhile.
const MAX_ATTEMPTS: usize = 16;

/// Returns the name of a temporary file for the file `name`, in the same directory: hidden, unique by `random`, at most
/// 255 bytes.
pub fn temporary_name(name: &[u8], random: u64) -> Vec<u8> {
    const NAME_MAX: usize = 255;
    let suffix = format!("{MARKER}{random:016x}");
    let kept = name.len().min(NAME_MAX - 1 - suffix.len());
    let mut out = Vec::with_capacity(1 + kept + suffix.len());
    out.push(b'.');
    out.extend_from_slice(&name[..kept]);
    out.extend_from_slice(suffix.as_bytes());
    out
}

/// Whether `name` has the form of [`temporary_name`]. Such files are incomplete, or remain from a program that ended
/// while it wrote.
///
/// ```
/// use millrace_client::{is_temporary_name, temporary_name};
///
/// assert!(is_temporary_name(&temporary_name(b"data", 7)));
/// assert!(!is_temporary_name(b"data") && !is_temporary_name(b".millrace-7"));
/// ```
pub fn is_temporary_name(name: &[u8]) -> bool {
    let Some((start, digits)) = name.split_last_chunk::<DIGITS>() else { return false };
    start.first() == Some(&b'.')
        && start.len() > MARKER.len()
        && start.ends_with(MARKER.as_bytes())
        && digits.iter().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
}

/// A file that appears under its name at once, when it is complete and on stable storage. Other clients see the earlier
/// file, or none, until then.
///
/// The data is written to a temporary file in the same directory ([`temporary_name`]). [`Self::replace`] commits it and
/// renames it; [`Self::create_new`] commits it and links it, so that exactly one of several clients creates the name.
/// Dropping the file before removes the temporary file in the background; a program that ends before leaves it.
///
/// ```
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/doc/server.rs"));
/// # fn main() { run(|url| async move {
/// use millrace_client::{AtomicFile, Client};
///
/// let client = Client::connect(&url).await?;
/// let mut file = AtomicFile::create(&client, "settings/current").await?;
/// file.file().write(0, b"new").await?;
/// assert!(!client.try_exists("settings/current").await?);
/// file.replace().await?;
/// assert_eq!(client.read("settings/current").await?, b"new");
/// # Ok(()) }) }
/// ```
#[derive(Debug)]
pub struct AtomicFile {
    client: Client,
    path: PathBuf,
    dir: FileHandle,
    name: Vec<u8>,
    temporary: Vec<u8>,
    file: handles::File,
    /// Whether the temporary name exists.
    pending: bool,
}

impl AtomicFile {
    /// Creates the temporary file for the file at `path`, with the permission bits `0o644`, and the missing directories
    /// of `path`.
    ///
    /// # Errors
    /// Kind [`ErrorKind::InvalidInput`] if `path` has no last component; the errors of [`Client::create_dir_all`] and
    /// [`handles::Client::create`].
    pub async fn create(client: &Client, path: impl AsRef<Path>) -> Result<Self, Error> {
        let path = path.as_ref();
        let mut attempts = 0;
        loop {
            match Self::create_in_directory(client, path).await {
                // Another client may remove an empty directory after this one has created it.
                Err(e) if is_missing(&e) && attempts < MAX_ATTEMPTS => attempts += 1,
                created => return created,
            }
            if let Some(parent) = path.parent() {
                client.create_dir_all(parent).await?;
            }
        }
    }

    async fn create_in_directory(client: &Client, path: &Path) -> Result<Self, Error> {
        let nfs = client.by_handle();
        let (dir, name) = nfs.resolve_parent(bytes(path)).await?;
        let temporary = temporary_name(&name, client.runtime().random_u64());
        // The name is unique, so that a retransmitted CREATE is harmless.
        let how = CreateHow::Unchecked(SetAttributes {
            mode: Some(0o644),
            size: Some(0),
            ..SetAttributes::default()
        });
        let created = nfs.create(dir, &temporary, how).await.map_err(|e| e.at(bytes(path)))?;
        let file = handles::File::new(nfs.clone(), created.handle);
        Ok(Self { client: client.clone(), path: path.to_owned(), dir, name, temporary, file, pending: true })
    }

    /// The path under which the file appears.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The file, to write its content in any order. Writes after [`Self::replace`] or [`Self::create_new`] change the
    /// file that other clients see.
    pub fn file(&self) -> &handles::File {
        &self.file
    }

    /// Copies the content of another file of the client, with `size` bytes, into this file: within the server if it can,
    /// otherwise through this client and UNSTABLE. Returns the number of bytes, which is larger if the file has grown.
    ///
    /// # Errors
    /// The errors of [`handles::File::copy_range`], [`handles::File::read_into`] and [`handles::File::write_from`].
    pub async fn copy_from(&self, source: &handles::File, size: u64) -> Result<u64, Error> {
        copy_data(source, &self.file, size).await
    }

    /// Makes the data stable, and renames the file to its name; an earlier file of that name is removed. Returns the
    /// attributes.
    ///
    /// # Errors
    /// Kind [`ErrorKind::IsADirectory`] or [`ErrorKind::AlreadyExists`] if a directory has the name; the errors of
    /// [`handles::File::commit`] and [`handles::Client::rename`]. A later call retries.
    pub async fn replace(&mut self) -> Result<Metadata, Error> {
        let attributes = self.commit().await?;
        let renamed = self.client.by_handle().rename(self.dir, &self.temporary, self.dir, &self.name).await;
        renamed.map_err(|e| self.at(e))?;
        self.pending = false;
        Ok(attributes.into())
    }

    /// Makes the data stable, and gives the file its name, which must not exist. Returns the attributes.
    ///
    /// # Errors
    /// Kind [`ErrorKind::AlreadyExists`] if the name exists; [`ErrorKind::Unsupported`] if the file system has no hard
    /// links; the errors of [`handles::File::commit`] and [`handles::Client::link`]. A later call retries.
    pub async fn create_new(&mut self) -> Result<Metadata, Error> {
        let attributes = self.commit().await?;
        let linked = self.client.by_handle().link(self.file.handle(), self.dir, &self.name).await;
        linked.map_err(|e| self.at(e))?;
        self.pending = false;
        // The file has its name: an error is only logged, because a caller would take it for a failure.
        remove_logged(&self.client, self.dir, &self.temporary).await;
        Ok(attributes.into())
    }

    /// Removes the temporary file.
    ///
    /// # Errors
    /// The errors of [`handles::Client::remove`].
    pub async fn remove(mut self) -> Result<(), Error> {
        if self.pending {
            match self.client.by_handle().remove(self.dir, &self.temporary).await {
                Err(e) if !e.is_not_found() => return Err(self.at(e)),
                _ => self.pending = false,
            }
        }
        Ok(())
    }

    /// Makes the data stable, and returns the attributes. Neither RENAME nor LINK changes the size or the modification
    /// time, and afterwards another client may have removed the file.
    async fn commit(&self) -> Result<Attributes, Error> {
        if !self.pending {
            return Err(Error::InvalidInput(format!("{} is already complete", self.path.display())));
        }
        let changed = self.file.commit_and_attributes().await.map_err(|e| self.at(e))?.unwrap_or_default();
        match changed.after {
            Some(attributes) => Ok(attributes),
            None => self.file.attributes().await.map_err(|e| self.at(e)),
        }
    }

    fn at(&self, e: Error) -> Error {
        e.at(bytes(&self.path))
    }
}

impl Drop for AtomicFile {
    fn drop(&mut self) {
        if !self.pending {
            return;
        }
        let (client, dir) = (self.client.clone(), self.dir);
        let temporary = std::mem::take(&mut self.temporary);
        let removal = async move { remove_logged(&client, dir, &temporary).await };
        self.client.runtime().spawn("remove a temporary file", Box::pin(removal));
    }
}

/// Whether a directory of the path does not exist.
fn is_missing(e: &Error) -> bool {
    matches!(e.kind(), ErrorKind::NotFound | ErrorKind::StaleNetworkFileHandle)
}

async fn remove_logged(client: &Client, dir: FileHandle, name: &[u8]) {
    match client.by_handle().remove(dir, name).await {
        Err(error) if !error.is_not_found() => {
            let name = String::from_utf8_lossy(name);
            tracing::warn!(%name, %error, "cannot remove a temporary file: remove it later");
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn temporary_names_are_short_hidden_and_recognized() {
        assert_eq!(temporary_name(b"a.txt", 10), b".a.txt.millrace-000000000000000a");
        for name in [&b"a"[..], b"", b".x", &[b'n'; 255], "Zürich".as_bytes()] {
            let temporary = temporary_name(name, 0x12);
            assert!(temporary.len() <= 255 && temporary.starts_with(b"."), "{name:?}");
            assert!(temporary.ends_with(b".millrace-0000000000000012"), "{name:?}");
            assert!(is_temporary_name(&temporary), "{name:?}");
        }
        for name in [
            &b"a.millrace-0000000000000012"[..],
            b".a.millrace-000000000000012",
            b".a.millrace-000000000000001G",
            b"",
        ] {
            assert!(!is_temporary_name(name), "{}", name.escape_ascii());
        }
    }
}
