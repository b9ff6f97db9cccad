//! Synchronization primitives: those of `std`, or loom's models under `cfg(loom)`.

#[cfg(loom)]
use loom::sync as primitives;
#[cfg(not(loom))]
use std::sync as primitives;

pub(crate) use primitives::{
    Arc, MutexGuard,
    atomic::{AtomicU32, AtomicU64, Ordering, fence},
};

/// A mutex without poisoning: no code panics while the protected data is inconsistent.
pub(crate) struct Mutex<T>(primitives::Mutex<T>);

impl<T> Mutex<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(primitives::Mutex::new(value))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}
