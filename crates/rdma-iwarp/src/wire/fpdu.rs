//! FPDU framing (RFC 5044 section 4.1, without markers):
//!
//! ```text
//! u16 ULPDU_Length | ULPDU | PAD 0..3 | u32 CRC
//! ```

/// Length of the ULPDU_Length field in bytes.
pub(crate) const LENGTH_BYTES: usize = 2;
/// Length of the CRC field in bytes.
pub(crate) const CRC_BYTES: usize = 4;
/// Maximum length of a ULPDU.
pub(crate) const MAX_ULPDU: usize = u16::MAX as usize;
/// Maximum length of a trailer: padding and CRC.
pub(crate) const MAX_TRAILER: usize = 3 + CRC_BYTES;

/// Padding after a ULPDU of `ulpdu` bytes: length field, ULPDU and padding fill whole 32-bit words.
pub(crate) const fn pad_bytes(ulpdu: usize) -> usize {
    (LENGTH_BYTES + ulpdu).wrapping_neg() & 3
}

/// Length of padding and CRC after a ULPDU of `ulpdu` bytes.
pub(crate) const fn trailer_bytes(ulpdu: usize) -> usize {
    pad_bytes(ulpdu) + CRC_BYTES
}

/// Length of the FPDU of a ULPDU of `ulpdu` bytes.
pub(crate) const fn total_bytes(ulpdu: usize) -> usize {
    LENGTH_BYTES + ulpdu + trailer_bytes(ulpdu)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn padding_fills_whole_words() {
        assert_eq!([23, 18, 17, 22, 0x2e, 0x26].map(pad_bytes), [3, 0, 1, 0, 0, 0]);
        assert_eq!(total_bytes(23), 2 + 23 + 3 + 4);
        for l in 0..100 {
            assert_eq!(total_bytes(l) % 4, 0);
        }
    }
}
