//! The initiator's end of a session, without I/O.
//!
//! `InitiatorSession` numbers commands, processes the PDUs of the target, and returns the PDUs to send and an
//! `InitiatorEvent` for each outcome. Connections over TCP and with iSER own one each.

mod receive;
mod send;
mod task;

use std::collections::{HashMap, VecDeque};

use crate::{
    iser::RemoteBuffer,
    negotiation::{IserParameters, Parameters},
    pdu::{LogoutReason, RESERVED_TAG, RejectReason, Residual, TaskFunction, TaskResult},
};

use super::{numbers::CommandCredit, types::Command};
use receive::Receiving;
pub use send::InitiatorPdu;
use task::Task;

/// Number of requests other than commands that a session has in progress.
const MAX_REQUESTS: usize = 8;
/// Number of answers in the queue above which a session accepts no input.
const MAX_BACKLOG: usize = 16;
/// Maximum length of a text answer, in bytes.
const MAX_TEXT: usize = 1 << 20;

/// Settings of an initiator's session.
#[derive(Debug, Clone)]
pub struct InitiatorConfig {
    /// Negotiated parameters.
    pub parameters: Parameters,
    /// Identifier of the connection.
    pub cid: u16,
    /// `CmdSN` of the next command after the login.
    pub cmd_sn: u32,
    /// `MaxCmdSN` of the last Login Response.
    pub max_cmd_sn: u32,
    /// `StatSN` of the next status after the login: that of the last Login Response, plus 1.
    pub exp_stat_sn: u32,
}

/// How a task ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The target completed the command.
    Completed {
        /// SCSI status.
        status: u8,
        /// Sense data, empty if there is none.
        sense: Vec<u8>,
        /// Difference between the expected and the actual length of the data.
        residual: Residual,
        /// Number of bytes at the beginning of the data that were transferred. With a status other than GOOD, a
        /// target may have transferred fewer.
        transferred: u32,
    },
    /// The target failed to execute the command; the code is that of RFC 7143 section 11.4.3.
    TargetFailure(u8),
    /// A task management function aborted the task, or it had not been sent.
    Aborted,
    /// The target rejected the command.
    Rejected(RejectReason),
}

/// An event of a session that the initiator must process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum InitiatorEvent {
    /// A task has ended: its data is not accessed any more, and its tag may be used again.
    Completed {
        /// Tag of the task.
        itt: u32,
        /// How it ended.
        outcome: Outcome,
    },
    /// A task management function has ended. The events of the tasks that it aborted come before.
    Managed {
        /// Tag of the request.
        itt: u32,
        /// Result.
        result: TaskResult,
    },
    /// The target has answered [`InitiatorSession::ping`].
    Pong {
        /// Tag of the request.
        itt: u32,
    },
    /// The target has answered [`InitiatorSession::send_text`].
    Text {
        /// Tag of the request.
        itt: u32,
        /// `key=value` pairs with a NUL after each, as received: not validated.
        text: Vec<u8>,
    },
    /// The target rejected a request that is not a command.
    RequestRejected {
        /// Tag of the request.
        itt: u32,
        /// Reason.
        reason: RejectReason,
    },
    /// The session is closed; the target closes the connection.
    LoggedOut {
        /// Minimum time before another login, in seconds.
        time2wait: u16,
    },
    /// The target requests a logout within this many seconds.
    LogoutRequested {
        /// Time in seconds.
        seconds: u16,
    },
    /// The target drops the connection. The owner logs in again, and sends the unfinished tasks again.
    Dropped {
        /// Minimum time before another login, in seconds.
        time2wait: u16,
    },
    /// A SCSI asynchronous event.
    ScsiEvent {
        /// Logical unit.
        lun: u64,
        /// Sense data.
        sense: Vec<u8>,
    },
}

/// Why a request was not accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// The session logs out, or has ended.
    #[error("the iSCSI session is closing; log in again")]
    Closing,
    /// An RDMA operation must transfer the data, but the command has no buffer, or one beyond the address space.
    #[error("an iSER command with {0} bytes of data has no registered buffer")]
    NoBuffer(u32),
    /// Too many requests other than commands are in progress.
    #[error("too many iSCSI requests are in progress; wait for an answer")]
    Busy,
    /// The data of the request exceeds the data segment that the target receives.
    #[error("the iSCSI request has {length} bytes; the target receives {maximum}")]
    TooLong {
        /// Length in bytes.
        length: usize,
        /// Maximum in bytes.
        maximum: u32,
    },
}

