//! Types of attribute values that no operation uses otherwise (RFC 8881 section 5).

use std::fmt;

use millrace_xdr::{Decode, Decoder, Encode, Encoder, XdrError};

use super::Bitmap;
use crate::schema::{xdr_enum, xdr_struct};

/// Maximum length of a decoded owner in bytes.
pub const MAX_OWNER: usize = 1024;

/// `owner` or `owner_group`: a user or group (RFC 8881 section 5.9).
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub enum Owner<'a> {
    /// A numeric ID, encoded as a decimal number without leading zeros.
    Id(u32),
    /// Another string, such as `user@domain`; at most [`MAX_OWNER`] bytes.
    Name(&'a [u8]),
}

impl fmt::Debug for Owner<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Id(id) => write!(f, "{id}"),
            Self::Name(name) => write!(f, "\"{}\"", name.escape_ascii()),
        }
    }
}

impl Encode for Owner<'_> {
    fn encode(&self, e: &mut Encoder) {
        match self {
            Self::Id(id) => put_decimal(e, *id),
            Self::Name(name) => e.put_opaque(name),
        }
    }
}

/// Appends a decimal number as a string.
fn put_decimal(e: &mut Encoder, mut n: u32) {
    let mut digits = [b'0'; 10];
    let mut start = digits.len();
    loop {
        start -= 1;
        digits[start] += (n % 10) as u8;
        n /= 10;
        if n == 0 {
            break;
        }
    }
    e.put_opaque(&digits[start..]);
}

/// The number of a decimal string without sign and leading zeros, if it fits.
fn parse_decimal(s: &[u8]) -> Option<u32> {
    let canonical = s == b"0" || s.first().is_some_and(|c| (b'1'..=b'9').contains(c));
    let digits = std::str::from_utf8(s).ok().filter(|_| canonical)?;
    digits.parse().ok()
}

impl<'a> Decode<'a> for Owner<'a> {
    fn decode(d: &mut Decoder<'a>) -> Result<Self, XdrError> {
        let s = d.opaque(MAX_OWNER)?;
        Ok(parse_decimal(s).map_or(Self::Name(s), Self::Id))
    }
}

/// `settime4`: how to set a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SetTime {
    /// Set to the server's time.
    ServerTime,
    /// Set to this time.
    ClientTime(super::NfsTime),
}

impl Encode for SetTime {
    fn encode(&self, e: &mut Encoder) {
        match self {
            Self::ServerTime => e.put_u32(0),
            Self::ClientTime(t) => {
                e.put_u32(1);
                e.put(t);
            }
        }
    }
}

impl<'a> Decode<'a> for SetTime {
    fn decode(d: &mut Decoder<'a>) -> Result<Self, XdrError> {
        Ok(if d.bool()? { Self::ClientTime(d.get()?) } else { Self::ServerTime })
    }
}

xdr_struct! {
    /// `mode_umask4` (RFC 8275): how to compute the permission bits of a new object.
    #[derive(Default)]
    pub struct ModeUmask {
        /// Requested permission bits.
        pub mode: u32,
        /// The umask, which applies unless the directory has a default ACL.
        pub umask: u32,
    }
}

xdr_enum! {
    /// `change_attr_type4` (RFC 7862 section 12.2.3): how the change attribute changes.
    pub enum ChangeAttrType {
        /// It increases.
        Monotonic = 0,
        /// It increases by one with each change.
        VersionCounter = 1,
        /// The same, without a pNFS layout.
        VersionCounterWithoutPnfs = 2,
        /// It is derived from `time_metadata`.
        TimeMetadata = 3,
        /// Undefined.
        Undefined = 4,
    }
}

xdr_struct! {
    /// `open_arguments4` (RFC 9754 section 3): the arguments of OPEN that a server supports, each as a set of numbers.
    pub struct OpenArguments {
        /// Values of `share_access` without its flags.
        pub share_access: Bitmap,
        /// Values of `share_deny`.
        pub share_deny: Bitmap,
        /// Flags of `share_access`: values of [`WANT_MASK`](super::share_access::WANT_MASK) without the lowest byte, and
        /// positions of the bits above.
        pub share_access_want: Bitmap,
        /// Numbers of `open_claim4`.
        pub claim: Bitmap,
        /// Numbers of `createmode4`.
        pub create_mode: Bitmap,
    }
}
