//! Synchronization primitives: those of `std`, `parking_lot` and `spin`, or loom's models under `cfg(loom)`.

#[cfg(loom)]
pub(crate) use loom::sync::{
    Arc, MutexGuard,
    atomic::{AtomicU32, AtomicU64, Ordering, fence},
};
#[cfg(not(loom))]
pub(crate) use {
    parking_lot::{Mutex, MutexGuard},
    spin::mutex::{SpinMutex as TryMutex, SpinMutexGuard as TryMutexGuard},
    std::sync::{
        Arc,
        atomic::{AtomicU32, AtomicU64, Ordering, fence},
    },
};

/// A mutex whose users do not wait for it. Unlike that of `parking_lot`, its release is a store.
#[cfg(loom)]
pub(crate) type TryMutex<T> = Mutex<T>;
#[cfg(loom)]
pub(crate) type TryMutexGuard<'a, T> = MutexGuard<'a, T>;

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

    pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        match self.0.try_lock() {
            Ok(guard) => Some(guard),
            Err(std::sync::TryLockError::Poisoned(e)) => Some(e.into_inner()),
            Err(std::sync::TryLockError::WouldBlock) => None,
        }
    }
}