/// A task without an outcome, when the connection has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unfinished {
    /// Tag of the task.
    pub itt: u32,
    /// Command.
    pub command: Command,
    /// Whether the command was sent: the target may have executed it.
    pub sent: bool,
}

/// A request other than a command.
#[derive(Debug)]
enum Request {
    Nop { data: Vec<u8> },
    Task { function: TaskFunction, lun: u64, referenced: u32, ref_cmd_sn: u32, cmd_sn: u32 },
    Text { text: Vec<u8>, ttt: u32, received: Vec<u8> },
    Logout { reason: LogoutReason },
}

/// An item of the queue of PDUs to send.
#[derive(Debug)]
enum Queued {
    /// The answer to a NOP-In.
    Nop { lun: u64, ttt: u32 },
    /// A request other than a command.
    Request { itt: u32 },
    /// Unsolicited data of a task.
    Unsolicited { itt: u32 },
    /// Data of a task that R2Ts request.
    Solicited { itt: u32 },
}

#[derive(Debug, PartialEq, Eq)]
enum State {
    FullFeature,
    /// A logout was requested; no command is sent.
    LoggingOut,
    /// The connection ends; nothing is sent or expected.
    Closed,
}

/// The initiator's end of a session with one connection. [`super`] explains the calls.
///
/// Tasks and other requests are named by their initiator task tags. All requests except commands are immediate.
#[derive(Debug)]
pub struct InitiatorSession {
    config: InitiatorConfig,
    credit: CommandCredit,
    tasks: HashMap<u32, Task>,
    /// Tasks whose commands were not sent, in order.
    waiting: VecDeque<u32>,
    requests: HashMap<u32, Request>,
    queue: VecDeque<Queued>,
    events: VecDeque<InitiatorEvent>,
    receiving: Receiving,
    next_itt: u32,
    state: State,
    /// Whether data is unsolicited only if it is all data of a command.
    whole_unsolicited: bool,
}

impl InitiatorSession {
    /// A session whose login is complete.
    pub fn new(config: InitiatorConfig) -> Self {
        Self {
            credit: CommandCredit::new(config.cmd_sn, config.max_cmd_sn, config.exp_stat_sn),
            tasks: HashMap::new(),
            waiting: VecDeque::new(),
            requests: HashMap::new(),
            queue: VecDeque::new(),
            events: VecDeque::new(),
            receiving: Receiving::Nothing,
            next_itt: 0,
            state: State::FullFeature,
            whole_unsolicited: false,
            config,
        }
    }

    /// Sends data before the target asks for it only if it is all data of a command. With iSER, an RDMA Read takes as long
    /// for all data as for a part, and both ends copy immediate data.
    #[must_use]
    pub fn with_whole_unsolicited_data(self) -> Self {
        Self { whole_unsolicited: true, ..self }
    }

    /// The next event.
    pub fn poll_event(&mut self) -> Option<InitiatorEvent> {
        self.events.pop_front()
    }

    /// Whether the owner may call [`InitiatorSession::begin`]. If not, too many answers wait to be sent: the owner
    /// takes them first.
    pub fn accepts_input(&self) -> bool {
        self.queue.iter().filter(|q| matches!(q, Queued::Nop { .. })).count() < MAX_BACKLOG
    }

    /// Queues a command and returns its tag. It is sent when the target's command window allows it. `buffer` is, with
    /// iSER, the registered memory of all the data of the command. The owner keeps the data until the task's event.
    ///
    /// # Errors
    ///
    /// The session closes, or the buffer is missing.
    pub fn submit(&mut self, command: Command, buffer: Option<RemoteBuffer>) -> Result<u32, RequestError> {
        if self.state != State::FullFeature {
            return Err(RequestError::Closing);
        }
        let itt = self.free_itt();
        let task = Task::new(itt, command, buffer, &self.config.parameters, self.whole_unsolicited)?;
        self.tasks.insert(itt, task);
        self.waiting.push_back(itt);
        Ok(itt)
    }

    /// Aborts a task. A task that was not sent ends at once, and the result is `None`. Otherwise the result is the tag
    /// of an ABORT TASK; the task ends with its response or with that of the function. Also `None` if the task does
    /// not exist.
    ///
    /// # Errors
    ///
    /// The session closes, or too many requests are in progress.
    pub fn abort(&mut self, itt: u32) -> Result<Option<u32>, RequestError> {
        let Some(task) = self.tasks.get(&itt) else {
            return Ok(None);
        };
        let Some(ref_cmd_sn) = task.cmd_sn else {
            self.waiting.retain(|&tag| tag != itt);
            self.end_task(itt, Outcome::Aborted);
            return Ok(None);
        };
        let (function, lun) = (TaskFunction::ABORT_TASK, task.command.lun);
        self.request(Request::Task { function, lun, referenced: itt, ref_cmd_sn, cmd_sn: 0 }).map(Some)
    }

