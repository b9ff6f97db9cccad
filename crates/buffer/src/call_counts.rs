//! Process-wide counters with which tests verify the work per call.

use std::sync::atomic::AtomicU64;

/// Number of times that the lock of an arena was taken. (The caches of free slots have a lock for each thread.)
pub static ARENA_LOCKS: AtomicU64 = AtomicU64::new(0);
