//! Traversal of the source, which starts the copies of files.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::Arc,
    time::{Duration, Instant},
};

use futures::{StreamExt, future::BoxFuture, stream};
use tokio::{
    sync::Semaphore,
    task::{JoinSet, coop},
};

use crate::{
    Error, Options, Preserve, Replace,
    control::{Control, Event, Listener},
    data::Flow,
    delete::{Deletion, Extra},
    file::{self, Done, FileOptions, Place, loses_times, replaces, set_attributes},
    report::{FailedFile, Report},
    tree::{Directory, Entries, Entry, Existing, FileKind, Item, Lost, Metadata, Source, Target, Xattrs},
};

/// A copy of objects of a [`Source`] into a directory of a [`Target`].
pub struct TreeCopy<'a, S, T: Source> {
    source: &'a S,
    target: &'a T,
    options: Options,
    listener: Listener,
    interrupt: BoxFuture<'a, ()>,
    over: Option<Existing<T::Node>>,
}

impl<'a, S: Source, T: Target> TreeCopy<'a, S, T> {
    /// Prepares a copy from `source` to `target`.
    pub fn new(source: &'a S, target: &'a T, options: Options) -> Self {
        Self {
            source,
            target,
            options,
            listener: Box::new(|_| {}),
            interrupt: Box::pin(std::future::pending()),
            over: None,
        }
    }

