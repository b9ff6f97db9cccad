//! Traversal of the source, which starts the copies of files.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::{Duration, Instant},
};

use futures::{StreamExt, future::BoxFuture, stream};
use tokio::{
    sync::Semaphore,
    task::{JoinSet, coop},
};

use crate::{
    Error, Options, Preserve,
    control::{Control, Event, Listener},
    data::Flow,
    file::{self, Done, FileOptions, Place},
    report::{FailedFile, Report},
    tree::{Directory, Entries, Existing, FileKind, Item, Lost, Metadata, Source, Target, Xattrs},
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

/// An object to copy, and the directory of the target for it.
type Task<S, T> = (Item<<S as Source>::Node>, Directory<<T as Source>::Node>);

/// A directory of the source, its entries, its copy, and the copy of its extended attributes.
type Listed<S, T> = (
    Item<<S as Source>::Node>,
    Result<(Entries<<S as Source>::Node>, Directory<<T as Source>::Node>, Result<Lost, Error>), Error>,
);

/// The mode of a new directory until its entries are copied, after which it gets that of its source. A copy that is killed
/// leaves it, so it gives no right that the source does not give, except those that the owner needs to create the
/// entries. Until then no other user creates entries; and without its final owner and group, a directory is private.
fn unfinished_mode(meta: &Metadata, preserve: Preserve) -> u32 {
    let of_others = if preserve.owner { 0 } else { 0o055 };
    0o700 | meta.mode & of_others
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
    /// Created directories. Their attributes are set at the end, when all their entries exist.
    made: Vec<(String, T::Node, Metadata)>,
    /// The first copied name of each file with several hard links.
    first: HashMap<(u64, u64), Option<T::Node>>,
    /// Hard links to create after the copies of files.
    links: Vec<Task<S, T>>,
    /// The existing object of the first file.
    over: Option<Existing<T::Node>>,
    /// Whether source and target have the same IDs for the same directories.
    is_one_space: bool,
    /// In this case, the IDs of the directories of the target that the copy has created or found.
    targets: HashSet<(u64, u64)>,
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
        }
    }

    async fn run(&mut self, items: Vec<Item<S::Node>>, into: Directory<T::Node>) {
        if self.is_one_space {
            self.targets.extend(into.id);
        }
        let mut todo: Vec<Task<S, T>> = items.into_iter().rev().map(|i| (i, into.clone())).collect();
        while !self.flow.control.is_stopped() {
            let Some((item, dir)) = todo.pop() else {
                match self.next_directory().await {
                    Some(found) => todo.extend(found),
                    None => break,
                }
                continue;
            };
            if item.meta.kind == FileKind::Directory {
                while self.directories.len() >= self.options.parallel.max(1) {
                    todo.extend(self.next_directory().await.into_iter().flatten());
                }
                self.start_directory(item, dir);
            } else {
                let path = item.path.clone();
                if let Err(e) = self.leaf(item, dir).await {
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
        self.directory_attributes().await;
    }

    /// Starts the task that lists and creates a directory.
    fn start_directory(&mut self, item: Item<S::Node>, dir: Directory<T::Node>) {
        if !self.options.recursive {
            return self.failed(item.path, Error::IsDirectory);
        }
        if self.targets.contains(&item.meta.id) {
            return self.failed(item.path, Error::IntoItself);
        }
        let (source, target) = (self.source.clone(), self.target.clone());
        let preserve = self.options.preserve;
        self.directories.spawn(async move {
            let created = async {
                let entries = source.list(&item.node).await?;
                let made = match item.name.is_empty() {
                    true => dir,
                    false => {
                        let mode = unfinished_mode(&item.meta, preserve);
                        target.make_dir(&dir.node, &item.name, mode).await?
                    }
                };
                let attributes = async {
                    if !made.created {
                        return Ok(Lost::default());
                    }
                    let Xattrs { kept, mut lost } = source.xattrs(&item.node, preserve.xattrs).await?;
                    if !kept.is_empty() {
                        lost.xattrs |= !target.set_directory_xattrs(&made.node, &kept).await?;
                    }
                    Ok(lost)
                };
                let attributes = attributes.await;
                Ok((entries, made, attributes))
            };
            let created = created.await;
            (item, created)
        });
    }

    /// Waits for the next directory to be created. Returns the objects to copy into it, the first one last; `None` if no
    /// directory is in progress.
    async fn next_directory(&mut self) -> Option<Vec<Task<S, T>>> {
        let Ok((item, created)) = self.directories.join_next().await? else {
            self.failed("a directory".into(), Error::Task);
            return Some(Vec::new());
        };
        let (entries, made, attributes) = match created {
            Ok(created) => created,
            Err(e) => {
                self.failed(item.path, e);
                return Some(Vec::new());
            }
        };
        if self.is_one_space {
            self.targets.extend(made.id);
            if made.id == Some(item.meta.id) {
                self.failed(item.path, Error::IntoItself);
                return Some(Vec::new());
            }
        }
        self.report.directories += 1;
        match attributes {
            Ok(lost) => self.note_lost(lost),
            // Its entries can be copied.
            Err(e) => self.failed(item.path.clone(), e),
        }
        let path = |name: &[u8]| format!("{}/{}", item.path, String::from_utf8_lossy(name));
        for (name, e) in entries.failed {
            self.failed(path(&name), e);
        }
        let found = entries.found.into_iter().rev().map(|e| {
            let path = path(&e.name);
            (Item { path, name: e.name, node: e.node, meta: e.meta }, made.clone())
        });
        let found = found.collect();
        if made.created {
            self.made.push((item.path, made.node, item.meta));
        }
        Some(found)
    }

    /// Copies an object other than a directory, or starts the task that copies it.
    async fn leaf(&mut self, item: Item<S::Node>, dir: Directory<T::Node>) -> Result<(), Error> {
        if self.options.hard_links && item.meta.nlink > 1 {
            if self.first.contains_key(&item.meta.id) {
                self.links.push((item, dir));
                return Ok(());
            }
            if item.meta.kind == FileKind::File {
                self.first.insert(item.meta.id, None);
            }
        }
        match item.meta.kind {
            FileKind::File => self.start_file(item, dir).await,
            FileKind::Symlink => {
                let text = self.source.read_link(&item.node).await?;
                let place = Place { dir, name: item.name, existing: None };
                place.check_replaceable(self.target).await?;
                let (dir, name) = (&place.dir.node, &place.name);
                self.target.symlink(dir, name, &text, &item.meta, self.options.preserve).await?;
                self.report.symlinks += 1;
            }
            _ => return Err(Error::Special),
        }
        Ok(())
    }

    async fn start_file(&mut self, item: Item<S::Node>, dir: Directory<T::Node>) {
        while self.files.len() >= self.options.parallel.max(1) {
            if let Some(outcome) = self.files.join_next().await {
                self.ended(outcome);
            }
        }
        self.flow.control.report(Event::Started { path: &item.path, bytes: item.meta.size });
        let (source, target, flow) = (self.source.clone(), self.target.clone(), Arc::clone(&self.flow));
        let Options { verify, atomic, preserve, .. } = *self.options;
        let options = FileOptions { verify, atomic, preserve };
        let place = Place { dir, name: item.name, existing: self.over.take() };
        let shared = (self.options.hard_links && item.meta.nlink > 1).then_some(item.meta.id);
        self.files.spawn(async move {
            let from = (&source, &item.node, &item.meta);
            let done = file::copy(from, (&target, &place), options, &flow).await;
            (item.path, shared, done)
        });
    }

    fn ended(&mut self, outcome: Result<Outcome<T::Node>, tokio::task::JoinError>) {
        match outcome {
            Ok((_, shared, Ok(done))) => {
                self.report.files += 1;
                self.note_lost(done.lost);
                self.report.bytes += done.bytes;
                self.report.verified += u64::from(self.options.verify);
                if let Some(id) = shared {
                    self.first.insert(id, Some(done.node));
                }
            }
            Ok((path, _, Err(e))) => self.failed(path, e),
            Err(_) => self.failed("a file".into(), Error::Task),
        }
    }

    fn note_lost(&mut self, lost: Lost) {
        self.report.without_xattrs += u64::from(lost.xattrs);
        self.report.without_acl += u64::from(lost.acl);
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
        for (item, dir) in std::mem::take(&mut self.links) {
            let place = Place { dir, name: item.name, existing: None };
            let outcome = match self.first.get(&item.meta.id) {
                Some(Some(first)) => match place.check_replaceable(self.target).await {
                    Ok(()) => self.target.link(first, &place.dir.node, &place.name).await,
                    refused => refused,
                },
                _ => Err(Error::LinkTarget),
            };
            match outcome {
                Ok(()) => self.report.hard_links += 1,
                Err(e) => self.failed(item.path, e),
            }
        }
    }

    /// Deepest first, so that a read-only directory does not prevent changes of its subdirectories; those of one depth
    /// concurrently.
    async fn directory_attributes(&mut self) {
        let mut made = std::mem::take(&mut self.made);
        let depth = |path: &str| path.bytes().filter(|b| *b == b'/').count();
        made.sort_by_key(|(path, ..)| std::cmp::Reverse(depth(path)));
        for level in made.chunk_by(|(a, ..), (b, ..)| depth(a) == depth(b)) {
            let (target, preserve) = (self.target, self.options.preserve);
            let set = |(path, node, meta): &'_ (String, T::Node, Metadata)| {
                let (path, node, meta) = (path.clone(), node.clone(), *meta);
                async move { (path, target.set_meta(&node, &meta, preserve).await) }
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
