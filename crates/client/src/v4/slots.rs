//! The slots of a session: the calls that may be in flight, and the sequence number of each (RFC 8881 section
//! 2.10.6).
//!
//! A call holds a slot from its first transmission until its reply. A retransmission has the same slot and sequence
//! number, on any connection, so that the server executes the call once. If the reply is not awaited (the caller
//! dropped the call), the slot is uncertain: its next holder must first send a SEQUENCE alone with the same number.
//! After the reply to it, the server does not execute the abandoned call if it has not done so before.

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, VecDeque},
    sync::Arc,
};

use futures::channel::oneshot;
use millrace_nfs::v4::{SequenceArgs, SequenceOk, SessionId};
use millrace_runtime::sync::Mutex;

/// Maximum number of slots that the client uses.
pub(crate) const MAX_SLOTS: u32 = 1024;

/// A slot that no call holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Idle {
    /// Sequence number of the next request.
    sequence: u32,
    /// Whether a request with this number may have been sent.
    uncertain: bool,
}

#[derive(Default)]
struct Table {
    /// Number of sessions so far; 0 before the first.
    generation: u64,
    session: Option<SessionId>,
    slots: Vec<Idle>,
    /// The slots that no call holds, the lowest first.
    free: BinaryHeap<Reverse<u32>>,
    /// Number of slots that may be used: the server's target.
    limit: u32,
    waiting: VecDeque<oneshot::Sender<Held>>,
}

impl Table {
    /// The highest slot that calls hold or may hold. The server retires the slots above it (RFC 8881, 2.10.6.1).
    fn highest(&self) -> u32 {
        let len = self.slots.len() as u32;
        let free = self.free.iter().filter(|Reverse(slot)| *slot >= self.limit).count() as u32;
        // The common case has no slot beyond the limit.
        if self.limit + free >= len { self.limit - 1 } else { len - 1 }
    }

    /// Takes the lowest free slot below the limit.
    fn take(&mut self, owner: &Arc<Slots>) -> Option<Held> {
        let session = self.session?;
        let Reverse(slot) = *self.free.peek()?;
        if slot >= self.limit {
            return None;
        }
        self.free.pop();
        let Idle { sequence, uncertain } = *self.slots.get(slot as usize)?;
        Some(Held {
            slots: Arc::clone(owner),
            generation: self.generation,
            session,
            slot,
            highest: self.highest(),
            sequence,
            uncertain,
            sent: false,
        })
    }
}

/// The slots of the current session.
#[derive(Default)]
pub(crate) struct Slots(Mutex<Table>);

/// A slot that a call holds. Dropped, it is free again; uncertain if a request was sent.
pub(crate) struct Held {
    slots: Arc<Slots>,
    generation: u64,
    session: SessionId,
    slot: u32,
    highest: u32,
    sequence: u32,
    uncertain: bool,
    /// Whether a request with the sequence number may have been sent and has no reply.
    sent: bool,
}

impl Slots {
    /// Number of sessions so far.
    pub(crate) fn generation(&self) -> u64 {
        self.0.lock().generation
    }

    /// The current session.
    pub(crate) fn session(&self) -> Option<SessionId> {
        self.0.lock().session
    }

    /// Replaces the session by a new one with `count` slots.
    pub(crate) fn begin(self: &Arc<Self>, session: SessionId, count: u32) {
        {
            let mut table = self.0.lock();
            let count = count.clamp(1, MAX_SLOTS);
            table.generation += 1;
            table.session = Some(session);
            table.slots = vec![Idle { sequence: 1, uncertain: false }; count as usize];
            table.free = (0..count).map(Reverse).collect();
            table.limit = count;
        }
        self.hand_out();
    }

    /// Sets the number of slots that may be used: the server's target.
    pub(crate) fn set_limit(self: &Arc<Self>, generation: u64, count: u32) {
        let mut table = self.0.lock();
        let limit = count.clamp(1, table.slots.len().max(1) as u32);
        if table.generation != generation || table.limit == limit {
            return;
        }
        let grows = limit > table.limit;
        table.limit = limit;
        drop(table);
        if grows {
            self.hand_out();
        }
    }

