//! Numbers of bytes in their text form, for configuration files, URLs, command lines and reports.

use std::{fmt, str::FromStr};

/// A number of bytes.
///
/// Its text form is a decimal integer with an optional unit: `4096`, `64K`, `64KB`, `64KiB`, `1M`, `2G`, `1T`, in upper
/// or lower case. All units are powers of 1024. [`fmt::Display`] is exact: it uses the largest unit of which the number
/// is a multiple, and [`FromStr`] returns the same number. [`Self::human`] rounds.
///
/// ```
/// use millrace_buffer::ByteSize;
///
/// let size: ByteSize = "1536K".parse()?;
/// assert_eq!(size, ByteSize(1_572_864));
/// assert_eq!(size.to_string(), "1536KiB");
/// assert_eq!(size.human().to_string(), "1.5 MiB");
/// # Ok::<(), millrace_buffer::InvalidByteSize>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct ByteSize(pub u64);

/// Letters of the units and their powers of two, largest first.
const UNITS: [(&str, u32); 4] = [("T", 40), ("G", 30), ("M", 20), ("K", 10)];

/// A text that is not the text form of a [`ByteSize`], or a number above 2^64 - 1.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is not a size; write a number of bytes, or one with K, M, G or T (powers of 1024), as in 512MiB or 2G"
)]
pub struct InvalidByteSize(String);

/// `n` with a comma between groups of three digits.
pub fn grouped(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (i, c) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(c);
    }
    out
}

impl ByteSize {
    /// The number in the largest unit of which it has at least one, rounded to one digit after the point, for people:
    /// `1.5 KiB`.
    pub const fn human(self) -> HumanSize {
        HumanSize(self)
    }
}

impl FromStr for ByteSize {
    type Err = InvalidByteSize;

    fn from_str(s: &str) -> Result<Self, InvalidByteSize> {
        let invalid = || InvalidByteSize(s.to_owned());
        let text = s.trim();
        let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
        let unit = text[digits.len()..].to_ascii_uppercase();
        let unit = unit.strip_suffix("IB").or_else(|| unit.strip_suffix('B')).unwrap_or(&unit);
        let shift = match unit {
            "" => 0,
            u => UNITS.iter().find(|(name, _)| *name == u).map(|(_, shift)| *shift).ok_or_else(invalid)?,
        };
        let n: u64 = digits.trim().parse().map_err(|_| invalid())?;
        n.checked_mul(1 << shift).map(Self).ok_or_else(invalid)
    }
}

impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let unit = UNITS.iter().find(|(_, shift)| self.0 > 0 && self.0.is_multiple_of(1 << shift));
        match unit {
            Some((name, shift)) => write!(f, "{}{name}iB", self.0 >> shift),
            None => write!(f, "{}", self.0),
        }
    }
}

/// Displays a [`ByteSize`] rounded ([`ByteSize::human`]).
#[derive(Debug, Clone, Copy)]
pub struct HumanSize(ByteSize);

impl fmt::Display for HumanSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ByteSize(bytes) = self.0;
        let Some((name, shift)) = UNITS.iter().find(|(_, shift)| bytes >> shift > 0) else {
            return write!(f, "{bytes} B");
        };
        let value = bytes as f64 / (1_u64 << shift) as f64;
        let digits = usize::from(value.fract() != 0.0);
        write!(f, "{value:.digits$} {name}iB")
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_grouped_by_thousands() {
        assert_eq!([0, 999, 1000, 1_234_567].map(grouped), ["0", "999", "1,000", "1,234,567"]);
    }

    #[test]
    fn sizes_are_read_with_and_without_units() {
        let cases = [
            ("0", 0),
            ("4096", 4096),
            ("512B", 512),
            ("64K", 65536),
            ("128kb", 131_072),
            ("1MiB", 1 << 20),
            ("1m", 1 << 20),
            ("2 gib", 2 << 30),
            ("2g", 2 << 30),
            ("3TB", 3 << 40),
            ("1T", 1 << 40),
        ];
        for (text, bytes) in cases {
            assert_eq!(text.parse(), Ok(ByteSize(bytes)), "{text}");
        }
        for text in ["", "K", "GiB", "-1", "1.5G", "1X", "10X", "99999999T", "1 2"] {
            assert!(text.parse::<ByteSize>().is_err(), "{text}");
        }
    }

    #[test]
    fn sizes_are_displayed_exactly_in_the_largest_whole_unit() {
        for (bytes, text) in [(0, "0"), (1000, "1000"), (1 << 20, "1MiB"), (3 << 29, "1536MiB")] {
            assert_eq!(ByteSize(bytes).to_string(), text);
        }
    }

    #[test]
    fn sizes_for_people_are_rounded_in_the_largest_unit() {
        for (bytes, text) in [
            (0, "0 B"),
            (512, "512 B"),
            (1 << 20, "1 MiB"),
            (1536, "1.5 KiB"),
            ((1 << 20) - 1, "1024.0 KiB"),
            (2000 << 40, "2000 TiB"),
        ] {
            assert_eq!(ByteSize(bytes).human().to_string(), text);
        }
    }
}
