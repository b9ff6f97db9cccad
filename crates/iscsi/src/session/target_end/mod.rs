//! The target's end of a session, without I/O.
//!
//! `TargetSession` orders commands by their numbers, requests their data (R2T, or RDMA Reads with iSER), and
//! returns the PDUs to send and a `TargetEvent` for each command and request. Each connection of the crate
//! `iscsi-target` owns one.

mod manage;
mod receive;
mod send;
mod task;
mod text;

use std::collections::{HashMap, VecDeque};

use crate::{
    iser::RemoteBuffer,
    negotiation::{IserParameters, Parameters},
    pdu::{
        AsyncEvent, AsyncMessage, BHS_BYTES, Bhs, LogoutResult, Numbers, RESERVED_TAG, RejectReason,
        TaskFunction, TaskResult,
    },
};

use super::{
    numbers::{CommandWindow, StatusNumbers},
    types::Command,
};
use manage::Management;
use receive::Receiving;
pub use send::{TargetPdu, TargetTransmit};
use task::{Progress, Task};
use text::Exchange;

/// Number of immediate SCSI Commands that a session executes at a time, beyond the window.
pub const MAX_IMMEDIATE: usize = 4;
/// Number of answers in the queue above which a session accepts no input.
const MAX_BACKLOG: usize = 16;

/// Settings of a target's session.
#[derive(Debug, Clone)]
pub struct TargetConfig {
    /// Negotiated parameters.
    pub parameters: Parameters,
    /// With iSER, the initiator accepts, and the target posts, Send with Invalidate.
    pub remote_invalidate: bool,
    /// Whether the session is a discovery session, which has no tasks.
    pub discovery: bool,
    /// Identifier of the connection.
    pub cid: u16,
    /// `StatSN` of the next status after the login.
    pub stat_sn: u32,
    /// `CmdSN` of the next command after the login.
    pub exp_cmd_sn: u32,
    /// Maximum number of tasks, at least 1. The command window closes when the session has as many.
    pub max_tasks: u32,
    /// Maximum of immediate and unsolicited data of all tasks, in bytes. It reduces the number of tasks, to no less
    /// than 1.
    pub max_unsolicited: u64,
}

/// An action that the owner of a target's session must perform.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TargetEvent {
    /// Execute a command. Commands come in the order of their numbers. For a write, the owner calls
    /// [`TargetSession::fetch`] when it has a buffer for the data; for every command, it calls
    /// [`TargetSession::complete`] in the end.
    Execute {
        /// Tag of the task.
        itt: u32,
        /// Command.
        command: Command,
    },
    /// The data that [`TargetSession::fetch`] requested is complete.
    DataReady {
        /// Tag of the task.
        itt: u32,
    },
    /// Issue RDMA Reads of `length` bytes from `source`, and call [`TargetSession::rdma_read_done`].
    RdmaRead {
        /// Tag of the task.
        itt: u32,
        /// Memory of the initiator; its base is the address of the first of these bytes.
        source: RemoteBuffer,
        /// Offset of the first byte in the task's data.
        offset: u32,
        /// Length in bytes.
        length: u32,
    },
    /// The task is aborted, and no response will be sent. Unless the owner has completed the task before, it ends the
    /// execution and all RDMA operations of the task, and then calls [`TargetSession::complete`], whose completion is
    /// not used.
    Abort {
        /// Tag of the task.
        itt: u32,
    },
    /// Perform a task management function, and call [`TargetSession::managed`]. The session itself aborts its tasks.
    /// The owner checks the logical unit, and completes the affected tasks of other sessions with TASK ABORTED.
    Manage {
        /// Tag of the request.
        itt: u32,
        /// The function; never ABORT TASK.
        function: TaskFunction,
        /// Logical unit, if the function has one.
        lun: u64,
    },
    /// Answer a text request with [`TargetSession::answer_text`]: `SendTargets`, or keys to reject.
    Text {
        /// Tag of the request.
        itt: u32,
        /// `key=value` pairs with a NUL after each, as received: not validated.
        text: Vec<u8>,
    },
    /// Continue the answer to a text request, which has `more` text, with [`TargetSession::answer_text`].
    MoreText {
        /// Tag of the request.
        itt: u32,
    },
}

