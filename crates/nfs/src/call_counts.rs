//! Counters of this process with which tests verify how much work a call takes.

use std::sync::atomic::AtomicU64;

/// File handles that were decoded: those of NFSv3 in calls and in replies ([`crate::v3::FileHandle`]), and those of PUTFH
/// ([`crate::v4::PutfhArgs`]).
pub static HANDLES_DECODED: AtomicU64 = AtomicU64::new(0);
/// COMPOUNDs whose arguments were decoded from the start ([`crate::v4::CompoundArgs`]).
pub static COMPOUNDS_DECODED: AtomicU64 = AtomicU64::new(0);
/// Operation numbers that were decoded in the arguments of COMPOUNDs ([`crate::v4::next_operation`]).
pub static OPERATIONS_DECODED: AtomicU64 = AtomicU64::new(0);
