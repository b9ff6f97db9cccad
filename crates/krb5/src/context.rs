//! Established contexts.

use std::{
    fmt,
    ops::Range,
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use crate::{
    derive::{Key, Purpose, derive_mac},
    encryption::{BLOCK, Keys},
    enctype::Enctype,
    mac::Mac,
    parts::{Ring, len, rotate_left},
    token::{Flags, HEADER, Mic, PLAIN_AT, TokenError, sealed_header},
};

/// The side of a context.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Role {
    /// The client.
    Initiator,
    /// The server.
    Acceptor,
}

impl Role {
    /// Key usages of what this role signs and seals (RFC 4121 section 2).
    fn usages(self) -> (u32, u32) {
        match self {
            Self::Initiator => (25, 24),
            Self::Acceptor => (23, 22),
        }
    }

    fn peer(self) -> Self {
        match self {
            Self::Initiator => Self::Acceptor,
            Self::Acceptor => Self::Initiator,
        }
    }
}

/// What an established context consists of.
#[derive(Clone, Copy)]
pub struct Parameters<'a> {
    /// This side.
    pub role: Role,
    /// The encryption type of `key`.
    pub enctype: Enctype,
    /// The key: the subkey of the acceptor if it chose one, otherwise that of the initiator, or the session key.
    pub key: &'a [u8],
    /// Whether `key` is the subkey of the acceptor.
    pub acceptor_subkey: bool,
    /// Number of the next token that this side sends.
    pub sequence: u64,
    /// The end of validity, since 1970: that of the ticket.
    pub end: Duration,
}

/// A key has not the length of keys of its encryption type.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a key of {len} bytes; those of {enctype} have {} bytes", enctype.key_len())]
pub struct KeyLength {
    /// The encryption type.
    pub enctype: Enctype,
    /// Bytes of the key.
    pub len: usize,
}

/// An established context. It can be shared by threads: all that changes is the number of the next token.
///
/// The keys are overwritten when it is dropped.
pub struct Context {
    role: Role,
    enctype: Enctype,
    end: Duration,
    next: AtomicU64,
    sent: Flags,
    received: Flags,
    sign: Mac,
    check: Mac,
    seal: Keys,
    open: Keys,
}

impl Context {
    /// Derives the keys of a context.
    ///
    /// # Errors
    /// If the key has not the length that its encryption type requires.
    pub fn new(parameters: &Parameters<'_>) -> Result<Self, KeyLength> {
        let Parameters { role, enctype, key, acceptor_subkey, sequence, end } = *parameters;
        if key.len() != enctype.key_len() {
            return Err(KeyLength { enctype, len: key.len() });
        }
        let mut base = Key::default();
        base[..key.len()].copy_from_slice(key);
        let (sign, seal) = role.usages();
        let (check, open) = role.peer().usages();
        let acceptor = role == Role::Acceptor;
        Ok(Self {
            role,
            enctype,
            end,
            next: AtomicU64::new(sequence),
            sent: Flags::new(acceptor, acceptor_subkey),
            received: Flags::new(!acceptor, acceptor_subkey),
            sign: derive_mac(enctype, &base, sign, Purpose::Checksum),
            check: derive_mac(enctype, &base, check, Purpose::Checksum),
            seal: Keys::new(enctype, &base, seal),
            open: Keys::new(enctype, &base, open),
        })
    }

    /// This side.
    pub fn role(&self) -> Role {
        self.role
    }

    /// The encryption type.
    pub fn enctype(&self) -> Enctype {
        self.enctype
    }

    /// The end of validity, since 1970. The caller compares it with its clock: the other methods work after it too.
    pub fn end(&self) -> Duration {
        self.end
    }

    /// Bytes of a MIC token.
    pub fn mic_len(&self) -> usize {
        HEADER + self.enctype.checksum_len()
    }

    /// Bytes of a wrap token after the plaintext.
    pub fn wrap_tail(&self) -> usize {
        HEADER + self.enctype.checksum_len()
    }

