//! Process-wide counters with which tests verify the work per call.

use std::sync::atomic::AtomicU64;

/// Number of loads of the export table.
pub static TABLE_LOADS: AtomicU64 = AtomicU64::new(0);
/// Number of searches of the export table by file handle.
pub static EXPORT_LOOKUPS: AtomicU64 = AtomicU64::new(0);