    /// Calls `listener` for each event, from all tasks of the copy. It must not block.
    #[must_use]
    pub fn on_event(self, listener: impl Fn(Event<'_>) + Send + Sync + 'static) -> Self {
        Self { listener: Box::new(listener), ..self }
    }

    /// Stops the copy when `interrupt` completes. Temporary files are removed (within at most 10 seconds),
    /// and [`Report::interrupted`] is set.
    #[must_use]
    pub fn interrupted_by(self, interrupt: impl Future<Output = ()> + Send + 'a) -> Self {
        Self { interrupt: Box::pin(interrupt), ..self }
    }

    /// Writes the content of the files given to [`Self::run`], of which there must be one only, to `existing` instead of
    /// the object of its name: to the file that a symbolic link of this name refers to.
    #[must_use]
    pub fn over(self, existing: Option<Existing<T::Node>>) -> Self {
        Self { over: existing, ..self }
    }

    /// Copies `items` into the directory `into` of the target: a node, or a [`Directory`].
    ///
    /// Dropping the future before its completion leaves temporary files. To stop a copy early, use
    /// [`Self::interrupted_by`].
    ///
    /// # Panics
    /// If it is called outside of a Tokio runtime.
    pub async fn run(self, items: Vec<Item<S::Node>>, into: impl Into<Directory<T::Node>>) -> Report {
        let start = Instant::now();
        let control = Arc::new(Control::new(self.listener));
        let mut walk = Walk::new(self.source, self.target, &self.options, Arc::clone(&control));
        walk.over = self.over;
        let interrupted = {
            let run = walk.run(items, into.into());
            tokio::pin!(run);
            tokio::select! {
                () = &mut run => false,
                () = self.interrupt => {
                    control.stop();
                    // Remove unfinished files, unless their server is unreachable.
                    drop(tokio::time::timeout(STOP, &mut run).await);
                    true
                }
            }
        };
        Report { interrupted, elapsed: start.elapsed(), ..walk.report }
    }
}

/// Time limit for the cleanup of an interrupted copy.
const STOP: Duration = Duration::from_secs(10);

type Outcome<N> = (String, Option<(u64, u64)>, Result<Done<N>, Error>);

/// An object to copy.
struct Task<S: Source, T: Source> {
    item: Item<S::Node>,
    /// The directory of the target for it.
    dir: Directory<T::Node>,
    /// Its path below the copied directory.
    below: Vec<u8>,
    /// The object of its name in `dir`, if that is known.
    existing: Option<Option<Existing<T::Node>>>,
}

/// [`Metadata::id`].
type Id = (u64, u64);

/// A copied file, and the ID of one that was not replaced.
type Copied<N> = (N, Option<Id>);

/// An object to copy, and the object of another type that must be removed first.
type Conflict<S, T> = (Task<S, T>, Existing<<T as Source>::Node>);

/// A directory of the source, and the result of its copy without its entries.
type Listed<S, T> = (Task<S, T>, Result<Made<S, T>, Error>);

/// A directory that was listed and created.
struct Made<S: Source, T: Source> {
    entries: Entries<S::Node>,
    copy: Directory<T::Node>,
    /// The existing entries of the copy, if they matter.
    there: Option<Entries<T::Node>>,
    /// The copy of its extended attributes.
    attributes: Result<Lost, Error>,
}

/// A directory of the target whose attributes are set at the end.
#[derive(Clone)]
struct Finished<N> {
    path: String,
    node: N,
    meta: Metadata,
    /// The directory and the name of one that existed.
    existed: Option<(N, Vec<u8>)>,
}

/// The mode of a new directory until its entries are copied, after which it gets that of its source. A copy that is killed
/// leaves it, so it gives no right that the source does not give, except those that the owner needs to create the
/// entries. Until then no other user creates entries; and without its final owner and group, a directory is private.
fn unfinished_mode(meta: &Metadata, preserve: Preserve) -> u32 {
    let of_others = if preserve.owner { 0 } else { 0o055 };
    0o700 | meta.mode & of_others
}

/// The directory that an existing object is.
fn directory<N>(there: Option<Existing<N>>) -> Result<Option<Directory<N>>, Error> {
    match there {
        Some(there) if there.meta.kind != FileKind::Directory => Err(Error::NotDirectory),
        there => {
            Ok(there.map(|there| Directory { node: there.node, created: false, id: Some(there.meta.id) }))
        }
    }
}

/// Whether an object must be removed before one of the type `new` gets its name.
fn is_conflict(new: FileKind, old: FileKind) -> bool {
    let is_directory = |kind| kind == FileKind::Directory;
    new != FileKind::Special && (is_directory(new) != is_directory(old) || old == FileKind::Special)
}

/// Sets the attributes of a directory whose entries were copied.
async fn finish<T: Target>(
    target: &T,
    node: &T::Node,
    meta: &Metadata,
    existed: Option<(T::Node, Vec<u8>)>,
    preserve: Preserve,
) -> Result<(), Error> {
    match existed {
        None => target.set_meta(node, meta, preserve).await,
        // The directory given to the copy may be one of another owner.
        Some((_, name)) if name.is_empty() => match target.set_meta(node, meta, preserve).await {
            Err(e) if e.is_denied() => Ok(()),
            set => set,
        },
        Some((dir, name)) => match target.find(&dir, &name).await? {
            Some(now) if now.meta.kind == FileKind::Directory => {
                set_attributes(target, node, (meta, &now.meta), preserve).await
            }
            _ => Ok(()), // Removed concurrently.
        },
    }
}

struct Walk<'a, S: Source, T: Target> {
    source: &'a S,
    target: &'a T,
    options: &'a Options,
    flow: Arc<Flow>,
    files: JoinSet<Outcome<T::Node>>,
    /// Directories that are listed and created.
    directories: JoinSet<Listed<S, T>>,
    report: Report,
    /// The directories whose attributes are set at the end, when all their entries exist: those that were created and, with
    /// [`Replace::Different`], those that existed.
    made: Vec<Finished<T::Node>>,
    /// The first copied name of each file with several hard links.
    first: HashMap<Id, Option<Copied<T::Node>>>,
    /// Hard links to create after the copies of files.
    links: Vec<Task<S, T>>,
    /// The existing object of the first file.
    over: Option<Existing<T::Node>>,
    /// Whether source and target have the same IDs for the same directories.
    is_one_space: bool,
    /// The IDs of the directories of the target that the copy has created or found.
    targets: HashSet<(u64, u64)>,
    /// The IDs of the objects that are copied, without those below directories.
    roots: HashSet<(u64, u64)>,
    /// What to remove from the target.
    extra: Vec<Extra<T::Node>>,
    /// What cannot be copied yet.
    conflicts: Vec<Conflict<S, T>>,
}

impl<'a, S: Source, T: Target> Walk<'a, S, T> {
    fn new(source: &'a S, target: &'a T, options: &'a Options, control: Arc<Control>) -> Self {
        let preferred = source.preferred_record().min(target.preferred_record());
        let flow = Flow {
            budget: Arc::new(Semaphore::new(options.outstanding.max(1))),
            window: options.outstanding.clamp(1, 8),
            record: options.record.map_or(preferred, |r| r.min(preferred)).max(1),
            control,
        };
        Self {
            source,
            target,
            options,
            flow: Arc::new(flow),
            files: JoinSet::new(),
            directories: JoinSet::new(),
            report: Report::default(),
            made: Vec::new(),
            first: HashMap::new(),
            links: Vec::new(),
            over: None,
            is_one_space: source.id_space().is_some_and(|space| target.id_space() == Some(space)),
            targets: HashSet::new(),
            roots: HashSet::new(),
            extra: Vec::new(),
            conflicts: Vec::new(),
        }
    }

