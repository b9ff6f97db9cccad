//! A connection in the full feature phase, over TCP or with iSER.
//!
//! `Connection` hides the transport from the device's task (`engine`): it submits commands, receives and
//! sends PDUs, and returns their events. `TaskData` gives it the memory of a task.

mod iser;
mod tcp;

use std::{io, task::Context, time::Duration};

use millrace_buffer::{Arena, Views};
use millrace_iscsi::session::{Command, InitiatorEvent, RequestError, Violation};
use millrace_iscsi::stream::Broken;
use millrace_rdma::Memory;

pub(crate) use iser::IserConnection;
pub(crate) use tcp::TcpConnection;

/// Time that a target has to close the connection after its response to a logout. Linux's isert reports an error if the
/// initiator closes the connection before isert has processed the completion of this response.
pub(crate) const CLOSE_LIMIT: Duration = Duration::from_millis(50);

/// Why a connection ended.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Lost {
    /// The stream ended or has an invalid PDU.
    #[error(transparent)]
    Broken(#[from] Broken),
    /// The target violates the protocol.
    #[error(transparent)]
    Violation(#[from] Violation),
    /// The connection with iSER ended, or the target violates its protocol.
    #[error(transparent)]
    Iser(#[from] crate::iser::Error),
    /// The target is silent, or a command has no outcome within the time limit.
    #[error("the target does not answer")]
    Silent,
    /// The target ended the session; another login should wait for this number of seconds.
    #[error("the target ended the session")]
    Ended(u16),
}

impl From<io::Error> for Lost {
    fn from(e: io::Error) -> Self {
        Self::Broken(e.into())
    }
}

/// The data of the tasks of a connection.
pub(crate) trait TaskData {
    /// The memory for `length` bytes at `offset` of the data that the task receives; `None` to discard them.
    fn memory(&mut self, itt: u32, offset: usize, length: usize) -> Option<&mut [u8]>;

    /// `length` bytes at `offset` of the data that the task sends.
    fn views(&self, itt: u32, offset: usize, length: usize) -> Views;

    /// Takes back the memory of a task with iSER, which the target can no longer access. `None`: it had none, or it was
    /// lost with the connection. Returns `false` if the task therefore lacks data that it received.
    fn take_back(&mut self, itt: u32, memory: Option<Memory>) -> bool;
}

/// A logged-in connection.
pub(crate) enum Connection {
    Tcp(Box<TcpConnection>),
    Iser(Box<IserConnection>),
}

impl Connection {
    /// The arena for the memory that commands have with iSER; `None` over TCP, where they have none.
    pub(crate) fn arena(&self) -> Option<&Arena> {
        match self {
            Self::Tcp(_) => None,
            Self::Iser(iser) => Some(&iser.arena),
        }
    }

    /// A number that grows with what the target sends.
    pub(crate) fn received(&self) -> u64 {
        match self {
            Self::Tcp(tcp) => tcp.received(),
            Self::Iser(iser) => iser.received(),
        }
    }

    /// Submits a command, with iSER with the memory of its data.
    ///
    /// # Errors
    /// The session accepts no command, or the memory cannot be used. Returns the memory, unless it is lost.
    pub(crate) fn submit(&mut self, command: Command, memory: Option<Memory>) -> Result<u32, Option<Memory>> {
        match self {
            Self::Tcp(tcp) => tcp.session.submit(command, None).map_err(|_| memory),
            Self::Iser(iser) => iser.submit(command, memory),
        }
    }

    /// Sends a NOP-Out, which the target answers.
    pub(crate) fn ping(&mut self) -> Result<u32, RequestError> {
        match self {
            Self::Tcp(tcp) => tcp.session.ping(Vec::new()),
            Self::Iser(iser) => iser.inner.ping(),
        }
    }

    /// Sends a text request.
    pub(crate) fn send_text(&mut self, text: Vec<u8>) -> Result<u32, RequestError> {
        match self {
            Self::Tcp(tcp) => tcp.session.send_text(text),
            Self::Iser(iser) => iser.inner.send_text(text),
        }
    }

    /// Requests the end of the session.
    pub(crate) fn logout(&mut self) -> Result<u32, RequestError> {
        match self {
            Self::Tcp(tcp) => tcp.session.logout(),
            Self::Iser(iser) => iser.inner.logout(),
        }
    }

    /// Receives and processes PDUs, a limited number of them. Returns whether there is progress.
    pub(crate) fn receive(&mut self, cx: &mut Context<'_>, data: &mut dyn TaskData) -> Result<bool, Lost> {
        match self {
            Self::Tcp(tcp) => tcp.receive(cx, data),
            Self::Iser(iser) => iser.drive(cx, data),
        }
    }

    /// Sends PDUs. Returns whether there is progress.
    pub(crate) fn send(&mut self, cx: &mut Context<'_>, data: &mut dyn TaskData) -> Result<bool, Lost> {
        match self {
            Self::Tcp(tcp) => tcp.send(cx, data),
            Self::Iser(iser) => iser.drive(cx, data),
        }
    }

    /// The next event of the PDUs that were received.
    pub(crate) fn next_event(&mut self) -> Option<InitiatorEvent> {
        match self {
            Self::Tcp(tcp) => tcp.session.poll_event(),
            Self::Iser(iser) => iser.events.pop_front(),
        }
    }

    /// Ends the sending direction of a stream. With iSER, the drop of the connection ends it.
    pub(crate) fn shutdown(&mut self) {
        if let Self::Tcp(tcp) = self {
            tcp.shutdown();
        }
    }

    /// Ends the connection. Returns the tasks without an outcome, in order.
    pub(crate) fn into_unfinished(self, data: &mut dyn TaskData) -> Vec<u32> {
        match self {
            Self::Tcp(tcp) => tcp.session.unfinished().into_iter().map(|task| task.itt).collect(),
            Self::Iser(iser) => iser.into_unfinished(data),
        }
    }
}
