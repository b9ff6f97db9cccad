//! Big-endian fields of CDBs and parameter data.

/// Reads `N` bytes at `at`; `None` beyond the end of `from`.
pub(crate) fn array<const N: usize>(from: &[u8], at: usize) -> Option<[u8; N]> {
    from.get(at..)?.first_chunk().copied()
}

/// The 16-bit field at `at`; `None` beyond the end.
pub(crate) fn be16(from: &[u8], at: usize) -> Option<u16> {
    array(from, at).map(u16::from_be_bytes)
}

/// The 24-bit field at `at`; `None` beyond the end.
pub(crate) fn be24(from: &[u8], at: usize) -> Option<u32> {
    array(from, at).map(|[a, b, c]| u32::from_be_bytes([0, a, b, c]))
}

/// The 32-bit field at `at`; `None` beyond the end.
pub(crate) fn be32(from: &[u8], at: usize) -> Option<u32> {
    array(from, at).map(u32::from_be_bytes)
}

/// The 64-bit field at `at`; `None` beyond the end.
pub(crate) fn be64(from: &[u8], at: usize) -> Option<u64> {
    array(from, at).map(u64::from_be_bytes)
}

/// Copies `field` to `to[at..]`; what lies beyond the end of `to` is dropped.
pub(crate) fn put(to: &mut [u8], at: usize, field: &[u8]) {
    for (to, from) in to.iter_mut().skip(at).zip(field) {
        *to = *from;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_big_endian_and_end_with_the_data() {
        let data = [1, 2, 3, 4, 5, 6, 7, 8];
        assert_eq!(be16(&data, 6), Some(0x0708));
        assert_eq!(be16(&data, 7), None);
        assert_eq!(be24(&data, 0), Some(0x01_0203));
        assert_eq!(be32(&data, 4), Some(0x0506_0708));
        assert_eq!(be64(&data, 0), Some(0x0102_0304_0506_0708));
        assert_eq!(be64(&data, 1), None);
        assert_eq!(be64(&data, usize::MAX), None);
        let mut out = [0; 3];
        put(&mut out, 1, &[9, 9, 9]);
        assert_eq!(out, [0, 9, 9]);
    }
}
