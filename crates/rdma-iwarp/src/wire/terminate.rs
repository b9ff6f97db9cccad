//! The Terminate message (RFC 5040 section 4.8) and its error codes.
//!
//! ```text
//! layer(4) type(4) code(8) M(1) D(1) R(1) reserved(13) | [segment length(2)] [DDP header(14 or 18)] [Read Request(28)]
//! ```

use std::fmt;

use super::be;

const HAS_LENGTH: u32 = 0x8000;
const HAS_DDP: u32 = 0x4000;
const HAS_READ: u32 = 0x2000;

/// Layer, type and code of an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ErrorCode {
    /// 0: RDMAP, 1: DDP, 2: lower layer.
    pub(crate) layer: u8,
    /// Error type within the layer.
    pub(crate) kind: u8,
    /// Error code within the type.
    pub(crate) code: u8,
}

macro_rules! codes {
    ($($(#[$doc:meta])* $name:ident = $layer:literal / $kind:literal / $code:literal, $text:literal;)*) => {
        impl ErrorCode {
            $($(#[$doc])* pub(crate) const $name: Self = Self { layer: $layer, kind: $kind, code: $code };)*

            /// The meaning as text.
            pub(crate) const fn meaning(self) -> &'static str {
                match (self.layer, self.kind, self.code) {
                    $(($layer, $kind, $code) => $text,)*
                    (0, 0, _) => "local catastrophic error (RDMAP)",
                    (0, 1, 0x03) => "tag not associated with this stream",
                    (0, 1, _) => "remote protection error",
                    (0, 2, 0x07) => "catastrophic error of this stream",
                    (0, 2, 0x08) => "catastrophic error of all streams",
                    (0, 2, _) => "remote operation error",
                    (1, 0, _) => "local catastrophic error (DDP)",
                    (1, 1, 0x02) => "tag not associated with this stream",
                    (1, 1, _) => "tagged buffer error",
                    (1, 2, _) => "untagged buffer error",
                    (2, 0, 0x01) => "TCP connection closed or lost",
                    (2, 0, 0x04) => "invalid MPA request or reply",
                    (2, 0, 0x05) => "local catastrophic error (MPA)",
                    (2, 0, 0x07) => "no matching RTR",
                    (2, _, _) => "MPA error",
                    _ => "unknown error",
                }
            }
        }
    };
}

codes! {
    /// The source tag of a Read Request is invalid.
    READ_TAG = 0 / 1 / 0x00, "invalid tag of a read source";
    /// The source range of a Read Request is outside of its region.
    READ_BOUNDS = 0 / 1 / 0x01, "read outside the region";
    /// The source of a Read Request may not be read.
    READ_RIGHTS = 0 / 1 / 0x02, "no right to read the region";
    /// The source range of a Read Request wraps.
    READ_WRAP = 0 / 1 / 0x04, "tagged offset of a read wraps";
    /// A known tag that the peer may not invalidate.
    INVALIDATE_PROTECTED = 0 / 1 / 0x09, "tag cannot be invalidated (protection)";
    /// Unsupported RDMAP version.
    RDMAP_VERSION = 0 / 2 / 0x05, "invalid RDMAP version";
    /// Unknown or unexpected operation.
    OPCODE = 0 / 2 / 0x06, "unexpected RDMAP operation";
    /// Send with Invalidate of an unknown tag.
    INVALIDATE = 0 / 2 / 0x09, "tag cannot be invalidated";
    /// A malformed message for which there is no specific code.
    MALFORMED = 0 / 2 / 0xff, "malformed RDMAP message";
    /// The tag of a tagged segment is invalid or does not grant the access right.
    TAG = 1 / 1 / 0x00, "invalid tag";
    /// A tagged segment is outside of its region.
    BOUNDS = 1 / 1 / 0x01, "write outside the region";
    /// The range of a tagged segment wraps.
    WRAP = 1 / 1 / 0x03, "tagged offset wraps";
    /// Unsupported DDP version, tagged.
    TAGGED_VERSION = 1 / 1 / 0x04, "invalid DDP version (tagged)";
    /// Wrong queue number.
    QUEUE = 1 / 2 / 0x01, "invalid queue number";
    /// No buffer is posted for the message.
    NO_BUFFER = 1 / 2 / 0x02, "no buffer for the message";
    /// Sequence number out of order.
    MSN = 1 / 2 / 0x03, "message sequence number out of range";
    /// Offset in the message out of order.
    MESSAGE_OFFSET = 1 / 2 / 0x04, "invalid message offset";
    /// Message longer than its buffer.
    TOO_LONG = 1 / 2 / 0x05, "message too long for the buffer";
    /// Unsupported DDP version, untagged.
    UNTAGGED_VERSION = 1 / 2 / 0x06, "invalid DDP version (untagged)";
    /// CRC mismatch.
    CRC = 2 / 0 / 0x02, "CRC error";
    /// An FPDU that is too short for its header.
    FPDU = 2 / 0 / 0x03, "FPDU too short for its header";
    /// The responder requires a deeper read queue than this end supports.
    IRD = 2 / 0 / 0x06, "insufficient IRD resources";
}

impl fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({}/{}/{:02x})", self.meaning(), self.layer, self.kind, self.code)
    }
}

/// The content of a Terminate message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Terminate {
    /// The error.
    pub(crate) error: ErrorCode,
    /// The segment in error: payload length (as Linux's siw counts it) and DDP header (14 or 18 bytes).
    pub(crate) segment: Option<(u16, Vec<u8>)>,
    /// The body of the Read Request in error (28 bytes).
    pub(crate) read: Option<Vec<u8>>,
}

