//! Counters of this process with which tests verify how much work a call takes.

use std::sync::atomic::AtomicU64;

/// File handles that were decoded ([`crate::v3::FileHandle`]), in calls and in replies.
pub static HANDLES_DECODED: AtomicU64 = AtomicU64::new(0);
