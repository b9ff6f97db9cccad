//! Reasons why a handshake or a session fails.

use std::io;

use rustls::{AlertDescription, CertificateError, Error, InvalidMessage, PeerIncompatible};

/// The reason why a session has failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TlsError {
    /// The peer's certificate is not valid any more.
    #[error("the certificate of the peer has expired{}", in_days(" ", *.days, " ago"))]
    Expired {
        /// Days since then, if known.
        days: Option<u64>,
    },
    /// The peer's certificate is not valid yet.
    #[error("the certificate of the peer is not valid yet{}; compare the clocks", in_days(", but in ", *.days, ""))]
    NotYetValid {
        /// Days until then, if known.
        days: Option<u64>,
    },
    /// The peer's certificate was issued by an authority that is not trusted, or by itself.
    #[error("the certificate of the peer was not issued by a trusted authority")]
    UnknownIssuer,
    /// The server's certificate does not have the name of the server. A wildcard is no name (RFC 9289 section 5.2.1).
    #[error("the certificate of the server is not for {expected}{}", presented_names(.presented))]
    Name {
        /// The name that was expected.
        expected: String,
        /// The names that the certificate has.
        presented: Vec<String>,
    },
    /// The peer's certificate is on a revocation list.
    #[error("the certificate of the peer is revoked")]
    Revoked,
    /// The peer's certificate is not valid for another reason.
    #[error("the certificate of the peer is not valid: {0}")]
    Certificate(String),
    /// The peer ended the session with an alert.
    #[error("the peer refused: {}", alert_text(*.0))]
    Alert(u8),
    /// The peer does not support TLS 1.3.
    #[error("the peer does not support TLS 1.3")]
    Version,
    /// The peer does not name the protocol of this end in ALPN.
    #[error("the peer asks for another protocol (ALPN)")]
    Protocol,
    /// The peer violates the protocol.
    #[error("the peer violates TLS: {0}")]
    Misbehaved(String),
    /// The connection ended without a closure alert, so that data may be missing.
    #[error("the connection ended without a closure alert (close_notify): data may be missing")]
    Truncated,
    /// The connection ended in the handshake.
    #[error("the peer closed the connection in the handshake")]
    Closed,
    /// This end cannot continue.
    #[error("TLS failed: {0}")]
    Local(String),
}

/// A number of days with text around it, if it is known.
fn in_days(before: &str, days: Option<u64>, after: &str) -> String {
    days.map_or_else(String::new, |n| format!("{before}{n} day{}{after}", if n == 1 { "" } else { "s" }))
}

fn presented_names(names: &[String]) -> String {
    match names {
        [] => String::new(),
        names => format!(", but for {}", names.join(", ")),
    }
}

/// The text of an alert (RFC 8446 section 6), as far as a user can act on it.
fn alert_text(code: u8) -> String {
    match AlertDescription::from(code) {
        AlertDescription::CertificateRequired => "it requires a client certificate".into(),
        AlertDescription::UnknownCA => {
            "it does not trust the authority that issued the certificate of this end".into()
        }
        AlertDescription::CertificateExpired => "the certificate of this end has expired".into(),
        AlertDescription::CertificateRevoked => "the certificate of this end is revoked".into(),
        AlertDescription::BadCertificate
        | AlertDescription::UnsupportedCertificate
        | AlertDescription::CertificateUnknown => {
            format!("it does not accept the certificate of this end (alert {code})")
        }
        AlertDescription::ProtocolVersion => "it does not support TLS 1.3".into(),
        AlertDescription::NoApplicationProtocol => "it does not serve this protocol (ALPN)".into(),
        AlertDescription::UnrecognisedName => "it has no certificate for the name".into(),
        AlertDescription::Unknown(_) => format!("alert {code}"),
        known => format!("alert {code}, {known:?}"),
    }
}

impl TlsError {
    /// Whether the peer's certificate was refused.
    pub fn is_certificate(&self) -> bool {
        matches!(
            self,
            Self::Expired { .. }
                | Self::NotYetValid { .. }
                | Self::UnknownIssuer
                | Self::Revoked
                | Self::Name { .. }
                | Self::Certificate(_)
        )
    }

    /// Whether the peer requires a certificate and has received none.
    pub fn requires_certificate(&self) -> bool {
        *self == Self::Alert(u8::from(AlertDescription::CertificateRequired))
    }

