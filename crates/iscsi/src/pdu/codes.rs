//! Codes of PDU fields. Every value of the wire has a representation, so that unknown codes reach the code that
//! answers them.

use std::fmt;

use super::Invalid;

/// Opcodes (RFC 7143 section 11.2.1.2).
pub mod opcode {
    /// NOP-Out.
    pub const NOP_OUT: u8 = 0x00;
    /// SCSI Command.
    pub const SCSI_COMMAND: u8 = 0x01;
    /// Task Management Function Request.
    pub const TASK_REQUEST: u8 = 0x02;
    /// Login Request.
    pub const LOGIN_REQUEST: u8 = 0x03;
    /// Text Request.
    pub const TEXT_REQUEST: u8 = 0x04;
    /// SCSI Data-Out.
    pub const DATA_OUT: u8 = 0x05;
    /// Logout Request.
    pub const LOGOUT_REQUEST: u8 = 0x06;
    /// SNACK Request.
    pub const SNACK: u8 = 0x10;
    /// NOP-In.
    pub const NOP_IN: u8 = 0x20;
    /// SCSI Response.
    pub const SCSI_RESPONSE: u8 = 0x21;
    /// Task Management Function Response.
    pub const TASK_RESPONSE: u8 = 0x22;
    /// Login Response.
    pub const LOGIN_RESPONSE: u8 = 0x23;
    /// Text Response.
    pub const TEXT_RESPONSE: u8 = 0x24;
    /// SCSI Data-In.
    pub const DATA_IN: u8 = 0x25;
    /// Logout Response.
    pub const LOGOUT_RESPONSE: u8 = 0x26;
    /// Ready To Transfer.
    pub const R2T: u8 = 0x31;
    /// Asynchronous Message.
    pub const ASYNC: u8 = 0x32;
    /// Reject.
    pub const REJECT: u8 = 0x3f;
}

