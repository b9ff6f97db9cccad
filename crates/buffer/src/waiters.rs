//! Those that wait for memory ([`crate::MemoryWait`]).

use std::{collections::BTreeMap, task::Waker};

use crate::buffer_lengths::BufferLengths;

/// The waiters of an arena, in the order of their arrival.
#[derive(Default)]
pub(crate) struct Waiters {
    last: u64,
    waiting: BTreeMap<u64, Waiter>,
}

struct Waiter {
    wanted: BufferLengths,
    waker: Waker,
    /// Whether it has been woken, and not polled since.
    is_woken: bool,
}

impl Waiters {
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Adds a waiter, or renews the one of number `place`, and returns its number. It counts as not woken.
    pub(crate) fn enter(&mut self, place: Option<u64>, wanted: BufferLengths, waker: Waker) -> u64 {
        let place = place.unwrap_or_else(|| {
            self.last += 1;
            self.last
        });
        self.waiting.insert(place, Waiter { wanted, waker, is_woken: false });
        place
    }

    pub(crate) fn leave(&mut self, place: u64) {
        self.waiting.remove(&place);
    }

    /// Takes the waker of the first waiter that has not been woken and for which `has_memory`.
    pub(crate) fn wake_next(&mut self, mut has_memory: impl FnMut(BufferLengths) -> bool) -> Option<Waker> {
        let mut failed = Vec::new();
        let next = self.waiting.values_mut().filter(|waiter| !waiter.is_woken).find(|waiter| {
            if failed.contains(&waiter.wanted) {
                return false;
            }
            let found = has_memory(waiter.wanted);
            if !found {
                failed.push(waiter.wanted);
            }
            found
        })?;
        next.is_woken = true;
        Some(next.waker.clone())
    }
}
