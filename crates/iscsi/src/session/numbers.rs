//! Numbers of commands and statuses (RFC 7143 section 4.2.2), in serial arithmetic (RFC 1982) of 32 bits.

use crate::pdu::Numbers;

use super::Violation;

/// Whether the number `a` comes before `b`.
pub(super) const fn before(a: u32, b: u32) -> bool {
    (a.wrapping_sub(b) as i32) < 0
}

/// The command numbers that a target accepts, from `ExpCmdSN` to `MaxCmdSN`.
#[derive(Debug)]
pub(super) struct CommandWindow {
    expected: u32,
    max: u32,
    /// Numbers above `expected` that are accounted for without their command.
    skipped: Vec<u32>,
}

impl CommandWindow {
    /// A closed window that begins with `expected`.
    pub(super) const fn new(expected: u32) -> Self {
        Self { expected, max: expected.wrapping_sub(1), skipped: Vec::new() }
    }

    pub(super) const fn expected(&self) -> u32 {
        self.expected
    }

    /// The last number that the window has allowed: `MaxCmdSN`.
    pub(super) const fn max(&self) -> u32 {
        self.max
    }

    /// Opens the window to `commands` and returns `MaxCmdSN`. The window never shrinks: the initiator may already
    /// have used it.
    pub(super) const fn open(&mut self, commands: u32) -> u32 {
        let max = self.expected.wrapping_add(commands).wrapping_sub(1);
        if before(self.max, max) {
            self.max = max;
        }
        self.max
    }

    const fn contains(&self, number: u32) -> bool {
        !before(number, self.expected) && !before(self.max, number)
    }

    /// Whether the command with `number` is the next one; if so, it is accounted for. A number outside of the window
    /// is a command to ignore (RFC 7143 section 4.2.2.1).
    ///
    /// # Errors
    ///
    /// The number is inside of the window, but not the next one: the only connection delivers in order, so the
    /// commands before it can never arrive.
    pub(super) fn accept(&mut self, number: u32) -> Result<bool, Violation> {
        if !self.contains(number) {
            return Ok(false);
        }
        if number != self.expected {
            return Err(Violation::CommandGap { expected: self.expected, received: number });
        }
        self.advance();
        Ok(true)
    }

    /// Accounts for the command with `number`, which does not arrive, if it is inside of the window and before `end`
    /// (RFC 7143 section 11.6.1). Returns whether it is.
    pub(super) fn skip(&mut self, number: u32, end: u32) -> bool {
        if !self.contains(number) || !before(number, end) {
            return false;
        }
        if number == self.expected {
            self.advance();
        } else if !self.skipped.contains(&number) {
            self.skipped.push(number);
        }
        true
    }

    fn advance(&mut self) {
        self.expected = self.expected.wrapping_add(1);
        while let Some(at) = self.skipped.iter().position(|&n| n == self.expected) {
            self.skipped.swap_remove(at);
            self.expected = self.expected.wrapping_add(1);
        }
    }
}

/// The status numbers of a target's connection.
#[derive(Debug)]
pub(super) struct StatusNumbers {
    next: u32,
    acknowledged: u32,
}

impl StatusNumbers {
    pub(super) const fn new(next: u32) -> Self {
        Self { next, acknowledged: next }
    }

    /// The number of the next status.
    pub(super) const fn next(&self) -> u32 {
        self.next
    }

    /// Uses the number of the next status.
    pub(super) const fn take(&mut self) -> u32 {
        let number = self.next;
        self.next = number.wrapping_add(1);
        number
    }

    /// Whether the initiator has acknowledged the status with `number`.
    pub(super) const fn is_acknowledged(&self, number: u32) -> bool {
        before(number, self.acknowledged)
    }

    /// Processes `ExpStatSN` of a request. One that acknowledges a status that was not sent has no effect: libiscsi
    /// counts the `StatSN` of an R2T, which is that of the next status.
    pub(super) const fn acknowledge(&mut self, expected: u32) {
        if before(self.acknowledged, expected) && !before(self.next, expected) {
            self.acknowledged = expected;
        }
    }
}

/// The command numbers that an initiator may use, and the status number that it expects.
#[derive(Debug)]
pub(super) struct CommandCredit {
    next: u32,
    max: u32,
    status: u32,
}

impl CommandCredit {
    /// `next` is the number of the next command, `max` the last number that the target accepts, `status` the number
    /// of the next status.
    pub(super) const fn new(next: u32, max: u32, status: u32) -> Self {
        Self { next, max, status }
    }

    /// Number of commands that the target accepts now.
    pub(super) const fn available(&self) -> u32 {
        if before(self.max, self.next) { 0 } else { self.max.wrapping_sub(self.next).wrapping_add(1) }
    }

    /// The number of the next command, which immediate requests have without using it.
    pub(super) const fn next(&self) -> u32 {
        self.next
    }

    /// Uses the number of the next command.
    pub(super) const fn take(&mut self) -> u32 {
        let number = self.next;
        self.next = number.wrapping_add(1);
        number
    }

