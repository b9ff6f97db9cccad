//! Errors of block devices, with their causes and remedies.

use std::{io, time::Duration};

use millrace_iscsi::login::{LoginError, Status};
use millrace_scsi::{AdditionalSense, Sense, SenseKey};

use crate::remedy::CHECK_PORT;

/// Error of an operation on a block device.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The URL is invalid.
    #[error(
        "invalid URL {url:?}: {reason} (expected iscsi://[USER@]HOST[:PORT]/TARGET/LUN, or iser:// for RDMA)"
    )]
    Url {
        /// The text without a secret.
        url: String,
        /// Reason.
        reason: String,
    },
    /// The options, or an argument, are invalid.
    #[error("{0}")]
    InvalidInput(String),
    /// The range does not begin and end at a block.
    #[error(
        "the range of {length} bytes at offset {offset} does not consist of whole blocks of {block_size} bytes"
    )]
    Unaligned {
        /// Offset in bytes.
        offset: u64,
        /// Length in bytes.
        length: u64,
        /// Length of a block in bytes.
        block_size: u32,
    },
    /// The range is not on the device.
    #[error(
        "the range of {length} bytes at offset {offset} is beyond the end of the device at {capacity} bytes"
    )]
    OutOfRange {
        /// Offset in bytes.
        offset: u64,
        /// Length in bytes.
        length: u64,
        /// Capacity in bytes.
        capacity: u64,
    },
    /// The name of the portal has no address, or no address accepts a connection.
    #[error("cannot connect to {portal}: {reason}; {CHECK_PORT}")]
    Connect {
        /// Host and port.
        portal: String,
        /// Reason, for each address that was tried.
        reason: String,
        /// The error of the last address, if any.
        source: Option<io::Error>,
    },
    /// The target refused the login, or a setting of this side, or violated the protocol.
    #[error("cannot log in at {portal}: {error}; {remedy}")]
    Login {
        /// Host and port.
        portal: String,
        /// Reason.
        #[source]
        error: LoginError,
        /// What to do.
        remedy: String,
    },
    /// The connection was lost during the login: the peer may be no target of that transport.
    #[error("the connection to {portal} ended during the login: {reason}; {CHECK_PORT}")]
    LoginLost {
        /// Host and port.
        portal: String,
        /// Reason.
        reason: String,
    },
    /// The connection was lost, or the target violated the protocol.
    #[error("the connection to {portal} ended: {reason}; check the target and the network")]
    Lost {
        /// Host and port.
        portal: String,
        /// Reason.
        reason: String,
    },
    /// The logical unit cannot be used.
    #[error("{url}: {reason}")]
    Unit {
        /// The logical unit.
        url: String,
        /// Reason, with the remedy.
        reason: String,
    },
    /// The target did not complete the operation within the time limit, on this connection and its successors. It may
    /// have executed a write.
    #[error("{url}: no answer for {after:?} (last: {last}); check the target and the network")]
    TimedOut {
        /// The logical unit.
        url: String,
        /// The time limit.
        after: Duration,
        /// The last event of the connection.
        last: String,
    },
    /// The target refused the command or failed to execute it.
    #[error("{url}: {command}: {failure}")]
    Command {
        /// The logical unit.
        url: String,
        /// The name of the command.
        command: &'static str,
        /// How it failed.
        failure: Failure,
    },
    /// The device was reset, or could not write to its medium, after writes that no flush had made durable: their data
    /// may be lost.
    #[error(
        "{url}: the device was reset, or failed, before completed writes were durable, so data may be lost; write \
         again what was written since the last successful flush"
    )]
    DataLost {
        /// The logical unit.
        url: String,
    },
    /// After a reconnect, the URL leads to another device.
    #[error(
        "{url}: this is now another device ({found}, before {expected}); correct the target and open it again"
    )]
    Replaced {
        /// The logical unit.
        url: String,
        /// The identity of the device that was opened.
        expected: String,
        /// The identity of the present one.
        found: String,
    },
    /// The device has no such function.
    #[error("{url}: the device does not support {what}")]
    Unsupported {
        /// The logical unit.
        url: String,
        /// The function.
        what: &'static str,
    },
    /// The target sent data that is malformed.
    #[error("{url}: {reason}")]
    Malformed {
        /// The logical unit or the portal.
        url: String,
        /// Reason.
        reason: String,
    },
    /// The arena is exhausted.
    #[error(transparent)]
    OutOfMemory(#[from] millrace_buffer::OutOfMemory),
    /// The device was closed.
    #[error("the block device is closed")]
    Closed,
}

