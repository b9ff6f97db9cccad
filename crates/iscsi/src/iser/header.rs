//! The header of iSER Messages (RFC 7145 section 9): 28 bytes, big-endian, before the basic header segment.

use super::{HEADER_BYTES, VERSION};

const CONTROL: u8 = 1;
const HELLO: u8 = 2;
const HELLO_REPLY: u8 = 3;

const WRITE_STAG_VALID: u8 = 0x08;
const READ_STAG_VALID: u8 = 0x04;
const REJECT: u8 = 0x01;

/// Memory of the initiator that a SCSI Command advertises to the target.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RemoteBuffer {
    /// The steering tag.
    pub stag: u32,
    /// The base offset: the tagged offset of the first byte of the advertised buffer.
    pub base: u64,
}

/// The buffers that a control-type PDU advertises. Only a SCSI Command has any.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Advertised {
    /// The source of RDMA Reads (Write STag), if WSV is set.
    pub write: Option<RemoteBuffer>,
    /// The sink of RDMA Writes (Read STag), if RSV is set.
    pub read: Option<RemoteBuffer>,
}

/// The header of an iSER Message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Header {
    /// An iSCSI control-type PDU follows.
    Control(Advertised),
    /// The initiator's Hello; nothing follows.
    Hello(Hello),
    /// The target's answer to a Hello; nothing follows.
    HelloReply(HelloReply),
}

/// The initiator's Hello (RFC 7145 section 9.3). It is exchanged only if `iSERHelloRequired=Yes` was negotiated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hello {
    /// The highest version that the initiator supports: 0 to 15.
    pub max_version: u8,
    /// The lowest version that the initiator supports: 0 to 15.
    pub min_version: u8,
    /// iSER-IRD: number of RDMA Reads that the initiator can serve at a time.
    pub ird: u16,
}

/// The target's HelloReply (RFC 7145 section 9.4).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HelloReply {
    /// The target cannot use the connection; it closes the connection after this message.
    pub rejected: bool,
    /// The highest version that the target supports: 0 to 15.
    pub max_version: u8,
    /// The version in use: 0 to 15.
    pub version: u8,
    /// iSER-ORD: number of RDMA Reads that the target issues at a time.
    pub ord: u16,
}

impl Hello {
    /// The Hello of this implementation, which supports [`VERSION`] only.
    pub const fn new(ird: u16) -> Self {
        Self { max_version: VERSION, min_version: VERSION, ird }
    }

    /// The target's answer: rejected, if [`VERSION`] is not one of the initiator's. `ord` is the number of RDMA Reads
    /// that the target can issue at a time; the reply has at most the initiator's `ird`.
    pub fn reply(self, ord: u16) -> HelloReply {
        let supported = (self.min_version..=self.max_version).contains(&VERSION);
        HelloReply { rejected: !supported, max_version: VERSION, version: VERSION, ord: ord.min(self.ird) }
    }
}

/// Why a received header is invalid. The connection ends: the rest of the message cannot be interpreted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum HeaderError {
    /// The message is shorter than the header.
    #[error("the peer sent an iSER message of {0} bytes; the header has {HEADER_BYTES}")]
    Short(usize),
    /// The opcode is reserved.
    #[error("the peer sent an iSER message with the reserved opcode {0:#x}")]
    Opcode(u8),
}

impl Header {
    /// The header of a control-type PDU without an advertised buffer.
    pub const CONTROL: Self = Self::Control(Advertised { write: None, read: None });

    /// Encodes the header.
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        match *self {
            Self::Control(Advertised { write, read }) => {
                bytes[0] = CONTROL << 4;
                if let Some(buffer) = write {
                    bytes[0] |= WRITE_STAG_VALID;
                    put(&mut bytes, 4, buffer);
                }
                if let Some(buffer) = read {
                    bytes[0] |= READ_STAG_VALID;
                    put(&mut bytes, 16, buffer);
                }
            }
            Self::Hello(h) => {
                bytes[0] = HELLO << 4;
                bytes[1] = (h.max_version & 15) << 4 | (h.min_version & 15);
                bytes[2..4].copy_from_slice(&h.ird.to_be_bytes());
            }
            Self::HelloReply(r) => {
                bytes[0] = HELLO_REPLY << 4 | if r.rejected { REJECT } else { 0 };
                bytes[1] = (r.max_version & 15) << 4 | (r.version & 15);
                bytes[2..4].copy_from_slice(&r.ord.to_be_bytes());
            }
        }
        bytes
    }

    /// Decodes the header of a received Send and returns it with the bytes that follow. Reserved fields, and fields
    /// that the flags declare invalid, are ignored.
    ///
    /// # Errors
    ///
    /// The message is too short, or has a reserved opcode.
    pub fn decode(message: &[u8]) -> Result<(Self, &[u8]), HeaderError> {
        let Some((b, rest)) = message.split_first_chunk::<HEADER_BYTES>() else {
            return Err(HeaderError::Short(message.len()));
        };
        let versions = (b[1] >> 4, b[1] & 15);
        let depth = u16::from_be_bytes([b[2], b[3]]);
        let header = match b[0] >> 4 {
            CONTROL => Self::Control(Advertised {
                write: (b[0] & WRITE_STAG_VALID != 0).then(|| get(b, 4)),
                read: (b[0] & READ_STAG_VALID != 0).then(|| get(b, 16)),
            }),
            HELLO => Self::Hello(Hello { max_version: versions.0, min_version: versions.1, ird: depth }),
            HELLO_REPLY => Self::HelloReply(HelloReply {
                rejected: b[0] & REJECT != 0,
                max_version: versions.0,
                version: versions.1,
                ord: depth,
            }),
            other => return Err(HeaderError::Opcode(other)),
        };
        Ok((header, rest))
    }
}

