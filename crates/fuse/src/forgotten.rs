//! The NFS file handles of inodes that the kernel has forgotten, by inode number.
//!
//! name_to_handle_at(2) and nfsd encode the inode number and the generation, and hold them for as long as they like. When the
//! kernel has forgotten the inode, it asks for "." of the number (FUSE_EXPORT_SUPPORT). NFSv3 has no call that finds a file by
//! its fileid, so the NFS handle is kept here.

use std::{
    collections::HashMap,
    hash::{BuildHasher, BuildHasherDefault, DefaultHasher},
};

use millrace_nfs::v3::FileHandle;

/// So many of the inodes that were forgotten last are kept at least; up to twice as many are.
pub(crate) const KEPT: usize = 16 << 10;

/// A bounded table in which new entries replace the oldest.
#[derive(Default)]
pub(crate) struct ForgottenInodes {
    new: HashMap<u64, FileHandle>,
    old: HashMap<u64, FileHandle>,
}

impl ForgottenInodes {
    pub(crate) fn insert(&mut self, number: u64, handle: FileHandle) {
        if self.new.len() >= KEPT {
            self.old = std::mem::take(&mut self.new);
        }
        self.new.insert(number, handle);
    }

    pub(crate) fn get(&self, number: u64) -> Option<FileHandle> {
        self.new.get(&number).or_else(|| self.old.get(&number)).copied()
    }

    /// The number is in use again, for this or another file.
    pub(crate) fn remove(&mut self, number: u64) {
        self.new.remove(&number);
        self.old.remove(&number);
    }
}

/// The generation that distinguishes files which have the same inode number one after the other. The kernel keeps 32 bits.
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
    fn the_last_ones_are_kept_and_no_more_than_twice_as_many() {
        let mut forgotten = ForgottenInodes::default();
        let all = 5 * KEPT as u64 / 2;
        for n in 0..all {
            forgotten.insert(n, handle(n));
        }
        assert!((all - KEPT as u64..all).all(|n| forgotten.get(n) == Some(handle(n))));
        assert!(forgotten.get(0).is_none() && forgotten.new.len() + forgotten.old.len() <= 2 * KEPT);
        forgotten.remove(all - 1);
        assert!(forgotten.get(all - 1).is_none());
    }

    #[test]
    fn files_with_different_handles_have_different_generations() {
        assert_ne!(generation(&handle(1)), generation(&handle(2)));
        assert!(generation(&handle(1)) <= u64::from(u32::MAX));
    }
}
