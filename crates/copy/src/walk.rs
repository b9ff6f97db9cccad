//! Traversal of the source, which starts the copies of files.

use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, Instant},
};

use futures::future::BoxFuture;
use tokio::{
    sync::Semaphore,
    task::{JoinSet, coop},
};

use crate::{
    Error, Options,
    control::{Control, Event, Listener},
    data::Flow,
    file::{self, Done, FileOptions},
    report::{FailedFile, Report},
    tree::{FileKind, Item, Metadata, Source, Target},
};

/// A copy of objects of a [`Source`] into a directory of a [`Target`].
pub struct TreeCopy<'a, S, T> {
    source: &'a S,
    target: &'a T,
    options: Options,
    listener: Listener,
    interrupt: BoxFuture<'a, ()>,
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

    /// Copies `items` into the directory `into` of the target.
    ///
    /// Dropping the future before its completion leaves temporary files. To stop a copy early, use
    /// [`Self::interrupted_by`].
    ///
    /// # Panics
    /// If it is called outside of a Tokio runtime.
    pub async fn run(self, items: Vec<Item<S::Node>>, into: T::Node) -> Report {
        let start = Instant::now();
        let control = Arc::new(Control::new(self.listener));
        let mut walk = Walk::new(self.source, self.target, &self.options, Arc::clone(&control));
        let interrupted = {
            let run = walk.run(items, into);
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

struct Walk<'a, S: Source, T: Target> {
    source: &'a S,
    target: &'a T,
    options: &'a Options,
    flow: Arc<Flow>,
    files: JoinSet<Outcome<T::Node>>,
    report: Report,
    /// Directories whose attributes are set at the end, when all their entries exist.
    made: Vec<(String, T::Node, Metadata)>,
    /// The first copied name of each file with several hard links.
    first: HashMap<(u64, u64), Option<T::Node>>,
    /// Hard links to create after the copies of files.
    links: Vec<(Item<S::Node>, T::Node)>,
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
            report: Report::default(),
            made: Vec::new(),
            first: HashMap::new(),
            links: Vec::new(),
        }
    }

    async fn run(&mut self, items: Vec<Item<S::Node>>, into: T::Node) {
        let mut todo: Vec<(Item<S::Node>, T::Node)> =
            items.into_iter().rev().map(|i| (i, into.clone())).collect();
        while let Some((item, dir)) = todo.pop() {
            if self.flow.control.is_stopped() {
                break;
            }
            let path = item.path.clone();
            let found = match item.meta.kind {
                FileKind::Directory => self.directory(item, dir).await,
                _ => self.leaf(item, dir).await.map(|()| Vec::new()),
            };
            match found {
                Ok(found) => todo.extend(found.into_iter().rev()),
                Err(e) => self.failed(path, e),
            }
            coop::consume_budget().await;
        }
        while let Some(outcome) = self.files.join_next().await {
            self.ended(outcome);
        }
        self.further_names().await;
        self.directory_attributes().await;
    }

    /// Creates a directory and returns the objects to copy into it.
    async fn directory(
        &mut self,
        item: Item<S::Node>,
        dir: T::Node,
    ) -> Result<Vec<(Item<S::Node>, T::Node)>, Error> {
        if !self.options.recursive {
            return Err(Error::IsDirectory);
        }
        let entries = self.source.list(&item.node).await?;
        let made = self.target.make_dir(&dir, &item.name).await?;
        self.report.directories += 1;
        let found = entries
            .into_iter()
            .map(|e| {
                let path = format!("{}/{}", item.path, String::from_utf8_lossy(&e.name));
                (Item { path, name: e.name, node: e.node, meta: e.meta }, made.clone())
            })
            .collect();
        self.made.push((item.path, made, item.meta));
        Ok(found)
    }

    /// Copies an object other than a directory, or starts the task that copies it.
    async fn leaf(&mut self, item: Item<S::Node>, dir: T::Node) -> Result<(), Error> {
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
                self.target.symlink(&dir, &item.name, &text, &item.meta, self.options.preserve).await?;
                self.report.symlinks += 1;
            }
            _ => return Err(Error::Special),
        }
        Ok(())
    }

    async fn start_file(&mut self, item: Item<S::Node>, dir: T::Node) {
        while self.files.len() >= self.options.parallel.max(1) {
            if let Some(outcome) = self.files.join_next().await {
                self.ended(outcome);
            }
        }
        self.flow.control.report(Event::Started { path: &item.path, bytes: item.meta.size });
        let (source, target, flow) = (self.source.clone(), self.target.clone(), Arc::clone(&self.flow));
        let options = FileOptions { verify: self.options.verify, preserve: self.options.preserve };
        let shared = (self.options.hard_links && item.meta.nlink > 1).then_some(item.meta.id);
        self.files.spawn(async move {
            let from = (&source, &item.node, &item.meta);
            let done = file::copy(from, (&target, &dir, &item.name), options, &flow).await;
            (item.path, shared, done)
        });
    }

    fn ended(&mut self, outcome: Result<Outcome<T::Node>, tokio::task::JoinError>) {
        match outcome {
            Ok((_, shared, Ok(done))) => {
                self.report.files += 1;
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

    fn failed(&mut self, path: String, e: Error) {
        // Errors after a stop are consequences; only the cause is reported.
        if self.flow.control.is_stopped() {
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
            let outcome = match self.first.get(&item.meta.id) {
                Some(Some(first)) => self.target.link(first, &dir, &item.name).await,
                _ => Err(Error::LinkTarget),
            };
            match outcome {
                Ok(()) => self.report.hard_links += 1,
                Err(e) => self.failed(item.path, e),
            }
        }
    }

    /// Deepest first, so that a read-only directory does not prevent changes of its subdirectories.
    async fn directory_attributes(&mut self) {
        for (path, node, meta) in std::mem::take(&mut self.made).into_iter().rev() {
            if let Err(e) = self.target.set_meta(&node, &meta, self.options.preserve).await {
                self.failed(path, e);
            }
        }
    }
}