    async fn run(&mut self, items: Vec<Item<S::Node>>, into: Directory<T::Node>) {
        self.targets.extend(into.id);
        self.roots.extend(items.iter().map(|item| item.meta.id));
        let (mut names, is_single) = (HashSet::new(), items.len() == 1);
        let (alone, shared): (Vec<_>, Vec<_>) = items.into_iter().partition(|item| {
            let is_alone = names.insert(item.name.clone()) && (is_single || !item.name.is_empty());
            is_alone || !self.options.delete
        });
        for item in shared {
            self.failed(item.path, Error::SharedTarget);
        }
        let task = |item| Task { item, dir: into.clone(), below: Vec::new(), existing: None };
        self.copy(alone.into_iter().rev().map(task).collect()).await;
        if self.may_delete() {
            // What prevents a copy is removed after all other objects were read.
            let conflicts = std::mem::take(&mut self.conflicts);
            let there = conflicts.iter().map(|(task, there)| {
                let Task { item: Item { path, name, .. }, dir, below, .. } = task;
                let entry = Entry { name: name.clone(), node: there.node.clone(), meta: there.meta };
                Extra { path: path.clone(), below: below.clone(), dir: dir.clone(), entry }
            });
            let kept = self.delete(there.collect()).await;
            let (remaining, removed): (Vec<_>, Vec<_>) =
                conflicts.into_iter().partition(|(_, there)| kept.contains(&there.meta.id));
            self.conflicts = remaining;
            // Also after an error: the target has no longer what was removed.
            let waiting = removed.into_iter().map(|(task, _)| Task { existing: Some(None), ..task });
            self.copy(waiting.collect()).await;
        }
        if self.may_delete() {
            let extra = std::mem::take(&mut self.extra);
            self.delete(extra).await;
        }
        self.report.not_deleted = (self.extra.len() + self.conflicts.len()) as u64;
        for (Task { item, .. }, there) in std::mem::take(&mut self.conflicts) {
            let is_directory = there.meta.kind == FileKind::Directory;
            self.failed(item.path, if is_directory { Error::TargetIsDirectory } else { Error::NotDirectory });
        }
        if !self.options.dry_run {
            self.directory_attributes().await;
        }
    }

    /// Removes objects of the target. Returns the IDs of those that remain.
    async fn delete(&mut self, extra: Vec<Extra<T::Node>>) -> HashSet<Id> {
        let roots = self.is_one_space.then_some(&self.roots);
        let control = &self.flow.control;
        let mut deletion = Deletion::new(self.target, self.options, control, (&self.targets, roots));
        deletion.run(extra).await;
        let Deletion { deleted, kept, failed, .. } = deletion;
        self.report.deleted += deleted;
        for (path, e) in failed {
            self.failed(path, e);
        }
        kept
    }

    /// Whether everything was read and copied so far, but for objects of types that are never copied.
    fn may_delete(&self) -> bool {
        let failed = |f: &FailedFile| !matches!(f.error, Error::Special);
        !self.flow.control.is_stopped() && !self.report.failed.iter().any(failed)
    }

    /// Copies objects, with what is below them.
    async fn copy(&mut self, mut todo: Vec<Task<S, T>>) {
        while !self.flow.control.is_stopped() {
            let Some(task) = todo.pop() else {
                match self.next_directory().await {
                    Some(found) => todo.extend(found),
                    None => break,
                }
                continue;
            };
            if self.options.delete
                && let Some(Some(there)) = &task.existing
                && is_conflict(task.item.meta.kind, there.meta.kind)
                // The type of either object may be the one that a pattern excludes.
                && !self.options.exclude.matches(&task.below, there.meta.kind == FileKind::Directory)
            {
                let there = there.clone();
                self.conflicts.push((task, there));
            } else if task.item.meta.kind == FileKind::Directory {
                while self.directories.len() >= self.options.parallel.max(1) {
                    todo.extend(self.next_directory().await.into_iter().flatten());
                }
                self.start_directory(task);
            } else {
                let path = task.item.path.clone();
                if let Err(e) = self.leaf(task).await {
                    self.failed(path, e);
                }
            }
            coop::consume_budget().await;
        }
        while self.next_directory().await.is_some() {}
        while let Some(outcome) = self.files.join_next().await {
            self.ended(outcome);
        }
        self.further_names().await;
    }

