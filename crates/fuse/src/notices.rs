//! What the mount tells the kernel without being asked: that attributes or pages are old.

use std::{
    io,
    ops::Range,
    sync::{Arc, mpsc},
};

use fuser::{INodeNo, Notifier};
use tokio::sync::{Notify, oneshot};

use crate::inode::Inode;

/// Pages that the kernel is to drop.
enum Old {
    /// All of a file.
    All(Arc<Inode>),
    /// Those of a part of the file with this number; the sender is dropped when they are gone.
    Part(u64, Range<u64>, oneshot::Sender<()>),
}

impl Old {
    /// Waits until they are gone. It fails only where the kernel does not know the file any more, or the mount is gone.
    fn drop_by(self, kernel: &Notifier) {
        match self {
            Self::All(inode) => {
                let epoch = inode.unqueue_pages();
                drop(kernel.inval_inode(INodeNo(inode.number), 0, 0));
                inode.state.lock().pages.drop_before(epoch);
            }
            Self::Part(number, range, done) => {
                let at = |offset: u64| i64::try_from(offset).unwrap_or(i64::MAX);
                drop(kernel.inval_inode(INodeNo(number), at(range.start), at(range.end - range.start)));
                drop(done);
            }
        }
    }
}

/// The way to the kernel.
pub(crate) struct Notices {
    notifier: Notifier,
    /// An inode is in it once, and each WRITE under way: so it is bounded by the open files and the kernel's requests.
    old_pages: mpsc::Sender<Old>,
    dropped: Arc<Notify>,
}

impl Notices {
    /// With a thread of its own for pages: dropping one waits until it is read or written, which means for answers of ours,
    /// so no thread that gives those may wait for it. It ends with this.
    ///
    /// # Errors
    /// That the thread cannot be started.
    pub(crate) fn start(notifier: Notifier) -> io::Result<Self> {
        let (old_pages, to_drop) = mpsc::channel::<Old>();
        let dropped = Arc::new(Notify::new());
        let (told, done) = (notifier.clone(), Arc::clone(&dropped));
        std::thread::Builder::new().name("millrace-pages".into()).spawn(move || {
            for old in to_drop {
                old.drop_by(&told);
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
        drop(self.old_pages.send(Old::All(Arc::clone(inode))));
    }

    /// Has the kernel drop the pages of a part of a file, and waits until they are gone.
    pub(crate) async fn part(&self, number: u64, range: Range<u64>) {
        let (done, gone) = oneshot::channel();
        drop(self.old_pages.send(Old::Part(number, range, done)));
        let _ = gone.await; // The sender says nothing, and is dropped.
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