    /// The status number that the initiator expects: `ExpStatSN`.
    pub(super) const fn expected_status(&self) -> u32 {
        self.status
    }

    /// Processes `ExpCmdSN` and `MaxCmdSN` of a response. An invalid pair is ignored, and so is a `MaxCmdSN` that
    /// comes before the current one (RFC 7143 section 4.2.2.1).
    ///
    /// # Errors
    ///
    /// The PDU acknowledges a command that was not sent.
    pub(super) const fn update(&mut self, numbers: &Numbers) -> Result<(), Violation> {
        if before(self.next, numbers.exp_cmd_sn) {
            return Err(Violation::CommandAcknowledged { next: self.next, received: numbers.exp_cmd_sn });
        }
        if !before(numbers.max_cmd_sn, numbers.exp_cmd_sn.wrapping_sub(1))
            && before(self.max, numbers.max_cmd_sn)
        {
            self.max = numbers.max_cmd_sn;
        }
        Ok(())
    }

    /// Processes the number of a received status.
    ///
    /// # Errors
    ///
    /// The number is not the next status number.
    pub(super) const fn status(&mut self, number: u32) -> Result<(), Violation> {
        if number != self.status {
            return Err(Violation::StatusNumber { expected: self.status, received: number });
        }
        self.status = number.wrapping_add(1);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LAST: u32 = u32::MAX;

    #[test]
    fn commands_are_accepted_in_order_across_the_end_of_the_number_range() {
        let mut w = CommandWindow::new(LAST - 1);
        assert_eq!(w.accept(LAST - 1), Ok(false), "the window is closed");
        assert_eq!(w.open(4), 1);
        for number in [LAST - 1, LAST, 0, 1] {
            assert_eq!(w.accept(number), Ok(true));
            assert_eq!(w.accept(number), Ok(false), "a duplicate of {number} is ignored");
        }
        assert_eq!(w.accept(2), Ok(false), "beyond MaxCmdSN");
    }

    #[test]
    fn a_gap_is_a_violation() {
        let mut w = CommandWindow::new(7);
        w.open(8);
        assert_eq!(w.accept(9), Err(Violation::CommandGap { expected: 7, received: 9 }));
    }

    #[test]
    fn the_window_never_shrinks() {
        let mut w = CommandWindow::new(1);
        assert_eq!(w.open(8), 8);
        assert_eq!(w.open(2), 8);
        assert_eq!(w.accept(1), Ok(true));
        assert_eq!(w.open(7), 8);
        assert_eq!(w.open(8), 9);
    }

    #[test]
    fn an_aborted_command_that_never_arrives_is_accounted_for() {
        let mut w = CommandWindow::new(5);
        w.open(8);
        assert!(!w.skip(4, 9), "before the window");
        assert!(!w.skip(13, 20), "after the window");
        assert!(!w.skip(6, 6), "not before the request that aborts it");
        assert!(w.skip(6, 9) && w.skip(6, 9));
        assert_eq!(w.expected(), 5);
        assert_eq!(w.accept(5), Ok(true));
        assert_eq!(w.expected(), 7);
        assert!(w.skip(7, 9));
        assert_eq!(w.expected(), 8);
    }

    #[test]
    fn statuses_that_were_not_sent_cannot_be_acknowledged() {
        let mut s = StatusNumbers::new(LAST);
        assert_eq!(s.take(), LAST);
        assert!(!s.is_acknowledged(LAST));
        s.acknowledge(0);
        assert!(s.is_acknowledged(LAST));
        s.acknowledge(LAST); // An old acknowledgement.
        assert!(s.is_acknowledged(LAST));
        s.acknowledge(1);
        assert!(!s.is_acknowledged(0));
    }

    #[test]
    fn credit_follows_max_cmd_sn() {
        let mut c = CommandCredit::new(LAST, LAST, 1);
        assert_eq!((c.available(), c.take(), c.available()), (1, LAST, 0));
        let numbers = |exp_cmd_sn, max_cmd_sn| Numbers { stat_sn: 0, exp_cmd_sn, max_cmd_sn };
        assert_eq!(c.update(&numbers(0, 3)), Ok(()));
        assert_eq!(c.available(), 4);
        assert_eq!(c.update(&numbers(0, 1)), Ok(()), "an old MaxCmdSN");
        assert_eq!(c.available(), 4);
        assert_eq!(c.update(&numbers(0, LAST - 5)), Ok(()), "MaxCmdSN < ExpCmdSN - 1");
        assert_eq!(c.available(), 4);
        let error = Violation::CommandAcknowledged { next: 0, received: 1 };
        assert_eq!(c.update(&numbers(1, 4)), Err(error));
        assert_eq!(c.status(2), Err(Violation::StatusNumber { expected: 1, received: 2 }));
        assert_eq!(c.status(1), Ok(()));
        assert_eq!(c.expected_status(), 2);
    }
}
