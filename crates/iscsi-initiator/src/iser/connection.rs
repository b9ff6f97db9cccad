//! The full feature phase of a connection.

use std::{
    collections::HashMap,
    sync::Arc,
    task::{Context, Poll, ready},
};

use millrace_iscsi::{
    iser::{PREFIX_BYTES, RemoteBuffer},
    login::Established,
    pdu::TaskFunction,
    session::{
        Command, Direction, InitiatorConfig, InitiatorEvent, InitiatorPdu, InitiatorSession, Outcome,
        Payload, Placement, RequestError, Unfinished,
    },
};
use millrace_rdma::{Access, DomainRef, ExposedRegion, Memory, MemoryRegion, RegistrationKind};

use crate::iser::{
    Error, SubmitError, SubmitReason,
    messages::{Messages, Received},
};

/// Maximum data segment that the initiator receives, in bytes: sense data, and a part of a text.
pub(crate) const MAX_DATA: u32 = 512;
/// Length of receives: a slot of the arena. Responses have no additional header segments.
const MESSAGE: usize = 1024;
const _: () = assert!(PREFIX_BYTES + MAX_DATA as usize <= MESSAGE);
/// `MaxOutstandingUnexpectedPDUs`: PDUs that the initiator does not foresee, and has receives for.
pub(crate) const UNEXPECTED: u32 = 8;
/// Receives for the answers of requests other than commands, of which a session has 8 at a time.
const REQUESTS: usize = 8;

/// Memory windows of a connection. The memory of further commands is registered.
const WINDOWS: usize = 128;
/// Maximum bytes of a command that a window covers.
const WINDOW_BYTES: usize = 4 << 20;

/// An event of a connection.
#[derive(Debug)]
pub enum Event {
    /// A command has ended. The target can no longer access its memory.
    Completed {
        /// Tag of the task.
        itt: u32,
        /// How it ended.
        outcome: Outcome,
        /// The memory of the command; `None` if it had none, or if it was lost with the connection.
        memory: Option<Memory>,
    },
    /// Another event of the session; never [`InitiatorEvent::Completed`].
    Session(InitiatorEvent),
}

/// The memory of a command.
enum Data {
    None,
    /// The target can access it.
    Exposed(ExposedRegion),
    /// The target has no access to it: all of it is sent as immediate data.
    Private(Memory),
}

impl Data {
    /// Copies the first bytes.
    fn copy_to(&self, to: &mut [u8]) -> bool {
        match self {
            Self::None => to.is_empty(),
            Self::Exposed(region) => region.copy_out(to),
            Self::Private(memory) => memory.copy_out(to),
        }
    }

    /// Ends the access of the target.
    fn into_memory(self) -> Option<Memory> {
        match self {
            Self::None => None,
            Self::Exposed(region) => region.revoke().map(MemoryRegion::into_memory),
            Self::Private(memory) => Some(memory),
        }
    }
}

/// The initiator's end of a session with iSER, owned by one task. [`Self::poll_event`] drives it.
///
/// Dropping it ends the connection, and first the access of the target to the memory of commands.
pub struct InitiatorConnection {
    /// The memory of the tasks. It is dropped before the queue pair.
    tasks: HashMap<u32, Data>,
    domain: DomainRef,
    messages: Messages,
    session: InitiatorSession,
    established: Established,
    /// Bytes of immediate data that a write can have.
    immediate: u32,
}

impl InitiatorConnection {
    pub(crate) fn new(mut messages: Messages, established: Established) -> Result<Self, Error> {
        let parameters = established.parameters;
        messages.set_receive_length(MESSAGE);
        let domain = messages.qp.domain();
        domain.reserve_windows(WINDOWS, WINDOW_BYTES);
        let mut connection = Self {
            tasks: HashMap::new(),
            domain,
            messages,
            session: InitiatorSession::new(InitiatorConfig {
                parameters,
                cid: established.cid,
                cmd_sn: established.cmd_sn,
                max_cmd_sn: established.max_cmd_sn,
                exp_stat_sn: established.stat_sn,
            })
            .with_whole_unsolicited_data(),
            immediate: match parameters.immediate_data {
                true => parameters.first_burst.min(parameters.max_send_data),
                false => 0,
            },
            established,
        };
        connection.post_receives(0)?;
        Ok(connection)
    }

