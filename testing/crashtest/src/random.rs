//! Pseudo-random numbers from a seed.

use rand_xoshiro::{
    SplitMix64,
    rand_core::{Rng, SeedableRng},
};

/// SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014):
/// platform-independent.
#[derive(Debug, Clone)]
pub struct Random(SplitMix64);

impl Random {
    /// Creates a generator with `seed`.
    pub fn new(seed: u64) -> Self {
        Self(SplitMix64::seed_from_u64(seed))
    }

    /// The next number.
    pub fn next_u64(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// A number below `limit` (0 if `limit` is 0). The bias is below `limit / 2^64`.
    pub fn below(&mut self, limit: u64) -> u64 {
        let n = self.next_u64();
        if limit == 0 { 0 } else { n % limit }
    }
}
