//! How a call travels (RFC 8166 sections 3.4, 3.5): what is inline, what by chunk; and the exposure of its memory.

use std::sync::Arc;

use millrace_buffer::{Arena, Buffer, View, Views};
use millrace_oncrpc::{Message, ReplySpec, Request, RpcError, Stage, Stages};
use millrace_rdma::{Access, Memory, Segment, SteeringTag};
use smallvec::SmallVec;

use super::RequesterStats;
use crate::{
    chunks,
    counters::add,
    design::{self, Design, Expected},
    header::{
        Body, Chunk, Header, Lists, MIN_CALL, Padding, READ_ENTRY, REPLY_CHUNK, ReadSegment, SEGMENT,
        WRITE_CHUNK,
    },
    private_data::Thresholds,
    registration::{Lending, Lent},
};

/// How the call's message travels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CallForm {
    /// All of it inline.
    Inline,
    /// The payloads by Read chunk.
    Reduced,
    /// The payloads by Read chunk and the head by a Position-Zero chunk.
    Long,
}

/// Which chunks a call gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Shape {
    form: CallForm,
    /// Its payloads lie in more regions than the header can name, so they are copied into one each.
    gathered: bool,
    expected: Expected,
}

/// The most segments that a call names: as many as every responder takes.
const MAX_SEGMENTS: usize = 16;

/// The same where regions are cut into segments of pages: for payloads of a megabyte, and as many as a Linux responder takes.
const MAX_PAGE_SEGMENTS: usize = 259;

/// Room for the head of a call beside its chunks, where these may fill the rest of the Send.
const HEAD: usize = 512;

/// What a connection sets to the shape of its calls.
#[derive(Debug, Clone, Copy)]
pub(super) struct Terms {
    pub(super) design: Design,
    pub(super) thresholds: Thresholds,
    /// The most pieces of one region, at least 1.
    pub(super) region_pieces: usize,
    /// The most bytes of a segment: segments end at borders of so many, as those of [`millrace_rdma::Means::Global`] do at
    /// those of pages. `usize::MAX`: a region has one.
    pub(super) segment: usize,
}

impl Terms {
    /// The regions that `data` takes.
    fn regions(&self, data: &Views) -> usize {
        data.pieces().count().div_ceil(self.region_pieces)
    }

    /// Whether regions have several segments.
    fn is_cut(&self) -> bool {
        self.segment < usize::MAX
    }

    /// The most segments that `bytes` in `pieces` take.
    fn segments(&self, pieces: usize, bytes: usize) -> usize {
        if self.is_cut() { bytes / self.segment + 2 * pieces } else { pieces.div_ceil(self.region_pieces) }
    }

    /// The most segments that a call names.
    fn max_segments(&self) -> usize {
        if self.is_cut() { MAX_PAGE_SEGMENTS } else { MAX_SEGMENTS }
    }

    /// The most segments of the chunks for results.
    fn result_segments(&self, spec: &ReplySpec, expected: Expected) -> usize {
        let payload = spec.payload.as_ref().filter(|_| expected.write);
        payload.map_or(0, |b| self.segments(1, b.len())) + expected.reply.map_or(0, |n| self.segments(1, n))
    }

    /// The largest payload that a call can name, or bring room for.
    pub(super) fn max_payload(&self) -> usize {
        if !self.is_cut() {
            return usize::MAX;
        }
        let room = self.thresholds.send.saturating_sub(MIN_CALL + WRITE_CHUNK + REPLY_CHUNK + HEAD);
        let segments = (room / READ_ENTRY).min(MAX_PAGE_SEGMENTS - 2);
        segments.saturating_sub(4).max(1).saturating_mul(self.segment)
    }
}

