//! Text of login and text PDUs (RFC 7143 section 6.1): `key=value` pairs, each with a zero byte after it.
//!
//! Text comes from a peer that may be hostile: every length and number is bounded, and keys and values without
//! control characters are all that reaches the callers.

use data_encoding::{BASE64, HEXLOWER, HEXLOWER_PERMISSIVE};

/// Maximum length of a key in bytes.
pub const MAX_KEY: usize = 63;
/// Maximum length of a value in bytes, except those of [`BINARY_KEYS`].
pub const MAX_VALUE: usize = 255;
/// Maximum length of a binary value in bytes, when it is decoded (RFC 7143 section 12.1.3).
pub const MAX_BINARY: usize = 1024;
/// Maximum length of the text of one sequence of PDUs in bytes.
pub const MAX_TEXT: usize = 64 * 1024;
/// Maximum number of pairs that [`parse`] accepts.
pub const MAX_PAIRS: usize = 128;
/// Maximum number of PDUs that carry one text.
pub const MAX_SEGMENTS: usize = 128;
/// The keys whose values are binary.
pub const BINARY_KEYS: [&str; 2] = ["CHAP_C", "CHAP_R"];

/// Why a text is invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TextError {
    /// The text is too long, or is divided into too many PDUs.
    #[error("the peer sent a text of more than {MAX_TEXT} bytes or {MAX_SEGMENTS} PDUs")]
    TooLong,
    /// The text has too many pairs.
    #[error("the peer sent a text of more than {MAX_PAIRS} keys")]
    TooMany,
    /// The last pair has no zero byte after it.
    #[error("the peer sent a text that does not end with a zero byte")]
    Unterminated,
    /// A pair has no `=`.
    #[error("the peer sent a text with a pair that has no '='")]
    NoEquals,
    /// A key is empty, too long, or has characters other than those of a label.
    #[error("the peer sent a text with an invalid key")]
    Key,
    /// A value is too long, or is not UTF-8 without control characters.
    #[error("the peer sent an invalid value of the key {0}")]
    Value(String),
    /// A key occurs twice.
    #[error("the peer sent the key {0} twice")]
    Duplicate(String),
}

/// A text that arrives in several PDUs, all but the last with the C bit.
#[derive(Debug, Default)]
pub struct Assembly {
    text: Vec<u8>,
    segments: usize,
}

impl Assembly {
    /// Adds the data segment of a PDU. The result is the whole text if the PDU is the last, without `continued`.
    ///
    /// # Errors
    ///
    /// The text is too long.
    pub fn push(&mut self, segment: &[u8], continued: bool) -> Result<Option<Vec<u8>>, TextError> {
        self.segments += 1;
        if self.text.len() + segment.len() > MAX_TEXT || self.segments > MAX_SEGMENTS {
            return Err(TextError::TooLong);
        }
        self.text.extend_from_slice(segment);
        if continued {
            return Ok(None);
        }
        self.segments = 0;
        Ok(Some(std::mem::take(&mut self.text)))
    }

    /// Whether a part of a text has arrived, but not its end.
    pub const fn is_partial(&self) -> bool {
        self.segments > 0
    }
}

/// Appends a pair to `text`.
pub fn push(text: &mut Vec<u8>, key: &str, value: &str) {
    text.extend_from_slice(key.as_bytes());
    text.push(b'=');
    text.extend_from_slice(value.as_bytes());
    text.push(0);
}

/// The pairs of `text` in order; a key may occur more than once. The iterator ends after an error.
pub fn pairs(text: &[u8]) -> impl Iterator<Item = Result<(&str, &str), TextError>> {
    let mut rest = text;
    std::iter::from_fn(move || {
        // Some implementations pad with zero bytes.
        let start = rest.iter().position(|b| *b != 0)?;
        let Some(length) = rest[start..].iter().position(|b| *b == 0) else {
            rest = &[];
            return Some(Err(TextError::Unterminated));
        };
        let pair = pair(&rest[start..start + length]);
        rest = if pair.is_ok() { &rest[start + length..] } else { &[] };
        Some(pair)
    })
}

