//! The synchronisation primitives of this crate: those of `std`, or under `cfg(loom)` the models that loom explores.

#[cfg(loom)]
use loom::sync as primitives;
#[cfg(not(loom))]
use std::sync as primitives;

pub(crate) use primitives::{
    Arc, MutexGuard,
    atomic::{AtomicU32, AtomicU64, Ordering, fence},
};

/// A mutex that a panic does not poison: no code panics between two steps of a change that it guards.
pub(crate) struct Mutex<T>(primitives::Mutex<T>);

impl<T> Mutex<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(primitives::Mutex::new(value))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}
