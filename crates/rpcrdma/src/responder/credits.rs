//! The credits of a responder's connection (RFC 8166 section 3.3) and the progress of its peer, without I/O: the owner of
//! the queue pair posts receives and Sends, and reports them here.
//!
//! The invariant: each credit that the peer holds has a posted receive, except while the peer sends without receiving.

use std::{
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use millrace_admission::{Account, RateMonitor};
use millrace_buffer::slot_bytes;
use millrace_rdma::WorkId;
use millrace_runtime::RuntimeRef;

use super::config::{RECEIVE_SLACK, ResponderConfig};
use crate::counters::{ResponderStats, add, set, sub};

/// A reply is signaled when this many bytes of replies were posted since the last signaled one, which limits
/// the memory of replies that the peer may not have received.
const UNSIGNALED_BYTES: usize = 16 << 10;

/// The credits of one connection.
pub struct Credits {
    /// Maximum number of credits.
    most: u32,
    /// Number of Sends per signaled Send.
    signal_interval: usize,
    /// Bytes of memory of a receive.
    receive: usize,
    /// Posted receives without a message.
    posted: usize,
    /// Calls received and not answered.
    active: usize,
    /// Credits that the peer requested last.
    requested: u32,
    /// Credits that the peer holds: those of the last reply, initially 1 (RFC 8166 section 3.3.1).
    granted: u32,
    sends: Sends,
    stats: Arc<ResponderStats>,
}

/// Counts of posted and completed Sends.
#[derive(Default)]
struct Sends {
    posted: u64,
    /// Number of the last signaled Send.
    signaled: u64,
    completed: u64,
    /// Bytes of replies since the last signaled one.
    bytes: usize,
}

impl Drop for Credits {
    fn drop(&mut self) {
        sub(&self.stats.calls_in_progress, self.active);
    }
}

impl Credits {
    /// Those of a new connection, whose receives are charged to `account`.
    pub fn new(config: &ResponderConfig, account: &mut Account, stats: Arc<ResponderStats>) -> Self {
        let receive = slot_bytes(config.inline_size);
        account.take_receives_unconditionally((1 + RECEIVE_SLACK) * receive);
        Self {
            most: config.credits,
            signal_interval: config.signal_interval(),
            receive,
            posted: 0,
            active: 0,
            requested: 1,
            granted: 1,
            sends: Sends::default(),
            stats,
        }
    }

    /// Bytes that are charged to the account for a receive.
    pub fn receive_charge(&self) -> usize {
        self.receive
    }

    /// Calls received and not answered.
    pub fn active(&self) -> usize {
        self.active
    }

    /// A posted receive got a message.
    pub fn received(&mut self) {
        self.posted = self.posted.saturating_sub(1);
    }

    /// A call was received, which requests `credits`.
    pub fn begin_call(&mut self, credits: u32) {
        self.requested = credits;
        self.active += 1;
        add(&self.stats.calls, 1);
        add(&self.stats.calls_in_progress, 1);
    }

    /// A call was answered, or ended without an answer.
    pub fn end_call(&mut self) {
        self.active = self.active.saturating_sub(1);
        sub(&self.stats.calls_in_progress, 1);
    }

    /// A receive was posted.
    pub fn posted(&mut self) {
        self.posted += 1;
    }

    /// Whether there is a posted receive. A connection without receives is unusable.
    pub fn has_receives(&self) -> bool {
        self.posted > 0
    }

    /// Whether a receive is to be posted: there is one for each credit of the peer that no call in progress holds, for
    /// each of the `expected` messages that take no credit, and the slack. A peer that exceeds its credits therefore
    /// runs out of receives, which limits the calls in progress.
    ///
    /// A peer regains a credit with the reply only, so a peer that respects its credits has at most that many replies
    /// waiting. Further replies belong to a peer that sends without receiving, and reduce the receives.
    pub fn wants_receive(&self, expected: usize) -> bool {
        let unread = self.sends.waiting().saturating_sub(self.most as usize + self.signal_interval);
        let free = self.granted as usize + RECEIVE_SLACK + expected;
        self.posted < free.saturating_sub(self.active + unread)
    }

    /// Adapts the credits of the next reply to the peer's last request. Those that are no longer requested are withdrawn
    /// one per reply, by not posting the receive of its call again: calls that the peer sent before it received the reply
    /// have receives, because the answered call used one of the old credits. There are fewer if `account` lacks memory
    /// for the receives. A call in progress uses its receive's memory for its message. The receives of all connections
    /// leave half of the shared budget to calls, because an idle client keeps its grant.
    pub fn adapt(&mut self, account: &mut Account) {
        let asked = self.requested.min(self.most);
        let credits = asked.max(self.granted.saturating_sub(1)).max(1);
        if credits <= self.granted {
            account.give_receives((self.granted - credits) as usize * self.receive);
            self.granted = credits;
            return;
        }
        for credits in [credits, self.granted + 1] {
            if account.take_receives((credits - self.granted) as usize * self.receive) {
                self.granted = credits;
                return;
            }
        }
    }

    /// The credits of one reply, at least 1, within the receives, which are posted *before* the reply grants the credits.
    pub fn grant(&self, expected: usize) -> u32 {
        let reservation = (self.posted + self.active).saturating_sub(expected);
        let reservation = u32::try_from(reservation).unwrap_or(u32::MAX);
        let credits = self.granted.min(reservation).max(1);
        set(&self.stats.credits_granted, credits as usize);
        credits
    }

    /// Counts a Send of a reply of `bytes` bytes. Returns its work request if it is to be signaled: every n-th Send, after
    /// 16 KiB, and if `must` is set. Its completion covers all preceding Sends.
    pub fn send(&mut self, bytes: usize, must: bool) -> Option<WorkId> {
        add(&self.stats.sends, 1);
        let Sends { posted, signaled, bytes: unsignaled, .. } = &mut self.sends;
        *posted += 1;
        *unsignaled += bytes;
        let due = *posted - *signaled >= self.signal_interval as u64 || *unsignaled >= UNSIGNALED_BYTES;
        if !must && !due {
            return None;
        }
        (*signaled, *unsignaled) = (*posted, 0);
        Some(WorkId(*posted))
    }

    /// Number of the last Send.
    pub fn last_send(&self) -> u64 {
        self.sends.posted
    }

    /// The Sends up to this one are complete.
    pub fn sent(&mut self, id: WorkId) {
        self.sends.completed = id.0;
    }

    /// Whether a signaled Send is outstanding.
    pub fn awaits_completion(&self) -> bool {
        self.sends.signaled > self.sends.completed
    }
}

impl Sends {
    /// Sends that may not be complete.
    fn waiting(&self) -> usize {
        usize::try_from(self.posted.saturating_sub(self.completed)).unwrap_or(usize::MAX)
    }
}

/// Detects a peer that makes no progress with RDMA Reads or replies, whose memory it holds.
#[derive(Default)]
pub struct Progress {
    reads: RateMonitor,
    /// Bytes of completed RDMA Reads.
    read_bytes: u64,
    replies: RateMonitor,
    /// Bytes of completed replies.
    reply_bytes: u64,
}

impl Progress {
    /// RDMA Reads of `bytes` bytes are complete.
    pub fn read(&mut self, bytes: u64) {
        self.read_bytes += bytes;
    }

    /// Replies of `bytes` bytes are complete.
    pub fn replied(&mut self, bytes: u64) {
        self.reply_bytes += bytes;
    }

    /// Ready, with the reason, if the peer falls behind by `limit`. `reads` and `replies` state what is in flight.
    pub fn poll_stalled(
        &mut self,
        cx: &mut Context<'_>,
        rt: &RuntimeRef,
        limit: Duration,
        reads: bool,
        replies: bool,
    ) -> Poll<&'static str> {
        if !reads {
            self.reads.pause();
        } else if self.reads.poll(cx, rt, limit, self.read_bytes).is_ready() {
            return Poll::Ready("it answers RDMA Reads too slowly");
        }
        if !replies {
            self.replies.pause();
        } else if self.replies.poll(cx, rt, limit, self.reply_bytes).is_ready() {
            return Poll::Ready("it takes replies too slowly");
        }
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn credits(most: u32, account: &mut Account) -> Credits {
        let config = ResponderConfig { credits: most, ..ResponderConfig::default() };
        Credits::new(&config, account, Arc::default())
    }

    /// Posts what is due, as a responder with memory does.
    fn replenish(credits: &mut Credits, expected: usize) {
        while credits.wants_receive(expected) {
            credits.posted();
        }
    }

    proptest! {
        /// For any requests of a peer and any use of its credits, each of them has a receive, and no grant exceeds the
        /// limit or a request by more than withdrawing one credit per reply explains.
        #[test]
        fn every_granted_credit_has_a_receive(
            most in 1..40_u32,
            steps in prop::collection::vec((any::<bool>(), 0..60_u32, 0..3_usize), 1..200),
        ) {
            let mut account = Account::unlimited();
            let mut credits = credits(most, &mut account);
            replenish(&mut credits, 0);
            let mut held = 1; // Credits of the peer that no call holds.
            let mut last = 1;
            for (calls, request, expected) in steps {
                replenish(&mut credits, expected);
                if calls && held > 0 {
                    prop_assert!(credits.has_receives());
                    credits.received();
                    credits.begin_call(request);
                    held -= 1;
                } else if credits.active() > 0 {
                    credits.end_call();
                    credits.adapt(&mut account);
                    replenish(&mut credits, expected);
                    let granted = credits.grant(expected);
                    if let Some(id) = credits.send(100, false) {
                        credits.sent(id);
                    }
                    prop_assert!((1..=most).contains(&granted) && granted + 1 >= last);
                    held = granted.saturating_sub(credits.active() as u32);
                    last = granted;
                    prop_assert!(credits.posted >= held as usize + expected);
                }
            }
        }
    }

    #[test]
    fn a_peer_that_does_not_receive_gets_no_receives() {
        let mut credits = credits(4, &mut Account::unlimited());
        replenish(&mut credits, 0);
        let first = credits.posted;
        let mut replies = 0;
        while credits.has_receives() {
            credits.received();
            credits.begin_call(1);
            credits.end_call();
            let _ = credits.send(100, false);
            replies += 1;
            replenish(&mut credits, 0);
        }
        // As many as may be unread, and one for each receive.
        assert_eq!(replies, 4 + 1 + first);
        credits.sent(WorkId(credits.last_send()));
        replenish(&mut credits, 0);
        assert_eq!(credits.posted, first);
    }

    #[test]
    fn sends_are_signaled_by_number_by_bytes_and_on_demand() {
        let mut credits = credits(16, &mut Account::unlimited());
        let signaled = |credits: &mut Credits, bytes, must| credits.send(bytes, must).is_some();
        let each: Vec<_> = (0..8).map(|_| signaled(&mut credits, 1, false)).collect();
        assert_eq!(each, [false, false, false, true, false, false, false, true]);
        assert!(signaled(&mut credits, UNSIGNALED_BYTES, false) && signaled(&mut credits, 0, true));
        assert!(!signaled(&mut credits, UNSIGNALED_BYTES - 1, false) && signaled(&mut credits, 1, false));
        assert!(credits.awaits_completion());
        credits.sent(WorkId(credits.last_send()));
        assert!(!credits.awaits_completion());
    }
}
