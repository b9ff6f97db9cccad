//! What callers hold of a connection, and the task that owns it.

use std::{
    sync::Arc,
    task::{Context, Poll, Waker},
};

use millrace_runtime::{RuntimeRef, poll_gathering};
use parking_lot::Mutex;

use super::{pending::PendingCall, submissions::Submissions};
use crate::{Request, RpcError};

/// What a transport adds to a client's connection. The connection's task polls it.
pub trait ConnectionDriver: Send + 'static {
    /// Does what can be done now; `Ready` when the connection is down and its calls have failed.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()>;

    /// Sends what was submitted, as far as that is possible at once; `cx` wakes the connection's task. A caller that
    /// submits to an idle connection calls it, which saves the way through the task.
    fn send_now(&mut self, cx: &mut Context<'_>);

    /// Whether another call could be sent now.
    fn may_send(&self) -> bool;

    /// The runtime has dropped the task: ends the connection and fails its calls.
    fn end(&mut self);
}

struct Shared<D> {
    submissions: Arc<Submissions>,
    /// Taken by the task, and by a caller that finds the connection idle and the lock free.
    driver: Mutex<Driven<D>>,
}

struct Driven<D> {
    /// `None` once the connection is down: its socket or queue pair is released then.
    driver: Option<D>,
    /// Wakes the task.
    task: Option<Waker>,
}

/// A client's connection. Dropping it closes the connection.
pub struct Connection<D: ConnectionDriver>(Arc<Shared<D>>);

impl<D: ConnectionDriver> Connection<D> {
    /// Spawns the task of a connection on `rt`; `name` is for diagnostics.
    pub fn start(rt: &RuntimeRef, name: &'static str, submissions: Arc<Submissions>, driver: D) -> Self {
        let driver = Mutex::new(Driven { driver: Some(driver), task: None });
        let shared = Arc::new(Shared { submissions, driver });
        rt.spawn(name, Box::pin(Task(Arc::clone(&shared)).run()));
        Self(shared)
    }

    /// Submits a call. It fails at once if the connection is down.
    pub fn submit(&self, request: Request) -> PendingCall {
        let Shared { submissions, driver } = &*self.0;
        let (pending, first) = PendingCall::submit(request, submissions);
        if !first {
            return pending;
        }
        // An idle connection sends at once, from here. A busy one leaves it to the task, whose one wake-up serves all
        // that is submitted meanwhile.
        if submissions.is_idle()
            && let Some(mut driven) = driver.try_lock()
            && let Driven { driver: Some(driver), task: Some(task) } = &mut *driven
        {
            driver.send_now(&mut Context::from_waker(task));
        } else {
            submissions.wake();
        }
        pending
    }

    /// Why the connection cannot be used, if it cannot.
    pub fn failure(&self) -> Option<RpcError> {
        self.0.submissions.failure()
    }

    /// Calls that their callers dropped before they were complete.
    pub fn cancelled(&self) -> u64 {
        self.0.submissions.cancelled_calls()
    }

    /// Closes the connection; open calls fail.
    pub fn close(&self) {
        self.0.submissions.close();
    }

    /// Looks at the driver, for statistics; `None` once the connection is down.
    pub fn inspect<R>(&self, look: impl FnOnce(&D) -> R) -> Option<R> {
        self.0.driver.lock().driver.as_ref().map(look)
    }
}

impl<D: ConnectionDriver> Drop for Connection<D> {
    fn drop(&mut self) {
        self.close();
    }
}

/// The connection's task. When its runtime drops it, the connection ends.
struct Task<D: ConnectionDriver>(Arc<Shared<D>>);

impl<D: ConnectionDriver> Task<D> {
    async fn run(self) {
        let Shared { submissions, driver } = &*self.0;
        let may_send = || !submissions.is_empty() && driver.lock().may_send();
        poll_gathering(may_send, |cx| driver.lock().poll(cx)).await;
    }
}

impl<D: ConnectionDriver> Driven<D> {
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