    /// Requests a task management function on a logical unit, or with a target reset on all of them, and returns its
    /// tag. It affects the tasks that were sent before it. ABORT TASK is [`InitiatorSession::abort`].
    ///
    /// # Errors
    ///
    /// The session closes, or too many requests are in progress.
    pub fn manage(&mut self, function: TaskFunction, lun: u64) -> Result<u32, RequestError> {
        self.request(Request::Task { function, lun, referenced: RESERVED_TAG, ref_cmd_sn: 0, cmd_sn: 0 })
    }

    /// Sends a NOP-Out with `data`, which the target echoes, and returns its tag.
    ///
    /// # Errors
    ///
    /// The session closes, too many requests are in progress, or the data is too long.
    pub fn ping(&mut self, data: Vec<u8>) -> Result<u32, RequestError> {
        self.check_length(&data)?;
        self.request(Request::Nop { data })
    }

    /// Sends a text request, such as `SendTargets`, and returns its tag. `text` is `key=value` pairs with a NUL after
    /// each.
    ///
    /// # Errors
    ///
    /// The session closes, too many requests are in progress, another text request is in progress, or the text is too
    /// long.
    pub fn send_text(&mut self, text: Vec<u8>) -> Result<u32, RequestError> {
        self.check_length(&text)?;
        if self.requests.values().any(|r| matches!(r, Request::Text { .. })) {
            return Err(RequestError::Busy);
        }
        self.request(Request::Text { text, ttt: RESERVED_TAG, received: Vec::new() })
    }

    /// Closes the session. Commands that were not sent remain unfinished; the target aborts those that it has.
    ///
    /// # Errors
    ///
    /// The session closes already, or too many requests are in progress.
    pub fn logout(&mut self) -> Result<u32, RequestError> {
        let itt = self.request(Request::Logout { reason: LogoutReason::SESSION })?;
        self.state = State::LoggingOut;
        Ok(itt)
    }

    /// The tasks without an outcome, in the order in which they were submitted. After the end of the connection, the
    /// owner may send their commands again in another session.
    pub fn unfinished(&self) -> Vec<Unfinished> {
        let mut sent: Vec<_> = self.tasks.values().filter(|t| t.cmd_sn.is_some()).collect();
        // Ages instead of numbers, because the numbers wrap.
        sent.sort_by_key(|t| t.cmd_sn.map(|n| std::cmp::Reverse(self.credit.next().wrapping_sub(n))));
        let waiting = self.waiting.iter().filter_map(|itt| self.tasks.get(itt));
        let list = |t: &Task| Unfinished { itt: t.itt, command: t.command, sent: t.cmd_sn.is_some() };
        sent.into_iter().chain(waiting).map(list).collect()
    }

    fn request(&mut self, request: Request) -> Result<u32, RequestError> {
        if self.state != State::FullFeature {
            return Err(RequestError::Closing);
        }
        let max = match self.config.parameters.iser {
            Some(IserParameters { max_unexpected_pdus: max @ 1.., .. }) => MAX_REQUESTS.min(max as usize),
            _ => MAX_REQUESTS,
        };
        if self.requests.len() >= max {
            return Err(RequestError::Busy);
        }
        let itt = self.free_itt();
        self.requests.insert(itt, request);
        self.queue.push_back(Queued::Request { itt });
        Ok(itt)
    }

    const fn check_length(&self, data: &[u8]) -> Result<(), RequestError> {
        let maximum = self.config.parameters.max_send_data;
        if data.len() > maximum as usize {
            return Err(RequestError::TooLong { length: data.len(), maximum });
        }
        Ok(())
    }

    fn free_itt(&mut self) -> u32 {
        loop {
            let itt = self.next_itt;
            self.next_itt = itt.wrapping_add(1);
            if itt != RESERVED_TAG && !self.tasks.contains_key(&itt) && !self.requests.contains_key(&itt) {
                return itt;
            }
        }
    }

    fn end_task(&mut self, itt: u32, outcome: Outcome) {
        self.tasks.remove(&itt);
        self.events.push_back(InitiatorEvent::Completed { itt, outcome });
    }
}
