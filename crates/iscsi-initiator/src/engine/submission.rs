//! Submission of operations to the task of a device, without allocations in the steady state.

use std::{
    cell::RefCell,
    future::Future,
    pin::Pin,
    ptr::null_mut,
    sync::atomic::{AtomicBool, Ordering},
    task::{Context, Poll, Waker, ready},
};

use futures::task::AtomicWaker;
use millrace_buffer::Buffer;
use millrace_runtime::{
    queue::{Arc, AtomicPtr, Linked, Queue},
    sync::Mutex,
};

use super::work::Work;
use crate::Error;

/// Maximum number of submissions that a thread retains for reuse.
const SPARE: usize = 128;

thread_local! {
    static SPARES: RefCell<Vec<Arc<Submission>>> = const { RefCell::new(Vec::new()) };
}

/// The result of an operation: the buffer of a read.
pub(crate) type Outcome = Result<Option<Buffer>, Error>;

/// A request of a handle.
pub(crate) enum Request {
    /// An operation.
    Work(Work),
    /// Ends the device when the operations before are complete. It has no outcome: the reply is dropped then.
    Close,
}

enum Stage {
    Submitted(Request),
    Taken,
    Complete(Outcome),
    /// The caller has the outcome.
    Finished,
}

struct State {
    stage: Stage,
    waker: Option<Waker>,
}

/// A request and its outcome. Only its caller and the device's task contend for the lock.
struct Submission {
    link: AtomicPtr<Self>,
    state: Mutex<State>,
}

impl Linked for Submission {
    fn link(&self) -> &AtomicPtr<Self> {
        &self.link
    }
}

impl Submission {
    fn new(request: Request) -> Arc<Self> {
        let state = State { stage: Stage::Submitted(request), waker: None };
        if let Ok(Some(mut spare)) = SPARES.try_with(|spares| spares.borrow_mut().pop())
            && let Some(submission) = Arc::get_mut(&mut spare)
        {
            *submission.state.get_mut() = state;
            return spare;
        }
        Arc::new(Self { link: AtomicPtr::new(null_mut()), state: Mutex::new(state) })
    }

    /// Retains the memory of a submission without other references.
    fn recycle(mut submission: Arc<Self>) {
        if Arc::get_mut(&mut submission).is_none() {
            return;
        }
        // Fails in an ending thread, whose thread-local storage is already dropped.
        let _ = SPARES.try_with(|spares| {
            let mut spares = spares.borrow_mut();
            if spares.len() < SPARE {
                spares.push(submission);
            }
        });
    }

    fn poll(&self, cx: &Context<'_>) -> Poll<Outcome> {
        let mut state = self.state.lock();
        if matches!(state.stage, Stage::Complete(_))
            && let Stage::Complete(outcome) = std::mem::replace(&mut state.stage, Stage::Finished)
        {
            return Poll::Ready(outcome);
        }
        match &mut state.waker {
            Some(waker) => waker.clone_from(cx.waker()),
            None => state.waker = Some(cx.waker().clone()),
        }
        Poll::Pending
    }
}

/// The requests of the handles of a device, for its task.
#[derive(Default)]
pub(crate) struct Submissions {
    queue: Queue<Submission>,
    task: AtomicWaker,
    /// All handles were dropped.
    released: AtomicBool,
}

impl Submissions {
    /// Submits a request. An operation whose future is dropped continues.
    pub(crate) fn submit(&self, request: Request) -> PendingOperation {
        let submission = Submission::new(request);
        match self.queue.push(Arc::clone(&submission)) {
            Ok(true) => self.task.wake(),
            Ok(false) => {}
            Err(refused) => Reply(Some(refused)).complete(Err(Error::Closed)),
        }
        PendingOperation(Some(submission))
    }

    /// Requests the end of the device, because no handle is left.
    pub(crate) fn release(&self) {
        self.released.store(true, Ordering::Release);
        self.task.wake();
    }
}

/// A submitted operation. It fails with [`Error::Closed`] if the device ends before.
pub(crate) struct PendingOperation(Option<Arc<Submission>>);

impl Future for PendingOperation {
    type Output = Outcome;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Outcome> {
        let Some(submission) = &self.0 else { return Poll::Ready(Err(Error::Closed)) };
        let outcome = ready!(submission.poll(cx));
        self.0.take().into_iter().for_each(Submission::recycle);
        Poll::Ready(outcome)
    }
}

