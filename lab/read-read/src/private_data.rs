//! Private data of connection setup: that of RFC 8797 with another identifier, because the design predates the RFC.
//! Other peers ignore it as private data of an unknown format, as the RFC allows.

use millrace_rpcrdma::PrivateData;

const ID: [u8; 4] = *b"RdRd";

pub(crate) fn encode(data: &PrivateData) -> [u8; 8] {
    let mut bytes = data.encode();
    bytes[..4].copy_from_slice(&ID);
    bytes
}

/// `None`: the peer does not use this design.
pub(crate) fn decode(bytes: &[u8]) -> Option<PrivateData> {
    let bytes: &[u8; 8] = bytes.first_chunk()?;
    if bytes[..4] != ID {
        return None;
    }
    let any = PrivateData { remote_invalidate: false, send_size: 0, receive_size: 0 };
    let mut of_rfc = any.encode();
    of_rfc[4..].copy_from_slice(&bytes[4..]);
    PrivateData::decode(&of_rfc)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_design_has_a_separate_identifier() {
        let p = PrivateData { remote_invalidate: false, send_size: 1024, receive_size: 8192 };
        assert_eq!(encode(&p), [0x52, 0x64, 0x52, 0x64, 0x01, 0x00, 0x00, 0x07]);
        assert_eq!(decode(&encode(&p)), Some(p));
        assert_eq!((decode(&p.encode()), PrivateData::decode(&encode(&p))), (None, None));
        for bytes in [&encode(&p)[..7], &[]] {
            assert_eq!(decode(bytes), None);
        }
    }
}
