//! The certificate that a client has proved, as rules compare it.

use std::{
    fmt::{self, Write as _},
    net::IpAddr,
    str::FromStr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use ring::digest::{SHA256, digest};
use rustls::pki_types::CertificateDer;
use x509_parser::{
    extensions::GeneralName,
    objects::{oid_registry, oid2abbrev},
    parse_x509_certificate,
    x509::{AttributeTypeAndValue, X509Name},
};

use crate::TlsError;

/// Number of rules whose verdicts a certificate keeps.
const VERDICTS: usize = 8;

/// A name in the extension subjectAltName (RFC 5280 section 4.2.1.6). The text form is that of openssl: `DNS:nfs.example`,
/// `URI:spiffe://example/ns/web`, `IP:192.0.2.7`, `email:a@example`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AltName {
    /// A DNS name, in lower case.
    Dns(Box<str>),
    /// A URI.
    Uri(Box<str>),
    /// An address.
    Address(IpAddr),
    /// An address for mail.
    Email(Box<str>),
}

impl FromStr for AltName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let invalid = || {
            format!(
                "`{text}` is not a name of a certificate: write DNS:NAME, URI:URI, IP:ADDRESS or email:ADDRESS"
            )
        };
        Ok(match text.split_once(':').filter(|(_, name)| !name.is_empty()).ok_or_else(invalid)? {
            ("DNS", name) => Self::Dns(name.to_ascii_lowercase().into()),
            ("URI", uri) => Self::Uri(uri.into()),
            ("IP", address) => Self::Address(address.parse().map_err(|_| invalid())?),
            ("email", address) => Self::Email(address.into()),
            _ => return Err(invalid()),
        })
    }
}

impl fmt::Display for AltName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Dns(name) => write!(f, "DNS:{name}"),
            Self::Uri(uri) => write!(f, "URI:{uri}"),
            Self::Address(address) => write!(f, "IP:{address}"),
            Self::Email(address) => write!(f, "email:{address}"),
        }
    }
}

impl AltName {
    /// A name of another kind is `None`: no rule can state it.
    fn of(name: &GeneralName<'_>) -> Option<Self> {
        Some(match name {
            GeneralName::DNSName(name) => Self::Dns(name.to_ascii_lowercase().into()),
            GeneralName::URI(uri) => Self::Uri((*uri).into()),
            GeneralName::RFC822Name(address) => Self::Email((*address).into()),
            GeneralName::IPAddress(bytes) => Self::Address(match bytes.len() {
                4 => <[u8; 4]>::try_from(*bytes).ok()?.into(),
                16 => <[u8; 16]>::try_from(*bytes).ok()?.into(),
                _ => return None,
            }),
            _ => return None,
        })
    }
}

/// A certificate that the client at the other end has proved, and that an authority of this end has issued.
///
/// The text form has the fields that rules can state.
pub struct PeerCertificate {
    /// The certificate, and those between it and its authority.
    chain: Vec<CertificateDer<'static>>,
    /// The subject (RFC 4514): `CN=web,O=Example`.
    pub subject: Arc<str>,
    /// The issuer, likewise.
    pub issuer: Box<str>,
    /// The serial number, without leading zeros.
    pub serial: Box<[u8]>,
    /// The names in subjectAltName.
    pub names: Box<[AltName]>,
    /// The SHA-256 of the certificate.
    pub fingerprint: [u8; 32],
    /// Verdicts, each with the number of its rules in the upper 48 bits.
    verdicts: [AtomicU64; VERDICTS],
}

impl PeerCertificate {
    /// The certificate at the start of a verified chain.
    pub(crate) fn new(chain: &[CertificateDer<'_>]) -> Result<Self, TlsError> {
        let unreadable = |why: &str| TlsError::Certificate(format!("it cannot be read: {why}"));
        let leaf = chain.first().ok_or_else(|| unreadable("there is none"))?;
        let (_, parsed) = parse_x509_certificate(leaf).map_err(|e| unreadable(&e.to_string()))?;
        let names = parsed.subject_alternative_name().map_err(|e| unreadable(&e.to_string()))?;
        let names = names.map(|names| names.value.general_names.iter().filter_map(AltName::of).collect());
        let mut fingerprint = [0; 32];
        fingerprint.copy_from_slice(digest(&SHA256, leaf).as_ref());
        Ok(Self {
            subject: distinguished_name(parsed.subject()).into(),
            issuer: distinguished_name(parsed.issuer()).into(),
            serial: without_zeros(parsed.raw_serial()).into(),
            names: names.unwrap_or_default(),
            fingerprint,
            chain: chain.iter().map(|der| der.clone().into_owned()).collect(),
            verdicts: Default::default(),
        })
    }

    /// The certificate and those between it and its authority.
    pub(crate) fn chain(&self) -> Option<(&CertificateDer<'static>, &[CertificateDer<'static>])> {
        self.chain.split_first()
    }

