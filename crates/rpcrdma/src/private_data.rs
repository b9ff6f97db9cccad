//! Private data of connection setup (RFC 8797), and the design that it states.

use std::{fmt, str::FromStr};

/// The inline threshold in bytes without valid private data (RFC 8166 section 3.3.2), and the smallest that
/// private data can state.
pub const DEFAULT_INLINE: usize = 1024;
/// The largest inline threshold in bytes that private data can state.
pub const MAX_INLINE: usize = 262_144;

const FORMAT_ID: u32 = 0xf6ab_0e18;
/// Millrace's identifier for the same format, with the Read-Read design, which predates RFC 8797. Other peers
/// ignore it as private data of an unknown format, as RFC 8797 allows. Builds without that design recognise it too,
/// to refuse the connection.
const READ_READ_ID: u32 = u32::from_be_bytes(*b"RdRd");
const VERSION: u8 = 1;
const FLAG_REMOTE_INVALIDATE: u8 = 1;

/// The end that moves a call's results.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Design {
    /// The Read-Write design (RFC 8166): the responder writes results to memory that the requester exposes, and
    /// exposes no memory.
    #[default]
    ReadWrite,
    /// The Read-Read design (Callaghan 2003, RFC 5666): the responder exposes memory, the requester reads
    /// results from it and acknowledges them with RDMA_DONE. For experiments only: a client can read data of
    /// other clients by guessing tags, and can hold the responder's memory by withholding RDMA_DONE.
    #[cfg(feature = "research")]
    ReadRead,
}

impl fmt::Display for Design {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::ReadWrite => "read-write",
            #[cfg(feature = "research")]
            Self::ReadRead => "read-read",
        })
    }
}

impl FromStr for Design {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        match s {
            "read-write" => Ok(Self::ReadWrite),
            #[cfg(feature = "research")]
            "read-read" => Ok(Self::ReadRead),
            #[cfg(feature = "research")]
            _ => Err(format!("unknown design {s:?}: use read-write or read-read")),
            #[cfg(not(feature = "research"))]
            _ => Err(format!("unknown design {s:?}: use read-write")),
        }
    }
}

/// Private data of version 1 (RFC 8797 section 4): 8 bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PrivateData {
    /// The sender's design.
    pub design: Design,
    /// R: the sender accepts Send with Invalidate.
    pub remote_invalidate: bool,
    /// Bytes of the largest Send that the sender posts: 1024 to 262144.
    pub send_size: usize,
    /// Bytes of the largest Send that the sender can receive: 1024 to 262144.
    pub receive_size: usize,
}

impl PrivateData {
    /// Encodes the private data. Sizes are clamped to the valid range and rounded down to a multiple of 1024.
    pub fn encode(&self) -> [u8; 8] {
        let id = match self.design {
            Design::ReadWrite => FORMAT_ID,
            #[cfg(feature = "research")]
            Design::ReadRead => READ_READ_ID,
        };
        let id = id.to_be_bytes();
        let flags = if self.remote_invalidate { FLAG_REMOTE_INVALIDATE } else { 0 };
        let size = |n: usize| ((n.clamp(DEFAULT_INLINE, MAX_INLINE) >> 10) - 1) as u8;
        [id[0], id[1], id[2], id[3], VERSION, flags, size(self.send_size), size(self.receive_size)]
    }

    /// Decodes the private data of a connection request or accept. Returns `None` for another format: the
    /// peer then supports RFC 8166 only, which is valid.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let b: &[u8; 8] = bytes.first_chunk()?;
        let design = match u32::from_be_bytes([b[0], b[1], b[2], b[3]]) {
            FORMAT_ID => Design::ReadWrite,
            #[cfg(feature = "research")]
            READ_READ_ID => Design::ReadRead,
            _ => return None,
        };
        if b[4] != VERSION {
            return None;
        }
        let size = |v: u8| (usize::from(v) + 1) << 10;
        Some(Self {
            design,
            remote_invalidate: b[5] & FLAG_REMOTE_INVALIDATE != 0,
            send_size: size(b[6]),
            receive_size: size(b[7]),
        })
    }
}

