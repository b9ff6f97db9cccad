//! Notifications to the kernel: that attributes, pages or names are no longer valid.

use std::{
    fs::File,
    io::{self, Write},
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

/// Names in a directory that the kernel is to ask for again; the sender is dropped when it knows.
struct OldNames {
    dir: u64,
    names: Vec<Arc<[u8]>>,
    _done: oneshot::Sender<()>,
}

/// A FUSE_NOTIFY_INVAL_ENTRY that expires a name and detaches nothing that is mounted on it: `fuse_out_header` and
/// `fuse_notify_inval_entry_out` of linux/fuse.h, and the name with a zero byte.
fn expiry(dir: u64, name: &[u8]) -> Vec<u8> {
    const NOTIFY_INVAL_ENTRY: u32 = 3;
    const EXPIRE_ONLY: u32 = 1;
    let len = (16 + 16 + name.len() + 1) as u32;
    let mut message = Vec::with_capacity(len as usize);
    message.extend([len, NOTIFY_INVAL_ENTRY].map(u32::to_ne_bytes).as_flattened());
    message.extend([0, dir].map(u64::to_ne_bytes).as_flattened());
    message.extend([name.len() as u32, EXPIRE_ONLY].map(u32::to_ne_bytes).as_flattened());
    message.extend(name);
    message.push(0);
    message
}

/// The way to the kernel.
pub(crate) struct Notices {
    old_names: Option<mpsc::Sender<OldNames>>,
    notifier: Notifier,
    /// An inode is in it once, and each WRITE under way: so it is bounded by the open files and the kernel's requests.
    old_pages: mpsc::Sender<Old>,
    dropped: Arc<Notify>,
}

/// Starts the thread that expires names.
fn start_names(device: File) -> io::Result<mpsc::Sender<OldNames>> {
    let (old_names, to_expire) = mpsc::channel::<OldNames>();
    std::thread::Builder::new().name("millrace-names".into()).spawn(move || {
        for old in to_expire {
            for name in &old.names {
                // It fails only where the kernel does not know the name any more, or the mount is gone.
                let _ = (&device).write(&expiry(old.dir, name));
            }
        }
    })?;
    Ok(old_names)
}

impl Notices {
    /// Starts one thread for pages and one for names, which end with this. Dropping a page waits for the page's lock, and
    /// expiring a name for its directory's lock. The kernel holds both during requests, so no thread that answers requests may
    /// wait for them. `device`: where expiries are written, which `fuser` cannot send; `None` where the kernel does not
    /// support them.
    ///
    /// # Errors
    /// That a thread cannot be started.
    pub(crate) fn start(notifier: Notifier, device: Option<File>) -> io::Result<Self> {
        let old_names = device.map(start_names).transpose()?;
        let (old_pages, to_drop) = mpsc::channel::<Old>();
        let dropped = Arc::new(Notify::new());
        let (told, done) = (notifier.clone(), Arc::clone(&dropped));
        std::thread::Builder::new().name("millrace-pages".into()).spawn(move || {
            for old in to_drop {
                old.drop_by(&told);
                done.notify_waiters();
            }
        })?;
        Ok(Self { old_names, notifier, old_pages, dropped })
    }

    /// Whether the kernel supports expiry of names. Without it, names are used until their lifetime has expired.
    pub(crate) fn expires_names(&self) -> bool {
        self.old_names.is_some()
    }

    /// Expires names in a directory, asynchronously: the kernel then looks them up before it uses them. The receiver completes
    /// when the kernel has been told. That takes the directory's lock, which the kernel holds during requests that change or
    /// list the directory.
    pub(crate) fn names(&self, dir: u64, names: Vec<Arc<[u8]>>) -> Option<oneshot::Receiver<()>> {
        let (done, known) = oneshot::channel();
        self.old_names.as_ref()?.send(OldNames { dir, names, _done: done }).ok()?;
        Some(known)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_expiry_is_laid_out_as_the_kernel_has_it() {
        let expected = [
            0x24, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, // length, code, 0
            0x42, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 1, 0, 0, 0, // directory, length of the name, flags
            b'a', b'b', b'c', 0,
        ];
        if cfg!(target_endian = "little") {
            assert_eq!(expiry(0x42, b"abc"), expected);
        }
    }
}
