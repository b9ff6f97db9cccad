//! The data of a command.

use millrace_buffer::{Arena, BLOCK_BYTES, Buffer, BufferLengths, OutOfMemory, View, Views, slot_bytes};
use millrace_iscsi::{
    pdu::BHS_BYTES,
    session::{Command, Direction},
};
use millrace_scsi::{MAX_TRANSFER_BYTES, TaskAttribute, Transfer};
use smallvec::SmallVec;

/// Maximum bytes of one buffer: a file in memory takes such a buffer as one of its blocks, without a copy.
pub(crate) const CHUNK: usize = BLOCK_BYTES;
/// Maximum arena memory that the data of one command uses, in bytes: buffers that are shorter than a block of a file in
/// memory use up to twice their length, and a write has at most three of them.
pub const MAX_COMMAND_MEMORY: usize = MAX_TRANSFER_BYTES as usize + 2 * BLOCK_BYTES;
/// Maximum number of empty lists that a connection keeps.
const MAX_SPARE_LISTS: usize = 16;

/// Bytes of memory that `data` keeps from being reused. A file in memory keeps, and has a charge for, what it shares.
pub(crate) fn kept_memory(data: &View) -> usize {
    if data.is_unique() { data.capacity() } else { data.len() }
}

/// Bytes of memory of a PDU with `data` bytes that waits to be sent.
pub(crate) fn pdu_memory(data: usize) -> usize {
    slot_bytes(BHS_BYTES) + data
}

/// Buffers, in place for small commands.
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

/// Bytes of arena memory that buffers of these lengths use.
pub(crate) fn memory_of(lengths: BufferLengths) -> usize {
    lengths.iter().map(slot_bytes).sum()
}

/// Buffers for the first bytes of a write's data.
#[derive(Default)]
pub(crate) struct DataOut {
    /// Offset of the data on the medium.
    offset: u64,
    parts: Buffers,
    /// Length of all parts.
    length: usize,
}

impl DataOut {
    /// No data yet, of a write at `offset` on the medium.
    pub(crate) fn new(offset: u64) -> Self {
        Self { offset, ..Self::default() }
    }

    /// The buffers for the next `length` bytes: they end where the offset on the medium is a multiple of `chunk`, so that
    /// all but the first and the last are whole blocks.
    pub(crate) fn aligned(&self, length: usize, chunk: usize) -> BufferLengths {
        let at = self.offset + self.length as u64;
        BufferLengths::starting(chunk - (at % chunk as u64) as usize, length, chunk)
    }

    pub(crate) fn length(&self) -> usize {
        self.length
    }

    /// Adds buffers of these lengths, or none.
    pub(crate) fn extend(
        &mut self,
        arena: &Arena,
        lengths: BufferLengths,
        spare: &mut SpareLists,
    ) -> Result<(), OutOfMemory> {
        let before = self.parts.len();
        if before + lengths.iter().count() > self.parts.capacity()
            && let Some(mut list) = spare.0.pop()
        {
            list.append(&mut self.parts);
            self.parts = list;
        }
        for buffer in arena.alloc_all(lengths) {
            let buffer = buffer.inspect_err(|_| self.parts.truncate(before))?;
            self.parts.push(buffer);
        }
        self.length += lengths.total();
        Ok(())
    }

    /// Takes the buffers from `offset` on, where a buffer begins. [`Self::append`] returns them.
    pub(crate) fn split_off(&mut self, offset: usize) -> impl Iterator<Item = Buffer> {
        let (mut at, mut kept) = (0, 0);
        while let Some(part) = self.parts.get(kept).filter(|_| at < offset) {
            at += part.len();
            kept += 1;
        }
        self.length = at;
        self.parts.drain(kept..)
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
