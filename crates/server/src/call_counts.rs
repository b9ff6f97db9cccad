//! Counters of this process with which tests verify how much work a call takes.

use std::sync::atomic::AtomicU64;

/// Loads of the export table.
pub static TABLE_LOADS: AtomicU64 = AtomicU64::new(0);
/// Searches of the export table for the export of a file handle.
pub static EXPORT_LOOKUPS: AtomicU64 = AtomicU64::new(0);
