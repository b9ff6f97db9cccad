//! PDUs and RDMA Writes in the order in which they are sent.

use crate::{
    iser::RemoteBuffer,
    pdu::{
        Bhs, DataIn, DataInStatus, LogoutResponse, LogoutResult, NopIn, Numbers, R2t, RESERVED_TAG, Reject,
        Residual, Response, ScsiResponse, TaskResponse, TextResponse,
    },
};

use super::super::types::{Direction, Payload, residual};
use super::{Queued, TargetSession, task::Task, text};

/// The response code of a command that the target has completed (RFC 7143 section 11.4.3).
const COMPLETED: u8 = 0;
/// The SCSI statuses that a Data-In PDU can have: those without sense data (RFC 7143 section 11.7.3).
const GOOD: u8 = 0;

/// A transmission by the owner of a target's session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TargetTransmit {
    /// A PDU.
    Pdu(TargetPdu),
    /// RDMA Writes of data of a task, before any later PDU on the same queue pair.
    RdmaWrite {
        /// Tag of the task.
        itt: u32,
        /// Memory of the initiator; its base is the address of the first of these bytes.
        sink: RemoteBuffer,
        /// Offset of the first byte in the task's data.
        offset: u32,
        /// Length in bytes.
        length: u32,
    },
    /// Close the connection after what was sent before.
    Close,
}

/// A PDU of a target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TargetPdu {
    /// The header.
    pub header: Response,
    /// The data segment.
    pub data: Payload,
    /// The tag of the task that this PDU ends: its data is not needed after this PDU.
    pub ends: Option<u32>,
    /// The STag for a Send with Invalidate.
    pub invalidate: Option<u32>,
}

impl TargetPdu {
    const fn new(header: Response, data: Payload) -> Self {
        Self { header, data, ends: None, invalidate: None }
    }

    /// The encoded header.
    pub fn encode(&self) -> Bhs {
        self.header.encode(self.data.length())
    }
}

/// The data segment of a SCSI Response (RFC 7143 section 11.4.7): SenseLength, 16 bits, and the sense data.
pub(super) fn sense_segment(sense: &[u8]) -> Vec<u8> {
    let length = u16::try_from(sense.len()).unwrap_or(u16::MAX);
    let mut segment = length.to_be_bytes().to_vec();
    segment.extend_from_slice(&sense[..length.into()]);
    segment
}

impl TargetSession {
    /// The next PDU or RDMA Write to send. Its numbers are set now.
    pub fn poll_transmit(&mut self) -> Option<TargetTransmit> {
        loop {
            match self.queue.pop_front()? {
                Queued::Scsi { itt } => {
                    if let Some(transmit) = self.scsi(itt) {
                        return Some(transmit);
                    }
                }
                Queued::R2t { itt, ttt } => {
                    if let Some(pdu) = self.r2t(itt, ttt) {
                        return Some(TargetTransmit::Pdu(pdu));
                    }
                }
                Queued::Close => {
                    self.queue.clear();
                    return Some(TargetTransmit::Close);
                }
                other => {
                    if let Some(pdu) = self.answer(other) {
                        return Some(TargetTransmit::Pdu(pdu));
                    }
                }
            }
        }
    }

    /// The numbers of a PDU. `status`: the PDU uses a status number.
    fn numbers(&mut self, status: bool) -> Numbers {
        let stat_sn = if status { self.status.take() } else { self.status.next() };
        let max_cmd_sn = self.window.open(self.free_tasks());
        Numbers { stat_sn, exp_cmd_sn: self.window.expected(), max_cmd_sn }
    }

    /// The numbers of a PDU that the initiator does not foresee.
    fn unexpected_numbers(&mut self) -> Numbers {
        let numbers = self.numbers(true);
        if self.is_rdma() {
            self.unexpected.push(numbers.stat_sn);
        }
        numbers
    }

    fn answer(&mut self, queued: Queued) -> Option<TargetPdu> {
        let (header, data) = match queued {
            Queued::Nop { itt, lun, data } => {
                (Response::NopIn(NopIn { lun, itt, ttt: RESERVED_TAG, numbers: self.numbers(true) }), data)
            }
            Queued::Ping => {
                let (ttt, numbers) = (self.ping?, self.numbers(false));
                (Response::NopIn(NopIn { lun: 0, itt: RESERVED_TAG, ttt, numbers }), Vec::new())
            }
            Queued::Task { itt, result } => {
                (Response::Task(TaskResponse { result, itt, numbers: self.numbers(true) }), Vec::new())
            }
            Queued::Text(piece) => {
                let numbers = self.numbers(true);
                let text::Piece { itt, lun, ttt, last, continued, text } = piece;
                (Response::Text(TextResponse { last, continued, lun, itt, ttt, numbers }), text)
            }
            Queued::Logout { itt, result } => {
                let (time2wait, time2retain) = match result {
                    LogoutResult::CLOSED => (0, 0), // No task is left to recover.
                    _ => (self.config.parameters.time2wait, self.config.parameters.time2retain),
                };
                let numbers = self.numbers(true);
                (
                    Response::Logout(LogoutResponse { result, itt, numbers, time2wait, time2retain }),
                    Vec::new(),
                )
            }
            Queued::Async { mut message, data } => {
                message.numbers = self.unexpected_numbers();
                (Response::Async(message), data)
            }
            Queued::Reject { reason, header } => {
                let numbers = self.unexpected_numbers();
                (Response::Reject(Reject { reason, numbers, data_sn: 0 }), header.to_vec())
            }
            Queued::Scsi { .. } | Queued::R2t { .. } | Queued::Close => return None,
        };
        Some(TargetPdu::new(header, Payload::Bytes(data)))
    }