macro_rules! codes {
    ($(#[$doc:meta])* $name:ident { $($(#[$d:meta])* $code:ident = $value:literal $text:literal;)* }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub struct $name(pub u8);

        impl $name {
            $($(#[$d])* pub const $code: Self = Self($value);)*
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self.0 {
                    $($value => f.write_str($text),)*
                    other => write!(f, "code {other:#04x}"),
                }
            }
        }
    };
}

codes! {
    /// How a target orders a task (RFC 7143 section 11.3.1), 3 bits.
    TaskAttribute {
        /// Untagged.
        UNTAGGED = 0 "untagged";
        /// Simple: any order.
        SIMPLE = 1 "simple";
        /// Ordered: after all older tasks and before all newer ones.
        ORDERED = 2 "ordered";
        /// Head of queue: before all others.
        HEAD_OF_QUEUE = 3 "head of queue";
        /// Auto contingent allegiance.
        ACA = 4 "ACA";
    }
}

codes! {
    /// A task management function (RFC 7143 section 11.5.1), 7 bits.
    TaskFunction {
        /// Abort one task.
        ABORT_TASK = 1 "ABORT TASK";
        /// Abort all tasks of the session at the logical unit.
        ABORT_TASK_SET = 2 "ABORT TASK SET";
        /// End the auto contingent allegiance.
        CLEAR_ACA = 3 "CLEAR ACA";
        /// Abort the tasks of all sessions at the logical unit.
        CLEAR_TASK_SET = 4 "CLEAR TASK SET";
        /// Reset the logical unit.
        LOGICAL_UNIT_RESET = 5 "LOGICAL UNIT RESET";
        /// Reset all logical units.
        TARGET_WARM_RESET = 6 "TARGET WARM RESET";
        /// Reset all logical units and end all sessions.
        TARGET_COLD_RESET = 7 "TARGET COLD RESET";
        /// Move a task to this connection.
        TASK_REASSIGN = 8 "TASK REASSIGN";
    }
}

codes! {
    /// The result of a task management function (RFC 7143 section 11.6.1).
    TaskResult {
        /// The function is complete.
        COMPLETE = 0 "function complete";
        /// The task does not exist.
        NO_TASK = 1 "task does not exist";
        /// The logical unit does not exist.
        NO_LUN = 2 "LUN does not exist";
        /// The task is still allegiant.
        STILL_ALLEGIANT = 3 "task still allegiant";
        /// Allegiance of tasks cannot be reassigned.
        NO_REASSIGNMENT = 4 "task allegiance reassignment not supported";
        /// The target does not have the function.
        NOT_SUPPORTED = 5 "function not supported";
        /// The initiator is not authorized.
        NOT_AUTHORIZED = 6 "function authorization failed";
        /// The function was rejected.
        REJECTED = 0xff "function rejected";
    }
}

codes! {
    /// The reason code of a Logout Request (RFC 7143 section 11.14.1), 7 bits.
    LogoutReason {
        /// The session with all its connections.
        SESSION = 0 "close the session";
        /// One connection.
        CONNECTION = 1 "close the connection";
        /// One connection, for recovery.
        RECOVERY = 2 "remove the connection for recovery";
    }
}

codes! {
    /// The result of a logout (RFC 7143 section 11.15.1).
    LogoutResult {
        /// The session or connection is closed.
        CLOSED = 0 "closed";
        /// The connection does not exist.
        NO_CID = 1 "CID not found";
        /// Recovery is not supported.
        NO_RECOVERY = 2 "connection recovery is not supported";
        /// The cleanup failed.
        CLEANUP_FAILED = 3 "cleanup failed";
    }
}

codes! {
    /// The event of an Asynchronous Message (RFC 7143 section 11.9.1).
    AsyncEvent {
        /// A SCSI asynchronous event; the data segment has sense data.
        SCSI = 0 "SCSI event";
        /// The target requests a logout within parameter 3 seconds.
        LOGOUT = 1 "target requests logout";
        /// The target will drop the connection of parameter 1.
        DROP_CONNECTION = 2 "target drops the connection";
        /// The target will drop all connections of the session.
        DROP_SESSION = 3 "target drops all connections";
        /// The target requests a text negotiation.
        NEGOTIATE = 4 "target requests parameter negotiation";
        /// All tasks of a logical unit were aborted by another session (RFC 7144).
        TASKS_TERMINATED = 5 "tasks terminated by another session";
        /// An event of the vendor.
        VENDOR = 255 "vendor-specific event";
    }
}

codes! {
    /// Why a target rejects a PDU (RFC 7143 section 11.17.1).
    RejectReason {
        /// A data digest differs.
        DATA_DIGEST = 0x02 "data digest error";
        /// A SNACK cannot be served.
        SNACK = 0x03 "SNACK reject";
        /// The PDU violates the protocol.
        PROTOCOL_ERROR = 0x04 "protocol error";
        /// The target does not have the function.
        COMMAND_NOT_SUPPORTED = 0x05 "command not supported";
        /// Too many immediate commands.
        IMMEDIATE_COMMAND = 0x06 "immediate command reject";
        /// The task is in progress.
        TASK_IN_PROGRESS = 0x07 "task in progress";
        /// A data acknowledgement is invalid.
        INVALID_DATA_ACK = 0x08 "invalid data ACK";
        /// A field has an invalid value.
        INVALID_PDU_FIELD = 0x09 "invalid PDU field";
        /// No target task tag or other resource is available.
        LONG_OPERATION = 0x0a "long operation reject";
        /// The target waits for a logout.
        WAITING_FOR_LOGOUT = 0x0c "waiting for logout";
    }
}

/// A stage of the login phase (RFC 7143 section 11.12.3).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Stage {
    /// Security negotiation.
    Security,
    /// Negotiation of operational parameters.
    Operational,
    /// The full feature phase; only as the next stage.
    FullFeature,
}

impl Stage {
    pub(super) const fn bits(self) -> u8 {
        match self {
            Self::Security => 0,
            Self::Operational => 1,
            Self::FullFeature => 3,
        }
    }

    pub(super) const fn decode(bits: u8) -> Result<Self, Invalid> {
        match bits & 3 {
            0 => Ok(Self::Security),
            1 => Ok(Self::Operational),
            3 => Ok(Self::FullFeature),
            _ => Err(Invalid::Field("login stage")),
        }
    }
}
