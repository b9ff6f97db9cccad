//! PDUs that arrive.

use std::task::{Context, Poll};

use millrace_buffer::BufferLengths;
use millrace_buffer::Views;
use millrace_iscsi::{
    iser::Advertised,
    pdu::{Bhs, Lengths, RejectReason, opcode},
    session::{Direction, Placement, Violation},
};

use super::{FullFeature, commands::attribute};
use crate::{
    table::MAX_ANSWER,
    task::{DataOut, State, Task, pdu_memory},
};

/// A PDU whose header was processed.
pub(crate) struct Begun {
    /// Where its data belongs.
    pub(crate) place: Placement,
    /// Memory that is needed first ([`FullFeature::poll_place`]).
    pub(crate) unplaced: Option<Unplaced>,
}

/// Memory that a PDU needs before its data is received.
#[derive(Clone, Copy)]
pub(crate) enum Unplaced {
    /// For the unsolicited data of a command.
    Data {
        itt: u32,
        /// Length in bytes.
        length: usize,
    },
    /// For a request of this number of bytes, and its answer.
    Request(usize),
}

impl FullFeature<'_> {
    /// Processes a header.
    pub(crate) fn begin(
        &mut self,
        bhs: &Bhs,
        ahs: &[u8],
        advertised: Advertised,
    ) -> Result<Begun, Violation> {
        let mut place = self.session.begin(bhs, ahs, advertised)?;
        let itt = u32::from_be_bytes([bhs[16], bhs[17], bhs[18], bhs[19]]);
        let unplaced = match bhs[0] & 0x3f {
            opcode::SCSI_COMMAND if !self.tasks.contains_key(&itt) => self.create_task(itt, bhs),
            opcode::SCSI_COMMAND | opcode::DATA_OUT => None,
            request => {
                let rt = &self.service.rt;
                self.turn.call(|| rt.now());
                let data = if let Placement::Control { length } = place { length as usize } else { 0 };
                let memory =
                    pdu_memory(if request == opcode::TEXT_REQUEST { data.max(MAX_ANSWER) } else { data });
                match request {
                    // It cannot wait for memory, and is too long to be received without.
                    opcode::NOP_OUT if data > MAX_ANSWER && self.is_fetching() => {
                        if self.account.take(memory) {
                            self.held += memory;
                        } else {
                            place = self.session.refuse(RejectReason::IMMEDIATE_COMMAND);
                        }
                        None
                    }
                    opcode::NOP_OUT | opcode::TEXT_REQUEST => Some(Unplaced::Request(memory)),
                    _ => None,
                }
            }
        };
        Ok(Begun { place, unplaced })
    }

    /// Creates the state of a command that the session has accepted.
    fn create_task(&mut self, itt: u32, bhs: &Bhs) -> Option<Unplaced> {
        let (&command, device) = (self.session.command(itt)?, self.device.as_ref()?);
        let transfer = device.target.transfer(command.lun.to_be_bytes(), &command.cdb);
        let task = Task {
            scsi: None,
            command,
            attribute: attribute(command.attribute),
            transfer,
            state: State::Arriving,
            data_out: DataOut::new(transfer.offset),
            data_in: Views::new(),
            reading: false,
            charge: 0,
        };
        let immediate = Lengths::of(bhs).data;
        // Without the F bit, unsolicited Data-Out PDUs follow.
        let last = bhs[1] & 0x80 != 0;
        let unsolicited = if last { immediate } else { self.first_burst.max(immediate) };
        let unsolicited = match command.direction {
            Direction::Write => unsolicited.min(task.wanted()) as usize,
            Direction::None | Direction::Read => 0,
        };
        self.tasks.insert(itt, task);
        (unsolicited > 0).then_some(Unplaced::Data { itt, length: unsolicited })
    }

    /// Provides memory. Returns whether there is some now. `unsent`: PDUs wait for the peer to receive them.
    pub(crate) fn poll_place(&mut self, cx: &mut Context<'_>, unplaced: Unplaced, unsent: bool) -> Poll<()> {
        let placed = match unplaced {
            Unplaced::Data { itt, length } => self.place_unsolicited(cx, itt, length),
            Unplaced::Request(bytes) => self.take_for_request(cx, bytes, unsent),
        };
        if placed { Poll::Ready(()) } else { Poll::Pending }
    }

    /// Charges a request, and its answer. If the client's share does not permit it, the request waits. A ping without data
    /// does so for the answers to earlier requests only, since initiators end a session whose ping has no answer; so does
    /// a short request while a write waits for data, which arrives after it.
    fn take_for_request(&mut self, cx: &mut Context<'_>, bytes: usize, unsent: bool) -> bool {
        let waits = bytes > pdu_memory(0) && !self.is_fetching();
        if waits && self.waiting.is_empty() {
            if self.account.poll_take(cx, bytes).is_pending() {
                return false;
            }
        } else if !self.account.take(bytes) {
            if waits || unsent || self.session.answers().next().is_some() {
                return false;
            }
            self.account.take_unconditionally(bytes);
        }
        self.held += bytes;
        true
    }

    /// Charges what the session holds now.
    pub(crate) fn settle_held(&mut self) {
        let held = self.session.held().map(pdu_memory).sum();
        self.account.replace(std::mem::replace(&mut self.held, held), held);
    }

    /// Allocates memory for unsolicited data, which the session holds from its login on ([`crate::reserve`]). Returns
    /// whether the arena has it.
    fn place_unsolicited(&mut self, cx: &mut Context<'_>, itt: u32, length: usize) -> bool {
        // Not aligned, so that commands within the limit of unsolicited data use no more memory than that.
        let lengths = BufferLengths::new(length, self.chunk);
        while self.memory.poll(cx).is_ready() {
            let Some(task) = self.tasks.get_mut(&itt) else { return true };
            match task.data_out.extend(&self.service.arena, lengths, &mut self.spare) {
                Ok(()) => return true,
                Err(e) => self.wait_for_memory(&e),
            }
        }
        false
    }

    /// Processes the PDU whose data is there; `control` is data that belongs to the session.
    pub(crate) fn finish_pdu(&mut self, control: &[u8]) -> Result<(), Violation> {
        let finished = self.session.finish(control);
        self.process_events();
        self.settle_held();
        finished
    }
}
