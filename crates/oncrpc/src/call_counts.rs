//! Counters of this process with which tests verify how much work a call takes.

use std::sync::atomic::AtomicU64;

/// Call headers that were decoded ([`crate::CallHeader::decode`]).
pub static HEADERS_DECODED: AtomicU64 = AtomicU64::new(0);
