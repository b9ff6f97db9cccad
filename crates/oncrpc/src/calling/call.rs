//! One call: what its caller and the connection's task share of it.

use std::{
    cell::RefCell,
    ptr::null_mut,
    task::{Context, Poll, Waker},
};

use parking_lot::Mutex;

use super::{
    queue::Linked,
    sync::{Arc, AtomicPtr},
};
use crate::{Reply, Request, RpcError};

/// Calls that a thread keeps for reuse, so that a call allocates nothing.
const SPARE: usize = 128;

thread_local! {
    static SPARES: RefCell<Vec<CallRef>> = const { RefCell::new(Vec::new()) };
}

enum State {
    /// Submitted, not sent.
    Unsent(Request),
    /// Sent and not answered.
    Sent,
    /// Complete; its caller has not taken the result.
    Complete(Result<Reply, RpcError>),
    /// Its caller has the result, or has dropped the call.
    Over,
}

struct Shared {
    state: State,
    xid: Option<u32>,
    waker: Option<Waker>,
}

/// A call. The lock is between its caller and the connection's task; other callers never take it.
pub(super) struct Call {
    link: AtomicPtr<Self>,
    shared: Mutex<Shared>,
}

/// Refers to a call.
pub(super) type CallRef = Arc<Call>;

impl Linked for Call {
    fn link(&self) -> &AtomicPtr<Self> {
        &self.link
    }
}

impl Call {
    /// A call to be sent.
    pub(super) fn unsent(request: Request) -> CallRef {
        Self::in_state(State::Unsent(request))
    }

    /// A call with a result.
    pub(super) fn complete(result: Result<Reply, RpcError>) -> CallRef {
        Self::in_state(State::Complete(result))
    }

    fn in_state(state: State) -> CallRef {
        if let Ok(Some(mut spare)) = SPARES.try_with(|s| s.borrow_mut().pop())
            && let Some(call) = CallRef::get_mut(&mut spare)
        {
            let shared = call.shared.get_mut();
            shared.state = state;
            shared.xid = None;
            shared.waker = None;
            return spare;
        }
        let shared = Shared { state, xid: None, waker: None };
        CallRef::new(Self { link: AtomicPtr::new(null_mut()), shared: Mutex::new(shared) })
    }

    /// Keeps the memory of a call that nobody else refers to.
    pub(super) fn recycle(mut call: CallRef) {
        if CallRef::get_mut(&mut call).is_none() {
            return;
        }
        // A thread that ends has no spares any more.
        let _ = SPARES.try_with(|spares| {
            let mut spares = spares.borrow_mut();
            if spares.len() < SPARE {
                spares.push(call);
            }
        });
    }

    /// The XID that the request of an unsent call asks for, if any; `None` for a call that its caller has dropped.
    pub(super) fn given_xid(&self) -> Option<Option<u32>> {
        match &self.shared.lock().state {
            State::Unsent(request) => Some(request.xid),
            _ => None,
        }
    }

    /// Takes the request of a call that is about to be sent with this XID. `None` when the caller has dropped it.
    pub(super) fn start(&self, xid: u32) -> Option<Request> {
        let mut shared = self.shared.lock();
        if !matches!(shared.state, State::Unsent(_)) {
            return None;
        }
        shared.xid = Some(xid);
        match std::mem::replace(&mut shared.state, State::Sent) {
            State::Unsent(request) => Some(request),
            _ => None,
        }
    }

    /// Whether its caller has dropped the call, and the XID if it was sent.
    pub(super) fn cancelled(&self) -> Option<Option<u32>> {
        let shared = self.shared.lock();
        matches!(shared.state, State::Over).then_some(shared.xid)
    }

    /// Whether the call is to be sent still.
    pub(super) fn is_unsent(&self) -> bool {
        matches!(self.shared.lock().state, State::Unsent(_))
    }

    /// The result, once, and the XID of a call that was sent.
    pub(super) fn poll(&self, cx: &Context<'_>) -> Poll<(Result<Reply, RpcError>, Option<u32>)> {
        let mut shared = self.shared.lock();
        if matches!(shared.state, State::Complete(_))
            && let State::Complete(result) = std::mem::replace(&mut shared.state, State::Over)
        {
            return Poll::Ready((result, shared.xid));
        }
        match &mut shared.waker {
            Some(w) => w.clone_from(cx.waker()),
            None => shared.waker = Some(cx.waker().clone()),
        }
        Poll::Pending
    }

    /// Drops the call for its caller; whether it was sent and not answered.
    pub(super) fn cancel(&self) -> bool {
        let mut shared = self.shared.lock();
        shared.waker = None;
        let state = std::mem::replace(&mut shared.state, State::Over);
        drop(shared);
        // A request or a result is dropped outside the lock.
        matches!(state, State::Sent)
    }
}

/// The connection's side of a call that is not complete.
pub struct Waiter(pub(super) CallRef);

impl Waiter {
    /// Completes the call and wakes its caller.
    pub fn complete(self, result: Result<Reply, RpcError>) {
        let mut shared = self.0.shared.lock();
        if matches!(shared.state, State::Over) {
            return;
        }
        shared.state = State::Complete(result);
        let waker = shared.waker.take();
        drop(shared);
        // The caller reuses the call's memory if it is the last that refers to it.
        drop(self);
        if let Some(w) = waker {
            w.wake();
        }
    }
}
