//! The slots of a session, whose number changes (RFC 8881, 2.10.6.1).

use std::time::Duration;

use parking_lot::Mutex;

use crate::slot::{Retired, Slot};

/// Time after which slots are retired that had requests in progress.
const RETRY: Duration = Duration::from_secs(1);

/// The slots of a fore channel. There are none when the session is destroyed.
pub(crate) struct Slots<R> {
    slots: Vec<Mutex<Slot<R>>>,
    /// Number of slots that the client is requested to use: `sr_target_highest_slotid` and one.
    target: u32,
    /// Number of such requests. A slot whose last reply had another number does not show that the client has the target.
    requests: u32,
    /// Time when the slots beyond the target are retired even if the client does not confirm the target.
    end: Duration,
    /// Whether the server looks for that.
    is_watched: bool,
    /// What was retired, the lowest slot last.
    retired: Vec<Retired>,
}

impl<R: Clone> Slots<R> {
    pub(crate) fn new(count: u32) -> Self {
        let slots = (0..count).map(|_| Mutex::new(Slot::new())).collect();
        let (end, is_watched) = (Duration::MAX, false);
        Self { slots, target: count, requests: 0, end, is_watched, retired: Vec::new() }
    }

    /// Number of slots.
    pub(crate) fn len(&self) -> u32 {
        self.slots.len() as u32
    }

    /// Whether the session is destroyed.
    pub(crate) fn is_destroyed(&self) -> bool {
        self.slots.is_empty()
    }

    pub(crate) fn target(&self) -> u32 {
        self.target
    }

    pub(crate) fn requests(&self) -> u32 {
        self.requests
    }

    /// The largest number of slots so far.
    pub(crate) fn most(&self) -> u32 {
        (self.slots.len() + self.retired.len()) as u32
    }

    pub(crate) fn get(&self, slot: u32) -> Option<&Mutex<Slot<R>>> {
        self.slots.get(slot as usize)
    }

    /// The last request of a slot that is retired.
    pub(crate) fn retired(&self, slot: u32) -> Option<&Retired> {
        let above = (slot as usize).checked_sub(self.slots.len())?;
        self.retired.iter().rev().nth(above)
    }

    /// Requests the client to use half of the slots until `end`, unless it has not done so yet after an earlier request.
    /// Returns whether [`retire_overdue`](Self::retire_overdue) has to be called then, and is not called already.
    pub(crate) fn ask_for_half(&mut self, end: Duration) -> bool {
        if self.target < self.len() || self.target < 2 {
            return false;
        }
        self.target = self.target.div_ceil(2);
        self.requests = self.requests.wrapping_add(1);
        self.end = end;
        !std::mem::replace(&mut self.is_watched, true)
    }

    /// Whether the client has not confirmed the target in time. Then the slots beyond it take no new request (RFC 8881,
    /// 20.8.4).
    pub(crate) fn is_overdue(&self, now: Duration) -> bool {
        self.target < self.len() && now >= self.end
    }

    /// Retires the slots beyond the target if the client has not confirmed it in time. Returns their number, and whether
    /// and when this has to be called again.
    pub(crate) fn retire_overdue(&mut self, now: Duration) -> (u32, Option<Duration>) {
        let retired = if self.is_overdue(now) { self.retire() } else { 0 };
        let again = (self.target < self.len()).then(|| self.end.max(now + RETRY));
        self.is_watched = again.is_some();
        (retired, again)
    }

    /// Retires the slots beyond the target, which the client uses no more. Returns their number: none if one of them has a
    /// request in progress, contrary to what the client says.
    pub(crate) fn retire(&mut self) -> u32 {
        let before = self.len();
        let target = self.target as usize;
        let beyond = self.slots.get_mut(target..).unwrap_or_default();
        if beyond.iter_mut().any(|slot| slot.get_mut().is_executing()) {
            return 0;
        }
        let retired = self.slots.drain(target..).rev().map(|slot| slot.into_inner().retire());
        self.retired.extend(retired);
        self.slots.shrink_to_fit();
        before - self.len()
    }

    /// Adds slots.
    pub(crate) fn grow(&mut self, count: u32) {
        for _ in 0..count {
            let slot = self.retired.pop().map_or_else(Slot::new, Slot::again);
            self.slots.push(Mutex::new(slot));
        }
        self.target = self.len();
    }

    /// Drops all slots with the replies that they keep. Returns their number.
    pub(crate) fn destroy(&mut self) -> u32 {
        let count = self.len();
        *self = Self::new(0);
        count
    }
}
