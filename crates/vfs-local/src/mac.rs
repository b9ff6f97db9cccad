//! SipHash-2-4 (Aumasson and Bernstein, 2012): the keyed hash that authenticates file handles.

use siphasher::sip::SipHasher24;

/// A 128-bit secret key.
pub(super) type Key = [u8; 16];

/// The 64-bit message authentication code of `data` under `key`.
pub(super) fn mac(key: &Key, data: &[u8]) -> u64 {
    SipHasher24::new_with_key(key).hash(data)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Test vector of the paper's appendix A: key 00..0f, data 00..0e.
    #[test]
    fn matches_the_published_test_vector() {
        let key: Key = std::array::from_fn(|i| i as u8);
        let data: Vec<u8> = (0..15).collect();
        assert_eq!(mac(&key, &data), 0xa129_ca61_49be_45e5);
    }
}
