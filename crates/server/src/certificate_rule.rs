//! Rules of an export for the certificates of clients.

use millrace_tls::{AltName, PeerCertificate};
use millrace_vfs::Identity;

/// Some client certificates, and the rights in an export of the clients that prove one. A certificate matches if it has all
/// the stated fields.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CertificateRule {
    /// The subject (RFC 4514): `CN=web,O=Example`, as `openssl x509 -nameopt RFC2253` prints it.
    pub subject: Option<String>,
    /// The issuer, likewise.
    pub issuer: Option<String>,
    /// One of the names in subjectAltName.
    pub san: Option<AltName>,
    /// The serial number, without leading zeros. It is unique for an issuer.
    pub serial: Option<Vec<u8>>,
    /// The SHA-256 of the certificate.
    pub fingerprint: Option<[u8; 32]>,
    /// Reject changes.
    pub read_only: bool,
    /// The identity of all callers with AUTH_SYS or without a credential; `None`: that of the export's rules.
    pub identity: Option<Identity>,
}

impl CertificateRule {
    /// Whether no field is stated.
    pub(crate) fn is_empty(&self) -> bool {
        let Self { subject, issuer, san, serial, fingerprint, read_only: _, identity: _ } = self;
        subject.is_none() && issuer.is_none() && san.is_none() && serial.is_none() && fingerprint.is_none()
    }

    /// Whether the certificate has all the stated fields.
    pub(crate) fn matches(&self, certificate: &PeerCertificate) -> bool {
        let Self { subject, issuer, san, serial, fingerprint, read_only: _, identity: _ } = self;
        subject.as_deref().is_none_or(|subject| *subject == *certificate.subject)
            && issuer.as_deref().is_none_or(|issuer| *issuer == *certificate.issuer)
            && san.as_ref().is_none_or(|san| certificate.names.contains(san))
            && serial.as_deref().is_none_or(|serial| *serial == *certificate.serial)
            && fingerprint.is_none_or(|fingerprint| fingerprint == certificate.fingerprint)
    }
}