    /// Starts the task that lists and creates a directory.
    fn start_directory(&mut self, task: Task<S, T>) {
        let item = &task.item;
        if !self.options.recursive {
            return self.failed(item.path.clone(), Error::IsDirectory);
        }
        if self.is_one_space && self.targets.contains(&item.meta.id) {
            return self.failed(item.path.clone(), Error::IntoItself);
        }
        let (source, target) = (self.source.clone(), self.target.clone());
        let Options { preserve, replace, delete, dry_run, .. } = *self.options;
        self.directories.spawn(async move {
            let made = async {
                let Task { item, dir, existing, .. } = &task;
                let entries = source.list(&item.node).await?;
                let there = match (item.name.is_empty(), existing, dry_run) {
                    (true, ..) => Some(dir.clone()),
                    (_, Some(there), _) => directory(there.clone())?,
                    (_, None, true) if dir.created => None,
                    (_, None, true) => directory(target.find(&dir.node, &item.name).await?)?,
                    _ => None,
                };
                let copy = match there {
                    Some(there) => there,
                    // There is no new directory, and no object is looked up in it: the node is not used.
                    None if dry_run => Directory { created: true, id: None, ..dir.clone() },
                    None => {
                        let mode = unfinished_mode(&item.meta, preserve);
                        target.make_dir(&dir.node, &item.name, mode).await?
                    }
                };
                if let (Replace::Different, Some(Some(Existing { meta, .. })), false) =
                    (replace, existing, dry_run)
                    && meta.mode & 0o700 != 0o700
                {
                    // Until it gets the mode of its source again. Another user's directory may permit what is needed.
                    let meta = Metadata { mode: meta.mode | 0o700, ..*meta };
                    drop(target.set_meta(&copy.node, &meta, Preserve::default()).await);
                }
                let there = match copy.created || (replace == Replace::Always && !delete) {
                    true => None,
                    false => Some(target.list(&copy.node).await?),
                };
                let attributes = async {
                    let times = copy.created && loses_times(&target, &item.meta, preserve);
                    if !copy.created || dry_run {
                        return Ok(Lost { times, ..Lost::default() });
                    }
                    let Xattrs { kept, lost } = source.xattrs(&item.node, preserve.xattrs).await?;
                    let mut lost = Lost { times, ..lost };
                    if !kept.is_empty() {
                        lost.xattrs |= !target.set_directory_xattrs(&copy.node, &kept).await?;
                    }
                    Ok(lost)
                };
                let attributes = attributes.await;
                Ok(Made { entries, copy, there, attributes })
            };
            let made = made.await;
            (task, made)
        });
    }

