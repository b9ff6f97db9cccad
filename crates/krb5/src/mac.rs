//! HMAC with the hash function of an encryption type.

use hmac::{Hmac, KeyInit, Mac as _};
use sha1::Sha1;
use sha2::{Sha256, Sha384};

use crate::enctype::Enctype;

/// An HMAC in progress. One that has received nothing is the expanded key: its clones begin messages. The memory is
/// overwritten when it is dropped.
#[derive(Clone)]
pub(crate) enum Mac {
    Sha1(Hmac<Sha1>),
    Sha256(Hmac<Sha256>),
    Sha384(Hmac<Sha384>),
}

/// Evaluates the expression with the inner HMAC.
macro_rules! each {
    ($mac:expr, $inner:ident => $result:expr) => {
        match $mac {
            Mac::Sha1($inner) => $result,
            Mac::Sha256($inner) => $result,
            Mac::Sha384($inner) => $result,
        }
    };
}

/// HMAC has a key of any length (RFC 2104), although the library's constructor returns a `Result`.
fn keyed<M: KeyInit>(key: &[u8]) -> M {
    M::new_from_slice(key).unwrap_or_else(|_| unreachable!("HMAC has keys of any length"))
}

impl Mac {
    pub(crate) fn new(enctype: Enctype, key: &[u8]) -> Self {
        match enctype {
            Enctype::Aes128Sha1 | Enctype::Aes256Sha1 => Self::Sha1(keyed(key)),
            Enctype::Aes128Sha256 => Self::Sha256(keyed(key)),
            Enctype::Aes256Sha384 => Self::Sha384(keyed(key)),
        }
    }

    pub(crate) fn update(&mut self, bytes: &[u8]) {
        each!(self, mac => mac.update(bytes));
    }

    /// Writes the first bytes of the HMAC to `out`, which is not longer than the HMAC.
    pub(crate) fn finish(self, out: &mut [u8]) {
        each!(self, mac => out.copy_from_slice(&mac.finalize().as_bytes()[..out.len()]));
    }

    /// Compares the first bytes of the HMAC with `checksum`, in a time that does not depend on them. An empty checksum
    /// is wrong.
    pub(crate) fn is(self, checksum: &[u8]) -> bool {
        each!(self, mac => mac.verify_truncated_left(checksum).is_ok())
    }
}
