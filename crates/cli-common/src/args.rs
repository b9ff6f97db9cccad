//! Values of arguments.

use clap::builder::{PossibleValuesParser, TypedValueParser};
use millrace_client::{Proto, Url};

use crate::failure::Failure;

/// The parser of a transport's name, which lists the names in the help.
pub fn proto() -> impl TypedValueParser<Value = Proto> {
    PossibleValuesParser::new(["rdma", "tcp"]).try_map(|name| name.parse::<Proto>())
}

/// Parses a URL.
///
/// # Errors
/// A usage error that names the invalid part.
pub fn parse_url(text: &str) -> Result<Url, Failure> {
    text.parse().map_err(|e: millrace_client::Error| Failure::usage(e.to_string()))
}
