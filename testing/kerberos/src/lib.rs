//! Kerberos for tests: a realm with a key distribution center on a loopback port ([`Realm`]), and calls of RPCSEC_GSS that a
//! client makes by hand, so that it can violate any rule ([`Client`]). The latter share no code with the product but for the
//! tokens.

#![allow(clippy::unwrap_used, clippy::panic)] // Helpers of tests, which are to fail.

mod calls;
mod realm;

pub use calls::{Client, Target, Words, accepted, answered, credential, denied, header, init, opaque, words};
pub use realm::{Realm, run};