fn shape(terms: &Terms, message: &Message, spec: &ReplySpec) -> Option<Shape> {
    let expected = terms.design.expect(spec, &terms.thresholds);
    let (write, reply) = (expected.write, expected.reply.is_some());
    let chunks = usize::from(write) + usize::from(reply);
    let results = terms.result_segments(spec, expected);
    let lists = MIN_CALL
        + if write { WRITE_CHUNK } else { 0 }
        + if reply { REPLY_CHUNK } else { 0 }
        + SEGMENT * results.saturating_sub(chunks);
    let room = terms.thresholds.send;
    let fits = |reads: usize, head: usize| {
        reads + results <= terms.max_segments() && lists + READ_ENTRY * reads + head <= room
    };
    let head = terms.segments(1, message.head.len());
    let form = |payloads: usize| {
        if lists + message.stream_len() <= room {
            Some(CallForm::Inline)
        } else if payloads > 0 && fits(payloads, message.head.len()) {
            Some(CallForm::Reduced)
        } else {
            fits(payloads + head, 0).then_some(CallForm::Long)
        }
    };
    let payloads = |gathered: bool| {
        let pieces = |data: &Views| if gathered { 1 } else { data.pieces().count() };
        message.payloads.iter().map(|p| terms.segments(pieces(&p.data), p.data.len())).sum()
    };
    let (form, gathered) = match form(payloads(false)) {
        Some(form) => (form, false),
        None => (form(payloads(true))?, true),
    };
    Some(Shape { form, gathered, expected })
}

/// How a call travels, if it can be carried at all.
///
/// # Errors
/// [`RpcError::Unsupported`].
fn check(terms: &Terms, message: &Message, spec: &ReplySpec) -> Result<Shape, RpcError> {
    if message.head.len() < 8 {
        return Err(RpcError::Unsupported("the message has no RPC header".into()));
    }
    let too_many = || RpcError::Unsupported("more payloads than a header can name".into());
    shape(terms, message, spec).ok_or_else(too_many)
}

/// The memory of one call: the regions that the responder can reach, and what waits for its results. Dropping it
/// revokes the regions.
#[derive(Default)]
pub(crate) struct CallMemory {
    reads: SmallVec<[Lent; 1]>, // Small, for this is moved several times for each call.
    write: Option<Lent>,
    reply: Option<Lent>,
    /// Memory for the reply's payload that is not exposed.
    kept: Option<Buffer>,
    /// The most bytes of the reply's head.
    max_head: usize,
    /// The call's stamps.
    stages: Stages,
}

/// What the memory of a call's results was, taken back.
pub(crate) struct Recovered {
    pub(crate) write: Option<Memory>,
    pub(crate) reply: Option<Memory>,
    pub(crate) kept: Option<Buffer>,
}

impl CallMemory {
    /// The Write chunk.
    pub(crate) fn write_chunk(&self) -> Option<&[Segment]> {
        self.write.as_ref().map(Lent::segments)
    }

    /// The Reply chunk.
    pub(crate) fn reply_chunk(&self) -> Option<&[Segment]> {
        self.reply.as_ref().map(Lent::segments)
    }

    /// The most bytes of the reply's head.
    pub(crate) fn max_head(&self) -> usize {
        self.max_head
    }

    /// The call's stamps.
    pub(crate) fn stages(&self) -> &Stages {
        &self.stages
    }

    /// The tags of this call.
    pub(super) fn tags(&self) -> impl Iterator<Item = SteeringTag> {
        let all = self.reads.iter().chain(&self.write).chain(&self.reply);
        all.flat_map(|r| r.segments().iter().map(|s| s.handle))
    }

    /// Takes everything back and gives the memory of the call's results, of which the responder says that it wrote so
    /// many bytes. From here on the peer cannot touch any of it (RFC 8166 section 3.4.3: before the upper layer may).
    pub(crate) fn take_back(self, lending: &dyn Lending, write: usize, reply: usize) -> Recovered {
        let lent = !self.reads.is_empty() || self.write.is_some() || self.reply.is_some();
        self.stages.end(Stage::Decode);
        for r in self.reads {
            drop(lending.take_back(r, 0));
        }
        let take = |lent: Option<Lent>, placed| lent.and_then(|l| lending.take_back(l, placed));
        let (write, reply) = (take(self.write, write), take(self.reply, reply));
        if lent {
            self.stages.end(Stage::Deregistration);
        }
        Recovered { write, reply, kept: self.kept }
    }
}

