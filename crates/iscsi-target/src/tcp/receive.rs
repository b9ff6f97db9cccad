//! Receiving PDUs, and sending data.

use std::task::{Context, Poll};

use millrace_buffer::Views;
use millrace_iscsi::{
    iser::Advertised,
    pdu::{Bhs, Lengths, Part, opcode},
    session::{Direction, Payload, Placement, TargetPdu, Violation},
};
use millrace_runtime::RuntimeExt;

use super::{
    super::{
        end::End,
        output::Segment,
        task::{DataOut, State, Task},
    },
    Connection,
};
use crate::stats::add;

/// The PDU that is being received.
#[derive(Default)]
pub(super) struct Receiving {
    /// Where its data belongs; `None` before the header is processed.
    place: Option<Placement>,
    /// Bytes of its data that are received.
    done: usize,
    /// Data that is passed to the session.
    control: Vec<u8>,
    /// The command, and the number of bytes, for whose unsolicited data there is no memory yet.
    unplaced: Option<(u32, usize)>,
    /// What ended the session.
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
        while self.closing.is_none() && self.receiving.violation.is_none() && !self.turn.is_over() {
            if self.receiving.place.is_none() {
                if !self.session.accepts_input() {
                    break;
                }
                if let Some(&bhs) = self.link.input.reader.header() {
                    self.begin(&bhs);
                    continue;
                }
            }
            if self.receiving.unplaced.is_some() && !self.place_unsolicited(cx) {
                break;
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
        let Self { link, receiving, tasks, .. } = self;
        let (part, missing) = link.input.reader.next();
        let before = link.input.received;
        let mut none = Vec::new();
        let mut to = match (part, receiving.place) {
            (Part::Data, Some(Placement::Task { itt, offset, length, .. })) => {
                let left = (length as usize).saturating_sub(receiving.done).min(missing);
                let data = tasks.get_mut(&itt).map(|task| &mut task.data_out);
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
        self.turn.received(received);
        polled.map(|result| result.map(drop).map_err(End::from))
    }

    /// Processes a header.
    fn begin(&mut self, bhs: &Bhs) {
        let begun = self.session.begin(bhs, self.link.input.reader.ahs(), Advertised::default());
        self.receiving.done = 0;
        self.receiving.control.clear();
        match begun {
            Ok(place) => self.receiving.place = Some(place),
            Err(violation) => return self.receiving.violation = Some(violation),
        }
        self.link.input.bulk = matches!(self.receiving.place, Some(Placement::Task { .. }));
        let itt = u32::from_be_bytes([bhs[16], bhs[17], bhs[18], bhs[19]]);
        if bhs[0] & 0x3f == opcode::SCSI_COMMAND && !self.tasks.contains_key(&itt) {
            self.create_task(itt, bhs);
        }
    }

    /// Creates the state of a command that the session has accepted.
    fn create_task(&mut self, itt: u32, bhs: &Bhs) {
        let (Some(&command), Some(device)) = (self.session.command(itt), &self.device) else { return };
        let transfer = device.target.transfer(command.lun.to_be_bytes(), &command.cdb);
        let task = Task {
            scsi: None,
            command,
            attribute: super::commands::attribute(command.attribute),
            transfer,
            state: State::Arriving,
            data_out: DataOut::default(),
            data_in: Views::new(),
            charge: 0,
        };
        let immediate = Lengths::of(bhs).data;
        // Without the F bit, unsolicited Data-Out PDUs follow.
        let last = bhs[1] & 0x80 != 0;
        let first_burst = self.first_burst;
        let unsolicited = if last { immediate } else { first_burst.max(immediate) };
        let unsolicited = match command.direction {
            Direction::Write => unsolicited.min(task.wanted()) as usize,
            Direction::None | Direction::Read => 0,
        };
        self.tasks.insert(itt, task);
        if unsolicited > 0 {
            self.receiving.unplaced = Some((itt, unsolicited));
        }
    }

    /// Allocates memory for unsolicited data, which the limits of the session bound. Returns whether there is some.
    fn place_unsolicited(&mut self, cx: &mut Context<'_>) -> bool {
        let Some((itt, length)) = self.receiving.unplaced else { return true };
        if self.poll_retry(cx).is_pending() {
            return false;
        }
        if let Some(task) = self.tasks.get_mut(&itt) {
            if let Err(e) = task.data_out.extend(&self.server.arena, length) {
                self.wait_for_memory(cx, &e);
                return false;
            }
            let charge = DataOut::memory(length);
            task.charge += charge;
            self.account.take_unconditionally(charge);
        }
        self.receiving.unplaced = None;
        true
    }

    /// Ready unless an allocation failed within the retry interval.
    pub(super) fn poll_retry(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if let Some(retry) = &mut self.retry {
            std::task::ready!(retry.as_mut().poll(cx));
            self.retry = None;
        }
        Poll::Ready(())
    }

    /// The arena lacks memory that the budget permits.
    pub(super) fn wait_for_memory(&mut self, cx: &mut Context<'_>, e: &millrace_buffer::OutOfMemory) {
        tracing::debug!("a command waits: {e}");
        self.retry = Some(self.server.rt.sleep(super::commands::MEMORY_RETRY));
        cx.waker().wake_by_ref(); // The next poll polls the timer.
    }

    /// Processes the PDU that is complete.
    fn finish_pdu(&mut self) {
        if let Err(violation) = self.session.finish(&self.receiving.control) {
            self.receiving.violation = Some(violation);
        }
        self.receiving.place = None;
        self.receiving.control = Vec::new();
        self.link.input.reader.finish();
        self.process_events();
    }

    /// Queues a PDU for the stream.
    pub(super) fn push(&mut self, pdu: TargetPdu) {
        let bhs = pdu.encode();
        let data = match pdu.data {
            Payload::Bytes(bytes) => Segment::Bytes(bytes),
            Payload::Task { itt, offset, length } => {
                add(&self.server.stats.read_bytes, length.into());
                let (offset, length) = (offset as usize, length as usize);
                let data = self.tasks.get(&itt).map(|task| &task.data_in);
                let data = data.filter(|data| offset.saturating_add(length) <= data.len());
                Segment::Views(data.map_or_else(Views::new, |data| data.slice(offset, length)))
            }
        };
        let ended = pdu.ends.and_then(|itt| self.tasks.remove(&itt));
        self.link.output.push(&bhs, data, ended.map_or(0, |task| task.charge));
    }
}
