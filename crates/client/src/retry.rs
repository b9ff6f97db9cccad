//! Whether and how a call is tried again: a function of what became of its last transmission and of what is known of the
//! earlier ones, without I/O.
//!
//! Every call, with every version of NFS, is one loop (`exchange.rs`): transmit, ask [`State::next`], do what it says. It
//! replaces four nested loops (stateid, session, slot, connection), each with a separate clock, so that a call over
//! failures of several kinds lasted a multiple of [`RetryPolicy::max_elapsed`].
//!
//! Invariants:
//! - **One deadline.** The [`Clock`] of a call begins with it and covers failures of all kinds. No transmission and no
//!   recovery starts after it. Only the grace period of a server extends it, because clients must wait for its end. Without
//!   retries (a policy of zero) each call may recover the session once, and stateids once: the server has not executed it.
//! - **The identity of a request stays as long as the server may execute it.** After a lost reply the request is sent again
//!   with the same XID, or in the same slot with the same sequence number ([`How::Reconnect`], [`How::Resend`],
//!   [`How::Bind`]).
//! - **A request gets another identity** ([`How::Repeat`], [`How::Recover`]) only after a reply to it, or after the server
//!   has lost what identifies it (the session, the kept reply). In the latter case it may execute the request twice, and
//!   [`State::resent`] is set from then on: the caller compares the result with that of the first execution
//!   ([`crate::retransmission`]).

use std::time::Duration;

use millrace_oncrpc::RpcError;
use millrace_runtime::{Instant, Runtime, RuntimeExt};

use crate::RetryPolicy;

/// What became of a transmission.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Event {
    /// The reply ends the call.
    Answered,
    /// The reply settles an uncertain slot, in which the request is sent next.
    Settled,
    /// There is no connection.
    Unconnected,
    /// The connection was lost, or there was no reply in time. `sent`: the server may execute the request.
    Lost { sent: bool },
    /// Another call on the connection has the XID.
    XidTaken,
    /// The server still executes an earlier transmission.
    InProgress,
    /// The connection is not bound to the session.
    Unbound,
    /// The server has executed the request, or another one with its sequence number, and not kept the reply.
    NotKept,
    /// The server asks to repeat the call later. `changed`: it has executed a part of it.
    Delayed { changed: bool },
    /// As [`Self::Delayed`], until the end of the grace period, which may last as long as `limit`.
    Grace { changed: bool, limit: Duration },
    /// The server has lost the security context, and has not executed the request.
    ContextLost,
    /// The server has lost the session.
    SessionLost,
    /// The server rejects a stateid of the request.
    StateLost,
}

impl Event {
    /// Whether the failure is another one than that of the connection, or a missing reply.
    fn reached_server(self) -> bool {
        !matches!(self, Self::Unconnected | Self::Lost { .. })
    }

    /// The failure of a transmission; `None` if another one cannot succeed. `sent`: the server may execute the request.
    pub(crate) fn of_failure(error: &RpcError, sent: bool, keeps_xid: bool) -> Option<Self> {
        match error {
            RpcError::Disconnected { .. } | RpcError::TimedOut { .. } => Some(Self::Lost { sent }),
            RpcError::Local(_) if keeps_xid => Some(Self::XidTaken),
            _ => None,
        }
    }
}

/// What is recovered before a call is repeated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Recovery {
    /// The session.
    Session,
    /// The opens and locks of the client, without which its grace period does not end.
    Reclaims,
    /// The stateids of the request.
    State,
}

/// How a request is sent again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum How {
    /// Unchanged: with the same XID, or in the same slot with the same sequence number.
    Resend,
    /// As [`Self::Resend`], on another connection.
    Reconnect,
    /// As [`Self::Resend`], after the connection was bound to the session.
    Bind,
    /// As a new request: with another XID, or the next sequence number of a slot.
    Repeat,
    /// As [`Self::Repeat`], after a recovery.
    Recover(Recovery),
}

impl How {
    /// Whether the request keeps its XID or its slot and sequence number.
    pub(crate) fn keeps_identity(self) -> bool {
        matches!(self, Self::Resend | Self::Reconnect | Self::Bind)
    }
}

