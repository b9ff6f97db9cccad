//! The walk through the source, and what it sets in motion.

use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::{
    sync::Semaphore,
    task::{JoinSet, coop},
};

use super::{
    Options,
    data::Flow,
    file::{self, Done, How},
    progress::Progress,
    report::{FailedFile, Report},
    tree::{Kind, Meta, Source, Target},
};
use crate::problem::Problem;

/// Something to copy.
#[derive(Clone)]
pub(crate) struct Item<N> {
    /// How people call it.
    pub(crate) path: String,
    /// What it is called at the target.
    pub(crate) name: Vec<u8>,
    pub(crate) node: N,
    pub(crate) meta: Meta,
}

/// Copies `items` into the directory `into` of `target`.
///
/// The future may be dropped at any time; unfinished files are removed only if it is not: to stop early, complete
/// `interrupt`.
pub(crate) async fn copy<S: Source, T: Target>(
    source: &S,
    items: Vec<Item<S::Node>>,
    target: &T,
    into: T::Node,
    options: &Options,
    interrupt: impl Future<Output = ()>,
) -> Report {
    let start = Instant::now();
    let progress = Arc::new(Progress::new(options.quiet));
    let mut walk = Walk::new(source, target, options, Arc::clone(&progress));
    let interrupted = {
        let run = walk.run(items, into);
        tokio::pin!(run);
        tokio::select! {
            () = &mut run => false,
            () = interrupt => {
                progress.stop();
                // Unfinished files are removed now, unless the server that has them is gone.
                drop(tokio::time::timeout(STOP, &mut run).await);
                true
            }
        }
    };
    progress.finish();
    let mut report = walk.report;
    report.interrupted = interrupted;
    report.took(start.elapsed());
    report
}

/// How long an interrupted copy may take to clean up.
const STOP: Duration = Duration::from_secs(10);

type Outcome<N> = (String, Option<(u64, u64)>, Result<Done<N>, Problem>);

struct Walk<'a, S: Source, T: Target> {
    source: &'a S,
    target: &'a T,
    options: &'a Options,
    flow: Arc<Flow>,
    files: JoinSet<Outcome<T::Node>>,
    report: Report,
    /// Directories whose attributes are set at the end, when nothing is put into them any more.
    made: Vec<(String, T::Node, Meta)>,
    /// The first copy of each file with several names.
    first: HashMap<(u64, u64), Option<T::Node>>,
    /// Further names, made when the first copies are there.
    links: Vec<(Item<S::Node>, T::Node)>,
}

impl<'a, S: Source, T: Target> Walk<'a, S, T> {
    fn new(source: &'a S, target: &'a T, options: &'a Options, progress: Arc<Progress>) -> Self {
        let preferred = source.preferred_record().min(target.preferred_record());
        let flow = Flow {
            budget: Arc::new(Semaphore::new(options.outstanding.max(1))),
            window: options.outstanding.clamp(1, 8),
            record: options.record.map_or(preferred, |r| r.min(preferred)).max(1),
            progress,
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
            if self.flow.progress.is_stopped() {
                break;
            }
            let path = item.path.clone();
            let found = match item.meta.kind {
                Kind::Directory => self.directory(item, dir).await,
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

    /// Makes a directory and gives what is to be copied into it.
    async fn directory(
        &mut self,
        item: Item<S::Node>,
        dir: T::Node,
    ) -> Result<Vec<(Item<S::Node>, T::Node)>, Problem> {
        if !self.options.recursive {
            return Err(Problem::new("it is a directory; add -r to copy directories"));
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

    /// Copies anything but a directory, or sets it in motion.
    async fn leaf(&mut self, item: Item<S::Node>, dir: T::Node) -> Result<(), Problem> {
        if self.options.hard_links && item.meta.nlink > 1 {
            if self.first.contains_key(&item.meta.id) {
                self.links.push((item, dir));
                return Ok(());
            }
            if item.meta.kind == Kind::File {
                self.first.insert(item.meta.id, None);
            }
        }
        match item.meta.kind {
            Kind::File => self.start_file(item, dir).await,
            Kind::Symlink => {
                let text = self.source.read_link(&item.node).await?;
                self.target.symlink(&dir, &item.name, &text, &item.meta, self.options.keep).await?;
                self.report.symlinks += 1;
            }
            _ => return Err(Problem::new("it is a device, socket or named pipe, which are not copied")),
        }
        Ok(())
    }

    async fn start_file(&mut self, item: Item<S::Node>, dir: T::Node) {
        while self.files.len() >= self.options.parallel.max(1) {
            if let Some(outcome) = self.files.join_next().await {
                self.ended(outcome);
            }
        }
        self.flow.progress.found(item.meta.size);
        self.flow.progress.at(&item.path);
        let (source, target, flow) = (self.source.clone(), self.target.clone(), Arc::clone(&self.flow));
        let how = How { verify: self.options.verify, keep: self.options.keep };
        let shared = (self.options.hard_links && item.meta.nlink > 1).then_some(item.meta.id);
        self.files.spawn(async move {
            let from = (&source, &item.node, &item.meta);
            let done = file::copy(from, (&target, &dir, &item.name), how, &flow).await;
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
            Err(e) => self.failed("a file".into(), Problem::new(format!("its copy broke off: {e}"))),
        }
    }

    fn failed(&mut self, path: String, e: Problem) {
        // After a stop, files end because of it; only what caused it is told.
        if self.flow.progress.is_stopped() {
            return;
        }
        if e.is_fatal() {
            self.flow.progress.stop();
            self.report.stopped = true;
        }
        self.flow.progress.say(&format!("millrace: {}", e.of(&path)));
        self.report.failed.push(FailedFile { path, error: e.to_string() });
    }

    async fn further_names(&mut self) {
        for (item, dir) in std::mem::take(&mut self.links) {
            let outcome = match self.first.get(&item.meta.id) {
                Some(Some(first)) => self.target.link(first, &dir, &item.name).await,
                _ => Err(Problem::new("the file of which it is another name was not copied")),
            };
            match outcome {
                Ok(()) => self.report.hard_links += 1,
                Err(e) => self.failed(item.path, e),
            }
        }
    }

    /// Deepest first, so that a directory that its owner may not write does not stop its own children.
    async fn directory_attributes(&mut self) {
        for (path, node, meta) in std::mem::take(&mut self.made).into_iter().rev() {
            if let Err(e) = self.target.set_meta(&node, &meta, self.options.keep).await {
                self.failed(path, e);
            }
        }
    }
}
