//! Commands: memory, execution and task management.

use std::task::Context;

use millrace_admission::Batch;
use millrace_buffer::BufferLengths;
use millrace_buffer::{Buffer, Views};
use millrace_iscsi::{
    discovery::SendTargets,
    pdu::{self, RejectReason, TaskFunction, TaskResult},
    session::{Command, Completion, Direction, TargetEvent},
};
use millrace_runtime::MaybeReady;
use millrace_scsi::{Aborted, MAX_TRANSFER_BYTES, Management, Request, Response, Status, TaskAttribute};

use super::{Device, FullFeature, Names, RdmaRead, Running};
use crate::{
    stats::{add, count},
    task::{State, kept_memory, memory_of},
};

/// SCSI status TASK ABORTED (SAM-5 section 5.3.1).
const TASK_ABORTED: u8 = 0x40;

/// The task attribute of a command; reserved values are those of untagged commands.
pub(super) fn attribute(attribute: pdu::TaskAttribute) -> TaskAttribute {
    match attribute {
        pdu::TaskAttribute::ORDERED => TaskAttribute::Ordered,
        pdu::TaskAttribute::HEAD_OF_QUEUE => TaskAttribute::HeadOfQueue,
        pdu::TaskAttribute::ACA => TaskAttribute::Aca,
        _ => TaskAttribute::Simple,
    }
}