/// What a call does next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Next {
    /// It ends with the reply.
    Done,
    /// It ends: no further attempt is permitted.
    Expired,
    /// It waits for the time `after`, then sends the request again.
    Retry { how: How, after: Duration },
}

/// The time since the start of a call, and a random number for the delay.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Moment {
    pub(crate) elapsed: Duration,
    pub(crate) random: u32,
}

impl Moment {
    pub(crate) fn now(rt: &dyn Runtime, started: Instant) -> Self {
        Self { elapsed: rt.now().duration_since(started), random: rt.random_u64() as u32 }
    }
}

/// The deadline of a call, and the delay before its next attempt. Delays grow separately for a server that does not answer
/// and one that does: after an outage of a minute, a call that must recover the session or the lease waits for 20 ms, not 5 s.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Clock {
    /// Time after which no further attempt starts; zero permits no retries.
    limit: Duration,
    /// The delay after an answer.
    after_answer: Duration,
    /// The delay after a failure to reach the server.
    after_failure: Duration,
    max_delay: Duration,
}

impl Clock {
    pub(crate) fn new(policy: &RetryPolicy) -> Self {
        let first = policy.first_delay;
        Self {
            limit: policy.max_elapsed,
            after_answer: first,
            after_failure: first,
            max_delay: policy.max_delay,
        }
    }

    /// The time until the deadline; `None` without retries.
    pub(crate) fn left(&self, elapsed: Duration) -> Option<Duration> {
        (!self.limit.is_zero()).then(|| self.limit.saturating_sub(elapsed))
    }

    /// The delay before the next attempt; `None` if that would not start before the deadline. `reached_server`: the last
    /// attempt has reached the server.
    pub(crate) fn delay(&mut self, reached_server: bool, now: Moment) -> Option<Duration> {
        let next = if reached_server { &mut self.after_answer } else { &mut self.after_failure };
        // A random part of the delay, half or more, so that clients do not retry simultaneously.
        let delay = *next / 2 + next.mul_f64(f64::from(now.random) / 2.0 / f64::from(u32::MAX));
        if now.elapsed.saturating_add(delay) >= self.limit {
            return None;
        }
        *next = (*next * 2).min(self.max_delay);
        Some(delay)
    }

    /// Moves the deadline to `limit`, if it is earlier and retries are permitted.
    fn extend(&mut self, limit: Duration) {
        if !self.limit.is_zero() {
            self.limit = self.limit.max(limit);
        }
    }
}

/// What is known of the transmissions of a call.
#[derive(Debug, Clone, Copy)]
pub(crate) struct State {
    /// Whether the server executes a request once, however often it is sent: in a slot of a session. The XID of a
    /// request promises less, because a restarted server has forgotten it.
    exactly_once: bool,
    /// Whether a transmission with the current identity may have been executed and has no reply.
    unanswered: bool,
    /// Whether the server may have executed the call with an earlier identity.
    repeated: bool,
    /// Whether the security context, the session or stateids were recovered.
    context_recovered: bool,
    session_recovered: bool,
    state_recovered: bool,
}

impl State {
    pub(crate) fn new(exactly_once: bool) -> Self {
        Self {
            exactly_once,
            unanswered: false,
            repeated: false,
            context_recovered: false,
            session_recovered: false,
            state_recovered: false,
        }
    }

    /// Whether the server may have executed the call before the transmission whose reply is the result.
    pub(crate) fn resent(&self) -> bool {
        self.repeated || self.unanswered && !self.exactly_once
    }

