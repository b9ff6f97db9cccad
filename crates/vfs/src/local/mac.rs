//! SipHash-2-4: the keyed hash that marks the handles we gave out (Aumasson and Bernstein, 2012).

/// A secret key of 128 bits.
pub(super) type Key = [u8; 16];

fn word(bytes: &[u8]) -> u64 {
    let mut w = [0; 8];
    w[..bytes.len()].copy_from_slice(bytes);
    u64::from_le_bytes(w)
}

fn round(v: &mut [u64; 4]) {
    v[0] = v[0].wrapping_add(v[1]);
    v[2] = v[2].wrapping_add(v[3]);
    v[1] = v[1].rotate_left(13) ^ v[0];
    v[3] = v[3].rotate_left(16) ^ v[2];
    v[0] = v[0].rotate_left(32);
    v[2] = v[2].wrapping_add(v[1]);
    v[0] = v[0].wrapping_add(v[3]);
    v[1] = v[1].rotate_left(17) ^ v[2];
    v[3] = v[3].rotate_left(21) ^ v[0];
    v[2] = v[2].rotate_left(32);
}

/// The 64-bit mark of `data` under `key`.
pub(super) fn mac(key: &Key, data: &[u8]) -> u64 {
    let (k0, k1) = (word(&key[..8]), word(&key[8..]));
    let mut v = [
        k0 ^ 0x736f_6d65_7073_6575,
        k1 ^ 0x646f_7261_6e64_6f6d,
        k0 ^ 0x6c79_6765_6e65_7261,
        k1 ^ 0x7465_6462_7974_6573,
    ];
    let mut absorb = |m: u64| {
        v[3] ^= m;
        round(&mut v);
        round(&mut v);
        v[0] ^= m;
    };
    let chunks = data.chunks_exact(8);
    let rest = chunks.remainder();
    chunks.for_each(|c| absorb(word(c)));
    absorb(word(rest) | (data.len() as u64) << 56);
    v[2] ^= 0xff;
    (0..4).for_each(|_| round(&mut v));
    v[0] ^ v[1] ^ v[2] ^ v[3]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The worked example of the paper's appendix A: key 00..0f, data 00..0e.
    #[test]
    fn the_published_example_comes_out() {
        let key: Key = std::array::from_fn(|i| i as u8);
        let data: Vec<u8> = (0..15).collect();
        assert_eq!(mac(&key, &data), 0xa129_ca61_49be_45e5);
    }
}