    /// Waits for the next directory to be created. Returns the objects to copy into it, the first one last; `None` if no
    /// directory is in progress.
    async fn next_directory(&mut self) -> Option<Vec<Task<S, T>>> {
        let Ok((Task { item, dir, below, .. }, made)) = self.directories.join_next().await? else {
            self.failed("a directory".into(), Error::Task);
            return Some(Vec::new());
        };
        let Made { entries, copy, there, attributes } = match made {
            Ok(made) => made,
            Err(e) => {
                self.failed(item.path, e);
                return Some(Vec::new());
            }
        };
        // A target may take two names of the source for one.
        let is_shared = copy.id.is_some_and(|id| !self.targets.insert(id)) && !item.name.is_empty();
        if self.options.delete && is_shared {
            self.failed(item.path, Error::SharedTarget);
            return Some(Vec::new());
        }
        if self.is_one_space && copy.id == Some(item.meta.id) {
            self.failed(item.path, Error::IntoItself);
            return Some(Vec::new());
        }
        self.report.directories += 1;
        match attributes {
            Ok(lost) => self.note_lost(lost),
            // Its entries can be copied.
            Err(e) => self.failed(item.path.clone(), e),
        }
        let path = |name: &[u8]| format!("{}/{}", item.path, String::from_utf8_lossy(name));
        let beside = |name: &[u8]| match below.is_empty() {
            true => name.to_vec(),
            false => [&below[..], b"/", name].concat(),
        };
        let is_listed = there.is_some();
        let Entries { found: there, failed: unknown } =
            there.unwrap_or_else(|| Entries { found: Vec::new(), failed: Vec::new() });
        let mut unknown: BTreeMap<_, _> = unknown.into_iter().collect();
        let mut there: HashMap<_, _> = there.into_iter().map(|e| (e.name.clone(), e)).collect();
        for (name, e) in entries.failed {
            there.remove(&name);
            self.failed(path(&name), e);
        }
        let mut found = Vec::with_capacity(entries.found.len());
        for e in entries.found.into_iter().rev() {
            let below = beside(&e.name);
            if self.options.exclude.matches(&below, e.meta.kind == FileKind::Directory) {
                there.remove(&e.name);
                continue;
            }
            let is_known = unknown.remove(&e.name).is_none();
            let existing = (is_listed && is_known).then(|| {
                let there = there.remove(&e.name)?;
                Some(Existing { node: there.node, meta: there.meta, through_link: false })
            });
            let item = Item { path: path(&e.name), name: e.name, node: e.node, meta: e.meta };
            found.push(Task { item, dir: copy.clone(), below, existing });
        }
        if self.options.delete {
            for (name, e) in unknown {
                self.failed(path(&name), e);
            }
            for (name, entry) in there {
                let below = beside(&name);
                if !self.options.exclude.matches(&below, entry.meta.kind == FileKind::Directory) {
                    self.extra.push(Extra { path: path(&name), below, dir: copy.clone(), entry });
                }
            }
        }
        if copy.created || self.options.replace == Replace::Different {
            let existed = (!copy.created).then_some((dir.node, item.name));
            self.made.push(Finished { path: item.path, node: copy.node, meta: item.meta, existed });
        }
        Some(found)
    }

    /// Copies an object other than a directory, or starts the task that copies it.
    async fn leaf(&mut self, task: Task<S, T>) -> Result<(), Error> {
        let meta = &task.item.meta;
        if self.options.hard_links && meta.nlink > 1 {
            if self.first.contains_key(&meta.id) {
                self.links.push(task);
                return Ok(());
            }
            if meta.kind == FileKind::File {
                self.first.insert(meta.id, None);
            }
        }
        match meta.kind {
            FileKind::File => self.start_file(task).await,
            FileKind::Symlink => return self.symlink(task).await,
            _ => return Err(Error::Special),
        }
        Ok(())
    }

    async fn symlink(&mut self, Task { item, dir, existing, .. }: Task<S, T>) -> Result<(), Error> {
        let Options { preserve, replace, dry_run, .. } = *self.options;
        let mut place = Place { dir, name: item.name, existing };
        place.check_replaceable(self.target).await?;
        let existing = place.existing(self.target).await?;
        let new = self.target.kept(&item.meta, preserve);
        let (text, is_kept) = match existing {
            Some(old) if replace != Replace::Different && !replaces(replace, &new, &old.meta) => {
                (Vec::new(), true)
            }
            // Not every server sets the times of links.
            Some(old) if replace == Replace::Different && old.meta.kind == FileKind::Symlink => {
                let text = self.source.read_link(&item.node).await?;
                let is_kept = self.target.read_link(&old.node).await? == text;
                (text, is_kept)
            }
            _ => (self.source.read_link(&item.node).await?, false),
        };
        if is_kept {
            self.report.skipped += 1;
            return Ok(());
        }
        if !dry_run {
            let (dir, name) = (&place.dir.node, &place.name);
            self.target.symlink(dir, name, &text, &item.meta, preserve).await?;
        }
        self.report.symlinks += 1;
        self.flow.control.report(Event::Copied { path: &item.path });
        Ok(())
    }

    async fn start_file(&mut self, Task { item, dir, existing, .. }: Task<S, T>) {
        while self.files.len() >= self.options.parallel.max(1) {
            if let Some(outcome) = self.files.join_next().await {
                self.ended(outcome);
            }
        }
        let (source, target, flow) = (self.source.clone(), self.target.clone(), Arc::clone(&self.flow));
        let Options { verify, atomic, preserve, replace, dry_run, .. } = *self.options;
        let options = FileOptions { verify, atomic, preserve, replace, dry_run };
        let existing = self.over.take().map(Some).or(existing);
        let mut place = Place { dir, name: item.name, existing };
        let shared = (self.options.hard_links && item.meta.nlink > 1).then_some(item.meta.id);
        self.files.spawn(async move {
            let from = (&source, &item.node, &item.meta);
            let done = async {
                if let Some(done) = file::without_copy(&item.meta, (&target, &mut place), options).await? {
                    return Ok(done);
                }
                flow.control.report(Event::Started { path: &item.path, bytes: item.meta.size });
                file::copy(from, (&target, &mut place), options, &flow).await
            };
            let done = done.await.map(|mut done| {
                done.lost.times = done.skipped.is_none() && loses_times(&target, &item.meta, preserve);
                done
            });
            (item.path, shared, done)
        });
    }

