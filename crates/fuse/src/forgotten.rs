//! Records of inodes that the kernel has forgotten: their NFS file handles by inode number, and the times of their
//! local changes.
//!
//! Handles from name_to_handle_at(2) and nfsd contain the inode number and the generation, and live
//! indefinitely. For a forgotten inode the kernel sends LOOKUP of "." with that number (FUSE_EXPORT_SUPPORT).
//! NFSv3 cannot find a file by its fileid, so the NFS handle is kept here. A file whose inode number is not its
//! fileid gets the same number when it is found again.
//!
//! The reply to a LOOKUP may arrive after the file was written, closed and forgotten. Its attributes are then
//! older than the data, and must not become those of a new inode: with write-back caching the kernel never
//! replaces the size of an inode by one from a reply (`fuse_get_cache_mask`).

use std::{
    collections::HashMap,
    hash::{BuildHasher, BuildHasherDefault, DefaultHasher},
};

use millrace_client::ops::FileHandle;

use crate::clock::Epoch;

/// Minimum number of most recently forgotten inodes that are kept; the maximum is twice that.
pub(crate) const MIN_KEPT: usize = 16 << 10;
/// Maximum number of files in [`ForgottenChanges`].
const MAX_CHANGES: usize = 4096;

/// A bounded table in which new entries replace the oldest ones.
#[derive(Default)]
pub(crate) struct ForgottenInodes {
    new: Handles,
    old: Handles,
}

/// NFS file handles by inode number.
#[derive(Default)]
struct Handles {
    by_number: HashMap<u64, FileHandle>,
    /// The synthetic numbers, by NFS file handle.
    synthetic: HashMap<FileHandle, u64>,
}

impl Handles {
    fn remove(&mut self, number: u64) {
        if let Some(handle) = self.by_number.remove(&number) {
            self.synthetic.remove(&handle);
        }
    }
}

impl ForgottenInodes {
    /// `is_synthetic`: the number is not the fileid.
    pub(crate) fn insert(&mut self, number: u64, handle: FileHandle, is_synthetic: bool) {
        if self.new.by_number.len() >= MIN_KEPT {
            self.old = std::mem::take(&mut self.new);
        }
        self.new.by_number.insert(number, handle);
        if is_synthetic {
            self.new.synthetic.insert(handle, number);
        }
    }

    pub(crate) fn get(&self, number: u64) -> Option<FileHandle> {
        self.new.by_number.get(&number).or_else(|| self.old.by_number.get(&number)).copied()
    }

    /// The synthetic number that a file had. The file gets it again, so that handles with it stay valid.
    pub(crate) fn synthetic_number(&self, handle: &FileHandle) -> Option<u64> {
        self.new.synthetic.get(handle).or_else(|| self.old.synthetic.get(handle)).copied()
    }

    /// Removes a number that is in use again, for this or another file.
    pub(crate) fn remove(&mut self, number: u64) {
        self.new.remove(number);
        self.old.remove(number);
    }
}

/// Epochs of the last local changes of files whose inodes were removed. Bounded: changes that are dropped
/// count as changes of all files, which only affects requests that were issued before.
#[derive(Default)]
pub(crate) struct ForgottenChanges {
    last_changes: HashMap<FileHandle, Epoch>,
    /// Epoch of the latest change that was dropped.
    dropped: Epoch,
}

impl ForgottenChanges {
    /// Records the last local change of a removed inode; 0 if there was none.
    pub(crate) fn insert(&mut self, handle: FileHandle, last_change: Epoch) {
        if last_change <= self.dropped {
            return;
        }
        if self.last_changes.len() >= MAX_CHANGES {
            self.dropped = self.last_changes.drain().map(|(_, epoch)| epoch).fold(self.dropped, Epoch::max);
        }
        self.last_changes.insert(handle, last_change);
    }

    /// Epoch of the last local change of a file, or a later one. Attributes that were requested before it may
    /// be outdated.
    pub(crate) fn last_change(&self, handle: &FileHandle) -> Epoch {
        self.last_changes.get(handle).copied().unwrap_or_default().max(self.dropped)
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
            forgotten.insert(n, handle(n), n % 2 == 0);
        }
        assert!((all - MIN_KEPT as u64..all).all(|n| forgotten.get(n) == Some(handle(n))));
        let kept = [&forgotten.new, &forgotten.old].map(|handles| handles.by_number.len());
        assert!(forgotten.get(0).is_none() && kept.iter().sum::<usize>() <= 2 * MIN_KEPT);
        let number = |n| forgotten.synthetic_number(&handle(n));
        assert_eq!([0, all - 2, all - 1].map(number), [None, Some(all - 2), None]);
        for n in [all - 2, all - 1] {
            forgotten.remove(n);
            assert!(forgotten.get(n).is_none() && forgotten.synthetic_number(&handle(n)).is_none());
        }
    }

    #[test]
    fn changes_are_never_reported_as_older_and_are_bounded() {
        let mut changes = ForgottenChanges::default();
        changes.insert(handle(0), 0);
        assert!(changes.last_changes.is_empty(), "the file was not changed");
        let all = 3 * MAX_CHANGES as u64;
        for n in 1..=all {
            changes.insert(handle(n), n);
            assert!(changes.last_changes.len() <= MAX_CHANGES);
        }
        assert!((1..=all).all(|n| changes.last_change(&handle(n)) >= n));
        assert_eq!(changes.last_change(&handle(all)), all);
        assert!(changes.last_change(&handle(0)) < all, "a file that was not changed");
    }

    #[test]
    fn generation_depends_on_the_handle() {
        assert_ne!(generation(&handle(1)), generation(&handle(2)));
        assert!(generation(&handle(1)) <= u64::from(u32::MAX));
    }
}
