//! The calls of one connection in its task: unsent calls in order, and calls in flight by XID.

use std::{
    collections::VecDeque,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use millrace_runtime::{Instant, RuntimeExt, RuntimeRef, Sleep};

use super::{
    call::{CallRef, Waiter},
    submissions::Submissions,
};
use crate::{Request, RpcError, Stage};

/// Maximum number of slots. The table grows up to this size when two XIDs collide; then calls with a
/// requested XID are rejected.
const MAX_SLOTS: usize = 1 << 21;

/// A call to be sent.
pub struct Outgoing {
    /// XID of the call.
    pub xid: u32,
    /// Time at which the call times out.
    pub deadline: Instant,
    waiter: Waiter,
}

impl Outgoing {
    /// Completes a call that cannot be sent.
    pub fn reject(self, why: RpcError) {
        self.waiter.complete(Err(why));
    }
}

/// A call that was sent and not answered.
pub struct InFlight<T> {
    /// XID of the call.
    pub xid: u32,
    /// `None` after the caller cancelled the call or it timed out; the reply may still arrive.
    pub waiter: Option<Waiter>,
    /// Time at which the call times out; `None` after that time.
    pub deadline: Option<Instant>,
    /// State of the call in the transport.
    pub state: T,
}

impl<T> InFlight<T> {
    /// Completes the call, unless it was cancelled or timed out.
    pub fn complete(self, result: Result<crate::Reply, RpcError>) {
        // Dropped first, because the state may expose the caller's memory.
        drop(self.state);
        if let Some(waiter) = self.waiter {
            waiter.complete(result);
        }
    }
}

/// The calls of one connection, which ends the stages of a call that all transports have; `T` is the transport's state of a call in flight. Allocates only when the
/// number of open calls exceeds its previous maximum.
///
/// XIDs count up from a random number, so that a new connection does not repeat those of its predecessor,
/// which the server may have cached. The low bits of an XID are the call's slot in the table. An XID whose
/// slot is in use (by a slow call) is skipped, so lookups need neither search nor hashing.
pub struct Calls<T> {
    submissions: Arc<Submissions>,
    rt: RuntimeRef,
    unsent: VecDeque<(CallRef, Instant)>,
    slots: Box<[Option<InFlight<T>>]>,
    in_flight: usize,
    next_xid: u32,
    /// XIDs of calls that were dropped by their callers after they were sent.
    cancelled: VecDeque<u32>,
    max_open: usize,
    timeout: Duration,
    /// Expires at the deadline of the oldest call when the timer was set. It is not reset when that call
    /// completes, so that one timer is created per timeout instead of per call.
    timer: Option<Sleep>,
}

impl<T> Calls<T> {
    /// Creates an empty table for at most `max_open` calls (1 to 2^20) with a time limit of `timeout` from
    /// submission.
    pub fn new(submissions: Arc<Submissions>, rt: RuntimeRef, max_open: usize, timeout: Duration) -> Self {
        Self {
            submissions,
            unsent: VecDeque::new(),
            slots: empty(16),
            in_flight: 0,
            next_xid: rt.random_u64() as u32,
            rt,
            cancelled: VecDeque::new(),
            max_open: max_open.clamp(1, 1 << 20),
            timeout,
            timer: None,
        }
    }

    /// Submissions of the connection.
    pub fn submissions(&self) -> &Arc<Submissions> {
        &self.submissions
    }

    /// Number of calls sent and not answered, including cancelled and timed out ones until they are
    /// [removed](Self::remove).
    pub fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// Number of calls that wait to be sent.
    pub fn unsent(&self) -> usize {
        self.unsent.len()
    }

    /// Registers the task for later submissions, and takes the present ones.
    pub fn poll_submissions(&mut self, cx: &Context<'_>) {
        self.submissions.register(cx);
        self.take_submissions();
    }

    /// Takes submitted calls without registering the task.
    pub fn take_submissions(&mut self) {
        let mut submitted = self.submissions.take().peekable();
        if submitted.peek().is_none() {
            return;
        }
        let deadline = self.rt.now() + self.timeout;
        for call in submitted {
            if call.was_sent() {
                self.cancelled.extend(call.cancelled().flatten());
            } else if self.is_below_limit() {
                self.unsent.push_back((call, deadline));
            } else {
                let max = self.max_open;
                let why =
                    format!("{max} calls are open on this connection; wait for one of them to complete");
                Waiter::from(call).complete(Err(RpcError::Local(why)));
            }
        }
    }

    fn is_below_limit(&mut self) -> bool {
        if self.in_flight + self.unsent.len() >= self.max_open {
            self.unsent.retain(|(call, _)| call.is_unsent());
        }
        self.in_flight + self.unsent.len() < self.max_open
    }

    /// Publishes whether callers may send a call themselves, without the task.
    pub fn publish_idle(&self) {
        // Without a timer the task must run in order to set one.
        let idle = self.in_flight == 0 && self.unsent.is_empty() && self.timer.is_some();
        self.submissions.set_idle(idle);
    }

    /// The next call to be sent, and its request. It counts as in flight after [`Self::sent`].
    pub fn next_unsent(&mut self) -> Option<(Outgoing, Request)> {
        while let Some((call, deadline)) = self.unsent.pop_front() {
            match call.start(|requested| self.choose_xid(requested)) {
                Some(Ok((xid, request))) => {
                    let waiter = Waiter { call, stages: request.stages.clone() };
                    waiter.stages.end(Stage::Queue);
                    return Some((Outgoing { xid, deadline, waiter }, request));
                }
                Some(Err(e)) => Waiter::from(call).complete(Err(e)),
                None => {}
            }
        }
        None
    }

    fn choose_xid(&mut self, requested: Option<u32>) -> Result<u32, RpcError> {
        if 2 * self.in_flight >= self.slots.len() {
            self.grow();
        }
        let Some(xid) = requested else {
            // Terminates, because half of the slots are free.
            while self.slots[self.slot(self.next_xid)].is_some() {
                self.next_xid = self.next_xid.wrapping_add(1);
            }
            let xid = self.next_xid;
            self.next_xid = xid.wrapping_add(1);
            return Ok(xid);
        };
        // Growing the table separates the requested XID from another one in its slot.
        while let Some(other) = &self.slots[self.slot(xid)] {
            if other.xid == xid || self.slots.len() >= MAX_SLOTS {
                return Err(RpcError::Local(format!(
                    "a call with the XID {xid:#010x} is open on this connection"
                )));
            }
            self.grow();
        }
        Ok(xid)
    }

    fn grow(&mut self) {
        let larger = empty(self.slots.len() * 2);
        // XIDs with different low bits keep different slots.
        for call in std::mem::replace(&mut self.slots, larger).into_iter().flatten() {
            let at = self.slot(call.xid);
            self.slots[at] = Some(call);
        }
    }

    fn slot(&self, xid: u32) -> usize {
        xid as usize & (self.slots.len() - 1)
    }

    /// Adds a call whose message was posted or queued.
    pub fn sent(&mut self, call: Outgoing, state: T) {
        let Outgoing { xid, deadline, waiter } = call;
        waiter.stages.end(Stage::Send);
        self.insert(InFlight { xid, waiter: Some(waiter), deadline: Some(deadline), state });
    }

    /// Adds a call that was [removed](Self::remove).
    pub fn insert(&mut self, call: InFlight<T>) {
        let at = self.slot(call.xid);
        let before = self.slots[at].replace(call);
        debug_assert!(before.is_none(), "the slot of an XID in use");
        self.in_flight += 1;
    }

    /// The call in flight with this XID.
    pub fn get_mut(&mut self, xid: u32) -> Option<&mut InFlight<T>> {
        let at = self.slot(xid);
        self.slots[at].as_mut().filter(|c| c.xid == xid)
    }

    /// Removes the call in flight with this XID.
    pub fn remove(&mut self, xid: u32) -> Option<InFlight<T>> {
        let at = self.slot(xid);
        let call = self.slots[at].take_if(|c| c.xid == xid)?;
        self.in_flight -= 1;
        if let Some(waiter) = &call.waiter {
            waiter.stages.end(Stage::Wait);
        }
        Some(call)
    }

    /// The calls in flight in arbitrary order.
    pub fn all(&self) -> impl Iterator<Item = &InFlight<T>> {
        self.slots.iter().flatten()
    }

    /// The XID of a call in flight that its caller dropped and that now has no waiter. Each call is returned
    /// once.
    pub fn next_cancelled(&mut self) -> Option<u32> {
        while let Some(xid) = self.cancelled.pop_front() {
            // The reply may have arrived in the meantime, and the XID may be in use again.
            if let Some(call) = self.get_mut(xid)
                && call.waiter.take_if(|w| w.call.cancelled().is_some()).is_some()
            {
                return Some(xid);
            }
        }
        None
    }

    /// The XID of a call in flight that timed out, which the transport completes with [`Self::timed_out`].
    /// Unsent calls are completed here. Pending if there is none; the task is woken at the next deadline.
    pub fn poll_expired(&mut self, cx: &mut Context<'_>) -> Poll<u32> {
        loop {
            if self.timer.is_none() {
                let Some(first) = self.first_deadline() else { return Poll::Pending };
                self.timer = Some(self.rt.sleep_until(first));
            }
            if self.timer.as_mut().is_some_and(|t| t.as_mut().poll(cx).is_pending()) {
                return Poll::Pending;
            }
            self.timer = None;
            let now = self.rt.now();
            self.expire_unsent(now);
            let due = |c: &&mut InFlight<T>| c.deadline.is_some_and(|at| at <= now);
            if let Some(call) = self.slots.iter_mut().flatten().find(due) {
                call.deadline = None;
                return Poll::Ready(call.xid);
            }
        }
    }

    fn first_deadline(&self) -> Option<Instant> {
        let in_flight = self.slots.iter().flatten().filter_map(|c| c.deadline).min();
        // All calls have the same timeout, so the first unsent call has the earliest deadline.
        let unsent = self.unsent.front().map(|(_, deadline)| *deadline);
        [in_flight, unsent].into_iter().flatten().min()
    }

    fn expire_unsent(&mut self, now: Instant) {
        while let Some((call, _)) = self.unsent.pop_front_if(|(_, deadline)| *deadline <= now) {
            Waiter::from(call).complete(Err(self.timed_out()));
        }
    }

    /// The error of a call that timed out.
    pub fn timed_out(&self) -> RpcError {
        RpcError::TimedOut { peer: self.submissions.peer().to_owned(), after: self.timeout }
    }

    /// Ends the connection: all calls in flight, unsent and later ones fail with the first reason. The
    /// transport's state of a call is dropped before its caller is woken.
    pub fn end(&mut self, reason: impl ToString) {
        let submitted = self.submissions.end(self.submissions.disconnected(reason));
        self.timer = None;
        let error = self.submissions.failure().unwrap_or_else(|| self.submissions.disconnected("closed"));
        for call in self.slots.iter_mut().filter_map(Option::take) {
            call.complete(Err(error.clone()));
        }
        self.in_flight = 0;
        let unsent = self.unsent.drain(..).map(|(call, _)| call);
        for call in unsent.chain(submitted) {
            Waiter::from(call).complete(Err(error.clone()));
        }
    }
}

fn empty<T>(slots: usize) -> Box<[Option<InFlight<T>>]> {
    (0..slots).map(|_| None).collect()
}

#[cfg(all(test, not(millrace_loom)))]
mod tests {
    use futures::{FutureExt, future::join_all, task::noop_waker_ref};
    use millrace_runtime::tokio_rt::TokioRuntime;
    use millrace_xdr::Message;

    use super::*;
    use crate::{PendingCall, ReplySpec};

    const TIMEOUT: Duration = Duration::from_millis(20);

    struct Table {
        calls: Calls<u32>,
        submissions: Arc<Submissions>,
    }

    impl Table {
        fn new(max_open: usize) -> Self {
            let submissions = Submissions::new("peer");
            let calls = Calls::new(Arc::clone(&submissions), TokioRuntime::current(), max_open, TIMEOUT);
            Self { calls, submissions }
        }

        fn submit(&self, xid: Option<u32>) -> PendingCall {
            let request = Request { xid, ..Request::new(Message::default(), ReplySpec::default()) };
            PendingCall::submit(request, &self.submissions).0
        }

        /// Sends the next call and returns its XID.
        fn send(&mut self, state: u32) -> Option<u32> {
            self.calls.take_submissions();
            let (call, _) = self.calls.next_unsent()?;
            let xid = call.xid;
            self.calls.sent(call, state);
            Some(xid)
        }

        fn answer(&mut self, xid: u32) -> bool {
            let call = self.calls.remove(xid);
            call.map(|c| c.complete(Err(answer(xid)))).is_some()
        }
    }

    /// Represents the reply to the call `xid`.
    fn answer(xid: u32) -> RpcError {
        RpcError::Local(xid.to_string())
    }

    fn error(call: PendingCall) -> Option<RpcError> {
        call.now_or_never().and_then(Result::err)
    }

    #[tokio::test]
    async fn a_call_is_found_by_its_xid_and_slow_calls_keep_their_slots() {
        let mut t = Table::new(40);
        t.calls.next_xid = u32::MAX - 3;
        let _slow_call = t.submit(None);
        let slow = t.send(1000).unwrap();
        for round in 0..200 {
            let call = t.submit(None);
            let xid = t.send(round).unwrap();
            assert_eq!(t.calls.get_mut(xid).map(|c| c.state), Some(round));
            assert!(t.answer(xid));
            assert!(!t.answer(xid), "a second reply has no call");
            assert_eq!(error(call), Some(answer(xid)));
        }
        let open: Vec<_> = (0..39).map(|_| t.submit(None)).collect();
        let refused = t.submit(None);
        while t.send(0).is_some() {}
        assert!(matches!(error(refused), Some(RpcError::Local(_))), "the limit is 40");
        assert_eq!((t.calls.in_flight(), open.len()), (40, 39));
        assert_eq!(t.calls.get_mut(slow).map(|c| c.state), Some(1000));
    }

    #[tokio::test]
    async fn a_requested_xid_is_used_unless_a_call_in_flight_has_it() {
        let mut t = Table::new(1000);
        t.calls.next_xid = 0;
        let _first = t.submit(None);
        assert_eq!(t.send(0), Some(0));
        // XID 16 collides with the first call's slot until the table grows.
        let _given = t.submit(Some(16));
        assert_eq!(t.send(1), Some(16));
        let again = t.submit(Some(16));
        assert_eq!(t.send(2), None);
        assert!(matches!(error(again), Some(RpcError::Local(_))));
        let others: Vec<_> = (0..90).map(|_| t.submit(None)).collect();
        for _ in &others {
            assert_ne!(t.send(3), Some(16));
        }
        assert_eq!(t.calls.get_mut(16).map(|c| c.state), Some(1));
        assert!(t.answer(16));
        let _again = t.submit(Some(16));
        assert_eq!(t.send(4), Some(16));
    }

    #[tokio::test]
    async fn cancelled_calls_are_not_sent_or_are_reported_by_xid() {
        let mut t = Table::new(2);
        drop(t.submit(None));
        assert_eq!(t.send(0), None);
        let mut call = t.submit(None);
        let xid = t.send(1).unwrap();
        assert!(futures::poll!(&mut call).is_pending());
        assert_eq!(t.calls.next_cancelled(), None);
        drop(call);
        t.calls.take_submissions();
        assert_eq!((t.calls.next_cancelled(), t.calls.next_cancelled()), (Some(xid), None));
        assert!(t.calls.get_mut(xid).unwrap().waiter.is_none());
        assert!(t.answer(xid));
        // The task processes the reply of a call while its caller drops the call; then another call uses its
        // XID.
        drop((t.submit(Some(5)), t.submit(None)));
        let call = t.submit(Some(9));
        assert_eq!(t.send(2), Some(9));
        drop(call);
        assert!(t.answer(9));
        let _third = t.submit(Some(9));
        assert_eq!(t.send(3), Some(9));
        assert_eq!(t.calls.next_cancelled(), None);
    }

    #[tokio::test]
    async fn sent_and_unsent_calls_time_out() {
        let mut t = Table::new(10);
        let (sent, unsent) = (t.submit(None), t.submit(None));
        let xid = t.send(0).unwrap();
        let expired = std::future::poll_fn(|cx| t.calls.poll_expired(cx)).await;
        assert_eq!(expired, xid);
        assert_eq!(error(unsent), Some(t.calls.timed_out()));
        let mut cx = Context::from_waker(noop_waker_ref());
        assert!(t.calls.poll_expired(&mut cx).is_pending(), "each call is returned once");
        t.calls.remove(xid).unwrap().complete(Err(answer(xid)));
        assert_eq!(error(sent), Some(answer(xid)));
    }

    #[tokio::test]
    async fn end_fails_all_present_and_later_calls() {
        let mut t = Table::new(10);
        let (sent, unsent) = (t.submit(None), t.submit(None));
        t.send(0).unwrap();
        let submitted = t.submit(None);
        t.calls.end("lost");
        t.calls.end("again");
        let failure = Some(t.submissions.disconnected("lost"));
        for call in [sent, unsent, submitted, t.submit(None)] {
            assert_eq!(error(call), failure);
        }
        assert_eq!(t.submissions.failure(), failure);
    }

    /// Callers on several threads submit and cancel calls while the task answers and then ends the
    /// connection.
    #[tokio::test(flavor = "multi_thread", worker_threads = 3)]
    async fn each_call_completes_once_with_its_reply_or_the_failure() {
        const CALLERS: u32 = 8;
        let mut t = Table::new(1 << 16);
        let callers = (0..CALLERS).map(|caller| {
            let submissions = Arc::clone(&t.submissions);
            tokio::spawn(async move {
                let mut answered = 0;
                for n in 0.. {
                    let request = Request::new(Message::default(), ReplySpec::default());
                    let mut call = PendingCall::submit(request, &submissions).0;
                    if (n + caller) % 7 == 0 {
                        let _ = futures::poll!(&mut call);
                        tokio::task::yield_now().await;
                        continue;
                    }
                    match (&mut call).await {
                        Err(RpcError::Local(text)) => {
                            assert_eq!(call.xid().map(|xid| xid.to_string()), Some(text));
                            answered += 1;
                        }
                        Err(RpcError::Disconnected { .. }) => break,
                        other => panic!("{other:?}"),
                    }
                }
                answered
            })
        });
        let callers: Vec<_> = callers.collect();
        let mut sent = 0;
        while sent < 20_000 {
            let mut turn = Vec::new();
            while let Some(xid) = t.send(0) {
                turn.push(xid);
            }
            sent += turn.len();
            while let Some(xid) = t.calls.next_cancelled() {
                assert!(t.calls.remove(xid).is_some());
            }
            for xid in turn {
                t.answer(xid);
            }
            tokio::task::yield_now().await;
        }
        let _last = t.send(0);
        t.calls.end("over");
        let answered: u32 = join_all(callers).await.into_iter().map(|r| r.unwrap()).sum();
        assert!(answered as usize > sent / 2, "{answered} of {sent}");
    }
}
