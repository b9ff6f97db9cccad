//! The data of a command.

use millrace_buffer::{Arena, BLOCK_BYTES, Buffer, OutOfMemory, Views};
use millrace_iscsi::session::{Command, Direction};
use millrace_oncrpc::serving::slot_bytes;
use millrace_scsi::{TaskAttribute, Transfer};
use smallvec::SmallVec;

/// Maximum bytes of one buffer with iSER: each buffer takes one RDMA Read.
pub(crate) const RDMA_CHUNK: usize = 1 << 20;
/// Maximum bytes of one buffer over TCP: a file in memory takes such a buffer as one of its blocks, without a copy.
pub(crate) const TCP_CHUNK: usize = BLOCK_BYTES;
/// Maximum number of empty lists that a connection keeps.
const MAX_SPARE_LISTS: usize = 16;

/// Buffers, in place for small commands and with iSER for immediate data and up to 3 MiB.
pub(crate) type Buffers = SmallVec<[Buffer; 4]>;

/// Empty lists with storage, so that long lists are not allocated again.
#[derive(Default)]
pub(crate) struct SpareLists(Vec<Buffers>);

impl SpareLists {
    fn put(&mut self, list: Buffers) {
        if list.spilled() && self.0.len() < MAX_SPARE_LISTS {
            self.0.push(list);
        }
    }
}

/// Buffers for the first bytes of a write's data.
#[derive(Default)]
pub(crate) struct DataOut {
    parts: Buffers,
    /// Length of all parts.
    length: usize,
}

impl DataOut {
    /// Bytes of arena memory that buffers of at most `chunk` bytes use for `length` bytes.
    pub(crate) fn memory(length: usize, chunk: usize) -> usize {
        length / chunk * slot_bytes(chunk)
            + Some(length % chunk).filter(|rest| *rest > 0).map_or(0, slot_bytes)
    }

    pub(crate) fn length(&self) -> usize {
        self.length
    }

    /// Adds buffers of at most `chunk` bytes for `length` more bytes.
    pub(crate) fn extend(
        &mut self,
        arena: &Arena,
        length: usize,
        chunk: usize,
        spare: &mut SpareLists,
    ) -> Result<(), OutOfMemory> {
        let before = self.parts.len();
        if before + length.div_ceil(chunk) > self.parts.capacity()
            && let Some(mut list) = spare.0.pop()
        {
            list.append(&mut self.parts);
            self.parts = list;
        }
        let mut left = length;
        while left > 0 {
            let buffer = arena.alloc(left.min(chunk)).inspect_err(|_| self.parts.truncate(before))?;
            left -= buffer.len();
            self.parts.push(buffer);
        }
        self.length += length;
        Ok(())
    }

    /// Takes the buffers from `offset` on, where a buffer begins. [`Self::append`] returns them.
    pub(crate) fn split_off(&mut self, offset: usize) -> Buffers {
        let (mut at, mut kept) = (0, 0);
        while let Some(part) = self.parts.get(kept).filter(|_| at < offset) {
            at += part.len();
            kept += 1;
        }
        self.length = at;
        self.parts.drain(kept..).collect()
    }

    /// Adds buffers.
    pub(crate) fn append(&mut self, buffers: impl IntoIterator<Item = Buffer>) {
        for buffer in buffers {
            self.length += buffer.len();
            self.parts.push(buffer);
        }
    }

    /// The memory of `length` bytes at `offset`, as far as it exists.
    pub(crate) fn slices(&mut self, offset: usize, length: usize) -> SmallVec<[&mut [u8]; 6]> {
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
    pub(crate) fn freeze(mut self, length: usize, spare: &mut SpareLists) -> Views {
        let mut views: Views = self.parts.drain(..).map(Buffer::freeze).collect();
        spare.put(self.parts);
        views.truncate(length);
        views
    }
}

/// The state of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
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
    /// Aborted, while the device executes it or RDMA Reads are in progress.
    Aborted,
    /// Complete; its data is being sent.
    Complete,
}

/// A command.
pub(crate) struct Task {
    /// `None` once the command is executed.
    pub(crate) scsi: Option<millrace_scsi::Task>,
    pub(crate) command: Command,
    pub(crate) attribute: TaskAttribute,
    pub(crate) transfer: Transfer,
    pub(crate) state: State,
    pub(crate) data_out: DataOut,
    pub(crate) data_in: Views,
    /// RDMA Reads are in progress, which have the rest of `data_out`.
    pub(crate) reading: bool,
    /// Bytes charged to the account.
    pub(crate) charge: usize,
}

impl Task {
    /// Whether the device or RDMA Reads use the task's memory, so that an abort waits for their end.
    pub(crate) fn is_in_use(&self) -> bool {
        self.state == State::Running || self.reading
    }

    /// Bytes of data that the device takes from the initiator.
    pub(crate) fn wanted(&self) -> u32 {
        match self.command.direction {
            Direction::Write => self.transfer.data_out.min(self.command.expected),
            Direction::None | Direction::Read => 0,
        }
    }

    /// Length of the command's data in its direction, for the residual count.
    pub(crate) fn length(&self, data_in: usize) -> u64 {
        let data_out = u64::from(self.transfer.data_out);
        match self.command.direction {
            Direction::Read => data_in as u64,
            Direction::Write => data_out,
            Direction::None => data_out.max(data_in as u64),
        }
    }
}
