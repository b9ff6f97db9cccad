//! Inodes without links that are kept because they are held, of all exports.

use std::{collections::HashMap, sync::LazyLock};

use parking_lot::Mutex;
use rustix::fs::Statx;

/// Device and number of an inode. The number is not used again while the inode has an open descriptor.
type Inode = (u32, u32, u64);

/// The inodes with the number of exports that keep them. It is asked about inodes without links only.
static KEPT: LazyLock<Mutex<HashMap<Inode, usize>>> = LazyLock::new(Mutex::default);

fn inode(st: &Statx) -> Inode {
    (st.stx_dev_major, st.stx_dev_minor, st.stx_ino)
}

pub(super) fn add(st: &Statx) {
    *KEPT.lock().entry(inode(st)).or_default() += 1;
}

pub(super) fn remove(st: &Statx) {
    let mut kept = KEPT.lock();
    if let Some(count) = kept.get_mut(&inode(st)) {
        *count -= 1;
        if *count == 0 {
            kept.remove(&inode(st));
        }
    }
}

pub(super) fn contains(st: &Statx) -> bool {
    KEPT.lock().contains_key(&inode(st))
}
