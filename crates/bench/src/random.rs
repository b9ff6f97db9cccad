//! Pseudo-random numbers, reproducible by seed.

/// A generator (xorshift64*, Vigna 2016): fast and platform-independent.
// Not one of `rand_xoshiro`, because another generator would change the operations of each seed, and with them
// the figures of the papers' workloads in `docs/lab/reproduction.md`.
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    /// Creates a generator with `seed`.
    pub fn new(seed: u64) -> Self {
        // A step of SplitMix64, so that the sequences of neighbouring seeds are unrelated; the state must not
        // be 0.
        let z = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        Self((z ^ (z >> 31)) | 1)
    }

    /// The next 64-bit number.
    #[allow(clippy::should_implement_trait)] // Infinite.
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// A number below `n`; 0 if `n` is 0.
    pub fn below(&mut self, n: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(n)) >> 64) as u64
    }

    /// A number from `low` to `high`, inclusive.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high.saturating_sub(low) + 1)
    }

    /// `true` or `false` with equal probability.
    pub fn coin(&mut self) -> bool {
        self.next() >> 63 == 1
    }

    /// A number of the standard normal distribution (Box-Muller method).
    pub fn normal(&mut self) -> f64 {
        let unit = |bits: u64| ((bits >> 11) as f64 + 0.5) / (1_u64 << 53) as f64;
        let (a, b) = (unit(self.next()), unit(self.next()));
        (-2.0 * a.ln()).sqrt() * (std::f64::consts::TAU * b).cos()
    }
}

#[cfg(test)]
mod tests {
    use super::Random;

    #[test]
    fn numbers_are_within_bounds_and_reproducible_by_seed() {
        let mut r = Random::new(7);
        assert!((0..1000).all(|_| r.below(10) < 10 && (3..=5).contains(&r.between(3, 5))));
        assert_eq!((r.below(0), r.between(4, 4)), (0, 4));
        let heads = (0..10_000).filter(|_| r.coin()).count();
        assert!((4500..5500).contains(&heads), "{heads}");
        let mean = (0..10_000).map(|_| r.normal()).sum::<f64>() / 10_000.0;
        assert!(mean.abs() < 0.05, "{mean}");
        assert_ne!(Random::new(1).next(), Random::new(2).next());
        assert_eq!(Random::new(0).next(), Random::new(0).next());
    }
}
