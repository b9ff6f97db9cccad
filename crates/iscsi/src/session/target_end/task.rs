//! A task: the data that it receives and sends.

use smallvec::SmallVec;

use crate::{
    iser::{Advertised, RemoteBuffer},
    negotiation::Parameters,
    pdu::{DataOut, RESERVED_TAG},
};

use super::super::{
    Violation,
    types::{Command, Direction, Placement},
};
use super::Completion;

/// An R2T whose data has not arrived completely.
#[derive(Debug)]
pub(super) struct Request {
    pub(super) ttt: u32,
    pub(super) number: u32,
    pub(super) offset: u32,
    pub(super) length: u32,
    pub(super) sent: bool,
    data_sn: u32,
}

/// The next step of a write.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Progress {
    /// It waits: for data, for a completion, or for the SCSI layer to request a number of bytes.
    Waiting,
    /// An R2T was added to the task.
    R2t { ttt: u32 },
    /// An RDMA Read of `length` bytes to `offset` of the task's data.
    RdmaRead { source: RemoteBuffer, offset: u32, length: u32 },
    /// The data is complete. It is reported once.
    Ready,
    /// The completion can be sent. It is reported once.
    Finish,
}

/// The decision of the SCSI layer about the task.
#[derive(Debug)]
enum Stage {
    /// Nothing yet.
    Executing,
    /// The SCSI layer has requested this number of bytes.
    Fetching(u32),
    /// The data was reported to be complete.
    Fetched,
    /// The task waits for data that is under way.
    Completed(Completion),
    /// The completion is in the queue of PDUs to send.
    Finished(Completion),
    /// A task management function or a logout ended the task; the SCSI layer has not confirmed it.
    Aborted,
}

/// A task that the target has.
#[derive(Debug)]
pub(super) struct Task {
    pub(super) itt: u32,
    pub(super) command: Command,
    pub(super) immediate: bool,
    pub(super) advertised: Advertised,
    stage: Stage,
    /// Unsolicited Data-Out PDUs follow.
    unsolicited_open: bool,
    unsolicited_max: u32,
    unsolicited_sn: u32,
    /// Bytes received, from offset 0 on.
    received: u32,
    /// End of the data that was requested with R2Ts or RDMA Reads.
    requested: u32,
    /// In order. One without an allocation, the default of MaxOutstandingR2T.
    requests: SmallVec<[Request; 1]>,
    /// Number of R2Ts that the task has had.
    r2t_sn: u32,
    /// Bytes of Data-In PDUs sent.
    pub(super) sent: u32,
    /// Number of Data-In PDUs sent.
    pub(super) data_in_sn: u32,
    /// Number of R2Ts sent.
    pub(super) r2ts_sent: u32,
}

impl Task {
    /// A task whose command has `data` bytes of immediate data; `last` unless unsolicited Data-Out PDUs follow.
    ///
    /// # Errors
    ///
    /// The parameters forbid the immediate data or the unsolicited data.
    pub(super) fn new(
        itt: u32,
        command: Command,
        immediate: bool,
        last: bool,
        data: u32,
        advertised: Advertised,
        parameters: &Parameters,
    ) -> Result<Self, Violation> {
        let writes = command.direction == Direction::Write;
        let unsolicited_max = if writes { parameters.first_burst.min(command.expected) } else { 0 };
        let immediate_max = if parameters.immediate_data { unsolicited_max } else { 0 };
        if data > immediate_max {
            return Err(Violation::UnsolicitedData { itt, length: data.into(), maximum: immediate_max });
        }
        if !last && (parameters.initial_r2t || !writes) {
            return Err(Violation::Unexpected("SCSI Command that announces unsolicited data"));
        }
        Ok(Self {
            itt,
            command,
            immediate,
            advertised,
            stage: Stage::Executing,
            unsolicited_open: !last,
            unsolicited_max,
            unsolicited_sn: 0,
            received: 0,
            requested: 0,
            requests: SmallVec::new(),
            r2t_sn: 0,
            sent: 0,
            data_in_sn: 0,
            r2ts_sent: 0,
        })
    }