/// The result of a command.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Completion {
    /// SCSI status.
    pub status: u8,
    /// Number of bytes of data that the command has (SPDTL of RFC 7143 section 11.4.5), for the residual count. A read
    /// sends the lesser of this and the expected length. A command that fails without data has 0.
    pub length: u64,
    /// Sense data, empty if there is none.
    pub sense: Vec<u8>,
}

/// A PDU, or an RDMA Write, in the queue.
#[derive(Debug)]
enum Queued {
    /// The answer to a NOP-Out.
    Nop {
        itt: u32,
        lun: u64,
        data: Vec<u8>,
    },
    /// The session's NOP-In.
    Ping,
    /// The data of a read and the response of a task.
    Scsi {
        itt: u32,
    },
    R2t {
        itt: u32,
        ttt: u32,
    },
    Task {
        itt: u32,
        result: TaskResult,
    },
    Text(text::Piece),
    Logout {
        itt: u32,
        result: LogoutResult,
    },
    Async {
        message: AsyncMessage,
        data: Vec<u8>,
    },
    Reject {
        reason: RejectReason,
        header: Box<Bhs>,
    },
    Close,
}

#[derive(Debug, PartialEq, Eq)]
enum State {
    FullFeature,
    /// A logout was requested with this tag; the tasks have not all ended.
    LoggingOut {
        itt: u32,
    },
    /// Received PDUs have no effect.
    Closing,
}

/// The target's end of a session with one connection. [`super`] explains the calls.
///
/// A task is named by its initiator task tag, which is unique until the task ends: when the PDU that ends it
/// ([`TargetPdu::ends`]) is taken, or when the owner completes it after [`TargetEvent::Abort`].
#[derive(Debug)]
pub struct TargetSession {
    config: TargetConfig,
    window: CommandWindow,
    status: StatusNumbers,
    max_tasks: u32,
    tasks: HashMap<u32, Task>,
    management: Management,
    exchange: Option<Exchange>,
    receiving: Receiving,
    /// The header of the current request.
    bhs: Bhs,
    events: VecDeque<TargetEvent>,
    queue: VecDeque<Queued>,
    /// The tag of the session's NOP-In that has no answer.
    ping: Option<u32>,
    /// Status numbers of unexpected PDUs that were sent.
    unexpected: Vec<u32>,
    /// The status number of the last response with sense data.
    sense: Option<u32>,
    next_ttt: u32,
    state: State,
}

impl TargetSession {
    /// A session whose login is complete.
    pub fn new(config: TargetConfig) -> Self {
        let mut session = Self {
            window: CommandWindow::new(config.exp_cmd_sn),
            status: StatusNumbers::new(config.stat_sn),
            max_tasks: 1,
            tasks: HashMap::new(),
            management: Management::default(),
            exchange: None,
            receiving: Receiving::Nothing,
            bhs: [0; BHS_BYTES],
            events: VecDeque::new(),
            queue: VecDeque::new(),
            ping: None,
            unexpected: Vec::new(),
            sense: None,
            next_ttt: 0,
            state: State::FullFeature,
            config,
        };
        session.set_max_tasks(session.config.max_tasks);
        session.window.open(session.free_tasks());
        session
    }

    /// The numbers of the last Login Response.
    pub const fn login_numbers(&self) -> Numbers {
        Numbers {
            stat_sn: self.status.next().wrapping_sub(1),
            exp_cmd_sn: self.window.expected(),
            max_cmd_sn: self.window.max(),
        }
    }

    /// Changes the maximum number of tasks, at least 1. A lower maximum takes effect as the initiator uses the
    /// commands that the window allows already.
    pub fn set_max_tasks(&mut self, max_tasks: u32) {
        let Parameters { initial_r2t, immediate_data, first_burst, .. } = self.config.parameters;
        let unsolicited = if initial_r2t && !immediate_data { 0 } else { u64::from(first_burst) };
        let memory = self.config.max_unsolicited.checked_div(unsolicited);
        let memory = memory.map_or(u32::MAX, |tasks| u32::try_from(tasks).unwrap_or(u32::MAX));
        self.max_tasks = max_tasks.min(memory).max(1);
    }

