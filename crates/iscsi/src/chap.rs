//! CHAP (RFC 1994, RFC 7143 section 12.1.3) with the algorithms MD5, SHA-256 and SHA3-256.

use std::fmt;

use zeroize::Zeroizing;

/// Minimum length of a secret in bytes: RFC 7143 section 9.2.1 requires 96 bits.
pub const MIN_SECRET: usize = 12;
/// Maximum length of a secret in bytes.
pub const MAX_SECRET: usize = 255;
/// Minimum length of a challenge of the peer in bytes. A shorter one repeats, or helps to search for the secret.
pub const MIN_CHALLENGE: usize = 16;

/// A hash algorithm.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Algorithm {
    /// SHA3-256.
    Sha3,
    /// SHA-256.
    Sha256,
    /// MD5, which every implementation has.
    Md5,
}

impl Algorithm {
    /// All algorithms, the preferred one first.
    pub const ALL: [Self; 3] = [Self::Sha3, Self::Sha256, Self::Md5];

    /// The number of the algorithm in the registry "PPP Authentication Algorithms" of IANA, as text.
    pub const fn number(self) -> &'static str {
        match self {
            Self::Md5 => "5",
            Self::Sha256 => "7",
            Self::Sha3 => "8",
        }
    }

    /// The algorithm with `number`.
    pub fn from_number(number: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|a| a.number() == number)
    }

    /// Length of a response, and of this side's challenges, in bytes.
    pub const fn length(self) -> usize {
        match self {
            Self::Md5 => 16,
            Self::Sha256 | Self::Sha3 => 32,
        }
    }
}

/// A secret of 12 to 255 bytes. Its memory is overwritten when it is dropped.
#[derive(Clone)]
pub struct Secret(Zeroizing<Vec<u8>>);

/// A secret has an invalid length.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a CHAP secret of {0} bytes; it has {MIN_SECRET} to {MAX_SECRET} bytes")]
pub struct SecretError(usize);

impl Secret {
    /// A secret.
    ///
    /// # Errors
    ///
    /// The length is not 12 to 255 bytes.
    pub fn new(bytes: &[u8]) -> Result<Self, SecretError> {
        match bytes.len() {
            MIN_SECRET..=MAX_SECRET => Ok(Self(Zeroizing::new(bytes.to_vec()))),
            other => Err(SecretError(other)),
        }
    }
}

impl PartialEq for Secret {
    /// Compares without an early end.
    fn eq(&self, other: &Self) -> bool {
        equal(&self.0, &other.0)
    }
}

impl Eq for Secret {}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// The name and the secret of one direction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Credentials {
    /// CHAP name, 1 to 255 bytes without control characters; often, but not always, the iSCSI name.
    pub name: String,
    /// Secret.
    pub secret: Secret,
}

/// The credentials of both directions of an authentication.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mutual {
    initiator: Credentials,
    target: Option<Credentials>,
    md5_only: bool,
}

/// Both directions have the same secret, which RFC 7143 section 12.1.3 forbids: a peer without it could send a
/// challenge back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the CHAP secrets of initiator and target are equal; give each its own")]
pub struct EqualSecrets;

impl Mutual {
    /// Credentials with which the initiator authenticates, and those with which the target does if the
    /// initiator requests it (mutual CHAP).
    ///
    /// # Errors
    ///
    /// The secrets are equal.
    pub fn new(initiator: Credentials, target: Option<Credentials>) -> Result<Self, EqualSecrets> {
        match &target {
            Some(t) if t.secret == initiator.secret => Err(EqualSecrets),
            _ => Ok(Self { initiator, target, md5_only: false }),
        }
    }

    /// The same credentials for a target such as tgt, whose algorithm with the number 7 is SHA-1 and not SHA-256: an
    /// initiator offers MD5 only. (The selection of the algorithm is not authenticated in any case.)
    pub fn with_md5_only(self) -> Self {
        Self { md5_only: true, ..self }
    }

    /// The algorithms that an initiator offers, the preferred one first.
    pub(crate) fn algorithms(&self) -> impl Iterator<Item = Algorithm> + Clone {
        let md5_only = self.md5_only;
        Algorithm::ALL.into_iter().filter(move |a| !md5_only || *a == Algorithm::Md5)
    }

    pub(crate) const fn initiator(&self) -> &Credentials {
        &self.initiator
    }

    /// Credentials of the target; without them, only the initiator authenticates.
    pub const fn target(&self) -> Option<&Credentials> {
        self.target.as_ref()
    }
}

/// A challenge: this side's own, or the peer's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Challenge {
    pub(crate) algorithm: Algorithm,
    /// CHAP_I.
    pub(crate) id: u8,
    /// CHAP_C.
    pub(crate) bytes: Vec<u8>,
}

