//! Exposes results, and revokes them at RDMA_DONE.

use std::{
    sync::Arc,
    task::{Context, Poll},
};

use futures::FutureExt;
use millrace_buffer::{Arena, View, Views};
use millrace_oncrpc::{Message, Stage, Stages};
use millrace_runtime::{Instant, RuntimeRef, Sleep};
use smallvec::SmallVec;

use millrace_rdma::{
    Access, ConnectionError, DomainRef, Memory,
    registration::{RegisteredMemory, Registrar, Registration, Strategy},
};
use millrace_rpcrdma::{Body, Header, Lists, MIN_CALL, ReadSegment, chunks::positions};

use super::ReplyTo;
use crate::{Counts, ExposureLimits};

/// Maximum number of segments of one reply: the maximum of a call, which every peer accepts.
const MAX_SEGMENTS: usize = 16;
const ALL_PHYSICAL: &str = "registration all-physical would permit every client to read all memory of the server in the \
     Read-Read design: use another strategy";

/// The connection of an [`Exposer`].
pub(super) struct Exposing {
    /// The protection domain.
    pub(super) domain: DomainRef,
    /// The registration strategy.
    pub(super) registration: Arc<Registration>,
    /// Maximum number of pieces of one region, at least 1.
    pub(super) region_pieces: usize,
    /// Maximum number of bytes of one segment.
    pub(super) segment: usize,
    /// Maximum number of bytes that one reply exposes.
    pub(super) max_reply: u64,
    /// Bytes of the largest Send.
    pub(super) inline: usize,
    pub(super) arena: Arena,
    pub(super) rt: RuntimeRef,
    pub(super) limits: ExposureLimits,
    pub(super) counts: Arc<Counts>,
    /// Supplies XDR padding.
    pub(super) zeros: View,
}

/// A reply to be posted: a Send of the header and `inline`.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) header: Header,
    pub(super) inline: Views,
    /// Whether `inline` is a head without payloads.
    pub(super) only_head: bool,
    /// Whether the reply exposes memory until RDMA_DONE.
    pub(super) awaits_done: bool,
}

/// The reply fits neither inline nor in the limits of exposed memory. The answer is ERR_CHUNK.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ReplyTooLong;

/// A reply that the requester acknowledged.
pub(super) struct Acknowledged {
    /// Stages of the call.
    pub(super) stages: Stages,
    /// Bytes that were charged to the account for the reply.
    pub(super) charge: usize,
}

/// The unacknowledged replies of a connection.
pub(super) struct Exposer {
    context: Exposing,
    registrar: Box<dyn Registrar>,
    /// Sorted by deadline.
    open: Vec<OpenReply>,
    regions: usize,
    bytes: usize,
    /// Expires at the deadline of the oldest reply when the timer was set.
    timer: Option<Sleep>,
}

/// A reply whose memory the requester may read.
struct OpenReply {
    xid: u32,
    deadline: Instant,
    exposed: Exposed,
}

/// Exposed memory of a reply. Dropping it revokes the memory.
#[derive(Default)]
struct Exposed {
    regions: SmallVec<[RegisteredMemory; 2]>,
    bytes: usize,
    stages: Stages,
    /// Bytes that the reply is charged to the account.
    charge: usize,
}

impl Exposer {
    /// # Errors
    /// The registration strategy would expose more than replies, the provider does not support it, or its
    /// segments are too small: a reply would have more segments than requesters accept.
    pub(super) fn new(context: Exposing) -> Result<Self, ConnectionError> {
        if context.segment < usize::MAX
            && context.max_reply / context.segment as u64 + 2 > MAX_SEGMENTS as u64
        {
            return Err(ConnectionError::Local(format!(
                "a reply of {} bytes has more than {MAX_SEGMENTS} segments on this adapter, which cuts memory every {} \
                 bytes: the Read-Read design cannot name them; use read-write, or smaller transfers",
                context.max_reply, context.segment
            )));
        }
        let (domain, arena, rt) =
            (Arc::clone(&context.domain), context.arena.clone(), Arc::clone(&context.rt));
        let registrar = match context.registration.settings().strategy {
            Strategy::AllPhysical => return Err(ConnectionError::Local(ALL_PHYSICAL.into())),
            // Cached buffers would stay exposed.
            Strategy::Cache => context.registration.attach_as(Strategy::Dynamic, domain, arena, rt)?,
            other => context.registration.attach_as(other, domain, arena, rt)?,
        };
        Ok(Self { context, registrar, open: Vec::new(), regions: 0, bytes: 0, timer: None })
    }

    /// Exposes `data` as the Read chunk at `position`, with one segment per region. A payload with too many
    /// pieces is copied into one, so that the number of segments leaves one for a head.
    fn expose(
        &self,
        position: usize,
        data: Views,
        lists: &mut Lists,
        exposed: &mut Exposed,
    ) -> Result<(), ReplyTooLong> {
        let position = u32::try_from(position).map_err(|_| ReplyTooLong)?;
        let pieces = self.context.region_pieces;
        let data =
            if data.iter().count().div_ceil(pieces) < MAX_SEGMENTS { data } else { self.copied(&data)? };
        let mut views = data.iter().cloned().peekable();
        while views.peek().is_some() {
            let part: Views = views.by_ref().take(pieces).collect();
            exposed.bytes += part.len();
            let (regions, bytes) = (self.regions + exposed.regions.len() + 1, self.bytes + exposed.bytes);
            if regions > self.context.limits.regions || bytes > self.context.limits.bytes {
                self.context.counts.exposures_refused.add(1);
                return Err(ReplyTooLong);
            }
            exposed.stages.end(Stage::Reply);
            let mapped = self.registrar.map(Memory::Shared(part), Access::RemoteRead).map_err(|e| {
                tracing::debug!("a reply is refused: {e}");
                ReplyTooLong
            })?;
            exposed.stages.end(Stage::Registration);
            lists.reads.extend(mapped.segments().iter().map(|&segment| ReadSegment { position, segment }));
            exposed.regions.push(mapped);
        }
        Ok(())
    }

