//! Requests in the order in which they are sent.

use crate::{
    iser::Advertised,
    pdu::{
        self, Bhs, DataOut, LogoutRequest, NopOut, RESERVED_TAG, RequestNumbers, ScsiCommand, TaskRequest,
        TextRequest,
    },
};

use super::super::types::{Direction, Payload};
use super::{InitiatorSession, Queued, Request, State, task::Piece};

/// A PDU of an initiator.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InitiatorPdu {
    /// The header.
    pub header: pdu::Request,
    /// The data segment.
    pub data: Payload,
    /// The buffers of the iSER header.
    pub advertised: Advertised,
}

impl InitiatorPdu {
    fn new(header: pdu::Request, data: Payload) -> Self {
        Self { header, data, advertised: Advertised::default() }
    }

    /// The encoded header.
    pub fn encode(&self) -> Bhs {
        self.header.encode(self.data.length())
    }
}

impl InitiatorSession {
    /// The next PDU to send. Its numbers are set now. After a violation there is none.
    pub fn poll_transmit(&mut self) -> Option<InitiatorPdu> {
        if self.state == State::Closed {
            return None;
        }
        while let Some(queued) = self.queue.pop_front() {
            let pdu = match queued {
                Queued::Nop { lun, ttt } => Some(self.nop(lun, RESERVED_TAG, ttt, Vec::new())),
                Queued::Request { itt } => self.send_request(itt),
                Queued::Unsolicited { itt } => self.unsolicited(itt),
                Queued::Solicited { itt } => self.solicited(itt),
            };
            if pdu.is_some() {
                return pdu;
            }
        }
        self.command()
    }

    /// The numbers of a request that uses no command number.
    const fn numbers(&self) -> RequestNumbers {
        RequestNumbers { cmd_sn: self.credit.next(), exp_stat_sn: self.credit.expected_status() }
    }

    fn nop(&self, lun: u64, itt: u32, ttt: u32, data: Vec<u8>) -> InitiatorPdu {
        let header = NopOut { immediate: true, lun, itt, ttt, numbers: self.numbers() };
        InitiatorPdu::new(pdu::Request::NopOut(header), Payload::Bytes(data))
    }

    fn send_request(&mut self, itt: u32) -> Option<InitiatorPdu> {
        let (immediate, numbers) = (true, self.numbers());
        Some(match self.requests.get_mut(&itt)? {
            Request::Nop { data } => {
                let data = std::mem::take(data);
                self.nop(0, itt, RESERVED_TAG, data)
            }
            Request::Task { function, lun, referenced, ref_cmd_sn, cmd_sn } => {
                *cmd_sn = numbers.cmd_sn;
                let header = TaskRequest {
                    immediate,
                    function: *function,
                    lun: *lun,
                    itt,
                    referenced: *referenced,
                    numbers,
                    ref_cmd_sn: *ref_cmd_sn,
                    exp_data_sn: 0,
                };
                InitiatorPdu::new(pdu::Request::Task(header), Payload::NONE)
            }
            Request::Text { text, ttt, .. } => {
                let text = std::mem::take(text);
                let ttt = *ttt;
                let header =
                    TextRequest { immediate, last: true, continued: false, lun: 0, itt, ttt, numbers };
                InitiatorPdu::new(pdu::Request::Text(header), Payload::Bytes(text))
            }
            Request::Logout { reason } => {
                let header = LogoutRequest { immediate, reason: *reason, itt, cid: self.config.cid, numbers };
                InitiatorPdu::new(pdu::Request::Logout(header), Payload::NONE)
            }
        })
    }

    /// The next command, if the window allows it.
    fn command(&mut self) -> Option<InitiatorPdu> {
        if self.state != State::FullFeature || self.credit.available() == 0 {
            return None;
        }
        let itt = self.waiting.pop_front()?;
        let task = self.tasks.get_mut(&itt)?;
        let numbers =
            RequestNumbers { cmd_sn: self.credit.take(), exp_stat_sn: self.credit.expected_status() };
        let unsolicited = task.command_sent(numbers.cmd_sn);
        if unsolicited {
            // Before any other data or command: unsolicited data is in the order of commands.
            self.queue.push_front(Queued::Unsolicited { itt });
        }
        let command = &task.command;
        let header = ScsiCommand {
            immediate: false,
            last: !unsolicited,
            read: command.direction == Direction::Read,
            write: command.direction == Direction::Write,
            attribute: command.attribute,
            lun: command.lun,
            itt,
            expected: command.expected,
            numbers,
            cdb: command.cdb,
        };
        let data = match task.immediate {
            0 => Payload::NONE,
            length => Payload::Task { itt, offset: 0, length },
        };
        Some(InitiatorPdu { header: pdu::Request::ScsiCommand(header), data, advertised: task.advertised })
    }

    fn unsolicited(&mut self, itt: u32) -> Option<InitiatorPdu> {
        let task = self.tasks.get_mut(&itt)?;
        let piece = task.next_unsolicited(self.config.parameters.max_send_data);
        if task.has_unsolicited() {
            self.queue.push_front(Queued::Unsolicited { itt });
        }
        Some(self.data_out(itt, &piece))
    }

    fn solicited(&mut self, itt: u32) -> Option<InitiatorPdu> {
        let task = self.tasks.get_mut(&itt)?;
        let piece = task.next_solicited(self.config.parameters.max_send_data)?;
        if task.has_solicited() {
            // Tasks take turns.
            self.queue.push_back(Queued::Solicited { itt });
        }
        Some(self.data_out(itt, &piece))
    }

    const fn data_out(&self, itt: u32, piece: &Piece) -> InitiatorPdu {
        let Piece { lun, ttt, data_sn, offset, length, last } = *piece;
        let exp_stat_sn = self.credit.expected_status();
        let header = pdu::Request::DataOut(DataOut { last, lun, itt, ttt, exp_stat_sn, data_sn, offset });
        let data = Payload::Task { itt, offset, length };
        InitiatorPdu { header, data, advertised: Advertised { write: None, read: None } }
    }
}
