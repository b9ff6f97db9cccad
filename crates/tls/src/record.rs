//! The records of TLS 1.3 after the handshake (RFC 8446 section 5).

use ring::aead::{
    AES_128_GCM, AES_256_GCM, Aad, Algorithm, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey,
};
use rustls::ConnectionTrafficSecrets;

use crate::TlsError;

/// Bytes of a record's header.
pub(crate) const HEADER: usize = 5;
/// Maximum bytes of data in a record.
pub(crate) const MAX_PLAIN: usize = 1 << 14;
/// Maximum bytes of a record after its header.
pub(crate) const MAX_CIPHERTEXT: usize = MAX_PLAIN + 256;
/// Bytes of the authentication tag of all three ciphers.
const TAG: usize = 16;
/// Bytes that a record adds to its data: header, type and tag.
pub(crate) const OVERHEAD: usize = HEADER + 1 + TAG;
/// Records that AES-GCM may encrypt with one key (RFC 8446 section 5.5: 2^24.5).
const MAX_RECORDS: u64 = 1 << 24;

/// The type of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ContentType {
    Alert = 21,
    Handshake = 22,
    Data = 23,
}

/// Length of the record that starts `bytes`, with its header. `None`: bytes of the header are missing.
pub(crate) fn record_len(bytes: &[u8]) -> Result<Option<usize>, TlsError> {
    let Some(&[kind, major, _, high, low]) = bytes.first_chunk() else { return Ok(None) };
    let len = usize::from(u16::from_be_bytes([high, low]));
    if !(20..=23).contains(&kind) || major != 3 {
        return Err(TlsError::misbehaved("bytes that are no TLS record"));
    }
    if len > MAX_CIPHERTEXT {
        return Err(TlsError::misbehaved("an oversized record"));
    }
    Ok(Some(HEADER + len))
}

/// The key of one direction, and the number of the next record.
pub(crate) struct Key {
    key: LessSafeKey,
    iv: [u8; 12],
    sequence: u64,
    /// Number from which on another key is needed.
    limit: u64,
}

impl Key {
    pub(crate) fn new((sequence, secrets): (u64, ConnectionTrafficSecrets)) -> Result<Self, TlsError> {
        use ConnectionTrafficSecrets as Secrets;
        let (algorithm, key, iv, limit): (&'static Algorithm, _, _, _) = match &secrets {
            Secrets::Aes128Gcm { key, iv } => (&AES_128_GCM, key, iv, MAX_RECORDS),
            Secrets::Aes256Gcm { key, iv } => (&AES_256_GCM, key, iv, MAX_RECORDS),
            Secrets::Chacha20Poly1305 { key, iv } => (&CHACHA20_POLY1305, key, iv, u64::MAX),
            _ => return Err(TlsError::Local("an unknown cipher".into())),
        };
        let wrong = || TlsError::Local("a key of another length".into());
        let iv = *iv.as_ref().first_chunk().ok_or_else(wrong)?;
        let key = UnboundKey::new(algorithm, key.as_ref()).map_err(|_| wrong())?;
        Ok(Self { key: LessSafeKey::new(key), iv, sequence, limit })
    }

    /// Whether the next record needs another key.
    pub(crate) fn is_used_up(&self) -> bool {
        self.sequence >= self.limit
    }

    /// The nonce of the next record (RFC 8446 section 5.3).
    fn nonce(&mut self) -> Result<Nonce, TlsError> {
        let mut nonce = self.iv;
        for (byte, number) in nonce[4..].iter_mut().zip(self.sequence.to_be_bytes()) {
            *byte ^= number;
        }
        let next = self.sequence.checked_add(1);
        self.sequence = next.ok_or_else(|| TlsError::misbehaved("more records than a key may have"))?;
        Ok(Nonce::assume_unique_for_key(nonce))
    }

    /// Encrypts a record in place. `record` has room for the header, then the data, then room for type and tag.
    pub(crate) fn seal(&mut self, kind: ContentType, record: &mut [u8]) -> Result<(), TlsError> {
        let failed = || TlsError::Local("a record cannot be encrypted".into());
        let nonce = self.nonce()?;
        let (header, body) = record.split_first_chunk_mut::<HEADER>().ok_or_else(failed)?;
        let (text, tag) = body.split_last_chunk_mut::<TAG>().ok_or_else(failed)?;
        let [high, low] = ((text.len() + TAG) as u16).to_be_bytes();
        *header = [ContentType::Data as u8, 3, 3, high, low];
        *text.last_mut().ok_or_else(failed)? = kind as u8;
        let sealed = self.key.seal_in_place_separate_tag(nonce, Aad::from(*header), text);
        *tag = sealed.ok().and_then(|t| t.as_ref().first_chunk().copied()).ok_or_else(failed)?;
        Ok(())
    }

    /// Decrypts a complete record in place. Returns its type and the length of its data, which follows the header.
    pub(crate) fn open(&mut self, record: &mut [u8]) -> Result<(ContentType, usize), TlsError> {
        let (header, body) = record
            .split_first_chunk_mut::<HEADER>()
            .ok_or_else(|| TlsError::misbehaved("bytes that are no TLS record"))?;
        if header[0] != ContentType::Data as u8 {
            return Err(TlsError::misbehaved("a record in the clear after the handshake"));
        }
        let nonce = self.nonce()?;
        let text = self
            .key
            .open_in_place(nonce, Aad::from(*header), body)
            .map_err(|_| TlsError::misbehaved("a record that does not decrypt"))?;
        let end = text.iter().rposition(|byte| *byte != 0);
        let Some(end) = end else { return Err(TlsError::misbehaved("a record of padding")) };
        if end > MAX_PLAIN {
            return Err(TlsError::misbehaved("an oversized record"));
        }
        let kind = match text[end] {
            21 => ContentType::Alert,
            22 => ContentType::Handshake,
            23 => ContentType::Data,
            _ => return Err(TlsError::misbehaved("a record of an unknown type")),
        };
        Ok((kind, end))
    }
}
