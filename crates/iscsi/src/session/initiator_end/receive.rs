//! Responses that arrive.

use crate::pdu::{
    AsyncEvent, AsyncMessage, BHS_BYTES, Bhs, DataIn, Invalid, Lengths, LogoutResponse, LogoutResult, NopIn,
    Numbers, R2t, RESERVED_TAG, Reject, RejectReason, Residual, Response, ScsiResponse, TaskFunction,
    TaskResponse, TaskResult, TextResponse, opcode,
};

use super::super::{Violation, numbers::before, types::Placement};
use super::{InitiatorEvent, InitiatorSession, MAX_TEXT, Outcome, Queued, Request, State};

/// The response code of a command that the target has completed.
const COMPLETED: u8 = 0;

/// The response whose header has arrived.
#[derive(Debug, Default)]
pub(super) enum Receiving {
    #[default]
    Nothing,
    DataIn(DataIn, u32),
    Scsi(ScsiResponse),
    Task(TaskResponse),
    Text(TextResponse),
    Nop(NopIn),
    R2t(R2t),
    Logout(LogoutResponse),
    Async(AsyncMessage),
    Reject(Reject),
}

impl InitiatorSession {
    /// Processes the header of a response and returns the place of its data segment. `ahs` is the additional header
    /// segments. `invalidated` is the `STag` that the target has invalidated with the Send that carried the PDU.
    ///
    /// # Errors
    ///
    /// The response violates the protocol. The session closes; [`InitiatorSession::unfinished`] lists the tasks to
    /// send again.
    pub fn begin(&mut self, bhs: &Bhs, ahs: &[u8], invalidated: Option<u32>) -> Result<Placement, Violation> {
        self.receiving = Receiving::Nothing;
        self.dispatch(bhs, ahs, invalidated).inspect_err(|_| self.state = State::Closed)
    }

    /// Processes the response whose data segment has arrived; also if it has none. `data` is the data segment if its
    /// place was [`Placement::Control`], otherwise empty.
    ///
    /// # Errors
    ///
    /// Those of [`InitiatorSession::begin`].
    pub fn finish(&mut self, data: &[u8]) -> Result<(), Violation> {
        let receiving = std::mem::take(&mut self.receiving);
        self.process(receiving, data).inspect_err(|_| self.state = State::Closed)
    }

    fn dispatch(&mut self, bhs: &Bhs, ahs: &[u8], invalidated: Option<u32>) -> Result<Placement, Violation> {
        let (length, maximum) = (Lengths::of(bhs).data, self.config.parameters.max_receive_data);
        if self.state == State::Closed {
            return Err(Violation::Unexpected("PDU after the end of the session"));
        }
        if length > maximum {
            return Err(Invalid::DataLength { length, maximum }.into());
        }
        if !ahs.is_empty() {
            return Err(Invalid::Ahs.into());
        }
        let response = Response::decode(bhs)?;
        self.check_numbers(&response)?;
        self.check_invalidated(&response, invalidated)?;
        let (receiving, placement) = match response {
            Response::DataIn(pdu) => {
                let task = self.tasks.get(&pdu.itt);
                let task = task.ok_or(Violation::UnknownTask { pdu: "Data-In PDU", itt: pdu.itt })?;
                task.check(&pdu, length)?;
                let placement = Placement::task(pdu.itt, pdu.offset, length, task.command.expected);
                (Receiving::DataIn(pdu, length), placement)
            }
            Response::Login(_) => return Err(Violation::Unexpected("Login Response")),
            Response::Scsi(pdu) => (Receiving::Scsi(pdu), Placement::control(length)),
            Response::Text(pdu) => (Receiving::Text(pdu), Placement::control(length)),
            Response::Async(pdu) => (Receiving::Async(pdu), Placement::control(length)),
            Response::Reject(pdu) => (Receiving::Reject(pdu), Placement::control(length)),
            Response::Task(pdu) => (Receiving::Task(pdu), Placement::discard(length)),
            Response::NopIn(pdu) => (Receiving::Nop(pdu), Placement::discard(length)),
            Response::R2t(pdu) => (Receiving::R2t(pdu), Placement::discard(length)),
            Response::Logout(pdu) => (Receiving::Logout(pdu), Placement::discard(length)),
        };
        self.receiving = receiving;
        Ok(placement)
    }

    fn check_numbers(&mut self, response: &Response) -> Result<(), Violation> {
        let (numbers, status): (&Numbers, bool) = match response {
            Response::NopIn(p) => (&p.numbers, p.itt != RESERVED_TAG),
            Response::DataIn(p) => (&p.numbers, p.status.is_some()),
            Response::R2t(p) => (&p.numbers, false),
            Response::Scsi(p) => (&p.numbers, true),
            Response::Task(p) => (&p.numbers, true),
            Response::Login(p) => (&p.numbers, true),
            Response::Text(p) => (&p.numbers, true),
            Response::Logout(p) => (&p.numbers, true),
            Response::Async(p) => (&p.numbers, true),
            Response::Reject(p) => (&p.numbers, true),
        };
        self.credit.update(numbers)?;
        if status { self.credit.status(numbers.stat_sn) } else { Ok(()) }
    }