    /// The R2T with `ttt`, unless its task has ended or no longer needs it.
    fn r2t(&mut self, itt: u32, ttt: u32) -> Option<TargetPdu> {
        let task = self.tasks.get_mut(&itt)?;
        let request = task.request(ttt)?;
        request.sent = true;
        let (r2t_sn, offset, length) = (request.number, request.offset, request.length);
        task.r2ts_sent += 1;
        let lun = task.command.lun;
        let numbers = self.numbers(false);
        let r2t = R2t { lun, itt, ttt, numbers, r2t_sn, offset, length };
        Some(TargetPdu::new(Response::R2t(r2t), Payload::NONE))
    }

    /// The next part of the data or the response of a completed task.
    fn scsi(&mut self, itt: u32) -> Option<TargetTransmit> {
        let task = self.tasks.get_mut(&itt)?;
        let available = task.available();
        if task.sent >= available {
            return self.response(itt).map(TargetTransmit::Pdu);
        }
        if self.config.parameters.iser.is_some() {
            let sink = task.advertised.read?;
            task.sent = available;
            self.queue.push_front(Queued::Scsi { itt });
            return Some(TargetTransmit::RdmaWrite { itt, sink, offset: 0, length: available });
        }
        Some(TargetTransmit::Pdu(self.data_in(itt)?))
    }

    /// The next Data-In PDU. The last one has the status if the command succeeded.
    fn data_in(&mut self, itt: u32) -> Option<TargetPdu> {
        let parameters = self.config.parameters;
        let task = self.tasks.get_mut(&itt)?;
        let (offset, available) = (task.sent, task.available());
        let burst = parameters.max_burst - offset % parameters.max_burst;
        let length = parameters.max_send_data.min(burst).min(available - offset);
        let data_sn = task.data_in_sn;
        task.sent += length;
        task.data_in_sn = data_sn.wrapping_add(1);
        let complete = task.sent == available;
        let status = task.collapsed_status().filter(|_| complete);
        if status.is_some() {
            self.end_task(itt);
        } else {
            self.queue.push_front(Queued::Scsi { itt });
        }
        let numbers = match status {
            Some(_) => self.numbers(true),
            None => Numbers { stat_sn: 0, ..self.numbers(false) },
        };
        let last = complete || length == burst;
        let header = DataIn { last, status, itt, numbers, data_sn, offset };
        let ends = status.is_some().then_some(itt);
        let data = Payload::Task { itt, offset, length };
        Some(TargetPdu { ends, ..TargetPdu::new(Response::DataIn(header), data) })
    }

    fn response(&mut self, itt: u32) -> Option<TargetPdu> {
        let task = self.tasks.get(&itt)?;
        let completion = task.finished()?;
        let (status, residual) = (completion.status, task.residual());
        let max_sense = (self.config.parameters.max_send_data as usize).saturating_sub(2);
        let data = match &completion.sense[..completion.sense.len().min(max_sense)] {
            [] => Vec::new(),
            sense => sense_segment(sense),
        };
        let exp_data_sn = task.data_in_sn + task.r2ts_sent;
        let stag = task.advertised.read.or(task.advertised.write).map(|buffer| buffer.stag);
        let invalidate = stag.filter(|_| self.config.remote_invalidate && self.is_rdma());
        self.end_task(itt);
        let numbers = self.numbers(true);
        if !data.is_empty() {
            self.sense = Some(numbers.stat_sn);
        }
        let header = ScsiResponse { response: COMPLETED, status, itt, numbers, exp_data_sn, residual };
        Some(TargetPdu {
            header: Response::Scsi(header),
            data: Payload::Bytes(data),
            ends: Some(itt),
            invalidate,
        })
    }
}

impl Task {
    /// Number of bytes of a completed read.
    fn available(&self) -> u32 {
        match (self.command.direction, self.finished()) {
            (Direction::Read, Some(completion)) => {
                u32::try_from(completion.length).unwrap_or(u32::MAX).min(self.command.expected)
            }
            _ => 0,
        }
    }

    fn residual(&self) -> Residual {
        self.finished().map_or(Residual::None, |c| residual(self.command.expected, c.length))
    }

    /// The status that the last Data-In PDU can have.
    fn collapsed_status(&self) -> Option<DataInStatus> {
        let completion = self.finished()?;
        let collapsed = completion.status == GOOD && completion.sense.is_empty();
        collapsed.then(|| DataInStatus { status: completion.status, residual: self.residual() })
    }
}
