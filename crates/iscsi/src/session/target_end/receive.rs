//! Requests that arrive.

use crate::{
    iser::Advertised,
    pdu::{
        Bhs, DataOut, Invalid, Lengths, LogoutRequest, NopOut, RESERVED_TAG, RejectReason, Request,
        RequestNumbers, ScsiCommand, TaskRequest, TextRequest, check_ahs,
    },
};

use super::super::{
    Violation,
    types::{Command, Direction, Placement},
};
use super::{
    Completion, MAX_IMMEDIATE, Queued, State, TargetEvent, TargetSession,
    task::Task,
    text::{Exchange, Step},
};

/// The request whose header has arrived.
#[derive(Debug, Default)]
pub(super) enum Receiving {
    #[default]
    Nothing,
    Nop(NopOut),
    Command {
        itt: u32,
        data: u32,
        refused: Option<Refused>,
    },
    DataOut {
        itt: u32,
        ttt: u32,
        length: u32,
        last: bool,
    },
    Task(TaskRequest),
    Text(TextRequest),
    Logout(LogoutRequest),
}

/// Why a SCSI Command is completed with CHECK CONDITION without being executed.
#[derive(Debug, Clone, Copy)]
pub(super) enum Refused {
    ExtendedCdb,
    Bidirectional,
}

impl Refused {
    /// ILLEGAL REQUEST: INVALID COMMAND OPERATION CODE or INVALID FIELD IN CDB.
    fn completion(self) -> Completion {
        let code = match self {
            Self::ExtendedCdb => 0x20,
            Self::Bidirectional => 0x24,
        };
        let mut sense = vec![0; 18];
        (sense[0], sense[2], sense[7], sense[12]) = (0x70, 5, 10, code);
        Completion { status: 2, length: 0, sense }
    }
}

impl TargetSession {
    /// Processes the header of a request and returns the place of its data segment. `ahs` is the additional header
    /// segments, `advertised` the buffers of the iSER header (none with TCP). A task that a command creates exists
    /// from now on ([`TargetSession::command`]). Until [`TargetSession::fetch`], its data has at most
    /// `FirstBurstLength` bytes; a buffer of the expected length, which the initiator chooses, is not needed.
    ///
    /// # Errors
    ///
    /// The request violates the protocol. The session closes: [`TargetSession::poll_transmit`] returns a Reject, if
    /// the initiator can receive it.
    pub fn begin(&mut self, bhs: &Bhs, ahs: &[u8], advertised: Advertised) -> Result<Placement, Violation> {
        let length = Lengths::of(bhs).data;
        self.receiving = Receiving::Nothing;
        self.bhs = *bhs;
        if self.state != State::FullFeature {
            return Ok(Placement::discard(length));
        }
        self.dispatch(bhs, ahs, advertised, length).inspect_err(|&violation| self.fail(violation))
    }

    /// Processes the request whose data segment has arrived; also if it has none. `data` is the data segment if its
    /// place was [`Placement::Control`], otherwise empty.
    ///
    /// # Errors
    ///
    /// Those of [`TargetSession::begin`].
    pub fn finish(&mut self, data: &[u8]) -> Result<(), Violation> {
        let receiving = std::mem::take(&mut self.receiving);
        self.process(receiving, data).inspect_err(|&violation| self.fail(violation))
    }

    /// Closes the session because the current request violates the protocol.
    fn fail(&mut self, violation: Violation) {
        self.events.clear();
        self.queue.clear();
        if let Some(reason) = violation.reject() {
            self.reject(reason);
        }
        self.close();
    }

    /// Rejects the current request.
    fn reject(&mut self, reason: RejectReason) {
        if self.allows_unexpected() {
            self.queue.push_back(Queued::Reject { reason, header: Box::new(self.bhs) });
        }
    }

    /// Rejects the request whose header [`TargetSession::begin`] has processed. Its data is discarded.
    pub fn refuse(&mut self, reason: RejectReason) -> Placement {
        self.receiving = Receiving::Nothing;
        self.reject(reason);
        Placement::discard(Lengths::of(&self.bhs).data)
    }

