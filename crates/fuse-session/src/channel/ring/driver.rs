//! Drives the ring: passes requests on, commits replies, registers entries.
//!
//! An entry is used by the kernel from its registration, or the commit of a reply, until its completion; then by its
//! [`Slot`].

use std::{
    io,
    os::fd::{AsFd, OwnedFd},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use crate::protocol::RingEntry;
use millrace_runtime::{Readiness, RuntimeExt, RuntimeRef, Sleep};
use rustix::{
    event::{EventfdFlags, eventfd},
    io::Errno,
};

use super::{
    super::{BATCH, BATCH_BYTES},
    Ring,
    slot::{Replies, Slot},
    unblock,
    uring::Uring,
};

/// Time after which a queue whose requests all wait gets more entries: they may wait for a request that the kernel could
/// not send, such as the release of a lock.
const PATIENCE: Duration = Duration::from_millis(100);
/// Largest number of entries of all queues.
const MAX_ENTRIES: usize = 4096;

/// What follows a request.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::channel) enum Next {
    /// Another request, or none yet.
    Request,
    /// The end of the session.
    End,
}

/// Handles a request.
type Handle<'a> = dyn FnMut(&[u8], &Arc<Slot>) -> io::Result<Next> + 'a;

/// The ring of a session. If it is dropped, the kernel ends the requests that have no reply.
pub(in crate::channel) struct Driver {
    uring: Uring, // First: the memory of the entries is freed after it.
    slots: Vec<Arc<Slot>>,
    queues: Vec<Queue>,
    replies: Arc<Replies>,
    device: Arc<OwnedFd>,
    events: Box<dyn Readiness>,
    rt: RuntimeRef,
    payload: usize,
    depth: usize,
    is_enabled: bool,
    /// The kernel has given up an entry, and gets no more.
    has_lost: bool,
    /// Set when a request has arrived.
    is_used: Arc<AtomicBool>,
    /// Numbers of slots with replies.
    ready: Vec<u32>,
    /// Ends the patience with the queues that are [`Queue::is_suspect`].
    patience: Option<Sleep>,
}

/// The entries of a queue.
#[derive(Default, Clone)]
struct Queue {
    /// Number of entries that wait for a request.
    available: usize,
    /// Nothing has been committed since no entry waits.
    is_suspect: bool,
}

impl Driver {
    pub(super) fn new(ring: Ring, rt: RuntimeRef, device: OwnedFd) -> io::Result<Self> {
        let depth = ring.depth();
        let Ring { uring, queues, payload, is_used } = ring;
        let eventfd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        uring.notify(eventfd.as_fd())?;
        Ok(Self {
            uring,
            slots: Vec::new(),
            queues: vec![Queue::default(); queues.into()],
            replies: Arc::default(),
            device: Arc::new(device),
            events: rt.watch(eventfd)?,
            rt,
            payload,
            depth,
            is_enabled: false,
            has_lost: false,
            is_used,
            ready: Vec::new(),
            patience: None,
        })
    }

