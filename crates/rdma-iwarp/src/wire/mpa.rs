//! MPA startup frames (RFC 5044 section 7.1.1, RFC 6581 section 4).
//!
//! ```text
//! key(16) M(1) C(1) R(1) S(1) reserved(4) revision(8) PD_Length(16) | private data
//! S set: private data begins with A(1) B(1) IRD(14) C(1) D(1) ORD(14)
//! ```

use std::fmt;

use super::be;

/// Length of the fixed part, before the private data, in bytes.
pub(crate) const FIXED_BYTES: usize = 20;
/// Maximum length of the private data.
pub(crate) const MAX_PRIVATE: usize = 512;
/// Length of the control words of RFC 6581 in bytes.
pub(crate) const CONTROL_BYTES: usize = 4;
/// The depth that means "not negotiated" (RFC 6581 section 4).
pub(crate) const NO_NEGOTIATION: u16 = 0x3fff;

const REQUEST_KEY: &[u8; 16] = b"MPA ID Req Frame";
const REPLY_KEY: &[u8; 16] = b"MPA ID Rep Frame";

const MARKERS: u16 = 0x8000;
const CRC: u16 = 0x4000;
const REJECT: u16 = 0x2000;
const ENHANCED: u16 = 0x1000;
const REVISION: u16 = 0x00ff;

/// Kind of a startup frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The frame of the initiator.
    Request,
    /// The frame of the responder.
    Reply,
}

/// The fixed part of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Fixed {
    /// The sender requires markers in received data.
    pub(crate) markers: bool,
    /// The sender requests CRCs.
    pub(crate) crc: bool,
    /// The responder rejects the connection.
    pub(crate) reject: bool,
    /// Control words are present.
    pub(crate) enhanced: bool,
    /// The protocol revision.
    pub(crate) revision: u8,
    /// Length of the private data including control words, in bytes.
    pub(crate) private_len: usize,
}

/// Why the fixed part of a frame is invalid.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum FrameError {
    /// The key is wrong: both ends are initiators, or the peer uses another protocol.
    #[error("no MPA key: another protocol, such as a TCP mount at the RDMA port?")]
    Key,
    /// The private data exceeds the maximum length.
    #[error("{0} bytes of MPA private data")]
    PrivateLength(usize),
    /// The control words flag is set, but the private data is too short for them.
    #[error("MPA control words are missing")]
    NoControl,
}

impl Fixed {
    /// Decodes and checks the fixed part of a frame of `kind`.
    pub(crate) fn decode(b: &[u8; FIXED_BYTES], kind: Kind) -> Result<Self, FrameError> {
        let key = match kind {
            Kind::Request => REQUEST_KEY,
            Kind::Reply => REPLY_KEY,
        };
        if b[..16] != key[..] {
            return Err(FrameError::Key);
        }
        let word = u16::from_be_bytes([b[16], b[17]]);
        let private_len = usize::from(u16::from_be_bytes([b[18], b[19]]));
        if private_len > MAX_PRIVATE {
            return Err(FrameError::PrivateLength(private_len));
        }
        let revision = (word & REVISION) as u8;
        let enhanced = revision >= 2 && word & ENHANCED != 0;
        if enhanced && private_len < CONTROL_BYTES {
            return Err(FrameError::NoControl);
        }
        Ok(Self {
            markers: word & MARKERS != 0,
            crc: word & CRC != 0,
            reject: word & REJECT != 0,
            enhanced,
            revision,
            private_len,
        })
    }
}

/// The control words of RFC 6581.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Control {
    /// A: the peer-to-peer model; the initiator's first message is an RTR.
    pub(crate) peer_to_peer: bool,
    /// B: an RTR may be an empty Send.
    pub(crate) rtr_send: bool,
    /// C: an RTR may be an empty RDMA Write.
    pub(crate) rtr_write: bool,
    /// D: an RTR may be an empty RDMA Read.
    pub(crate) rtr_read: bool,
    /// Inbound read depth of the sender, 14 bits.
    pub(crate) ird: u16,
    /// Outbound read depth of the sender, 14 bits.
    pub(crate) ord: u16,
}

impl Control {
    /// Decodes the start of the private data; `None` if it is too short.
    pub(crate) fn decode(private: &[u8]) -> Option<Self> {
        let (i, o) = (be::u16(private, 0)?, be::u16(private, 2)?);
        Some(Self {
            peer_to_peer: i & 0x8000 != 0,
            rtr_send: i & 0x4000 != 0,
            rtr_write: o & 0x8000 != 0,
            rtr_read: o & 0x4000 != 0,
            ird: i & 0x3fff,
            ord: o & 0x3fff,
        })
    }

