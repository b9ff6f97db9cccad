//! Byte-range locks of a file.

mod file;
mod range;
mod table;
mod tree;

#[cfg(test)]
mod model;

pub(crate) use file::FileLocks;
pub use file::LockNotice;
pub use range::{ByteRange, LockKind};
