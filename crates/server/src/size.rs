//! Byte counts as people write them.

use std::{fmt, str::FromStr};

/// A number of bytes, written `4096`, `64KiB`, `1MiB`, `2GiB`, `1TiB` (or with `K`, `M`, `G`, `T` alone, which mean
/// the same powers of 1024).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct ByteSize(pub u64);

const UNITS: [(&str, u32); 4] = [("T", 40), ("G", 30), ("M", 20), ("K", 10)];

impl FromStr for ByteSize {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        let bad = || format!("`{s}` is not a size; write a number of bytes or, for example, 512MiB or 2GiB");
        let text = s.trim();
        let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
        let unit = text[digits.len()..].to_ascii_uppercase();
        let unit = unit.strip_suffix("IB").or_else(|| unit.strip_suffix('B')).unwrap_or(&unit);
        let shift = match unit {
            "" => 0,
            u => UNITS.iter().find(|(name, _)| *name == u).map(|(_, shift)| *shift).ok_or_else(bad)?,
        };
        let n: u64 = digits.trim().parse().map_err(|_| bad())?;
        n.checked_mul(1 << shift).map(Self).ok_or_else(bad)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_with_and_without_units() {
        let cases = [
            ("0", 0),
            ("4096", 4096),
            ("64K", 65536),
            ("1MiB", 1 << 20),
            ("2 gib", 2 << 30),
            ("3TB", 3 << 40),
        ];
        for (text, bytes) in cases {
            assert_eq!(text.parse(), Ok(ByteSize(bytes)), "{text}");
        }
        for text in ["", "GiB", "-1", "1.5G", "10X", "99999999T", "1 2"] {
            assert!(text.parse::<ByteSize>().is_err(), "{text}");
        }
    }

    #[test]
    fn sizes_are_shown_in_the_largest_whole_unit() {
        for (bytes, text) in [(0, "0"), (1000, "1000"), (1 << 20, "1MiB"), (3 << 29, "1536MiB")] {
            assert_eq!(ByteSize(bytes).to_string(), text);
        }
    }
}
