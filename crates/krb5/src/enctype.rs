//! The encryption types.

use std::fmt;

/// An encryption type (registry "Kerberos Encryption Type Numbers" of IANA). Those with DES, triple DES and RC4 are
/// withdrawn (RFC 6649, RFC 8429).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Enctype {
    /// aes128-cts-hmac-sha1-96 (RFC 3962).
    Aes128Sha1,
    /// aes256-cts-hmac-sha1-96 (RFC 3962).
    Aes256Sha1,
    /// aes128-cts-hmac-sha256-128 (RFC 8009).
    Aes128Sha256,
    /// aes256-cts-hmac-sha384-192 (RFC 8009).
    Aes256Sha384,
}

impl Enctype {
    /// All of them, in the order of their numbers.
    pub const ALL: [Self; 4] = [Self::Aes128Sha1, Self::Aes256Sha1, Self::Aes128Sha256, Self::Aes256Sha384];

    /// Its number.
    pub const fn number(self) -> u32 {
        match self {
            Self::Aes128Sha1 => 17,
            Self::Aes256Sha1 => 18,
            Self::Aes128Sha256 => 19,
            Self::Aes256Sha384 => 20,
        }
    }

    /// The type with this number.
    pub fn from_number(number: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|enctype| enctype.number() == number)
    }

    /// Its name in krb5.conf(5).
    pub const fn name(self) -> &'static str {
        match self {
            Self::Aes128Sha1 => "aes128-cts-hmac-sha1-96",
            Self::Aes256Sha1 => "aes256-cts-hmac-sha1-96",
            Self::Aes128Sha256 => "aes128-cts-hmac-sha256-128",
            Self::Aes256Sha384 => "aes256-cts-hmac-sha384-192",
        }
    }

    /// Bytes of a key.
    pub const fn key_len(self) -> usize {
        match self {
            Self::Aes128Sha1 | Self::Aes128Sha256 => 16,
            Self::Aes256Sha1 | Self::Aes256Sha384 => 32,
        }
    }

    /// Bytes of a checksum: the truncated HMAC.
    pub const fn checksum_len(self) -> usize {
        match self {
            Self::Aes128Sha1 | Self::Aes256Sha1 => 12,
            Self::Aes128Sha256 => 16,
            Self::Aes256Sha384 => 24,
        }
    }

    /// Bytes of the keys of HMAC (RFC 3962 section 6, RFC 8009 section 5).
    pub(crate) const fn hmac_key_len(self) -> usize {
        match self {
            Self::Aes128Sha1 | Self::Aes128Sha256 => 16,
            Self::Aes256Sha1 => 32,
            Self::Aes256Sha384 => 24,
        }
    }

    /// Whether the HMAC of an encrypted message covers the ciphertext (RFC 8009 section 5), not the plaintext
    /// (RFC 3961 section 5.3).
    pub(crate) const fn authenticates_ciphertext(self) -> bool {
        matches!(self, Self::Aes128Sha256 | Self::Aes256Sha384)
    }
}

impl fmt::Display for Enctype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
