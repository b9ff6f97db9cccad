//! Values of arguments.

use std::{ffi::OsStr, fmt::Write as _, os::unix::ffi::OsStrExt};

use clap::builder::{OsStringValueParser, PossibleValuesParser, TypedValueParser};
use millrace_client::{Proto, Url};

use crate::failure::Failure;

/// The parser of a transport's name, which lists the names in the help.
pub fn proto() -> impl TypedValueParser<Value = Proto> {
    PossibleValuesParser::new(["rdma", "tcp"]).try_map(|name| name.parse::<Proto>())
}

/// The parser of a URL, whose bytes that are not UTF-8 become `%XX`.
pub fn url() -> impl TypedValueParser<Value = String> {
    OsStringValueParser::new().map(|text| url_text(&text))
}

/// Returns `text` with each byte that is not UTF-8 as `%XX`, which has the same meaning in a URL.
pub fn url_text(text: &OsStr) -> String {
    let mut out = String::with_capacity(text.len());
    for chunk in text.as_bytes().utf8_chunks() {
        out.push_str(chunk.valid());
        for byte in chunk.invalid() {
            // Writing to a string does not fail.
            let _ = write!(out, "%{byte:02X}");
        }
    }
    out
}

/// Parses a URL.
///
/// # Errors
/// A usage error that names the invalid part.
pub fn parse_url(text: &str) -> Result<Url, Failure> {
    text.parse().map_err(|e: millrace_client::Error| Failure::usage(e.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_of_a_url_that_are_not_utf8_are_escaped() {
        let text = |bytes: &[u8]| url_text(OsStr::from_bytes(bytes));
        assert_eq!(text("nfs://h/ä%20".as_bytes()), "nfs://h/ä%20");
        assert_eq!(text(b"nfs://h/abc\xe9/\xff\xfe"), "nfs://h/abc%E9/%FF%FE");
    }
}
