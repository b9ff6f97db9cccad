//! Encoding of calls (RFC 8166 sections 3.4 and 3.5): selection of inline or chunk transfer, and exposure of
//! a call's memory.

use std::sync::Arc;

use millrace_buffer::{Arena, View, Views};
use millrace_oncrpc::{Message, ReplySpec, Request, RpcError, Stage, Stages};
use millrace_runtime::RuntimeRef;
use millrace_xdr::pad;

use super::RequesterConfig;
use crate::{
    call_memory::{CallMemory, SpareMemory},
    chunks,
    counters::{RequesterStats, add},
    header::{
        Body, Chunk, Header, Lists, MIN_CALL, READ_ENTRY, REPLY_CHUNK, ReadSegment, SEGMENT, WRITE_CHUNK,
    },
    private_data::Thresholds,
};
use millrace_rdma::{
    Access, ConnectionError, DomainRef, GLOBAL_PAGE, Memory, QueuePair,
    registration::{RegisteredMemory, Registrar, Strategy},
};

/// Form in which a call's message is conveyed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CallForm {
    /// The whole message inline.
    Inline,
    /// The payloads in Read chunks.
    Reduced,
    /// The payloads in Read chunks and the head in a Position-Zero Read chunk.
    Long,
}

/// The chunks of a call for its reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct ReplyChunks {
    /// Whether the memory for the reply's payload is a Write chunk.
    write: bool,
    /// Bytes of the Reply chunk.
    reply: Option<usize>,
}

impl ReplyChunks {
    /// Adds a Write chunk for a payload, and a Reply chunk for a message, that might not fit inline.
    fn plan(spec: &ReplySpec, thresholds: &Thresholds) -> Self {
        let payload = spec.payload.as_ref().map_or(0, |b| b.len());
        let whole = MIN_CALL + spec.max_head + payload + pad(payload);
        let write = payload > 0 && whole > thresholds.receive;
        // RFC 8166 section 3.5.6: a Reply chunk if the largest reply might not fit inline.
        let rest = MIN_CALL + spec.max_head + if write { WRITE_CHUNK } else { payload + pad(payload) };
        let reply = (rest > thresholds.receive).then(|| spec.max_head.next_multiple_of(4));
        Self { write, reply }
    }
}

/// Form and chunks of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct CallLayout {
    form: CallForm,
    /// Whether payloads are copied into one region each, because they have more regions than the header can
    /// list.
    copied: bool,
    reply_chunks: ReplyChunks,
}

/// Maximum number of segments of a call, which every responder accepts.
const MAX_SEGMENTS: usize = 16;

/// Maximum number of segments if regions are cut into pages: sufficient for a payload of 1 MiB, and accepted
/// by Linux responders.
const MAX_PAGE_SEGMENTS: usize = 259;

/// Bytes reserved for the head of a call whose chunks may fill the rest of the Send.
const HEAD_RESERVE: usize = 512;

/// Parameters of the connection that determine the form of calls.
#[derive(Debug, Clone, Copy)]
pub(super) struct CallParams {
    pub(super) thresholds: Thresholds,
    /// Maximum number of pieces of one region, at least 1.
    pub(super) region_pieces: usize,
    /// Maximum bytes of a segment. Segments end at multiples of this size, as those of
    /// [`millrace_rdma::RegistrationKind::Global`] end at page boundaries. `usize::MAX`: a region has one segment.
    pub(super) segment: usize,
}

impl CallParams {
    /// Number of regions of `data`.
    fn regions(&self, data: &Views) -> usize {
        data.pieces().count().div_ceil(self.region_pieces)
    }

    /// Whether regions have several segments.
    fn has_page_segments(&self) -> bool {
        self.segment < usize::MAX
    }

    /// Maximum number of segments of `bytes` bytes in `pieces` pieces.
    fn segments(&self, pieces: usize, bytes: usize) -> usize {
        if self.has_page_segments() {
            bytes / self.segment + 2 * pieces
        } else {
            pieces.div_ceil(self.region_pieces)
        }
    }

    /// Maximum number of segments of a call.
    fn max_segments(&self) -> usize {
        if self.has_page_segments() { MAX_PAGE_SEGMENTS } else { MAX_SEGMENTS }
    }

    /// Maximum number of segments of the chunks for results.
    fn result_segments(&self, spec: &ReplySpec, reply_chunks: ReplyChunks) -> usize {
        let payload = spec.payload.as_ref().filter(|_| reply_chunks.write);
        payload.map_or(0, |b| self.segments(1, b.len()))
            + reply_chunks.reply.map_or(0, |n| self.segments(1, n))
    }

