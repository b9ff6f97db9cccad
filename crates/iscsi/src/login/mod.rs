//! The login phase (RFC 7143 section 6.3) of both roles, without I/O.
//!
//! PDUs of the login have data segments of at most [`MAX_LOGIN_DATA`] bytes and no digests. Text, PDUs and
//! redirections of one login are bounded.

mod initiator;
mod target;
#[cfg(test)]
mod tests;

use std::fmt;

pub use initiator::{InitiatorConfig, InitiatorLogin, InitiatorStep, MAX_REDIRECTS};
pub use target::{
    Admission, Authority, Grant, Identity, Progress, Refusal, TargetConfig, TargetLogin, TargetReply,
};

use crate::{
    name::{AddressError, IscsiName, NameError},
    negotiation::{NegotiationError, Parameters},
    pdu::{Bhs, Invalid, Isid},
    text::{Assembly, TextError},
};

/// Maximum data segment of a PDU during login, in bytes (the default of `MaxRecvDataSegmentLength`).
pub const MAX_LOGIN_DATA: u32 = 8192;
/// Maximum number of PDUs that each side sends in one login.
pub const MAX_ROUNDS: u32 = 64;

/// The status of a login (RFC 7143 section 11.13.5).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Status {
    /// Class: 0 success, 1 redirection, 2 error of the initiator, 3 error of the target.
    pub class: u8,
    /// Detail.
    pub detail: u8,
}

