//! Tagged messages: RDMA Writes of the peer, and responses to RDMA Reads of this end.

use millrace_rdma::stag::AccessError;

use super::{Rx, RxContext};
use crate::{
    fault::Fault,
    wire::{ddp::Tagged, fpdu, rdmap::Opcode, terminate::ErrorCode},
};

/// A tagged FPDU that is incomplete.
#[derive(Debug, Clone, Copy)]
pub(super) struct OpenFpdu {
    pub(super) header: Tagged,
    /// Payload bytes.
    pub(super) len: usize,
    /// Payload bytes that are placed.
    pub(super) placed: usize,
}

impl OpenFpdu {
    /// Missing payload bytes.
    pub(super) const fn missing(&self) -> usize {
        self.len - self.placed
    }

    /// Length of padding and CRC in bytes.
    pub(super) const fn trailer(&self) -> usize {
        fpdu::trailer_bytes(Tagged::BYTES + self.len)
    }

    /// The header of the message's next segment, except for `last`.
    pub(super) const fn next(&self) -> Tagged {
        Tagged { offset: self.header.offset.wrapping_add(self.len as u64), ..self.header }
    }
}

impl Rx {
    /// Processes the header, at the start of the stash, of a tagged FPDU with `len` payload bytes.
    pub(super) fn open_tagged(
        &mut self,
        context: &mut RxContext<'_>,
        header: Tagged,
        len: usize,
    ) -> Result<(), Fault> {
        self.check_tagged(context, header, len)?;
        let head = fpdu::LENGTH_BYTES + Tagged::BYTES;
        if let Some(crc) = self.crc.as_mut() {
            crc.reset();
            crc.update(&self.stash.bytes()[..head]);
        }
        self.stash.consume(head);
        self.direct.unpredicted(&header, len);
        self.open = Some(OpenFpdu { header, len, placed: 0 });
        Ok(())
    }

    /// Checks that the segment continues the open message, if any, and may be placed.
    fn check_tagged(&self, context: &mut RxContext<'_>, header: Tagged, len: usize) -> Result<(), Fault> {
        if let Some(expected) = self.message {
            if header.opcode != expected.opcode || header.tag != expected.tag {
                return Err(Fault::tagged(ErrorCode::OPCODE, &header, len));
            }
            if header.offset != expected.offset {
                return Err(Fault::tagged(ErrorCode::BOUNDS, &header, len));
            }
        }
        if header.opcode == Opcode::Write {
            // RFC 5040 section 5.4.2: the tag of an empty Write is not checked.
            return if len == 0 {
                Ok(())
            } else {
                context
                    .table
                    .lock()
                    .check_write(header.tag, header.offset, len)
                    .map_err(|d| Fault::write_target(d, &header, len))
            };
        }
        let read = context.reads.sent.front().ok_or_else(|| Fault::tagged(ErrorCode::TAG, &header, len))?;
        if read.size > 0 && header.tag != read.tag {
            return Err(Fault::tagged(ErrorCode::TAG, &header, len));
        }
        let end = read.placed + len;
        let in_place = read.size == 0 || header.offset == read.placed as u64;
        if !in_place || end > read.size || (header.last && end < read.size) {
            return Err(Fault::tagged(ErrorCode::BOUNDS, &header, len));
        }
        Ok(())
    }

    /// Takes payload and trailer of the open FPDU from the stash; false if more bytes are needed.
    pub(super) fn continue_tagged(
        &mut self,
        context: &mut RxContext<'_>,
        mut open: OpenFpdu,
    ) -> Result<bool, Fault> {
        let n = open.missing().min(self.stash.bytes().len());
        if n > 0 {
            let bytes = &self.stash.bytes()[..n];
            place(context, &open, bytes)?;
            if let Some(crc) = self.crc.as_mut() {
                crc.update(bytes);
            }
            self.stash.consume(n);
            open.placed += n;
            self.open = Some(open);
        }
        let trailer = open.trailer();
        if open.missing() > 0 || self.stash.bytes().len() < trailer {
            return Ok(false);
        }
        if let Some(crc) = self.crc.as_mut() {
            let (pad, sum) = self.stash.bytes()[..trailer].split_at(trailer - fpdu::CRC_BYTES);
            crc.update(pad);
            if crc.wire() != sum {
                return Err(Fault::peer(ErrorCode::CRC, open.header));
            }
        }
        self.stash.consume(trailer);
        self.open = None;
        self.complete(context, &open);
        Ok(true)
    }

    /// Completes a tagged FPDU whose data is placed and whose CRC was checked.
    pub(super) fn complete(&mut self, context: &mut RxContext<'_>, open: &OpenFpdu) {
        self.note_fpdu(context);
        context.counters.tagged_bytes_in += open.len as u64;
        self.message = (!open.header.last).then(|| open.next());
        if open.header.opcode == Opcode::Write {
            context.counters.peer_writes += u64::from(open.header.last);
            return;
        }
        if let Some(read) = context.reads.sent.front_mut() {
            read.placed += open.len;
        }
        if open.header.last
            && let Some((tag, completion)) = context.reads.finish_first()
        {
            self.direct.response_ended();
            context.table.lock().release_sink(tag);
            context.out.push(completion);
        }
    }
}

/// Copies payload of the open FPDU to its region.
fn place(context: &mut RxContext<'_>, open: &OpenFpdu, bytes: &[u8]) -> Result<(), Fault> {
    if open.header.opcode == Opcode::Write {
        let offset = open.header.offset.wrapping_add(open.placed as u64);
        let table = context.table.lock();
        // Repeat the lookup: the owner may have revoked the region since the header arrived.
        let placed = match table.place(open.header.tag, offset, bytes.len()) {
            Ok((memory, _)) => {
                memory[..bytes.len()].copy_from_slice(bytes);
                Ok(())
            }
            Err(AccessError::Released) => table.write_released(open.header.tag, offset, bytes),
            Err(denied) => Err(denied),
        };
        placed.map_err(|d| Fault::write_target(d, &open.header, open.len))?;
    } else if let Some(read) = context.reads.sent.front_mut() {
        read.copy_in(read.placed + open.placed, bytes);
    }
    Ok(())
}
