//! The protection of messages (RFC 2203 sections 5.3.2, 5.3.3.2 and 5.3.3.4).

use std::sync::Arc;

use millrace_buffer::{Buffer, BufferLengths, SPAN_BYTES, slot_bytes};
use millrace_krb5::{Context, PLAIN_AT};
use millrace_xdr::{Arena, Encoder, Message, View, Views, pad};
use smallvec::SmallVec;

use super::{body::BodyError, contexts::ServerContext};
use crate::{
    AcceptError, Protection, ReplyStatus, SUCCESS_HEADER_BYTES,
    message::{RPCSEC_GSS, bare_reply},
};

/// Position of the verifier in the header of a reply.
const VERIFIER_AT: usize = 12;
/// Position of `accept_stat` in a header with an AUTH_NONE verifier.
const STATUS_AT: usize = 20;

/// Bytes by which a protected reply is longer than one with an AUTH_NONE verifier, at most.
pub(super) fn overhead(keys: &Context, protection: Protection) -> usize {
    const PADDING: usize = 3;
    let verifier = keys.mic_len();
    verifier
        + match protection {
            Protection::Authentication => 0,
            // A length, the sequence number, and the checksum.
            Protection::Integrity => 4 + 4 + 4 + keys.mic_len(),
            Protection::Privacy => 4 + PLAIN_AT + 4 + keys.wrap_tail() + PADDING,
        }
}

/// A header. With the usual handles, it is not on the heap.
pub(super) type Header = SmallVec<[u8; 160]>;

/// Appends a verifier.
pub(super) fn put_verifier(header: &mut Header, mic: &[u8]) {
    header.extend_from_slice([RPCSEC_GSS, mic.len() as u32].map(u32::to_be_bytes).as_flattened());
    header.extend_from_slice(mic);
}

/// The confounder of an encrypted message, zeros for others. `random` fills bytes with random ones.
pub(super) fn confounder(protection: Protection, random: impl FnOnce(&mut [u8])) -> [u8; 16] {
    let mut confounder = [0; 16];
    if protection == Protection::Privacy {
        random(&mut confounder);
    }
    confounder
}

/// What protects the content of one message.
pub(super) struct Content<'k> {
    pub(super) keys: &'k Context,
    pub(super) sequence: u32,
    pub(super) protection: Protection,
    /// [`confounder`].
    pub(super) confounder: [u8; 16],
}

impl Content<'_> {
    /// The message with `header` in place of its first `plain` bytes, and its content after that protected.
    pub(super) fn protect(
        &self,
        message: Message,
        plain: usize,
        header: Header,
        arena: &Arena,
    ) -> Result<Message, BodyError> {
        match self.protection {
            Protection::Authentication => with_header(message, plain, &header, arena),
            Protection::Integrity => self.with_checksum(message, plain, header, arena),
            Protection::Privacy => self.encrypted(&message, plain, header, arena),
        }
    }

    /// The message with a signed content. It stays where it is, but a transport must not place parts of it apart.
    fn with_checksum(
        &self,
        message: Message,
        plain: usize,
        mut header: Header,
        arena: &Arena,
    ) -> Result<Message, BodyError> {
        let body = 4 + message.stream_len() - plain;
        header.extend_from_slice([body as u32, self.sequence].map(u32::to_be_bytes).as_flattened());
        let message = with_header(message, plain, &header, arena)?;
        let mut head = gathered(&message, arena)?;
        let signed = head.slice(head.len() - body, body);
        let mic = self.keys.mic(signed.iter().map(|view| &view[..]));
        let checksum = [&(mic.len() as u32).to_be_bytes(), &*mic].concat();
        head.push(arena.copy_from(&checksum)?);
        Ok(Message { head, ..Message::default() })
    }

    /// The message with an encrypted content, in other memory: file systems and callers may own theirs.
    fn encrypted(
        &self,
        message: &Message,
        plain: usize,
        mut header: Header,
        arena: &Arena,
    ) -> Result<Message, BodyError> {
        let content = message.stream_len() - plain;
        let token = PLAIN_AT + 4 + content + self.keys.wrap_tail();
        header.extend_from_slice(&(token as u32).to_be_bytes());
        let token_at = header.len();
        header.resize(token_at + PLAIN_AT, 0);
        header.extend_from_slice(&self.sequence.to_be_bytes());
        let total = token_at + token + pad(token);
        let lengths = BufferLengths::starting(header.len(), total, SPAN_BYTES);
        let mut buffers = arena.alloc_all(lengths).collect::<Result<SmallVec<[Buffer; 3]>, _>>()?;
        let (first, others) = buffers.split_first_mut().ok_or(BodyError::Invalid("no memory"))?;
        first.copy_from_slice(&header);
        let mut unsealed = gathered(message, arena)?.slice(plain, content);
        let mut parts = SmallVec::<[&mut [u8]; 4]>::new();
        parts.push(&mut first[token_at..]);
        let mut left = token - parts[0].len();
        for buffer in others {
            let len = buffer.len().min(unsealed.len());
            unsealed.slice(0, len).copy_to(buffer);
            unsealed = unsealed.slice(len, unsealed.len() - len);
            buffer[len..].fill(0);
            let sealed = buffer.len().min(left);
            left -= sealed;
            parts.push(&mut buffer[..sealed]);
        }
        self.keys
            .wrap(&mut parts, self.confounder)
            .map_err(|_| BodyError::Invalid("a token without room"))?;
        drop(parts);
        let head = buffers.into_iter().map(Buffer::freeze).collect();
        Ok(Message { head, ..Message::default() })
    }
}