    /// The result of the login.
    pub fn established(&self) -> &Established {
        &self.established
    }

    /// Submits a command with the memory of its data, and returns its tag. The memory of a read is owned; that of a
    /// write may be shared, in one piece. Its length is [`Command::expected`]. The command is sent when the target's
    /// command window allows it.
    ///
    /// # Errors
    /// The session is closing, the memory has another length, or it cannot be exposed.
    pub fn submit(&mut self, command: Command, memory: Option<Memory>) -> Result<u32, SubmitError> {
        let (provided, expected) = (memory.as_ref().map_or(0, Memory::len), command.expected);
        if provided != expected as usize {
            return Err(SubmitError { memory, reason: SubmitReason::Length { provided, expected } });
        }
        let reason = match self.post_receives(self.tasks.len() + 1) {
            Ok(()) => None,
            Err(Error::Memory(e)) => Some(SubmitReason::Memory(e)),
            Err(_) => Some(SubmitReason::Ended),
        };
        if let Some(reason) = reason {
            return Err(SubmitError { memory, reason });
        }
        let data = self.expose(&command, memory)?;
        let buffer = match &data {
            Data::Exposed(region) => {
                let segment = region.segment();
                Some(RemoteBuffer { stag: segment.handle.0, base: segment.offset })
            }
            Data::None | Data::Private(_) => None,
        };
        match self.session.submit(command, buffer) {
            Ok(itt) => {
                self.tasks.insert(itt, data);
                Ok(itt)
            }
            Err(e) => Err(SubmitError { memory: data.into_memory(), reason: e.into() }),
        }
    }

    /// Exposes memory as far as the command needs it, through a window or, without a free one, by registration.
    fn expose(&self, command: &Command, memory: Option<Memory>) -> Result<Data, SubmitError> {
        let Some(memory) = memory else { return Ok(Data::None) };
        let access = match command.direction {
            Direction::None => return Ok(Data::Private(memory)),
            Direction::Write if command.expected <= self.immediate => return Ok(Data::Private(memory)),
            Direction::Write => Access::RemoteRead,
            Direction::Read => Access::RemoteWrite,
        };
        let region = |memory| MemoryRegion::new(Arc::clone(&self.domain), memory);
        let region = region(memory)
            .expose_by(RegistrationKind::Window, access)
            .or_else(|e| region(e.memory).expose(access))
            .map_err(|e| SubmitError { memory: Some(e.memory), reason: SubmitReason::Expose(e.reason) })?;
        if region.segments().len() == 1 {
            return Ok(Data::Exposed(region));
        }
        let memory = region.revoke().map(MemoryRegion::into_memory);
        Err(SubmitError { memory, reason: SubmitReason::Expose("the region has several segments") })
    }

    /// Aborts a task, as [`InitiatorSession::abort`]. Its memory returns with [`Event::Completed`], after the target
    /// has ended its RDMA operations.
    ///
    /// # Errors
    /// Those of [`InitiatorSession::abort`].
    pub fn abort(&mut self, itt: u32) -> Result<Option<u32>, RequestError> {
        self.session.abort(itt)
    }

    /// Requests a task management function, as [`InitiatorSession::manage`].
    ///
    /// # Errors
    /// Those of [`InitiatorSession::manage`].
    pub fn manage(&mut self, function: TaskFunction, lun: u64) -> Result<u32, RequestError> {
        self.session.manage(function, lun)
    }

