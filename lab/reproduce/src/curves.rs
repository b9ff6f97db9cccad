//! The results of an experiment in the simulation.

use std::collections::BTreeMap;

/// Values by curve name and x value, such as 862 MB/s for `"read-write"` at 8 threads.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Curves(BTreeMap<&'static str, Vec<(f64, f64)>>);

impl Curves {
    /// Sets the value of a curve at `x`, replacing an earlier one.
    pub fn put(&mut self, curve: &'static str, x: f64, y: f64) {
        let points = self.0.entry(curve).or_default();
        points.retain(|(at, _)| *at != x);
        points.push((x, y));
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
    }

    /// The points of a curve, ordered by x; empty if it was not measured.
    pub fn points(&self, curve: &str) -> &[(f64, f64)] {
        self.0.get(curve).map_or(&[], Vec::as_slice)
    }

    /// The value at `x`.
    pub fn at(&self, curve: &str, x: f64) -> Option<f64> {
        self.points(curve).iter().find(|(at, _)| *at == x).map(|(_, y)| *y)
    }

    /// The highest point of a curve as x and y; the first one if there are several.
    pub fn peak(&self, curve: &str) -> Option<(f64, f64)> {
        self.points(curve).iter().copied().fold(None, |best: Option<(f64, f64)>, point| match best {
            Some(b) if b.1 >= point.1 => Some(b),
            _ => Some(point),
        })
    }

    /// The ratios of the first curve over the second, with their x, wherever both have a value.
    pub fn ratios(&self, curve: &str, over: &str) -> Vec<(f64, f64)> {
        let ratio = |(x, y): &(f64, f64)| self.at(over, *x).filter(|o| *o > 0.0).map(|o| (*x, y / o));
        self.points(curve).iter().filter_map(ratio).collect()
    }

    /// The names of all curves.
    pub fn names(&self) -> impl Iterator<Item = &'static str> {
        self.0.keys().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn points_are_ordered_and_ratios_need_both_values() {
        let mut c = Curves::default();
        for (x, y) in [(8.0, 4.0), (1.0, 2.0), (2.0, 4.0), (8.0, 3.0)] {
            c.put("a", x, y);
        }
        c.put("b", 1.0, 4.0);
        c.put("b", 2.0, 0.0);
        assert_eq!(c.points("a"), [(1.0, 2.0), (2.0, 4.0), (8.0, 3.0)]);
        assert_eq!(c.peak("a"), Some((2.0, 4.0)));
        assert_eq!((c.peak("c"), c.at("a", 3.0)), (None, None));
        assert_eq!(c.ratios("a", "b"), [(1.0, 0.5)]);
    }
}
