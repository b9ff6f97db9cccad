//! Calls in flight on one connection: from transaction id to the one who waits.

use std::task::{Context, Poll, Waker};

use millrace_runtime::Instant;

use crate::{CallId, Reply, RpcError};

/// Places to which the table grows at most when two XIDs meet; a call with a given XID is refused beyond.
const MAX_PLACES: usize = 1 << 21;

enum Outcome {
    Open,
    Done(Box<RpcError>),
    Replied(Reply),
}

struct Slot<T> {
    id: CallId,
    deadline: Option<Instant>,
    waker: Option<Waker>,
    outcome: Outcome,
    state: Option<T>,
}

/// What is left of a call that was answered: act on it after any lock around the table is released.
#[must_use = "the one who waits for the call must be woken"]
pub struct Finished<T> {
    /// The transport's own part of the call.
    pub state: Option<T>,
    waker: Option<Waker>,
}

impl<T> Finished<T> {
    /// Wakes the one who waits for the call, and gives the transport's part of it.
    pub fn wake(self) -> Option<T> {
        if let Some(w) = self.waker {
            w.wake();
        }
        self.state
    }
}

/// The calls of one connection that were submitted and whose outcome was not yet fetched; `T` is what the transport
/// keeps for each. It allocates only when more calls are open than ever before.
///
/// A call's XID is the low half of its [`CallId`], and ids only count up: an XID comes again after 2^32 calls at the
/// earliest. The low bits of the id are also the call's place in the table; an id whose place is taken (by a call that
/// waits for longer than the others) is skipped, so that neither search nor hashing is needed.
pub struct Calls<T> {
    slots: Box<[Option<Slot<T>>]>,
    next: u64,
    open: usize,
    max: usize,
}

impl<T> Calls<T> {
    /// An empty table for at most `max` calls; the first XID is `first_xid` (random, so that a new connection does not
    /// repeat the XIDs of the last one, which the server may remember).
    pub fn new(first_xid: u32, max: usize) -> Self {
        Self { slots: empty(16), next: u64::from(first_xid), open: 0, max: max.clamp(1, 1 << 20) }
    }

    /// The XID of a call.
    pub const fn xid(id: CallId) -> u32 {
        id.0 as u32
    }

    /// Calls whose outcome was not fetched.
    pub fn len(&self) -> usize {
        self.open
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.open == 0
    }

    fn place(&self, low: u64) -> usize {
        low as usize & (self.slots.len() - 1)
    }

    fn slot(&mut self, id: CallId) -> Option<&mut Slot<T>> {
        let at = self.place(id.0);
        self.slots[at].as_mut().filter(|s| s.id == id)
    }

    /// Enters a call. `None` (and `state` is dropped) when the table is full.
    pub fn insert(&mut self, state: T, deadline: Option<Instant>) -> Option<CallId> {
        if self.open >= self.max {
            return None;
        }
        if 2 * self.open >= self.slots.len() {
            self.grow();
        }
        // Half of the places are free: this ends.
        while self.slots[self.place(self.next)].is_some() {
            self.next += 1;
        }
        let id = CallId(self.next);
        self.next += 1;
        let at = self.place(id.0);
        let slot = Slot { id, deadline, waker: None, outcome: Outcome::Open, state: Some(state) };
        self.slots[at] = Some(slot);
        self.open += 1;
        Some(id)
    }

    /// Enters a call that is sent with a given XID: one that was sent on a connection that was lost. `None` (and
    /// `state` is dropped) when the table is full or an open call has this XID.
    pub fn insert_as(&mut self, xid: u32, state: T, deadline: Option<Instant>) -> Option<CallId> {
        if self.open >= self.max {
            return None;
        }
        // The place follows from the XID: growing separates it from a call that has it now.
        while 2 * self.open >= self.slots.len() || self.slots[self.place(u64::from(xid))].is_some() {
            let taken = self.slots[self.place(u64::from(xid))].as_ref();
            if taken.is_some_and(|s| Self::xid(s.id) == xid) || self.slots.len() >= MAX_PLACES {
                return None;
            }
            self.grow();
        }
        let id = CallId(self.next & !u64::from(u32::MAX) | u64::from(xid));
        let at = self.place(id.0);
        self.slots[at] = Some(Slot { id, deadline, waker: None, outcome: Outcome::Open, state: Some(state) });
        self.open += 1;
        Some(id)
    }

