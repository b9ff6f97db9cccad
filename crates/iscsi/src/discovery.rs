//! Discovery with SendTargets (RFC 7143 appendix C).

use crate::{
    name::{AddressError, IscsiName, NameError, TargetAddress},
    text::{self, TextError},
};

/// The value of the key SendTargets: the targets that an initiator requests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SendTargets {
    /// All targets; in discovery sessions only.
    All,
    /// One target.
    Name(IscsiName),
    /// The target of the session; in normal sessions only.
    Session,
}

/// A target and its portals.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DiscoveredTarget {
    /// Name.
    pub name: IscsiName,
    /// Addresses. If there are none, the target is at the address of the discovery.
    pub addresses: Vec<TargetAddress>,
}

/// Why a text is not a valid answer to, or request of, SendTargets.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DiscoveryError {
    /// The text is invalid.
    #[error(transparent)]
    Text(#[from] TextError),
    /// A name is invalid.
    #[error("discovery: {0}")]
    Name(#[from] NameError),
    /// An address is invalid.
    #[error("discovery: {0}")]
    Address(#[from] AddressError),
    /// An address precedes the first name.
    #[error("discovery: the peer sent an address without a target")]
    NoTarget,
    /// The text has no SendTargets key.
    #[error("the peer sent a text request without SendTargets")]
    NoRequest,
}

impl SendTargets {
    /// The text of the request.
    pub fn encode(&self) -> Vec<u8> {
        let value = match self {
            Self::All => "All",
            Self::Name(name) => name.as_str(),
            Self::Session => "",
        };
        let mut out = Vec::new();
        text::push(&mut out, "SendTargets", value);
        out
    }

    /// Decodes the text of a request.
    ///
    /// # Errors
    ///
    /// The text is invalid, or does not have the key SendTargets.
    pub fn decode(request: &[u8]) -> Result<Self, DiscoveryError> {
        match text::parse(request)?.into_iter().find(|(key, _)| *key == "SendTargets") {
            Some((_, "All")) => Ok(Self::All),
            Some((_, "")) => Ok(Self::Session),
            Some((_, name)) => Ok(Self::Name(name.parse()?)),
            None => Err(DiscoveryError::NoRequest),
        }
    }
}

/// The text of an answer.
pub fn encode(targets: &[DiscoveredTarget]) -> Vec<u8> {
    let mut out = Vec::new();
    for target in targets {
        text::push(&mut out, "TargetName", target.name.as_str());
        for address in &target.addresses {
            text::push(&mut out, "TargetAddress", &address.to_string());
        }
    }
    out
}

/// Decodes the text of an answer, which may be hostile. Its length bounds the number of targets
/// ([`text::MAX_TEXT`]). Other keys are ignored.
///
/// # Errors
///
/// The text, a name or an address is invalid.
pub fn decode(answer: &[u8]) -> Result<Vec<DiscoveredTarget>, DiscoveryError> {
    if answer.len() > text::MAX_TEXT {
        return Err(TextError::TooLong.into());
    }
    let mut targets: Vec<DiscoveredTarget> = Vec::new();
    for pair in text::pairs(answer) {
        match pair? {
            ("TargetName", name) => {
                targets.push(DiscoveredTarget { name: name.parse()?, addresses: Vec::new() });
            }
            ("TargetAddress", address) => {
                let target = targets.last_mut().ok_or(DiscoveryError::NoTarget)?;
                target.addresses.push(address.parse()?);
            }
            _ => {}
        }
    }
    Ok(targets)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn target(name: &str, addresses: &[&str]) -> DiscoveredTarget {
        let addresses = addresses.iter().map(|a| a.parse().unwrap()).collect();
        DiscoveredTarget { name: name.parse().unwrap(), addresses }
    }

    #[test]
    fn requests_and_answers_have_the_expected_bytes() {
        let name: IscsiName = "iqn.2001-04.com.example:a".parse().unwrap();
        for (request, bytes) in [
            (SendTargets::All, &b"SendTargets=All\0"[..]),
            (SendTargets::Session, b"SendTargets=\0"),
            (SendTargets::Name(name), b"SendTargets=iqn.2001-04.com.example:a\0"),
        ] {
            assert_eq!(request.encode(), bytes);
            assert_eq!(SendTargets::decode(bytes), Ok(request));
        }
        let targets = [
            target("iqn.2001-04.com.example:a", &["192.0.2.1:3260,1", "[2001:db8::1]:3260,2"]),
            target("iqn.2001-04.com.example:b", &[]),
        ];
        let bytes = b"TargetName=iqn.2001-04.com.example:a\0TargetAddress=192.0.2.1:3260,1\0\
            TargetAddress=[2001:db8::1]:3260,2\0TargetName=iqn.2001-04.com.example:b\0";
        assert_eq!(encode(&targets), bytes);
        assert_eq!(decode(bytes).unwrap(), targets);
        assert_eq!(decode(b""), Ok(Vec::new()));
    }

    #[test]
    fn hostile_answers_are_refused() {
        for (text, error) in [
            (&b"TargetAddress=a:1,1\0"[..], DiscoveryError::NoTarget),
            (
                b"TargetName=iqn.2001-04.com.example:a\x1b]0;x\x07\0",
                TextError::Value("TargetName".into()).into(),
            ),
            (b"TargetName=../../etc/passwd\0", NameError.into()),
            (b"TargetName=iqn.2001-04.com.example:a\0TargetAddress=$(id)\0", AddressError.into()),
            (b"TargetName=iqn.2001-04.com.example:a", TextError::Unterminated.into()),
        ] {
            assert_eq!(decode(text), Err(error), "{}", text.escape_ascii());
        }
        assert_eq!(decode(&[0; text::MAX_TEXT + 1]), Err(TextError::TooLong.into()));
        assert_eq!(SendTargets::decode(b"A=1\0"), Err(DiscoveryError::NoRequest));
        assert_eq!(SendTargets::decode(b"SendTargets=all\0"), Err(NameError.into()));
    }

    proptest! {
        #[test]
        fn hostile_bytes_do_not_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let mut text = b"TargetName=iqn.2001-04.com.example:a\0TargetAddress=".to_vec();
            text.extend(bytes);
            text.push(0);
            let _ = decode(&text);
            let _ = SendTargets::decode(&text);
        }
    }
}
