//! Untagged messages: Send, Read Request, Terminate. They are processed when they are complete in the stash.

use millrace_rdma::{Completion, ConnectionError, SteeringTag, stag::InvalidateError};

use super::{Rx, RxContext};
use crate::{
    fault::Fault,
    receives::NoReceive,
    wire::{
        crc::Crc,
        ddp::Untagged,
        fpdu,
        rdmap::{Opcode, ReadRequestBody},
        terminate::{ErrorCode, Terminate},
    },
};

/// A Send with outstanding segments.
#[derive(Debug, Clone, Copy)]
pub(super) struct OpenSend {
    /// Header of the first segment.
    first: Untagged,
    /// Bytes in the receive buffer.
    filled: usize,
}

/// Whether the CRC of an FPDU with a ULPDU of `length` bytes is correct.
fn crc_ok(crc: &mut Crc, fpdu: &[u8], length: usize) -> bool {
    let covered = fpdu::LENGTH_BYTES + length + fpdu::pad_bytes(length);
    crc.reset();
    crc.update(&fpdu[..covered]);
    fpdu.get(covered..) == Some(&crc.wire())
}

impl Rx {
    /// Processes the untagged FPDU at the start of the stash. It is completely received and has a ULPDU of
    /// `length` bytes. It remains there if it is a Send that waits for memory.
    pub(super) fn take_untagged(&mut self, context: &mut RxContext<'_>, length: usize) -> Result<(), Fault> {
        let total = fpdu::total_bytes(length);
        if let Some(crc) = self.crc.as_mut()
            && !crc_ok(crc, &self.stash.bytes()[..total], length)
        {
            return Err(Fault::peer(ErrorCode::CRC, "untagged FPDU"));
        }
        self.note_fpdu(context);
        self.direct.fpdu_started(false);
        let ulpdu = &self.stash.bytes()[fpdu::LENGTH_BYTES..fpdu::LENGTH_BYTES + length];
        let Some(header) = Untagged::decode(ulpdu) else {
            return Err(Fault::peer(ErrorCode::FPDU, format_args!("ULPDU of {length} bytes")));
        };
        match header.opcode {
            Opcode::Terminate => return Err(self.terminated(&header, &ulpdu[Untagged::BYTES..])),
            Opcode::ReadRequest => self.read_request(context, header, length)?,
            _ => self.send_segment(context, header, length)?,
        }
        if !self.waits_for_memory {
            self.stash.consume(total);
        }
        Ok(())
    }

    fn terminated(&self, header: &Untagged, payload: &[u8]) -> Fault {
        let well_formed = header.queue == Opcode::Terminate.queue() && header.msn == 1 && header.offset == 0;
        Fault::without_terminate(match Terminate::decode_error(payload) {
            Some(code) if well_formed => ConnectionError::Terminated(code.to_string()),
            _ => ConnectionError::PeerMisbehaved(format!("malformed Terminate: {header}")),
        })
    }

    fn read_request(
        &mut self,
        context: &mut RxContext<'_>,
        header: Untagged,
        length: usize,
    ) -> Result<(), Fault> {
        let body = &self.stash.bytes()[fpdu::LENGTH_BYTES + Untagged::BYTES..fpdu::LENGTH_BYTES + length];
        let fault = |code| Fault::untagged(code, &header, body.len());
        if header.queue != Opcode::ReadRequest.queue() {
            return Err(fault(ErrorCode::QUEUE));
        }
        if header.msn != self.read_msn {
            return Err(fault(ErrorCode::MSN));
        }
        if header.offset != 0 {
            return Err(fault(ErrorCode::MESSAGE_OFFSET));
        }
        if self.send.is_some() {
            return Err(fault(ErrorCode::OPCODE)); // Messages of one stream are not interleaved.
        }
        let Some(request) = ReadRequestBody::decode(body).filter(|_| header.last) else {
            return Err(fault(ErrorCode::MALFORMED));
        };
        if context.tx.responses() >= self.ird {
            return Err(fault(ErrorCode::NO_BUFFER));
        }
        // RFC 5040 section 5.4.2: the tag is not checked if no bytes are read.
        if request.size > 0 {
            let table = context.table.lock();
            table
                .source(request.source_tag, request.source_offset, request.size as usize)
                .map_err(|denied| Fault::read_source(denied, &header, body.to_vec()))?;
        }
        self.read_msn = self.read_msn.wrapping_add(1);
        context.tx.respond(header, request);
        Ok(())
    }

    fn send_segment(
        &mut self,
        context: &mut RxContext<'_>,
        header: Untagged,
        length: usize,
    ) -> Result<(), Fault> {
        let payload = &self.stash.bytes()[fpdu::LENGTH_BYTES + Untagged::BYTES..fpdu::LENGTH_BYTES + length];
        let fault = |code| Fault::untagged(code, &header, payload.len());
        if header.queue != header.opcode.queue() {
            return Err(fault(ErrorCode::QUEUE));
        }
        if header.msn != self.send_msn {
            return Err(fault(ErrorCode::MSN));
        }
        let open = self.send.unwrap_or(OpenSend { first: header, filled: 0 });
        if header.offset as usize != open.filled {
            return Err(fault(ErrorCode::MESSAGE_OFFSET));
        }
        if header.opcode != open.first.opcode || header.invalidate != open.first.invalidate {
            return Err(fault(ErrorCode::OPCODE));
        }
        if std::mem::take(&mut self.rtr_send) && header.last && payload.is_empty() && open.filled == 0 {
            self.send_msn = self.send_msn.wrapping_add(1);
            return Ok(()); // RFC 6581 section 8: an RTR is not delivered to the upper layer.
        }
        let buffer = match context.receives.first() {
            Ok(buffer) => buffer,
            Err(NoReceive::Posted) => return Err(fault(ErrorCode::NO_BUFFER)),
            Err(NoReceive::Memory) => {
                self.waits_for_memory = true;
                return Ok(());
            }
        };
        let end = open.filled + payload.len();
        let place = buffer.get_mut(open.filled..end).ok_or_else(|| fault(ErrorCode::TOO_LONG))?;
        place.copy_from_slice(payload);
        if header.last {
            self.send = None;
            self.send_msn = self.send_msn.wrapping_add(1);
            deliver(context, &header, end)
        } else {
            self.send = Some(OpenSend { filled: end, ..open });
            Ok(())
        }
    }
}

/// Completes the first receive with a Send of `len` bytes.
fn deliver(context: &mut RxContext<'_>, header: &Untagged, len: usize) -> Result<(), Fault> {
    let mut invalidated = None;
    if header.opcode.invalidates() {
        // The peer may invalidate any tag that it was given, whether or not the upper layers negotiated
        // remote invalidation, as Linux servers do.
        context.table.lock().invalidate(header.invalidate).map_err(|e| {
            let code = match e {
                InvalidateError::Unknown => ErrorCode::INVALIDATE,
                InvalidateError::Protected => ErrorCode::INVALIDATE_PROTECTED,
            };
            Fault::untagged(code, header, len)
        })?;
        invalidated = Some(SteeringTag(header.invalidate));
    }
    if let Some(mut buffer) = context.receives.take_first() {
        buffer.set_len(len);
        context.counters.receives += 1;
        context.out.push(Completion::Received { buffer, invalidated });
    }
    Ok(())
}
