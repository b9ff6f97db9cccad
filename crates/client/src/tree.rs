//! Operations on more than one object: all directories of a path, whole trees, copies.

use std::{io::ErrorKind, path::Path};

use futures::{StreamExt, TryStreamExt, stream};

use crate::{
    Client, Error, OpenOptions,
    handles::{self, resolve::bad_path},
    ops::{self, FileHandle, FileType, SetAttributes},
    paths::{DEPTH, bytes},
};

/// A directory that [`Client::remove_dir_all`] removes.
struct Level {
    parent: FileHandle,
    name: Vec<u8>,
    handle: FileHandle,
    /// Whether its entries have been removed or pushed to the stack.
    emptied: bool,
}

impl Client {
    /// Creates a directory and its missing parents.
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/doc/server.rs"));
    /// # fn main() { run(|url| async move {
    /// # let client = millrace_client::Client::connect(&url).await?;
    /// client.create_dir_all("reports/2026/q1").await?;
    /// client.create_dir_all("reports/2026/q1").await?; // It may exist.
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Errors
    /// Kind [`ErrorKind::AlreadyExists`] or [`ErrorKind::NotADirectory`] if a component of the path is not a
    /// directory; the errors of [`Self::create_dir`].
    pub async fn create_dir_all(&self, path: impl AsRef<Path>) -> Result<(), Error> {
        let path = path.as_ref();
        let mut missing = Vec::new();
        for ancestor in path.ancestors() {
            match self.create_dir(ancestor).await {
                Ok(()) => break,
                Err(e) if e.kind() == ErrorKind::NotFound => missing.push(ancestor),
                // Existing directories include the root, and names such as `..`.
                Err(_) if self.metadata(ancestor).await.is_ok_and(|m| m.is_dir()) => break,
                Err(e) => return Err(e),
            }
        }
        for dir in missing.into_iter().rev() {
            match self.create_dir(dir).await {
                // Another client may have created the directory concurrently.
                Err(e) if !self.metadata(dir).await.is_ok_and(|m| m.is_dir()) => return Err(e),
                _ => {}
            }
        }
        Ok(())
    }

    /// Removes a directory with its contents. Symbolic links, including `path`, are removed and never
    /// followed.
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/doc/server.rs"));
    /// # fn main() { run(|url| async move {
    /// # let client = millrace_client::Client::connect(&url).await?;
    /// client.create_dir_all("a/b/c").await?;
    /// client.write("a/b/file", "x").await?;
    /// client.remove_dir_all("a").await?;
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Errors
    /// Kind [`ErrorKind::NotFound`] if the directory does not exist, [`ErrorKind::NotADirectory`] if `path`
    /// is neither a directory nor a symbolic link, [`ErrorKind::DirectoryNotEmpty`] if another client adds
    /// entries concurrently; the errors of [`handles::Client::remove`] and [`handles::Client::rmdir`]. Entries
    /// removed before an error stay removed.
    pub async fn remove_dir_all(&self, path: impl AsRef<Path>) -> Result<(), Error> {
        let path = bytes(path.as_ref());
        let at = |e: Error| e.at(path);
        let nfs = self.by_handle();
        let (parent, name) = nfs.resolve_parent(path).await?;
        let top = nfs.lookup(parent, &name).await.map_err(at)?;
        match top.attributes.file_type {
            FileType::Symlink => return nfs.remove(parent, name).await.map(drop).map_err(at),
            FileType::Directory => {}
            _ => return Err(bad_path(path, ErrorKind::NotADirectory, "not a directory")),
        }
        let mut stack = vec![Level { parent, name, handle: top.handle, emptied: false }];
        while let Some(level) = stack.last_mut() {
            if level.emptied {
                gone(nfs.rmdir(level.parent, &level.name).await).map_err(at)?;
                stack.pop();
            } else {
                level.emptied = true;
                let dir = level.handle;
                stack.extend(remove_entries(nfs, dir).await.map_err(at)?);
            }
        }
        Ok(())
    }

    /// Copies the content and the permission bits of a file to another one, which is created or replaced.
    /// Returns the number of bytes. The server copies the data if it can ([`handles::File::copy_range`]); otherwise the data
    /// passes through this client, without a copy in memory. On return, it is on stable storage.
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/doc/server.rs"));
    /// # fn main() { run(|url| async move {
    /// # let client = millrace_client::Client::connect(&url).await?;
    /// client.write("from", [7; 1000]).await?;
    /// assert_eq!(client.copy("from", "to").await?, 1000);
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Errors
    /// Kind [`ErrorKind::InvalidInput`] if both paths name the same file; the errors of
    /// [`OpenOptions::open`], [`handles::File::copy_range`], [`handles::File::read_into`] and [`handles::File::write_from`].
    pub async fn copy(&self, from: impl AsRef<Path>, to: impl AsRef<Path>) -> Result<u64, Error> {
        let (from, to) = (from.as_ref(), to.as_ref());
        let source = self.open(from).await?;
        let attributes = source.by_handle().attributes().await.map_err(|e| e.at(bytes(from)))?;
        let target = OpenOptions::new().write(true).create(true).mode(attributes.mode).open(self, to).await?;
        if target.handle() == source.handle() {
            return Err(bad_path(
                bytes(to),
                ErrorKind::InvalidInput,
                "source and target of the copy are the same file",
            ));
        }
        target.set_len(0).await?;
        let total = copy_data(source.by_handle(), target.by_handle(), attributes.size).await?;
        target.by_handle().commit().await?;
        target.set_permissions(attributes.mode).await?;
        Ok(total)
    }
}

