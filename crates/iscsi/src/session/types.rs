//! Types that both roles share.

use crate::pdu::{Residual, TaskAttribute};

/// The direction of a command's data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// No data.
    None,
    /// Data from the target to the initiator.
    Read,
    /// Data from the initiator to the target.
    Write,
}

/// A SCSI command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Command {
    /// Logical unit (SAM-5 section 4.7), as one big-endian number.
    pub lun: u64,
    /// Ordering.
    pub attribute: TaskAttribute,
    /// Command descriptor block.
    pub cdb: [u8; 16],
    /// Direction of the data; [`Direction::None`] if and only if `expected` is 0.
    pub direction: Direction,
    /// Expected data transfer length (EDTL) in bytes.
    pub expected: u32,
}

/// The data segment of a PDU to send.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Payload {
    /// Bytes; empty if the PDU has no data.
    Bytes(Vec<u8>),
    /// A part of the data of a task, which the caller has.
    Task {
        /// Initiator task tag.
        itt: u32,
        /// Offset of the first byte in the task's data.
        offset: u32,
        /// Length in bytes.
        length: u32,
    },
}

impl Payload {
    pub(super) const NONE: Self = Self::Bytes(Vec::new());

    /// Length in bytes: `DataSegmentLength`.
    pub fn length(&self) -> u32 {
        match self {
            Self::Bytes(bytes) => u32::try_from(bytes.len()).unwrap_or(u32::MAX),
            Self::Task { length, .. } => *length,
        }
    }
}

/// Where the data segment of a received PDU belongs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Placement {
    /// The PDU has no data segment.
    None,
    /// The data of a task.
    Task {
        /// Initiator task tag.
        itt: u32,
        /// Offset of the first byte in the task's data.
        offset: u32,
        /// Number of bytes to place there.
        length: u32,
        /// Number of bytes to discard after these.
        excess: u32,
    },
    /// Bytes to pass to `finish` of the session.
    Control {
        /// Length in bytes.
        length: u32,
    },
    /// Bytes to discard.
    Discard {
        /// Length in bytes.
        length: u32,
    },
}

impl Placement {
    pub(super) const fn control(length: u32) -> Self {
        if length == 0 { Self::None } else { Self::Control { length } }
    }

    pub(super) const fn discard(length: u32) -> Self {
        if length == 0 { Self::None } else { Self::Discard { length } }
    }

    /// Places `length` bytes at `offset` of the data of a task, whose buffer ends at `end`.
    pub(super) fn task(itt: u32, offset: u32, length: u32, end: u32) -> Self {
        let placed = length.min(end.saturating_sub(offset));
        if placed == 0 {
            return Self::discard(length);
        }
        Self::Task { itt, offset, length: placed, excess: length - placed }
    }
}

/// The residual count of a command that had `actual` bytes of data where the initiator expected `expected`.
pub(super) fn residual(expected: u32, actual: u64) -> Residual {
    let count = |n: u64| u32::try_from(n).unwrap_or(u32::MAX);
    match u64::from(expected) {
        e if actual < e => Residual::Underflow(count(e - actual)),
        e if actual > e => Residual::Overflow(count(actual - e)),
        _ => Residual::None,
    }
}
