//! Operations in progress, and the commands into which they are divided.

use std::collections::{HashMap, VecDeque};

use millrace_buffer::{Arena, OutOfMemory, Views};
use millrace_iscsi::{
    pdu::TaskAttribute,
    session::{Command, Direction},
};
use millrace_rdma::Memory;
use millrace_runtime::Instant;
use millrace_scsi::{
    Lun,
    initiator::{read_16, write_16},
};
use slab::Slab;

use super::{durability::Flush, submission::Reply, work::Work};
use crate::{Error, connection::TaskData};

/// An operation.
pub(super) struct Operation {
    pub(super) work: Work,
    /// Length of its data in bytes.
    length: usize,
    reply: Reply,
    deadline: Instant,
    /// Bytes of the data that parts have taken.
    divided: usize,
    /// Parts without an outcome.
    parts: usize,
    failed: Option<Error>,
    pub(super) flush: Flush,
}

/// A part of an operation: one command.
#[derive(Debug, Clone, Copy)]
pub(super) struct Part {
    pub(super) operation: usize,
    offset: usize,
    pub(super) length: u32,
    /// Number of executions without success.
    pub(super) attempts: u32,
}

/// The operations of a device.
#[derive(Default)]
pub(super) struct Operations {
    table: Slab<Operation>,
    /// Operations that are not completely divided into parts, in order.
    undivided: VecDeque<usize>,
    /// Parts that are sent again.
    again: VecDeque<Part>,
    /// Parts that the target has, by task.
    tasks: HashMap<u32, Part>,
}

impl Operations {
    pub(super) fn add(&mut self, work: Work, reply: Reply, deadline: Instant, flush: Flush) {
        let length = work.length();
        let operation =
            Operation { work, length, reply, deadline, divided: 0, parts: 0, failed: None, flush };
        let key = self.table.insert(operation);
        self.undivided.push_back(key);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.table.is_empty()
    }

    /// Number of commands that the target has.
    pub(super) fn in_flight(&self) -> usize {
        self.tasks.len()
    }

    pub(super) fn get_mut(&mut self, key: usize) -> Option<&mut Operation> {
        self.table.get_mut(key)
    }

    /// The next part to send, of at most `max` bytes.
    pub(super) fn next(&mut self, max: u32) -> Option<Part> {
        while let Some(part) = self.again.pop_front() {
            if self.table.get(part.operation).is_some_and(|o| o.failed.is_none()) {
                return Some(part);
            }
            self.end_part(part.operation);
        }
        let key = *self.undivided.front()?;
        let operation = self.table.get_mut(key)?;
        let (offset, length) = (operation.divided, operation.length);
        // At most `max`.
        let part = (length - offset).min(max as usize) as u32;
        operation.divided += part as usize;
        operation.parts += 1;
        if operation.divided == length {
            self.undivided.pop_front();
        }
        Some(Part { operation: key, offset, length: part, attempts: 0 })
    }

    /// The command of a part.
    pub(super) fn command(&self, part: &Part, lun: Lun, block_size: u32) -> Option<Command> {
        let lba = |start: u64| (start + part.offset as u64) / u64::from(block_size);
        let blocks = part.length / block_size;
        let (cdb, direction) = match self.table.get(part.operation)?.work {
            Work::Read(start, _) => (read_16(lba(start), blocks, false), Direction::Read),
            Work::Write(start, _) => (write_16(lba(start), blocks, false), Direction::Write),
            Work::Query(_, cdb, _) => (cdb, Direction::Read),
            Work::Change(_, cdb, _) => (cdb, Direction::Write),
            Work::Flush(cdb) => (cdb, Direction::None),
        };
        let lun = u64::from_be_bytes(lun.to_bytes());
        Some(Command { lun, attribute: TaskAttribute::SIMPLE, cdb, direction, expected: part.length })
    }

    /// The memory of the part's data, for the time that the target may access it. The part of a read has its part of the
    /// buffer. The data of a write that is not in one piece is copied to memory of `arena`.
    pub(super) fn lend(&mut self, part: &Part, arena: &Arena) -> Result<Option<Memory>, OutOfMemory> {
        let Some(operation) = self.table.get_mut(part.operation) else { return Ok(None) };
        let length = part.length as usize;
        Ok(match &mut operation.work {
            Work::Read(_, pieces) | Work::Query(.., pieces) => {
                Some(Memory::Owned(pieces.take(part.offset, length, arena)?))
            }
            Work::Write(_, data) | Work::Change(_, _, data) => {
                let data = data.slice(part.offset, length);
                Some(match data.pieces().count() {
                    0 | 1 => Memory::Shared(data),
                    _ => {
                        let mut one = arena.alloc(length)?;
                        data.copy_to(&mut one);
                        Memory::Owned(one)
                    }
                })
            }
            Work::Flush(_) => None,
        })
    }