/// The end of the submissions that the device's task has. Dropping it closes the queue.
pub(crate) struct Receiver(pub(crate) Arc<Submissions>);

impl Receiver {
    /// Registers the task for wake-ups by later requests; to be called before [`Self::take`].
    pub(super) fn register(&self, cx: &Context<'_>) {
        self.0.task.register(cx.waker());
    }

    /// Whether all handles were dropped, so that [`Self::take`] returns the last requests.
    pub(super) fn is_released(&self) -> bool {
        self.0.released.load(Ordering::Acquire)
    }

    /// The requests that were submitted, oldest first.
    pub(super) fn take(&self) -> impl Iterator<Item = (Request, Reply)> + use<> {
        self.0.queue.take().filter_map(|submission| {
            match std::mem::replace(&mut submission.state.lock().stage, Stage::Taken) {
                Stage::Submitted(request) => Some((request, Reply(Some(Arc::clone(&submission))))),
                Stage::Taken | Stage::Complete(_) | Stage::Finished => None,
            }
        })
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        self.0.queue.close().map(|submission| Reply(Some(submission))).for_each(drop);
    }
}

/// Returns the outcome of an operation to its caller: [`Error::Closed`] if it is dropped.
pub(crate) struct Reply(Option<Arc<Submission>>);

impl Reply {
    pub(super) fn complete(mut self, outcome: Outcome) {
        self.end(outcome);
    }

    fn end(&mut self, outcome: Outcome) {
        let Some(submission) = self.0.take() else { return };
        let mut state = submission.state.lock();
        state.stage = Stage::Complete(outcome);
        let waker = state.waker.take();
        drop(state);
        // The caller reuses the memory if it has the last reference.
        drop(submission);
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        self.end(Err(Error::Closed));
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
mod tests {
    use futures::FutureExt;

    use super::*;

    fn block_on<F: Future>(future: F) -> F::Output {
        tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
    }

    fn flush() -> Request {
        Request::Work(Work::Flush([0; 16]))
    }

    #[test]
    fn operations_are_taken_in_order_and_have_their_own_outcomes() {
        let submissions = Arc::new(Submissions::default());
        let receiver = Receiver(Arc::clone(&submissions));
        let pending = [flush(), Request::Close, flush()].map(|request| submissions.submit(request));
        let mut taken: Vec<_> = receiver.take().collect();
        let closes: Vec<_> = taken.iter().map(|(request, _)| matches!(request, Request::Close)).collect();
        assert_eq!(closes, [false, true, false]);
        let [mut first, close, last] = pending;
        assert!((&mut first).now_or_never().is_none());
        taken.pop().unwrap().1.complete(Err(Error::Closed));
        assert!(matches!(block_on(last), Err(Error::Closed)));
        taken.remove(0).1.complete(Ok(None));
        assert!(matches!(block_on(first), Ok(None)));
        drop(taken);
        assert!(block_on(close).is_err());
        assert_eq!(receiver.take().count(), 0);
    }

    #[test]
    fn requests_fail_when_the_task_has_ended() {
        let submissions = Arc::new(Submissions::default());
        let receiver = Receiver(Arc::clone(&submissions));
        let before = submissions.submit(flush());
        let abandoned = submissions.submit(flush());
        drop(abandoned);
        drop(receiver);
        assert!(matches!(block_on(before), Err(Error::Closed)));
        assert!(matches!(block_on(submissions.submit(flush())), Err(Error::Closed)));
    }

    #[test]
    fn every_operation_of_many_threads_has_one_outcome() {
        let submissions = Arc::new(Submissions::default());
        let receiver = Receiver(Arc::clone(&submissions));
        let callers: Vec<_> = (0..4)
            .map(|_| {
                let submissions = Arc::clone(&submissions);
                std::thread::spawn(move || {
                    (0..1000).filter(|_| block_on(submissions.submit(flush())).is_ok()).count()
                })
            })
            .collect();
        let mut left = 4000;
        while left > 0 {
            for (_, reply) in receiver.take() {
                reply.complete(Ok(None));
                left -= 1;
            }
        }
        let complete: usize = callers.into_iter().map(|caller| caller.join().unwrap()).sum();
        assert_eq!(complete, 4000);
    }
}
