//! PDUs that arrive.

use std::task::Context;

use millrace_buffer::Views;
use millrace_iscsi::{
    iser::Advertised,
    pdu::{Bhs, Lengths, opcode},
    session::{Direction, Placement, Violation},
};

use super::{FullFeature, commands::attribute};
use crate::task::{BufferLengths, DataOut, State, Task};

/// A PDU whose header was processed.
pub(crate) struct Begun {
    /// Where its data belongs.
    pub(crate) place: Placement,
    /// The command, and the number of bytes, for whose unsolicited data memory is needed first
    /// ([`FullFeature::place_unsolicited`]).
    pub(crate) unplaced: Option<(u32, usize)>,
}

impl FullFeature<'_> {
    /// Processes a header.
    pub(crate) fn begin(
        &mut self,
        bhs: &Bhs,
        ahs: &[u8],
        advertised: Advertised,
    ) -> Result<Begun, Violation> {
        let place = self.session.begin(bhs, ahs, advertised)?;
        let itt = u32::from_be_bytes([bhs[16], bhs[17], bhs[18], bhs[19]]);
        let unplaced = if bhs[0] & 0x3f == opcode::SCSI_COMMAND && !self.tasks.contains_key(&itt) {
            self.create_task(itt, bhs)
        } else {
            None
        };
        Ok(Begun { place, unplaced })
    }

    /// Creates the state of a command that the session has accepted.
    fn create_task(&mut self, itt: u32, bhs: &Bhs) -> Option<(u32, usize)> {
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
        (unsolicited > 0).then_some((itt, unsolicited))
    }

    /// Allocates memory for unsolicited data, which the session holds from its login on ([`crate::reserve`]). Returns
    /// whether the arena has it.
    pub(crate) fn place_unsolicited(&mut self, cx: &mut Context<'_>, itt: u32, length: usize) -> bool {
        if self.poll_retry(cx).is_pending() {
            return false;
        }
        if let Some(task) = self.tasks.get_mut(&itt) {
            // Not aligned, so that commands within the limit of unsolicited data use no more memory than that.
            let lengths = BufferLengths::new(length, self.chunk);
            if let Err(e) = task.data_out.extend(&self.service.arena, lengths, &mut self.spare) {
                self.wait_for_memory(cx, &e);
                return false;
            }
        }
        true
    }

    /// Processes the PDU whose data is there; `control` is data that belongs to the session.
    pub(crate) fn finish_pdu(&mut self, control: &[u8]) -> Result<(), Violation> {
        let finished = self.session.finish(control);
        self.process_events();
        finished
    }
}
