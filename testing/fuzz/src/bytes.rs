//! Inputs as sequences of fields and operations.

/// Reads fields from an input. Past the end every field is zero or empty, so that every input is valid.
pub(crate) struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    pub(crate) fn u8(&mut self) -> u8 {
        self.take(1).first().copied().unwrap_or(0)
    }

    pub(crate) fn u16(&mut self) -> u16 {
        u16::from(self.u8()) << 8 | u16::from(self.u8())
    }

    /// The next `len` bytes, or all remaining bytes.
    pub(crate) fn take(&mut self, len: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(len.min(self.0.len()));
        self.0 = rest;
        taken
    }

    /// All remaining bytes.
    pub(crate) fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.0)
    }

    /// The next operation: its kind (one byte), the length of its operand (two bytes), the operand.
    pub(crate) fn operation(&mut self) -> Option<(u8, &'a [u8])> {
        if self.0.is_empty() {
            return None;
        }
        let (kind, len) = (self.u8(), self.u16());
        Some((kind, self.take(usize::from(len))))
    }
}

/// An input of operations, as [`Input::operation`] reads them.
pub(crate) fn operations(list: &[(u8, &[u8])]) -> Vec<u8> {
    let mut out = Vec::new();
    for (kind, operand) in list {
        out.push(*kind);
        out.extend((operand.len() as u16).to_be_bytes());
        out.extend(*operand);
    }
    out
}

/// `words` in big-endian order.
pub(crate) fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|w| w.to_be_bytes()).collect()
}

/// `digits` in hexadecimal as bytes; spaces are ignored.
pub(crate) fn from_hex(digits: &str) -> Vec<u8> {
    let digits: Vec<u8> = digits.bytes().filter(|b| !b.is_ascii_whitespace()).collect();
    digits.chunks(2).map(|d| u8::from_str_radix(std::str::from_utf8(d).unwrap(), 16).unwrap()).collect()
}