/// A call that is ready to be sent.
pub(super) struct Outgoing {
    pub(super) data: Views,
    pub(super) exposed: CallMemory,
}

/// What marshalling needs of its connection.
pub(crate) struct Marshaller {
    pub(crate) arena: Arena,
    pub(super) terms: Terms,
    pub(crate) lending: Box<dyn Lending>,
    /// The credits to ask for with the next message.
    pub(crate) credits: u32,
    /// How inline calls with payloads are padded, if they are.
    pub(super) padding: Option<Padding>,
    pub(super) zeros: View,
    pub(crate) stats: Arc<RequesterStats>,
}

impl Marshaller {
    /// Exposes the call's memory and builds its Send. The message's XID becomes `xid`.
    ///
    /// # Errors
    /// When the call cannot be carried, and when memory or tags have run out. Nothing stays exposed then.
    pub(super) fn marshal(&self, xid: u32, request: Request) -> Result<Outgoing, RpcError> {
        let shape = check(&self.terms, &request.message, &request.reply)?;
        let Request { message, reply: spec, stages, .. } = request;
        let mut exposed = CallMemory { stages, ..CallMemory::default() };
        let mut lists = Lists::default();
        self.expose_results(spec, shape, &mut lists, &mut exposed)?;

        if let Some(data) = self.padded(xid, &message, shape.form)? {
            return Ok(Outgoing { data, exposed });
        }
        let data = match shape.form {
            CallForm::Inline if message.payloads.is_empty() => {
                self.send_inline(xid, Body::Msg(lists), &message.head, true)?
            }
            CallForm::Inline => {
                self.send_inline(xid, Body::Msg(lists), &message.gather(&self.zeros), false)?
            }
            CallForm::Reduced => {
                self.expose_payloads(&message, shape, &mut lists, &mut exposed)?;
                self.send_inline(xid, Body::Msg(lists), &message.head, true)?
            }
            CallForm::Long => {
                self.expose_head(xid, &message.head, &mut lists, &mut exposed)?;
                self.expose_payloads(&message, shape, &mut lists, &mut exposed)?;
                self.send_long(xid, lists)?
            }
        };
        Ok(Outgoing { data, exposed })
    }

    /// An inline call as RDMA_MSGP, if the connection pads such calls and this one has something to be padded.
    fn padded(&self, xid: u32, message: &Message, form: CallForm) -> Result<Option<Views>, RpcError> {
        let Some(padding) = self.padding.filter(|_| form == CallForm::Inline) else { return Ok(None) };
        let body = Body::PaddedMsg(padding, Lists::default());
        let origin = Header::new(xid, self.credits, body.clone()).encoded_len();
        match design::padded(message, &padding.of_items(origin), &self.zeros) {
            Some(stream) if origin + stream.len() <= self.terms.thresholds.send => {
                add(&self.stats.padded_calls, 1);
                self.send_inline(xid, body, &stream, false).map(Some)
            }
            _ => Ok(None),
        }
    }

    /// The Send of a call that is in it, as `stream`.
    fn send_inline(&self, xid: u32, body: Body, stream: &Views, only_head: bool) -> Result<Views, RpcError> {
        let header = Header::new(xid, self.credits, body);
        tracing::trace!("call {header}");
        add(&self.stats.inline_bytes_out, stream.len());
        header.with_message(stream, only_head, &self.arena).map_err(local)
    }

    /// The Send of a call that is in its chunks.
    fn send_long(&self, xid: u32, lists: Lists) -> Result<Views, RpcError> {
        let header = Header::new(xid, self.credits, Body::NoMsg(lists));
        tracing::trace!("call {header}");
        add(&self.stats.long_calls, 1);
        header.alone(&self.arena).map_err(local)
    }

