//! Where callers leave calls for a connection's task.

use std::{
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    task::Context,
};

use futures::task::AtomicWaker;

use super::{
    call::{Call, CallRef},
    queue::{Queue, Taken},
};
use crate::RpcError;

/// What the callers and the task of a connection share, beside the calls.
pub struct Submissions {
    /// Calls that were submitted, and calls that were cancelled after they were sent.
    calls: Queue<Call>,
    task: AtomicWaker,
    closing: AtomicBool,
    /// Why the connection is down.
    failure: OnceLock<RpcError>,
    /// No call is open: a caller may send its call itself. A hint.
    idle: AtomicBool,
    cancelled: AtomicU64,
    peer: String,
}

impl Submissions {
    /// Those of a new connection to `peer`, which errors name.
    pub fn new(peer: impl ToString) -> Arc<Self> {
        Arc::new(Self {
            calls: Queue::new(),
            task: AtomicWaker::new(),
            closing: AtomicBool::new(false),
            failure: OnceLock::new(),
            idle: AtomicBool::new(false),
            cancelled: AtomicU64::new(0),
            peer: peer.to_string(),
        })
    }

    /// The server's address.
    pub fn peer(&self) -> &str {
        &self.peer
    }

    /// The error of a call whose connection was lost.
    pub fn disconnected(&self, reason: impl ToString) -> RpcError {
        RpcError::Disconnected { peer: self.peer.clone(), reason: reason.to_string() }
    }

    /// Why the connection cannot be used, if it cannot.
    pub fn failure(&self) -> Option<RpcError> {
        let closed = || self.is_closing().then(|| self.disconnected("closed by this client"));
        self.failure.get().cloned().or_else(closed)
    }

    /// Whether the client closes the connection.
    pub fn is_closing(&self) -> bool {
        self.closing.load(Ordering::Acquire)
    }

    /// Adds a call; whether the task must be woken for it.
    ///
    /// # Errors
    /// Why the connection is down.
    pub(super) fn push(&self, call: CallRef) -> Result<bool, RpcError> {
        // The failure is stored before the queue is closed.
        let failure = |_| self.failure().unwrap_or_else(|| self.disconnected("closed"));
        self.calls.push(call).map_err(failure)
    }

    /// A caller dropped a call; `sent`: and no reply has come.
    pub(super) fn cancelled(&self, call: CallRef, sent: bool) {
        self.cancelled.fetch_add(1, Ordering::Relaxed);
        if sent && self.calls.push(call).unwrap_or(false) {
            self.task.wake();
        }
    }

    /// Has the task woken by later submissions. To be called before [`Self::take`] by a task that will wait.
    pub(super) fn register(&self, cx: &Context<'_>) {
        self.task.register(cx.waker());
    }

    pub(super) fn take(&self) -> Taken<Call> {
        self.calls.take()
    }

    /// Fails all later calls; gives those that were submitted and not taken.
    pub(super) fn end(&self, why: RpcError) -> Taken<Call> {
        self.failure.get_or_init(|| why);
        self.calls.close()
    }

    /// Whether no call was submitted since the last [`Self::take`].
    pub(super) fn is_empty(&self) -> bool {
        self.calls.is_empty()
    }

    pub(super) fn wake(&self) {
        self.task.wake();
    }

    /// Has the task end the connection.
    pub(super) fn close(&self) {
        self.closing.store(true, Ordering::Release);
        self.task.wake();
    }

    pub(super) fn is_idle(&self) -> bool {
        self.idle.load(Ordering::Relaxed)
    }

    pub(super) fn set_idle(&self, idle: bool) {
        self.idle.store(idle, Ordering::Relaxed);
    }

    /// Calls that their callers dropped before they were complete.
    pub(super) fn cancelled_calls(&self) -> u64 {
        self.cancelled.load(Ordering::Relaxed)
    }
}
