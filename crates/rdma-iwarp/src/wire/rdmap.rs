//! RDMAP operations (RFC 5040 section 4).

use std::fmt;

use super::be;

/// The operation of a message, the low four bits of the RDMAP control byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Opcode {
    /// RDMA Write.
    Write = 0,
    /// RDMA Read Request.
    ReadRequest = 1,
    /// RDMA Read Response.
    ReadResponse = 2,
    /// Send.
    Send = 3,
    /// Send with Invalidate.
    SendInvalidate = 4,
    /// Send with Solicited Event.
    SendSolicited = 5,
    /// Send with Solicited Event and Invalidate.
    SendSolicitedInvalidate = 6,
    /// Terminate.
    Terminate = 7,
}

impl Opcode {
    /// The operation with the number `n`; `None` for those of RFC 7306 and reserved ones.
    pub(crate) const fn from_number(n: u8) -> Option<Self> {
        Some(match n {
            0 => Self::Write,
            1 => Self::ReadRequest,
            2 => Self::ReadResponse,
            3 => Self::Send,
            4 => Self::SendInvalidate,
            5 => Self::SendSolicited,
            6 => Self::SendSolicitedInvalidate,
            7 => Self::Terminate,
            _ => return None,
        })
    }

    /// Whether the messages are tagged.
    pub(crate) const fn is_tagged(self) -> bool {
        matches!(self, Self::Write | Self::ReadResponse)
    }

    /// Whether the operation invalidates a tag at the receiver.
    pub(crate) const fn invalidates(self) -> bool {
        matches!(self, Self::SendInvalidate | Self::SendSolicitedInvalidate)
    }

    /// The queue number of the messages (RFC 5040 section 5.1).
    pub(crate) const fn queue(self) -> u32 {
        match self {
            Self::ReadRequest => 1,
            Self::Terminate => 2,
            _ => 0,
        }
    }
}

/// The body of an RDMA Read Request (RFC 5040 section 4.4).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ReadRequestBody {
    /// Tag of the requester's memory.
    pub(crate) sink_tag: u32,
    /// Tagged offset in the requester's memory.
    pub(crate) sink_offset: u64,
    /// Bytes to read.
    pub(crate) size: u32,
    /// Tag of the responder's memory.
    pub(crate) source_tag: u32,
    /// Tagged offset in the responder's memory.
    pub(crate) source_offset: u64,
}

impl ReadRequestBody {
    /// Length on the wire in bytes.
    pub(crate) const BYTES: usize = 28;

    /// Decodes a body; `None` if the length of `b` is different.
    pub(crate) fn decode(b: &[u8]) -> Option<Self> {
        if b.len() != Self::BYTES {
            return None;
        }
        Some(Self {
            sink_tag: be::u32(b, 0)?,
            sink_offset: be::u64(b, 4)?,
            size: be::u32(b, 12)?,
            source_tag: be::u32(b, 16)?,
            source_offset: be::u64(b, 20)?,
        })
    }

    /// Encodes the body.
    pub(crate) fn encode(&self) -> [u8; Self::BYTES] {
        let mut b = [0; Self::BYTES];
        b[0..4].copy_from_slice(&self.sink_tag.to_be_bytes());
        b[4..12].copy_from_slice(&self.sink_offset.to_be_bytes());
        b[12..16].copy_from_slice(&self.size.to_be_bytes());
        b[16..20].copy_from_slice(&self.source_tag.to_be_bytes());
        b[20..28].copy_from_slice(&self.source_offset.to_be_bytes());
        b
    }
}

impl fmt::Display for ReadRequestBody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "read {} from {:#010x}+{:#x} to {:#010x}+{:#x}",
            self.size, self.source_tag, self.source_offset, self.sink_tag, self.sink_offset
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_read_request_body_has_the_expected_bytes() {
        let body = ReadRequestBody {
            sink_tag: 0x201,
            sink_offset: 0x2000,
            size: 4096,
            source_tag: 0x301,
            source_offset: 0x3000,
        };
        let bytes =
            [0, 0, 2, 1, 0, 0, 0, 0, 0, 0, 0x20, 0, 0, 0, 0x10, 0, 0, 0, 3, 1, 0, 0, 0, 0, 0, 0, 0x30, 0];
        assert_eq!(body.encode(), bytes);
        assert_eq!(ReadRequestBody::decode(&bytes), Some(body));
        assert_eq!(ReadRequestBody::decode(&bytes[..27]), None);
        assert_eq!(body.to_string(), "read 4096 from 0x00000301+0x3000 to 0x00000201+0x2000");
    }

    #[test]
    fn only_eight_operations_are_known() {
        for n in 0..=15 {
            assert_eq!(Opcode::from_number(n).map(|o| o as u8), (n < 8).then_some(n));
        }
    }
}