/// All pairs of `text`, in which no key occurs twice.
///
/// # Errors
///
/// The text is invalid.
pub fn parse(text: &[u8]) -> Result<Vec<(&str, &str)>, TextError> {
    let mut all: Vec<(&str, &str)> = Vec::new();
    for pair in pairs(text) {
        let (key, value) = pair?;
        if all.iter().any(|(k, _)| *k == key) {
            return Err(TextError::Duplicate(key.to_owned()));
        }
        if all.len() == MAX_PAIRS {
            return Err(TextError::TooMany);
        }
        all.push((key, value));
    }
    Ok(all)
}

fn pair(pair: &[u8]) -> Result<(&str, &str), TextError> {
    let equals = pair.iter().position(|b| *b == b'=').ok_or(TextError::NoEquals)?;
    let (key, value) = (&pair[..equals], &pair[equals + 1..]);
    let label = |b: &u8| b.is_ascii_alphanumeric() || b".-+@_#/".contains(b);
    if key.is_empty() || key.len() > MAX_KEY || !key.iter().all(label) {
        return Err(TextError::Key);
    }
    let key = std::str::from_utf8(key).map_err(|_| TextError::Key)?;
    let maximum = if BINARY_KEYS.contains(&key) { 2 + 2 * MAX_BINARY } else { MAX_VALUE };
    let value =
        std::str::from_utf8(value).ok().filter(|v| v.len() <= maximum && !v.contains(char::is_control));
    Ok((key, value.ok_or_else(|| TextError::Value(key.to_owned()))?))
}

/// A boolean value.
pub fn boolean(value: &str) -> Option<bool> {
    match value {
        "Yes" => Some(true),
        "No" => Some(false),
        _ => None,
    }
}

/// The text of a boolean value.
pub const fn yes_no(value: bool) -> &'static str {
    if value { "Yes" } else { "No" }
}

/// A number in decimal, or in hexadecimal with `0x`.
pub fn number(value: &str) -> Option<u32> {
    let (digits, radix) = match value.strip_prefix("0x").or_else(|| value.strip_prefix("0X")) {
        Some(hex) => (hex, 16),
        None => (value, 10),
    };
    // `from_str_radix` accepts a sign.
    let number = digits.bytes().all(|b| b.is_ascii_alphanumeric());
    number.then(|| u32::from_str_radix(digits, radix).ok()).flatten()
}

/// The items of a list.
pub fn list(value: &str) -> impl Iterator<Item = &str> {
    value.split(',')
}

/// A binary value of at most [`MAX_BINARY`] bytes: hexadecimal with `0x`, or base64 (RFC 4648) with `0b`.
pub fn binary(value: &str) -> Option<Vec<u8>> {
    let encoding = match value.get(..2)? {
        "0x" | "0X" => HEXLOWER_PERMISSIVE,
        "0b" | "0B" => BASE64,
        _ => return None,
    };
    let bytes = encoding.decode(value.get(2..)?.as_bytes()).ok()?;
    (1..=MAX_BINARY).contains(&bytes.len()).then_some(bytes)
}