    /// What to do after `event`. `now` is called if it is not the end of the call.
    pub(crate) fn next(&mut self, clock: &mut Clock, event: Event, now: impl FnOnce() -> Moment) -> Next {
        let how = match event {
            Event::Answered => return Next::Done,
            Event::Settled => return Next::Retry { how: How::Resend, after: Duration::ZERO },
            Event::Lost { sent } => {
                self.unanswered |= sent;
                How::Reconnect
            }
            Event::Unconnected | Event::XidTaken | Event::InProgress | Event::ContextLost => How::Resend,
            Event::Unbound => How::Bind,
            Event::NotKept => self.repeat(true, How::Repeat),
            Event::Delayed { changed } => self.repeat(changed, How::Repeat),
            Event::Grace { changed, limit } => {
                clock.extend(limit);
                self.repeat(changed, How::Recover(Recovery::Reclaims))
            }
            Event::SessionLost => self.repeat(self.unanswered, How::Recover(Recovery::Session)),
            Event::StateLost => self.repeat(false, How::Recover(Recovery::State)),
        };
        // After a restart of the server, a request in an open loses the session and then its stateid.
        let at_once = match event {
            Event::ContextLost => !std::mem::replace(&mut self.context_recovered, true),
            Event::SessionLost => !std::mem::replace(&mut self.session_recovered, true),
            Event::StateLost => !std::mem::replace(&mut self.state_recovered, true),
            _ => false,
        };
        let now = now();
        let after = match at_once {
            true => clock.left(now.elapsed).is_none_or(|left| !left.is_zero()).then_some(Duration::ZERO),
            false => clock.delay(event.reached_server(), now),
        };
        after.map_or(Next::Expired, |after| Next::Retry { how, after })
    }

