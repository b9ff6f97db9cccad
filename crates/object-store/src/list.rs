//! Lists of objects.

use std::{
    collections::BTreeSet,
    path::{Path as FilePath, PathBuf},
};

use futures::{
    StreamExt,
    stream::{self, BoxStream},
};
use millrace_objects::{Directory, Objects};
use object_store::{Extensions, ListResult, ObjectMeta, Result, path::Path};

use crate::{error, location, meta};

/// An entry of a directory.
enum Entry {
    Object(ObjectMeta),
    Directory(Path),
}

/// A directory that is being read.
struct Level {
    entries: Directory,
    prefix: Path,
}

/// Maximum number of levels of a tree: a path of 4,096 bytes has no more.
const MAX_LEVELS: usize = 2048;

/// The walk of a tree, depth first. Its memory is one page of entries for each level.
struct Walk {
    objects: Objects,
    root: PathBuf,
    /// Objects up to this location are omitted.
    offset: Option<Path>,
    levels: Vec<Level>,
}

/// All objects below `prefix` after `offset`.
pub(crate) fn all(
    objects: &Objects,
    root: &FilePath,
    prefix: Option<&Path>,
    offset: Option<&Path>,
) -> BoxStream<'static, Result<ObjectMeta>> {
    let walk =
        Walk { objects: objects.clone(), root: root.to_owned(), offset: offset.cloned(), levels: Vec::new() };
    let prefix = prefix.cloned().unwrap_or_default();
    stream::once(walk.started(prefix))
        .flat_map(|walk| match walk {
            Ok(walk) => stream::try_unfold(walk, Walk::next).boxed(),
            Err(e) => stream::once(async { Err(e) }).boxed(),
        })
        .boxed()
}

/// The objects and directories in the directory of `prefix`, in the order of their names.
pub(crate) async fn one_level(
    objects: &Objects,
    root: &FilePath,
    prefix: Option<&Path>,
) -> Result<ListResult> {
    let (mut listed, mut prefixes) = (Vec::new(), BTreeSet::new());
    let prefix = prefix.cloned().unwrap_or_default();
    if let Some(mut level) = Level::open(objects, root, prefix).await? {
        while let Some(entry) = level.next().await? {
            match entry {
                Entry::Object(meta) => listed.push(meta),
                Entry::Directory(location) => drop(prefixes.insert(location)),
            }
        }
    }
    listed.sort_unstable_by(|a: &ObjectMeta, b| a.location.cmp(&b.location));
    Ok(ListResult {
        common_prefixes: prefixes.into_iter().collect(),
        objects: listed,
        extensions: Extensions::new(),
    })
}

impl Walk {
    async fn started(mut self, prefix: Path) -> Result<Self> {
        self.enter(prefix).await?;
        Ok(self)
    }

    async fn enter(&mut self, prefix: Path) -> Result<()> {
        if self.levels.len() >= MAX_LEVELS {
            return Err(error::generic(format!("{prefix} is below more than {MAX_LEVELS} directories")));
        }
        self.levels.extend(Level::open(&self.objects, &self.root, prefix).await?);
        Ok(())
    }

    async fn next(mut self) -> Result<Option<(ObjectMeta, Self)>> {
        while let Some(level) = self.levels.last_mut() {
            match level.next().await? {
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
    async fn open(objects: &Objects, root: &FilePath, prefix: Path) -> Result<Option<Self>> {
        let directory = objects.read_dir(&location::directory(root, Some(&prefix))).await;
        Ok(directory.map_err(|e| error::at(&prefix, e))?.map(|entries| Self { entries, prefix }))
    }

    async fn next(&mut self) -> Result<Option<Entry>> {
        let next = self.entries.next().await.map_err(|e| error::at(&self.prefix, e))?;
        let Some(entry) = next else { return Ok(None) };
        let location = location::of_entry(&self.prefix, entry.name())?;
        Ok(Some(if entry.is_directory() {
            Entry::Directory(location)
        } else {
            Entry::Object(meta::of(location, entry.version().as_ref(), entry.attributes()))
        }))
    }
}
