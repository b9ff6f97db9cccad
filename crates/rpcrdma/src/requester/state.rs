//! What callers and the driver of a connection share: the calls, their queue, and the credits.

use std::{collections::HashMap, collections::VecDeque, task::Waker};

use millrace_oncrpc::{CallId, Calls, Request, RpcError};
use millrace_rdma::SteeringTag;
use millrace_runtime::Instant;
use smallvec::SmallVec;

use super::marshal::{CallMemory, Shape};

/// The most calls that may wait on one connection.
const MAX_CALLS: usize = 1 << 16;

/// How far a call is.
pub(super) enum CallState {
    /// Waits for a credit, until then at the latest.
    Queued(Request, Shape, Instant),
    /// In the hands of the driver: being sent, or its reply being taken apart.
    Driver,
    /// Sent; the responder can reach its memory.
    Sent(CallMemory, Instant),
    /// Answered; its results are being read.
    Reading(Instant),
}

/// A call that its caller gave up after it was sent. It holds its credit until its reply comes (RFC 8166 section
/// 3.3.1: the responder may still work on it).
pub(super) struct Abandoned {
    /// The memory of a call that was cancelled, out of everybody's reach but the responder's until its reply comes or
    /// its time is up: an RDMA Write to a tag that is revoked would cost the connection, and so all other calls.
    /// `None` for a call that timed out.
    pub(super) quarantined: Option<CallMemory>,
    /// The tags that the late reply may name as invalidated.
    pub(super) tags: SmallVec<[SteeringTag; 4]>,
    /// When the call would have timed out.
    pub(super) deadline: Instant,
}

/// The state of a connection.
pub(super) struct State {
    pub(super) calls: Calls<CallState>,
    pub(super) queue: VecDeque<CallId>,
    pub(super) abandoned: HashMap<u32, Abandoned>,
    /// Credits in use: calls sent and not answered.
    pub(super) in_flight: usize,
    /// The most calls in flight: 1 until the first reply (RFC 8166 section 3.3.1).
    pub(super) limit: usize,
    /// Why the connection is down.
    pub(super) failure: Option<RpcError>,
    /// Our side wants to end it.
    pub(super) closing: bool,
    /// Wakes the driver's task.
    pub(super) driver: Option<Waker>,
}

impl State {
    pub(super) fn new(first_xid: u32) -> Self {
        Self {
            calls: Calls::new(first_xid, MAX_CALLS),
            queue: VecDeque::new(),
            abandoned: HashMap::new(),
            in_flight: 0,
            limit: 1,
            failure: None,
            closing: false,
            driver: None,
        }
    }

    /// Enters a call at the end of the queue.
    pub(super) fn enqueue(
        &mut self,
        request: Request,
        shape: Shape,
        deadline: Instant,
    ) -> Result<CallId, RpcError> {
        if let Some(e) = &self.failure {
            return Err(e.clone());
        }
        let xid = request.xid;
        let stage = CallState::Queued(request, shape, deadline);
        let id = match xid {
            None => self.calls.insert(stage, Some(deadline)),
            Some(xid) if self.abandoned.contains_key(&xid) => None,
            Some(xid) => self.calls.insert_as(xid, stage, Some(deadline)),
        };
        let refused = || RpcError::Local("too many calls are open, or one has this XID already".into());
        let id = id.ok_or_else(refused)?;
        self.queue.push_back(id);
        Ok(id)
    }

    /// Whether calls wait for nothing but being sent.
    pub(super) fn may_send(&self) -> bool {
        !self.queue.is_empty() && self.in_flight < self.limit
    }

    /// Takes the next call to be sent, and a credit for it.
    pub(super) fn next_to_send(&mut self) -> Option<(CallId, Request, Shape, Instant)> {
        while self.in_flight < self.limit {
            let id = self.queue.pop_front()?;
            // A call that was cancelled, or timed out, is not in the table any more, or answered.
            let Some(stage) = self.calls.get_mut(id) else { continue };
            match std::mem::replace(stage, CallState::Driver) {
                CallState::Queued(request, shape, deadline) => {
                    self.in_flight += 1;
                    return Some((id, request, shape, deadline));
                }
                other => *stage = other,
            }
        }
        None
    }

