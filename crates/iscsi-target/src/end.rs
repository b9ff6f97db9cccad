//! The end of a connection.

use millrace_iscsi::session::Violation;

use super::input::Broken;

/// Why a connection ends.
#[derive(Debug)]
pub(super) enum End {
    /// Logout, end of the target, or eviction.
    Closed,
    /// The peer is too slow, or does not answer.
    Stalled,
    /// The stream ended or has an invalid PDU.
    Broken(Broken),
    /// The session ended because of a violation.
    Violation(Violation),
    /// The login failed.
    Refused(String),
}

impl From<Broken> for End {
    fn from(broken: Broken) -> Self {
        Self::Broken(broken)
    }
}
