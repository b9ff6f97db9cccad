//! The layout of tokens (RFC 4121 section 4.2), and why a token is refused.
//!
//! ```text
//! MIC   04 04 flags ff ff ff ff ff  SND_SEQ (8)  checksum of message and header
//! wrap  05 04 flags ff  EC (2)  RRC (2)  SND_SEQ (8)  encrypted confounder (16), plaintext, EC bytes, header (16)  HMAC
//! ```
//! EC is the length of a filler. The bytes after the header of a wrap token may be rotated to the right by RRC bytes.

use std::{fmt, ops::Deref};

/// Bytes of the header of a token.
pub(crate) const HEADER: usize = 16;
/// Offset of the plaintext in a wrap token that [`crate::Context::wrap`] makes: after header and confounder.
pub const PLAIN_AT: usize = 32;
/// Bytes of the longest MIC token.
const MAX_MIC: usize = HEADER + 24;

const SENT_BY_ACCEPTOR: u8 = 1;
const SEALED: u8 = 2;
const ACCEPTOR_SUBKEY: u8 = 4;

/// The flags (RFC 4121 section 4.2.2) that all tokens of one direction of a context have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Flags(u8);

impl Flags {
    pub(crate) fn new(sent_by_acceptor: bool, acceptor_subkey: bool) -> Self {
        let sent_by_acceptor = if sent_by_acceptor { SENT_BY_ACCEPTOR } else { 0 };
        Self(if acceptor_subkey { sent_by_acceptor | ACCEPTOR_SUBKEY } else { sent_by_acceptor })
    }

    /// The header of a MIC token.
    pub(crate) fn mic_header(self, sequence: u64) -> [u8; HEADER] {
        header([4, 4, self.0, 0xff, 0xff, 0xff, 0xff, 0xff], sequence)
    }

    /// The header of a wrap token with confidentiality, without filler and rotation.
    pub(crate) fn wrap_header(self, sequence: u64) -> [u8; HEADER] {
        header([5, 4, self.0 | SEALED, 0xff, 0, 0, 0, 0], sequence)
    }

    /// Checks the header of a received MIC token.
    ///
    /// # Errors
    /// If it is not one, or does not have these flags.
    pub(crate) fn check_mic(self, header: [u8; HEADER]) -> Result<(), TokenError> {
        let [4, 4, flags, 0xff, 0xff, 0xff, 0xff, 0xff, ..] = header else { return Err(kind(header)) };
        self.check(flags)
    }

    /// Checks the header of a received wrap token, and returns EC and RRC.
    ///
    /// # Errors
    /// As [`Self::check_mic`]; without confidentiality.
    pub(crate) fn check_wrap(self, header: [u8; HEADER]) -> Result<(u16, u16), TokenError> {
        let [5, 4, flags, 0xff, e1, e0, r1, r0, ..] = header else { return Err(kind(header)) };
        self.check(flags)?;
        if flags & SEALED == 0 {
            return Err(TokenError::NotSealed);
        }
        Ok((u16::from_be_bytes([e1, e0]), u16::from_be_bytes([r1, r0])))
    }

    /// Unknown flags are ignored, as RFC 4121 section 4.2.2 requires.
    fn check(self, flags: u8) -> Result<(), TokenError> {
        let differ = flags ^ self.0;
        if differ & SENT_BY_ACCEPTOR != 0 {
            return Err(TokenError::Direction);
        }
        if differ & ACCEPTOR_SUBKEY != 0 {
            return Err(TokenError::Subkey);
        }
        Ok(())
    }
}

/// The copy of `header` in the sealed part of a wrap token: without RRC.
pub(crate) fn sealed_header(mut header: [u8; HEADER]) -> [u8; HEADER] {
    header[6..8].fill(0);
    header
}

fn header(first: [u8; 8], sequence: u64) -> [u8; HEADER] {
    let mut out = [0; HEADER];
    out[..8].copy_from_slice(&first);
    out[8..].copy_from_slice(&sequence.to_be_bytes());
    out
}

fn kind(header: [u8; HEADER]) -> TokenError {
    TokenError::Kind([header[0], header[1]])
}

/// A MIC token: 28 to 40 bytes.
#[derive(Clone, Copy)]
pub struct Mic {
    bytes: [u8; MAX_MIC],
    len: usize,
}

impl Mic {
    /// A token with a checksum of `checksum_len` bytes, which are still zero.
    pub(crate) fn new(header: [u8; HEADER], checksum_len: usize) -> Self {
        let mut bytes = [0; MAX_MIC];
        bytes[..HEADER].copy_from_slice(&header);
        Self { bytes, len: HEADER + checksum_len }
    }

    pub(crate) fn checksum_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[HEADER..self.len]
    }
}

impl Deref for Mic {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

impl fmt::Debug for Mic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Mic({:02x?})", &**self)
    }
}

/// Why a token is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    /// The length is not that of a MIC of this encryption type, or too small for a wrap token with its filler.
    #[error("the Kerberos token has {0} bytes, which is not the length of such a token")]
    Length(usize),
    /// The first bytes are not those of the expected kind of token.
    #[error("not the expected kind of token of RFC 4121: it begins with {0:02x?}")]
    Kind([u8; 2]),
    /// A token of the wrong direction: this side's own, which the peer returned.
    #[error("the flag SentByAcceptor is that of this side's own tokens")]
    Direction,
    /// The token was made with a key that is not that of the context.
    #[error("the flag AcceptorSubkey is not that of the security context, so that the token has another key")]
    Subkey,
    /// The message is not encrypted.
    #[error("a wrap token without confidentiality where krb5p requires it")]
    NotSealed,
    /// The message or the token was changed, or made with another key.
    #[error("the checksum of the Kerberos token is wrong: message or token was changed, or the keys differ")]
    Checksum,
}