    /// Bytes of the largest payload that a call can list, as argument or result.
    pub(super) fn max_payload(&self) -> usize {
        if !self.has_page_segments() {
            return usize::MAX;
        }
        let room = self.thresholds.send.saturating_sub(MIN_CALL + WRITE_CHUNK + REPLY_CHUNK + HEAD_RESERVE);
        let segments = (room / READ_ENTRY).min(MAX_PAGE_SEGMENTS - 2);
        segments.saturating_sub(4).max(1).saturating_mul(self.segment)
    }
}

fn layout(params: &CallParams, message: &Message, spec: &ReplySpec) -> Option<CallLayout> {
    let reply_chunks = ReplyChunks::plan(spec, &params.thresholds);
    let (write, reply) = (reply_chunks.write, reply_chunks.reply.is_some());
    let chunks = usize::from(write) + usize::from(reply);
    let results = params.result_segments(spec, reply_chunks);
    let lists = MIN_CALL
        + if write { WRITE_CHUNK } else { 0 }
        + if reply { REPLY_CHUNK } else { 0 }
        + SEGMENT * results.saturating_sub(chunks);
    let room = params.thresholds.send;
    let fits = |reads: usize, head: usize| {
        reads + results <= params.max_segments() && lists + READ_ENTRY * reads + head <= room
    };
    let head = params.segments(1, message.head.len());
    let form = |payloads: usize| {
        if lists + message.stream_len() <= room {
            Some(CallForm::Inline)
        } else if payloads > 0 && fits(payloads, message.head.len()) {
            Some(CallForm::Reduced)
        } else {
            fits(payloads + head, 0).then_some(CallForm::Long)
        }
    };
    let payloads = |copied: bool| {
        let pieces = |data: &Views| if copied { 1 } else { data.pieces().count() };
        message.payloads.iter().map(|p| params.segments(pieces(&p.data), p.data.len())).sum()
    };
    let (form, copied) = match form(payloads(false)) {
        Some(form) => (form, false),
        None => (form(payloads(true))?, true),
    };
    Some(CallLayout { form, copied, reply_chunks })
}

/// Selects the form and chunks of a call.
///
/// # Errors
/// [`RpcError::Unsupported`]: no form can convey the call.
fn layout_or_error(params: &CallParams, message: &Message, spec: &ReplySpec) -> Result<CallLayout, RpcError> {
    if message.head.len() < 8 {
        return Err(RpcError::Unsupported("the message has no RPC header".into()));
    }
    let too_many = || RpcError::Unsupported("more payloads than a header can name".into());
    layout(params, message, spec).ok_or_else(too_many)
}

/// A call to be sent.
pub struct Outgoing {
    /// The Send.
    pub data: Views,
    /// The memory of the call.
    pub exposed: Box<CallMemory>,
}

/// Encodes the calls of one connection.
pub struct Marshaller {
    /// Memory for messages.
    pub arena: Arena,
    /// Maps and unmaps the memory of calls.
    pub(super) registrar: Box<dyn Registrar>,
    /// Memory of later calls.
    pub(super) spare: SpareMemory,
    /// Credits to request with the next message.
    pub credits: u32,
    /// The counters of the connection.
    pub stats: Arc<RequesterStats>,
    params: CallParams,
    zeros: View,
}

impl Marshaller {
    /// Creates a marshaller for the calls on `qp`, which exposes memory in `domain`.
    ///
    /// # Errors
    /// There is no memory, or the registration strategy is rejected.
    pub fn new(
        qp: &dyn QueuePair,
        config: &RequesterConfig,
        thresholds: Thresholds,
        domain: DomainRef,
        arena: Arena,
        rt: RuntimeRef,
        stats: Arc<RequesterStats>,
    ) -> Result<Self, ConnectionError> {
        let zeros = arena.copy_from(&[0; 4]).map_err(|e| ConnectionError::Local(e.to_string()))?;
        let capabilities = qp.capabilities();
        let strategy = config.registration.settings().strategy;
        let params = CallParams {
            thresholds,
            region_pieces: match strategy {
                Strategy::Cache => usize::MAX, // Bounce buffers are contiguous.
                _ => capabilities.max_region_pieces.max(1),
            },
            segment: match strategy {
                Strategy::AllPhysical => capabilities.max_segment.clamp(1, GLOBAL_PAGE),
                _ => capabilities.max_segment.max(1),
            },
        };
        let registrar = config.registration.attach(domain, arena.clone(), rt)?;
        Ok(Self { arena, registrar, spare: SpareMemory::default(), credits: 1, stats, params, zeros })
    }