/// Copies the data of a file with `size` bytes to another one, within the server if it can, and otherwise through this
/// client, without a copy in memory and UNSTABLE. Holes are not written: the other file is truncated first. Returns the
/// number of bytes, which is larger if the file has grown.
pub(crate) async fn copy_data(from: &handles::File, to: &handles::File, size: u64) -> Result<u64, Error> {
    let client = from.client();
    // SEEK does not find retained data that a restarted server has lost.
    from.commit().await?;
    let is_sparse = client.getattr(from.handle()).await?.used < size;
    let extents = if is_sparse { client.extents(from.handle(), size).await? } else { None };
    let skip_zeros = is_sparse && extents.is_none();
    let mut parts = extents.unwrap_or_else(|| std::iter::once(0..size).collect());
    let set_size = async |size| {
        let attributes = SetAttributes { size: Some(size), ..SetAttributes::default() };
        to.client().setattr(to.handle(), attributes, None).await.map(drop)
    };
    if is_sparse {
        set_size(0).await?;
    }
    let (mut within, mut missing) = (0, 0);
    for part in &parts {
        let len = part.end - part.start;
        match to.copy_range(to.client(), (from, part.start), part.start, len).await {
            Err(e) if matches!(e.kind(), ErrorKind::Unsupported | ErrorKind::CrossesDevices) => break,
            copied => missing += len - copied?,
        }
        within += 1;
    }
    let piece = u64::from(client.rsize());
    let copied = |at, len: u64| async move {
        let (_, data, eof) = from.read_piece(client, at, len as usize).await?;
        let read = data.len() as u64;
        if read > 0 && !(skip_zeros && data.iter().all(|view| view.iter().all(|byte| *byte == 0))) {
            to.write_from(at, data).await?;
        }
        Ok::<_, Error>((len - read, eof))
    };
    let left = parts.split_off(within).into_iter();
    let pieces =
        left.flat_map(|part| (part.start..part.end).step_by(piece as usize).map(move |at| (at, part.end)));
    let known = stream::iter(pieces.map(|(at, end)| copied(at, piece.min(end - at))));
    missing +=
        known.buffer_unordered(DEPTH).try_fold(0, |sum, (short, _)| async move { Ok(sum + short) }).await?;
    let mut total = size - missing;
    if is_sparse {
        set_size(total).await?;
    }
    // The file may have grown.
    while total >= size {
        let (short, eof) = copied(total, piece).await?;
        total += piece - short;
        if eof {
            break;
        }
    }
    Ok(total)
}

/// Removes the entries of `dir` that are not directories, and returns its directories.
async fn remove_entries(nfs: &handles::Client, dir: FileHandle) -> Result<Vec<Level>, Error> {
    let entries = nfs.readdir(dir).await?.into_iter().filter(|e| !e.is_dot());
    let removals = stream::iter(entries.map(|entry| remove_entry(nfs, dir, entry)));
    removals.buffer_unordered(DEPTH).try_filter_map(async |level| Ok(level)).try_collect().await
}

/// Removes an entry, or returns it if it is a directory.
async fn remove_entry(
    nfs: &handles::Client,
    dir: FileHandle,
    entry: ops::DirEntry,
) -> Result<Option<Level>, Error> {
    let name = entry.name;
    let (handle, file_type) = match (entry.handle, entry.attributes) {
        (Some(handle), Some(attributes)) => (handle, attributes.file_type),
        _ => match nfs.lookup(dir, &name).await {
            Ok(object) => (object.handle, object.attributes.file_type),
            Err(e) if e.is_not_found() => return Ok(None),
            Err(e) => return Err(e),
        },
    };
    if file_type == FileType::Directory {
        return Ok(Some(Level { parent: dir, name, handle, emptied: false }));
    }
    gone(nfs.remove(dir, name).await).map(|()| None)
}

/// Succeeds also if another client has removed the name.
fn gone<T>(removed: Result<T, Error>) -> Result<(), Error> {
    match removed {
        Err(e) if !e.is_not_found() => Err(e),
        _ => Ok(()),
    }
}
