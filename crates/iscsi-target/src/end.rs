//! The end of a connection.

use std::io;

use millrace_iscsi::stream::Broken;
use millrace_iscsi::{iser::MessageError, pdu::Invalid, session::Violation};
use millrace_rdma::ConnectionError;
use millrace_tls::TlsError;

/// Why a connection ends.
#[derive(Debug)]
pub(crate) enum End {
    /// Logout, end of the target, or eviction.
    Closed,
    /// The certificate of the client is not trusted any more.
    Untrusted(TlsError),
    /// The peer is too slow, or does not answer.
    Stalled,
    /// The stream ended.
    Stream(io::Error),
    /// The stream has an invalid PDU.
    Invalid(Invalid),
    /// The RDMA connection ended.
    QueuePair(ConnectionError),
    /// A message of the RDMA connection is invalid.
    Message(MessageError),
    /// The session ended because of a violation.
    Violation(Violation),
    /// The login failed.
    Refused(String),
}

impl End {
    /// Whether the target may have sent the reason, such as a Reject, which the peer is to receive.
    pub(crate) const fn is_announced(&self) -> bool {
        matches!(self, Self::Closed | Self::Invalid(_) | Self::Violation(_) | Self::Refused(_))
    }
}

impl From<Broken> for End {
    fn from(broken: Broken) -> Self {
        match broken {
            Broken::Stream(e) => Self::Stream(e),
            Broken::Invalid(e) => Self::Invalid(e),
        }
    }
}