    fn ended(&mut self, outcome: Result<Outcome<T::Node>, tokio::task::JoinError>) {
        match outcome {
            Ok((path, shared, Ok(done))) => {
                if done.skipped.is_some() {
                    self.report.skipped += 1;
                } else {
                    self.report.files += 1;
                    self.report.verified += u64::from(self.options.verify && !self.options.dry_run);
                    self.flow.control.report(Event::Copied { path: &path });
                }
                self.note_lost(done.lost);
                self.report.bytes += done.bytes;
                if let Some(id) = shared {
                    self.first.insert(id, Some((done.node, done.skipped)));
                }
            }
            Ok((path, _, Err(e))) => self.failed(path, e),
            Err(_) => self.failed("a file".into(), Error::Task),
        }
    }

    fn note_lost(&mut self, lost: Lost) {
        self.report.without_xattrs += u64::from(lost.xattrs);
        self.report.without_acl += u64::from(lost.acl);
        self.report.without_times += u64::from(lost.times);
    }

    fn failed(&mut self, path: String, e: Error) {
        // Errors after a stop are consequences; only the cause is reported, and the files that it has damaged.
        if self.flow.control.is_stopped() && !matches!(e, Error::Incomplete) {
            return;
        }
        if e.is_fatal() {
            self.flow.control.stop();
            self.report.stopped = true;
        }
        self.flow.control.report(Event::Failed { path: &path, error: &e });
        self.report.failed.push(FailedFile { path, error: e });
    }

    async fn further_names(&mut self) {
        for Task { item, dir, existing, .. } in std::mem::take(&mut self.links) {
            let mut place = Place { dir, name: item.name, existing };
            match self.further_name(&item.meta, &mut place).await {
                Ok(true) => {
                    self.report.hard_links += 1;
                    self.flow.control.report(Event::Copied { path: &item.path });
                }
                Ok(false) => self.report.skipped += 1,
                Err(e) => self.failed(item.path, e),
            }
        }
    }

    /// Creates a hard link. `false` if the object that exists there is not replaced.
    async fn further_name(&self, meta: &Metadata, place: &mut Place<T::Node>) -> Result<bool, Error> {
        let Options { preserve, replace, dry_run, .. } = *self.options;
        let Some(Some((first, id))) = self.first.get(&meta.id) else { return Err(Error::LinkTarget) };
        place.check_replaceable(self.target).await?;
        if let Some(old) = place.existing(self.target).await? {
            let is_kept = match replace {
                Replace::Different => *id == Some(old.meta.id),
                _ => !replaces(replace, &self.target.kept(meta, preserve), &old.meta),
            };
            if is_kept {
                return Ok(false);
            }
        }
        if !dry_run {
            self.target.link(first, &place.dir.node, &place.name).await?;
        }
        Ok(true)
    }

    /// Deepest first, so that a read-only directory does not prevent changes of its subdirectories; those of one depth
    /// concurrently.
    async fn directory_attributes(&mut self) {
        let mut made = std::mem::take(&mut self.made);
        let depth = |path: &str| path.bytes().filter(|b| *b == b'/').count();
        made.sort_by_key(|of| std::cmp::Reverse(depth(&of.path)));
        for level in made.chunk_by(|a, b| depth(&a.path) == depth(&b.path)) {
            let (target, preserve) = (self.target, self.options.preserve);
            let set = |of: &Finished<T::Node>| {
                let Finished { path, node, meta, existed } = of.clone();
                async move { (path, finish(target, &node, &meta, existed, preserve).await) }
            };
            let level: Vec<_> = level.iter().map(set).collect();
            let mut all = stream::iter(level).buffer_unordered(self.options.parallel.max(1));
            while let Some((path, done)) = all.next().await {
                if let Err(e) = done {
                    self.failed(path, e);
                }
            }
        }
    }
}
