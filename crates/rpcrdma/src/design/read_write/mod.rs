//! The Read-Write design (RFC 8166; TR06, Designing 2007): only the requester exposes memory, and only the
//! responder issues RDMA Reads and RDMA Writes. Results are written to the call's Write chunk or Reply chunk
//! before the Send of the reply, without waiting in between.

mod plan;
mod returned;

use std::task::{Context, Poll};

use millrace_buffer::{Buffer, View};
use millrace_oncrpc::{Message, ReplySpec};
use millrace_rdma::{ConnectionError, QueuePair, WorkId};
use millrace_xdr::pad;

use super::{
    Acknowledged, Limits, Plan, Pulled, ReceivedReply, ReplyChunks, ReplyOutcome, ReplyTo, ReplyTooLong,
    RequesterContext, RequesterDesign, ResponderDesign,
};
use crate::{
    counters::add,
    header::{Body, Header, MIN_CALL, WRITE_CHUNK},
    private_data::Thresholds,
};

/// Both ends of the design, which have no state between calls.
pub(super) struct ReadWrite;

/// Adds a Write chunk for a payload, and a Reply chunk for a message, that might not fit inline.
pub(super) fn plan_reply_chunks(spec: &ReplySpec, thresholds: &Thresholds) -> ReplyChunks {
    let payload = spec.payload.as_ref().map_or(0, |b| b.len());
    let whole = MIN_CALL + spec.max_head + payload + pad(payload);
    let write = payload > 0 && whole > thresholds.receive;
    // RFC 8166 section 3.5.6: a Reply chunk if the largest reply might not fit inline.
    let rest = MIN_CALL + spec.max_head + if write { WRITE_CHUNK } else { payload + pad(payload) };
    let reply = (rest > thresholds.receive).then(|| spec.max_head.next_multiple_of(4));
    ReplyChunks { write, reply }
}

fn process_reply(reply: ReceivedReply, with: &RequesterContext) -> Result<Message, &'static str> {
    let ReceivedReply { lists, inline, memory, .. } = reply;
    let placed = returned::check(&lists, inline.is_none(), memory.write_chunk(), memory.reply_chunk());
    let (payload, long) = placed.as_ref().map_or((0, 0), |p| (p.payload, p.long.unwrap_or(0)));
    let recovered = memory.unmap(&*with.registrar, &with.spare, payload, long);
    let placed = placed?;
    let stats = &with.stats;
    add(&stats.long_replies, usize::from(placed.long.is_some()));
    add(&stats.inline_bytes_in, inline.as_ref().map_or(0, |v| v.len()));
    add(&stats.placed_bytes, placed.payload + placed.long.unwrap_or(0));
    returned::assemble(placed, inline, recovered)
}

impl RequesterDesign for ReadWrite {
    fn accepts(&self, body: &Body) -> bool {
        matches!(body, Body::Msg(_) | Body::NoMsg(_) | Body::Error(_))
    }

    fn take(
        &mut self,
        reply: ReceivedReply,
        with: &RequesterContext,
        _: &mut dyn QueuePair,
    ) -> Result<ReplyOutcome, ConnectionError> {
        Ok(ReplyOutcome::Message(process_reply(reply, with)))
    }

    /// The requester posts no RDMA Reads.
    fn completed(
        &mut self,
        _: WorkId,
        _: Vec<Buffer>,
        _: &RequesterContext,
        _: &mut dyn QueuePair,
    ) -> Result<Option<Pulled>, ConnectionError> {
        Ok(None)
    }

    fn discard(
        &mut self,
        _: &Header,
        _: &RequesterContext,
        _: &mut dyn QueuePair,
    ) -> Result<(), ConnectionError> {
        Ok(())
    }

    fn end(&mut self) {}
}

impl ResponderDesign for ReadWrite {
    fn admit(&self, body: &Body) -> Result<(), &'static str> {
        match body {
            Body::PaddedMsg(..) => Err("RDMA_MSGP, which RFC 8166 has removed"),
            _ => Ok(()),
        }
    }

    fn max_credits(&self, _: u64) -> u32 {
        u32::MAX
    }

    fn plan(
        &mut self,
        to: &ReplyTo,
        credits: u32,
        message: Message,
        limits: &Limits,
        zeros: &View,
    ) -> Result<Plan, ReplyTooLong> {
        plan::plan(to, credits, message, limits, zeros)
    }

    fn unacknowledged(&self) -> usize {
        0
    }

    fn done(&mut self, _: u32) -> Option<Acknowledged> {
        None
    }

    fn poll_overdue(&mut self, _: &mut Context<'_>) -> Poll<ConnectionError> {
        Poll::Pending
    }
}
