//! The callers' handle of a connection, and the task that owns the connection.

use std::{
    sync::Arc,
    task::{Context, Poll, Waker},
};

use millrace_runtime::{RuntimeRef, poll_coalescing, sync::Mutex};

use super::{pending::PendingCall, submissions::Submissions};
use crate::{Request, RpcError};

/// The transport-specific part of a client's connection. The connection's task polls it.
pub trait ConnectionDriver: Send + 'static {
    /// Processes available work. `Ready` when the connection is down and its calls have failed.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()>;

    /// Sends submitted calls as far as possible without waiting; `cx` wakes the connection's task. A caller
    /// that submits to an idle connection calls it, which avoids a switch to the task.
    fn send_now(&mut self, cx: &mut Context<'_>);

    /// Whether another call can be sent now.
    fn may_send(&self) -> bool;

    /// Ends the connection and fails its calls, because the runtime dropped the task.
    fn end(&mut self);
}

struct Shared<D> {
    submissions: Arc<Submissions>,
    /// Locked by the task, and by a caller that finds the connection idle and the lock free.
    driver: Mutex<DriverSlot<D>>,
}

struct DriverSlot<D> {
    /// `None` when the connection is down, which releases its socket or queue pair.
    driver: Option<D>,
    /// Waker of the task.
    task: Option<Waker>,
}

/// A client's connection. Dropping it closes the connection.
pub struct Connection<D: ConnectionDriver>(Arc<Shared<D>>);

impl<D: ConnectionDriver> Connection<D> {
    /// Spawns the task of a connection on `rt`; `name` is for diagnostics.
    pub fn start(rt: &RuntimeRef, name: &'static str, submissions: Arc<Submissions>, driver: D) -> Self {
        let driver = Mutex::new(DriverSlot { driver: Some(driver), task: None });
        let shared = Arc::new(Shared { submissions, driver });
        rt.spawn(name, Box::pin(Task(Arc::clone(&shared)).run()));
        Self(shared)
    }

    /// Submits a call, which fails immediately if the connection is down.
    pub fn submit(&self, request: Request) -> PendingCall {
        let Shared { submissions, driver } = &*self.0;
        let (pending, first) = PendingCall::submit(request, submissions);
        if !first {
            return pending;
        }
        // On an idle connection the caller sends the call itself. On a busy one the task sends it; one
        // wake-up serves all calls that are submitted in the meantime.
        if submissions.is_idle()
            && let Some(mut slot) = driver.try_lock()
            && let DriverSlot { driver: Some(driver), task: Some(task) } = &mut *slot
        {
            driver.send_now(&mut Context::from_waker(task));
        } else {
            submissions.wake();
        }
        pending
    }

    /// The reason why the connection is unusable, if it is.
    pub fn failure(&self) -> Option<RpcError> {
        self.0.submissions.failure()
    }

    /// Number of calls that were dropped by their callers before completion.
    pub fn cancelled(&self) -> u64 {
        self.0.submissions.cancelled_calls()
    }

    /// Closes the connection; open calls fail.
    pub fn close(&self) {
        self.0.submissions.close();
    }

    /// Inspects the driver, for statistics; `None` after the connection is down.
    pub fn inspect<R>(&self, f: impl FnOnce(&D) -> R) -> Option<R> {
        self.0.driver.lock().driver.as_ref().map(f)
    }
}

impl<D: ConnectionDriver> Drop for Connection<D> {
    fn drop(&mut self) {
        self.close();
    }
}

/// The connection's task. If the runtime drops it, the connection ends.
struct Task<D: ConnectionDriver>(Arc<Shared<D>>);

impl<D: ConnectionDriver> Task<D> {
    async fn run(self) {
        let Shared { submissions, driver } = &*self.0;
        let may_send = || !submissions.is_empty() && driver.lock().may_send();
        poll_coalescing(may_send, |cx| driver.lock().poll(cx)).await;
    }
}

impl<D: ConnectionDriver> DriverSlot<D> {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        match &mut self.task {
            Some(w) => w.clone_from(cx.waker()),
            None => self.task = Some(cx.waker().clone()),
        }
        let polled = self.driver.as_mut().map_or(Poll::Ready(()), |d| d.poll(cx));
        if polled.is_ready() {
            self.driver = None;
        }
        polled
    }

    fn may_send(&self) -> bool {
        self.driver.as_ref().is_some_and(D::may_send)
    }
}

impl<D: ConnectionDriver> Drop for Task<D> {
    fn drop(&mut self) {
        if let Some(mut driver) = self.0.driver.lock().driver.take() {
            driver.end();
        }
    }
}
