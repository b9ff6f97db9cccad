//! The protected arguments of a call (RFC 2203 section 5.3.2.2 and 5.3.2.3).
//!
//! ```text
//! integrity  length, sequence number, arguments; length, MIC of sequence number and arguments
//! privacy    length, encryption of sequence number and arguments; 0 to 3 bytes of padding
//! ```

use std::ops::Range;

use millrace_buffer::{BufferLengths, SPAN_BYTES};
use millrace_krb5::Context;
use millrace_xdr::{Arena, Decoder, Message, OutOfMemory, Views, pad};
use smallvec::SmallVec;

use crate::Protection;

/// Bytes of the longest MIC, and a length.
const MAX_CHECKSUM: usize = 4 + 40;

/// Why arguments cannot be opened.
#[derive(Debug, thiserror::Error)]
pub(super) enum BodyError {
    /// They are malformed, or not those that the client has signed.
    #[error("{0}")]
    Invalid(&'static str),
    /// There is no memory for them.
    #[error(transparent)]
    Memory(#[from] OutOfMemory),
}

use BodyError::Invalid;

/// Opens the arguments from the position `at` of `message` on, and returns their positions. Encrypted ones are decrypted where
/// they are, or in memory of `arena` if they have other owners.
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
    if !message.payloads.is_empty() || message.padding.is_some() {
        return Err(Invalid("a transport has removed a part of the protected arguments"));
    }
    let length = read::<4>(&message.head, at).map(u32::from_be_bytes).ok_or(Invalid("no arguments"))?;
    let body = at + 4;
    let end = usize::try_from(length).ok().and_then(|length| body.checked_add(length));
    let end = end.filter(|end| *end <= message.head.len()).ok_or(Invalid("a length beyond the call"))?;
    let opened = match protection {
        Protection::Integrity => verify(&message.head, body..end, keys)?,
        _ => decrypt(message, body..end, keys, arena)?,
    };
    let arguments = opened.start + 4..opened.end;
    if arguments.is_empty() && arguments.start != arguments.end
        || message.head.iter().next().is_none_or(|view| view.len() < arguments.start)
    {
        return Err(Invalid("arguments without a sequence number"));
    }
    let inner = read::<4>(&message.head, opened.start).map(u32::from_be_bytes);
    inner
        .filter(|inner| *inner == sequence)
        .map(|_| arguments)
        .ok_or(Invalid("the arguments are those of another call"))
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

/// Verifies signed arguments, over the views in which they were received.
fn verify(head: &Views, body: Range<usize>, keys: &Context) -> Result<Range<usize>, BodyError> {
    let rest = head.len() - body.end;
    if !body.len().is_multiple_of(4) || !(4..=MAX_CHECKSUM).contains(&rest) {
        return Err(Invalid("no checksum after the arguments"));
    }
    let mut checksum = [0; MAX_CHECKSUM];
    head.slice(body.end, rest).copy_to(&mut checksum);
    let mut d = Decoder::from_bytes(&checksum[..rest]);
    let token = d.opaque(rest).ok().filter(|_| d.remaining() == 0);
    let token = token.ok_or(Invalid("a malformed checksum"))?;
    let signed = head.slice(body.start, body.len());
    keys.verify(signed.iter().map(|view| &view[..]), token)
        .map_err(|_| Invalid("the checksum of the arguments is wrong"))?;
    Ok(body)
}

fn decrypt(
    message: &mut Message,
    body: Range<usize>,
    keys: &Context,
    arena: &Arena,
) -> Result<Range<usize>, BodyError> {
    if message.head.len() - body.end != pad(body.len()) {
        return Err(Invalid("bytes after the encrypted arguments"));
    }
    let plain = match unwrap(&mut message.head, &body, keys) {
        Some(plain) => plain,
        None => {
            message.head = copied(&message.head, arena)?;
            unwrap(&mut message.head, &body, keys).ok_or(Invalid("memory with other owners"))?
        }
    };
    let plain =
        plain.map_err(|_| Invalid("the encrypted arguments are not those that the client has sealed"))?;
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