/// How a command failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Failure {
    /// CHECK CONDITION.
    #[error("{0}")]
    Sense(Sense),
    /// RESERVATION CONFLICT.
    #[error("another initiator has reserved the device; release the reservation")]
    Reserved,
    /// Another status, or none.
    #[error("{0}")]
    Other(String),
}

impl Failure {
    /// Whether the command or one of its fields is not supported.
    pub(crate) const fn is_unsupported(&self) -> bool {
        use AdditionalSense as A;
        matches!(self, Self::Sense(Sense { key: SenseKey::IllegalRequest, additional, .. })
            if matches!(*additional, A::INVALID_OPCODE | A::INVALID_FIELD_IN_CDB))
    }

    /// Whether the device could not write to its medium, or failed.
    pub(crate) const fn is_medium_error(&self) -> bool {
        matches!(self, Self::Sense(Sense { key: SenseKey::MediumError | SenseKey::HardwareError, .. }))
    }
}

impl Error {
    /// The [`io::ErrorKind`] that the same operation on a local device returns. After [`io::ErrorKind::TimedOut`] the
    /// target may have executed a write.
    pub fn kind(&self) -> io::ErrorKind {
        use io::ErrorKind as K;
        match self {
            Self::Url { .. } | Self::InvalidInput(_) | Self::Unaligned { .. } | Self::OutOfRange { .. } => {
                K::InvalidInput
            }
            Self::Connect { source, .. } => source.as_ref().map_or(K::TimedOut, io::Error::kind),
            Self::Login { error, .. } => login_kind(error),
            Self::Lost { .. } | Self::LoginLost { .. } => K::ConnectionAborted,
            Self::Unit { .. } => K::NotFound,
            Self::TimedOut { .. } => K::TimedOut,
            Self::Command { failure, .. } => failure_kind(failure),
            Self::Replaced { .. } => K::StaleNetworkFileHandle,
            Self::Unsupported { .. } => K::Unsupported,
            Self::Malformed { .. } => K::InvalidData,
            Self::OutOfMemory(_) => K::OutOfMemory,
            Self::Closed => K::NotConnected,
            Self::DataLost { .. } => K::Other,
        }
    }

    /// Whether the failure is that of a command or field that the target does not support.
    pub(crate) const fn is_unsupported(&self) -> bool {
        matches!(self, Self::Command { failure, .. } if failure.is_unsupported())
    }
}

/// The error becomes the source, which [`io::Error::get_ref`] and `downcast_ref` return.
impl From<Error> for io::Error {
    fn from(e: Error) -> Self {
        Self::new(e.kind(), e)
    }
}

fn login_kind(error: &LoginError) -> io::ErrorKind {
    use io::ErrorKind as K;
    match error {
        LoginError::Status(Status::AUTHENTICATION | Status::FORBIDDEN) | LoginError::Authentication(_) => {
            K::PermissionDenied
        }
        LoginError::Status(Status::NOT_FOUND | Status::REMOVED) => K::NotFound,
        LoginError::Status(_) => K::ConnectionRefused,
        _ => K::InvalidData,
    }
}

fn failure_kind(failure: &Failure) -> io::ErrorKind {
    use io::ErrorKind as K;
    match failure {
        Failure::Reserved => K::ResourceBusy,
        Failure::Sense(Sense { additional: AdditionalSense::SPACE_ALLOCATION_FAILED, .. }) => K::StorageFull,
        Failure::Sense(sense) => match sense.key {
            SenseKey::DataProtect => K::ReadOnlyFilesystem,
            SenseKey::IllegalRequest => K::InvalidInput,
            _ => K::Other,
        },
        Failure::Other(_) => K::Other,
    }
}
