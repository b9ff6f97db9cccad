//! The state that a caller and the connection's task share for one call.

use std::{
    cell::RefCell,
    ptr::null_mut,
    sync::atomic::{AtomicBool, Ordering},
    task::{Context, Poll, Waker},
};

use millrace_runtime::{
    queue::{Arc, AtomicPtr, Linked},
    sync::Mutex,
};

use crate::{Reply, Request, RpcError, Stage, Stages};

/// Maximum number of calls that a thread retains for reuse, which avoids an allocation per call.
const SPARE: usize = 128;

thread_local! {
    static SPARES: RefCell<Vec<CallRef>> = const { RefCell::new(Vec::new()) };
}

enum CallStage {
    /// Submitted, not yet sent.
    Unsent(Request),
    /// Sent, not yet answered.
    Sent,
    /// Complete; the caller has not received the result.
    Complete(Result<Reply, RpcError>),
    /// The caller received the result or dropped the call.
    Finished,
}

struct CallState {
    state: CallStage,
    xid: Option<u32>,
    waker: Option<Waker>,
}

/// A call. Only its caller and the connection's task contend for the lock.
pub(super) struct Call {
    link: AtomicPtr<Self>,
    /// Whether the call was sent. Then its caller submits it again to cancel it.
    sent: AtomicBool,
    shared: Mutex<CallState>,
}

/// A reference to a call.
pub(super) type CallRef = Arc<Call>;

impl Linked for Call {
    fn link(&self) -> &AtomicPtr<Self> {
        &self.link
    }
}

impl Call {
    /// Creates a call to be sent.
    pub(super) fn unsent(request: Request) -> CallRef {
        Self::in_state(CallStage::Unsent(request))
    }

    /// Creates a call with a result.
    pub(super) fn complete(result: Result<Reply, RpcError>) -> CallRef {
        Self::in_state(CallStage::Complete(result))
    }

    fn in_state(state: CallStage) -> CallRef {
        if let Ok(Some(mut spare)) = SPARES.try_with(|s| s.borrow_mut().pop())
            && let Some(call) = CallRef::get_mut(&mut spare)
        {
            *call.sent.get_mut() = false;
            let shared = call.shared.get_mut();
            shared.state = state;
            shared.xid = None;
            shared.waker = None;
            return spare;
        }
        let shared = CallState { state, xid: None, waker: None };
        CallRef::new(Self {
            link: AtomicPtr::new(null_mut()),
            sent: AtomicBool::new(false),
            shared: Mutex::new(shared),
        })
    }

    /// Retains the memory of a call without other references.
    pub(super) fn recycle(mut call: CallRef) {
        if CallRef::get_mut(&mut call).is_none() {
            return;
        }
        // Fails in an ending thread, whose thread-local storage is already dropped.
        let _ = SPARES.try_with(|spares| {
            let mut spares = spares.borrow_mut();
            if spares.len() < SPARE {
                spares.push(call);
            }
        });
    }

    /// Takes the request of a call to be sent, with the XID that `choose` returns for the one that the request asks for,
    /// if it asks for one. `None` if the caller dropped the call.
    pub(super) fn start(
        &self,
        choose: impl FnOnce(Option<u32>) -> Result<u32, RpcError>,
    ) -> Option<Result<(u32, Request), RpcError>> {
        let mut shared = self.shared.lock();
        let CallStage::Unsent(request) = &shared.state else { return None };
        let xid = match choose(request.xid) {
            Ok(xid) => xid,
            Err(e) => return Some(Err(e)),
        };
        shared.xid = Some(xid);
        self.sent.store(true, Ordering::Relaxed);
        match std::mem::replace(&mut shared.state, CallStage::Sent) {
            CallStage::Unsent(request) => Some(Ok((xid, request))),
            _ => None,
        }
    }

    /// Whether the call was sent. Only the connection's task calls this and [`Self::start`].
    pub(super) fn was_sent(&self) -> bool {
        self.sent.load(Ordering::Relaxed)
    }

    /// Whether the caller dropped the call, and its XID if it was sent.
    pub(super) fn cancelled(&self) -> Option<Option<u32>> {
        let shared = self.shared.lock();
        matches!(shared.state, CallStage::Finished).then_some(shared.xid)
    }

    /// Whether the call is still to be sent.
    pub(super) fn is_unsent(&self) -> bool {
        matches!(self.shared.lock().state, CallStage::Unsent(_))
    }

    /// The result, which is returned once, and the XID if the call was sent.
    pub(super) fn poll(&self, cx: &Context<'_>) -> Poll<(Result<Reply, RpcError>, Option<u32>)> {
        let mut shared = self.shared.lock();
        if matches!(shared.state, CallStage::Complete(_))
            && let CallStage::Complete(result) = std::mem::replace(&mut shared.state, CallStage::Finished)
        {
            return Poll::Ready((result, shared.xid));
        }
        match &mut shared.waker {
            Some(w) => w.clone_from(cx.waker()),
            None => shared.waker = Some(cx.waker().clone()),
        }
        Poll::Pending
    }

    /// Cancels the call for its caller. Returns whether the call was sent and not answered.
    pub(super) fn cancel(&self) -> bool {
        let mut shared = self.shared.lock();
        shared.waker = None;
        let state = std::mem::replace(&mut shared.state, CallStage::Finished);
        drop(shared);
        // The request or result is dropped outside the lock.
        matches!(state, CallStage::Sent)
    }
}

/// The connection's reference to an incomplete call.
pub struct Waiter {
    pub(super) call: CallRef,
    /// The stages of a call that was sent.
    pub(super) stages: Stages,
}

impl From<CallRef> for Waiter {
    fn from(call: CallRef) -> Self {
        Self { call, stages: Stages::NONE }
    }
}

impl Waiter {
    /// Completes the call and wakes its caller.
    pub fn complete(self, result: Result<Reply, RpcError>) {
        self.stages.end(Stage::Decode);
        let mut shared = self.call.shared.lock();
        if matches!(shared.state, CallStage::Finished) {
            return;
        }
        shared.state = CallStage::Complete(result);
        let waker = shared.waker.take();
        drop(shared);
        // The caller reuses the call's memory, and the sampler that of its times, if they hold the last reference.
        drop(self);
        if let Some(w) = waker {
            w.wake();
        }
    }
}