    /// The inline thresholds of the connection.
    pub fn thresholds(&self) -> Thresholds {
        self.params.thresholds
    }

    /// Bytes of the largest payload that a call can list, as argument or result.
    pub fn max_payload(&self) -> usize {
        self.params.max_payload()
    }

    /// The memory of a call without regions.
    pub fn memory(&self, stages: Stages) -> Box<CallMemory> {
        self.spare.take(stages)
    }

    /// Revokes the peer's access to the memory of a call, and drops it.
    pub fn release(&self, memory: Box<CallMemory>) {
        drop(memory.unmap(&*self.registrar, &self.spare, 0, 0));
    }

    /// Bytes of XDR padding.
    pub(super) fn zeros(&self) -> &View {
        &self.zeros
    }

    /// Exposes the call's memory and builds its Send. `xid` replaces the message's XID.
    ///
    /// # Errors
    /// The call cannot be conveyed, or memory or tags are exhausted. No memory stays exposed.
    pub fn marshal(&self, xid: u32, request: Request) -> Result<Outgoing, RpcError> {
        let Request { mut message, reply: mut spec, stages, seal, .. } = request;
        let mut check = None;
        if let Some(seal) = seal {
            spec = seal.reply_spec(spec);
            if !seal.keeps_items() {
                let payload = spec.payload.take().map_or(0, |payload| payload.len());
                spec.max_head += payload + pad(payload);
            }
            let connection = Arc::as_ptr(&self.stats).addr();
            let (sealed, opens) = seal.apply(message, xid, connection)?;
            (message, check) = (sealed, Some(opens));
        }
        message.payloads.retain(|p| !p.data.is_empty()); // An empty argument needs no Read chunk.
        let layout = layout_or_error(&self.params, &message, &spec)?;
        let mut exposed = self.spare.take(stages);
        exposed.check = check;
        let mut lists = Lists::default();
        self.expose_results(spec, layout, &mut lists, &mut exposed)?;

        let data = match layout.form {
            CallForm::Inline if message.payloads.is_empty() => {
                self.send_inline(xid, Body::Msg(lists), message.head, true)?
            }
            CallForm::Inline => {
                self.send_inline(xid, Body::Msg(lists), message.gather(&self.zeros), false)?
            }
            CallForm::Reduced => {
                self.expose_payloads(&message, layout, &mut lists, &mut exposed)?;
                self.send_inline(xid, Body::Msg(lists), message.head, true)?
            }
            CallForm::Long => {
                self.expose_head(xid, &message.head, &mut lists, &mut exposed)?;
                self.expose_payloads(&message, layout, &mut lists, &mut exposed)?;
                self.send_long(xid, lists)?
            }
        };
        Ok(Outgoing { data, exposed })
    }

    /// The Send of an inline call with the message `stream`.
    fn send_inline(
        &self,
        xid: u32,
        body: Body,
        mut stream: Views,
        only_head: bool,
    ) -> Result<Views, RpcError> {
        let header = Header::new(xid, self.credits, body);
        tracing::trace!("call {header}");
        add(&self.stats.inline_bytes_out, stream.len());
        header.with_message(&mut stream, only_head, &self.arena).map_err(local)
    }

    /// The Send of a call that its chunks convey.
    fn send_long(&self, xid: u32, lists: Lists) -> Result<Views, RpcError> {
        let header = Header::new(xid, self.credits, Body::NoMsg(lists));
        tracing::trace!("call {header}");
        add(&self.stats.long_calls, 1);
        header.without_message(&self.arena).map_err(local)
    }

    fn expose_results(
        &self,
        spec: ReplySpec,
        layout: CallLayout,
        lists: &mut Lists,
        exposed: &mut CallMemory,
    ) -> Result<(), RpcError> {
        if let Some(b) = spec.payload.filter(|_| layout.reply_chunks.write) {
            let region = self.expose(Memory::Owned(b), Access::RemoteWrite, Stage::Send, exposed)?;
            lists.writes.push(Chunk::from_slice(region.segments()));
            exposed.write = Some(region);
        }
        if let Some(len) = layout.reply_chunks.reply {
            let b = self.arena.alloc(len).map_err(local)?;
            let region = self.expose(Memory::Owned(b), Access::RemoteWrite, Stage::Buffer, exposed)?;
            lists.reply = Some(Chunk::from_slice(region.segments()));
            exposed.reply = Some(region);
        }
        Ok(())
    }

