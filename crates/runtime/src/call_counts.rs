//! Process-wide counters with which tests verify the work per call.

use std::{
    collections::BTreeMap,
    sync::{Mutex, PoisonError},
};

/// Numbers of locks taken: for each thread's name, by the type of the data that the lock protects.
pub type Locks = BTreeMap<String, BTreeMap<&'static str, u64>>;

static LOCKS: Mutex<Locks> = Mutex::new(BTreeMap::new());

/// Numbers of locks of [`sync`](crate::sync) taken so far.
pub fn locks() -> Locks {
    LOCKS.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

pub(crate) fn count_lock(protected: &'static str) {
    let thread = std::thread::current();
    let mut locks = LOCKS.lock().unwrap_or_else(PoisonError::into_inner);
    *locks.entry(thread.name().unwrap_or_default().to_owned()).or_default().entry(protected).or_default() +=
        1;
}
