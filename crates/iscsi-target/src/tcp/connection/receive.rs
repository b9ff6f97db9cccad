//! Receiving PDUs, and sending data.

use std::task::{Context, Poll};

use millrace_iscsi::stream::Segment;
use millrace_iscsi::{
    iser::Advertised,
    pdu::{Bhs, Part},
    session::{Payload, Placement, TargetPdu, Violation},
};

use super::Connection;
use crate::{end::End, full_feature::Unplaced, stats::add, task::pdu_memory};

/// The PDU that is being received.
#[derive(Default)]
pub(super) struct Receiving {
    /// The destination of the PDU's data; `None` before the header is processed.
    place: Option<Placement>,
    /// Bytes of its data that are received.
    done: usize,
    /// Data that is passed to the session.
    control: Vec<u8>,
    /// What there is no memory for yet.
    unplaced: Option<Unplaced>,
    /// The violation that ended the session.
    violation: Option<Violation>,
}

impl Receiving {
    /// Whether receiving continues when there is memory.
    pub(super) fn waits_for_memory(&self) -> bool {
        self.unplaced.is_some()
    }

    /// Why the session closed.
    pub(super) fn end(&mut self) -> End {
        self.violation.take().map_or(End::Closed, End::Violation)
    }
}

impl Connection<'_> {
    /// Receives and processes PDUs. Returns whether there is progress.
    pub(super) fn receive(&mut self, cx: &mut Context<'_>) -> Result<bool, End> {
        let mut progress = false;
        while self.closing.is_none() && self.receiving.violation.is_none() && !self.core.turn.is_over() {
            if self.receiving.place.is_none() {
                if !self.core.session.accepts_input() {
                    break;
                }
                if let Some(&bhs) = self.link.input.reader.header() {
                    self.begin(&bhs);
                    continue;
                }
            }
            if let Some(unplaced) = self.receiving.unplaced {
                if self.core.poll_place(cx, unplaced, self.link.output.queued() > 0).is_pending() {
                    break;
                }
                self.receiving.unplaced = None;
            }
            if self.link.input.reader.next().0 == Part::End {
                self.finish_pdu();
                progress = true;
                continue;
            }
            match self.poll_part(cx) {
                Poll::Ready(result) => result?,
                Poll::Pending => break,
            }
            progress = true;
        }
        Ok(progress)
    }

    /// Receives bytes of the current part into their final memory.
    fn poll_part(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), End>> {
        let Self { link, receiving, core, .. } = self;
        let (part, missing) = link.input.reader.next();
        let before = link.input.received;
        let mut none = Vec::new();
        let mut to = match (part, receiving.place) {
            (Part::Data, Some(Placement::Task { itt, offset, length, .. })) => {
                let left = (length as usize).saturating_sub(receiving.done).min(missing);
                let data = core.tasks.get_mut(&itt).map(|task| &mut task.data_out);
                data.map(|data| data.slices(offset as usize + receiving.done, left)).unwrap_or_default()
            }
            (Part::Data, Some(Placement::Control { .. })) => {
                none = std::mem::take(&mut receiving.control);
                let at = none.len();
                none.resize(at + missing, 0);
                std::iter::once(&mut none[at..]).collect()
            }
            _ => smallvec::SmallVec::new(),
        };
        let polled = link.input.poll_part(cx, &mut *link.stream, &mut to);
        drop(to);
        if let (Part::Data, Poll::Ready(Ok(n))) = (part, &polled) {
            receiving.done += n;
        }
        if matches!(receiving.place, Some(Placement::Control { .. })) && part == Part::Data {
            none.truncate(receiving.done);
            receiving.control = none;
        }
        let received = usize::try_from(link.input.received - before).unwrap_or(usize::MAX);
        self.core.turn.received(received);
        polled.map(|result| result.map(drop).map_err(End::from))
    }

    /// Processes a header.
    fn begin(&mut self, bhs: &Bhs) {
        let begun = self.core.begin(bhs, self.link.input.reader.ahs(), Advertised::default());
        self.receiving.done = 0;
        self.receiving.control.clear();
        match begun {
            Ok(begun) => {
                self.receiving.place = Some(begun.place);
                self.receiving.unplaced = begun.unplaced;
            }
            Err(violation) => return self.receiving.violation = Some(violation),
        }
        self.link.input.bulk = matches!(self.receiving.place, Some(Placement::Task { .. }));
    }

    /// Processes the PDU that is complete.
    fn finish_pdu(&mut self) {
        if let Err(violation) = self.core.finish_pdu(&self.receiving.control) {
            self.receiving.violation = Some(violation);
        }
        self.receiving.place = None;
        self.receiving.control = Vec::new();
        self.link.input.reader.finish();
    }

    /// Queues a PDU for the stream.
    pub(super) fn push(&mut self, pdu: TargetPdu) {
        let bhs = pdu.encode();
        // The charge of a task has its data.
        let (data, bytes) = match pdu.data {
            Payload::Bytes(bytes) => {
                let length = bytes.len();
                (Segment::Bytes(bytes), length)
            }
            Payload::Task { itt, offset, length } => {
                add(&self.core.service.stats.read_bytes, length.into());
                (Segment::Views(self.core.data_in(itt, offset, length)), 0)
            }
        };
        let ended = pdu.ends.and_then(|itt| self.core.tasks.remove(&itt));
        self.core.settle_held();
        let memory = pdu_memory(bytes);
        self.core.account.take_unconditionally(memory);
        self.link.output.push(&bhs, data, memory + ended.map_or(0, |task| task.charge));
    }
}