    /// Whether the owner may call [`TargetSession::begin`]. If not, too many answers wait to be sent: the owner takes
    /// them first.
    pub fn accepts_input(&self) -> bool {
        self.answers().count() < MAX_BACKLOG
    }

    /// Lengths of the data segments of answers that wait to be sent.
    pub fn answers(&self) -> impl Iterator<Item = usize> {
        self.queue.iter().filter_map(|queued| match queued {
            Queued::Scsi { .. } | Queued::R2t { .. } => None,
            Queued::Nop { data, .. } | Queued::Async { data, .. } => Some(data.len()),
            Queued::Text(piece) => Some(piece.text.len()),
            Queued::Reject { .. } => Some(BHS_BYTES),
            Queued::Ping | Queued::Task { .. } | Queued::Logout { .. } | Queued::Close => Some(0),
        })
    }

    /// Lengths of the data that the session holds: those of [`Self::answers`], and that of the text of an exchange.
    pub fn held(&self) -> impl Iterator<Item = usize> {
        self.answers().chain(self.exchange.iter().map(Exchange::held))
    }

    /// The command of a task.
    pub fn command(&self, itt: u32) -> Option<&Command> {
        self.tasks.get(&itt).map(|task| &task.command)
    }

    /// The tags of the tasks that have not ended, in any order. When the connection ends, the owner ends them.
    pub fn tasks(&self) -> impl Iterator<Item = u32> {
        self.tasks.keys().copied()
    }

    /// The next event.
    pub fn poll_event(&mut self) -> Option<TargetEvent> {
        self.events.pop_front()
    }

    /// Requests the first `length` bytes of a write's data, at most as many as the initiator expects to send; the
    /// command may need fewer. The session reports [`TargetEvent::DataReady`]. Without effect on an aborted task.
    pub fn fetch(&mut self, itt: u32, length: u32) {
        if let Some(task) = self.tasks.get_mut(&itt) {
            task.fetch(length);
            self.progress(itt);
        }
    }

    /// The RDMA Reads of [`TargetEvent::RdmaRead`] are complete.
    pub fn rdma_read_done(&mut self, itt: u32) {
        if let Some(task) = self.tasks.get_mut(&itt) {
            task.rdma_read_done();
            self.progress(itt);
        }
    }

    /// Completes a task, or confirms that an aborted one has ended. No RDMA Read of the task is in progress. A write
    /// may be completed before its data is complete; the response waits for the data in flight. No effect on a task
    /// that does not exist or has a completion.
    pub fn complete(&mut self, itt: u32, completion: Completion) {
        let Some(task) = self.tasks.get_mut(&itt) else {
            return;
        };
        if task.is_aborted() {
            self.end_task(itt);
        } else if task.complete(completion) {
            self.cancel_data_events(itt);
            self.progress(itt);
        }
    }

    /// Whether the initiator has received the sense data of all completed tasks: it has acknowledged their status.
    pub fn sense_acknowledged(&self) -> bool {
        let waits = |task: &Task| task.finished().is_some_and(|completion| !completion.sense.is_empty());
        self.sense.is_none_or(|number| self.status.is_acknowledged(number)) && !self.tasks.values().any(waits)
    }

    /// Sends a NOP-In that the initiator must answer. Returns whether it was queued: not while another has no answer,
    /// or while the initiator accepts no unexpected PDU.
    pub fn ping(&mut self) -> bool {
        if self.ping.is_some() || !self.allows_unexpected() {
            return false;
        }
        self.ping = Some(self.take_ttt());
        self.queue.push_back(Queued::Ping);
        true
    }

    /// Whether a NOP-In of [`TargetSession::ping`] has no answer yet.
    pub const fn ping_outstanding(&self) -> bool {
        self.ping.is_some()
    }

    /// Requests that the initiator log out within `seconds`. Returns whether the message was queued: not while the
    /// initiator accepts no unexpected PDU.
    pub fn request_logout(&mut self, seconds: u16) -> bool {
        self.send_async(0, AsyncEvent::LOGOUT, [0, 0, seconds], Vec::new())
    }