    /// The target may invalidate a tag of the task that it completes, and no other.
    fn check_invalidated(&self, response: &Response, invalidated: Option<u32>) -> Result<(), Violation> {
        let Some(stag) = invalidated else {
            return Ok(());
        };
        let advertised = match response {
            Response::Scsi(pdu) => self.tasks.get(&pdu.itt).map(|task| task.advertised),
            _ => None,
        };
        let mut stags = advertised.into_iter().flat_map(|a| [a.read, a.write]).flatten();
        if stags.any(|buffer| buffer.stag == stag) { Ok(()) } else { Err(Violation::Invalidated(stag)) }
    }

    fn process(&mut self, receiving: Receiving, data: &[u8]) -> Result<(), Violation> {
        match receiving {
            Receiving::Nothing => Ok(()),
            Receiving::DataIn(pdu, length) => self.data_in(&pdu, length),
            Receiving::Scsi(pdu) => self.scsi_response(&pdu, data),
            Receiving::Task(pdu) => self.task_response(&pdu),
            Receiving::Text(pdu) => self.text_response(&pdu, data),
            Receiving::Nop(pdu) => self.nop_in(&pdu),
            Receiving::R2t(pdu) => self.r2t(&pdu),
            Receiving::Logout(pdu) => self.logout_response(&pdu),
            Receiving::Async(pdu) => self.async_message(&pdu, data),
            Receiving::Reject(pdu) => self.rejected(&pdu, data),
        }
    }

    fn data_in(&mut self, pdu: &DataIn, length: u32) -> Result<(), Violation> {
        let Some(task) = self.tasks.get_mut(&pdu.itt) else {
            return Ok(());
        };
        task.placed(length);
        match pdu.status {
            Some(s) => self.complete(pdu.itt, s.status, Vec::new(), s.residual),
            None => Ok(()),
        }
    }

    fn scsi_response(&mut self, pdu: &ScsiResponse, data: &[u8]) -> Result<(), Violation> {
        let itt = pdu.itt;
        if self.tasks.get(&itt).is_none_or(|task| task.cmd_sn.is_none()) {
            return Err(Violation::UnknownTask { pdu: "SCSI Response", itt });
        }
        if pdu.response != COMPLETED {
            self.end_task(itt, Outcome::TargetFailure(pdu.response));
            return Ok(());
        }
        let sense = sense(data).ok_or(Violation::Malformed("SCSI Response"))?;
        self.complete(itt, pdu.status, sense.to_vec(), pdu.residual)
    }

    fn complete(
        &mut self,
        itt: u32,
        status: u8,
        sense: Vec<u8>,
        residual: Residual,
    ) -> Result<(), Violation> {
        let Some(task) = self.tasks.get(&itt) else {
            return Ok(());
        };
        let transferred = task.transferred(status, residual)?;
        self.end_task(itt, Outcome::Completed { status, sense, residual, transferred });
        Ok(())
    }

    fn r2t(&mut self, pdu: &R2t) -> Result<(), Violation> {
        let itt = pdu.itt;
        let task = self.tasks.get_mut(&itt).ok_or(Violation::UnknownTask { pdu: "R2T", itt })?;
        let sending = task.has_solicited();
        task.r2t(pdu, &self.config.parameters)?;
        if !sending {
            self.queue.push_back(Queued::Solicited { itt });
        }
        Ok(())
    }

    fn task_response(&mut self, pdu: &TaskResponse) -> Result<(), Violation> {
        let (function, lun, referenced, cmd_sn) = match self.requests.get(&pdu.itt) {
            Some(Request::Task { function, lun, referenced, cmd_sn, .. }) => {
                (*function, *lun, *referenced, *cmd_sn)
            }
            _ => {
                return Err(Violation::UnknownTask {
                    pdu: "Task Management Function Response",
                    itt: pdu.itt,
                });
            }
        };
        self.requests.remove(&pdu.itt);
        let complete = pdu.result == TaskResult::COMPLETE;
        let mut ended: Vec<u32> = match function {
            // The response of a task that ended before came before.
            TaskFunction::ABORT_TASK if complete || pdu.result == TaskResult::NO_TASK => vec![referenced],
            TaskFunction::ABORT_TASK | TaskFunction::CLEAR_ACA | TaskFunction::TASK_REASSIGN => Vec::new(),
            _ if !complete => Vec::new(),
            _ => {
                let all =
                    matches!(function, TaskFunction::TARGET_WARM_RESET | TaskFunction::TARGET_COLD_RESET);
                let sent = |n: Option<u32>| n.is_some_and(|n| before(n, cmd_sn));
                let affected =
                    self.tasks.values().filter(|t| sent(t.cmd_sn) && (all || t.command.lun == lun));
                affected.map(|t| t.itt).collect()
            }
        };
        ended.retain(|itt| self.tasks.contains_key(itt));
        ended.sort_unstable();
        for itt in ended {
            self.end_task(itt, Outcome::Aborted);
        }
        self.events.push_back(InitiatorEvent::Managed { itt: pdu.itt, result: pdu.result });
        Ok(())
    }