impl Challenge {
    /// A challenge of this side from random bytes.
    pub(crate) fn new(algorithm: Algorithm, random: &[u8; 33]) -> Self {
        let [id, bytes @ ..] = random;
        Self { algorithm, id: *id, bytes: bytes[..algorithm.length()].to_vec() }
    }

    /// The response to the challenge.
    pub(crate) fn response(&self, secret: &Secret) -> Vec<u8> {
        let parts: [&[u8]; 3] = [&[self.id], &secret.0, &self.bytes];
        match self.algorithm {
            Algorithm::Md5 => hash::<md5::Md5>(parts),
            Algorithm::Sha256 => hash::<sha2::Sha256>(parts),
            Algorithm::Sha3 => hash::<sha3::Sha3_256>(parts),
        }
    }

    /// Whether `response` is the response of a peer with `credentials` and the name `name`.
    pub(crate) fn verify(&self, credentials: &Credentials, name: &str, response: &[u8]) -> bool {
        let response = equal(&self.response(&credentials.secret), response);
        response & equal(credentials.name.as_bytes(), name.as_bytes())
    }
}

fn hash<H: md5::Digest>(parts: [&[u8]; 3]) -> Vec<u8> {
    let mut hash = H::new();
    parts.into_iter().for_each(|part| hash.update(part));
    hash.finalize().to_vec()
}

/// Compares without an early end. (A challenge is used once, so that the time of one comparison of responses
/// helps with no later one.)
fn equal(a: &[u8], b: &[u8]) -> bool {
    let difference = a.iter().zip(b).fold(0, |d, (x, y)| std::hint::black_box(d | (x ^ y)));
    a.len() == b.len() && difference == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secret(s: &str) -> Secret {
        Secret::new(s.as_bytes()).unwrap()
    }

    fn credentials(name: &str, s: &str) -> Credentials {
        Credentials { name: name.to_owned(), secret: secret(s) }
    }

    #[test]
    fn responses_have_the_expected_bytes() {
        // Computed with Python's hashlib over 07, the secret, and the bytes 0 to 15.
        for (algorithm, number, expected) in [
            (Algorithm::Md5, "5", "0x58954f4a106b1f6edd6dcf2143c52f96"),
            (Algorithm::Sha256, "7", "0x50a41dc5dd6613361e5f7d2a7d30a69443fbf53af2aa50d3b7772f922119a100"),
            (Algorithm::Sha3, "8", "0x243032eec595eb7da9fdfa9a471223a9c210c8eb0a631c79afaf077adbef5baa"),
        ] {
            let challenge = Challenge { algorithm, id: 7, bytes: (0..16).collect() };
            let response = challenge.response(&secret("a secret of 22 bytes.."));
            assert_eq!(crate::text::binary_text(&response), expected);
            assert_eq!(response.len(), algorithm.length());
            assert_eq!((algorithm.number(), Algorithm::from_number(number)), (number, Some(algorithm)));
        }
        assert_eq!(Algorithm::from_number("6"), None); // SHA-1.
    }

    #[test]
    fn another_name_secret_or_length_is_refused() {
        let challenge = Challenge::new(Algorithm::Md5, &[9; 33]);
        assert_eq!((challenge.id, challenge.bytes.len()), (9, 16));
        let user = credentials("user", "secret-secret");
        let response = challenge.response(&user.secret);
        assert!(challenge.verify(&user, "user", &response));
        assert!(!challenge.verify(&user, "User", &response));
        assert!(!challenge.verify(&credentials("user", "secret-secreT"), "user", &response));
        assert!(!challenge.verify(&user, "user", &response[..15]));
        assert!(!challenge.verify(&user, "user", &[]));
        assert!(!challenge.verify(&user, "user", &[&response[..], &[0]].concat()));
    }

    #[test]
    fn secrets_are_bounded_redacted_and_different() {
        assert_eq!(Secret::new(&[1; 11]).unwrap_err(), SecretError(11));
        assert!(Secret::new(&[1; 12]).is_ok() && Secret::new(&[1; 255]).is_ok());
        assert_eq!(Secret::new(&[1; 256]).unwrap_err(), SecretError(256));
        let (a, b) = (credentials("a", "secret-secret"), credentials("b", "secret-secret"));
        assert!(!format!("{a:?}").contains("secret-secret"));
        assert!(a.secret == b.secret && a != b && a.secret != secret("secret-secret2"));
        assert_eq!(Mutual::new(a.clone(), Some(b)).unwrap_err(), EqualSecrets);
        assert!(Mutual::new(a.clone(), Some(credentials("b", "secret-secret2"))).is_ok());
        assert!(Mutual::new(a, None).is_ok());
    }
}