    /// Takes a slot; waits until one is free.
    pub(crate) async fn take(self: &Arc<Self>) -> Option<Held> {
        let waiting = {
            let mut table = self.0.lock();
            if let Some(held) = table.take(self) {
                return Some(held);
            }
            let (sender, waiting) = oneshot::channel();
            table.waiting.push_back(sender);
            waiting
        };
        waiting.await.ok()
    }

    /// Gives free slots to waiting calls.
    fn hand_out(self: &Arc<Self>) {
        loop {
            let mut table = self.0.lock();
            while table.waiting.front().is_some_and(oneshot::Sender::is_canceled) {
                table.waiting.pop_front();
            }
            if table.waiting.is_empty() {
                return;
            }
            let Some(held) = table.take(self) else { return };
            let Some(waiting) = table.waiting.pop_front() else { return };
            drop(table);
            // A receiver that was dropped meanwhile frees the slot.
            drop(waiting.send(held));
        }
    }

    fn free(self: &Arc<Self>, generation: u64, slot: u32, idle: Idle) {
        let mut table = self.0.lock();
        if table.generation != generation {
            return; // The slot belongs to an earlier session.
        }
        if let Some(known) = table.slots.get_mut(slot as usize) {
            *known = idle;
            table.free.push(Reverse(slot));
        }
        let waits = !table.waiting.is_empty();
        drop(table);
        if waits {
            self.hand_out();
        }
    }
}

impl Held {
    /// The number of the session to which the slot belongs.
    pub(crate) fn generation(&self) -> u64 {
        self.generation
    }

    /// Whether an earlier call in this slot may have been sent and has no reply.
    pub(crate) fn is_uncertain(&self) -> bool {
        self.uncertain
    }

    /// The arguments of SEQUENCE for a request, which is sent next.
    pub(crate) fn send(&mut self, cache_this: bool) -> SequenceArgs {
        self.sent = true;
        SequenceArgs {
            session: self.session,
            sequence: self.sequence,
            slot: self.slot,
            highest_slot: self.highest.max(self.slot),
            cache_this,
        }
    }

