//! Private data of connection setup (RFC 8797).

/// The inline threshold in bytes without valid private data (RFC 8166 section 3.3.2), and the smallest that
/// private data can state.
pub const DEFAULT_INLINE: usize = 1024;
/// The largest inline threshold in bytes that private data can state.
pub const MAX_INLINE: usize = 262_144;

const FORMAT_ID: u32 = 0xf6ab_0e18;
const VERSION: u8 = 1;
const FLAG_REMOTE_INVALIDATE: u8 = 1;

/// Private data of version 1 (RFC 8797 section 4): 8 bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PrivateData {
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
        let id = FORMAT_ID.to_be_bytes();
        let flags = if self.remote_invalidate { FLAG_REMOTE_INVALIDATE } else { 0 };
        let size = |n: usize| ((n.clamp(DEFAULT_INLINE, MAX_INLINE) >> 10) - 1) as u8;
        [id[0], id[1], id[2], id[3], VERSION, flags, size(self.send_size), size(self.receive_size)]
    }

    /// Decodes the private data of a connection request or accept. Returns `None` for another format: the
    /// peer then supports RFC 8166 only, which is valid.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let b: &[u8; 8] = bytes.first_chunk()?;
        if b[..4] != FORMAT_ID.to_be_bytes() || b[4] != VERSION {
            return None;
        }
        let size = |v: u8| (usize::from(v) + 1) << 10;
        Some(Self {
            remote_invalidate: b[5] & FLAG_REMOTE_INVALIDATE != 0,
            send_size: size(b[6]),
            receive_size: size(b[7]),
        })
    }
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
        let p = PrivateData { remote_invalidate: true, send_size: 4096, receive_size: 4096 };
        assert_eq!(p.encode(), [0xf6, 0xab, 0x0e, 0x18, 0x01, 0x01, 0x03, 0x03]);
        assert_eq!(PrivateData::decode(&p.encode()), Some(p));
    }

    #[test]
    fn sizes_are_rounded_down_and_clamped() {
        let p = PrivateData { remote_invalidate: false, send_size: 5000, receive_size: 10 };
        assert_eq!(p.encode()[5..], [0, 3, 0]);
        let p = PrivateData { remote_invalidate: false, send_size: usize::MAX, receive_size: 262_144 };
        assert_eq!(p.encode()[6..], [0xff, 0xff]);
        assert_eq!(PrivateData::decode(&p.encode()).unwrap().send_size, MAX_INLINE);
    }

    #[test]
    fn a_peer_without_valid_private_data_gets_the_defaults() {
        let ours = PrivateData { remote_invalidate: true, send_size: 4096, receive_size: 8192 };
        let mut other = ours.encode();
        other[4] = 2;
        for bytes in [&[][..], &ours.encode()[..7], &other, &[0; 8]] {
            assert_eq!(PrivateData::decode(bytes), None);
        }
        assert_eq!(Thresholds::negotiate(&ours, None), Thresholds { send: 1024, receive: 1024 });
        let peer = PrivateData { remote_invalidate: false, send_size: 65536, receive_size: 1024 };
        assert_eq!(Thresholds::negotiate(&ours, Some(&peer)), Thresholds { send: 1024, receive: 8192 });
    }

    #[test]
    fn reserved_flags_and_further_bytes_are_ignored() {
        let bytes = [0xf6, 0xab, 0x0e, 0x18, 1, 0xfe, 0, 0xff, 1, 2, 3];
        let p = PrivateData::decode(&bytes).unwrap();
        assert_eq!(p, PrivateData { remote_invalidate: false, send_size: 1024, receive_size: 262_144 });
    }
}