    fn expose_results(
        &self,
        spec: ReplySpec,
        shape: Shape,
        lists: &mut Lists,
        exposed: &mut CallMemory,
    ) -> Result<(), RpcError> {
        match spec.payload {
            Some(b) if shape.expected.write => {
                let region = self.expose(Memory::Owned(b), Access::RemoteWrite, Stage::Send, exposed)?;
                lists.writes.push(Chunk::from_slice(region.segments()));
                exposed.write = Some(region);
            }
            other => exposed.kept = other,
        }
        exposed.max_head = spec.max_head;
        if let Some(len) = shape.expected.reply {
            let b = self.arena.alloc(len).map_err(local)?;
            let region = self.expose(Memory::Owned(b), Access::RemoteWrite, Stage::Buffer, exposed)?;
            lists.reply = Some(Chunk::from_slice(region.segments()));
            exposed.reply = Some(region);
        }
        Ok(())
    }

    /// The same bytes in one piece (a counted copy).
    fn gathered(&self, data: &Views) -> Result<Views, RpcError> {
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
        if self.terms.regions(&whole) > 1 {
            whole = self.gathered(&whole)?; // Small, and cheaper than another RDMA Read.
        }
        self.expose_read(0, whole, lists, exposed)
    }

    /// Exposes every payload as a Read chunk.
    fn expose_payloads(
        &self,
        message: &Message,
        shape: Shape,
        lists: &mut Lists,
        exposed: &mut CallMemory,
    ) -> Result<(), RpcError> {
        for (position, p) in chunks::positions(message).zip(&message.payloads) {
            let data = if shape.gathered { self.gathered(&p.data)? } else { p.data.clone() };
            self.expose_read(position, data, lists, exposed)?;
        }
        Ok(())
    }

    /// Exposes `data` as the Read chunk at `position`: one segment for each region that it takes. Views that follow one
    /// another in memory are in one region, so that a responder may read them at once.
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
            let part = pieces.by_ref().take(self.terms.region_pieces).flatten().cloned().collect();
            let region = self.expose(Memory::Shared(part), Access::RemoteRead, Stage::Send, exposed)?;
            lists.reads.extend(region.segments().iter().map(|&segment| ReadSegment { position, segment }));
            exposed.reads.push(region);
        }
        Ok(())
    }

    /// Lends `memory`; what was done for the call until here was the stage `before`.
    fn expose(
        &self,
        memory: Memory,
        access: Access,
        before: Stage,
        of: &CallMemory,
    ) -> Result<Lent, RpcError> {
        of.stages.end(before);
        let bytes = match access {
            Access::RemoteRead => &self.stats.exposed_read_bytes,
            Access::RemoteWrite => &self.stats.exposed_write_bytes,
        };
        add(bytes, memory.len());
        let lent = self.lending.lend(memory, access).map_err(local);
        of.stages.end(Stage::Registration);
        lent
    }
}

fn local(e: impl std::fmt::Display) -> RpcError {
    RpcError::Local(e.to_string())
}

#[cfg(test)]
mod tests {
    use millrace_buffer::ArenaConfig;
    use millrace_xdr::Encoder;

    use super::*;

    const ANY: Terms = Terms {
        design: Design::ReadWrite,
        thresholds: Thresholds { send: 1024, receive: 1024 },
        region_pieces: usize::MAX,
        segment: usize::MAX,
    };
    const CONTIGUOUS: Terms = Terms { region_pieces: 1, ..ANY };

    fn arena() -> Arena {
        Arena::new(ArenaConfig { limit: 1 << 24, huge_pages: false })
    }

    fn shape_of(head: usize, payload: usize, max_head: usize, result: usize) -> Shape {
        let a = arena();
        let mut e = Encoder::new(&a, 512);
        e.put_raw(&vec![0; head]);
        if payload > 0 {
            e.put_payload(a.copy_from(&vec![0; payload]).unwrap().into());
        }
        let payload = (result > 0).then(|| a.alloc(result).unwrap());
        shape(&ANY, &e.finish().unwrap(), &ReplySpec { max_head, payload }).unwrap()
    }

