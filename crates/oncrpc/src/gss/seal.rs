//! The protection of replies (RFC 2203 sections 5.3.3.2 and 5.3.3.4).

use std::sync::Arc;

use millrace_buffer::{Buffer, BufferLengths, SPAN_BYTES, slot_bytes};
use millrace_krb5::PLAIN_AT;
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

/// What protects the reply to a call.
pub(crate) struct Seal {
    context: Arc<ServerContext>,
    sequence: u32,
    protection: Protection,
    /// For an encrypted reply.
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
        let mut confounder = [0; 16];
        if protection == Protection::Privacy {
            random(&mut confounder);
        }
        Self { context, sequence, protection, confounder }
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
        let header = reply.head.iter().next().and_then(|view| view.first_chunk::<SUCCESS_HEADER_BYTES>());
        // Shorter ones deny the call.
        let Some(header) = header.copied().filter(|header| header[8..VERIFIER_AT] == [0; 4]) else {
            return Ok(reply);
        };
        let is_success = header[STATUS_AT..] == [0; 4];
        match self.protection {
            Protection::Integrity if is_success => self.with_checksum(reply, &header, arena),
            Protection::Privacy if is_success => self.encrypted(&reply, &header, arena),
            _ => self.signed(reply, &header, &[], arena),
        }
    }

    /// The header of a reply with the verifier, followed by `more`.
    fn header(&self, plain: &[u8; SUCCESS_HEADER_BYTES], more: &[u8]) -> SmallVec<[u8; 80]> {
        let mic = self.context.keys.mic([&self.sequence.to_be_bytes()[..]]);
        let mut header = SmallVec::from_slice(&plain[..VERIFIER_AT]);
        header.extend_from_slice([RPCSEC_GSS, mic.len() as u32].map(u32::to_be_bytes).as_flattened());
        header.extend_from_slice(&mic);
        header.extend_from_slice(&plain[STATUS_AT..]);
        header.extend_from_slice(more);
        header
    }

    /// The reply with the verifier in its header, and `more` behind that.
    fn signed(
        &self,
        mut reply: Message,
        plain: &[u8; SUCCESS_HEADER_BYTES],
        more: &[u8],
        arena: &Arena,
    ) -> Result<Message, BodyError> {
        let header = self.header(plain, more);
        let longer = header.len() - plain.len();
        if let Some(bytes) = reply.head.prepend(longer) {
            bytes[..header.len()].copy_from_slice(&header);
        } else {
            let mut head = Views::from(arena.copy_from(&header)?);
            head.extend(reply.head.slice(plain.len(), reply.head.len() - plain.len()).iter().cloned());
            reply.head = head;
        }
        reply.payloads.iter_mut().for_each(|payload| payload.position += longer);
        Ok(reply)
    }

    /// The whole stream of `reply` as views.
    fn gathered(reply: &Message, arena: &Arena) -> Result<Views, BodyError> {
        let zeros: View = arena.copy_from(&[0; 4])?;
        Ok(reply.gather(&zeros))
    }

    /// The reply with signed results. They stay where they are, but a transport must not place them apart.
    fn with_checksum(
        &self,
        reply: Message,
        plain: &[u8; SUCCESS_HEADER_BYTES],
        arena: &Arena,
    ) -> Result<Message, BodyError> {
        let body = 4 + reply.stream_len() - plain.len();
        let more = [body as u32, self.sequence].map(u32::to_be_bytes);
        let reply = self.signed(reply, plain, more.as_flattened(), arena)?;
        let mut head = Self::gathered(&reply, arena)?;
        let signed = head.slice(head.len() - body, body);
        let mic = self.context.keys.mic(signed.iter().map(|view| &view[..]));
        let checksum = [&(mic.len() as u32).to_be_bytes(), &*mic].concat();
        head.push(arena.copy_from(&checksum)?);
        Ok(Message { head, ..Message::default() })
    }

    /// The reply with encrypted results, in other memory: file systems may own theirs.
    fn encrypted(
        &self,
        reply: &Message,
        plain: &[u8; SUCCESS_HEADER_BYTES],
        arena: &Arena,
    ) -> Result<Message, BodyError> {
        let keys = &self.context.keys;
        let results = reply.stream_len() - plain.len();
        let token = PLAIN_AT + 4 + results + keys.wrap_tail();
        let mut header = self.header(plain, &(token as u32).to_be_bytes());
        let token_at = header.len();
        header.resize(token_at + PLAIN_AT, 0);
        header.extend_from_slice(&self.sequence.to_be_bytes());
        let total = token_at + token + pad(token);
        let lengths = BufferLengths::starting(header.len(), total, SPAN_BYTES);
        let mut buffers = arena.alloc_all(lengths).collect::<Result<SmallVec<[Buffer; 3]>, _>>()?;
        let (first, others) = buffers.split_first_mut().ok_or(BodyError::Invalid("no memory"))?;
        first.copy_from_slice(&header);
        let mut unsealed = Self::gathered(reply, arena)?.slice(plain.len(), results);
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
        keys.wrap(&mut parts, self.confounder).map_err(|_| BodyError::Invalid("a token without room"))?;
        drop(parts);
        let head = buffers.into_iter().map(Buffer::freeze).collect();
        Ok(Message { head, ..Message::default() })
    }
}