    /// Whether the task is aborted and the SCSI layer has not confirmed it.
    pub(super) const fn is_aborted(&self) -> bool {
        matches!(self.stage, Stage::Aborted)
    }

    /// The completion, if it is in the queue of PDUs to send.
    pub(super) const fn finished(&self) -> Option<&Completion> {
        match &self.stage {
            Stage::Finished(completion) => Some(completion),
            _ => None,
        }
    }

    /// Where `length` bytes at `offset` belong.
    pub(super) fn placement(&self, offset: u32, length: u32) -> Placement {
        match self.stage {
            Stage::Executing => Placement::task(self.itt, offset, length, self.command.expected),
            Stage::Fetching(wanted) => Placement::task(self.itt, offset, length, wanted),
            _ => Placement::discard(length),
        }
    }

    /// Checks a Data-Out PDU with `length` bytes.
    ///
    /// # Errors
    ///
    /// It is not the next one of the sequence that it names.
    pub(super) fn check(&self, pdu: &DataOut, length: u32) -> Result<(), Violation> {
        let itt = self.itt;
        let (data_sn, end) = if pdu.ttt == RESERVED_TAG {
            if !self.unsolicited_open {
                return Err(Violation::Unexpected("unsolicited Data-Out PDU"));
            }
            let sum = u64::from(self.received) + u64::from(length);
            if sum > self.unsolicited_max.into() {
                return Err(Violation::UnsolicitedData { itt, length: sum, maximum: self.unsolicited_max });
            }
            // The initiator may send less unsolicited data than is permitted.
            (self.unsolicited_sn, if pdu.last { self.received + length } else { u32::MAX })
        } else {
            // R2Ts are fulfilled in order (DataSequenceInOrder=Yes).
            match self.requests.first() {
                Some(r) if r.ttt == pdu.ttt && r.sent => (r.data_sn, r.offset + r.length),
                _ => return Err(Violation::TransferTag(pdu.ttt)),
            }
        };
        if pdu.data_sn != data_sn {
            return Err(Violation::DataNumber { itt, expected: data_sn, received: pdu.data_sn });
        }
        if pdu.offset != self.received {
            return Err(Violation::DataOffset { itt, expected: self.received, received: pdu.offset });
        }
        let missing = end - self.received;
        if length > missing {
            return Err(Violation::DataLength { itt, length, maximum: missing });
        }
        if pdu.last != (length == missing) {
            return Err(Violation::Final { itt, missing: missing - length });
        }
        Ok(())
    }

    /// Accounts for `length` bytes of immediate data.
    pub(super) const fn immediate_placed(&mut self, length: u32) {
        self.received = length;
        self.requested = length;
    }

    /// Accounts for the data of a Data-Out PDU that [`Task::check`] has accepted.
    pub(super) fn placed(&mut self, ttt: u32, length: u32, last: bool) {
        self.received += length;
        if ttt == RESERVED_TAG {
            self.unsolicited_sn = self.unsolicited_sn.wrapping_add(1);
            self.unsolicited_open = !last;
            self.requested = self.received;
        } else if let Some(request) = self.requests.first_mut() {
            if last {
                self.requests.remove(0);
            } else {
                request.data_sn = request.data_sn.wrapping_add(1);
            }
        }
    }

    /// Accounts for the data of the task's RDMA Read.
    pub(super) const fn rdma_read_done(&mut self) {
        self.received = self.requested;
    }

    /// Whether an RDMA operation must transfer data, but the initiator advertised no buffer for it, or one that
    /// exceeds the address space.
    pub(super) fn lacks_buffer(&self) -> bool {
        let (buffer, length) = match self.command.direction {
            Direction::None => return false,
            Direction::Read => (self.advertised.read, self.command.expected),
            Direction::Write if self.unsolicited_open => return false,
            Direction::Write => (self.advertised.write, self.command.expected - self.received),
        };
        length > 0 && buffer.is_none_or(|b| b.base.checked_add(length.into()).is_none())
    }