fn put(bytes: &mut [u8; HEADER_BYTES], at: usize, buffer: RemoteBuffer) {
    bytes[at..at + 4].copy_from_slice(&buffer.stag.to_be_bytes());
    bytes[at + 4..at + 12].copy_from_slice(&buffer.base.to_be_bytes());
}

fn get(bytes: &[u8; HEADER_BYTES], at: usize) -> RemoteBuffer {
    let byte = |i: usize| bytes[at + i];
    RemoteBuffer {
        stag: u32::from_be_bytes(std::array::from_fn(byte)),
        base: u64::from_be_bytes(std::array::from_fn(|i| byte(4 + i))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const BUFFER: RemoteBuffer = RemoteBuffer { stag: 0x501, base: 0x7f00_0000_1000 };

    #[test]
    fn a_read_command_advertises_the_read_stag() {
        let header = Header::Control(Advertised { write: None, read: Some(BUFFER) });
        #[rustfmt::skip]
        let bytes = [
            0x14, 0, 0, 0,
            0, 0, 0, 0,  0, 0, 0, 0, 0, 0, 0, 0,
            0, 0, 0x05, 0x01,  0, 0, 0x7f, 0, 0, 0, 0x10, 0,
        ];
        assert_eq!(header.encode(), bytes);
        assert_eq!(Header::decode(&bytes), Ok((header, &[][..])));
    }

    #[test]
    fn a_write_command_advertises_the_write_stag() {
        let header = Header::Control(Advertised { write: Some(BUFFER), read: None });
        #[rustfmt::skip]
        let bytes = [
            0x18, 0, 0, 0,
            0, 0, 0x05, 0x01,  0, 0, 0x7f, 0, 0, 0, 0x10, 0,
            0, 0, 0, 0,  0, 0, 0, 0, 0, 0, 0, 0,
        ];
        assert_eq!(header.encode(), bytes);
        assert_eq!(Header::decode(&bytes), Ok((header, &[][..])));
    }

    #[test]
    fn a_control_pdu_without_buffers_is_0x10_and_zeros() {
        let mut bytes = [0; HEADER_BYTES];
        bytes[0] = 0x10;
        assert_eq!(Header::CONTROL.encode(), bytes);
        let both = Header::Control(Advertised { write: Some(BUFFER), read: Some(BUFFER) });
        assert_eq!(both.encode()[0], 0x1c);
    }

    #[test]
    fn hello_and_its_reply_have_version_10() {
        let hello = Hello::new(4);
        let mut bytes = [0; HEADER_BYTES];
        bytes[..4].copy_from_slice(&[0x20, 0xaa, 0, 4]);
        assert_eq!(Header::Hello(hello).encode(), bytes);
        let reply = hello.reply(128);
        bytes[..4].copy_from_slice(&[0x30, 0xaa, 0, 4]);
        assert_eq!(Header::HelloReply(reply).encode(), bytes);
        assert_eq!(Header::decode(&bytes), Ok((Header::HelloReply(reply), &[][..])));
        assert!(Hello { max_version: 9, min_version: 1, ird: 1 }.reply(1).rejected);
        assert_eq!(Header::HelloReply(HelloReply { rejected: true, ..reply }).encode()[0], 0x31);
    }

    #[test]
    fn invalid_fields_and_reserved_bits_are_ignored() {
        let mut bytes = [0xff; HEADER_BYTES + 1];
        bytes[0] = 0x13;
        assert_eq!(Header::decode(&bytes), Ok((Header::CONTROL, &[0xff][..])));
    }

    #[test]
    fn short_messages_and_reserved_opcodes_are_errors() {
        assert_eq!(Header::decode(&[0x10; 27]), Err(HeaderError::Short(27)));
        assert_eq!(Header::decode(&[0; HEADER_BYTES]), Err(HeaderError::Opcode(0)));
        assert_eq!(Header::decode(&[0x4f; HEADER_BYTES]), Err(HeaderError::Opcode(4)));
    }

    proptest! {
        #[test]
        fn every_decoded_header_encodes_to_the_same_header(bytes in proptest::collection::vec(any::<u8>(), HEADER_BYTES)) {
            if let Ok((header, _)) = Header::decode(&bytes) {
                let encoded = header.encode();
                prop_assert_eq!(Header::decode(&encoded), Ok((header, &[][..])));
            }
        }
    }
}
