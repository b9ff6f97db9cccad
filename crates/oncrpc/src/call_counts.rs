//! Process-wide counters with which tests verify the work per call.

use std::sync::atomic::AtomicU64;

/// Number of decoded call headers ([`crate::CallHeader::decode`]).
pub static HEADERS_DECODED: AtomicU64 = AtomicU64::new(0);
/// Number of searches for the program of a call.
pub static PROGRAM_LOOKUPS: AtomicU64 = AtomicU64::new(0);