    /// Takes the sent call with this XID. It keeps its credit until it is [answered](Self::answered).
    pub(super) fn take_sent(&mut self, xid: u32) -> Option<(CallId, CallMemory, Instant)> {
        let id = self.calls.by_xid(xid)?;
        let stage = self.calls.get_mut(id)?;
        match std::mem::replace(stage, CallState::Driver) {
            CallState::Sent(memory, deadline) => Some((id, memory, deadline)),
            other => {
                *stage = other;
                None
            }
        }
    }

    /// A sent call has its reply: its credit is free.
    pub(super) fn answered(&mut self) {
        self.in_flight = self.in_flight.saturating_sub(1);
    }

    /// The results of a sent call are being read.
    pub(super) fn reading(&mut self, id: CallId, deadline: Instant) {
        match self.calls.get_mut(id) {
            Some(stage) => *stage = CallState::Reading(deadline),
            None => self.abandon(id, None, deadline),
        }
    }

    /// The results of the call are read: frees its credit, and says whether its caller still waits.
    pub(super) fn take_read(&mut self, id: CallId) -> bool {
        if let Some(stage @ CallState::Reading(_)) = self.calls.get_mut(id) {
            *stage = CallState::Driver;
            self.answered();
            return true;
        }
        drop(self.take_abandoned(Calls::<CallState>::xid(id)));
        false
    }

    fn abandon(&mut self, id: CallId, quarantined: Option<CallMemory>, deadline: Instant) {
        let tags = quarantined.iter().flat_map(CallMemory::tags).collect();
        self.abandoned.insert(Calls::<CallState>::xid(id), Abandoned { quarantined, tags, deadline });
    }

    /// Takes the abandoned call with this XID, and frees its credit.
    pub(super) fn take_abandoned(&mut self, xid: u32) -> Option<Abandoned> {
        let call = self.abandoned.remove(&xid)?;
        self.answered();
        Some(call)
    }

    /// A call is cancelled.
    pub(super) fn cancel(&mut self, id: CallId) -> Option<CallState> {
        match self.calls.remove(id)? {
            CallState::Sent(memory, deadline) if self.failure.is_none() => {
                self.abandon(id, Some(memory), deadline);
                Some(CallState::Driver)
            }
            CallState::Reading(deadline) if self.failure.is_none() => {
                self.abandon(id, None, deadline);
                Some(CallState::Driver)
            }
            other => Some(other),
        }
    }

    /// Takes something whose time is up at `now`: a call to be failed, and the memory to be revoked before.
    pub(super) fn take_expired(&mut self, now: Instant) -> Option<(Option<CallId>, Option<CallMemory>)> {
        if let Some((_, id)) = self.calls.first_deadline().filter(|(at, _)| *at <= now) {
            let stage = self.calls.get_mut(id).map(|s| std::mem::replace(s, CallState::Driver));
            let memory = match stage {
                Some(CallState::Sent(memory, deadline)) => {
                    let call = Abandoned { quarantined: None, tags: memory.tags().collect(), deadline };
                    self.abandoned.insert(Calls::<CallState>::xid(id), call);
                    Some(memory)
                }
                Some(CallState::Reading(deadline)) => {
                    self.abandon(id, None, deadline);
                    None
                }
                _ => None,
            };
            return Some((Some(id), memory));
        }
        let mut overdue = self.abandoned.values_mut().filter(|a| a.deadline <= now);
        overdue.find_map(|a| a.quarantined.take()).map(|exposed| (None, Some(exposed)))
    }

    /// The credits that the responder granted; 0 counts as 1 (RFC 8166 section 3.3.1 forbids it). `most` is our own
    /// limit. What is asked for limits us too, and needs no look here: every call asks for one credit at least for each
    /// call in flight, itself among them.
    pub(super) fn granted(&mut self, credits: u32, most: u32) {
        self.limit = credits.clamp(1, most) as usize;
    }

    /// Whether calls that were never answered hold every credit: no further call could ever be sent.
    pub(super) fn is_stuck(&self, now: Instant) -> bool {
        let overdue = self.abandoned.values().filter(|a| a.deadline <= now).count();
        overdue >= self.limit
    }

    /// When something times out next.
    pub(super) fn next_deadline(&self, now: Instant) -> Option<Instant> {
        let abandoned = self.abandoned.values().map(|a| a.deadline).filter(|d| *d > now).min();
        let calls = self.calls.first_deadline().map(|(at, _)| at);
        [abandoned, calls].into_iter().flatten().min()
    }
}
