//! The arguments of a COMPOUND, decoded operation by operation.

use millrace_nfs::v4::{Operation, next_operation};
use millrace_oncrpc::{CallContext, Operations};
use millrace_xdr::{Arena, Decode, Decoder, Message, Payload, View, XdrError};
use smallvec::SmallVec;

/// Maximum bytes after the data of a WRITE that are copied, so that the memory of the call can be passed to the
/// file system. Clients request attributes there.
const MAX_COPIED: usize = 2048;

/// Maximum bytes from SETXATTR on that are copied if they are in several buffers.
const MAX_JOINED: usize = millrace_vfs::XATTR_SIZE_MAX + 4096;

/// The received message, and the position of the next operation.
pub(super) struct Arguments {
    message: Message,
    /// The operations that the plan of the call has found in the message.
    planned: Operations,
    /// Number of operations that were taken.
    taken: usize,
    at: usize,
}

impl Arguments {
    /// The arguments of `call`, at its first operation.
    pub(super) fn new(call: CallContext) -> Self {
        let planned = call.plan.operations;
        Self { message: call.into_message(), planned, taken: 0, at: planned.first_at() }
    }

    /// Number of operations.
    pub(super) fn count(&self) -> u32 {
        self.planned.count
    }

    /// Whether the message is in several buffers. Only data by reference continues in the next one.
    pub(super) fn is_split(&self) -> bool {
        self.message.head.iter().count() > 1
    }

    fn decoder(&self) -> Result<Decoder<'_>, XdrError> {
        let mut d = Decoder::new(&self.message);
        d.raw(self.at)?;
        Ok(d)
    }

    /// The first of the next `left` operations that is not SAVEFH; it stays the next one.
    pub(super) fn following(&self, left: u32) -> Option<Operation> {
        let mut d = self.decoder().ok()?;
        let operations = (0..left).map_while(|_| next_operation(&mut d).ok());
        operations.into_iter().find(|operation| *operation != Operation::Savefh)
    }

    /// The operations after the taken ones, if the plan of the call has them all.
    pub(super) fn planned(&self) -> Option<SmallVec<[Operation; 8]>> {
        let numbers = (self.taken..self.count() as usize).map(|index| self.planned.get(index));
        numbers.map(|number| Operation::try_from(number?).ok()).collect()
    }

    /// Takes the number of the next operation, if it is one of the minor version.
    pub(super) fn next(&mut self) -> Option<Operation> {
        let operation = match self.planned.get(self.taken) {
            Some(number) => {
                self.at += 4;
                Operation::try_from(number).ok()?
            }
            None => {
                let mut d = self.decoder().ok()?;
                let operation = next_operation(&mut d).ok()?;
                self.at = d.position();
                operation
            }
        };
        self.taken += 1;
        Some(operation).filter(|operation| operation.minor_version() <= self.planned.minor_version)
    }

    /// Replaces the message by what follows the position `at`.
    fn replace(&mut self, rest: View, at: usize) {
        let payloads = std::mem::take(&mut self.message.payloads).into_iter();
        let payloads = payloads.filter(|p| p.position > at);
        let payloads = payloads.map(|p| Payload { position: p.position - at, ..p }).collect();
        self.message = Message { payloads, ..Message::from_view(rest) };
        self.at = 0;
    }

    /// Joins the rest of a message in several buffers, so that a value of up to 64 KiB is in one.
    ///
    /// # Errors
    /// [`XdrError::Short`].
    pub(super) fn join(&mut self, arena: &Arena) -> Result<(), XdrError> {
        if self.is_split()
            && let Some(rest) = copy_rest(&self.decoder()?, MAX_JOINED, arena)
        {
            self.replace(rest, self.at);
        }
        Ok(())
    }

    /// Decodes the next value.
    ///
    /// # Errors
    /// Those of the type.
    pub(super) fn get<'a, T: Decode<'a>>(&'a mut self) -> Result<T, XdrError> {
        let mut d = Decoder::new(&self.message);
        d.raw(self.at)?;
        let value = d.get()?;
        self.at = d.position();
        Ok(value)
    }

    /// Decodes the next value, which has data by reference, and drops the message's own references to the data,
    /// so that the file system can be its only owner.
    ///
    /// # Errors
    /// Those of the type; [`XdrError::TooLong`] if more follows than is copied, and not in one buffer.
    pub(super) fn take<T: for<'a> Decode<'a>>(&mut self, arena: &Arena) -> Result<T, XdrError> {
        let mut d = self.decoder()?;
        let value = d.get()?;
        let at = d.position();
        let rest: usize = d.rest().map(<[u8]>::len).sum();
        match copy_rest(&d, MAX_COPIED, arena) {
            Some(copy) => self.replace(copy, at),
            None if self.is_split() => return Err(XdrError::TooLong { at, len: rest, max: MAX_COPIED }),
            None => self.at = at,
        }
        Ok(value)
    }
}

/// A copy of what `d` has not decoded, unless there are more than `most` bytes or there is no memory.
fn copy_rest(d: &Decoder<'_>, most: usize, arena: &Arena) -> Option<View> {
    let rest = d.rest().map(<[u8]>::len).sum();
    if rest > most {
        return None;
    }
    let mut copy = arena.alloc(rest).ok()?;
    let mut filled = 0;
    for part in d.rest() {
        copy[filled..filled + part.len()].copy_from_slice(part);
        filled += part.len();
    }
    Some(copy.freeze())
}
