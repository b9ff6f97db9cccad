//! What the mount tells the kernel without being asked: that attributes or pages are old.

use std::{
    io,
    sync::{Arc, mpsc},
};

use fuser::{INodeNo, Notifier};
use tokio::sync::Notify;

use crate::inode::Inode;

/// The way to the kernel.
pub(crate) struct Notices {
    notifier: Notifier,
    /// An inode is in it once: so it is bounded by the open files.
    old_pages: mpsc::Sender<Arc<Inode>>,
    dropped: Arc<Notify>,
}

impl Notices {
    /// With a thread of its own for pages: dropping one waits until it is read or written, which means for answers of ours,
    /// so no thread that gives those may wait for it. It ends with this.
    ///
    /// # Errors
    /// That the thread cannot be started.
    pub(crate) fn start(notifier: Notifier) -> io::Result<Self> {
        let (old_pages, inodes) = mpsc::channel::<Arc<Inode>>();
        let dropped = Arc::new(Notify::new());
        let (told, done) = (notifier.clone(), Arc::clone(&dropped));
        std::thread::Builder::new().name("millrace-pages".into()).spawn(move || {
            for inode in inodes {
                let epoch = inode.state.lock().pages.unqueue();
                // It fails only where the kernel does not know the file any more, or the mount is gone.
                drop(told.inval_inode(INodeNo(inode.number), 0, 0));
                inode.state.lock().pages.drop_before(epoch);
                done.notify_waiters();
            }
        })?;
        Ok(Self { notifier, old_pages, dropped })
    }

    /// Tells the kernel to ask again for a file's attributes. Waits for nothing: no page is touched.
    pub(crate) fn attributes(&self, number: u64) {
        drop(self.notifier.inval_inode(INodeNo(number), -1, 0));
    }

    /// Tells the kernel to drop a file's pages, soon. To be called when [`crate::pages::Pages::queue`] says so.
    pub(crate) fn pages(&self, inode: &Arc<Inode>) {
        drop(self.old_pages.send(Arc::clone(inode)));
    }

    /// Waits until what was to be dropped is.
    pub(crate) async fn dropped(&self, inode: &Inode) {
        loop {
            let mut dropped = std::pin::pin!(self.dropped.notified());
            dropped.as_mut().enable();
            if inode.state.lock().pages.are_dropped() {
                return;
            }
            dropped.await;
        }
    }
}