    /// Bytes of memory of the certificates, about: their fields are in them once more.
    pub fn bytes(&self) -> usize {
        2 * self.chain.iter().map(|der| der.len()).sum::<usize>()
    }

    /// The verdict of the rules with this number about this certificate; `judge` is called if it is not kept from an earlier
    /// call. Rules never change, and their numbers are not used again.
    pub fn verdict(&self, rules: u64, judge: impl FnOnce() -> u16) -> u16 {
        let kept = &self.verdicts[(rules % VERDICTS as u64) as usize];
        let found = kept.load(Ordering::Relaxed);
        if found >> 16 == rules {
            return found as u16;
        }
        let verdict = judge();
        kept.store(rules << 16 | u64::from(verdict), Ordering::Relaxed);
        verdict
    }
}

impl PartialEq for PeerCertificate {
    fn eq(&self, other: &Self) -> bool {
        self.fingerprint == other.fingerprint
    }
}

impl Eq for PeerCertificate {}

impl fmt::Debug for PeerCertificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PeerCertificate({self})")
    }
}

impl fmt::Display for PeerCertificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "subject {:?}, issuer {:?}, serial {}", self.subject, self.issuer, hex(&self.serial))?;
        for name in &self.names {
            write!(f, ", san {:?}", name.to_string())?;
        }
        write!(f, ", fingerprint {}", hex(&self.fingerprint))
    }
}

/// The bytes of a number without leading zeros.
pub fn without_zeros(number: &[u8]) -> &[u8] {
    let zeros = number.iter().take_while(|byte| **byte == 0).count();
    &number[zeros.min(number.len().saturating_sub(1))..]
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}"); // A string takes what is written.
        text
    })
}

/// The text form of a name (RFC 4514), as `openssl x509 -nameopt RFC2253` prints it.
fn distinguished_name(name: &X509Name<'_>) -> String {
    let rdns: Vec<_> = name.iter_rdn().collect();
    let rdn = |attributes: Vec<String>| attributes.join("+");
    let texts = rdns.into_iter().rev().map(|r| rdn(r.iter().map(attribute).collect()));
    texts.collect::<Vec<_>>().join(",")
}

fn attribute(attribute: &AttributeTypeAndValue<'_>) -> String {
    let kind = match oid2abbrev(attribute.attr_type(), oid_registry()) {
        Ok(kind) => kind.to_owned(),
        Err(_) => attribute.attr_type().to_id_string(),
    };
    match attribute.as_str() {
        Ok(value) => format!("{kind}={}", escaped(value)),
        Err(_) => format!("{kind}=#{}", hex(attribute.as_slice())),
    }
}

/// A value as RFC 4514 section 2.4 escapes it; control characters, which could forge lines of a log, as well.
fn escaped(value: &str) -> String {
    let mut text = String::with_capacity(value.len());
    let last = value.chars().count().saturating_sub(1);
    for (i, c) in value.chars().enumerate() {
        match c {
            '"' | '+' | ',' | ';' | '<' | '>' | '\\' => text.extend(['\\', c]),
            '#' if i == 0 => text.push_str("\\#"),
            ' ' if i == 0 || i == last => text.push_str("\\ "),
            c if c.is_control() => {
                let mut utf8 = [0; 4];
                for byte in c.encode_utf8(&mut utf8).bytes() {
                    let _ = write!(text, "\\{byte:02X}"); // A string takes what is written.
                }
            }
            c => text.push(c),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_escaped() {
        for (value, text) in [
            ("James \"Jim\" Smith, III", "James \\\"Jim\\\" Smith\\, III"),
            ("#1 a+b ", "\\#1 a\\+b\\ "),
            ("a\r\nb", "a\\0D\\0Ab"),
            ("Lučić", "Lučić"),
            (" ", "\\ "),
        ] {
            assert_eq!(escaped(value), text);
        }
    }

    #[test]
    fn names_have_the_text_form_of_openssl() {
        for text in ["DNS:a.test", "URI:spiffe://a/b:1", "IP:192.0.2.1", "IP:2001:db8::1", "email:a@b.test"] {
            assert_eq!(text.parse::<AltName>().unwrap().to_string(), text);
        }
        assert_eq!("DNS:A.Test".parse(), Ok(AltName::Dns("a.test".into())));
        for text in ["a.test", "DNS:", "IP:a.test", "dns:a.test", "RID:1.2", ""] {
            assert!(text.parse::<AltName>().is_err(), "{text}");
        }
    }
}
