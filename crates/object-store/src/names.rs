//! Copying, renaming and removing objects.

use std::{io::ErrorKind, os::unix::ffi::OsStrExt, path::Path as FilePath};

use millrace_client::{AtomicFile, Client, FileType, nfs::v3::FileHandle, nfs3};
use object_store::{CopyMode, Result, path::Path};

use crate::{error, memory::Memory};

/// Maximum number of attempts to copy an object that is replaced meanwhile.
const MAX_ATTEMPTS: usize = 100;

/// The file of an object and its location.
#[derive(Clone, Copy)]
pub(crate) struct Object<'a> {
    pub(crate) path: &'a FilePath,
    pub(crate) location: &'a Path,
}

impl Object<'_> {
    /// The handle of the object's file; symbolic links are not followed.
    async fn handle(&self, client: &Client) -> Result<FileHandle> {
        let found = client.nfs3().resolve_link(self.path.as_os_str().as_bytes()).await;
        let (handle, attributes) = found.map_err(|e| error::of_existing(self.location, e))?;
        match attributes.file_type {
            FileType::Regular | FileType::Symlink => Ok(handle),
            other => Err(error::not_an_object(self.location, other)),
        }
    }
}

/// Copies an object through this client: to a temporary file, which then replaces the target, or is created under its
/// name.
pub(crate) async fn copy(
    (client, memory): (&Client, &Memory),
    from: Object<'_>,
    to: Object<'_>,
    mode: CopyMode,
) -> Result<()> {
    for _ in 0..MAX_ATTEMPTS {
        if let Some(copied) = try_copy((client, memory), from, to, mode).await? {
            return Ok(copied);
        }
    }
    Err(error::changed(from.location))
}

/// `None` if another client replaced the source.
async fn try_copy(
    (client, memory): (&Client, &Memory),
    from: Object<'_>,
    to: Object<'_>,
    mode: CopyMode,
) -> Result<Option<()>> {
    let source = client.nfs3().resolve(from.path.as_os_str().as_bytes()).await;
    let (handle, attributes) = source.map_err(|e| error::of_existing(from.location, e))?;
    if attributes.file_type != FileType::Regular {
        return Err(error::not_an_object(from.location, attributes.file_type));
    }
    let source = nfs3::File::new(client.nfs3().clone(), handle);
    let at = |e| error::at(to.location, e);
    let mut target = AtomicFile::create(client, to.path).await.map_err(at)?;
    // The client retains data until this limit.
    let retained = attributes.size.min(client.options().unstable_limit as u64);
    let _permit = memory.for_writing(retained as usize).await;
    match target.copy_from(&source, attributes.size).await {
        Err(e) if error::is_stale(&e) => return Ok(None),
        copied => copied.map_err(at)?,
    };
    match mode {
        CopyMode::Overwrite => target.replace().await,
        CopyMode::Create => target.create_new().await,
    }
    .map_err(at)?;
    Ok(Some(()))
}

/// Renames an object.
pub(crate) async fn rename(client: &Client, from: Object<'_>, to: Object<'_>) -> Result<()> {
    let source = from.handle(client).await?;
    if from.location == to.location {
        return Ok(());
    }
    if to.handle(client).await.is_ok_and(|target| target == source) {
        // RENAME between two names of one file has no effect (RFC 1813 section 3.3.14).
        return remove(client, from).await;
    }
    in_directory(client, from, to, || client.rename(from.path, to.path)).await
}

/// Gives an object another name, which must not exist. The object has both names for a moment.
pub(crate) async fn rename_new(client: &Client, from: Object<'_>, to: Object<'_>) -> Result<()> {
    from.handle(client).await?;
    in_directory(client, from, to, || client.hard_link(from.path, to.path)).await?;
    remove(client, from).await
}

/// Removes an object.
pub(crate) async fn remove(client: &Client, object: Object<'_>) -> Result<()> {
    match client.remove_file(object.path).await {
        Err(e) if e.kind() == ErrorKind::IsADirectory => {
            Err(error::not_an_object(object.location, FileType::Directory))
        }
        removed => removed.map_err(|e| error::of_existing(object.location, e)),
    }
}

/// Makes a change that gives an object the name `to`. Creates the missing directories of the name.
async fn in_directory<F: Future<Output = Result<(), millrace_client::Error>>>(
    client: &Client,
    from: Object<'_>,
    to: Object<'_>,
    change: impl Fn() -> F,
) -> Result<()> {
    let is_missing = |e: &millrace_client::Error| e.kind() == ErrorKind::NotFound;
    let mut changed = change().await;
    if changed.as_ref().is_err_and(is_missing)
        && let Some(directory) = to.path.parent()
    {
        client.create_dir_all(directory).await.map_err(|e| error::at(to.location, e))?;
        changed = change().await;
    }
    changed.map_err(|e| error::at(if is_missing(&e) { from.location } else { to.location }, e))
}
