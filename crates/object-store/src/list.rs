//! Lists of objects.

use std::{
    collections::BTreeSet,
    path::{Path as FilePath, PathBuf},
};

use futures::{
    StreamExt,
    stream::{self, BoxStream},
};
use millrace_client::{Client, DirEntry, FileType, ReadDir};
use object_store::{Extensions, ListResult, ObjectMeta, Result, path::Path};

use crate::{error, location, meta};

/// An entry of a directory that is visible in the store.
enum Entry {
    Object(ObjectMeta),
    Directory(Path),
}

/// A directory that is being read.
struct Level {
    entries: ReadDir,
    prefix: Path,
}

/// The walk of a tree, depth first. Its memory is one page of entries for each level.
struct Walk {
    client: Client,
    root: PathBuf,
    /// Objects up to this location are omitted.
    offset: Option<Path>,
    levels: Vec<Level>,
}

/// All objects below `prefix` after `offset`.
pub(crate) fn all(
    client: &Client,
    root: &FilePath,
    prefix: Option<&Path>,
    offset: Option<&Path>,
) -> BoxStream<'static, Result<ObjectMeta>> {
    let walk =
        Walk { client: client.clone(), root: root.to_owned(), offset: offset.cloned(), levels: Vec::new() };
    let prefix = prefix.cloned().unwrap_or_default();
    stream::once(walk.started(prefix))
        .flat_map(|walk| match walk {
            Ok(walk) => stream::try_unfold(walk, Walk::next).boxed(),
            Err(e) => stream::once(async { Err(e) }).boxed(),
        })
        .boxed()
}

/// The objects and directories in the directory of `prefix`, in the order of their names.
pub(crate) async fn one_level(client: &Client, root: &FilePath, prefix: Option<&Path>) -> Result<ListResult> {
    let (mut objects, mut prefixes) = (Vec::new(), BTreeSet::new());
    let prefix = prefix.cloned().unwrap_or_default();
    if let Some(mut level) = Level::open(client, root, prefix).await? {
        while let Some(entry) = level.next(client).await? {
            match entry {
                Entry::Object(meta) => objects.push(meta),
                Entry::Directory(location) => drop(prefixes.insert(location)),
            }
        }
    }
    objects.sort_unstable_by(|a: &ObjectMeta, b| a.location.cmp(&b.location));
    Ok(ListResult { common_prefixes: prefixes.into_iter().collect(), objects, extensions: Extensions::new() })
}

impl Walk {
    async fn started(mut self, prefix: Path) -> Result<Self> {
        self.enter(prefix).await?;
        Ok(self)
    }

    async fn enter(&mut self, prefix: Path) -> Result<()> {
        self.levels.extend(Level::open(&self.client, &self.root, prefix).await?);
        Ok(())
    }

    async fn next(mut self) -> Result<Option<(ObjectMeta, Self)>> {
        while let Some(level) = self.levels.last_mut() {
            match level.next(&self.client).await? {
                None => drop(self.levels.pop()),
                Some(Entry::Directory(prefix)) if self.is_before_offset(&prefix) => {}
                Some(Entry::Directory(prefix)) => self.enter(prefix).await?,
                Some(Entry::Object(meta)) if self.offset.as_ref().is_some_and(|o| meta.location <= *o) => {}
                Some(Entry::Object(meta)) => return Ok(Some((meta, self))),
            }
        }
        Ok(None)
    }

    /// Whether all locations in the directory are before the offset.
    fn is_before_offset(&self, directory: &Path) -> bool {
        self.offset.as_ref().is_some_and(|offset| {
            let start = format!("{directory}/");
            *start < *offset.as_ref() && !offset.as_ref().starts_with(&start)
        })
    }
}

impl Level {
    /// Opens a directory; `None` if there is no directory, such as if another client has just removed it.
    async fn open(client: &Client, root: &FilePath, prefix: Path) -> Result<Option<Self>> {
        let directory = location::directory(root, Some(&prefix));
        match client.read_dir(directory).await {
            Ok(entries) => Ok(Some(Self { entries, prefix })),
            Err(e) if is_gone(&e) => Ok(None),
            Err(e) => Err(error::at(&prefix, e)),
        }
    }

    async fn next(&mut self, client: &Client) -> Result<Option<Entry>> {
        loop {
            let entry = match self.entries.next_entry().await {
                Ok(Some(entry)) => entry,
                Ok(None) => return Ok(None),
                Err(e) if is_gone(&e) => return Ok(None),
                Err(e) => return Err(error::at(&self.prefix, e)),
            };
            if let Some(visible) = visible(client, &self.prefix, &entry).await? {
                return Ok(Some(visible));
            }
        }
    }
}

/// The entry as the store shows it: regular files, symbolic links to them, and directories.
async fn visible(client: &Client, prefix: &Path, entry: &DirEntry) -> Result<Option<Entry>> {
    let kind = entry.file_type();
    if !matches!(kind, FileType::Regular | FileType::Directory | FileType::Symlink) {
        return Ok(None);
    }
    let Some(location) = location::of_entry(prefix, entry.file_name())? else { return Ok(None) };
    let (handle, attributes) = match kind {
        FileType::Directory => return Ok(Some(Entry::Directory(location))),
        FileType::Regular => (entry.handle(), *entry.metadata().attributes()),
        _ => {
            use std::os::unix::ffi::OsStrExt;
            match client.nfs3().resolve(entry.path().as_os_str().as_bytes()).await {
                // Links to directories are not followed, because they may form a cycle.
                Ok((handle, target)) if target.file_type == FileType::Regular => (Some(handle), target),
                Err(e) if e.is_unreachable() => return Err(error::at(&location, e)),
                _ => return Ok(None),
            }
        }
    };
    Ok(Some(Entry::Object(meta::of(location, handle, &attributes))))
}

/// Whether there is no directory.
fn is_gone(e: &millrace_client::Error) -> bool {
    use std::io::ErrorKind as K;
    matches!(e.kind(), K::NotFound | K::NotADirectory | K::StaleNetworkFileHandle)
}
