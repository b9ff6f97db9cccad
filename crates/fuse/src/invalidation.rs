//! Invalidation notifications to the kernel for attributes, pages and names.

use std::{collections::VecDeque, ops::Range, sync::Arc};

use millrace_fuse_session::{channel::Notifier, protocol::Notification};
use millrace_runtime::RuntimeRef;
use parking_lot::Mutex;
use tokio::sync::{Notify, oneshot};

use crate::{inode::Inode, page_invalidations::PageRead};

/// A notification for which the kernel takes the locks of pages.
enum PageNotification {
    /// All pages of a file are stale.
    DropAll(Arc<Inode>),
    /// The pages of a range are stale; the sender is dropped when they are gone.
    DropRange(Arc<Inode>, Range<u64>, oneshot::Sender<()>),
    /// The last byte of a file, with its position; the sender is dropped when the kernel has it.
    StoreLast(Arc<Inode>, (u64, u8), oneshot::Sender<()>),
}

impl PageNotification {
    /// Blocks until the kernel has processed it. Fails only if the kernel has forgotten the inode or the mount has
    /// ended.
    fn send_to(self, kernel: &Notifier) {
        match self {
            Self::DropAll(inode) => {
                let epoch = inode.take_queued_invalidation();
                inode.page_invalidations.run_for_all(|| invalidate(kernel, inode.number, (0, 0)));
                inode.state.lock().pages.mark_dropped(epoch);
            }
            Self::DropRange(inode, range, done) => {
                drop_range(kernel, &inode, &range);
                drop(done);
            }
            Self::StoreLast(inode, (offset, byte), done) => {
                kernel.send(&Notification::Store { node: inode.number, offset, data: &[byte] });
                inode.note_stored(offset + 1);
                drop(done);
            }
        }
    }
}

/// Blocks until the pages of a range are gone.
fn drop_range(kernel: &Notifier, inode: &Inode, range: &Range<u64>) {
    let at = |offset: u64| i64::try_from(offset).unwrap_or(i64::MAX);
    let (start, len) = (at(range.start), at(range.end - range.start));
    let notify = || invalidate(kernel, inode.number, (start, len));
    if start == 0 && range.end >= i64::MAX as u64 {
        inode.page_invalidations.run_for_all(notify);
    } else {
        inode.page_invalidations.run(range.clone(), notify);
    }
}

fn invalidate(kernel: &Notifier, node: u64, (offset, length): (i64, i64)) {
    kernel.send(&Notification::InvalidateNode { node, offset, length });
}

/// Names in a directory to be expired by the kernel; the sender is dropped when that is done.
struct StaleNames {
    dir: u64,
    names: Vec<Arc<[u8]>>,
    _done: oneshot::Sender<()>,
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
    /// Contains each inode at most once, plus one range per pending direct WRITE, lock or unlock: bounded by open files and
    /// the kernel's requests.
    pages: Arc<SendQueue<PageNotification>>,
    pages_dropped: Arc<Notify>,
}

impl Invalidator {
    /// Creates an invalidator whose tasks run on `rt`.
    pub(crate) fn new(rt: RuntimeRef, notifier: Notifier) -> Self {
        let kernel = notifier.clone();
        let stale_names = notifier.can_expire_names().then(|| {
            SendQueue::new(rt.clone(), move |old: StaleNames| {
                for name in &old.names {
                    kernel.send(&Notification::ExpireName { directory: old.dir, name });
                }
            })
        });
        let pages_dropped = Arc::new(Notify::new());
        let (kernel, done) = (notifier.clone(), Arc::clone(&pages_dropped));
        let pages = SendQueue::new(rt, move |pages: PageNotification| {
            pages.send_to(&kernel);
            done.notify_waiters();
        });
        Self { stale_names, notifier, pages, pages_dropped }
    }

    /// Whether the kernel can expire names (FUSE 7.38, Linux 6.2). Otherwise names stay cached until their timeout.
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
        invalidate(&self.notifier, number, (-1, 0));
    }

    /// Queues the invalidation of all pages of a file. Call it if [`crate::pages::PageState::queue_drop`]
    /// returns `true`.
    pub(crate) fn invalidate_pages(&self, inode: &Arc<Inode>) {
        self.pages.push(PageNotification::DropAll(Arc::clone(inode)));
    }

    /// Drops the pages of a range and waits until they are gone.
    pub(crate) async fn invalidate_range(&self, inode: &Arc<Inode>, range: Range<u64>) {
        let (done, gone) = oneshot::channel();
        self.pages.push(PageNotification::DropRange(Arc::clone(inode), range, done));
        let _ = gone.await; // The sender is dropped without sending.
    }

    /// Puts the last byte of a file into the kernel's cache, and waits until the file has this size there.
    pub(crate) async fn store_last(&self, inode: &Arc<Inode>, last: (u64, u8)) {
        let (done, stored) = oneshot::channel();
        self.pages.push(PageNotification::StoreLast(Arc::clone(inode), last, done));
        let _ = stored.await; // The sender is dropped without sending.
    }

    /// Drops pages that were read again during a write(2), and waits until they are gone. Not through the queue, whose
    /// task may wait for a reply that the caller sends only then.
    pub(crate) async fn drop_stale(&self, rt: &RuntimeRef, inode: &Arc<Inode>, stale: Vec<PageRead>) {
        for read in stale {
            if read.is_last {
                self.wait_for_drops(|| !inode.page_invalidations.is_being_dropped(&read)).await;
            }
            if inode.page_invalidations.is_dropped(&read) {
                continue;
            }
            let (done, gone) = oneshot::channel::<()>();
            let (kernel, inode) = (self.notifier.clone(), Arc::clone(inode));
            rt.spawn_blocking(Box::new(move || {
                drop_range(&kernel, &inode, &read.pages);
                drop(done);
            }));
            let _ = gone.await; // The sender is dropped without sending.
        }
    }

    /// Waits until all urgent invalidations of a file are done.
    pub(crate) async fn wait_until_dropped(&self, inode: &Inode) {
        self.wait_for_drops(|| inode.state.lock().pages.urgent_drops_done()).await;
    }

    /// Waits until `is_done`, which changes with an invalidation.
    async fn wait_for_drops(&self, is_done: impl Fn() -> bool) {
        loop {
            let mut dropped = std::pin::pin!(self.pages_dropped.notified());
            dropped.as_mut().enable();
            if is_done() {
                return;
            }
            dropped.await;
        }
    }
}
