//! Errors.

use millrace_buffer::OutOfMemory;
use millrace_iscsi::{
    iser::MessageError,
    login::LoginError,
    session::{RequestError, Violation},
};
use millrace_rdma::{ConnectionError, Memory};

/// Why a login fails or a connection ends.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The RDMA connection ended.
    #[error("the iSER connection ended: {0}")]
    Connection(#[from] ConnectionError),
    /// The target refused the login, or violated its protocol.
    #[error(transparent)]
    Login(#[from] LoginError),
    /// The target sent an invalid message.
    #[error(transparent)]
    Message(#[from] MessageError),
    /// The target violated the protocol of the session.
    #[error(transparent)]
    Violation(#[from] Violation),
    /// The arena has no memory for a message. A larger limit of the arena avoids this.
    #[error("no memory for an iSER message: {0}")]
    Memory(#[from] OutOfMemory),
    /// The provider cannot copy immediate data out of exposed memory.
    #[error("the RDMA provider cannot copy exposed memory; use settings without immediate data")]
    Copy,
}

/// A command that was not submitted. Returns its memory.
#[derive(Debug, thiserror::Error)]
#[error("cannot submit a SCSI command: {reason}")]
pub struct SubmitError {
    /// The memory of the command; `None` if it had none, or if it was lost with the connection.
    pub memory: Option<Memory>,
    /// The reason.
    #[source]
    pub reason: SubmitReason,
}

/// Why a command was not submitted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SubmitReason {
    /// The session accepts no command now.
    #[error(transparent)]
    Request(#[from] RequestError),
    /// The length of the memory is not the expected data transfer length.
    #[error("the command has memory for {provided} bytes of data; it transfers {expected}")]
    Length {
        /// Length of the memory in bytes.
        provided: usize,
        /// Expected data transfer length in bytes.
        expected: u32,
    },
    /// The memory cannot be exposed to the target.
    #[error("cannot expose the memory of the command: {0}")]
    Expose(&'static str),
    /// The arena has no memory for the receive of the response.
    #[error("no memory for a response: {0}")]
    Memory(OutOfMemory),
    /// The connection has ended; [`InitiatorConnection::poll_event`](crate::iser::InitiatorConnection::poll_event) returns
    /// the reason.
    #[error("the iSER connection has ended; log in again")]
    Ended,
}
