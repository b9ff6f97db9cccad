//! Counters of a disk.

use std::sync::atomic::{AtomicU64, Ordering};

/// Commands of READ and WRITE (also WRITE AND VERIFY) that passed all checks, and their bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DiskUsage {
    /// Commands that read.
    pub reads: u64,
    /// Commands that write.
    pub writes: u64,
    /// Bytes read.
    pub bytes_read: u64,
    /// Bytes written.
    pub bytes_written: u64,
}

/// The counters, which sessions on several threads share, on a separate cache line.
#[derive(Default)]
#[repr(align(128))]
pub(super) struct Counters {
    reads: AtomicU64,
    writes: AtomicU64,
    bytes_read: AtomicU64,
    bytes_written: AtomicU64,
}

impl Counters {
    pub(super) fn read(&self, bytes: u64) {
        self.reads.fetch_add(1, Ordering::Relaxed);
        self.bytes_read.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(super) fn written(&self, bytes: u64) {
        self.writes.fetch_add(1, Ordering::Relaxed);
        self.bytes_written.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(super) fn snapshot(&self) -> DiskUsage {
        let value = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        DiskUsage {
            reads: value(&self.reads),
            writes: value(&self.writes),
            bytes_read: value(&self.bytes_read),
            bytes_written: value(&self.bytes_written),
        }
    }
}
