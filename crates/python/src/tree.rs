//! The objects of a tree of directories, with many calls in flight.

use std::{
    ffi::OsString,
    io::ErrorKind,
    path::{Path, PathBuf},
};

use futures::{StreamExt, TryStreamExt, stream};
use millrace_client::{Client, Error, FileType};

use crate::{
    errors::{Failure, at, text},
    metadata::{Stat, stat},
    ranges::DEPTH,
};

/// An object: its path below the directory, its attributes, or those of the target of a symbolic link, and whether it is
/// such a link.
pub(crate) type Found = (OsString, Stat, bool);

/// The objects below `top`, in any order, down to `depth` levels. Links to directories are not followed, because they may
/// form a cycle. A directory that another client removes meanwhile, and one that the caller may not read, is omitted.
///
/// # Errors
/// Those of reading `top`, and errors of calls.
pub(crate) async fn tree(client: &Client, top: PathBuf, depth: usize) -> Result<Vec<Found>, Failure> {
    let mut found = read(client, &top, OsString::new()).await.map_err(at(&text(&top)))?;
    let mut level = directories(&found);
    for _ in 1..depth {
        if level.is_empty() {
            break;
        }
        let reads = level.into_iter().map(|directory| {
            let path = top.join(&directory);
            async move { (read(client, &path, directory).await, path) }
        });
        let mut reads = stream::iter(reads).buffer_unordered(DEPTH);
        let mut next = Vec::new();
        while let Some((entries, path)) = reads.next().await {
            match entries {
                Ok(entries) => next.extend(entries),
                Err(e) if is_omitted(&e) => {}
                Err(e) => return Err(at(&text(&path))(e)),
            }
        }
        level = directories(&next);
        found.extend(next);
    }
    Ok(found)
}

fn directories(found: &[Found]) -> Vec<OsString> {
    let directories = found.iter().filter(|(_, stat, is_link)| stat.0 == "directory" && !is_link);
    directories.map(|(path, ..)| path.clone()).collect()
}

fn is_omitted(e: &Error) -> bool {
    use ErrorKind as K;
    matches!(e.kind(), K::NotFound | K::NotADirectory | K::StaleNetworkFileHandle | K::PermissionDenied)
}

/// Reads the directory at `path`, whose entries are below `prefix`.
async fn read(client: &Client, path: &Path, prefix: OsString) -> Result<Vec<Found>, Error> {
    let entries = client.read_dir(path).await?;
    let (prefix, path) = (Path::new(&prefix), &path);
    let found = entries.map_ok(|entry| async move {
        let link = stat(entry.handle(), entry.metadata().attributes());
        let below = prefix.join(entry.file_name()).into_os_string();
        if entry.file_type() != FileType::Symlink {
            return Ok((below, link, false));
        }
        let target = path.join(entry.file_name());
        match client.by_handle().resolve(target.as_os_str().as_encoded_bytes()).await {
            Ok((handle, attributes)) => Ok((below, stat(Some(handle), &attributes), true)),
            Err(e) if e.is_unreachable() => Err(e),
            Err(_) => Ok((below, link, true)),
        }
    });
    found.try_buffered(DEPTH).try_collect().await
}
