//! CRC32C (Castagnoli, as in iSCSI) of an FPDU (RFC 5044 section 4.4); sent least significant byte first.

use crc_fast::{CrcAlgorithm, Digest};

/// A CRC32C computed over successive pieces of an FPDU. Its parameters and tables take several hundred bytes.
#[derive(Clone)]
pub(crate) struct Crc(Box<Digest>);

impl std::fmt::Debug for Crc {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Crc({:#010x})", self.value())
    }
}

impl Crc {
    /// The CRC of zero bytes.
    pub(crate) fn new() -> Self {
        Self(Box::new(Digest::new(CrcAlgorithm::Crc32Iscsi)))
    }

    /// Starts a new CRC.
    pub(crate) fn reset(&mut self) {
        self.0.reset();
    }

    /// Adds `bytes`.
    pub(crate) fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// The CRC of the added bytes.
    pub(crate) fn value(&self) -> u32 {
        self.0.finalize() as u32 // 32-bit algorithm: the upper half is zero.
    }

    /// The CRC in the byte order of the wire.
    pub(crate) fn wire(&self) -> [u8; 4] {
        self.value().to_le_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn crc(parts: &[&[u8]]) -> Crc {
        let mut c = Crc::new();
        parts.iter().for_each(|p| c.update(p));
        c
    }

    #[test]
    fn the_check_value_is_that_of_castagnoli() {
        assert_eq!(crc(&[b"123456789"]).value(), 0xE306_9283);
        assert_eq!(crc(&[b"1234", b"", b"56789"]).value(), 0xE306_9283);
    }

    #[test]
    fn examples_of_rfc_5044_have_the_expected_crc() {
        let mut one = vec![0; 4];
        one.extend([0x00, 0x2a, 0x41, 0x43, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0]);
        one.extend([0; 24]);
        assert_eq!(crc(&[&one]).wire(), [0x52, 0x23, 0x99, 0x83]);
        assert_eq!(crc(&[&one[4..]]).wire(), [0xb7, 0x24, 0x3e, 0xc3]);
        let mut two = vec![0x00, 0x2a, 0x41, 0x43, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0];
        two.extend([0, 0, 0, 0x14]);
        two.extend([0; 24]);
        assert_eq!(crc(&[&two]).wire(), [0x84, 0x92, 0x58, 0x98]);
    }

    #[test]
    fn any_split_gives_the_same_crc_as_a_bitwise_reference() {
        let data: Vec<u8> = (0..1000u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
        let mut reference = u32::MAX;
        for b in &data {
            reference ^= u32::from(*b);
            for _ in 0..8 {
                reference = if reference & 1 == 1 { (reference >> 1) ^ 0x82F6_3B78 } else { reference >> 1 };
            }
        }
        for cut in [0, 1, 63, 64, 65, 500, 999, 1000] {
            assert_eq!(crc(&[&data[..cut], &data[cut..]]).value(), !reference);
        }
    }
}
