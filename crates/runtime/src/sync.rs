//! Locks without poisoning, which tests count: `call_counts::locks`, with the Cargo feature `call-counts`.
//!
//! Code that executes calls of the server or the client uses these locks, so that a test can count every lock that a
//! call takes. Those of `buffer` have their own counter.

pub use parking_lot::{MutexGuard, RwLockReadGuard, RwLockWriteGuard};

/// A lock for exclusive access. A panic of a thread that holds it releases it.
#[derive(Debug, Default)]
pub struct Mutex<T>(parking_lot::Mutex<T>);

impl<T> Mutex<T> {
    /// Creates an unlocked mutex.
    pub const fn new(value: T) -> Self {
        Self(parking_lot::Mutex::new(value))
    }

    /// Waits until no other thread holds the lock, and takes it.
    #[inline]
    pub fn lock(&self) -> MutexGuard<'_, T> {
        count::<T>();
        self.0.lock()
    }

    /// Takes the lock if no thread holds it.
    #[inline]
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        count::<T>();
        self.0.try_lock()
    }

    /// The value: the exclusive reference makes locking unnecessary.
    pub fn get_mut(&mut self) -> &mut T {
        self.0.get_mut()
    }
}

/// A lock for shared or exclusive access. A panic of a thread that holds it releases it.
#[derive(Debug, Default)]
pub struct RwLock<T>(parking_lot::RwLock<T>);

impl<T> RwLock<T> {
    /// Creates an unlocked lock.
    pub const fn new(value: T) -> Self {
        Self(parking_lot::RwLock::new(value))
    }

    /// Waits until no other thread has exclusive access, and takes shared access.
    #[inline]
    pub fn read(&self) -> RwLockReadGuard<'_, T> {
        count::<T>();
        self.0.read()
    }

    /// Waits until no other thread has access, and takes exclusive access.
    #[inline]
    pub fn write(&self) -> RwLockWriteGuard<'_, T> {
        count::<T>();
        self.0.write()
    }
}

/// Counts a lock of a `T`.
#[inline]
fn count<T>() {
    #[cfg(feature = "call-counts")]
    crate::call_counts::count_lock(std::any::type_name::<T>());
}
