//! The connection while it exists: submission and outcome of commands, and pings.

use std::task::Context;

use futures::FutureExt;
use millrace_iscsi::session::{InitiatorEvent, Outcome};
use millrace_runtime::{RuntimeExt, Sleep, StallTimer};
use millrace_scsi::Sense;

use super::{Engine, Link, operations::Part, work::Work};
use crate::{
    Error,
    connection::{CLOSE_LIMIT, Connection, Lost},
    error::Failure,
    exchange::{MAX_ATTEMPTS, RETRY_DELAY},
    outcome::{Verdict, is_mode_change, is_reset, judge},
};

/// A connection with its state.
pub(super) struct Live {
    pub(super) connection: Connection,
    /// Detects the target's silence.
    quiet: StallTimer,
    /// Whether a NOP-Out has no answer yet.
    pinging: bool,
    /// No command is submitted: the session ends when those in flight are complete.
    draining: bool,
    /// A logout was requested.
    leaving: bool,
    /// After the logout: the seconds before another login, and the time limit for the target to close the connection.
    closing: Option<(u16, Sleep)>,
}

impl Live {
    pub(super) fn new(connection: Connection) -> Self {
        let quiet = StallTimer::default();
        Self { connection, quiet, pinging: false, draining: false, leaving: false, closing: None }
    }
}

impl Engine {
    /// Receives, processes and sends. Returns whether there is progress.
    pub(super) fn serve(&mut self, cx: &mut Context<'_>) -> Result<bool, Lost> {
        let Link::Live(live) = &mut self.link else { return Ok(false) };
        let received = live.connection.receive(cx, &mut self.operations);
        if let Some((seconds, limit)) = &mut live.closing {
            let over = received.is_err() || limit.poll_unpin(cx).is_ready();
            return if over { Err(Lost::Ended(*seconds)) } else { received };
        }
        let mut progress = received?;
        while let Link::Live(live) = &mut self.link
            && let Some(event) = live.connection.next_event()
        {
            self.process(event)?;
            progress = true;
        }
        progress |= self.submit(cx);
        let Link::Live(live) = &mut self.link else { return Ok(progress) };
        progress |= live.connection.send(cx, &mut self.operations)?;
        let (rt, received) = (&self.place.dialer.rt, live.connection.received());
        if live.quiet.poll(cx, rt, self.ping_interval, received).is_ready() {
            live.quiet = StallTimer::default();
            if live.pinging || live.leaving {
                return Err(Lost::Silent);
            }
            live.pinging = live.connection.ping().is_ok();
            progress = true;
        }
        Ok(progress)
    }

    fn process(&mut self, event: InitiatorEvent) -> Result<(), Lost> {
        let Link::Live(live) = &mut self.link else { return Ok(()) };
        match event {
            InitiatorEvent::Completed { itt, outcome } => self.completed(itt, outcome),
            InitiatorEvent::Pong { .. } | InitiatorEvent::RequestRejected { .. } => live.pinging = false,
            InitiatorEvent::LogoutRequested { .. } => live.draining = true,
            InitiatorEvent::LoggedOut { time2wait } => {
                live.connection.shutdown();
                live.closing = Some((time2wait, self.place.dialer.rt.sleep(CLOSE_LIMIT)));
            }
            InitiatorEvent::Dropped { time2wait } => return Err(Lost::Ended(time2wait)),
            InitiatorEvent::ScsiEvent { sense, .. } => {
                if let Some(sense) = Sense::decode(&sense) {
                    self.attention(&sense);
                }
            }
            InitiatorEvent::Managed { .. } | InitiatorEvent::Text { .. } => {}
        }
        Ok(())
    }

