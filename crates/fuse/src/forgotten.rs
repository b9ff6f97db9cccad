//! NFS file handles of inodes that the kernel has forgotten, by inode number.
//!
//! Handles from name_to_handle_at(2) and nfsd contain the inode number and the generation, and live
//! indefinitely. For a forgotten inode the kernel sends LOOKUP of "." with that number (FUSE_EXPORT_SUPPORT).
//! NFSv3 cannot find a file by its fileid, so the NFS handle is kept here.

use std::{
    collections::HashMap,
    hash::{BuildHasher, BuildHasherDefault, DefaultHasher},
};

use millrace_nfs::v3::FileHandle;

/// Minimum number of most recently forgotten inodes that are kept; the maximum is twice that.
pub(crate) const MIN_KEPT: usize = 16 << 10;

/// A bounded table in which new entries replace the oldest ones.
#[derive(Default)]
pub(crate) struct ForgottenInodes {
    new: HashMap<u64, FileHandle>,
    old: HashMap<u64, FileHandle>,
}

impl ForgottenInodes {
    pub(crate) fn insert(&mut self, number: u64, handle: FileHandle) {
        if self.new.len() >= MIN_KEPT {
            self.old = std::mem::take(&mut self.new);
        }
        self.new.insert(number, handle);
    }

    pub(crate) fn get(&self, number: u64) -> Option<FileHandle> {
        self.new.get(&number).or_else(|| self.old.get(&number)).copied()
    }

    /// Removes a number that is in use again, for this or another file.
    pub(crate) fn remove(&mut self, number: u64) {
        self.new.remove(&number);
        self.old.remove(&number);
    }
}

/// Generation that distinguishes files that use the same inode number at different times. The kernel stores
/// 32 bits.
pub(crate) fn generation(handle: &FileHandle) -> u64 {
    let hash = BuildHasherDefault::<DefaultHasher>::default().hash_one(handle);
    hash & u64::from(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn handle(n: u64) -> FileHandle {
        FileHandle::new(&n.to_be_bytes()).unwrap()
    }

    #[test]
    fn keeps_the_most_recent_and_is_bounded() {
        let mut forgotten = ForgottenInodes::default();
        let all = 5 * MIN_KEPT as u64 / 2;
        for n in 0..all {
            forgotten.insert(n, handle(n));
        }
        assert!((all - MIN_KEPT as u64..all).all(|n| forgotten.get(n) == Some(handle(n))));
        assert!(forgotten.get(0).is_none() && forgotten.new.len() + forgotten.old.len() <= 2 * MIN_KEPT);
        forgotten.remove(all - 1);
        assert!(forgotten.get(all - 1).is_none());
    }

    #[test]
    fn generation_depends_on_the_handle() {
        assert_ne!(generation(&handle(1)), generation(&handle(2)));
        assert!(generation(&handle(1)) <= u64::from(u32::MAX));
    }
}
