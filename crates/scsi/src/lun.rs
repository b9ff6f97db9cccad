//! Logical unit numbers (SAM-5 section 4.7).

use std::str::FromStr;

/// A logical unit number of one level, 0 to 16383; 0 by default.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Lun(u16);

impl Lun {
    /// The largest number.
    pub const MAX: u16 = 0x3fff;

    /// The LUN `number`; `None` above [`Self::MAX`].
    pub const fn new(number: u16) -> Option<Self> {
        if number <= Self::MAX { Some(Self(number)) } else { None }
    }

    /// The number.
    pub const fn number(self) -> u16 {
        self.0
    }

    /// The eight bytes of the LUN: peripheral device addressing below 256, otherwise flat space addressing.
    pub const fn to_bytes(self) -> [u8; 8] {
        let [high, low] = self.0.to_be_bytes();
        let method = if self.0 < 256 { 0 } else { 0x40 };
        [method | high, low, 0, 0, 0, 0, 0, 0]
    }

    /// Decodes either addressing method; `None` for others and for more levels.
    pub const fn from_bytes(lun: [u8; 8]) -> Option<Self> {
        let [high, low, 0, 0, 0, 0, 0, 0] = lun else { return None };
        match high >> 6 {
            0 if high == 0 => Some(Self(low as u16)),
            1 => Some(Self(u16::from_be_bytes([high & 0x3f, low]))),
            _ => None,
        }
    }
}

/// The number or text is not a LUN.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a LUN, a number from 0 to {max}", max = Lun::MAX)]
pub struct InvalidLun(String);

impl TryFrom<u16> for Lun {
    type Error = InvalidLun;

    fn try_from(number: u16) -> Result<Self, InvalidLun> {
        Self::new(number).ok_or_else(|| InvalidLun(number.to_string()))
    }
}

impl FromStr for Lun {
    type Err = InvalidLun;

    fn from_str(text: &str) -> Result<Self, InvalidLun> {
        text.parse().ok().and_then(Self::new).ok_or_else(|| InvalidLun(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_texts_are_checked() {
        assert_eq!((Lun::try_from(0x3fff), "7".parse()), (Ok(Lun(0x3fff)), Ok(Lun(7))));
        for invalid in ["16384", "-1", "x", ""] {
            let e = invalid.parse::<Lun>().unwrap_err().to_string();
            assert_eq!(e, format!("{invalid:?} is not a LUN, a number from 0 to 16383"));
        }
        assert_eq!(Lun::try_from(0x4000), Err(InvalidLun("16384".into())));
    }

    #[test]
    fn both_addressing_methods() {
        for (number, bytes) in [(0, [0, 0]), (255, [0, 255]), (256, [0x41, 0]), (0x3fff, [0x7f, 0xff])] {
            let lun = Lun::new(number).unwrap();
            assert_eq!(lun.to_bytes()[..2], bytes);
            assert_eq!(lun.to_bytes()[2..], [0; 6]);
            assert_eq!(Lun::from_bytes(lun.to_bytes()), Some(lun));
        }
        assert_eq!(Lun::from_bytes([0x40, 5, 0, 0, 0, 0, 0, 0]), Lun::new(5));
        for bytes in [[1, 0, 0], [0x80, 0, 0], [0xc1, 1, 0], [0, 1, 1]] {
            assert_eq!(Lun::from_bytes([bytes[0], bytes[1], bytes[2], 0, 0, 0, 0, 0]), None);
        }
        assert_eq!(Lun::new(0x4000), None);
    }
}
