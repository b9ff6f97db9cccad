//! Kerberos 5 security contexts (RFC 2743, RFC 4121) through MIT's libgssapi_krb5, which is loaded at the first use.
//!
//! ```text
//! credential   keytabs and credential caches
//! negotiation  the exchange of tokens, from either side, which ends with a millrace_krb5::Context
//! error        why something failed, and what to do
//! calls        safe forms of the library's functions             (unsafe)
//! ffi          declarations and loading                          (unsafe)
//! ```
//!
//! The library does what depends on the host's configuration (krb5.conf, credential caches, key distribution centers);
//! the messages of a context are signed and sealed by `millrace_krb5`. Gssproxy works, because the library loads its
//! plug-in as in other programs (`GSS_USE_PROXY=yes`).
//!
//! # Blocking
//! All functions that contact the library read files, wait for locks, and may wait for a key distribution center or a
//! name server, for a minute if they are down: call them on a thread that may block.

mod calls;
mod credential;
mod error;
mod ffi;
mod negotiation;
#[cfg(test)]
mod tests;

pub use credential::Credential;
pub use error::{Error, LoadError, Status};
pub use negotiation::{Acceptor, Initiator, Progress, Refusal};