    /// Compares the result of SEQUENCE with the request.
    ///
    /// # Errors
    /// The name of the field that differs.
    pub(crate) fn check(&self, ok: &SequenceOk) -> Result<(), &'static str> {
        match (ok.session == self.session, ok.slot == self.slot, ok.sequence == self.sequence) {
            (false, ..) => Err("session ID"),
            (_, false, _) => Err("slot"),
            (.., false) => Err("sequence number"),
            (true, true, true) => Ok(()),
        }
    }

    /// The server has executed the request with the current number.
    pub(crate) fn executed(&mut self) {
        self.sequence = self.sequence.wrapping_add(1);
        (self.sent, self.uncertain) = (false, false);
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let idle = Idle { sequence: self.sequence, uncertain: self.uncertain || self.sent };
        self.slots.free(self.generation, self.slot, idle);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use futures::FutureExt;
    use rand_xoshiro::{
        SplitMix64,
        rand_core::{Rng, SeedableRng},
    };

    use super::*;

    const SESSION: SessionId = SessionId([7; 16]);

    fn slots(count: u32) -> Arc<Slots> {
        let slots = Arc::new(Slots::default());
        slots.begin(SESSION, count);
        slots
    }

    fn take(slots: &Arc<Slots>) -> Option<Held> {
        slots.take().now_or_never().flatten()
    }

    #[test]
    fn a_slot_counts_its_executed_requests() {
        let slots = slots(1);
        for sequence in 1..4 {
            let mut held = take(&slots).unwrap();
            let args = held.send(true);
            assert_eq!((args.slot, args.sequence, args.session), (0, sequence, SESSION));
            assert!(take(&slots).is_none());
            held.executed();
        }
    }

    #[test]
    fn an_abandoned_request_leaves_its_slot_uncertain_with_the_same_number() {
        let slots = slots(1);
        let mut held = take(&slots).unwrap();
        held.send(false);
        drop(held);
        let mut held = take(&slots).unwrap();
        assert!(held.is_uncertain());
        assert_eq!(held.send(false).sequence, 1);
        held.executed();
        assert_eq!((held.is_uncertain(), held.send(false).sequence), (false, 2));
    }

    #[test]
    fn waiting_calls_get_slots_in_order_and_dropped_ones_do_not_keep_them() {
        let slots = slots(1);
        let held = take(&slots).unwrap();
        let mut waiting: Vec<_> = (0..3).map(|_| Box::pin(slots.take())).collect();
        assert!(waiting.iter_mut().all(|w| w.now_or_never().is_none()));
        drop(waiting.remove(0));
        drop(held);
        let second = waiting.remove(0).now_or_never().flatten().unwrap();
        assert!(waiting[0].as_mut().now_or_never().is_none());
        drop(second);
        assert!(waiting.remove(0).now_or_never().flatten().is_some());
    }

    #[test]
    fn slots_above_the_target_are_not_used() {
        let slots = slots(4);
        slots.set_limit(1, 2);
        let (a, b) = (take(&slots).unwrap(), take(&slots).unwrap());
        assert!(take(&slots).is_none());
        slots.set_limit(1, 3);
        let mut c = take(&slots).unwrap();
        assert_eq!((c.send(false).slot, c.highest), (2, 2));
        drop((a, b, c));
        let (a, b) = (take(&slots).unwrap(), take(&slots).unwrap());
        let c = take(&slots).unwrap();
        slots.set_limit(1, 2);
        drop(a);
        let mut a = take(&slots).unwrap();
        assert_eq!((a.send(false).highest_slot, c.slot), (3, 2), "a call holds a slot above");
        drop((a, c));
        assert_eq!(take(&slots).unwrap().send(false).highest_slot, 1);
        drop(b);
        slots.set_limit(0, 1); // Generation 0 is an earlier session: no effect.
        assert!(take(&slots).is_some());
    }

    #[test]
    fn slots_of_an_earlier_session_do_not_return() {
        let slots = slots(1);
        let mut old = take(&slots).unwrap();
        old.send(false);
        slots.begin(SessionId([8; 16]), 1);
        let mut new = take(&slots).unwrap();
        drop(old);
        assert!(take(&slots).is_none());
        assert_eq!((new.is_uncertain(), new.send(false).sequence), (false, 1));
    }

    /// Random calls against a model of the server's slots: the numbers that it accepts, and which requests it
    /// executes, late ones included.
    #[test]
    fn a_server_executes_each_request_once() {
        for seed in 0..200_u64 {
            let mut random = SplitMix64::seed_from_u64(seed);
            let mut next = |n: u64| random.next_u64() % n;
            let slots = slots(3);
            // The last executed number and request of each slot of the server.
            let mut server: BTreeMap<u32, (u32, u64)> = BTreeMap::new();
            let mut late: Vec<(SequenceArgs, u64)> = Vec::new();
            let mut fate: BTreeMap<u64, u32> = BTreeMap::new();
            let mut execute = |args: &SequenceArgs, request: u64, server: &mut BTreeMap<u32, (u32, u64)>| {
                let (last, known) = server.get(&args.slot).copied().unwrap_or((0, u64::MAX));
                if args.sequence == last + 1 {
                    server.insert(args.slot, (args.sequence, request));
                    *fate.entry(request).or_default() += 1;
                    return Some(request);
                }
                (args.sequence == last).then_some(known)
            };
            for request in 0..100_u64 {
                while next(3) == 0 && !late.is_empty() {
                    let (args, request) = late.swap_remove(next(late.len() as u64) as usize);
                    execute(&args, request, &mut server);
                }
                let mut held = take(&slots).unwrap();
                if held.is_uncertain() {
                    let probe = held.send(false);
                    assert!(execute(&probe, 1000 + request, &mut server).is_some(), "seed {seed}");
                    held.executed();
                }
                let args = held.send(true);
                match next(4) {
                    // The caller abandons the request, which arrives late or never.
                    0 => late.push((args, request)),
                    1 => {
                        late.push((args, request));
                        late.push((args, request));
                    }
                    _ => {
                        let ours = execute(&args, request, &mut server);
                        assert_eq!(ours, Some(request), "seed {seed}: the reply to another request");
                        held.executed();
                    }
                }
            }
            assert!(fate.values().all(|times| *times == 1), "seed {seed}: {fate:?}");
        }
    }
}