impl Terminate {
    /// A Terminate without segment and Read Request.
    pub(crate) const fn bare(error: ErrorCode) -> Self {
        Self { error, segment: None, read: None }
    }

    /// Decodes the error from the payload of a Terminate, and ignores the rest. `None` if it is too short.
    pub(crate) fn decode_error(payload: &[u8]) -> Option<ErrorCode> {
        let word = be::u32(payload, 0)?;
        Some(ErrorCode {
            layer: (word >> 28) as u8 & 15,
            kind: (word >> 24) as u8 & 15,
            code: (word >> 16) as u8,
        })
    }

    /// Encodes the payload.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let ErrorCode { layer, kind, code } = self.error;
        let mut word = u32::from(layer) << 28 | u32::from(kind) << 24 | u32::from(code) << 16;
        if self.segment.is_some() {
            word |= HAS_LENGTH | HAS_DDP;
        }
        if self.read.is_some() {
            word |= HAS_READ;
        }
        let mut out = word.to_be_bytes().to_vec();
        if let Some((len, header)) = &self.segment {
            out.extend(len.to_be_bytes());
            out.extend(header);
        }
        out.extend(self.read.iter().flatten());
        out
    }
}

impl fmt::Display for Terminate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Terminate {}", self.error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_terminate_has_the_expected_bytes() {
        let bare = Terminate::bare(ErrorCode::OPCODE);
        assert_eq!(bare.encode(), [0x02, 0x06, 0, 0]);
        assert_eq!(Terminate::decode_error(&bare.encode()), Some(ErrorCode::OPCODE));
        assert_eq!(Terminate::decode_error(&[2, 6, 0]), None);
        assert_eq!(bare.to_string(), "Terminate unexpected RDMAP operation (0/2/06)");
        let header = vec![0xc1, 0x40, 0xde, 0xad, 0xbe, 0, 0, 0, 0, 0, 0, 0, 0x10, 0];
        let full = Terminate { error: ErrorCode::TAG, segment: Some((8, header.clone())), read: None };
        let mut want = vec![0x11, 0x00, 0xc0, 0x00, 0, 8];
        want.extend(header);
        assert_eq!(full.encode(), want);
    }
}