    /// The request gets another identity. `executed`: the server may have executed it, or a part, with the current one.
    fn repeat(&mut self, executed: bool, how: How) -> How {
        self.repeated |= executed;
        self.unanswered = false;
        how
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const GRACE: Duration = Duration::from_secs(180);

    /// Events that do not end a call.
    const EVENTS: [Event; 15] = [
        Event::Settled,
        Event::Unconnected,
        Event::Lost { sent: false },
        Event::Lost { sent: true },
        Event::XidTaken,
        Event::InProgress,
        Event::Unbound,
        Event::NotKept,
        Event::Delayed { changed: false },
        Event::Delayed { changed: true },
        Event::Grace { changed: false, limit: GRACE },
        Event::Grace { changed: true, limit: GRACE },
        Event::ContextLost,
        Event::SessionLost,
        Event::StateLost,
    ];

    /// All sequences of `len` events, the last ones of [`EVENTS`] without the first `skip`.
    fn sequences(len: u32, skip: usize) -> impl Iterator<Item = Vec<Event>> {
        let events = &EVENTS[skip..];
        let of = move |n: usize| (0..len).map(move |i| events[n / events.len().pow(i) % events.len()]);
        (0..events.len().pow(len)).map(move |n| of(n).collect())
    }

    fn at(elapsed: Duration) -> Moment {
        Moment { elapsed, random: u32::MAX }
    }

    /// When the attempts of a call start, each of which lasts for the time `each` and ends with the next one of `events`.
    fn attempts(policy: &RetryPolicy, events: impl Iterator<Item = Event>, each: Duration) -> Vec<Duration> {
        let (mut clock, mut state, mut elapsed) = (Clock::new(policy), State::new(true), Duration::ZERO);
        let mut started = vec![elapsed];
        for event in events {
            elapsed += each;
            match state.next(&mut clock, event, || at(elapsed)) {
                Next::Retry { after, .. } => elapsed += after,
                Next::Expired => break,
                Next::Done => panic!("{event:?} is no reply"),
            }
            started.push(elapsed);
        }
        started
    }

    /// A server that fails in any cycle of events.
    #[test]
    fn a_call_ends_after_any_events_in_any_order() {
        let policy = RetryPolicy::default();
        for cycle in sequences(4, 1) {
            let in_grace = cycle.iter().any(|event| matches!(event, Event::Grace { .. }));
            let limit = if in_grace { GRACE } else { policy.max_elapsed };
            for each in [Duration::ZERO, Duration::from_secs(7)] {
                let started = attempts(&policy, cycle.iter().copied().cycle(), each);
                assert!(started.iter().all(|at| *at < limit), "{cycle:?}: {started:?}");
                assert!(started.len() < 100, "{cycle:?}: {} attempts", started.len());
            }
        }
    }

    #[test]
    fn without_retries_a_call_is_repeated_only_after_the_first_recovery_of_each_kind() {
        for events in sequences(4, 1) {
            let is_first = |i: &usize| {
                matches!(events[*i], Event::ContextLost | Event::SessionLost | Event::StateLost)
                    && !events[..*i].contains(&events[*i])
            };
            let repeated = (0..events.len()).take_while(is_first).count();
            let started = attempts(&RetryPolicy::NONE, events.iter().copied(), Duration::ZERO);
            assert_eq!(started.len(), 1 + repeated, "{events:?}");
        }
    }

    #[test]
    fn an_outage_does_not_delay_what_follows_it() {
        let policy = RetryPolicy::default();
        let outage = std::iter::repeat_n(Event::Unconnected, 14);
        let after =
            [Event::SessionLost, Event::Delayed { changed: false }, Event::SessionLost, Event::StateLost];
        let started = attempts(&policy, outage.chain(after), Duration::ZERO);
        let delays: Vec<_> = started.windows(2).map(|at| at[1] - at[0]).collect();
        assert_eq!((delays.len(), delays[13]), (18, policy.max_delay));
        assert!(delays[14..].iter().all(|delay| *delay <= 2 * policy.first_delay), "{delays:?}");
    }

    /// A lost request is sent again unchanged, until a reply to it.
    #[test]
    fn a_request_keeps_its_identity_until_its_reply() {
        for events in sequences(5, 0) {
            let (mut clock, mut state) = (Clock::new(&RetryPolicy::default()), State::new(true));
            let mut lost = false;
            for event in &events {
                let next = state.next(&mut clock, *event, || at(Duration::ZERO));
                let Next::Retry { how, .. } = next else { panic!("{events:?}: {next:?}") };
                lost |= *event == Event::Lost { sent: true };
                let is_reply = !matches!(
                    event,
                    Event::Unconnected
                        | Event::Lost { .. }
                        | Event::XidTaken
                        | Event::InProgress
                        | Event::ContextLost
                        | Event::Unbound
                        | Event::Settled
                );
                assert_eq!(how.keeps_identity(), !is_reply, "{events:?}");
                let forgotten = matches!(event, Event::NotKept) || lost && *event == Event::SessionLost;
                assert!(!forgotten || state.resent(), "{events:?}");
                lost &= !is_reply;
            }
        }
    }

    /// A server that executes a call which is not idempotent, over an unreliable network.
    struct Server {
        /// Whether it has executed the current identity of the request, and has its reply.
        has_reply: bool,
        executions: u32,
        /// Whether a slot of a session identifies the request, or its XID.
        in_session: bool,
    }

    impl Server {
        fn execute(&mut self) {
            self.executions += u32::from(!self.has_reply);
            self.has_reply = true;
        }

        /// What becomes of a transmission.
        fn receive(&mut self, choice: u8) -> Event {
            match choice {
                0 => return Event::Unconnected,
                1 => return Event::Lost { sent: false },
                2 => return Event::Lost { sent: true },
                3 => {
                    self.execute();
                    return Event::Lost { sent: true };
                }
                // A restart.
                4 => self.has_reply = false,
                _ => {}
            }
            match choice {
                4 if self.in_session => Event::SessionLost,
                5 if self.in_session => Event::Unbound,
                6 if self.in_session && self.has_reply => Event::InProgress,
                7 if self.in_session && self.has_reply => Event::NotKept,
                8 if self.in_session && !self.has_reply => Event::StateLost,
                9 if self.in_session && !self.has_reply => Event::Grace { changed: false, limit: GRACE },
                10 if self.in_session && !self.has_reply => {
                    self.execute();
                    Event::Delayed { changed: true }
                }
                11 if !self.has_reply => Event::Delayed { changed: false },
                _ => {
                    self.execute();
                    Event::Answered
                }
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(20_000))]

        #[test]
        fn a_call_is_executed_once_unless_it_says_that_it_was_resent(
            in_session: bool,
            choices in proptest::collection::vec(0_u8..16, 0..20),
        ) {
            let mut server = Server { has_reply: false, executions: 0, in_session };
            let (mut clock, mut state) = (Clock::new(&RetryPolicy::default()), State::new(in_session));
            for choice in choices.into_iter().chain([15]) {
                let event = server.receive(choice);
                match state.next(&mut clock, event, || at(Duration::ZERO)) {
                    Next::Retry { how, .. } => server.has_reply &= how.keeps_identity(),
                    Next::Done => {
                        prop_assert!(server.executions == 1 || state.resent(), "{}", server.executions);
                        break;
                    }
                    Next::Expired => prop_assert!(false, "{event:?}"),
                }
            }
            prop_assert!(server.executions >= 1);
        }
    }
}
