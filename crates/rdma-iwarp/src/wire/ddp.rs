//! DDP segment headers (RFC 5041 section 4), with RDMAP's control byte.
//!
//! ```text
//! tagged:   control(1) rdmap(1) STag(4) TO(8)
//! untagged: control(1) rdmap(1) invalidate(4) QN(4) MSN(4) MO(4)
//! ```

use std::fmt;

use super::{be, rdmap::Opcode};

const TAGGED: u8 = 0x80;
const LAST: u8 = 0x40;
const DDP_VERSION_MASK: u8 = 0x03;
const DDP_VERSION: u8 = 0x01;
const RDMAP_VERSION_MASK: u8 = 0xc0;
const RDMAP_VERSION: u8 = 0x40;
const OPCODE_MASK: u8 = 0x0f;

/// The two control bytes, unchecked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Control {
    ddp: u8,
    rdmap: u8,
}

impl Control {
    /// The control bytes at the start of a ULPDU.
    pub(crate) fn decode(ulpdu: &[u8]) -> Option<Self> {
        let [ddp, rdmap] = *ulpdu.first_chunk()?;
        Some(Self { ddp, rdmap })
    }

    /// Whether the tagged flag is set.
    pub(crate) const fn is_tagged(self) -> bool {
        self.ddp & TAGGED != 0
    }

    /// Whether the DDP version is supported.
    pub(crate) const fn ddp_version_ok(self) -> bool {
        self.ddp & DDP_VERSION_MASK == DDP_VERSION
    }

    /// Whether the RDMAP version is supported.
    pub(crate) const fn rdmap_version_ok(self) -> bool {
        self.rdmap & RDMAP_VERSION_MASK == RDMAP_VERSION
    }

    /// The operation; `None` if it is unknown.
    pub(crate) const fn opcode(self) -> Option<Opcode> {
        Opcode::from_number(self.rdmap & OPCODE_MASK)
    }

    const fn last(self) -> bool {
        self.ddp & LAST != 0
    }
}

const fn control(tagged: bool, last: bool, opcode: Opcode) -> [u8; 2] {
    let ddp = DDP_VERSION | if tagged { TAGGED } else { 0 } | if last { LAST } else { 0 };
    [ddp, RDMAP_VERSION | opcode as u8]
}

/// The header of a tagged segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Tagged {
    /// The operation.
    pub(crate) opcode: Opcode,
    /// Whether it is the last segment of its message.
    pub(crate) last: bool,
    /// Steering tag.
    pub(crate) tag: u32,
    /// Tagged offset of the payload's first byte.
    pub(crate) offset: u64,
}

impl Tagged {
    /// Length on the wire in bytes.
    pub(crate) const BYTES: usize = 14;

    /// Decodes the start of a ULPDU; `None` if it is too short or the operation is unknown.
    pub(crate) fn decode(ulpdu: &[u8]) -> Option<Self> {
        let c = Control::decode(ulpdu)?;
        Some(Self {
            opcode: c.opcode()?,
            last: c.last(),
            tag: be::u32(ulpdu, 2)?,
            offset: be::u64(ulpdu, 6)?,
        })
    }

    /// Encodes the header.
    pub(crate) fn encode(&self) -> [u8; Self::BYTES] {
        let mut b = [0; Self::BYTES];
        b[0..2].copy_from_slice(&control(true, self.last, self.opcode));
        b[2..6].copy_from_slice(&self.tag.to_be_bytes());
        b[6..14].copy_from_slice(&self.offset.to_be_bytes());
        b
    }
}

impl fmt::Display for Tagged {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let last = if self.last { " last" } else { "" };
        write!(f, "{:?} tag={:#010x} offset={:#x}{last}", self.opcode, self.tag, self.offset)
    }
}

/// The header of an untagged segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Untagged {
    /// The operation.
    pub(crate) opcode: Opcode,
    /// Whether it is the last segment of its message.
    pub(crate) last: bool,
    /// Tag to invalidate (Sends with Invalidate; otherwise sent as 0 and ignored).
    pub(crate) invalidate: u32,
    /// Queue number.
    pub(crate) queue: u32,
    /// Message sequence number, from 1.
    pub(crate) msn: u32,
    /// Offset of the payload in its message.
    pub(crate) offset: u32,
}

impl Untagged {
    /// Length on the wire in bytes.
    pub(crate) const BYTES: usize = 18;

    /// Decodes the start of a ULPDU; `None` if it is too short or the operation is unknown.
    pub(crate) fn decode(ulpdu: &[u8]) -> Option<Self> {
        let c = Control::decode(ulpdu)?;
        Some(Self {
            opcode: c.opcode()?,
            last: c.last(),
            invalidate: be::u32(ulpdu, 2)?,
            queue: be::u32(ulpdu, 6)?,
            msn: be::u32(ulpdu, 10)?,
            offset: be::u32(ulpdu, 14)?,
        })
    }

    /// Encodes the header.
    pub(crate) fn encode(&self) -> [u8; Self::BYTES] {
        let mut b = [0; Self::BYTES];
        b[0..2].copy_from_slice(&control(false, self.last, self.opcode));
        b[2..6].copy_from_slice(&self.invalidate.to_be_bytes());
        b[6..10].copy_from_slice(&self.queue.to_be_bytes());
        b[10..14].copy_from_slice(&self.msn.to_be_bytes());
        b[14..18].copy_from_slice(&self.offset.to_be_bytes());
        b
    }
}

impl fmt::Display for Untagged {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let last = if self.last { " last" } else { "" };
        write!(f, "{:?} qn={} msn={} offset={}{last}", self.opcode, self.queue, self.msn, self.offset)?;
        if self.opcode.invalidates() {
            write!(f, " invalidate={:#010x}", self.invalidate)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_have_the_expected_bytes() {
        let send = Untagged { opcode: Opcode::Send, last: true, invalidate: 0, queue: 0, msn: 1, offset: 0 };
        let bytes = [0x41, 0x43, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0];
        assert_eq!(send.encode(), bytes);
        assert_eq!(Untagged::decode(&bytes), Some(send));
        let write = Tagged { opcode: Opcode::Write, last: true, tag: 0x101, offset: 0x1000 };
        let bytes = [0xc1, 0x40, 0, 0, 1, 1, 0, 0, 0, 0, 0, 0, 0x10, 0];
        assert_eq!(write.encode(), bytes);
        assert_eq!(Tagged::decode(&bytes), Some(write));
        assert_eq!(write.to_string(), "Write tag=0x00000101 offset=0x1000 last");
        let inv = Untagged {
            opcode: Opcode::SendInvalidate,
            last: true,
            invalidate: 0x1234_5678,
            queue: 0,
            msn: 2,
            offset: 0,
        };
        assert_eq!(inv.encode()[..6], [0x41, 0x44, 0x12, 0x34, 0x56, 0x78]);
        assert_eq!(inv.to_string(), "SendInvalidate qn=0 msn=2 offset=0 last invalidate=0x12345678");
    }

    #[test]
    fn short_headers_are_rejected() {
        for n in 0..Tagged::BYTES {
            assert_eq!(Tagged::decode(&[0xc1; 18][..n]), None);
        }
        for n in 0..Untagged::BYTES {
            assert_eq!(Untagged::decode(&[0x41; 18][..n]), None);
        }
    }
}
