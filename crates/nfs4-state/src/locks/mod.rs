//! Byte-range locks of a file.
//!
//! `FileLocks` has the lock owners of a file with stateids, and the requests that wait (`LockNotice`). Its
//! table of ranges, in a balanced tree, applies the rules of POSIX; `model` is the reference for tests.

mod file;
mod range;
mod table;
mod tree;

#[cfg(test)]
mod model;

pub(crate) use file::FileLocks;
pub use file::LockNotice;
pub use range::{ByteRange, LockKind};