    /// Sends a NOP-Out without data, which the target answers, as [`InitiatorSession::ping`].
    ///
    /// # Errors
    /// Those of [`InitiatorSession::ping`].
    pub fn ping(&mut self) -> Result<u32, RequestError> {
        self.session.ping(Vec::new())
    }

    /// Sends a text request, as [`InitiatorSession::send_text`].
    ///
    /// # Errors
    /// Those of [`InitiatorSession::send_text`].
    pub fn send_text(&mut self, text: Vec<u8>) -> Result<u32, RequestError> {
        self.session.send_text(text)
    }

    /// Closes the session, as [`InitiatorSession::logout`]. Drop the connection after
    /// [`InitiatorEvent::LoggedOut`].
    ///
    /// # Errors
    /// Those of [`InitiatorSession::logout`].
    pub fn logout(&mut self) -> Result<u32, RequestError> {
        self.session.logout()
    }

    /// Drives the connection, and returns the next event. After requests of the caller, it is to be polled so that
    /// they are sent. After an error, the connection has ended: [`Self::into_unfinished`] returns the tasks.
    pub fn poll_event(&mut self, cx: &mut Context<'_>) -> Poll<Result<Event, Error>> {
        loop {
            if let Some(event) = self.session.poll_event() {
                return Poll::Ready(Ok(self.event(event)));
            }
            self.transmit()?;
            if self.session.accepts_input()
                && let Some(message) = self.messages.next()
            {
                self.process(&message)?;
                drop(message);
                self.post_receives(self.tasks.len())?;
                continue;
            }
            ready!(self.messages.poll(cx))?;
        }
    }

    /// Ends the connection. Returns the tasks without an outcome, in the order in which they were submitted, with their
    /// memory, which the target can no longer access. `None` for a task without memory, and for memory that was lost
    /// with the connection.
    pub fn into_unfinished(mut self) -> Vec<(Unfinished, Option<Memory>)> {
        let unfinished = self.session.unfinished();
        let mut memory = |itt| self.tasks.remove(&itt).and_then(Data::into_memory);
        unfinished.into_iter().map(|task| (task, memory(task.itt))).collect()
    }

    /// Posts one receive for each of `tasks` tasks, and those for other PDUs.
    fn post_receives(&mut self, tasks: usize) -> Result<(), Error> {
        self.messages.post_receives(tasks + REQUESTS + UNEXPECTED as usize)
    }

    fn event(&mut self, event: InitiatorEvent) -> Event {
        match event {
            InitiatorEvent::Completed { itt, outcome } => {
                let memory = self.tasks.remove(&itt).and_then(Data::into_memory);
                Event::Completed { itt, outcome, memory }
            }
            other => Event::Session(other),
        }
    }

    fn transmit(&mut self) -> Result<(), Error> {
        while self.messages.has_room()
            && let Some(pdu) = self.session.poll_transmit()
        {
            self.send(&pdu)?;
        }
        Ok(())
    }

    fn send(&mut self, pdu: &InitiatorPdu) -> Result<(), Error> {
        let length = pdu.data.length() as usize;
        let mut complete = true;
        self.messages.send(pdu.advertised, &pdu.encode(), length, |to| match &pdu.data {
            Payload::Bytes(bytes) => to.copy_from_slice(bytes),
            // Immediate data: its offset is 0, because there are no Data-Out PDUs.
            Payload::Task { itt, .. } => {
                complete = self.tasks.get(itt).is_some_and(|data| data.copy_to(to));
            }
        })?;
        match complete {
            true => Ok(()),
            false => Err(Error::Copy),
        }
    }

    fn process(&mut self, message: &Received) -> Result<(), Error> {
        let pdu = message.pdu()?;
        let place = self.session.begin(pdu.bhs, pdu.ahs, message.invalidated)?;
        let control = match place {
            Placement::Control { .. } => pdu.data,
            // With iSER, no PDU has data of a task.
            Placement::None | Placement::Task { .. } | Placement::Discard { .. } => &[],
        };
        Ok(self.session.finish(control)?)
    }
}