    /// The form of a call whose payload lies in so many pieces, and whether they are copied together.
    fn form(head: usize, pieces: usize, terms: &Terms) -> Option<(CallForm, bool)> {
        let a = arena();
        let mut e = Encoder::new(&a, 512);
        e.put_raw(&vec![0; head]);
        // Not neighbours in memory: each leaves room in its slot.
        e.put_payload((0..pieces).map(|_| a.copy_from(&[0; 2000]).unwrap()).collect());
        let shape = shape(terms, &e.finish().unwrap(), &ReplySpec { max_head: 100, payload: None })?;
        Some((shape.form, shape.gathered))
    }

    #[test]
    fn small_calls_with_small_replies_have_no_chunks() {
        let s = shape_of(996, 0, 996, 0);
        let expected = Expected { write: false, reply: None };
        assert_eq!(s, Shape { form: CallForm::Inline, gathered: false, expected });
        // 28 + 40 + 4 + 950 + 2 of padding is just 1024.
        assert_eq!(shape_of(40, 950, 100, 0).form, CallForm::Inline);
        assert!(!shape_of(40, 0, 100, 893).expected.write);
    }

    #[test]
    fn a_payload_that_does_not_fit_becomes_a_read_chunk() {
        assert_eq!(shape_of(40, 953, 100, 0).form, CallForm::Reduced);
        assert_eq!(shape_of(1024 - 52 - 4, 953, 100, 0).form, CallForm::Reduced);
    }

    #[test]
    fn a_payload_in_pieces_takes_as_many_segments_as_there_is_room_for() {
        assert_eq!(form(100, 1000, &ANY), Some((CallForm::Reduced, false)));
        assert_eq!(form(100, 16, &CONTIGUOUS), Some((CallForm::Reduced, false)));
        assert_eq!(form(100, 17, &CONTIGUOUS), Some((CallForm::Reduced, true)));
        // 28 + 24 * 12 of chunks and 704 of head with its length word are 1020 bytes.
        assert_eq!(form(700, 12, &CONTIGUOUS), Some((CallForm::Reduced, false)));
        assert_eq!(form(700, 13, &CONTIGUOUS), Some((CallForm::Long, false)));
        assert_eq!(form(1000, 15, &CONTIGUOUS), Some((CallForm::Long, false)));
        assert_eq!(form(1000, 16, &CONTIGUOUS), Some((CallForm::Long, true)));
        let pairs = Terms { region_pieces: 2, ..CONTIGUOUS };
        assert_eq!(form(100, 32, &pairs), Some((CallForm::Reduced, false)));
        assert_eq!(form(100, 33, &pairs), Some((CallForm::Reduced, true)));
    }

    #[test]
    fn what_is_cut_into_pages_is_named_page_by_page_or_is_too_much() {
        // 28 + 24 * 36 of chunks leave room for 104 of the head with its length word, and 37 do for 80.
        let pages = |segment| Terms { segment, ..CONTIGUOUS };
        assert_eq!(form(100, 1, &pages(2000)), Some((CallForm::Reduced, false)));
        assert_eq!(form(100, 1, &pages(2000 / 34)), Some((CallForm::Reduced, false)));
        assert_eq!(form(100, 1, &pages(2000 / 36)), Some((CallForm::Long, false)));
        assert_eq!(form(100, 1, &pages(2000 / 60)), None);
        // The largest payload that a connection promises can be carried, results and all.
        for send in [1024, 4096, 16 << 10, 256 << 10] {
            for segment in [512, 4096, 64 << 10] {
                let terms = Terms { thresholds: Thresholds { send, receive: send }, ..pages(segment) };
                let most = terms.max_payload();
                assert!(most >= segment && most <= MAX_PAGE_SEGMENTS * segment);
                assert!(terms.segments(1, most) <= terms.max_segments());
                let write = READ_ENTRY * terms.segments(1, most) + MIN_CALL + HEAD / 2;
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
        let s = shape_of(40, 0, 100, 897).expected;
        assert_eq!((s.write, s.reply), (true, None));
        let s = shape_of(40, 0, 998, 0).expected;
        assert_eq!((s.write, s.reply), (false, Some(1000)));
        let s = shape_of(40, 0, 980, 5000).expected;
        assert_eq!((s.write, s.reply), (true, Some(980)));
    }
}
