//! The protected arguments of a call (RFC 2203 sections 5.3.2.2 and 5.3.2.3), or results of a reply: its content.
//!
//! ```text
//! integrity  length, sequence number, content; length, MIC of sequence number and content
//! privacy    length, encryption of sequence number and content; 0 to 3 bytes of padding
//! ```

use std::ops::Range;

use millrace_buffer::{BufferLengths, SPAN_BYTES};
use millrace_krb5::Context;
use millrace_xdr::{Arena, Decoder, Message, OutOfMemory, Views, pad};
use smallvec::SmallVec;

use crate::Protection;

/// Bytes of the longest MIC, and a length.
const MAX_CHECKSUM: usize = 4 + 40;

/// Why a content cannot be opened or protected.
#[derive(Debug, thiserror::Error)]
pub(super) enum BodyError {
    /// It is malformed, or not that which the peer has signed.
    #[error("{0}")]
    Invalid(&'static str),
    /// There is no memory for it.
    #[error(transparent)]
    Memory(#[from] OutOfMemory),
}

use BodyError::Invalid;

/// Opens the content from the position `at` of `message` on, and returns its positions. An encrypted one is decrypted where
/// it is, or in memory of `arena` if it has other owners.
pub(super) fn open(
    message: &mut Message,
    at: usize,
    keys: &Context,
    protection: Protection,
    sequence: u32,
    arena: &Arena,
) -> Result<Range<usize>, BodyError> {
    if protection == Protection::Authentication {
        return Ok(at..message.head.len());
    }
    // RFC 8166 section 3.4.1: what is inside of an opaque cannot be placed.
    if !message.payloads.is_empty() {
        return Err(Invalid("a transport has removed a part of the protected data"));
    }
    let length = read::<4>(&message.head, at).map(u32::from_be_bytes).ok_or(Invalid("no protected data"))?;
    let body = at + 4;
    let end = usize::try_from(length).ok().and_then(|length| body.checked_add(length));
    let end = end.filter(|end| *end <= message.head.len()).ok_or(Invalid("a length beyond the message"))?;
    let opened = match protection {
        Protection::Integrity => verify(&message.head, body..end, keys)?,
        _ => decrypt(message, body..end, keys, arena)?,
    };
    let content = opened.start + 4..opened.end;
    if content.is_empty() && content.start != content.end
        || message.head.iter().next().is_none_or(|view| view.len() < content.start)
    {
        return Err(Invalid("protected data without a sequence number"));
    }
    let inner = read::<4>(&message.head, opened.start).map(u32::from_be_bytes);
    inner
        .filter(|inner| *inner == sequence)
        .map(|_| content)
        .ok_or(Invalid("the protected data is that of another call"))
}

/// The bytes at a position.
fn read<const N: usize>(views: &Views, at: usize) -> Option<[u8; N]> {
    let end = at.checked_add(N).filter(|end| *end <= views.len())?;
    let mut bytes = [0; N];
    views.slice(at, end - at).iter().fold(0, |from, view| {
        bytes[from..from + view.len()].copy_from_slice(view);
        from + view.len()
    });
    Some(bytes)
}

/// Verifies a signed content, over the views in which they were received.
fn verify(head: &Views, body: Range<usize>, keys: &Context) -> Result<Range<usize>, BodyError> {
    let rest = head.len() - body.end;
    if !body.len().is_multiple_of(4) || !(4..=MAX_CHECKSUM).contains(&rest) {
        return Err(Invalid("no checksum after the protected data"));
    }
    let mut checksum = [0; MAX_CHECKSUM];
    head.slice(body.end, rest).copy_to(&mut checksum);
    let mut d = Decoder::from_bytes(&checksum[..rest]);
    let token = d.opaque(rest).ok().filter(|_| d.remaining() == 0);
    let token = token.ok_or(Invalid("a malformed checksum"))?;
    let signed = head.slice(body.start, body.len());
    keys.verify(signed.iter().map(|view| &view[..]), token)
        .map_err(|_| Invalid("the checksum of the protected data is wrong"))?;
    Ok(body)
}

fn decrypt(
    message: &mut Message,
    body: Range<usize>,
    keys: &Context,
    arena: &Arena,
) -> Result<Range<usize>, BodyError> {
    if message.head.len() - body.end != pad(body.len()) {
        return Err(Invalid("bytes after the encrypted data"));
    }
    let plain = match unwrap(&mut message.head, &body, keys) {
        Some(plain) => plain,
        None => {
            message.head = copied(&message.head, arena)?;
            unwrap(&mut message.head, &body, keys).ok_or(Invalid("memory with other owners"))?
        }
    };
    let plain = plain.map_err(|_| Invalid("the encrypted data is not that which the peer has sealed"))?;
    Ok(body.start + plain.start..body.start + plain.end)
}

/// Decrypts the token at `token`. `None`, without a change, if the memory has other owners.
fn unwrap(
    head: &mut Views,
    token: &Range<usize>,
    keys: &Context,
) -> Option<Result<Range<usize>, millrace_krb5::TokenError>> {
    let mut parts = SmallVec::<[&mut [u8]; 20]>::new();
    let mut offset = 0;
    for view in head.iter_mut() {
        let end = offset + view.len();
        let (from, to) = (token.start.clamp(offset, end), token.end.clamp(offset, end));
        if from < to {
            parts.push(&mut view.try_mut()?[from - offset..to - offset]);
        }
        offset = end;
    }
    Some(keys.unwrap(&mut parts))
}

/// A copy of a message, in buffers without other owners.
fn copied(views: &Views, arena: &Arena) -> Result<Views, OutOfMemory> {
    let mut at = 0;
    let buffers = arena.alloc_all(BufferLengths::new(views.len(), SPAN_BYTES));
    let copies = buffers.map(|buffer| {
        let mut buffer = buffer?;
        let len = buffer.len();
        views.slice(at, len).copy_to(&mut buffer);
        at += len;
        Ok(buffer.freeze())
    });
    copies.collect()
}