    /// Returns the memory that [`Self::lend`] gave. Returns whether the data of a read is there.
    pub(super) fn restore(&mut self, part: &Part, memory: Option<Memory>) -> bool {
        let Some(operation) = self.table.get_mut(part.operation) else { return true };
        let (Work::Read(_, pieces) | Work::Query(.., pieces)) = &mut operation.work else { return true };
        let Some(Memory::Owned(piece)) = memory else { return false };
        pieces.put(part.offset, piece);
        true
    }

    /// The target gets `part` as the task `itt`.
    pub(super) fn sent(&mut self, itt: u32, part: Part) {
        self.tasks.insert(itt, part);
    }

    /// The task has an outcome.
    pub(super) fn take(&mut self, itt: u32) -> Option<Part> {
        self.tasks.remove(&itt)
    }

    /// The part is sent again, before others.
    pub(super) fn repeat(&mut self, part: Part) {
        self.again.push_front(part);
    }

    /// The connection has ended with these tasks, in order: their parts are sent again.
    pub(super) fn requeue(&mut self, tasks: impl DoubleEndedIterator<Item = u32>) {
        for itt in tasks.rev() {
            if let Some(part) = self.tasks.remove(&itt) {
                self.again.push_front(part);
            }
        }
    }

    /// The part is complete. The operation has until `deadline` for the next one.
    pub(super) fn done(&mut self, part: &Part, deadline: Instant) {
        if let Some(operation) = self.table.get_mut(part.operation) {
            operation.deadline = deadline;
        }
        self.end_part(part.operation);
    }

    /// The part failed, and so does its operation, when the target has no part of it any more.
    pub(super) fn failed(&mut self, part: &Part, error: Error) {
        self.set_failed(part.operation, error);
        self.end_part(part.operation);
    }

    fn set_failed(&mut self, key: usize, error: Error) {
        self.undivided.retain(|k| *k != key);
        if let Some(operation) = self.table.get_mut(key) {
            operation.failed.get_or_insert(error);
        }
    }

    /// A part has ended; completes the operation if it was the last.
    fn end_part(&mut self, key: usize) {
        if let Some(operation) = self.table.get_mut(key) {
            operation.parts = operation.parts.saturating_sub(1);
        }
        self.complete(key);
    }

    /// Completes the operation if nothing is left of it.
    fn complete(&mut self, key: usize) {
        let Some(operation) = self.table.get(key) else { return };
        let rest = operation.failed.is_none() && operation.divided < operation.length;
        if operation.parts > 0 || rest {
            return;
        }
        let operation = self.table.remove(key);
        let result = match (operation.failed, operation.work) {
            (Some(error), _) => Err(error),
            (None, Work::Read(_, pieces) | Work::Query(.., pieces)) => Ok(pieces.into_buffer()),
            (None, _) => Ok(None),
        };
        operation.reply.complete(result);
    }

    /// The earliest deadline.
    pub(super) fn earliest(&self) -> Option<Instant> {
        self.table.iter().map(|(_, o)| o.deadline).min()
    }

    /// Operations whose deadline has passed, and whether the target has parts of them.
    pub(super) fn expired(&self, now: Instant) -> (Vec<usize>, bool) {
        let expired = self.table.iter().filter(|(_, o)| o.deadline <= now);
        let keys: Vec<_> = expired.map(|(key, _)| key).collect();
        let busy = self.tasks.values().any(|part| keys.contains(&part.operation));
        (keys, busy)
    }

    /// Ends an operation of which the target has no parts.
    pub(super) fn abandon(&mut self, key: usize, error: Error) {
        self.set_failed(key, error);
        let before = self.again.len();
        self.again.retain(|part| part.operation != key);
        let parts = before - self.again.len();
        if let Some(operation) = self.table.get_mut(key) {
            operation.parts = operation.parts.saturating_sub(parts);
        }
        self.complete(key);
    }

    /// All operations.
    pub(super) fn keys(&self) -> Vec<usize> {
        self.table.iter().map(|(key, _)| key).collect()
    }
}

impl TaskData for Operations {
    fn memory(&mut self, itt: u32, offset: usize, length: usize) -> Option<&mut [u8]> {
        let part = self.tasks.get(&itt).filter(|part| offset + length <= part.length as usize)?;
        match &mut self.table.get_mut(part.operation)?.work {
            Work::Read(_, pieces) | Work::Query(.., pieces) => pieces.get_mut(part.offset + offset, length),
            _ => None,
        }
    }

    fn take_back(&mut self, itt: u32, memory: Option<Memory>) -> bool {
        let part = self.tasks.get(&itt).copied();
        part.is_none_or(|part| self.restore(&part, memory))
    }

    fn views(&self, itt: u32, offset: usize, length: usize) -> Views {
        let part = self.tasks.get(&itt).filter(|part| offset + length <= part.length as usize);
        let found = part.and_then(|part| Some((part, self.table.get(part.operation)?)));
        match found {
            Some((part, Operation { work: Work::Write(_, data) | Work::Change(_, _, data), .. })) => {
                data.slice(part.offset + offset, length)
            }
            _ => Views::new(),
        }
    }
}
