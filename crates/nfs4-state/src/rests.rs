//! The remaining state of clients that have ended.

use std::{
    collections::VecDeque,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use parking_lot::Mutex;

use crate::{client::Client, table::Table};

/// A client that has ended, with the state that is not removed yet.
#[derive(Debug)]
pub(crate) struct Rest {
    pub(crate) client: Arc<Client>,
    pub(crate) table: Table,
}

/// The clients that have ended and have state.
#[derive(Debug, Default)]
pub(crate) struct Ended {
    rests: Mutex<VecDeque<Rest>>,
    /// Whether there may be some.
    any: AtomicBool,
}

impl Ended {
    pub(crate) fn is_empty(&self) -> bool {
        !self.any.load(Ordering::Acquire)
    }

    pub(crate) fn push(&self, rest: Rest) {
        self.rests.lock().push_back(rest);
        self.any.store(true, Ordering::Release);
    }

    pub(crate) fn pop(&self) -> Option<Rest> {
        if self.is_empty() {
            return None; // The common case, without a lock.
        }
        let mut rests = self.rests.lock();
        let rest = rests.pop_front();
        self.any.store(!rests.is_empty(), Ordering::Release);
        rest
    }
}
