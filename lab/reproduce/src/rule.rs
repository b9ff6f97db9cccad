//! The rules for a claim, as data.
//!
//! Simulated machines differ from the papers' machines, so that rules test the shape of results: which curve
//! is above which, by what factor, and from which point. One policy derives a band from a paper's figure, for
//! all claims alike:
//!
//! | statement of the paper | band |
//! |---|---|
//! | one is `g` times the other | half of the gain to twice the gain: `1 + (g - 1) / 2` to `1 + 2 (g - 1)` ([`Band::around`]) |
//! | from `g` to `h` times | half of the smaller gain to twice the larger ([`Band::spanning`]) |
//! | equal, the same, sustained | within 10 % ([`SAME`]) |
//! | marginally, hardly better | -10 % to +20 % ([`HARDLY`]) |
//! | significantly, much better, without a figure | at least +20 % ([`CLEARLY`]) |
//! | better, above; worse, below, without a figure | [`ABOVE`]; [`BELOW`] |
//! | a share, or a place on an axis | half to twice ([`Band::about`]) |

use std::fmt;

use crate::Curves;

/// The values with which a rule holds, both ends included.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Band {
    /// The smallest value.
    pub least: f64,
    /// The largest value; infinite if there is no limit.
    pub most: f64,
}

/// The paper states that two values are equal.
pub const SAME: Band = Band { least: 0.9, most: 1.1 };
/// The paper states that one value is hardly, or marginally, better.
pub const HARDLY: Band = Band { least: 0.9, most: 1.2 };
/// The paper states that one value is clearly better, without a figure.
pub const CLEARLY: Band = Band { least: 1.2, most: f64::INFINITY };
/// The paper states that one value is above the other, without a figure.
pub const ABOVE: Band = Band { least: 1.0, most: f64::INFINITY };
/// The paper states that one value is below the other, without a figure.
pub const BELOW: Band = Band { least: 0.0, most: 1.0 };

impl Band {
    /// The band for a factor above 1: half of the gain to twice the gain.
    pub const fn around(factor: f64) -> Self {
        Self::spanning(factor, factor)
    }

    /// The band for a range of factors above 1: half of the smaller gain to twice the larger.
    pub const fn spanning(smaller: f64, larger: f64) -> Self {
        Self { least: 1.0 + (smaller - 1.0) / 2.0, most: 1.0 + 2.0 * (larger - 1.0) }
    }

    /// The band for a share, or an x value: half to twice.
    pub const fn about(value: f64) -> Self {
        Self { least: value / 2.0, most: value * 2.0 }
    }

    /// Whether a value is in the band. NaN is in no band.
    pub fn has(self, value: f64) -> bool {
        (self.least..=self.most).contains(&value)
    }
}

impl fmt::Display for Band {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { least, most } = *self;
        match (least > 0.0, most.is_finite()) {
            (true, true) => write!(f, "{} to {}", number(least), number(most)),
            (true, false) => write!(f, "at least {}", number(least)),
            (false, _) => write!(f, "at most {}", number(most)),
        }
    }
}

/// A value with at most three significant digits.
pub fn number(value: f64) -> String {
    let digits = match value.abs() {
        v if v >= 100.0 => 0,
        v if v >= 10.0 => 1,
        v if v >= 1.0 => 2,
        _ => 3,
    };
    let text = format!("{value:.digits$}");
    let short = if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.') } else { &text };
    short.to_owned()
}

/// A quantity that is computed from the curves. Curves have names; x values are those of their axis.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Measure {
    /// The value of a curve at an x value.
    At(&'static str, f64),
    /// The value of the first curve at its x value over that of the second curve at its own.
    Ratio((&'static str, f64), (&'static str, f64)),
    /// The peak of the first curve over the peak of the second.
    Peaks(&'static str, &'static str),
    /// The largest ratio of the first curve over the second, wherever both have a value.
    MostOver(&'static str, &'static str),
    /// The smallest of these ratios.
    LeastOver(&'static str, &'static str),
    /// The value of a curve at an x value over its own peak.
    OfPeak(&'static str, f64),
    /// The x value of a curve's peak.
    PeakAt(&'static str),
    /// The smallest x value from which the first curve is at least as high as the second one, wherever both
    /// have a value.
    AboveFrom(&'static str, &'static str),
}

impl Measure {
    /// The value, or `None` if a curve or an x value is missing.
    pub fn of(&self, curves: &Curves) -> Option<f64> {
        let ratio = |a: f64, b: f64| (b > 0.0).then_some(a / b);
        match *self {
            Self::At(curve, x) => curves.at(curve, x),
            Self::Ratio((a, x), (b, y)) => ratio(curves.at(a, x)?, curves.at(b, y)?),
            Self::Peaks(a, b) => ratio(curves.peak(a)?.1, curves.peak(b)?.1),
            Self::MostOver(a, b) => curves.ratios(a, b).into_iter().map(|r| r.1).reduce(f64::max),
            Self::LeastOver(a, b) => curves.ratios(a, b).into_iter().map(|r| r.1).reduce(f64::min),
            Self::OfPeak(curve, x) => ratio(curves.at(curve, x)?, curves.peak(curve)?.1),
            Self::PeakAt(curve) => Some(curves.peak(curve)?.0),
            Self::AboveFrom(a, b) => {
                curves.ratios(a, b).into_iter().rev().take_while(|r| r.1 >= 1.0).last().map(|r| r.0)
            }
        }
    }

    /// The curves that it uses.
    pub fn curves(&self) -> Vec<&'static str> {
        match *self {
            Self::At(a, _) | Self::OfPeak(a, _) | Self::PeakAt(a) => vec![a],
            Self::Ratio((a, _), (b, _))
            | Self::Peaks(a, b)
            | Self::MostOver(a, b)
            | Self::LeastOver(a, b)
            | Self::AboveFrom(a, b) => {
                vec![a, b]
            }
        }
    }
}

/// A rule: a measure must be in a band.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rule {
    /// The measure as text: "READ at 1 thread, Read-Write over Read-Read".
    pub what: &'static str,
    /// The measure.
    pub measure: Measure,
    /// The paper's value or statement.
    pub paper: &'static str,
    /// The band.
    pub band: Band,
}