    fn nop_in(&mut self, pdu: &NopIn) -> Result<(), Violation> {
        let itt = pdu.itt;
        if itt != RESERVED_TAG {
            if !matches!(self.requests.get(&itt), Some(Request::Nop { .. })) {
                return Err(Violation::UnknownTask { pdu: "NOP-In", itt });
            }
            self.requests.remove(&itt);
            self.events.push_back(InitiatorEvent::Pong { itt });
        } else if pdu.ttt != RESERVED_TAG {
            self.queue.push_back(Queued::Nop { lun: pdu.lun, ttt: pdu.ttt });
        }
        Ok(())
    }

    fn text_response(&mut self, pdu: &TextResponse, data: &[u8]) -> Result<(), Violation> {
        let itt = pdu.itt;
        let Some(Request::Text { received, ttt, .. }) = self.requests.get_mut(&itt) else {
            return Err(Violation::UnknownTask { pdu: "Text Response", itt });
        };
        if received.len() + data.len() > MAX_TEXT {
            return Err(Violation::TextLength(MAX_TEXT));
        }
        if pdu.last != (pdu.ttt == RESERVED_TAG) {
            return Err(Violation::TransferTag(pdu.ttt));
        }
        // A chain of empty responses would have no end.
        if !pdu.last && data.is_empty() {
            return Err(Violation::Unexpected("Text Response without text or an end"));
        }
        received.extend_from_slice(data);
        if pdu.last {
            let text = std::mem::take(received);
            self.requests.remove(&itt);
            self.events.push_back(InitiatorEvent::Text { itt, text });
        } else {
            *ttt = pdu.ttt;
            self.queue.push_back(Queued::Request { itt });
        }
        Ok(())
    }

    fn logout_response(&mut self, pdu: &LogoutResponse) -> Result<(), Violation> {
        let itt = pdu.itt;
        if !matches!(self.requests.remove(&itt), Some(Request::Logout { .. })) {
            return Err(Violation::UnknownTask { pdu: "Logout Response", itt });
        }
        if pdu.result != LogoutResult::CLOSED {
            return Err(Violation::Logout(pdu.result));
        }
        self.state = State::Closed;
        self.events.push_back(InitiatorEvent::LoggedOut { time2wait: pdu.time2wait });
        Ok(())
    }

    fn async_message(&mut self, pdu: &AsyncMessage, data: &[u8]) -> Result<(), Violation> {
        let [_, time2wait, parameter3] = pdu.parameters;
        match pdu.event {
            AsyncEvent::SCSI => {
                let sense = sense(data).ok_or(Violation::Malformed("Asynchronous Message"))?.to_vec();
                self.events.push_back(InitiatorEvent::ScsiEvent { lun: pdu.lun, sense });
            }
            // An initiator that does not negotiate again logs out (RFC 7143 section 11.9.1).
            AsyncEvent::LOGOUT | AsyncEvent::NEGOTIATE => {
                self.events.push_back(InitiatorEvent::LogoutRequested { seconds: parameter3 });
            }
            AsyncEvent::DROP_CONNECTION | AsyncEvent::DROP_SESSION => {
                self.state = State::Closed;
                self.events.push_back(InitiatorEvent::Dropped { time2wait });
            }
            _ => {}
        }
        Ok(())
    }

    fn rejected(&mut self, pdu: &Reject, data: &[u8]) -> Result<(), Violation> {
        let bhs = data.first_chunk::<BHS_BYTES>().ok_or(Violation::Malformed("Reject"))?;
        let itt = u32::from_be_bytes([bhs[16], bhs[17], bhs[18], bhs[19]]);
        let reason = pdu.reason;
        let fatal = matches!(reason, RejectReason::PROTOCOL_ERROR | RejectReason::DATA_DIGEST);
        match bhs[0] & 0x3f {
            _ if fatal => return Err(Violation::Rejected(reason)),
            opcode::SCSI_COMMAND if self.tasks.get(&itt).is_some_and(|task| task.cmd_sn.is_some()) => {
                self.end_task(itt, Outcome::Rejected(reason));
            }
            opcode::NOP_OUT | opcode::TASK_REQUEST | opcode::TEXT_REQUEST
                if self.requests.remove(&itt).is_some() =>
            {
                self.events.push_back(InitiatorEvent::RequestRejected { itt, reason });
            }
            _ => return Err(Violation::Rejected(reason)),
        }
        Ok(())
    }
}

/// The sense data of a data segment: none, or its length, 16 bits, and the sense data. Data after it is the command's
/// response data, which iSCSI commands do not have.
fn sense(data: &[u8]) -> Option<&[u8]> {
    match data {
        [] => Some(&[]),
        [high, low, rest @ ..] => rest.get(..u16::from_be_bytes([*high, *low]).into()),
        [_] => None,
    }
}