/// The message with `header` in place of its first `plain` bytes, which are less.
fn with_header(
    mut message: Message,
    plain: usize,
    header: &[u8],
    arena: &Arena,
) -> Result<Message, BodyError> {
    let longer = header.len() - plain;
    if let Some(bytes) = message.head.prepend(longer) {
        bytes[..header.len()].copy_from_slice(header);
    } else {
        let mut head = Views::from(arena.copy_from(header)?);
        head.extend(message.head.slice(plain, message.head.len() - plain).iter().cloned());
        message.head = head;
    }
    message.payloads.iter_mut().for_each(|payload| payload.position += longer);
    Ok(message)
}

/// The whole stream of `message` as views.
fn gathered(message: &Message, arena: &Arena) -> Result<Views, BodyError> {
    let zeros: View = arena.copy_from(&[0; 4])?;
    Ok(message.gather(&zeros))
}

/// What protects the reply to a call, at a server.
pub(crate) struct Seal {
    context: Arc<ServerContext>,
    sequence: u32,
    protection: Protection,
    /// [`confounder`].
    confounder: [u8; 16],
}

impl Seal {
    /// For the reply to the call with this sequence number. `random` fills bytes with random ones.
    pub(super) fn new(
        context: Arc<ServerContext>,
        sequence: u32,
        protection: Protection,
        random: impl FnOnce(&mut [u8]),
    ) -> Self {
        Self { context, sequence, protection, confounder: confounder(protection, random) }
    }

    /// Bytes of memory that the protection of a reply of `bytes` bytes needs besides.
    pub(super) fn extra_bytes(&self, bytes: u32) -> u32 {
        match self.protection {
            // Header, checksum and zeros.
            Protection::Authentication | Protection::Integrity => 3 * 512,
            Protection::Privacy => slot_bytes(bytes as usize + 512) as u32,
        }
    }

    /// Protects a reply, which has an AUTH_NONE verifier or denies the call. Only results are signed or encrypted beyond the
    /// verifier. `None`: there is no memory.
    pub(crate) fn apply(&self, reply: Message, arena: &Arena) -> Option<Message> {
        let xid = reply.xid()?;
        let failed = match self.try_apply(reply, arena) {
            Ok(reply) => return Some(reply),
            Err(e) => e,
        };
        tracing::warn!("a reply is not sent, because it cannot be protected: {failed}");
        let status = ReplyStatus::Accept(AcceptError::SystemErr);
        self.try_apply(bare_reply(xid, status, Encoder::new(arena, 0))?, arena).ok()
    }

    fn try_apply(&self, reply: Message, arena: &Arena) -> Result<Message, BodyError> {
        let plain = reply.head.iter().next().and_then(|view| view.first_chunk::<SUCCESS_HEADER_BYTES>());
        // Shorter ones deny the call.
        let Some(plain) = plain.copied().filter(|plain| plain[8..VERIFIER_AT] == [0; 4]) else {
            return Ok(reply);
        };
        let keys = &self.context.keys;
        let mut header = Header::from_slice(&plain[..VERIFIER_AT]);
        put_verifier(&mut header, &keys.mic([&self.sequence.to_be_bytes()[..]]));
        header.extend_from_slice(&plain[STATUS_AT..]);
        let is_success = plain[STATUS_AT..] == [0; 4];
        let protection = if is_success { self.protection } else { Protection::Authentication };
        let content = Content { keys, sequence: self.sequence, protection, confounder: self.confounder };
        content.protect(reply, plain.len(), header, arena)
    }
}
