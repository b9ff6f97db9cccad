//! The objects of a tree of directories, with many calls in flight.

use std::{
    collections::HashSet,
    ffi::OsString,
    io::ErrorKind,
    path::{Path, PathBuf},
    sync::atomic::{AtomicUsize, Ordering},
};

use futures::{StreamExt, TryStreamExt, stream};
use millrace_client::{Client, DirEntry, Error, FileType, ReadDir, ops::FileHandle};

use crate::{
    errors::{Failure, at, text},
    metadata::{Stat, stat},
    ranges::DEPTH,
};

/// Maximum number of objects in memory for one operation, which need about 1 KiB each as objects of Python.
const MAX_OBJECTS: usize = 4 << 20;
/// Maximum number of levels of a tree: a path of 4,096 bytes has no more.
const MAX_LEVELS: usize = 2048;

/// An object: its path below the directory, its attributes, or those of the target of a symbolic link, and whether it is
/// such a link.
pub(crate) type Found = (OsString, Stat, bool);

/// The number of objects that an operation holds.
#[derive(Default)]
pub(crate) struct Count(AtomicUsize);

impl Count {
    /// Counts an object.
    ///
    /// # Errors
    /// Kind [`ErrorKind::OutOfMemory`] after [`MAX_OBJECTS`].
    pub(crate) fn add(&self) -> Result<(), Error> {
        if self.0.fetch_add(1, Ordering::Relaxed) < MAX_OBJECTS {
            return Ok(());
        }
        let reason = format!("more than {MAX_OBJECTS} objects: list its directories one by one");
        Err(Error::Path { path: String::new(), reason, kind: ErrorKind::OutOfMemory })
    }
}

/// The objects below `top`, in any order, down to `depth` levels. Links to directories are not followed, because they may
/// form a cycle. A directory that another client removes meanwhile, and one that the caller may not read, is omitted; one
/// that another client moves meanwhile is read once.
///
/// # Errors
/// Those of reading `top`, errors of calls, and those of a tree with too many levels or objects.
pub(crate) async fn tree(client: &Client, top: PathBuf, depth: usize) -> Result<Vec<Found>, Failure> {
    let (handle, _) =
        client.by_handle().resolve(top.as_os_str().as_encoded_bytes()).await.map_err(at(&top))?;
    let (mut found, count) = (Vec::new(), Count::default());
    let mut seen = HashSet::from([handle]);
    let mut level = vec![(handle, PathBuf::new())];
    for n in 0..depth {
        if level.is_empty() {
            break;
        }
        if n == MAX_LEVELS {
            let reason =
                format!("more than {MAX_LEVELS} levels of directories: list its directories one by one");
            let kind = ErrorKind::InvalidFilename;
            return Err(at(&top)(Error::Path { path: text(&top), reason, kind }));
        }
        let reads = level.into_iter().map(|(handle, below)| {
            let (top, count) = (&top, &count);
            async move { (read(client, (handle, top), &below, count).await, below) }
        });
        let mut reads = stream::iter(reads).buffer_unordered(DEPTH);
        let mut next = Vec::new();
        while let Some((entries, below)) = reads.next().await {
            match entries {
                Ok(entries) => {
                    for (object, directory) in entries {
                        if let Some(handle) = directory.filter(|handle| seen.insert(*handle)) {
                            next.push((handle, PathBuf::from(&object.0)));
                        }
                        found.push(object);
                    }
                }
                Err(e) if n > 0 && is_omitted(&e) => {}
                Err(e) => return Err(at(&if n > 0 { top.join(below) } else { top.clone() })(e)),
            }
        }
        level = next;
    }
    Ok(found)
}

fn is_omitted(e: &Error) -> bool {
    use ErrorKind as K;
    matches!(e.kind(), K::NotFound | K::NotADirectory | K::StaleNetworkFileHandle | K::PermissionDenied)
}

/// Reads a directory, which is `below` in `top`. Returns its objects, with their handles if they are directories.
async fn read(
    client: &Client,
    (directory, top): (FileHandle, &Path),
    below: &Path,
    count: &Count,
) -> Result<Vec<(Found, Option<FileHandle>)>, Error> {
    let nfs = client.by_handle();
    let entries = ReadDir::new(nfs.clone(), directory, below.to_owned());
    let found = entries.map_ok(|entry: DirEntry| async move {
        count.add()?;
        let link = stat(entry.handle(), entry.metadata().attributes());
        let path = entry.path().as_os_str().to_owned();
        match (entry.file_type(), entry.handle()) {
            (FileType::Directory, Some(handle)) => Ok(((path, link, false), Some(handle))),
            (FileType::Directory, None) => {
                match nfs.lookup(directory, entry.file_name().as_encoded_bytes()).await {
                    Ok(object) => Ok(((path, link, false), Some(object.handle))),
                    Err(e) if is_omitted(&e) => Ok(((path, link, false), None)),
                    Err(e) => Err(e),
                }
            }
            (FileType::Symlink, _) => {
                match nfs.resolve(top.join(entry.path()).as_os_str().as_encoded_bytes()).await {
                    Ok((handle, attributes)) => Ok(((path, stat(Some(handle), &attributes), true), None)),
                    Err(e) if e.is_unreachable() => Err(e),
                    Err(_) => Ok(((path, link, true), None)),
                }
            }
            _ => Ok(((path, link, false), None)),
        }
    });
    found.try_buffered(DEPTH).try_collect().await
}
