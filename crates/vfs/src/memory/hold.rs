//! Files that stay usable without links.

use std::sync::{Arc, Weak};

use super::{MemoryFs, freeing::Freeing, inode::Inode};
use crate::{FileKind, FsError, FsResult, Handle, Hold};

/// A hold of an inode.
struct Held {
    fs: Weak<MemoryFs>,
    inode: Arc<Inode>,
}

impl Drop for Held {
    fn drop(&mut self) {
        if let Some(fs) = self.fs.upgrade() {
            fs.release(&self.inode);
        }
    }
}

impl MemoryFs {
    pub(super) fn hold_now(&self, file: &Handle) -> FsResult<Option<Hold>> {
        let inode = self.inode(file)?;
        if inode.kind != FileKind::Regular {
            return Ok(None);
        }
        let mut st = inode.write()?;
        st.holds = st.holds.checked_add(1).ok_or(FsError::Jukebox)?;
        drop(st);
        Ok(Some(Box::new(Held { fs: self.this.clone(), inode })))
    }

    fn release(&self, inode: &Inode) {
        // A held inode is not dead.
        let Ok(mut st) = inode.write() else { return };
        st.holds -= 1;
        let body = st.is_dead().then(|| self.dispose(inode, &mut st));
        drop(st);
        // A task frees it.
        drop(body.and_then(|body| Freeing::of_body(body, &self.config.runtime)));
    }
}