impl FullFeature<'_> {
    /// Processes the events of the session.
    pub(super) fn process_events(&mut self) {
        while let Some(event) = self.session.poll_event() {
            match event {
                TargetEvent::Execute { itt, command } => self.arrived(itt, &command),
                TargetEvent::DataReady { itt } => self.set_state(itt, State::Ready),
                TargetEvent::Abort { itt } => self.abort(itt),
                TargetEvent::Manage { itt, function, lun } => self.manage(itt, function, lun),
                TargetEvent::Text { itt, text } => self.begin_text(itt, &text),
                TargetEvent::MoreText { itt } => self.answer_text(itt),
                TargetEvent::RdmaRead { itt, source, offset, .. } => {
                    self.rdma_reads.push_back(RdmaRead { itt, source, offset });
                }
            }
        }
    }

    fn set_state(&mut self, itt: u32, state: State) {
        if let Some(task) = self.tasks.get_mut(&itt) {
            task.state = state;
        }
    }

    /// A command has arrived; unsolicited data may follow.
    fn arrived(&mut self, itt: u32, command: &Command) {
        let (Some(task), Some(device)) = (self.tasks.get_mut(&itt), &self.device) else { return };
        let stats = &self.service.stats;
        count(match command.direction {
            Direction::Read => &stats.reads,
            Direction::Write => &stats.writes,
            Direction::None => &stats.others,
        });
        task.scsi = Some(device.target.task(&device.nexus, command.lun.to_be_bytes()));
        task.state = State::Waiting;
        self.order.push_back(itt);
        self.waiting.push_back(itt);
        let (account, control) = (&self.account, &self.registered.control);
        self.turn.call(|| control.touch(account.touch()));
    }

    /// Gives memory to commands in order of arrival; to a write, when the RDMA Reads of earlier ones are started.
    /// Returns whether there is progress.
    pub(super) fn grant(&mut self, cx: &mut Context<'_>) -> bool {
        let mut progress = false;
        while let Some(&itt) = self.waiting.front() {
            if self.memory.poll(cx).is_pending() {
                break;
            }
            let mut fetch = None;
            if let Some(task) = self.tasks.get_mut(&itt) {
                let wanted = task.wanted() as usize;
                let rest = wanted.saturating_sub(task.data_out.length());
                let writes = task.command.direction == Direction::Write;
                let read = task.transfer.data_in.min(MAX_TRANSFER_BYTES) as usize;
                let lengths = task.data_out.aligned(rest, self.chunk);
                let charge = memory_of(if writes { lengths } else { BufferLengths::new(read, self.chunk) });
                if writes && rest > 0 && !self.rdma_reads.is_empty() {
                    break;
                }
                if charge > 0 && self.account.poll_take(cx, charge).is_pending() {
                    break;
                }
                if let Err(e) = task.data_out.extend(&self.service.arena, lengths, &mut self.spare) {
                    self.account.give(charge);
                    self.wait_for_memory(&e);
                    continue;
                }
                task.charge += charge;
                task.state = if writes { State::Fetching } else { State::Ready };
                fetch = writes.then(|| task.wanted());
            }
            self.waiting.pop_front();
            if let Some(wanted) = fetch {
                self.session.fetch(itt, wanted);
                self.process_events();
            }
            progress = true;
        }
        progress
    }

    /// Executes commands whose data is there. `divided` is set after the first part of a batch: the rest waits for the next
    /// call, so that the responses so far are sent first. An ORDERED command waits for all earlier ones, and all later ones
    /// wait for it. Returns whether there is progress.
    pub(super) fn execute_ready(&mut self) -> bool {
        let (mut i, mut ordered, mut progress) = (0, false, false);
        while let Some(&itt) = self.order.get(i) {
            let Some(task) = self.tasks.get(&itt) else {
                self.order.remove(i);
                continue;
            };
            let may = match task.attribute {
                TaskAttribute::HeadOfQueue => true,
                TaskAttribute::Ordered => i == 0,
                TaskAttribute::Simple | TaskAttribute::Aca => !ordered,
            };
            if may && task.state == State::Ready {
                self.order.remove(i);
                self.execute(itt);
                progress = true;
                self.divided = self.batch.as_mut().is_some_and(Batch::call);
                if self.divided {
                    return true;
                }
                continue;
            }
            ordered |= task.attribute == TaskAttribute::Ordered;
            i += 1;
        }
        if let Some(batch) = &mut self.batch {
            batch.end();
        }
        self.divided = false;
        progress
    }

    fn execute(&mut self, itt: u32) {
        let (Some(task), Some(device)) = (self.tasks.get_mut(&itt), &self.device) else { return };
        let Some(scsi) = task.scsi.take() else { return };
        let writes = task.command.direction == Direction::Write;
        let data_out = std::mem::take(&mut task.data_out).freeze(task.wanted() as usize, &mut self.spare);
        add(&self.service.stats.written_bytes, data_out.len() as u64);
        let request = Request {
            task: scsi,
            cdb: task.command.cdb,
            attribute: task.attribute,
            data_out,
            data_out_length: if writes { task.command.expected } else { 0 },
        };
        task.state = State::Running;
        match device.target.execute(request) {
            MaybeReady::Ready(result) => self.completed(itt, result),
            MaybeReady::Pending(result) => self.running.push(Running { itt, result }),
        }
    }

    /// The device has executed a command.
    pub(super) fn completed(&mut self, itt: u32, result: Result<Response, Aborted>) {
        let Some(task) = self.tasks.get_mut(&itt) else { return };
        if task.state == State::Aborted {
            return self.end_aborted(itt);
        }
        let (status, sense, mut data_in) = match result {
            Ok(Response { status, sense, data_in }) => (status as u8, sense, data_in),
            Err(Aborted) => (TASK_ABORTED, None, Views::new()),
        };
        if status != Status::Good as u8 {
            count(&self.service.stats.failed);
        }
        let length = task.length(data_in.len());
        let sent = if task.command.direction == Direction::Read { task.command.expected as usize } else { 0 };
        data_in.truncate(sent);
        let charge = data_in.iter().map(kept_memory).sum();
        self.account.replace(task.charge, charge);
        task.charge = charge;
        task.data_in = data_in;
        task.state = State::Complete;
        self.reported |= sense.is_some();
        let sense = sense.map(|sense| sense.to_bytes().to_vec()).unwrap_or_default();
        self.session.complete(itt, Completion { status, length, sense });
    }

    /// The session has aborted a command.
    fn abort(&mut self, itt: u32) {
        let Some(task) = self.tasks.get_mut(&itt) else { return };
        count(&self.service.stats.aborted);
        self.rdma_reads.retain(|read| read.itt != itt);
        if task.is_in_use() {
            task.state = State::Aborted;
            return;
        }
        if self.waiting.front() == Some(&itt) {
            self.account.cancel();
        }
        self.waiting.retain(|waiting| *waiting != itt);
        self.order.retain(|waiting| *waiting != itt);
        self.end_aborted(itt);
    }

    /// The RDMA Reads of a task have ended, with the buffers that they have filled. An aborted task ends now.
    pub(crate) fn rdma_reads_ended(&mut self, itt: u32, data: impl IntoIterator<Item = Buffer>) {
        let Some(task) = self.tasks.get_mut(&itt) else { return };
        task.reading = false;
        if task.state == State::Aborted {
            return self.end_aborted(itt);
        }
        task.data_out.append(data);
        self.session.rdma_read_done(itt);
        self.process_events();
    }

    fn end_aborted(&mut self, itt: u32) {
        if let Some(task) = self.tasks.remove(&itt) {
            self.account.give(task.charge);
        }
        self.session.complete(itt, Completion::default());
    }

    /// Performs a task management function.
    fn manage(&mut self, itt: u32, function: TaskFunction, lun: u64) {
        let Some(Device { target, nexus }) = &self.device else { return };
        let lun = lun.to_be_bytes();
        let function = match function {
            TaskFunction::ABORT_TASK_SET => Management::AbortTaskSet(lun),
            TaskFunction::CLEAR_TASK_SET => Management::ClearTaskSet(lun),
            TaskFunction::LOGICAL_UNIT_RESET => Management::LunReset(lun),
            TaskFunction::TARGET_WARM_RESET | TaskFunction::TARGET_COLD_RESET => Management::TargetReset,
            _ => return self.session.managed(itt, TaskResult::NOT_SUPPORTED),
        };
        let result = match target.manage(nexus, function) {
            Ok(()) => TaskResult::COMPLETE,
            Err(_) => TaskResult::NO_LUN,
        };
        self.session.managed(itt, result);
    }

    /// Answers a text request, which is SendTargets. Others are rejected, as Linux's target does: libiscsi ends the session
    /// when it receives `NotUnderstood` or `Reject` in a Text Response, the answers of RFC 7143 section 6.2.
    fn begin_text(&mut self, itt: u32, request: &[u8]) {
        let Ok(asked) = SendTargets::decode(request) else {
            return self.session.reject_text(itt, RejectReason::INVALID_PDU_FIELD);
        };
        self.discovered = Some((asked, None));
        self.answer_text(itt);
    }

    /// Answers with the next part of the targets.
    fn answer_text(&mut self, itt: u32) {
        let Some((asked, after)) = self.discovered.take() else { return };
        let Names { initiator, target, local } = &self.names;
        let (table, security) = (&self.service.table, self.service.security());
        let (text, last) =
            table.discover(&asked, after.as_ref(), initiator, security, target.as_ref(), local);
        self.session.answer_text(itt, text, last.is_some());
        self.discovered = last.map(|last| (asked, Some(last)));
    }
}
