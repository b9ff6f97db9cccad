//! Synchronization primitives: those of `std` and `parking_lot`, or loom's models under `cfg(loom)`.

#[cfg(loom)]
pub(crate) use loom::sync::{
    Arc, MutexGuard,
    atomic::{AtomicU32, AtomicU64, Ordering, fence},
};
#[cfg(not(loom))]
pub(crate) use {
    parking_lot::{Mutex, MutexGuard},
    std::sync::{
        Arc,
        atomic::{AtomicU32, AtomicU64, Ordering, fence},
    },
};

/// Loom's mutex without poisoning, as that of `parking_lot`: no code panics while the protected data is inconsistent.
#[cfg(loom)]
pub(crate) struct Mutex<T>(loom::sync::Mutex<T>);

#[cfg(loom)]
impl<T> Mutex<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(loom::sync::Mutex::new(value))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}