    fn dispatch(
        &mut self,
        bhs: &Bhs,
        ahs: &[u8],
        advertised: Advertised,
        length: u32,
    ) -> Result<Placement, Violation> {
        let maximum = self.config.parameters.max_receive_data;
        if length > maximum {
            return Err(Invalid::DataLength { length, maximum }.into());
        }
        let refused = match check_ahs(bhs[0], ahs) {
            Ok(()) => None,
            Err(Invalid::ExtendedCdb) => Some(Refused::ExtendedCdb),
            Err(Invalid::Bidirectional) => Some(Refused::Bidirectional),
            Err(invalid) => return Err(invalid.into()),
        };
        let request = match Request::decode(bhs) {
            Err(invalid @ (Invalid::Opcode(_) | Invalid::Snack)) => {
                if let Some(reason) = invalid.reject() {
                    self.reject(reason);
                }
                return Ok(Placement::discard(length));
            }
            request => request?,
        };
        if !self.in_order(&request)? {
            return Ok(Placement::discard(length));
        }
        if self.config.discovery
            && !matches!(request, Request::Text(_) | Request::Logout(_) | Request::NopOut(_))
        {
            return Err(Violation::Unexpected("request that a discovery session does not have"));
        }
        let receiving = match request {
            Request::ScsiCommand(pdu) => return self.scsi_command(&pdu, refused, advertised, length),
            Request::DataOut(pdu) => return self.data_out(&pdu, length),
            Request::Login(_) => return Err(Violation::Unexpected("Login Request")),
            Request::NopOut(pdu) => Receiving::Nop(pdu),
            Request::Task(pdu) => Receiving::Task(pdu),
            Request::Text(pdu) => Receiving::Text(pdu),
            Request::Logout(pdu) => Receiving::Logout(pdu),
        };
        let data = matches!(receiving, Receiving::Nop(_) | Receiving::Text(_));
        self.receiving = receiving;
        Ok(if data { Placement::control(length) } else { Placement::discard(length) })
    }

    /// Processes the numbers of a request. Returns whether it has an effect: not if its number is outside of the
    /// window.
    fn in_order(&mut self, request: &Request) -> Result<bool, Violation> {
        let (immediate, RequestNumbers { cmd_sn, exp_stat_sn }) = match request {
            Request::NopOut(p) => (p.immediate, p.numbers),
            Request::ScsiCommand(p) => (p.immediate, p.numbers),
            Request::Task(p) => (p.immediate, p.numbers),
            Request::Text(p) => (p.immediate, p.numbers),
            Request::Logout(p) => (p.immediate, p.numbers),
            Request::Login(p) => (true, p.numbers),
            Request::DataOut(p) => (true, RequestNumbers { cmd_sn: 0, exp_stat_sn: p.exp_stat_sn }),
        };
        self.status.acknowledge(exp_stat_sn);
        if immediate { Ok(true) } else { self.window.accept(cmd_sn) }
    }

    fn scsi_command(
        &mut self,
        pdu: &ScsiCommand,
        refused: Option<Refused>,
        advertised: Advertised,
        length: u32,
    ) -> Result<Placement, Violation> {
        let itt = pdu.itt;
        let immediates = self.tasks.values().filter(|task| task.immediate).count();
        let reason = if self.tasks.contains_key(&itt) {
            Some(RejectReason::TASK_IN_PROGRESS)
        } else if pdu.immediate && immediates >= MAX_IMMEDIATE {
            Some(RejectReason::IMMEDIATE_COMMAND)
        } else {
            None
        };
        if let Some(reason) = reason {
            self.reject(reason);
            return Ok(Placement::discard(length));
        }
        let refused = refused.or((pdu.read && pdu.write).then_some(Refused::Bidirectional));
        let direction = match (pdu.read, pdu.write) {
            _ if pdu.expected == 0 => Direction::None,
            (_, true) => Direction::Write,
            (true, false) => Direction::Read,
            (false, false) => Direction::None,
        };
        let expected = if direction == Direction::None { 0 } else { pdu.expected };
        let command = Command { lun: pdu.lun, attribute: pdu.attribute, cdb: pdu.cdb, direction, expected };
        let task =
            Task::new(itt, command, pdu.immediate, pdu.last, length, advertised, &self.config.parameters)?;
        let placement =
            if refused.is_some() { Placement::discard(length) } else { task.placement(0, length) };
        self.tasks.insert(itt, task);
        self.receiving = Receiving::Command { itt, data: length, refused };
        Ok(placement)
    }

    /// Data of tasks that do not exist or are aborted is discarded: it was under way when the task ended.
    fn data_out(&mut self, pdu: &DataOut, length: u32) -> Result<Placement, Violation> {
        let Some(task) = self.tasks.get(&pdu.itt).filter(|task| !task.is_aborted()) else {
            return Ok(Placement::discard(length));
        };
        task.check(pdu, length)?;
        self.receiving = Receiving::DataOut { itt: pdu.itt, ttt: pdu.ttt, length, last: pdu.last };
        Ok(task.placement(pdu.offset, length))
    }