    /// Copies the bytes into one buffer (a counted copy).
    fn copied(&self, data: &Views) -> Result<Views, RpcError> {
        let mut b = self.arena.alloc(data.len()).map_err(local)?;
        data.copy_to(&mut b);
        Ok(b.freeze().into())
    }

    /// Exposes a head, with its XID, as the Position-Zero Read chunk.
    fn expose_head(
        &self,
        xid: u32,
        head: &Views,
        lists: &mut Lists,
        exposed: &mut CallMemory,
    ) -> Result<(), RpcError> {
        let xid = self.arena.copy_from(&xid.to_be_bytes()).map_err(local)?;
        let mut whole = Views::from(xid);
        whole.extend(head.slice(4, head.len() - 4).iter().cloned());
        if self.params.regions(&whole) > 1 {
            whole = self.copied(&whole)?; // Cheaper than another RDMA Read, because heads are small.
        }
        self.expose_read(0, whole, lists, exposed)
    }

    /// Exposes every payload as a Read chunk.
    fn expose_payloads(
        &self,
        message: &Message,
        layout: CallLayout,
        lists: &mut Lists,
        exposed: &mut CallMemory,
    ) -> Result<(), RpcError> {
        for (position, p) in chunks::positions(message).zip(&message.payloads) {
            let data = if layout.copied { self.copied(&p.data)? } else { p.data.clone() };
            self.expose_read(position, data, lists, exposed)?;
        }
        Ok(())
    }

    /// Exposes `data` as the Read chunk at `position`, with one segment per region. Adjacent views share a
    /// region, so that a responder can read them with one RDMA Read.
    fn expose_read(
        &self,
        position: usize,
        data: Views,
        lists: &mut Lists,
        exposed: &mut CallMemory,
    ) -> Result<(), RpcError> {
        let position = u32::try_from(position)
            .map_err(|_| RpcError::Unsupported("a message of more than 4 GiB".into()))?;
        let mut pieces = data.pieces().peekable();
        while pieces.peek().is_some() {
            let part = pieces.by_ref().take(self.params.region_pieces).flatten().cloned().collect();
            let region = self.expose(Memory::Shared(part), Access::RemoteRead, Stage::Send, exposed)?;
            lists.reads.extend(region.segments().iter().map(|&segment| ReadSegment { position, segment }));
            exposed.reads.push(region);
        }
        Ok(())
    }

    /// Maps `memory`, and attributes the time before it to the stage `before`.
    fn expose(
        &self,
        memory: Memory,
        access: Access,
        before: Stage,
        of: &CallMemory,
    ) -> Result<RegisteredMemory, RpcError> {
        of.stages.end(before);
        let bytes = match access {
            Access::RemoteRead => &self.stats.exposed_read_bytes,
            Access::RemoteWrite => &self.stats.exposed_write_bytes,
        };
        add(bytes, memory.len());
        let mapped = self.registrar.map(memory, access).map_err(local);
        of.stages.end(Stage::Registration);
        mapped
    }
}

fn local(e: impl std::fmt::Display) -> RpcError {
    RpcError::Local(e.to_string())
}

#[cfg(test)]
mod tests {
    use millrace_buffer::{Arena, ArenaConfig};
    use millrace_xdr::Encoder;

    use super::*;

    const ANY: CallParams = CallParams {
        thresholds: Thresholds { send: 1024, receive: 1024 },
        region_pieces: usize::MAX,
        segment: usize::MAX,
    };
    const CONTIGUOUS: CallParams = CallParams { region_pieces: 1, ..ANY };

    fn arena() -> Arena {
        Arena::new(ArenaConfig { limit: 1 << 24, huge_pages: false })
    }

    fn shape_of(head: usize, payload: usize, max_head: usize, result: usize) -> CallLayout {
        let a = arena();
        let mut e = Encoder::new(&a, 512);
        e.put_raw(&vec![0; head]);
        if payload > 0 {
            e.put_payload(a.copy_from(&vec![0; payload]).unwrap().into());
        }
        let payload = (result > 0).then(|| a.alloc(result).unwrap());
        layout(&ANY, &e.finish().unwrap(), &ReplySpec { max_head, payload, ..ReplySpec::default() }).unwrap()
    }

    /// The form of a call whose payload has `pieces` pieces, and whether they are copied.
    fn form(head: usize, pieces: usize, params: &CallParams) -> Option<(CallForm, bool)> {
        let a = arena();
        let mut e = Encoder::new(&a, 512);
        e.put_raw(&vec![0; head]);
        // Not adjacent in memory: each view is shorter than its slot.
        e.put_payload((0..pieces).map(|_| a.copy_from(&[0; 2000]).unwrap()).collect());
        let layout =
            layout(params, &e.finish().unwrap(), &ReplySpec { max_head: 100, ..ReplySpec::default() })?;
        Some((layout.form, layout.copied))
    }

