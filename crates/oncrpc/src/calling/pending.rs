//! The caller's handle of a call.

use std::{
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use super::{
    call::{Call, CallRef},
    submissions::Submissions,
};
use crate::{Reply, Request, RpcError};

/// A submitted call as a future without allocation. Dropping it cancels the call.
pub struct PendingCall {
    call: Option<CallRef>,
    /// Submissions of the connection; `None` for a call that was created complete.
    submissions: Option<Arc<Submissions>>,
    xid: Option<u32>,
}

impl PendingCall {
    /// Submits a call. Returns whether the connection's task must be woken. The call fails if the connection
    /// is down.
    pub(super) fn submit(request: Request, submissions: &Arc<Submissions>) -> (Self, bool) {
        if let Some(e) = submissions.failure() {
            return (Self::complete(None, Err(e)), false);
        }
        let call = Call::unsent(request);
        match submissions.push(CallRef::clone(&call)) {
            Ok(first) => {
                (Self { call: Some(call), submissions: Some(Arc::clone(submissions)), xid: None }, first)
            }
            Err(e) => (Self::complete(None, Err(e)), false),
        }
    }

    /// A complete call, for example one that was rejected or that a test answers.
    pub fn complete(xid: Option<u32>, result: Result<Reply, RpcError>) -> Self {
        Self { call: Some(Call::complete(result)), submissions: None, xid }
    }

    /// The XID with which the call was sent. `None` before the future completes, and for a call that was not
    /// sent.
    pub fn xid(&self) -> Option<u32> {
        self.xid
    }
}

impl Future for PendingCall {
    type Output = Result<Reply, RpcError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Some(call) = &self.call else {
            return Poll::Ready(Err(RpcError::Local("the result of this call was already taken".into())));
        };
        let Poll::Ready((result, xid)) = call.poll(cx) else { return Poll::Pending };
        self.xid = self.xid.or(xid);
        self.call.take().into_iter().for_each(Call::recycle);
        self.submissions = None;
        Poll::Ready(result)
    }
}

impl Drop for PendingCall {
    fn drop(&mut self) {
        let Some(call) = self.call.take() else { return };
        let sent = call.cancel();
        match &self.submissions {
            Some(submissions) => submissions.cancelled(call, sent),
            None => Call::recycle(call),
        }
    }
}
