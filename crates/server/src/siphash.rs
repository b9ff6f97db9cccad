//! SipHash-2-4 (Aumasson and Bernstein, 2012): the tag of file handles.
//!
//! The hasher of `std` may change between releases; handles must stay valid after an upgrade.

use siphasher::sip::SipHasher24;

/// Computes SipHash-2-4 of `data` with `key`.
pub(crate) fn siphash(key: [u64; 2], data: &[u8]) -> u64 {
    SipHasher24::new_with_keys(key[0], key[1]).hash(data)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Vectors of appendix A of the SipHash paper: key 00..0f, input 00, 00 01, ...
    #[test]
    fn the_published_vectors_match() {
        let key = [0x0706_0504_0302_0100, 0x0f0e_0d0c_0b0a_0908];
        let input: Vec<u8> = (0..15).collect();
        assert_eq!(siphash(key, &input), 0xa129_ca61_49be_45e5);
        assert_eq!(siphash(key, &[]), 0x726f_db47_dd0e_0e31);
        assert_eq!(siphash(key, &input[..8]), 0x93f5_f579_9a93_2462);
    }
}
