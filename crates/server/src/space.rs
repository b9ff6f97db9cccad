//! Space of the exports. Their file systems answer in tasks: one that hangs delays no caller longer than [`WAIT`].

use std::{
    collections::HashMap,
    sync::{Arc, Weak},
    time::Duration,
};

use futures::{channel::oneshot, future::join_all};
use millrace_runtime::{Instant, RuntimeRef, sync::Mutex, timeout};
use millrace_vfs::FsStat;

use crate::export::Exports;

/// Time limit of the answers.
const WAIT: Duration = Duration::from_millis(500);
/// Time after which a file system is asked again.
const FRESH: Duration = Duration::from_secs(5);
/// Time after which an answer is not shown any more: the file system does not answer.
const STALE: Duration = Duration::from_secs(60);

/// The space of the exports, by their ids.
#[derive(Default)]
pub(crate) struct Spaces(Mutex<HashMap<u32, Space>>);

#[derive(Default)]
struct Space {
    /// The last answer, with its time.
    answer: Option<(Instant, FsStat)>,
    /// The task that waits for an answer holds it.
    question: Weak<()>,
}

impl Spaces {
    /// The space of each of `exports` whose file system reports it, by name.
    pub(crate) async fn of(self: &Arc<Self>, exports: &Exports, rt: &RuntimeRef) -> Vec<(String, FsStat)> {
        let answers = self.ask(exports, rt);
        timeout(&**rt, WAIT, join_all(answers)).await;
        let (known, now) = (self.0.lock(), rt.now());
        let space = |id| known.get(&id)?.answer.filter(|(at, _)| now.duration_since(*at) < STALE);
        let spaces = exports.iter().filter_map(|e| Some((e.name().to_owned(), space(e.id())?.1)));
        spaces.filter(|(_, stat)| *stat != FsStat::default()).collect()
    }

    /// Asks each file system that has not answered recently, and has no question.
    fn ask(self: &Arc<Self>, exports: &Exports, rt: &RuntimeRef) -> Vec<oneshot::Receiver<()>> {
        let (mut known, now) = (self.0.lock(), rt.now());
        let mut present: HashMap<_, _> =
            exports.iter().map(|e| (e.id(), known.remove(&e.id()).unwrap_or_default())).collect();
        let mut answers = Vec::new();
        for export in exports.iter() {
            let Some(space) = present.get_mut(&export.id()) else { continue };
            let is_fresh = space.answer.is_some_and(|(at, _)| now.duration_since(at) < FRESH);
            if is_fresh || space.question.strong_count() > 0 {
                continue;
            }
            let (question, (done, answered)) = (Arc::new(()), oneshot::channel());
            space.question = Arc::downgrade(&question);
            answers.push(answered);
            let (spaces, fs, id, clock) =
                (Arc::clone(self), Arc::clone(export.fs()), export.id(), Arc::clone(rt));
            let task = async move {
                let stat = fs.stat().await;
                if let Some(space) = spaces.0.lock().get_mut(&id)
                    && space.question.ptr_eq(&Arc::downgrade(&question))
                {
                    space.answer = stat.ok().map(|stat| (clock.now(), stat));
                }
                drop((question, done));
            };
            rt.spawn("space of an export", Box::pin(task));
        }
        *known = present;
        answers
    }
}
