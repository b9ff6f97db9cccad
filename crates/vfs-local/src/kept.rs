//! Inodes without links that are kept because they are held, of all exports.

use std::{collections::HashMap, sync::LazyLock};

use parking_lot::Mutex;
use rustix::fs::Statx;

/// Device and number of an inode. The number is not used again while the inode has an open descriptor.
type Inode = (u32, u32, u64);

/// The inodes with the number of exports that keep them. It is searched for inodes without links only.
static KEPT: LazyLock<Mutex<HashMap<Inode, usize>>> = LazyLock::new(Mutex::default);

fn inode(st: &Statx) -> Inode {
    (st.stx_dev_major, st.stx_dev_minor, st.stx_ino)
}

/// Keeps an inode until this value is dropped.
#[derive(Debug)]
pub(super) struct KeptInode(Inode);

impl KeptInode {
    pub(super) fn new(st: &Statx) -> Self {
        let inode = inode(st);
        *KEPT.lock().entry(inode).or_default() += 1;
        Self(inode)
    }
}

impl Drop for KeptInode {
    fn drop(&mut self) {
        let mut kept = KEPT.lock();
        if let Some(count) = kept.get_mut(&self.0) {
            *count -= 1;
            if *count == 0 {
                kept.remove(&self.0);
            }
        }
    }
}

pub(super) fn contains(st: &Statx) -> bool {
    KEPT.lock().contains_key(&inode(st))
}
