//! Files that NFSv4 clients have open: they stay usable when their last link is removed through this server.
//!
//! A hold alone costs no descriptor. A held file that is about to lose a link is opened ([`Holds::keep`]), and stays open
//! until its last hold ends, if it has no links then.

use std::{collections::HashMap, os::fd::AsFd, sync::Arc};

use millrace_vfs::Handle;
use parking_lot::Mutex;
use rustix::fs::Statx;

use super::{attr, kept::KeptInode};

/// A held file.
#[derive(Debug)]
struct Held<N> {
    holds: usize,
    /// The open file, with its attributes when it was opened, if it has no links or is about to lose one.
    kept: Option<(Kept<N>, KeptInode)>,
}

/// An open file that is kept.
#[derive(Debug)]
pub(super) struct Kept<N> {
    node: Arc<N>,
    st: Statx,
}

#[derive(Debug)]
struct Files<N> {
    held: HashMap<Handle, Held<N>>,
    /// Number of those that are kept.
    kept: usize,
}

/// The held files of an export. `N` is an open object.
#[derive(Debug)]
pub(super) struct Holds<N>(Mutex<Files<N>>);

impl<N> Default for Holds<N> {
    fn default() -> Self {
        Self(Mutex::new(Files { held: HashMap::new(), kept: 0 }))
    }
}

impl<N> Files<N> {
    fn set(&mut self, handle: &Handle, new: Option<Kept<N>>) -> Option<Kept<N>> {
        let Some(held) = self.held.get_mut(handle) else { return new };
        match new {
            Some(new) if held.kept.is_none() => {
                let inode = KeptInode::new(&new.st);
                held.kept = Some((new, inode));
                self.kept += 1;
                None
            }
            None if held.kept.is_some() => {
                self.kept -= 1;
                held.kept.take().map(|(kept, _)| kept)
            }
            unneeded => unneeded,
        }
    }
}

impl<N: AsFd> Holds<N> {
    pub(super) fn add(&self, handle: &Handle) {
        self.0.lock().held.entry(*handle).or_insert(Held { holds: 0, kept: None }).holds += 1;
    }

    /// Ends a hold. The last one returns the open file, if it was kept; closing it may block.
    pub(super) fn release(&self, handle: &Handle) -> Option<Kept<N>> {
        let mut files = self.0.lock();
        let held = files.held.get_mut(handle)?;
        held.holds -= 1;
        if held.holds > 0 {
            return None;
        }
        let kept = files.set(handle, None);
        files.held.remove(handle);
        kept
    }

    /// The open file of a handle, if it is kept.
    pub(super) fn node(&self, handle: &Handle) -> Option<Arc<N>> {
        self.0.lock().held.get(handle)?.kept.as_ref().map(|(kept, _)| Arc::clone(&kept.node))
    }

    pub(super) fn is_kept(&self, handle: &Handle) -> bool {
        self.node(handle).is_some()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.lock().held.is_empty()
    }

    /// Whether a file is held.
    pub(super) fn is_held(&self, handle: &Handle) -> bool {
        self.0.lock().held.contains_key(handle)
    }

    /// Keeps a held file with the attributes `st`, which is about to lose a link and is open as `node`, unless `limit`
    /// files are kept. The caller passes the result to [`settle`](Self::settle) when the link is removed, or still there.
    pub(super) fn keep(&self, handle: &Handle, st: Statx, node: Arc<N>, limit: usize) -> Option<Kept<N>> {
        let mut files = self.0.lock();
        if files.kept >= limit {
            tracing::warn!("an open file that is removed is not kept: too many are");
            return None;
        }
        drop(files.set(handle, Some(Kept { node: Arc::clone(&node), st })));
        Some(Kept { node, st })
    }

    /// Keeps the file if it has no links now.
    pub(super) fn settle(&self, handle: &Handle, kept: Kept<N>) {
        let mut files = self.0.lock();
        // Other threads may remove further links at the same time.
        let unlinked = attr::stat(kept.node.as_fd()).is_ok_and(|st| st.stx_nlink == 0);
        let unneeded = files.set(handle, unlinked.then_some(kept));
        drop(files);
        drop(unneeded);
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;

    use super::*;
    use crate::kept;

    /// Its inode number may be used again, for a file that another export then must not keep.
    #[test]
    fn the_files_of_an_export_that_ends_are_not_kept() {
        let file = OwnedFd::from(tempfile::tempfile().unwrap());
        let st = attr::stat(file.as_fd()).unwrap();
        let (holds, handle) = (Holds::default(), Handle::new(b"file").unwrap());
        holds.add(&handle);
        let kept = holds.keep(&handle, st, Arc::new(file), 1).unwrap();
        holds.settle(&handle, kept);
        assert!(kept::contains(&st));
        drop(holds);
        assert!(!kept::contains(&st));
    }
}