    /// Whether the peer has refused the certificate of this end, or wants one.
    pub fn is_about_certificate(&self) -> bool {
        let Self::Alert(code) = *self else { return false };
        matches!(
            AlertDescription::from(code),
            AlertDescription::CertificateRequired
                | AlertDescription::UnknownCA
                | AlertDescription::CertificateExpired
                | AlertDescription::CertificateRevoked
                | AlertDescription::BadCertificate
                | AlertDescription::UnsupportedCertificate
                | AlertDescription::CertificateUnknown
        )
    }

    /// The error of a stream whose session failed, if it is one.
    pub fn of(error: &io::Error) -> Option<&Self> {
        error.get_ref()?.downcast_ref()
    }

    /// A violation by the peer.
    pub(crate) fn misbehaved(what: &str) -> Self {
        Self::Misbehaved(what.into())
    }
}

impl From<TlsError> for io::Error {
    fn from(e: TlsError) -> Self {
        let kind = match e {
            TlsError::Truncated | TlsError::Closed => io::ErrorKind::UnexpectedEof,
            TlsError::Alert(_) => io::ErrorKind::ConnectionAborted,
            TlsError::Local(_) => io::ErrorKind::Other,
            _ => io::ErrorKind::InvalidData,
        };
        Self::new(kind, e)
    }
}

/// A name of a certificate that webpki prints as `DnsName("a.test")` or `IpAddress(::1)`.
fn plain(name: &str) -> String {
    let inner = ["DnsName(", "IpAddress("].iter().find_map(|kind| name.strip_prefix(kind)?.strip_suffix(')'));
    inner.unwrap_or(name).trim_matches('"').to_owned()
}

const DAY: u64 = 86_400;

impl From<Error> for TlsError {
    fn from(e: Error) -> Self {
        match e {
            Error::InvalidCertificate(e) => e.into(),
            Error::AlertReceived(alert) => Self::Alert(alert.into()),
            Error::PeerIncompatible(
                PeerIncompatible::SupportedVersionsExtensionRequired
                | PeerIncompatible::Tls12NotOffered
                | PeerIncompatible::Tls12NotOfferedOrEnabled
                | PeerIncompatible::Tls13RequiredForQuic,
            )
            | Error::InvalidMessage(InvalidMessage::UnknownProtocolVersion) => Self::Version,
            Error::NoApplicationProtocol => Self::Protocol,
            Error::PeerIncompatible(e) => Self::Misbehaved(format!("it is incompatible ({e:?})")),
            Error::PeerMisbehaved(e) => Self::Misbehaved(format!("{e:?}")),
            Error::InvalidMessage(e) => Self::Misbehaved(format!("an invalid message ({e:?})")),
            Error::InappropriateMessage { .. } | Error::InappropriateHandshakeMessage { .. } => {
                Self::misbehaved("a message out of order")
            }
            Error::DecryptError => Self::misbehaved("a record that does not decrypt"),
            Error::PeerSentOversizedRecord => Self::misbehaved("an oversized record"),
            Error::NoCertificatesPresented => Self::Certificate("there is none".into()),
            other => Self::Local(other.to_string()),
        }
    }
}

impl From<CertificateError> for TlsError {
    fn from(e: CertificateError) -> Self {
        match e {
            CertificateError::Expired => Self::Expired { days: None },
            CertificateError::ExpiredContext { time, not_after } => {
                Self::Expired { days: Some(time.as_secs().saturating_sub(not_after.as_secs()) / DAY) }
            }
            CertificateError::NotValidYet => Self::NotYetValid { days: None },
            CertificateError::NotValidYetContext { time, not_before } => Self::NotYetValid {
                days: Some(not_before.as_secs().saturating_sub(time.as_secs()).div_ceil(DAY)),
            },
            CertificateError::UnknownIssuer => Self::UnknownIssuer,
            CertificateError::Revoked => Self::Revoked,
            CertificateError::UnknownRevocationStatus => {
                Self::Certificate("no revocation list (client_crl) is of the authority that issued it".into())
            }
            CertificateError::NotValidForNameContext { expected, presented } => {
                let presented = presented.iter().map(|name| plain(name)).collect();
                Self::Name { expected: expected.to_str().into_owned(), presented }
            }
            CertificateError::InvalidPurpose | CertificateError::InvalidPurposeContext { .. } => {
                Self::Certificate("its extended key usage does not permit this role".into())
            }
            other => Self::Certificate(other.to_string()),
        }
    }
}
