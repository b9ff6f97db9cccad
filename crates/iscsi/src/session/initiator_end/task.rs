//! A task: the data that it sends and receives.

use smallvec::SmallVec;

use crate::{
    iser::{Advertised, RemoteBuffer},
    negotiation::{IserParameters, Parameters},
    pdu::{DataIn, R2t, RESERVED_TAG, Residual},
};

use super::super::{
    Violation,
    types::{Command, Direction},
};
use super::RequestError;

/// SCSI status GOOD.
const GOOD: u8 = 0;

/// An R2T whose data was not sent completely.
#[derive(Debug)]
struct Requested {
    lun: u64,
    ttt: u32,
    /// Offset of the next byte to send.
    offset: u32,
    end: u32,
    data_sn: u32,
}

/// A Data-Out PDU.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Piece {
    pub(super) lun: u64,
    pub(super) ttt: u32,
    pub(super) data_sn: u32,
    pub(super) offset: u32,
    pub(super) length: u32,
    pub(super) last: bool,
}

/// A command that has no outcome.
#[derive(Debug)]
pub(super) struct Task {
    pub(super) itt: u32,
    pub(super) command: Command,
    pub(super) advertised: Advertised,
    /// Number of the command, when it was sent.
    pub(super) cmd_sn: Option<u32>,
    /// Length of the immediate data.
    pub(super) immediate: u32,
    /// End of the immediate and unsolicited data.
    unsolicited: u32,
    unsolicited_sn: u32,
    /// Bytes sent, from offset 0 on.
    sent: u32,
    /// End of the data that R2Ts have requested.
    requested: u32,
    r2t_sn: u32,
    /// In order. One without an allocation, the default of MaxOutstandingR2T.
    r2ts: SmallVec<[Requested; 1]>,
    /// Bytes received, from offset 0 on.
    received: u32,
    data_sn: u32,
    /// The data is transferred by RDMA operations.
    rdma: bool,
}

impl Task {
    pub(super) fn new(
        itt: u32,
        command: Command,
        buffer: Option<RemoteBuffer>,
        parameters: &Parameters,
        whole_unsolicited: bool,
    ) -> Result<Self, RequestError> {
        let expected = if command.direction == Direction::None { 0 } else { command.expected };
        let command = Command { expected, ..command };
        let first =
            if command.direction == Direction::Write { parameters.first_burst.min(expected) } else { 0 };
        let immediate = if parameters.immediate_data { first.min(parameters.max_send_data) } else { 0 };
        // Unsolicited Data-Out PDUs are unexpected ones, which nothing acknowledges before the response: none where
        // the target limits them.
        let limited = matches!(parameters.iser, Some(IserParameters { max_unexpected_pdus: 1.., .. }));
        let unsolicited = if parameters.initial_r2t || limited { immediate } else { first };
        let none = whole_unsolicited && unsolicited < expected;
        let (immediate, unsolicited) = if none { (0, 0) } else { (immediate, unsolicited) };
        let rdma = parameters.iser.is_some();
        let mut advertised = Advertised::default();
        if rdma && expected > unsolicited {
            let buffer = buffer.filter(|b| b.base.checked_add(expected.into()).is_some());
            let RemoteBuffer { stag, base } = buffer.ok_or(RequestError::NoBuffer(expected))?;
            match command.direction {
                Direction::Read => advertised.read = Some(RemoteBuffer { stag, base }),
                // The address of the first solicited byte, as the Linux kernel's initiator and libiscsi advertise it.
                _ => advertised.write = Some(RemoteBuffer { stag, base: base + u64::from(unsolicited) }),
            }
        }
        Ok(Self {
            itt,
            command,
            advertised,
            cmd_sn: None,
            immediate,
            unsolicited,
            unsolicited_sn: 0,
            sent: 0,
            requested: unsolicited,
            r2t_sn: 0,
            r2ts: SmallVec::new(),
            received: 0,
            data_sn: 0,
            rdma,
        })
    }

    /// The command was sent with its immediate data. Returns whether unsolicited data follows.
    pub(super) const fn command_sent(&mut self, cmd_sn: u32) -> bool {
        self.cmd_sn = Some(cmd_sn);
        self.sent = self.immediate;
        self.has_unsolicited()
    }

    /// Whether unsolicited data was not sent.
    pub(super) const fn has_unsolicited(&self) -> bool {
        self.sent < self.unsolicited
    }

    /// Whether data that an R2T requests was not sent.
    pub(super) fn has_solicited(&self) -> bool {
        !self.r2ts.is_empty()
    }

    /// The next unsolicited Data-Out PDU, of at most `max` bytes.
    pub(super) fn next_unsolicited(&mut self, max: u32) -> Piece {
        let (offset, data_sn) = (self.sent, self.unsolicited_sn);
        let length = max.min(self.unsolicited - offset);
        self.unsolicited_sn = data_sn.wrapping_add(1);
        self.sent = offset + length;
        Piece { lun: 0, ttt: RESERVED_TAG, data_sn, offset, length, last: self.sent == self.unsolicited }
    }

