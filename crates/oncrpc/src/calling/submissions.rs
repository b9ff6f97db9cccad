//! Submission of calls to a connection's task.

use std::{
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    task::Context,
};

use futures::task::AtomicWaker;
use millrace_runtime::queue::{Drain, Queue};

use super::call::{Call, CallRef};
use crate::RpcError;

/// The state that the callers and the task of a connection share, except the calls.
pub struct Submissions {
    /// Submitted calls, and calls that were cancelled after they were sent.
    calls: Queue<Call>,
    task: AtomicWaker,
    closing: AtomicBool,
    /// The reason why the connection is down.
    failure: OnceLock<RpcError>,
    /// Whether no call is open, so that a caller may send its call itself. A hint.
    idle: AtomicBool,
    cancelled: AtomicU64,
    peer: String,
}

impl Submissions {
    /// Creates the submissions of a connection to `peer`, which appears in errors.
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

    /// Address of the server.
    pub fn peer(&self) -> &str {
        &self.peer
    }

    /// The error of a call whose connection was lost.
    pub fn disconnected(&self, reason: impl ToString) -> RpcError {
        RpcError::Disconnected { peer: self.peer.clone(), reason: reason.to_string() }
    }

    /// The reason why the connection is unusable, if it is.
    pub fn failure(&self) -> Option<RpcError> {
        let closed = || self.is_closing().then(|| self.disconnected("closed by this client"));
        self.failure.get().cloned().or_else(closed)
    }

    /// Whether this client is closing the connection.
    pub fn is_closing(&self) -> bool {
        self.closing.load(Ordering::Acquire)
    }

    /// Adds a call. Returns whether the task must be woken.
    ///
    /// # Errors
    /// The reason why the connection is down.
    pub(super) fn push(&self, call: CallRef) -> Result<bool, RpcError> {
        // The failure is stored before the queue is closed.
        let failure = |_| self.failure().unwrap_or_else(|| self.disconnected("closed"));
        self.calls.push(call).map_err(failure)
    }

    /// Records that a caller dropped a call; `sent`: the call was sent and not answered.
    pub(super) fn cancelled(&self, call: CallRef, sent: bool) {
        self.cancelled.fetch_add(1, Ordering::Relaxed);
        if sent && self.calls.push(call).unwrap_or(false) {
            self.task.wake();
        }
    }

    /// Registers the task for wake-ups by later submissions. A task calls it before [`Self::take`] if it will
    /// wait.
    pub(super) fn register(&self, cx: &Context<'_>) {
        self.task.register(cx.waker());
    }

    pub(super) fn take(&self) -> Drain<Call> {
        self.calls.take()
    }

    /// Fails all later calls; returns those that were submitted and not taken.
    pub(super) fn end(&self, why: RpcError) -> Drain<Call> {
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

    /// Requests the task to close the connection.
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

    /// Number of calls that were dropped by their callers before completion.
    pub(super) fn cancelled_calls(&self) -> u64 {
        self.cancelled.load(Ordering::Relaxed)
    }
}