    /// Copies the bytes into one buffer (a counted copy).
    fn copied(&self, data: &Views) -> Result<Views, ReplyTooLong> {
        let mut b = self.context.arena.alloc(data.len()).map_err(|_| ReplyTooLong)?;
        data.copy_to(&mut b);
        Ok(b.freeze().into())
    }

    fn track(&mut self, xid: u32, exposed: Exposed) {
        self.regions += exposed.regions.len();
        self.bytes += exposed.bytes;
        let deadline = self.context.rt.now() + self.context.limits.done_timeout;
        self.open.push(OpenReply { xid, deadline, exposed });
    }
}

impl Exposer {
    /// Maximum number of calls in progress whose replies, each with up to `max_reply` bytes in chunks, are
    /// within the limits.
    pub(super) fn max_credits(&self, max_reply: u64) -> u32 {
        let limits = &self.context.limits;
        let regions = if self.context.region_pieces == usize::MAX { 2 } else { MAX_SEGMENTS };
        let replies = (limits.regions / regions) as u64;
        let replies = replies.min(limits.bytes as u64 / max_reply.max(1));
        u32::try_from(replies).unwrap_or(u32::MAX)
    }

    /// Plans the reply `message` to the call `to`, and exposes what is too long for a Send.
    ///
    /// # Errors
    /// The reply fits neither inline nor in the limits.
    pub(super) fn plan(
        &mut self,
        to: &ReplyTo,
        credits: u32,
        mut message: Message,
    ) -> Result<Plan, ReplyTooLong> {
        let inline_size = self.context.inline;
        message.payloads.retain(|p| !p.data.is_empty()); // Empty payloads need no Read chunk.
        let plan = |body, inline, only_head| Plan {
            header: Header::new(to.xid, credits, body),
            inline,
            only_head,
            awaits_done: false,
        };
        if MIN_CALL + message.stream_len() <= inline_size {
            return Ok(plan(
                Body::Msg(Lists::default()),
                message.gather(&self.context.zeros),
                message.payloads.is_empty(),
            ));
        }
        // RDMA_DONE identifies its reply by XID only.
        if self.open.iter().any(|o| o.xid == to.xid) {
            return Err(ReplyTooLong);
        }
        let mut lists = Lists::default();
        let mut exposed = Exposed { stages: to.stages.clone(), charge: to.charge, ..Exposed::default() };
        for (position, p) in positions(&message).zip(&message.payloads) {
            self.expose(position, p.data.clone(), &mut lists, &mut exposed)?;
        }
        let reduced = Header::new(to.xid, credits, Body::Msg(lists.clone()));
        let plan = if reduced.encoded_len() + message.head.len() <= inline_size {
            plan(Body::Msg(lists), message.head, true)
        } else {
            // RFC 5666 section 3.6: a long reply is a Position-Zero Read chunk.
            self.expose(0, message.head, &mut lists, &mut exposed)?;
            plan(Body::NoMsg(lists), Views::new(), false)
        };
        if plan.header.encoded_len() > inline_size {
            return Err(ReplyTooLong);
        }
        self.track(to.xid, exposed);
        Ok(Plan { awaits_done: true, ..plan })
    }

    /// Number of replies that await RDMA_DONE. The responder posts one additional receive for each.
    pub(super) fn unacknowledged(&self) -> usize {
        self.open.len()
    }

    /// Processes an RDMA_DONE: revokes the exposed memory of the reply with this XID. `None` if no such reply
    /// awaits it.
    pub(super) fn done(&mut self, xid: u32) -> Option<Acknowledged> {
        let at = self.open.iter().position(|o| o.xid == xid)?;
        let OpenReply { exposed: Exposed { regions, bytes, stages, charge }, .. } = self.open.remove(at);
        stages.end(Stage::Completion);
        self.regions -= regions.len();
        self.bytes -= bytes;
        for mapped in regions {
            drop(self.registrar.unmap(mapped, 0));
        }
        stages.end(Stage::Deregistration);
        self.context.counts.done_received.add(1);
        Some(Acknowledged { stages, charge })
    }

    /// Ready if the time limit of an unacknowledged reply has expired.
    pub(super) fn poll_overdue(&mut self, cx: &mut Context<'_>) -> Poll<ConnectionError> {
        while let Some(oldest) = self.open.first() {
            let rt = &self.context.rt;
            let timer = self.timer.get_or_insert_with(|| rt.sleep_until(oldest.deadline));
            std::task::ready!(timer.poll_unpin(cx));
            self.timer = None;
            if oldest.deadline <= rt.now() {
                let limit = self.context.limits.done_timeout;
                let what = format!("it sent no RDMA_DONE for {limit:?}: {} bytes were held", self.bytes);
                return Poll::Ready(ConnectionError::PeerMisbehaved(what));
            }
        }
        Poll::Pending
    }
}
