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
        let shared = Shared { state, xid: None, waker: None };
        if let Ok(Some(mut spare)) = SPARES.try_with(|s| s.borrow_mut().pop())
            && let Some(call) = CallRef::get_mut(&mut spare)
        {
            *call.shared.get_mut() = shared;
            return spare;
        }
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

    /// Takes the request of a call that is about to be sent with the XID that `choose` finds for it. `None` when the caller
    /// has dropped it.
    ///
    /// # Errors
    /// That of `choose`; the call is unsent still.
    pub(super) fn start<E>(
        &self,
        choose: impl FnOnce(Option<u32>) -> Result<u32, E>,
    ) -> Option<Result<(u32, Request), E>> {
        let mut shared = self.shared.lock();
        let State::Unsent(request) = &shared.state else { return None };
        let xid = match choose(request.xid) {
            Ok(xid) => xid,
            Err(e) => return Some(Err(e)),
        };
        shared.xid = Some(xid);
        match std::mem::replace(&mut shared.state, State::Sent) {
            State::Unsent(request) => Some(Ok((xid, request))),
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
        match std::mem::replace(&mut shared.state, State::Over) {
            State::Complete(result) => return Poll::Ready((result, shared.xid)),
            open => shared.state = open,
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
        let before = std::mem::replace(&mut shared.state, State::Complete(result));
        let waker = shared.waker.take();
        drop(shared);
        drop(before);
        // The caller reuses the call's memory if it is the last that refers to it.
        drop(self);
        if let Some(w) = waker {
            w.wake();
        }
    }
}
