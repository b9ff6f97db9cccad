//! Protocol violations by a peer.

use crate::pdu::{Invalid, LogoutResult, RejectReason, Residual};

/// A violation of the protocol by the peer. At error recovery level 0 it ends the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// The header of a PDU is invalid.
    #[error(transparent)]
    Invalid(#[from] Invalid),
    /// The PDU belongs to another phase, transport or kind of session.
    #[error("the peer sent a {0}, which this session does not allow")]
    Unexpected(&'static str),
    /// A command is missing.
    #[error("the initiator sent command {received}; command {expected} is missing")]
    CommandGap {
        /// The next `CmdSN`.
        expected: u32,
        /// `CmdSN` of the request.
        received: u32,
    },
    /// `ExpCmdSN` acknowledges a command that was not sent.
    #[error("the target expects command {received}; the next command to send is {next}")]
    CommandAcknowledged {
        /// The next `CmdSN`.
        next: u32,
        /// `ExpCmdSN` of the response.
        received: u32,
    },
    /// A status is missing or repeated.
    #[error("the peer sent status number {received}; the next one is {expected}")]
    StatusNumber {
        /// The next `StatSN`.
        expected: u32,
        /// The number in the PDU.
        received: u32,
    },
    /// The tag names no task for which the PDU is allowed.
    #[error("the peer sent a {pdu} for the unknown task {itt:#x}")]
    UnknownTask {
        /// The kind of PDU.
        pdu: &'static str,
        /// Initiator task tag.
        itt: u32,
    },
    /// The target transfer tag is not in use.
    #[error("the peer sent the unknown target transfer tag {0:#x}")]
    TransferTag(u32),
    /// Immediate or unsolicited data that the negotiated parameters forbid.
    #[error("the initiator sent {length} bytes of unsolicited data for task {itt:#x}; {maximum} are allowed")]
    UnsolicitedData {
        /// Initiator task tag.
        itt: u32,
        /// Length of the task's unsolicited data in bytes.
        length: u64,
        /// The maximum that immediate or unsolicited data may have.
        maximum: u32,
    },
    /// Data or a request for data is out of order.
    #[error("the peer sent data number {received} of task {itt:#x}; the next one is {expected}")]
    DataNumber {
        /// Initiator task tag.
        itt: u32,
        /// The next `DataSN` or `R2TSN`.
        expected: u32,
        /// The number in the PDU.
        received: u32,
    },
    /// Data or a request for data is not adjacent to the data before it.
    #[error("the peer sent offset {received} for task {itt:#x}; the next one is {expected}")]
    DataOffset {
        /// Initiator task tag.
        itt: u32,
        /// The next offset in bytes.
        expected: u32,
        /// The offset in the PDU.
        received: u32,
    },
    /// Data exceeds the task's buffer, its sequence or a negotiated maximum.
    #[error("the peer sent or requested {length} bytes for task {itt:#x}; {maximum} remain")]
    DataLength {
        /// Initiator task tag.
        itt: u32,
        /// Length in bytes.
        length: u32,
        /// The maximum at this place.
        maximum: u32,
    },
    /// The F bit is not where the sequence ends.
    #[error("the peer ended a sequence of task {itt:#x} with {missing} bytes missing, or did not end it")]
    Final {
        /// Initiator task tag.
        itt: u32,
        /// Bytes of the sequence that were not sent.
        missing: u32,
    },
    /// More R2Ts than `MaxOutstandingR2T`.
    #[error("the target has more R2Ts outstanding for task {itt:#x} than negotiated")]
    OutstandingR2t {
        /// Initiator task tag.
        itt: u32,
    },
    /// The amount of data of a successful task contradicts the residual count.
    #[error("task {itt:#x} of {expected} bytes succeeded with {transferred} bytes and {residual:?}")]
    Residual {
        /// Initiator task tag.
        itt: u32,
        /// Expected data transfer length in bytes.
        expected: u32,
        /// Bytes that were transferred.
        transferred: u32,
        /// The residual count.
        residual: Residual,
    },
    /// A command whose data an RDMA operation must transfer advertises no buffer, or one that exceeds the address
    /// space.
    #[error("the initiator advertised no buffer for the data of task {itt:#x}")]
    NoBuffer {
        /// Initiator task tag.
        itt: u32,
    },
    /// The target completed a task, and invalidated a tag that is not one of this task.
    #[error("the target invalidated the STag {0:#x}, which is not one of the task")]
    Invalidated(u32),
    /// A text exchange exceeds its limit.
    #[error("the peer sent more than {0} bytes of text")]
    TextLength(usize),
    /// The data segment of a SCSI Response, Reject or Asynchronous Message is malformed.
    #[error("the target sent a {0} whose data segment is malformed")]
    Malformed(&'static str),
    /// The target rejected a PDU without which a task cannot continue.
    #[error("the target rejected a PDU: {0}")]
    Rejected(RejectReason),
    /// The target refused a logout.
    #[error("the target refused the logout: {0}")]
    Logout(LogoutResult),
}

impl Violation {
    /// The reason of the Reject PDU that a target sends before it closes the connection; `None` if it sends none.
    pub(super) const fn reject(self) -> Option<RejectReason> {
        match self {
            Self::Invalid(invalid) => invalid.reject(),
            _ => Some(RejectReason::PROTOCOL_ERROR),
        }
    }
}
