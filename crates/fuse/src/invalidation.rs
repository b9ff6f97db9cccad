//! Invalidation notifications to the kernel for attributes, pages and names.

use std::{collections::VecDeque, fs::File, io::Write, ops::Range, sync::Arc};

use fuser::{INodeNo, Notifier};
use millrace_runtime::RuntimeRef;
use parking_lot::Mutex;
use tokio::sync::{Notify, oneshot};

use crate::inode::Inode;

/// Pages to be dropped by the kernel.
enum StalePages {
    /// All pages of a file.
    All(Arc<Inode>),
    /// The pages of a range; the sender is dropped when they are gone.
    Range(Arc<Inode>, Range<u64>, oneshot::Sender<()>),
}

impl StalePages {
    /// Blocks until the pages are gone. Fails only if the kernel has forgotten the inode or the mount has
    /// ended.
    fn invalidate_in(self, kernel: &Notifier) {
        match self {
            Self::All(inode) => {
                let epoch = inode.take_queued_invalidation();
                inode.invalidate_pages_with(|| drop(kernel.inval_inode(INodeNo(inode.number), 0, 0)));
                inode.state.lock().pages.mark_dropped(epoch);
            }
            Self::Range(inode, range, done) => {
                let at = |offset: u64| i64::try_from(offset).unwrap_or(i64::MAX);
                let (start, len) = (at(range.start), at(range.end - range.start));
                inode.invalidate_pages_with(|| drop(kernel.inval_inode(INodeNo(inode.number), start, len)));
                drop(done);
            }
        }
    }
}

/// Names in a directory to be expired by the kernel; the sender is dropped when that is done.
struct StaleNames {
    dir: u64,
    names: Vec<Arc<[u8]>>,
    _done: oneshot::Sender<()>,
}

/// Encodes a FUSE_NOTIFY_INVAL_ENTRY that expires a name without detaching mounts below it: `fuse_out_header`
/// and `fuse_notify_inval_entry_out` of linux/fuse.h, then the name and a NUL byte.
fn expire_entry_message(dir: u64, name: &[u8]) -> Vec<u8> {
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

/// A queue of notifications, sent in order by a blocking task that runs while the queue is not empty.
struct SendQueue<T> {
    rt: RuntimeRef,
    waiting: Mutex<QueueState<T>>,
    send: Box<dyn Fn(T) + Send + Sync>,
}

struct QueueState<T> {
    items: VecDeque<T>,
    is_sending: bool,
}

impl<T: Send + 'static> SendQueue<T> {
    fn new(rt: RuntimeRef, send: impl Fn(T) + Send + Sync + 'static) -> Arc<Self> {
        let waiting = QueueState { items: VecDeque::new(), is_sending: false };
        Arc::new(Self { rt, waiting: Mutex::new(waiting), send: Box::new(send) })
    }

    fn push(self: &Arc<Self>, item: T) {
        let mut waiting = self.waiting.lock();
        waiting.items.push_back(item);
        if std::mem::replace(&mut waiting.is_sending, true) {
            return;
        }
        drop(waiting);
        let this = Arc::clone(self);
        self.rt.spawn_blocking(Box::new(move || {
            while let Some(item) = this.next() {
                (this.send)(item);
            }
        }));
    }

    /// Takes the next item; `None` ends the task.
    fn next(&self) -> Option<T> {
        let mut waiting = self.waiting.lock();
        let next = waiting.items.pop_front();
        waiting.is_sending = next.is_some();
        next
    }
}

/// Sends invalidation notifications to the kernel.
///
/// Dropping a page waits for the page lock, and expiring a name for the lock of its directory. The kernel
/// holds both while it waits for replies, so tasks that send replies must not wait for them: one blocking
/// task sends page notifications, another sends name notifications.
pub(crate) struct Invalidator {
    stale_names: Option<Arc<SendQueue<StaleNames>>>,
    notifier: Notifier,
    /// Contains each inode at most once, plus one range per pending WRITE: bounded by open files and the
    /// kernel's requests.
    stale_pages: Arc<SendQueue<StalePages>>,
    pages_dropped: Arc<Notify>,
}

impl Invalidator {
    /// Creates an invalidator whose tasks run on `rt`. `device`: the FUSE device, for expiry messages, which
    /// `fuser` cannot send; `None` if the kernel does not support them.
    pub(crate) fn new(rt: RuntimeRef, notifier: Notifier, device: Option<File>) -> Self {
        let stale_names = device.map(|device| {
            SendQueue::new(rt.clone(), move |old: StaleNames| {
                for name in &old.names {
                    // Fails only if the kernel has dropped the dentry or the mount has ended.
                    let _ = (&device).write(&expire_entry_message(old.dir, name));
                }
            })
        });
        let pages_dropped = Arc::new(Notify::new());
        let (kernel, done) = (notifier.clone(), Arc::clone(&pages_dropped));
        let stale_pages = SendQueue::new(rt, move |old: StalePages| {
            old.invalidate_in(&kernel);
            done.notify_waiters();
        });
        Self { stale_names, notifier, stale_pages, pages_dropped }
    }

    /// Whether the kernel can expire names. Otherwise names stay cached until their timeout.
    pub(crate) fn can_expire_names(&self) -> bool {
        self.stale_names.is_some()
    }

    /// Expires names in a directory asynchronously: the kernel then looks them up before the next use. The
    /// receiver completes when that is done. The kernel takes the directory's lock for it, which it holds
    /// during requests that modify or list the directory.
    pub(crate) fn expire_names(&self, dir: u64, names: Vec<Arc<[u8]>>) -> Option<oneshot::Receiver<()>> {
        let (done, known) = oneshot::channel();
        self.stale_names.as_ref()?.push(StaleNames { dir, names, _done: done });
        Some(known)
    }

    /// Invalidates the attributes of a file. Does not block, since no page is dropped.
    pub(crate) fn invalidate_attributes(&self, number: u64) {
        drop(self.notifier.inval_inode(INodeNo(number), -1, 0));
    }

    /// Queues the invalidation of all pages of a file. Call it if [`crate::pages::PageState::queue_drop`]
    /// returns `true`.
    pub(crate) fn invalidate_pages(&self, inode: &Arc<Inode>) {
        self.stale_pages.push(StalePages::All(Arc::clone(inode)));
    }

    /// Drops the pages of a range and waits until they are gone.
    pub(crate) async fn invalidate_range(&self, inode: &Arc<Inode>, range: Range<u64>) {
        let (done, gone) = oneshot::channel();
        self.stale_pages.push(StalePages::Range(Arc::clone(inode), range, done));
        let _ = gone.await; // The sender is dropped without sending.
    }

    /// Waits until all urgent invalidations of a file are done.
    pub(crate) async fn wait_until_dropped(&self, inode: &Inode) {
        loop {
            let mut dropped = std::pin::pin!(self.pages_dropped.notified());
            dropped.as_mut().enable();
            if inode.state.lock().pages.urgent_drops_done() {
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
    fn expire_entry_message_has_the_kernel_layout() {
        let expected = [
            0x24, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, // length, code, 0
            0x42, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 1, 0, 0, 0, // directory, length of the name, flags
            b'a', b'b', b'c', 0,
        ];
        if cfg!(target_endian = "little") {
            assert_eq!(expire_entry_message(0x42, b"abc"), expected);
        }
    }
}