    /// The next solicited Data-Out PDU, of at most `max` bytes. R2Ts are fulfilled in order.
    pub(super) fn next_solicited(&mut self, max: u32) -> Option<Piece> {
        let r = self.r2ts.first_mut()?;
        let (offset, data_sn) = (r.offset, r.data_sn);
        let length = max.min(r.end - offset);
        r.offset += length;
        r.data_sn = data_sn.wrapping_add(1);
        let piece = Piece { lun: r.lun, ttt: r.ttt, data_sn, offset, length, last: r.offset == r.end };
        self.sent = r.offset;
        if piece.last {
            self.r2ts.remove(0);
        }
        Some(piece)
    }

    /// Accepts an R2T.
    ///
    /// # Errors
    ///
    /// It does not request the next part of a write's data, or exceeds a limit.
    pub(super) fn r2t(&mut self, pdu: &R2t, parameters: &Parameters) -> Result<(), Violation> {
        let itt = self.itt;
        if self.rdma || self.command.direction != Direction::Write || self.cmd_sn.is_none() {
            return Err(Violation::Unexpected("R2T"));
        }
        if self.r2ts.iter().any(|r| r.ttt == pdu.ttt) {
            return Err(Violation::TransferTag(pdu.ttt));
        }
        if self.r2ts.len() >= usize::from(parameters.max_outstanding_r2t) {
            return Err(Violation::OutstandingR2t { itt });
        }
        if pdu.r2t_sn != self.r2t_sn {
            return Err(Violation::DataNumber { itt, expected: self.r2t_sn, received: pdu.r2t_sn });
        }
        if pdu.offset != self.requested {
            return Err(Violation::DataOffset { itt, expected: self.requested, received: pdu.offset });
        }
        let maximum = parameters.max_burst.min(self.command.expected - self.requested);
        if pdu.length == 0 || pdu.length > maximum {
            return Err(Violation::DataLength { itt, length: pdu.length, maximum });
        }
        let end = pdu.offset + pdu.length;
        self.r2ts.push(Requested { lun: pdu.lun, ttt: pdu.ttt, offset: pdu.offset, end, data_sn: 0 });
        self.r2t_sn = pdu.r2t_sn.wrapping_add(1);
        self.requested = end;
        Ok(())
    }

    /// Checks a Data-In PDU with `length` bytes.
    ///
    /// # Errors
    ///
    /// It is not the next one of a read, or exceeds the task's buffer. (MaxBurstLength is no limit here, because tgt does
    /// not respect it for reads.)
    pub(super) fn check(&self, pdu: &DataIn, length: u32) -> Result<(), Violation> {
        let itt = self.itt;
        if self.rdma || self.command.direction != Direction::Read || self.cmd_sn.is_none() {
            return Err(Violation::Unexpected("Data-In PDU"));
        }
        if pdu.data_sn != self.data_sn {
            return Err(Violation::DataNumber { itt, expected: self.data_sn, received: pdu.data_sn });
        }
        if pdu.offset != self.received {
            return Err(Violation::DataOffset { itt, expected: self.received, received: pdu.offset });
        }
        let maximum = self.command.expected - self.received;
        if length > maximum {
            return Err(Violation::DataLength { itt, length, maximum });
        }
        Ok(())
    }

    /// Accounts for the data of a Data-In PDU that [`Task::check`] has accepted.
    pub(super) const fn placed(&mut self, length: u32) {
        self.received += length;
        self.data_sn = self.data_sn.wrapping_add(1);
    }

    /// Number of bytes that a task with this status and residual count has transferred.
    ///
    /// # Errors
    ///
    /// The residual count exceeds the expected length, or the task succeeded with another amount of data than the
    /// residual count states.
    pub(super) fn transferred(&self, status: u8, residual: Residual) -> Result<u32, Violation> {
        let (itt, expected) = (self.itt, self.command.expected);
        let reported = match residual {
            Residual::Underflow(n) => expected.checked_sub(n),
            Residual::None | Residual::Overflow(_) => Some(expected),
        };
        let moved = match self.command.direction {
            _ if self.rdma => reported.unwrap_or(0),
            Direction::None => 0,
            Direction::Read => self.received,
            Direction::Write => self.sent,
        };
        let wrong = Violation::Residual { itt, expected, transferred: moved, residual };
        let reported = reported.ok_or(wrong)?;
        if status == GOOD {
            // A target discards unsolicited data that the command does not need.
            let complete = match self.command.direction {
                Direction::Write => moved >= reported,
                _ => moved == reported,
            };
            if !complete {
                return Err(wrong);
            }
        }
        Ok(moved.min(reported))
    }
}