/// The text of a binary value, in hexadecimal.
pub fn binary_text(bytes: &[u8]) -> String {
    format!("0x{}", HEXLOWER.encode(bytes))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn pairs_have_the_expected_bytes() {
        let mut text = Vec::new();
        push(&mut text, "InitiatorName", "iqn.2001-04.com.example:a");
        push(&mut text, "AuthMethod", "CHAP,None");
        assert_eq!(text, b"InitiatorName=iqn.2001-04.com.example:a\0AuthMethod=CHAP,None\0");
        let parsed = parse(&text).unwrap();
        assert_eq!(parsed, [("InitiatorName", "iqn.2001-04.com.example:a"), ("AuthMethod", "CHAP,None")]);
        assert_eq!(parse(b"").unwrap(), []);
        assert_eq!(parse(b"A=\0\0\0B==c\0\0").unwrap(), [("A", ""), ("B", "=c")]);
    }

    #[test]
    fn hostile_text_is_refused() {
        let value = |key: &str| TextError::Value(key.to_owned());
        for (text, error) in [
            (&b"A=1"[..], TextError::Unterminated),
            (b"A=1\0B", TextError::Unterminated),
            (b"A\0", TextError::NoEquals),
            (b"=1\0", TextError::Key),
            (b"A B=1\0", TextError::Key),
            (b"A\x1b[2J=1\0", TextError::Key),
            (b"\xffA=1\0", TextError::Key),
            (b"A=\x1b[2J\0", value("A")),
            (b"A=\xff\0", value("A")),
            (b"A=\xc2\x9b\0", value("A")), // A control character above ASCII.
            (b"A=1\0B=2\0A=1\0", TextError::Duplicate("A".to_owned())),
        ] {
            assert_eq!(parse(text), Err(error), "{}", text.escape_ascii());
        }
        assert_eq!(parse(format!("{}=1\0", "K".repeat(64)).as_bytes()), Err(TextError::Key));
        assert!(parse(format!("{}={}\0", "K".repeat(63), "v".repeat(255)).as_bytes()).is_ok());
        assert_eq!(parse(format!("A={}\0", "v".repeat(256)).as_bytes()), Err(value("A")));
        assert!(parse(format!("CHAP_C={}\0", "v".repeat(2050)).as_bytes()).is_ok());
        assert_eq!(parse(format!("CHAP_C={}\0", "v".repeat(2051)).as_bytes()), Err(value("CHAP_C")));
        let many: String = (0..=MAX_PAIRS).map(|i| format!("K{i}=1\0")).collect();
        assert_eq!(parse(many.as_bytes()), Err(TextError::TooMany));
    }

    #[test]
    fn continued_text_is_bounded_in_bytes_and_pdus() {
        let mut assembly = Assembly::default();
        assert_eq!(assembly.push(b"A=", true), Ok(None));
        assert!(assembly.is_partial());
        assert_eq!(assembly.push(b"1\0", false), Ok(Some(b"A=1\0".to_vec())));
        assert!(!assembly.is_partial());
        for _ in 0..8 {
            assert_eq!(assembly.push(&[0; 8192], true), Ok(None));
        }
        assert_eq!(assembly.push(&[0], true), Err(TextError::TooLong));
        let mut assembly = Assembly::default();
        for _ in 0..MAX_SEGMENTS {
            assert_eq!(assembly.push(b"", true), Ok(None));
        }
        assert_eq!(assembly.push(b"", true), Err(TextError::TooLong));
    }

    #[test]
    fn values_have_the_expected_forms() {
        assert_eq!((boolean("Yes"), boolean("No"), boolean("yes")), (Some(true), Some(false), None));
        for (text, expected) in [
            ("0", Some(0)),
            ("262144", Some(262_144)),
            ("0x40000", Some(262_144)),
            ("0XfF", Some(255)),
            ("4294967295", Some(u32::MAX)),
            ("4294967296", None),
            ("+1", None),
            ("0x+1", None),
            ("-1", None),
            ("", None),
            ("0x", None),
            ("1 ", None),
            ("ff", None),
        ] {
            assert_eq!(number(text), expected, "{text:?}");
        }
        for (text, expected) in [
            ("0x00ff10", Some(&[0, 0xff, 0x10][..])),
            ("0X0A", Some(&[10])),
            ("0x0", None),
            ("0x", None),
            ("0xgg", None),
            ("0bAAECAw==", Some(&[0, 1, 2, 3])),
            ("0b//8=", Some(&[0xff, 0xff])),
            ("0bAAAA", Some(&[0, 0, 0])),
            ("0bAAE", None),
            ("0bAB==", None), // Unused bits that are not zero.
            ("0bA===", None),
            ("0b====", None),
            ("0b=AAA", None),
            ("0b", None),
            ("10", None),
            ("é", None),
        ] {
            assert_eq!(binary(text).as_deref(), expected, "{text:?}");
        }
        assert_eq!(binary_text(&[0, 0xff, 0x10]), "0x00ff10");
        assert!(binary(&binary_text(&[7; MAX_BINARY])).is_some());
        assert!(binary(&binary_text(&[7; MAX_BINARY + 1])).is_none());
    }

    proptest! {
        #[test]
        fn hostile_bytes_do_not_panic(text in proptest::collection::vec(any::<u8>(), 0..200), value: String) {
            let _ = parse(&text);
            let _ = (number(&value), binary(&value), binary(&format!("0b{value}")));
        }

        #[test]
        fn binary_values_are_preserved(bytes in proptest::collection::vec(any::<u8>(), 1..100)) {
            prop_assert_eq!(binary(&binary_text(&bytes)), Some(bytes));
        }
    }
}
