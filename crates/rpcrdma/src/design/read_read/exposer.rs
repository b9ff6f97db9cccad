//! The responder's part: exposes results, and revokes them at RDMA_DONE.

use std::{
    sync::Arc,
    task::{Context, Poll},
};

use futures::FutureExt;
use millrace_buffer::{View, Views};
use millrace_oncrpc::{Message, Stage, Stages};
use millrace_runtime::{Instant, Sleep};
use smallvec::SmallVec;

use crate::{
    chunks::positions,
    counters::add,
    design::{Acknowledged, Limits, Plan, ReplyTo, ReplyTooLong, ResponderContext, ResponderDesign},
    header::{Body, Header, Lists, MIN_CALL, ReadSegment},
    private_data::Design,
};
use millrace_rdma::{
    Access, ConnectionError, Memory,
    registration::{RegisteredMemory, Registrar, Strategy},
};

/// Maximum number of segments of one reply: the maximum of a call, which every peer accepts.
const MAX_SEGMENTS: usize = 16;
const ALL_PHYSICAL: &str = "registration all-physical would permit every client to read all memory of the server in the \
     Read-Read design: use another strategy";

/// The responder's end of the design: unacknowledged replies.
pub(in crate::design) struct Exposer {
    context: ResponderContext,
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
    pub(in crate::design) fn new(context: ResponderContext) -> Result<Self, ConnectionError> {
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
                add(&self.context.stats.exposures_refused, 1);
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

impl ResponderDesign for Exposer {
    fn admit(&self, body: &Body) -> Result<(), &'static str> {
        if !self.context.theirs.is_some_and(|p| p.design == Design::ReadRead) {
            return Err("the requester has not agreed to the Read-Read design");
        }
        match body {
            Body::PaddedMsg(_, l) if !l.is_empty() => Err("RDMA_MSGP with chunks"),
            Body::Msg(l) | Body::NoMsg(l) if !l.writes.is_empty() || l.reply.is_some() => {
                Err("chunks for results, which the Read-Read design does not have")
            }
            _ => Ok(()),
        }
    }

    fn max_credits(&self, max_reply: u64) -> u32 {
        let limits = &self.context.limits;
        let regions = if self.context.region_pieces == usize::MAX { 2 } else { MAX_SEGMENTS };
        let replies = (limits.regions / regions) as u64;
        let replies = replies.min(limits.bytes as u64 / max_reply.max(1));
        u32::try_from(replies).unwrap_or(u32::MAX)
    }

    fn plan(
        &mut self,
        to: &ReplyTo,
        credits: u32,
        mut message: Message,
        limits: &Limits,
        zeros: &View,
    ) -> Result<Plan, ReplyTooLong> {
        message.payloads.retain(|p| !p.data.is_empty()); // Empty payloads need no Read chunk.
        let plan = |body, inline, only_head| Plan {
            header: Header::new(to.xid, credits, body),
            writes: SmallVec::new(),
            inline,
            only_head,
            awaits_done: false,
        };
        if MIN_CALL + message.stream_len() <= limits.inline {
            return Ok(plan(Body::Msg(Lists::default()), message.gather(zeros), message.payloads.is_empty()));
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
        let plan = if reduced.encoded_len() + message.head.len() <= limits.inline {
            plan(Body::Msg(lists), message.head, true)
        } else {
            // RFC 5666 section 3.6: a long reply is a Position-Zero Read chunk.
            self.expose(0, message.head, &mut lists, &mut exposed)?;
            plan(Body::NoMsg(lists), Views::new(), false)
        };
        if plan.header.encoded_len() > limits.inline {
            return Err(ReplyTooLong);
        }
        self.track(to.xid, exposed);
        Ok(Plan { awaits_done: true, ..plan })
    }

    fn unacknowledged(&self) -> usize {
        self.open.len()
    }

    fn done(&mut self, xid: u32) -> Option<Acknowledged> {
        let at = self.open.iter().position(|o| o.xid == xid)?;
        let OpenReply { exposed: Exposed { regions, bytes, stages, charge }, .. } = self.open.remove(at);
        stages.end(Stage::Completion);
        self.regions -= regions.len();
        self.bytes -= bytes;
        for mapped in regions {
            drop(self.registrar.unmap(mapped, 0));
        }
        stages.end(Stage::Deregistration);
        add(&self.context.stats.done_received, 1);
        Some(Acknowledged { stages, charge })
    }

    fn poll_overdue(&mut self, cx: &mut Context<'_>) -> Poll<ConnectionError> {
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