    /// Passes requests to `handle` and commits replies, until there are none. It yields to other tasks after a limited
    /// number.
    ///
    /// # Errors
    /// Those of io_uring_enter(2) and of `handle`.
    pub(in crate::channel) fn poll(
        &mut self,
        cx: &mut Context<'_>,
        handle: &mut Handle<'_>,
    ) -> Poll<io::Result<Next>> {
        if !self.is_enabled {
            self.is_enabled = true;
            self.uring.enable()?;
            self.register_all()?;
        }
        self.replies.driver.register(cx.waker());
        let mut budget = Budget { requests: BATCH, bytes: BATCH_BYTES };
        while budget.is_left() {
            match self.step(handle, &mut budget)? {
                Step::End => return Poll::Ready(Ok(Next::End)),
                Step::Requests => {}
                Step::Nothing => {
                    if !self.wait(cx)? {
                        self.watch_queues(cx)?;
                        return Poll::Pending;
                    }
                    budget.requests -= 1;
                }
            }
        }
        self.commit_replies()?;
        self.uring.enter()?;
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// Waits for an event of the ring. `false`: there is none, and the task is woken when there is one.
    fn wait(&mut self, cx: &mut Context<'_>) -> io::Result<bool> {
        let Self { uring, events, .. } = self;
        let polled = events.poll_io(cx, &mut || match uring.has_work() {
            true => Ok(()),
            false => Err(io::ErrorKind::WouldBlock.into()),
        });
        match polled {
            Poll::Ready(result) => result.map(|()| true),
            Poll::Pending => Ok(false),
        }
    }

    /// Commits the replies, and passes requests that have arrived to `handle`.
    fn step(&mut self, handle: &mut Handle<'_>, budget: &mut Budget) -> io::Result<Step> {
        self.commit_replies()?;
        if self.uring.has_work() {
            self.uring.enter()?;
        }
        let mut step = Step::Nothing;
        while budget.is_left()
            && let Some((number, result)) = self.uring.completion()
        {
            step = Step::Requests;
            let Some(slot) = self.slots.get(number as usize).map(Arc::clone) else { continue };
            let queue = &mut self.queues[usize::from(slot.id.0)];
            queue.available = queue.available.saturating_sub(1);
            if result < 0 {
                self.lose(Errno::from_raw_os_error(-result));
                continue;
            }
            self.is_used.store(true, Ordering::Relaxed);
            let next = slot.request(|message| {
                budget.take(message.len());
                handle(message, &slot)
            })?;
            if next == Next::End {
                self.commit_replies()?;
                self.uring.enter()?;
                return Ok(Step::End);
            }
        }
        Ok(step)
    }

    fn commit_replies(&mut self) -> io::Result<()> {
        self.replies.take(&mut self.ready);
        for number in self.ready.drain(..) {
            let Some(slot) = self.slots.get(number as usize) else { continue };
            let queue = &mut self.queues[usize::from(slot.id.0)];
            (queue.available, queue.is_suspect) = (queue.available + 1, false);
            self.uring.commit(self.device.as_fd(), slot.id, slot.commit())?;
        }
        Ok(())
    }

    fn register_all(&mut self) -> io::Result<()> {
        for _ in 0..self.depth {
            for queue in 0..self.queues.len() {
                self.register(queue)?;
            }
        }
        self.uring.enter()
    }

    /// Adds an entry to a queue.
    fn register(&mut self, queue: usize) -> io::Result<()> {
        let id = (queue as u16, self.slots.len() as u32);
        let mut entry = RingEntry::new(self.payload);
        self.uring.register(self.device.as_fd(), id, &mut entry)?;
        self.slots.push(Arc::new(Slot::new(id, entry, &self.replies)));
        self.queues[queue].available += 1;
        Ok(())
    }

    /// Notes that the kernel has given up an entry: the mount has ended, or the kernel does not accept the entries and uses
    /// the device.
    fn lose(&mut self, error: Errno) {
        let is_end = matches!(error, Errno::NOTCONN | Errno::CONNABORTED | Errno::CANCELED);
        if !std::mem::replace(&mut self.has_lost, true) && !is_end {
            tracing::warn!("the kernel rejected an entry for requests over io_uring: {error}");
        }
    }

    /// Adds entries to each queue whose requests all have waited for [`PATIENCE`].
    fn watch_queues(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        while !self.has_lost && self.queues.iter().any(|queue| queue.available == 0) {
            if let Some(patience) = &mut self.patience {
                if patience.as_mut().poll(cx).is_pending() {
                    return Ok(());
                }
                for queue in 0..self.queues.len() {
                    if self.queues[queue].available == 0 && self.queues[queue].is_suspect {
                        self.extend(queue)?;
                    }
                }
            }
            for queue in &mut self.queues {
                queue.is_suspect = queue.available == 0;
            }
            self.patience = Some(self.rt.sleep(PATIENCE));
        }
        self.patience = None;
        Ok(())
    }

    /// Adds entries to a queue. The kernel sends new requests to them, but fetches requests that it has queued before only
    /// when a reply is committed: hence as many requests to reply to.
    fn extend(&mut self, queue: usize) -> io::Result<()> {
        if self.slots.len() + self.depth > MAX_ENTRIES {
            return Ok(());
        }
        tracing::debug!(queue, "all requests wait: adding entries");
        for _ in 0..self.depth {
            self.register(queue)?;
        }
        self.uring.enter()?;
        let nodes = self.slots.iter().filter_map(|slot| slot.waiting()).collect();
        unblock::start(Arc::clone(&self.device), nodes, (queue, self.depth))
    }
}

/// What a step has done.
enum Step {
    /// It has passed on requests.
    Requests,
    /// There were none.
    Nothing,
    /// The session has ended.
    End,
}

/// What is handled before other tasks run.
struct Budget {
    requests: usize,
    bytes: usize,
}

impl Budget {
    fn is_left(&self) -> bool {
        self.requests > 0 && self.bytes > 0
    }

    /// Subtracts a request of this length.
    fn take(&mut self, length: usize) {
        self.requests -= 1;
        self.bytes = self.bytes.saturating_sub(length);
    }
}