    /// The SCSI layer requests the first `length` bytes of the data.
    pub(super) fn fetch(&mut self, length: u32) {
        if matches!(self.stage, Stage::Executing) {
            self.stage = Stage::Fetching(length.min(self.command.expected));
        }
    }

    /// The SCSI layer has completed the task. Returns whether the completion is the first one.
    pub(super) fn complete(&mut self, completion: Completion) -> bool {
        match self.stage {
            Stage::Executing | Stage::Fetching(_) | Stage::Fetched => {
                self.stage = Stage::Completed(completion);
                self.requests.retain(|r| r.sent);
                true
            }
            Stage::Completed(_) | Stage::Finished(_) | Stage::Aborted => false,
        }
    }

    /// Aborts the task. Returns whether the SCSI layer must confirm it; if not, the task has a completion.
    pub(super) fn abort(&mut self) -> Abort {
        match self.stage {
            Stage::Executing | Stage::Fetching(_) | Stage::Fetched => {
                self.stage = Stage::Aborted;
                self.requests.clear();
                Abort::Confirm
            }
            Stage::Completed(_) => Abort::Remove,
            Stage::Finished(_) => Abort::Finishing,
            Stage::Aborted => Abort::Aborted,
        }
    }

    /// The R2T with `ttt`, unless its task no longer needs it.
    pub(super) fn request(&mut self, ttt: u32) -> Option<&mut Request> {
        self.requests.iter_mut().find(|r| r.ttt == ttt)
    }

    /// The next step of the task. `ttt` is the tag of the R2T that this may add.
    pub(super) fn progress(&mut self, parameters: &Parameters, ttt: u32) -> Progress {
        // A response waits for the data that is under way (RFC 7143 section 11.4.2).
        if self.unsolicited_open {
            return Progress::Waiting;
        }
        match self.stage {
            Stage::Completed(_) if self.requests.is_empty() => {
                let stage = std::mem::replace(&mut self.stage, Stage::Aborted);
                if let Stage::Completed(completion) = stage {
                    self.stage = Stage::Finished(completion);
                }
                Progress::Finish
            }
            Stage::Fetching(wanted) if self.received >= wanted && self.requests.is_empty() => {
                self.stage = Stage::Fetched;
                Progress::Ready
            }
            Stage::Fetching(wanted) if self.requested < wanted => {
                if parameters.iser.is_some() {
                    self.rdma_read(wanted)
                } else {
                    self.r2t(wanted, parameters, ttt)
                }
            }
            _ => Progress::Waiting,
        }
    }

    fn r2t(&mut self, wanted: u32, parameters: &Parameters, ttt: u32) -> Progress {
        if self.requests.len() >= usize::from(parameters.max_outstanding_r2t) {
            return Progress::Waiting;
        }
        let (offset, number) = (self.requested, self.r2t_sn);
        let length = (wanted - offset).min(parameters.max_burst);
        self.requests.push(Request { ttt, number, offset, length, sent: false, data_sn: 0 });
        self.r2t_sn = number.wrapping_add(1);
        self.requested = offset + length;
        Progress::R2t { ttt }
    }

    /// The base offset names the first byte that is not unsolicited, as the Linux kernel's initiator and libiscsi
    /// advertise it (RFC 7145 section 7.3.5: the buffer is that of the solicited data).
    fn rdma_read(&mut self, wanted: u32) -> Progress {
        let Some(source) = self.advertised.write else {
            return Progress::Waiting;
        };
        let offset = self.requested;
        self.requested = wanted;
        Progress::RdmaRead { source, offset, length: wanted - offset }
    }
}

/// The result of aborting a task.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Abort {
    /// The SCSI layer must confirm it.
    Confirm,
    /// The SCSI layer has completed the task: it ends now, without a response.
    Remove,
    /// The completion is in the queue before any later response, and will be sent.
    Finishing,
    /// The task was aborted before.
    Aborted,
}
