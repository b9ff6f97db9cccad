//! Per-message tokens of the Kerberos 5 mechanism of GSS-API (RFC 4121), with the encryption types of RFC 3962 and
//! RFC 8009.
//!
//! A [`Context`] has the keys of an established security context, which another library has negotiated
//! (`gss_init_sec_context` and `gss_accept_sec_context`). Its methods are the per-message calls of RFC 2743:
//! [`Context::mic`], [`Context::verify`], [`Context::wrap`] and [`Context::unwrap`]. They do no I/O, take no locks,
//! allocate nothing, and process messages that are in several parts of memory where they are.
//!
//! RPCSEC_GSS (RFC 2203) has its own window of sequence numbers, and requires contexts without detection of replay by
//! the mechanism: a context numbers what it sends, and ignores the numbers of what it receives.

#![forbid(unsafe_code)]

mod context;
mod derive;
mod encryption;
mod enctype;
mod mac;
mod parts;
#[cfg(test)]
mod tests;
mod token;

pub use context::{Context, KeyLength, Parameters, Role};
pub use enctype::Enctype;
pub use token::{Mic, PLAIN_AT, TokenError};