    fn process(&mut self, receiving: Receiving, data: &[u8]) -> Result<(), Violation> {
        match receiving {
            Receiving::Nothing => {}
            Receiving::Nop(pdu) => self.nop(&pdu, data)?,
            Receiving::Command { itt, data, refused } => self.command_arrived(itt, data, refused)?,
            Receiving::DataOut { itt, ttt, length, last } => {
                if let Some(task) = self.tasks.get_mut(&itt) {
                    task.placed(ttt, length, last);
                    self.check_buffer(itt)?;
                    self.progress(itt);
                }
            }
            Receiving::Task(pdu) => self.manage(&pdu),
            Receiving::Text(pdu) => self.text(&pdu, data)?,
            Receiving::Logout(pdu) => self.logout(&pdu)?,
        }
        Ok(())
    }

    fn command_arrived(&mut self, itt: u32, data: u32, refused: Option<Refused>) -> Result<(), Violation> {
        let Some(task) = self.tasks.get_mut(&itt) else {
            return Ok(());
        };
        task.immediate_placed(data);
        if let Some(refused) = refused {
            self.complete(itt, refused.completion());
            return Ok(());
        }
        let command = task.command;
        self.check_buffer(itt)?;
        self.events.push_back(TargetEvent::Execute { itt, command });
        Ok(())
    }

    fn check_buffer(&self, itt: u32) -> Result<(), Violation> {
        match self.tasks.get(&itt) {
            Some(task) if self.is_rdma() && task.lacks_buffer() => Err(Violation::NoBuffer { itt }),
            _ => Ok(()),
        }
    }

    fn nop(&mut self, pdu: &NopOut, data: &[u8]) -> Result<(), Violation> {
        if pdu.ttt != RESERVED_TAG {
            if self.ping != Some(pdu.ttt) {
                return Err(Violation::TransferTag(pdu.ttt));
            }
            self.ping = None;
        }
        if pdu.itt != RESERVED_TAG {
            let length = data.len().min(self.config.parameters.max_send_data as usize);
            self.queue.push_back(Queued::Nop { itt: pdu.itt, lun: pdu.lun, data: data[..length].to_vec() });
        }
        Ok(())
    }

    fn text(&mut self, pdu: &TextRequest, text: &[u8]) -> Result<(), Violation> {
        if pdu.ttt == RESERVED_TAG {
            self.exchange = Some(Exchange::new(pdu, self.take_ttt(), self.bhs));
        }
        let Some(exchange) = &mut self.exchange else {
            return Err(Violation::TransferTag(pdu.ttt));
        };
        match exchange.request(pdu, text, self.config.parameters.max_send_data as usize)? {
            Step::Respond(piece) => {
                if Exchange::ends_with(&piece) {
                    self.exchange = None;
                }
                self.queue.push_back(Queued::Text(piece));
            }
            Step::Complete(text) => self.events.push_back(TargetEvent::Text { itt: pdu.itt, text }),
            Step::Continue => self.events.push_back(TargetEvent::MoreText { itt: pdu.itt }),
        }
        Ok(())
    }

    /// Rejects the text of [`TargetEvent::Text`], which ends the exchange. Without effect if the initiator has begun
    /// another one.
    pub fn reject_text(&mut self, itt: u32, reason: RejectReason) {
        if let Some(exchange) = self.exchange.take_if(|e| e.awaits_answer(itt))
            && self.allows_unexpected()
        {
            self.queue.push_back(Queued::Reject { reason, header: exchange.into_header() });
        }
    }

    /// Answers [`TargetEvent::Text`] or [`TargetEvent::MoreText`]: `key=value` pairs with a NUL after each. Long answers
    /// take several PDUs. With `more`, the text is not empty, and the rest is requested when it is needed. Without effect
    /// if the initiator has begun another exchange.
    pub fn answer_text(&mut self, itt: u32, text: Vec<u8>, more: bool) {
        let Some(exchange) = self.exchange.as_mut().filter(|e| e.awaits_answer(itt)) else {
            return;
        };
        let piece = exchange.answer(text, more, self.config.parameters.max_send_data as usize);
        if Exchange::ends_with(&piece) {
            self.exchange = None;
        }
        self.queue.push_back(Queued::Text(piece));
    }
}