/// Whether the private data `bytes` state the Read-Read design, which this build may lack.
pub(crate) fn states_read_read(bytes: &[u8]) -> bool {
    bytes.first_chunk::<8>().is_some_and(|b| b[..4] == READ_READ_ID.to_be_bytes() && b[4] == VERSION)
}

/// The inline thresholds of one connection at one end, in bytes, including the transport header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Thresholds {
    /// The largest Send that this end may post.
    pub send: usize,
    /// The largest Send that the peer may post.
    pub receive: usize,
}

impl Thresholds {
    /// Negotiates the thresholds from the private data of this end and of the peer, if the peer sent any.
    pub fn negotiate(ours: &PrivateData, peer: Option<&PrivateData>) -> Self {
        match peer {
            Some(p) => {
                Self { send: ours.send_size.min(p.receive_size), receive: ours.receive_size.min(p.send_size) }
            }
            None => Self { send: DEFAULT_INLINE, receive: DEFAULT_INLINE },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn private_data_has_the_encoding_of_rfc_8797() {
        let p = PrivateData {
            design: Design::ReadWrite,
            remote_invalidate: true,
            send_size: 4096,
            receive_size: 4096,
        };
        assert_eq!(p.encode(), [0xf6, 0xab, 0x0e, 0x18, 0x01, 0x01, 0x03, 0x03]);
        assert_eq!(PrivateData::decode(&p.encode()), Some(p));
    }

    #[test]
    fn the_read_read_design_has_a_separate_identifier() {
        let p = PrivateData {
            design: Design::ReadRead,
            remote_invalidate: false,
            send_size: 1024,
            receive_size: 8192,
        };
        assert_eq!(p.encode(), [0x52, 0x64, 0x52, 0x64, 0x01, 0x00, 0x00, 0x07]);
        assert_eq!(PrivateData::decode(&p.encode()), Some(p));
        assert!(states_read_read(&p.encode()));
        let other = PrivateData { design: Design::ReadWrite, ..p }.encode();
        for bytes in [&other[..], &p.encode()[..7], &[]] {
            assert!(!states_read_read(bytes), "{bytes:?}");
        }
    }

    #[test]
    fn sizes_are_rounded_down_and_clamped() {
        let p = PrivateData {
            design: Design::ReadWrite,
            remote_invalidate: false,
            send_size: 5000,
            receive_size: 10,
        };
        assert_eq!(p.encode()[5..], [0, 3, 0]);
        let p = PrivateData {
            design: Design::ReadWrite,
            remote_invalidate: false,
            send_size: usize::MAX,
            receive_size: 262_144,
        };
        assert_eq!(p.encode()[6..], [0xff, 0xff]);
        assert_eq!(PrivateData::decode(&p.encode()).unwrap().send_size, MAX_INLINE);
    }

    #[test]
    fn a_peer_without_valid_private_data_gets_the_defaults() {
        let ours = PrivateData {
            design: Design::ReadWrite,
            remote_invalidate: true,
            send_size: 4096,
            receive_size: 8192,
        };
        let mut other = ours.encode();
        other[4] = 2;
        for bytes in [&[][..], &ours.encode()[..7], &other, &[0; 8]] {
            assert_eq!(PrivateData::decode(bytes), None);
        }
        assert_eq!(Thresholds::negotiate(&ours, None), Thresholds { send: 1024, receive: 1024 });
        let peer = PrivateData {
            design: Design::ReadWrite,
            remote_invalidate: false,
            send_size: 65536,
            receive_size: 1024,
        };
        assert_eq!(Thresholds::negotiate(&ours, Some(&peer)), Thresholds { send: 1024, receive: 8192 });
    }

    #[test]
    fn reserved_flags_and_further_bytes_are_ignored() {
        let bytes = [0xf6, 0xab, 0x0e, 0x18, 1, 0xfe, 0, 0xff, 1, 2, 3];
        let p = PrivateData::decode(&bytes).unwrap();
        assert_eq!(
            p,
            PrivateData {
                design: Design::ReadWrite,
                remote_invalidate: false,
                send_size: 1024,
                receive_size: 262_144
            }
        );
    }
}