/// A rule with its measured value.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RuleResult {
    /// The rule.
    pub rule: Rule,
    /// The value, or `None` if the experiment has no such value.
    pub ours: Option<f64>,
}

impl Rule {
    /// Applies the rule to the results of an experiment.
    pub fn evaluate(&self, curves: &Curves) -> RuleResult {
        RuleResult { rule: *self, ours: self.measure.of(curves) }
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.what, self.band)
    }
}

impl RuleResult {
    /// Whether the rule holds. A rule without a value does not.
    pub fn holds(&self) -> bool {
        self.ours.is_some_and(|v| self.rule.band.has(v))
    }

    /// The value, as text.
    pub fn ours(&self) -> String {
        self.ours.map_or_else(|| "no value".to_owned(), number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn curves() -> Curves {
        let mut c = Curves::default();
        for (x, a, b) in [(1.0, 150.0, 100.0), (2.0, 300.0, 280.0), (4.0, 240.0, 300.0)] {
            c.put("a", x, a);
            c.put("b", x, b);
        }
        c
    }

    #[test]
    fn bands_are_derived_from_the_papers_figures() {
        assert_eq!(Band::around(1.5), Band { least: 1.25, most: 2.0 });
        assert_eq!(Band::around(11.0), Band { least: 6.0, most: 21.0 });
        assert_eq!(Band::spanning(2.0, 3.0), Band { least: 1.5, most: 5.0 });
        assert_eq!(Band::about(0.24), Band { least: 0.12, most: 0.48 });
        assert!(SAME.has(0.9) && SAME.has(1.1) && !SAME.has(1.11) && !SAME.has(f64::NAN));
        assert_eq!([SAME, ABOVE, BELOW].map(|b| b.to_string()), ["0.9 to 1.1", "at least 1", "at most 1"]);
    }

    #[test]
    fn measures_are_computed_as_documented() {
        let of = |m: Measure| m.of(&curves());
        assert_eq!(of(Measure::At("a", 2.0)), Some(300.0));
        assert_eq!(of(Measure::Ratio(("a", 1.0), ("b", 1.0))), Some(1.5));
        assert_eq!(of(Measure::Peaks("a", "b")), Some(1.0));
        assert_eq!(of(Measure::MostOver("a", "b")), Some(1.5));
        assert_eq!(of(Measure::LeastOver("a", "b")), Some(0.8));
        assert_eq!(of(Measure::OfPeak("a", 4.0)), Some(0.8));
        assert_eq!(of(Measure::PeakAt("b")), Some(4.0));
        assert_eq!(of(Measure::AboveFrom("b", "a")), Some(4.0));
        assert_eq!(of(Measure::AboveFrom("a", "b")), None);
        assert_eq!(of(Measure::AboveFrom("a", "a")), Some(1.0));
        for missing in [Measure::At("a", 3.0), Measure::Peaks("a", "c"), Measure::MostOver("c", "a")] {
            assert_eq!(of(missing), None);
        }
    }

    #[test]
    fn a_rule_needs_a_value_within_its_band() {
        let rule = |measure| Rule { what: "a over b", measure, paper: "1.5", band: Band::around(1.5) };
        let good = rule(Measure::Ratio(("a", 1.0), ("b", 1.0))).evaluate(&curves());
        assert!(good.holds());
        assert_eq!((good.ours().as_str(), good.rule.to_string().as_str()), ("1.5", "a over b: 1.25 to 2"));
        assert!(!rule(Measure::Ratio(("a", 2.0), ("b", 2.0))).evaluate(&curves()).holds());
        let missing = rule(Measure::At("c", 1.0)).evaluate(&curves());
        assert!(!missing.holds());
        assert_eq!(missing.ours(), "no value");
    }

    #[test]
    fn numbers_have_three_significant_digits() {
        let texts = [0.024, 0.5, 1.235, 12.34, 934.4, 2.0].map(number);
        assert_eq!(texts, ["0.024", "0.5", "1.24", "12.3", "934", "2"]);
    }
}