    /// Submits commands, or the logout. Returns whether there was something to submit.
    fn submit(&mut self, cx: &mut Context<'_>) -> bool {
        if let Some(pause) = &mut self.pause {
            if pause.poll_unpin(cx).is_pending() {
                return false;
            }
            self.pause = None;
        }
        let Link::Live(live) = &mut self.link else { return false };
        let mut progress = false;
        while !live.draining && self.operations.in_flight() < self.queue_depth {
            let Some(part) = self.operations.next(self.unit.limits.max_transfer) else { break };
            let command = self.operations.command(&part, self.place.lun, self.unit.block_size);
            if let Some(operation) = self.operations.get_mut(part.operation)
                && let Work::Flush(_) = operation.work
            {
                self.durability.sent(&mut operation.flush);
            }
            progress = true;
            let memory = match live.connection.arena().map(|arena| self.operations.lend(&part, arena)) {
                None => None,
                Some(Ok(memory)) => memory,
                Some(Err(e)) => {
                    self.operations.failed(&part, e.into());
                    continue;
                }
            };
            match command.map(|command| live.connection.submit(command, memory)) {
                Some(Ok(itt)) => self.operations.sent(itt, part),
                refused => {
                    self.operations.restore(&part, refused.and_then(Result::err).flatten());
                    self.operations.repeat(part);
                    live.draining = true;
                }
            }
        }
        let idle = self.closing && self.operations.is_empty();
        let drained = live.draining && self.operations.in_flight() == 0;
        if (idle || drained) && !live.leaving {
            (live.draining, live.leaving) = (true, true);
            progress |= live.connection.logout().is_ok();
        }
        progress
    }

    fn attention(&mut self, sense: &Sense) {
        if is_reset(sense.additional) {
            self.reset();
        }
        if is_mode_change(sense.additional) {
            self.unit.write_cache = None;
        }
    }

    /// A command has an outcome.
    pub(super) fn completed(&mut self, itt: u32, outcome: Outcome) {
        let Some(mut part) = self.operations.take(itt) else { return };
        let (failure, delay) = match judge(outcome) {
            Verdict::Done(transferred) => return self.done(&part, transferred),
            Verdict::Failed(failure) => return self.failed(&part, failure),
            Verdict::Attention(sense) => {
                self.attention(&sense);
                (Failure::Sense(sense), false)
            }
            Verdict::Deferred(sense) => {
                self.reset();
                (Failure::Sense(sense), false)
            }
            Verdict::Again(failure) => (failure, false),
            Verdict::Later(failure) => (failure, true),
        };
        if delay {
            // The deadline of the operation bounds the number of attempts.
            self.last = failure.to_string();
            self.pause = Some(self.place.dialer.rt.sleep(RETRY_DELAY));
            return self.operations.repeat(part);
        }
        if part.attempts >= MAX_ATTEMPTS {
            return self.failed(&part, failure);
        }
        part.attempts += 1;
        self.operations.repeat(part);
    }

    fn done(&mut self, part: &Part, transferred: u32) {
        self.failures = 0;
        let url = || self.place.url.clone();
        let query = self.operations.get_mut(part.operation).and_then(|operation| match &mut operation.work {
            Work::Query(.., pieces) => pieces.whole_mut(),
            _ => None,
        });
        if let Some(buffer) = query {
            // At most the length of the part.
            buffer.set_len((transferred as usize).min(buffer.len()));
        } else if transferred != part.length {
            let reason = format!("the target transferred {transferred} of {} bytes", part.length);
            let error = Error::Malformed { url: url(), reason };
            return self.operations.failed(part, error);
        }
        let Some(operation) = self.operations.get_mut(part.operation) else { return };
        match operation.work {
            Work::Read(..) | Work::Query(..) => {}
            Work::Write(..) | Work::Change(..) if self.unit.write_cache == Some(false) => {}
            Work::Write(..) | Work::Change(..) => self.durability.changed(),
            Work::Flush(_) => {
                if !self.durability.flushed(operation.flush) {
                    let error = Error::DataLost { url: url() };
                    return self.operations.failed(part, error);
                }
            }
        }
        let deadline = self.place.dialer.rt.now() + self.timeout;
        self.operations.done(part, deadline);
    }

    fn failed(&mut self, part: &Part, failure: Failure) {
        let Some(operation) = self.operations.get_mut(part.operation) else { return };
        let flush = matches!(operation.work, Work::Flush(_));
        // A device without a write cache need not have the command.
        if flush && failure.is_unsupported() && self.unit.write_cache != Some(true) {
            return self.done(part, 0);
        }
        if flush && failure.is_medium_error() {
            self.reset();
            let error = Error::DataLost { url: self.place.url.clone() };
            return self.operations.failed(part, error);
        }
        let (url, command) = (self.place.url.clone(), operation.work.name());
        self.operations.failed(part, Error::Command { url, command, failure });
    }
}