    /// Makes a MIC token for a message, of which `message` are the parts (GSS_GetMIC; RFC 4121 section 4.2.6.1).
    pub fn mic<'a>(&self, message: impl IntoIterator<Item = &'a [u8]>) -> Mic {
        let header = self.sent.mic_header(self.sequence());
        let mut mic = Mic::new(header, self.enctype.checksum_len());
        checksum(&self.sign, message, &header).finish(mic.checksum_mut());
        mic
    }

    /// Verifies the MIC token that the peer made for a message (GSS_VerifyMIC).
    ///
    /// # Errors
    /// [`TokenError`].
    pub fn verify<'a>(
        &self,
        message: impl IntoIterator<Item = &'a [u8]>,
        token: &[u8],
    ) -> Result<(), TokenError> {
        let (header, sum) = token
            .split_first_chunk()
            .filter(|(_, sum)| sum.len() == self.enctype.checksum_len())
            .ok_or(TokenError::Length(token.len()))?;
        self.received.check_mic(*header)?;
        let right = checksum(&self.check, message, header).is(sum);
        right.then_some(()).ok_or(TokenError::Checksum)
    }

    /// Seals a message where it is (GSS_Wrap with confidentiality; RFC 4121 section 4.2.6.2). `token` are the parts of
    /// the token. The caller has written the plaintext at [`PLAIN_AT`]; after it follow [`Self::wrap_tail`] bytes.
    ///
    /// `confounder` must be unpredictable random bytes.
    ///
    /// # Errors
    /// [`TokenError::Length`] if the parts are shorter than a token without plaintext.
    pub fn wrap(&self, token: &mut [&mut [u8]], confounder: [u8; BLOCK]) -> Result<(), TokenError> {
        let len = len(token);
        let plain = len.checked_sub(PLAIN_AT + self.wrap_tail()).ok_or(TokenError::Length(len))?;
        let header = self.sent.wrap_header(self.sequence());
        let mut ring = Ring::new(token);
        ring.write(&header);
        let sealed = ring.position();
        ring.write(&confounder);
        ring.advance(plain);
        ring.write(&header);
        ring.seek(sealed);
        let mac = self.seal.encrypt(&mut ring, BLOCK + plain + HEADER);
        let mut tag = [0; 24];
        let tag = &mut tag[..self.enctype.checksum_len()];
        mac.finish(tag);
        ring.write(tag);
        Ok(())
    }

    /// Opens the token of the peer where it is (GSS_Unwrap), and returns the position of the plaintext in the token,
    /// of which `token` are the parts. If it fails, the bytes of the token are undefined.
    ///
    /// # Errors
    /// [`TokenError`]; a token without confidentiality is refused.
    pub fn unwrap(&self, token: &mut [&mut [u8]]) -> Result<Range<usize>, TokenError> {
        let len = len(token);
        let overhead = PLAIN_AT + self.wrap_tail();
        let content = len.checked_sub(overhead).ok_or(TokenError::Length(len))?;
        let mut ring = Ring::new(token);
        let mut header = [0; HEADER];
        ring.read(&mut header);
        let (filler, rotation) = self.received.check_wrap(header)?;
        let plain = content.checked_sub(usize::from(filler)).ok_or(TokenError::Length(len))?;
        let rotation = usize::from(rotation) % (len - HEADER);
        ring.advance(rotation);
        let sealed = ring.position();
        let mac = self.open.decrypt(&mut ring, BLOCK + content + HEADER);
        let mut tag = [0; 24];
        let tag = &mut tag[..self.enctype.checksum_len()];
        ring.read(tag);
        if !mac.is(tag) {
            return Err(TokenError::Checksum);
        }
        ring.seek(sealed);
        ring.advance(BLOCK + content);
        let mut inner = [0; HEADER];
        ring.read(&mut inner);
        if inner != sealed_header(header) {
            return Err(TokenError::Checksum);
        }
        // With the rotations that peers use, 0 and the length of the tail, the plaintext is contiguous.
        let at = HEADER + (rotation + BLOCK) % (len - HEADER);
        if at + plain <= len {
            return Ok(at..at + plain);
        }
        rotate_left(token, HEADER, rotation);
        Ok(PLAIN_AT..PLAIN_AT + plain)
    }

    fn sequence(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }
}

/// The keys are left out.
impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Context")
            .field("role", &self.role)
            .field("enctype", &self.enctype)
            .field("end", &self.end)
            .finish_non_exhaustive()
    }
}

/// HMAC of a message and the header of its token.
fn checksum<'a>(key: &Mac, message: impl IntoIterator<Item = &'a [u8]>, header: &[u8; HEADER]) -> Mac {
    let mut mac = key.clone();
    message.into_iter().for_each(|part| mac.update(part));
    mac.update(header);
    mac
}