    #[test]
    fn small_calls_with_small_replies_have_no_chunks() {
        let s = shape_of(996, 0, 996, 0);
        let reply_chunks = ReplyChunks { write: false, reply: None };
        assert_eq!(s, CallLayout { form: CallForm::Inline, copied: false, reply_chunks });
        // 28 + 40 + 4 + 950 + 2 of padding is 1024.
        assert_eq!(shape_of(40, 950, 100, 0).form, CallForm::Inline);
        assert!(!shape_of(40, 0, 100, 893).reply_chunks.write);
    }

    #[test]
    fn a_payload_that_does_not_fit_becomes_a_read_chunk() {
        assert_eq!(shape_of(40, 953, 100, 0).form, CallForm::Reduced);
        assert_eq!(shape_of(1024 - 52 - 4, 953, 100, 0).form, CallForm::Reduced);
    }

    #[test]
    fn a_payload_in_pieces_is_copied_when_its_segments_exceed_the_header() {
        assert_eq!(form(100, 1000, &ANY), Some((CallForm::Reduced, false)));
        assert_eq!(form(100, 16, &CONTIGUOUS), Some((CallForm::Reduced, false)));
        assert_eq!(form(100, 17, &CONTIGUOUS), Some((CallForm::Reduced, true)));
        // 28 + 24 * 12 of chunks and 704 of head with its length word are 1020 bytes.
        assert_eq!(form(700, 12, &CONTIGUOUS), Some((CallForm::Reduced, false)));
        assert_eq!(form(700, 13, &CONTIGUOUS), Some((CallForm::Long, false)));
        assert_eq!(form(1000, 15, &CONTIGUOUS), Some((CallForm::Long, false)));
        assert_eq!(form(1000, 16, &CONTIGUOUS), Some((CallForm::Long, true)));
        let pairs = CallParams { region_pieces: 2, ..CONTIGUOUS };
        assert_eq!(form(100, 32, &pairs), Some((CallForm::Reduced, false)));
        assert_eq!(form(100, 33, &pairs), Some((CallForm::Reduced, true)));
    }

    #[test]
    fn page_segments_are_listed_individually_up_to_the_limit() {
        // 28 + 24 * 36 of chunks leave 104 bytes for the head with its length word; 37 chunks leave 80.
        let pages = |segment| CallParams { segment, ..CONTIGUOUS };
        assert_eq!(form(100, 1, &pages(2000)), Some((CallForm::Reduced, false)));
        assert_eq!(form(100, 1, &pages(2000 / 34)), Some((CallForm::Reduced, false)));
        assert_eq!(form(100, 1, &pages(2000 / 36)), Some((CallForm::Long, false)));
        assert_eq!(form(100, 1, &pages(2000 / 60)), None);
        // The maximum payload of a connection can be conveyed, with chunks for results.
        for send in [1024, 4096, 16 << 10, 256 << 10] {
            for segment in [512, 4096, 64 << 10] {
                let params = CallParams { thresholds: Thresholds { send, receive: send }, ..pages(segment) };
                let most = params.max_payload();
                assert!(most >= segment && most <= MAX_PAGE_SEGMENTS * segment);
                assert!(params.segments(1, most) <= params.max_segments());
                let write = READ_ENTRY * params.segments(1, most) + MIN_CALL + HEAD_RESERVE / 2;
                assert!(write <= send, "{send} {segment} {most}");
            }
        }
    }

    #[test]
    fn a_head_that_does_not_fit_makes_a_long_call() {
        assert_eq!(shape_of(1000, 0, 100, 0).form, CallForm::Long);
        assert_eq!(shape_of(972, 100, 100, 0).form, CallForm::Long);
    }

    #[test]
    fn a_result_that_may_not_fit_gets_a_write_chunk_and_a_large_head_a_reply_chunk() {
        let s = shape_of(40, 0, 100, 897).reply_chunks;
        assert_eq!((s.write, s.reply), (true, None));
        let s = shape_of(40, 0, 998, 0).reply_chunks;
        assert_eq!((s.write, s.reply), (false, Some(1000)));
        let s = shape_of(40, 0, 980, 5000).reply_chunks;
        assert_eq!((s.write, s.reply), (true, Some(980)));
    }
}