    /// Announces that the target drops the connection, which is closed after the message. Without effect on a session
    /// that closes already.
    pub fn drop_connection(&mut self) {
        if self.state == State::Closing {
            return;
        }
        let cid = self.config.cid;
        let Parameters { time2wait, time2retain, .. } = self.config.parameters;
        self.send_async(0, AsyncEvent::DROP_CONNECTION, [cid, time2wait, time2retain], Vec::new());
        self.close();
    }

    /// Reports a SCSI asynchronous event with sense data. Returns whether the message was queued: not while the
    /// initiator accepts no unexpected PDU, or if the sense data is too long.
    pub fn report_event(&mut self, lun: u64, sense: &[u8]) -> bool {
        let data = send::sense_segment(sense);
        data.len() <= self.config.parameters.max_send_data as usize
            && self.send_async(lun, AsyncEvent::SCSI, [0; 3], data)
    }

    fn send_async(&mut self, lun: u64, event: AsyncEvent, parameters: [u16; 3], data: Vec<u8>) -> bool {
        let allowed = self.state == State::FullFeature && self.allows_unexpected();
        if allowed {
            let numbers = Numbers::default();
            let message = AsyncMessage { lun, numbers, event, vendor_code: 0, parameters };
            self.queue.push_back(Queued::Async { message, data });
        }
        allowed
    }

    /// Whether the initiator can receive another PDU that it does not foresee (RFC 7145 section 8.1). Of those that
    /// were sent, it has received the ones that it has acknowledged or answered.
    fn allows_unexpected(&mut self) -> bool {
        let Some(IserParameters { max_unexpected_pdus: max @ 1.., .. }) = self.config.parameters.iser else {
            return true;
        };
        self.unexpected.retain(|&number| !self.status.is_acknowledged(number));
        let queued =
            self.queue.iter().filter(|q| matches!(q, Queued::Async { .. } | Queued::Reject { .. })).count();
        let outstanding = self.unexpected.len() + queued + usize::from(self.ping.is_some());
        outstanding < max as usize
    }

    fn take_ttt(&mut self) -> u32 {
        let ttt = self.next_ttt;
        self.next_ttt = match ttt.wrapping_add(1) {
            RESERVED_TAG => 0,
            next => next,
        };
        ttt
    }

    fn free_tasks(&self) -> u32 {
        let ordered = self.tasks.values().filter(|task| !task.immediate).count();
        self.max_tasks.saturating_sub(u32::try_from(ordered).unwrap_or(u32::MAX))
    }

    /// Advances a task after data has arrived or the SCSI layer has decided something.
    fn progress(&mut self, itt: u32) {
        loop {
            let ttt = self.next_ttt;
            let Some(task) = self.tasks.get_mut(&itt) else {
                return;
            };
            match task.progress(&self.config.parameters, ttt) {
                Progress::Waiting => return,
                Progress::R2t { ttt } => {
                    self.take_ttt();
                    self.queue.push_back(Queued::R2t { itt, ttt });
                }
                Progress::RdmaRead { source, offset, length } => {
                    self.events.push_back(TargetEvent::RdmaRead { itt, source, offset, length });
                    return;
                }
                Progress::Ready => self.events.push_back(TargetEvent::DataReady { itt }),
                Progress::Finish => {
                    self.queue.push_back(Queued::Scsi { itt });
                    return;
                }
            }
        }
    }

    /// Removes events of a task that needs no more data.
    fn cancel_data_events(&mut self, itt: u32) {
        self.events.retain(|event| match event {
            TargetEvent::DataReady { itt: task } | TargetEvent::RdmaRead { itt: task, .. } => *task != itt,
            _ => true,
        });
    }

    const fn is_rdma(&self) -> bool {
        self.config.parameters.iser.is_some()
    }

    /// Removes a task that has ended and continues what waited for it.
    fn end_task(&mut self, itt: u32) {
        self.tasks.remove(&itt);
        self.task_ended(itt);
    }

    /// Ignores received PDUs from now on, and closes the connection after the queued PDUs.
    fn close(&mut self) {
        self.state = State::Closing;
        self.queue.push_back(Queued::Close);
    }
}
