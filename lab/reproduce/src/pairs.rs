//! Two threads for independent experiments.

use std::{
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
    thread,
};

use parking_lot::Mutex;

/// Number of experiments that run concurrently: an experiment is one thread, and each keeps the files of its
/// server in memory.
const CONCURRENT: usize = 2;

/// Applies `f` to all items, two at a time, and returns the results in order.
pub(crate) fn in_pairs<'a, T: Sync, R: Send>(items: &'a [T], f: impl Fn(&'a T) -> R + Sync) -> Vec<R> {
    let next = AtomicUsize::new(0);
    let done = Mutex::new(Vec::new());
    let work = || {
        while let Some((n, item)) = {
            let n = next.fetch_add(1, Relaxed);
            items.get(n).map(|item| (n, item))
        } {
            let result = f(item);
            done.lock().push((n, result));
        }
    };
    thread::scope(|scope| {
        for _ in 0..CONCURRENT {
            scope.spawn(work);
        }
    });
    let mut done = done.into_inner();
    done.sort_by_key(|(n, _)| *n);
    done.into_iter().map(|(_, result)| result).collect()
}
