//! Process-wide counters with which tests verify the work per call.

use std::{
    collections::BTreeMap,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

/// Numbers of locks taken: for each thread's name, by the type of the data that the lock protects.
pub type Locks = BTreeMap<String, BTreeMap<&'static str, u64>>;

static LOCKS: Mutex<Locks> = Mutex::new(BTreeMap::new());
/// Counting costs hundreds of instructions for each lock, and other programs of the same build measure instructions.
static COUNTING: AtomicBool = AtomicBool::new(false);

/// Starts to count the locks of [`sync`](crate::sync), in all threads.
pub fn count_locks() {
    COUNTING.store(true, Ordering::Relaxed);
}

/// Numbers of locks taken since [`count_locks`].
pub fn locks() -> Locks {
    LOCKS.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

#[inline]
pub(crate) fn count_lock(protected: &'static str) {
    if COUNTING.load(Ordering::Relaxed) {
        add(protected);
    }
}

#[cold]
fn add(protected: &'static str) {
    let thread = std::thread::current();
    let mut locks = LOCKS.lock().unwrap_or_else(PoisonError::into_inner);
    *locks.entry(thread.name().unwrap_or_default().to_owned()).or_default().entry(protected).or_default() +=
        1;
}
