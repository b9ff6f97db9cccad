//! PDUs (RFC 7143 section 11): the basic header segments of both directions, digests, and the division of a
//! byte stream into PDUs.
//!
//! A header is a value without its data segment: [`Request::encode`] and [`Response::encode`] take the length
//! of the data, which the caller sends after the header. Reserved fields are sent as zero and ignored at
//! reception. Integers are big-endian.

mod ahs;
mod codes;
mod digest;
mod fields;
mod reader;
mod request;
mod response;
#[cfg(test)]
mod tests;

pub use ahs::check_ahs;
pub use codes::{
    AsyncEvent, LogoutReason, LogoutResult, RejectReason, Stage, TaskAttribute, TaskFunction, TaskResult,
    opcode,
};
pub use digest::{Digest, digest};
pub use reader::{Part, PduReader};
pub use request::{
    DataOut, LoginRequest, LogoutRequest, NopOut, Request, ScsiCommand, TaskRequest, TextRequest,
};
pub use response::{
    AsyncMessage, DataIn, DataInStatus, LoginResponse, LogoutResponse, NopIn, R2t, Reject, Response,
    ScsiResponse, TaskResponse, TextResponse,
};

/// Length of the basic header segment in bytes.
pub const BHS_BYTES: usize = 48;
/// Maximum length of the additional header segments in bytes: `TotalAHSLength` is 8 bits of 4-byte words.
pub const MAX_AHS_BYTES: usize = 255 * 4;
/// Maximum of `DataSegmentLength`, a field of 24 bits, in bytes.
pub const MAX_DATA_BYTES: u32 = 0x00ff_ffff;
/// The tag that names no task (RFC 7143 section 11.2.1.8), as initiator and as target task tag.
pub const RESERVED_TAG: u32 = 0xffff_ffff;

/// A basic header segment as bytes.
pub type Bhs = [u8; BHS_BYTES];

/// The initiator session identifier: the part of the session identifier that the initiator chooses
/// (RFC 7143 section 11.12.5).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Isid(pub [u8; 6]);

/// The numbers of a request (RFC 7143 section 4.2.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RequestNumbers {
    /// Number of the command in the session; an immediate command has the number of the next command.
    pub cmd_sn: u32,
    /// The next status number that the initiator expects: acknowledges those before it.
    pub exp_stat_sn: u32,
}

/// The numbers of a response (RFC 7143 section 4.2.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Numbers {
    /// Number of the status on the connection.
    pub stat_sn: u32,
    /// The next command number that the target expects: acknowledges those before it.
    pub exp_cmd_sn: u32,
    /// The last command number that the target accepts.
    pub max_cmd_sn: u32,
}

/// The difference between the expected and the actual length of a command's data, in bytes
/// (RFC 7143 section 11.4.5).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Residual {
    /// The lengths are equal.
    #[default]
    None,
    /// Fewer bytes than expected were transferred.
    Underflow(u32),
    /// The command had more data than expected; the expected length was transferred.
    Overflow(u32),
}

/// Why a received PDU is invalid.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Invalid {
    /// The opcode is reserved, or belongs to PDUs of the receiver's own role.
    #[error("the peer sent opcode {0:#04x}, which this side does not receive")]
    Opcode(u8),
    /// A SNACK Request: the error recovery level is 0.
    #[error("the peer sent a SNACK Request at error recovery level 0")]
    Snack,
    /// The data segment is longer than the receiver's `MaxRecvDataSegmentLength`.
    #[error("the peer sent a data segment of {length} bytes; the maximum is {maximum}")]
    DataLength {
        /// `DataSegmentLength` of the PDU.
        length: u32,
        /// The maximum that this side has declared.
        maximum: u32,
    },
    /// A field has a value that RFC 7143 forbids.
    #[error("the peer sent an invalid {0}")]
    Field(&'static str),
    /// An additional header segment has an invalid length or type.
    #[error("the peer sent an invalid additional header segment")]
    Ahs,
    /// A command descriptor block of more than 16 bytes.
    #[error("the peer sent an extended CDB; CDBs have at most 16 bytes")]
    ExtendedCdb,
    /// A bidirectional command.
    #[error("the peer sent a bidirectional command; they are not supported")]
    Bidirectional,
    /// The header digest differs: no field of the PDU is reliable.
    #[error("the header digest of a PDU differs from its contents")]
    HeaderDigest,
    /// The data digest differs.
    #[error("the data digest of a PDU differs from its contents")]
    DataDigest,
}

impl Invalid {
    /// The reason for a Reject PDU; `None` if the connection ends without one.
    pub const fn reject(self) -> Option<RejectReason> {
        match self {
            Self::Opcode(_) | Self::ExtendedCdb | Self::Bidirectional => {
                Some(RejectReason::COMMAND_NOT_SUPPORTED)
            }
            Self::Snack => Some(RejectReason::SNACK),
            Self::DataLength { .. } => Some(RejectReason::PROTOCOL_ERROR),
            Self::Field(_) | Self::Ahs => Some(RejectReason::INVALID_PDU_FIELD),
            Self::DataDigest => Some(RejectReason::DATA_DIGEST),
            Self::HeaderDigest => None,
        }
    }
}

/// The lengths of the parts of a PDU that follow its basic header segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lengths {
    /// Length of the additional header segments in bytes.
    pub ahs: usize,
    /// Length of the data segment in bytes, without padding.
    pub data: u32,
}

impl Lengths {
    /// The lengths that `bhs` states.
    pub const fn of(bhs: &Bhs) -> Self {
        Self { ahs: bhs[4] as usize * 4, data: u32::from_be_bytes([0, bhs[5], bhs[6], bhs[7]]) }
    }
}

/// Number of zero bytes that follow a data segment of `length` bytes.
pub const fn padding(length: u32) -> usize {
    (length.wrapping_neg() & 3) as usize
}
