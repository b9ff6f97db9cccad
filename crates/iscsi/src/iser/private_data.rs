//! Private data of connection setup.

/// "Zero-based virtual addresses are not used."
const NO_ZERO_BASED: u8 = 0x80;
/// "Send with Invalidate is not used."
const NO_INVALIDATE: u8 = 0x40;

/// The private data of an iSER connection request and its accept, as the Linux kernel's initiator and target send it
/// (`struct iser_cm_hdr`): one byte of flags, 3 reserved bytes. Millrace always uses virtual addresses that are not
/// zero-based.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PrivateData {
    /// The sender supports Send with Invalidate: an initiator accepts it, a target posts it.
    pub remote_invalidate: bool,
}

impl PrivateData {
    /// Length in bytes.
    pub const BYTES: usize = 4;

    /// Encodes the private data.
    pub const fn encode(self) -> [u8; Self::BYTES] {
        [NO_ZERO_BASED | if self.remote_invalidate { 0 } else { NO_INVALIDATE }, 0, 0, 0]
    }

    /// Decodes the private data of the peer. A peer that sends none, as some targets do, or less than 4 bytes does
    /// not support Send with Invalidate. Bytes after the first 4 are ignored: transports pad private data.
    pub const fn decode(bytes: &[u8]) -> Self {
        match bytes.first_chunk::<{ Self::BYTES }>() {
            Some(b) => Self { remote_invalidate: b[0] & NO_INVALIDATE == 0 },
            None => Self { remote_invalidate: false },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_are_those_of_the_linux_kernel() {
        let with = PrivateData { remote_invalidate: true };
        let without = PrivateData { remote_invalidate: false };
        assert_eq!(with.encode(), [0x80, 0, 0, 0]);
        assert_eq!(without.encode(), [0xc0, 0, 0, 0]);
        assert_eq!(PrivateData::decode(&[0x80, 0, 0, 0, 0, 0]), with);
        assert_eq!(PrivateData::decode(&[0xc0, 0, 0, 0]), without);
    }

    #[test]
    fn a_peer_without_private_data_does_not_support_remote_invalidation() {
        assert_eq!(PrivateData::decode(&[]), PrivateData::default());
        assert_eq!(PrivateData::decode(&[0, 0, 0]), PrivateData::default());
    }
}
