//! The responder's part: exposes results, and takes them back with RDMA_DONE.

use std::{
    sync::Arc,
    task::{Context, Poll},
};

use futures::FutureExt;
use millrace_buffer::{View, Views};
use millrace_oncrpc::{Message, Stage, Stages};
use millrace_rdma::{Access, ConnectionError, Memory};
use millrace_runtime::{Instant, Sleep};
use smallvec::SmallVec;

use crate::{
    Design,
    chunks::positions,
    counters::add,
    design::{Acknowledged, DoesNotFit, Limits, Plan, Responding, Setting},
    header::{Body, Header, Lists, MIN_CALL, ReadSegment},
    registration::{Lending, Lent},
    responder::ReplyTo,
};

/// The most segments of one reply: as many as a call may have, which every peer takes.
const MAX_SEGMENTS: usize = 16;

/// The responder's end of the design: replies that are not acknowledged.
pub(in crate::design) struct Exposer {
    setting: Setting,
    lending: Box<dyn Lending>,
    /// In order of their deadlines.
    open: Vec<OpenReply>,
    regions: usize,
    bytes: usize,
    /// Runs to the deadline of the oldest reply there was when it was set.
    timer: Option<Sleep>,
}

/// A reply whose memory the requester may read.
struct OpenReply {
    xid: u32,
    deadline: Instant,
    exposed: Exposed,
}

/// What a reply exposes. Dropping it revokes it.
#[derive(Default)]
struct Exposed {
    regions: SmallVec<[Lent; 2]>,
    bytes: usize,
    stages: Stages,
    /// Bytes of the account that the reply takes.
    charge: usize,
}

impl Exposer {
    /// # Errors
    /// When the registration strategy would expose more than replies, the provider cannot do it, or its segments are
    /// so small that a reply would have more than requesters take.
    pub(in crate::design) fn new(setting: Setting) -> Result<Self, ConnectionError> {
        if setting.segment < usize::MAX
            && setting.max_reply / setting.segment as u64 + 2 > MAX_SEGMENTS as u64
        {
            return Err(ConnectionError::Local(format!(
                "a reply of {} bytes has more than {MAX_SEGMENTS} segments on this adapter, which cuts memory every {} \
                 bytes: the Read-Read design cannot name them; use read-write, or smaller transfers",
                setting.max_reply, setting.segment
            )));
        }
        let (domain, arena, rt) =
            (Arc::clone(&setting.domain), setting.arena.clone(), Arc::clone(&setting.rt));
        let lending = setting.registration.attach_responder(domain, arena, rt)?;
        Ok(Self { setting, lending, open: Vec::new(), regions: 0, bytes: 0, timer: None })
    }

    /// Exposes `data` as the Read chunk at `position`: one segment for each region that it takes, and at most so many
    /// that a head still finds room (a payload in more pieces is copied into one).
    fn expose(
        &self,
        position: usize,
        data: Views,
        lists: &mut Lists,
        exposed: &mut Exposed,
    ) -> Result<(), DoesNotFit> {
        let position = u32::try_from(position).map_err(|_| DoesNotFit)?;
        let pieces = self.setting.region_pieces;
        let data =
            if data.iter().count().div_ceil(pieces) < MAX_SEGMENTS { data } else { self.gathered(&data)? };
        let mut views = data.iter().cloned().peekable();
        while views.peek().is_some() {
            let part: Views = views.by_ref().take(pieces).collect();
            exposed.bytes += part.len();
            let (regions, bytes) = (self.regions + exposed.regions.len() + 1, self.bytes + exposed.bytes);
            if regions > self.setting.limits.regions || bytes > self.setting.limits.bytes {
                add(&self.setting.stats.exposures_refused, 1);
                return Err(DoesNotFit);
            }
            exposed.stages.end(Stage::Reply);
            let lent = self.lending.lend(Memory::Shared(part), Access::RemoteRead).map_err(|e| {
                tracing::debug!("a reply is refused: {e}");
                DoesNotFit
            })?;
            exposed.stages.end(Stage::Registration);
            lists.reads.extend(lent.segments().iter().map(|&segment| ReadSegment { position, segment }));
            exposed.regions.push(lent);
        }
        Ok(())
    }

    /// The same bytes in one piece (a counted copy).
    fn gathered(&self, data: &Views) -> Result<Views, DoesNotFit> {
        let mut b = self.setting.arena.alloc(data.len()).map_err(|_| DoesNotFit)?;
        data.copy_to(&mut b);
        Ok(b.freeze().into())
    }

    fn opened(&mut self, xid: u32, exposed: Exposed) {
        self.regions += exposed.regions.len();
        self.bytes += exposed.bytes;
        let deadline = self.setting.rt.now() + self.setting.limits.done_timeout;
        self.open.push(OpenReply { xid, deadline, exposed });
    }
}

impl Responding for Exposer {
    fn admit(&self, body: &Body) -> Result<(), &'static str> {
        if !self.setting.theirs.is_some_and(|p| p.design == Design::ReadRead) {
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
        let limits = &self.setting.limits;
        let regions = if self.setting.region_pieces == usize::MAX { 2 } else { MAX_SEGMENTS };
        let replies = (limits.regions / regions) as u64;
        let replies = replies.min(limits.bytes as u64 / max_reply.max(1));
        u32::try_from(replies).unwrap_or(u32::MAX)
    }

    fn plan(
        &mut self,
        to: &ReplyTo,
        credits: u32,
        message: Message,
        limits: &Limits,
        zeros: &View,
    ) -> Result<Plan, DoesNotFit> {
        let plan = |body, inline, only_head| Plan {
            header: Header::new(to.xid, credits, body),
            writes: SmallVec::new(),
            inline,
            only_head,
            until_done: false,
        };
        if MIN_CALL + message.stream_len() <= limits.inline {
            return Ok(plan(Body::Msg(Lists::default()), message.gather(zeros), message.payloads.is_empty()));
        }
        // RDMA_DONE names its reply by XID alone.
        if self.open.iter().any(|o| o.xid == to.xid) {
            return Err(DoesNotFit);
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
            return Err(DoesNotFit);
        }
        self.opened(to.xid, exposed);
        Ok(Plan { until_done: true, ..plan })
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
        for lent in regions {
            drop(self.lending.take_back(lent, 0));
        }
        stages.end(Stage::Deregistration);
        add(&self.setting.stats.done_received, 1);
        Some(Acknowledged { stages, charge })
    }

    fn poll_overdue(&mut self, cx: &mut Context<'_>) -> Poll<ConnectionError> {
        while let Some(oldest) = self.open.first() {
            let rt = &self.setting.rt;
            let timer = self.timer.get_or_insert_with(|| rt.sleep_until(oldest.deadline));
            std::task::ready!(timer.poll_unpin(cx));
            self.timer = None;
            if oldest.deadline <= rt.now() {
                let limit = self.setting.limits.done_timeout;
                let what = format!("it sent no RDMA_DONE for {limit:?}: {} bytes were held", self.bytes);
                return Poll::Ready(ConnectionError::PeerMisbehaved(what));
            }
        }
        Poll::Pending
    }
}