macro_rules! statuses {
    ($($(#[$doc:meta])* $name:ident = $class:literal $detail:literal $text:literal;)*) => {
        impl Status {
            $($(#[$doc])* pub const $name: Self = Self { class: $class, detail: $detail };)*
        }

        impl fmt::Display for Status {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match (self.class, self.detail) {
                    $(($class, $detail) => f.write_str($text),)*
                    (class, detail) => write!(f, "status {class:02x}{detail:02x}"),
                }
            }
        }
    };
}

statuses! {
    /// Success.
    SUCCESS = 0 0 "success";
    /// The target is elsewhere at present.
    MOVED_TEMPORARILY = 1 1 "target moved temporarily";
    /// The target is elsewhere.
    MOVED_PERMANENTLY = 1 2 "target moved permanently";
    /// Another error of the initiator.
    INITIATOR_ERROR = 2 0 "initiator error";
    /// The authentication failed.
    AUTHENTICATION = 2 1 "authentication failed";
    /// The initiator may not use the target.
    FORBIDDEN = 2 2 "the initiator may not use the target";
    /// The target does not exist.
    NOT_FOUND = 2 3 "target not found";
    /// The target was removed.
    REMOVED = 2 4 "target removed";
    /// No common version.
    VERSION = 2 5 "unsupported version";
    /// Too many connections.
    TOO_MANY_CONNECTIONS = 2 6 "too many connections";
    /// A required key is missing.
    MISSING_PARAMETER = 2 7 "missing parameter";
    /// The connection cannot join the session.
    CANNOT_INCLUDE = 2 8 "cannot include the connection in the session";
    /// The type of session is not supported.
    SESSION_TYPE = 2 9 "session type not supported";
    /// The session does not exist.
    NO_SESSION = 2 0xa "session does not exist";
    /// The request is invalid during login.
    INVALID_REQUEST = 2 0xb "invalid request during login";
    /// Another error of the target.
    TARGET_ERROR = 3 0 "target error";
    /// The service is unavailable.
    UNAVAILABLE = 3 1 "service unavailable";
    /// The target is out of resources.
    OUT_OF_RESOURCES = 3 2 "out of resources";
}

/// Why a login fails.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LoginError {
    /// The target refuses the login.
    #[error("the target answers: {0}")]
    Status(Status),
    /// A header is invalid.
    #[error("login: {0}")]
    Pdu(#[from] Invalid),
    /// A PDU other than one of the login.
    #[error("the peer sent a PDU that is not of the login phase")]
    NotLogin,
    /// A field differs from that of earlier PDUs, or from the state of the login.
    #[error("login: the peer sent an unexpected {0}")]
    Field(&'static str),
    /// The text is invalid.
    #[error("login: {0}")]
    Text(#[from] TextError),
    /// A name is invalid.
    #[error("login: {0}")]
    Name(#[from] NameError),
    /// The address of a redirection is missing or invalid.
    #[error("login: {0}")]
    Address(#[from] AddressError),
    /// A parameter is not agreed on.
    #[error("login: {0}")]
    Negotiation(#[from] NegotiationError),
    /// A key is missing.
    #[error("login: the peer did not send the key {0}")]
    Missing(&'static str),
    /// A key has an invalid value, or is invalid in the stage of the login.
    #[error("login: the peer sent an invalid key {0}")]
    Key(String),
    /// The authentication failed.
    #[error("the authentication of the peer failed: {0}")]
    Authentication(&'static str),
    /// The login has too many PDUs.
    #[error("the login has more than {MAX_ROUNDS} PDUs")]
    TooLong,
    /// There were too many redirections.
    #[error("the login was redirected more than {MAX_REDIRECTS} times")]
    Redirects,
}

impl LoginError {
    /// The status with which a target answers.
    fn status(&self) -> Status {
        match self {
            Self::Status(status) => *status,
            Self::Authentication(_) => Status::AUTHENTICATION,
            Self::Missing(_) => Status::MISSING_PARAMETER,
            Self::Key(_) => Status::INVALID_REQUEST,
            _ => Status::INITIATOR_ERROR,
        }
    }
}

/// A login PDU to send: header and data segment. The transport adds padding.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoginPdu {
    /// Header.
    pub bhs: Bhs,
    /// Data segment.
    pub data: Vec<u8>,
}

/// A login that has succeeded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Established {
    /// Name of the initiator.
    pub initiator: IscsiName,
    /// Name of the target; `None` in a discovery session.
    pub target: Option<IscsiName>,
    /// The initiator's part of the session identifier.
    pub isid: Isid,
    /// The target's part, not 0.
    pub tsih: u16,
    /// Connection identifier.
    pub cid: u16,
    /// Portal group tag of the target, if the login named one.
    pub portal_group: Option<u16>,
    /// The first command number of the session.
    pub cmd_sn: u32,
    /// The last command number that the target accepts at first.
    pub max_cmd_sn: u32,
    /// The next status number of the connection.
    pub stat_sn: u32,
    /// The negotiated parameters.
    pub parameters: Parameters,
}

impl Established {
    /// Number of commands that the target accepts at first.
    pub const fn window(&self) -> u32 {
        self.max_cmd_sn.wrapping_sub(self.cmd_sn).wrapping_add(1)
    }
}

/// The texts of both directions, each of which may need several PDUs.
#[derive(Debug, Default)]
struct Exchange {
    incoming: Assembly,
    outgoing: Vec<u8>,
    rounds: u32,
}

impl Exchange {
    /// Takes the data segment of a PDU; the result is a complete text. `None` calls for a PDU without new text:
    /// the rest of the outgoing one, or an empty one.
    fn receive(&mut self, data: &[u8], continued: bool) -> Result<Option<Vec<u8>>, LoginError> {
        self.rounds += 1;
        if self.rounds > MAX_ROUNDS || data.len() > MAX_LOGIN_DATA as usize {
            return Err(LoginError::TooLong);
        }
        if !self.outgoing.is_empty() {
            let empty = data.is_empty() && !continued;
            return if empty {
                Ok(None)
            } else {
                Err(LoginError::Field("text before the end of this side's text"))
            };
        }
        Ok(self.incoming.push(data, continued)?)
    }

    /// Whether the outgoing text fits in one PDU.
    fn fits(&self) -> bool {
        self.outgoing.len() <= MAX_LOGIN_DATA as usize
    }

    /// The data segment of the next PDU.
    fn take(&mut self) -> Vec<u8> {
        let rest = self.outgoing.split_off(self.outgoing.len().min(MAX_LOGIN_DATA as usize));
        std::mem::replace(&mut self.outgoing, rest)
    }
}

/// Whether `key` belongs to the security stage.
fn is_security(key: &str) -> bool {
    key == "AuthMethod" || key.starts_with("CHAP_")
}
