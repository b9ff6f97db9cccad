//! Synchronization primitives of the queue: those of `std`, or loom's models under `cfg(millrace_loom)`.

#[cfg(millrace_loom)]
pub(super) use loom::sync::{
    Arc,
    atomic::{AtomicPtr, Ordering},
};
#[cfg(all(test, millrace_loom))]
pub(super) use loom::thread;
#[cfg(not(millrace_loom))]
pub(super) use std::sync::{
    Arc,
    atomic::{AtomicPtr, Ordering},
};
#[cfg(all(test, not(millrace_loom)))]
pub(super) use std::thread;
