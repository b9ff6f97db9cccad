//! Summaries of several runs.

/// The median; for an even number of values, the mean of the middle two. `None` without values.
pub fn median(values: impl IntoIterator<Item = f64>) -> Option<f64> {
    let mut sorted: Vec<f64> = values.into_iter().collect();
    sorted.sort_by(f64::total_cmp);
    let upper = *sorted.get(sorted.len() / 2)?;
    if sorted.len() % 2 == 1 {
        return Some(upper);
    }
    Some((upper + sorted.get(sorted.len() / 2 - 1)?) / 2.0)
}

/// Latencies in nanoseconds, with three significant digits.
pub struct Latencies(hdrhistogram::Histogram<u64>);

impl Default for Latencies {
    fn default() -> Self {
        Self::new()
    }
}

impl Latencies {
    /// Creates an empty collection.
    ///
    /// # Panics
    /// Never: the constant arguments are valid.
    #[allow(clippy::expect_used)] // Constant arguments.
    pub fn new() -> Self {
        let longest = 3600 * 1_000_000_000; // An hour; longer latencies count as an hour.
        Self(hdrhistogram::Histogram::new_with_bounds(1, longest, 3).expect("valid constants"))
    }

    /// Records a latency.
    pub fn record(&mut self, latency: std::time::Duration) {
        self.0.saturating_record(u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX));
    }

    /// Adds all latencies of `other`.
    pub fn merge(&mut self, other: &Self) {
        // Fails only for values out of range; the ranges are equal.
        let _ = self.0.add(&other.0);
    }

    /// Number of latencies.
    pub fn len(&self) -> u64 {
        self.0.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The mean in microseconds.
    pub fn mean_us(&self) -> f64 {
        self.0.mean() / 1000.0
    }

    /// The `percent`th percentile in microseconds.
    pub fn percentile_us(&self, percent: f64) -> f64 {
        self.0.value_at_percentile(percent) as f64 / 1000.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_median_ignores_a_single_outlier() {
        assert_eq!(median([]), None);
        assert_eq!(median([3.0]), Some(3.0));
        assert_eq!(median([5.0, 1000.0, 4.0]), Some(5.0));
        assert_eq!(median([1.0, 2.0, 3.0, 4.0]), Some(2.5));
    }

    #[test]
    fn percentiles_are_in_microseconds() {
        let mut l = Latencies::new();
        for us in 1..=100 {
            l.record(Duration::from_micros(us));
        }
        assert_eq!(l.len(), 100);
        assert!((l.percentile_us(50.0) - 50.0).abs() < 0.5);
        assert!((l.percentile_us(99.0) - 99.0).abs() < 0.5);
    }
}