    fn grow(&mut self) {
        let old = std::mem::take(&mut self.slots);
        self.slots = empty(old.len() * 2);
        // Ids that differ in their low bits differ in one bit more too: no two meet.
        for slot in old.into_iter().flatten() {
            let at = self.place(slot.id.0);
            self.slots[at] = Some(slot);
        }
    }

    /// The call that waits for a reply with this XID. A call that was answered, cancelled or never made is not found.
    pub fn by_xid(&self, xid: u32) -> Option<CallId> {
        let slot = self.slots[self.place(u64::from(xid))].as_ref()?;
        (Self::xid(slot.id) == xid && matches!(slot.outcome, Outcome::Open)).then_some(slot.id)
    }

    /// The transport's part of an unanswered call.
    pub fn get_mut(&mut self, id: CallId) -> Option<&mut T> {
        self.slot(id)?.state.as_mut()
    }

    /// Sets when an unanswered call times out.
    pub fn set_deadline(&mut self, id: CallId, deadline: Option<Instant>) {
        if let Some(s) = self.slot(id) {
            s.deadline = deadline;
        }
    }

    /// Stores a call's outcome. `None` when there is no such call or it has an outcome already.
    pub fn finish(&mut self, id: CallId, result: Result<Reply, RpcError>) -> Option<Finished<T>> {
        let slot = self.slot(id).filter(|s| matches!(s.outcome, Outcome::Open))?;
        slot.outcome = match result {
            Ok(reply) => Outcome::Replied(reply),
            Err(e) => Outcome::Done(Box::new(e)),
        };
        slot.deadline = None;
        Some(Finished { state: slot.state.take(), waker: slot.waker.take() })
    }

    /// A call's outcome, once; the call is forgotten then. Of several tasks that poll one call the last is woken.
    pub fn poll(&mut self, id: CallId, cx: &Context<'_>) -> Poll<Result<Reply, RpcError>> {
        let Some(slot) = self.slot(id) else {
            return Poll::Ready(Err(RpcError::Local("there is no such call in flight".into())));
        };
        if matches!(slot.outcome, Outcome::Open) {
            match &mut slot.waker {
                Some(w) => w.clone_from(cx.waker()),
                None => slot.waker = Some(cx.waker().clone()),
            }
            return Poll::Pending;
        }
        let at = self.place(id.0);
        match self.take(at).map(|s| s.outcome) {
            Some(Outcome::Replied(reply)) => Poll::Ready(Ok(reply)),
            Some(Outcome::Done(e)) => Poll::Ready(Err(*e)),
            Some(Outcome::Open) | None => Poll::Pending,
        }
    }

    fn take(&mut self, at: usize) -> Option<Slot<T>> {
        let slot = self.slots[at].take()?;
        self.open -= 1;
        Some(slot)
    }

    /// Forgets a call, answered or not. The transport's part of it, if it was not answered.
    pub fn remove(&mut self, id: CallId) -> Option<T> {
        self.slot(id)?;
        let at = self.place(id.0);
        self.take(at)?.state
    }

    /// The unanswered call that times out first, and when.
    pub fn first_deadline(&self) -> Option<(Instant, CallId)> {
        self.slots.iter().flatten().filter_map(|s| Some((s.deadline?, s.id))).min_by_key(|(at, _)| *at)
    }

    /// The unanswered calls, in no order.
    pub fn unanswered(&self) -> impl Iterator<Item = CallId> + '_ {
        self.slots.iter().flatten().filter(|s| matches!(s.outcome, Outcome::Open)).map(|s| s.id)
    }
}

fn empty<T>(places: usize) -> Box<[Option<Slot<T>>]> {
    (0..places).map(|_| None).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_that_is_sent_again_keeps_its_xid_and_no_open_call_shares_it() {
        let mut calls = Calls::new(7, 100);
        let first = calls.insert("a", None).unwrap();
        let again = calls.insert_as(7 + 16 * 3, "b", None).unwrap(); // Shares the place of XID 7 at 16 places.
        assert_eq!((Calls::<&str>::xid(first), Calls::<&str>::xid(again)), (7, 55));
        assert_eq!((calls.by_xid(7), calls.by_xid(55)), (Some(first), Some(again)));
        assert!(calls.insert_as(55, "c", None).is_none());
        assert_eq!(calls.remove(again), Some("b"));
        assert!(calls.insert_as(55, "c", None).is_some());
        for _ in 0..90 {
            let id = calls.insert("d", None).unwrap();
            assert_ne!(Calls::<&str>::xid(id), 55);
        }
    }
}
