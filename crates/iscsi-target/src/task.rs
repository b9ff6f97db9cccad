//! The data of a command.

use millrace_buffer::{Arena, Buffer, OutOfMemory, Views};
use millrace_iscsi::session::{Command, Direction};
use millrace_oncrpc::serving::slot_bytes;
use millrace_scsi::{TaskAttribute, Transfer};
use smallvec::SmallVec;

/// Maximum bytes of one buffer.
const CHUNK: usize = 1 << 20;

/// Buffers for the first bytes of a write's data.
#[derive(Default)]
pub(super) struct DataOut {
    parts: Vec<Buffer>,
    /// Length of all parts.
    length: usize,
}

impl DataOut {
    /// Bytes of arena memory that buffers for `length` bytes use.
    pub(super) fn memory(length: usize) -> usize {
        length / CHUNK * CHUNK + Some(length % CHUNK).filter(|rest| *rest > 0).map_or(0, slot_bytes)
    }

    pub(super) fn length(&self) -> usize {
        self.length
    }

    /// Adds buffers for `length` more bytes.
    pub(super) fn extend(&mut self, arena: &Arena, length: usize) -> Result<(), OutOfMemory> {
        let mut parts = Vec::new();
        let mut left = length;
        while left > 0 {
            let buffer = arena.alloc(left.min(CHUNK))?;
            left -= buffer.len();
            parts.push(buffer);
        }
        self.parts.append(&mut parts);
        self.length += length;
        Ok(())
    }

    /// The memory of `length` bytes at `offset`, as far as it exists.
    pub(super) fn slices(&mut self, offset: usize, length: usize) -> SmallVec<[&mut [u8]; 4]> {
        let mut out = SmallVec::new();
        let (mut skip, mut left) = (offset, length);
        for part in &mut self.parts {
            if skip >= part.len() {
                skip -= part.len();
                continue;
            }
            let n = left.min(part.len() - skip);
            if n == 0 {
                break;
            }
            out.push(&mut part[skip..skip + n]);
            (skip, left) = (0, left - n);
        }
        out
    }

    /// The first `length` bytes, all of which are received.
    pub(super) fn freeze(self, length: usize) -> Views {
        let mut views: Views = self.parts.into_iter().map(Buffer::freeze).collect();
        views.truncate(length);
        views
    }
}

/// The state of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    /// The command PDU is being received.
    Arriving,
    /// Waits for memory.
    Waiting,
    /// Waits for data of the initiator.
    Fetching,
    /// Can be executed.
    Ready,
    /// Executed by the device.
    Running,
    /// Aborted, while the device executes it.
    Aborted,
    /// Complete; its data is being sent.
    Complete,
}

/// A command.
pub(super) struct Task {
    /// `None` once the command is executed.
    pub(super) scsi: Option<millrace_scsi::Task>,
    pub(super) command: Command,
    pub(super) attribute: TaskAttribute,
    pub(super) transfer: Transfer,
    pub(super) state: State,
    pub(super) data_out: DataOut,
    pub(super) data_in: Views,
    /// Bytes charged to the account.
    pub(super) charge: usize,
}

impl Task {
    /// Bytes of data that the device takes from the initiator.
    pub(super) fn wanted(&self) -> u32 {
        match self.command.direction {
            Direction::Write => self.transfer.data_out.min(self.command.expected),
            Direction::None | Direction::Read => 0,
        }
    }

    /// Length of the command's data in its direction, for the residual count.
    pub(super) fn length(&self, data_in: usize) -> u64 {
        let data_out = u64::from(self.transfer.data_out);
        match self.command.direction {
            Direction::Read => data_in as u64,
            Direction::Write => data_out,
            Direction::None => data_out.max(data_in as u64),
        }
    }
}
