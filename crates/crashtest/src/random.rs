//! Pseudo-random numbers from a seed.

/// SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014):
/// platform-independent.
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    /// Creates a generator with `seed`.
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next number.
    pub const fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        mix(self.0)
    }

    /// A number below `limit` (0 if `limit` is 0). The bias is below `limit / 2^64`.
    pub const fn below(&mut self, limit: u64) -> u64 {
        let n = self.next_u64();
        if limit == 0 { 0 } else { n % limit }
    }
}

/// The output function of SplitMix64: a bijection in which every input bit affects the whole output.
pub(crate) const fn mix(n: u64) -> u64 {
    let n = (n ^ (n >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let n = (n ^ (n >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    n ^ (n >> 31)
}
