//! Tagged messages: RDMA Writes of the peer, and responses to our RDMA Reads.

use millrace_rdma::stag::AccessError;

use super::{Ends, Rx};
use crate::{
    fault::Fault,
    wire::{ddp::Tagged, fpdu, rdmap::Opcode, terminate::ErrorCode},
};

/// A tagged FPDU that is not complete.
#[derive(Debug, Clone, Copy)]
pub(super) struct OpenFpdu {
    pub(super) header: Tagged,
    /// Bytes of payload.
    pub(super) len: usize,
    /// Of which this many are in their region.
    pub(super) placed: usize,
}

impl OpenFpdu {
    /// Bytes of payload still to come.
    pub(super) const fn missing(&self) -> usize {
        self.len - self.placed
    }

    /// Padding and CRC.
    pub(super) const fn trailer(&self) -> usize {
        fpdu::trailer_bytes(Tagged::BYTES + self.len)
    }

    /// The header that the next segment of the message has, but for its `last`.
    pub(super) const fn next(&self) -> Tagged {
        Tagged { offset: self.header.offset.wrapping_add(self.len as u64), ..self.header }
    }
}

impl Rx {
    /// The header of a tagged FPDU with `len` bytes of payload is at the start of the stash.
    pub(super) fn open_tagged(
        &mut self,
        ends: &mut Ends<'_>,
        header: Tagged,
        len: usize,
    ) -> Result<(), Fault> {
        self.check_tagged(ends, header, len)?;
        let head = fpdu::LENGTH_BYTES + Tagged::BYTES;
        if let Some(crc) = self.crc.as_mut() {
            crc.reset();
            crc.update(&self.stash.bytes()[..head]);
        }
        self.stash.consume(head);
        self.direct.note(&header, len);
        self.open = Some(OpenFpdu { header, len, placed: 0 });
        Ok(())
    }

    /// Checks that the segment continues the open message, if there is one, and may be placed.
    fn check_tagged(&self, ends: &Ends<'_>, header: Tagged, len: usize) -> Result<(), Fault> {
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
                ends.domain
                    .lock()
                    .check_write(header.tag, header.offset, len)
                    .map_err(|d| Fault::write_target(d, &header, len))
            };
        }
        let read = ends.reads.sent.front().ok_or_else(|| Fault::tagged(ErrorCode::TAG, &header, len))?;
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
    pub(super) fn continue_tagged(&mut self, ends: &mut Ends<'_>, mut open: OpenFpdu) -> Result<bool, Fault> {
        let n = open.missing().min(self.stash.bytes().len());
        if n > 0 {
            let bytes = &self.stash.bytes()[..n];
            place(ends, &open, bytes)?;
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
        self.complete(ends, &open);
        Ok(true)
    }

    /// A tagged FPDU is placed and checked.
    pub(super) fn complete(&mut self, ends: &mut Ends<'_>, open: &OpenFpdu) {
        self.note_fpdu(ends);
        ends.counters.tagged_bytes_in += open.len as u64;
        self.message = (!open.header.last).then(|| open.next());
        if open.header.opcode == Opcode::Write {
            ends.counters.peer_writes += u64::from(open.header.last);
            return;
        }
        if let Some(read) = ends.reads.sent.front_mut() {
            read.placed += open.len;
        }
        if open.header.last
            && let Some((tag, completion)) = ends.reads.finish_first()
        {
            self.direct.response_ended();
            ends.domain.release_sink(tag);
            ends.out.push(completion);
        }
    }
}

/// Copies payload of the open FPDU to its place.
fn place(ends: &mut Ends<'_>, open: &OpenFpdu, bytes: &[u8]) -> Result<(), Fault> {
    if open.header.opcode == Opcode::Write {
        let offset = open.header.offset.wrapping_add(open.placed as u64);
        let mut table = ends.domain.lock();
        // Looked up again: the owner may have revoked the region since the header came.
        let placed = match table.place(open.header.tag, offset, bytes.len()) {
            Ok((memory, _)) => {
                memory[..bytes.len()].copy_from_slice(bytes);
                Ok(())
            }
            Err(AccessError::Released) => table.write_released(open.header.tag, offset, bytes),
            Err(denied) => Err(denied),
        };
        placed.map_err(|d| Fault::write_target(d, &open.header, open.len))?;
    } else if let Some(read) = ends.reads.sent.front_mut() {
        read.copy_in(read.placed + open.placed, bytes);
    }
    Ok(())
}