    fn encode(&self) -> [u8; CONTROL_BYTES] {
        let bit = |on: bool, mask: u16| if on { mask } else { 0 };
        let i = self.ird.min(0x3fff) | bit(self.peer_to_peer, 0x8000) | bit(self.rtr_send, 0x4000);
        let o = self.ord.min(0x3fff) | bit(self.rtr_write, 0x8000) | bit(self.rtr_read, 0x4000);
        let ([a, b], [c, d]) = (i.to_be_bytes(), o.to_be_bytes());
        [a, b, c, d]
    }
}

/// A frame to send.
#[derive(Debug, Clone)]
pub(crate) struct Frame<'a> {
    /// Kind of the frame.
    pub(crate) kind: Kind,
    /// The protocol revision.
    pub(crate) revision: u8,
    /// Whether CRCs are requested.
    pub(crate) crc: bool,
    /// Whether the connection is rejected.
    pub(crate) reject: bool,
    /// Control words (revision 2).
    pub(crate) control: Option<Control>,
    /// Private data of the upper layer.
    pub(crate) private: &'a [u8],
}

impl Frame<'_> {
    /// Encodes the frame. Private data beyond the maximum is omitted.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let bit = |on: bool, mask: u16| if on { mask } else { 0 };
        let word = u16::from(self.revision)
            | bit(self.crc, CRC)
            | bit(self.reject, REJECT)
            | bit(self.control.is_some(), ENHANCED);
        let control = self.control.map(|c| c.encode());
        let control: &[u8] = control.as_ref().map_or(&[], |c| c);
        let private = &self.private[..self.private.len().min(MAX_PRIVATE - control.len())];
        let mut out = Vec::with_capacity(FIXED_BYTES + control.len() + private.len());
        out.extend(match self.kind {
            Kind::Request => REQUEST_KEY,
            Kind::Reply => REPLY_KEY,
        });
        out.extend(word.to_be_bytes());
        out.extend(((control.len() + private.len()) as u16).to_be_bytes()); // At most MAX_PRIVATE, see above.
        out.extend(control);
        out.extend(private);
        out
    }
}

impl fmt::Display for Frame<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MPA {:?} rev={}", self.kind, self.revision)?;
        for (on, name) in [(self.crc, " crc"), (self.reject, " reject")] {
            f.write_str(if on { name } else { "" })?;
        }
        if let Some(c) = &self.control {
            write!(f, " ird={} ord={}", c.ird, c.ord)?;
        }
        write!(f, " private={}", self.private.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PRIVATE: [u8; 8] = [0xf6, 0xab, 0x0e, 0x18, 1, 1, 3, 3];

    fn frame(kind: Kind, control: Option<Control>, private: &[u8]) -> Frame<'_> {
        let revision = if control.is_some() { 2 } else { 1 };
        Frame { kind, revision, crc: false, reject: false, control, private }
    }

    #[test]
    fn frames_have_the_expected_bytes() {
        let c = Control { ird: 128, ..Control::default() };
        let request = frame(Kind::Request, Some(c), &PRIVATE).encode();
        assert_eq!(&request[..16], b"MPA ID Req Frame");
        assert_eq!(request[16..], [0x10, 0x02, 0, 12, 0, 0x80, 0, 0, 0xf6, 0xab, 0x0e, 0x18, 1, 1, 3, 3]);
        let c = Control { ord: 16, ..Control::default() };
        let reply = frame(Kind::Reply, Some(c), &PRIVATE).encode();
        assert_eq!(reply[16..24], [0x10, 0x02, 0, 12, 0, 0, 0, 0x10]);
        assert_eq!(Control::decode(&reply[20..]), Some(c));
        let old = Frame { crc: true, ..frame(Kind::Request, None, &[]) };
        assert_eq!(old.encode()[16..], [0x40, 1, 0, 0]);
        assert_eq!(old.to_string(), "MPA Request rev=1 crc private=0");
    }

    #[test]
    fn invalid_frames_are_rejected() {
        let mut b = [0; FIXED_BYTES];
        b[..16].copy_from_slice(b"MPA ID Req Frame");
        b[17] = 2;
        assert_eq!(Fixed::decode(&b, Kind::Reply), Err(FrameError::Key));
        b[18..].copy_from_slice(&513u16.to_be_bytes());
        assert_eq!(Fixed::decode(&b, Kind::Request), Err(FrameError::PrivateLength(513)));
        for short in 0..4 {
            b[16..].copy_from_slice(&[0x10, 2, 0, short]);
            assert_eq!(Fixed::decode(&b, Kind::Request), Err(FrameError::NoControl));
        }
        b[16..].copy_from_slice(&[0x10, 2, 0, 4]);
        assert!(Fixed::decode(&b, Kind::Request).unwrap().enhanced);
    }

    #[test]
    fn all_control_bits_are_preserved() {
        let c = Control {
            peer_to_peer: true,
            rtr_send: true,
            rtr_write: true,
            rtr_read: true,
            ird: 0x3fff,
            ord: 5,
        };
        assert_eq!(Control::decode(&c.encode()), Some(c));
        assert_eq!(c.encode(), [0xff, 0xff, 0xc0, 5]);
    }
}
