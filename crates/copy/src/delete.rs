//! Removal of the objects of the target that the source lacks.

use std::collections::HashSet;

use futures::{StreamExt, stream};

use crate::{
    Error, Options,
    control::{Control, Event},
    tree::{Directory, Entry, FileKind, Target},
};

/// An object to remove.
pub(crate) struct Extra<N> {
    /// The path that its copy would have in the source.
    pub(crate) path: String,
    /// Its path below the copied directory.
    pub(crate) below: Vec<u8>,
    /// The directory of the target that has it.
    pub(crate) dir: Directory<N>,
    pub(crate) entry: Entry<N>,
}

/// A directory that is being emptied.
struct Level<N> {
    /// `None`: the objects given to [`Deletion::run`].
    directory: Option<Extra<N>>,
    /// Its subdirectories that are not empty yet.
    directories: Vec<Extra<N>>,
    /// Whether an entry remains.
    is_kept: bool,
}

/// [`Metadata::id`](crate::Metadata::id) of objects.
type Ids = HashSet<(u64, u64)>;

/// The removal of objects of a target.
pub(crate) struct Deletion<'a, T: Target> {
    target: &'a T,
    options: &'a Options,
    control: &'a Control,
    /// The directories of the target that have copies.
    copied: &'a Ids,
    /// The objects that are copied, if they have the IDs of the target.
    roots: Option<&'a Ids>,
    /// The number of objects removed.
    pub(crate) deleted: u64,
    /// Those given to [`Self::run`] that remain.
    pub(crate) kept: Ids,
    /// The paths of those that were not, and the reasons.
    pub(crate) failed: Vec<(String, Error)>,
}

impl<'a, T: Target> Deletion<'a, T> {
    pub(crate) fn new(
        target: &'a T,
        options: &'a Options,
        control: &'a Control,
        (copied, roots): (&'a Ids, Option<&'a Ids>),
    ) -> Self {
        Self { target, options, control, copied, roots, deleted: 0, kept: HashSet::new(), failed: Vec::new() }
    }

    /// Removes `extra`, directories with what they contain. Symbolic links are removed, not followed.
    pub(crate) async fn run(&mut self, extra: Vec<Extra<T::Node>>) {
        let first = self.level(None, extra).await;
        let mut levels = vec![first];
        while let Some(level) = levels.last_mut() {
            if self.is_stopped() {
                return;
            }
            if let Some(next) = level.directories.pop() {
                match self.entries(&next).await {
                    Ok(Some((entries, is_kept))) => {
                        let mut next = self.level(Some(next), entries).await;
                        next.is_kept |= is_kept;
                        levels.push(next);
                    }
                    Ok(None) => self.keep(level, &next.entry),
                    Err(e) => {
                        self.keep(level, &next.entry);
                        self.failed.push((next.path, e));
                    }
                }
                continue;
            }
            let Some(Level { directory: Some(directory), is_kept, .. }) = levels.pop() else { return };
            let is_removed = !is_kept && {
                let removed = self.remove(&directory).await;
                self.removed(directory.path, removed)
            };
            if let Some(above) = levels.last_mut()
                && !is_removed
            {
                self.keep(above, &directory.entry);
            }
        }
    }

    /// Notes that an entry of `level` remains.
    fn keep(&mut self, level: &mut Level<T::Node>, entry: &Entry<T::Node>) {
        level.is_kept = true;
        if level.directory.is_none() {
            self.kept.insert(entry.meta.id);
        }
    }

    /// Whether the copy was stopped, or further removals would fail too.
    fn is_stopped(&self) -> bool {
        self.control.is_stopped() || self.failed.last().is_some_and(|(_, e)| e.is_fatal())
    }

    /// The objects to remove from a directory, and whether others remain in it. `None` if it is not removed.
    async fn entries(&mut self, of: &Extra<T::Node>) -> Result<Option<(Vec<Extra<T::Node>>, bool)>, Error> {
        let Extra { path, below, entry, .. } = of;
        let id = entry.meta.id;
        // Names may be equal for the target that differ for the source.
        if self.copied.contains(&id) {
            return Ok(None);
        }
        if self.roots.is_some_and(|roots| roots.contains(&id)) {
            return Err(Error::IntoItself);
        }
        if of.dir.id.is_some_and(|(file_system, _)| file_system != id.0)
            || self.target.is_mount_point(&entry.node).await?
        {
            return Err(Error::MountPoint);
        }
        let dir = Directory { node: entry.node.clone(), created: false, id: Some(id) };
        let entries = self.target.list(&dir.node).await?;
        let mut is_kept = !entries.failed.is_empty();
        for (name, e) in entries.failed {
            self.failed.push((format!("{path}/{}", String::from_utf8_lossy(&name)), e));
        }
        let mut found = Vec::with_capacity(entries.found.len());
        for entry in entries.found {
            let below = [&below[..], b"/", &entry.name].concat();
            if self.options.exclude.matches(&below, entry.meta.kind == FileKind::Directory) {
                is_kept = true;
                continue;
            }
            let path = format!("{path}/{}", String::from_utf8_lossy(&entry.name));
            found.push(Extra { path, below, dir: dir.clone(), entry });
        }
        Ok(Some((found, is_kept)))
    }

    /// Removes those of `extra` that are not directories.
    async fn level(
        &mut self,
        directory: Option<Extra<T::Node>>,
        extra: Vec<Extra<T::Node>>,
    ) -> Level<T::Node> {
        let is_directory = |extra: &Extra<T::Node>| extra.entry.meta.kind == FileKind::Directory;
        let (directories, others): (Vec<_>, Vec<_>) = extra.into_iter().partition(is_directory);
        let mut level = Level { directory, directories, is_kept: false };
        let limit = self.options.parallel.max(1);
        let mut others = others.into_iter().peekable();
        while others.peek().is_some() && !self.is_stopped() {
            let some: Vec<_> = others.by_ref().take(limit).collect();
            let this = &*self;
            let remove = some.into_iter().map(|extra| async move { (this.remove(&extra).await, extra) });
            let removed: Vec<_> = stream::iter(remove).buffer_unordered(limit).collect().await;
            for (removed, Extra { path, entry, .. }) in removed {
                if !self.removed(path, removed) {
                    self.keep(&mut level, &entry);
                }
            }
        }
        level
    }

    /// Removes an object, if it is still the one that was found. `false` if it is another one, which remains.
    async fn remove(&self, extra: &Extra<T::Node>) -> Result<bool, Error> {
        let Extra { dir, entry, .. } = extra;
        match self.target.find(&dir.node, &entry.name).await? {
            Some(now) if now.meta.id != entry.meta.id => return Ok(false),
            _ if self.options.dry_run => {}
            _ => self.target.remove(dir, &entry.name, entry.meta.kind).await?,
        }
        Ok(true)
    }

    /// Counts a removal. Returns whether the object was removed.
    fn removed(&mut self, path: String, removed: Result<bool, Error>) -> bool {
        match removed {
            Ok(true) => {
                self.deleted += 1;
                self.control.report(Event::Deleted { path: &path });
                true
            }
            Ok(false) => false,
            Err(e) => {
                self.failed.push((path, e));
                false
            }
        }
    }
}
