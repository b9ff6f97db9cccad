//! Extended attributes: arguments and results (RFC 8276 section 8.4). Names have no `user.` prefix. Results of
//! SETXATTR and REMOVEXATTR are the change of the file ([`ChangeInfo`](super::ChangeInfo)).

use millrace_xdr::{Encoder, pad};

use super::{List, Name, Opaque, TooSmall};
use crate::schema::{xdr_enum, xdr_struct};

/// Maximum length of a decoded value in bytes. A file system's limit is smaller and reported as
/// [`Status::Xattr2Big`](super::Status::Xattr2Big).
pub const MAX_XATTR_VALUE: usize = 1 << 20;

xdr_struct! {
    /// Arguments of GETXATTR.
    #[derive(Copy)]
    pub struct GetxattrArgs<'a> {
        /// Name.
        pub name: Name<'a>,
    }
}

xdr_struct! {
    /// Result of GETXATTR.
    #[derive(Copy)]
    pub struct GetxattrOk<'a> {
        /// Value.
        pub value: Opaque<'a, MAX_XATTR_VALUE>,
    }
}

xdr_enum! {
    /// `setxattr_option4`.
    pub enum SetxattrOption {
        /// Create or replace.
        Either = 0,
        /// Fail if it exists.
        Create = 1,
        /// Fail if it does not exist.
        Replace = 2,
    }
}

xdr_struct! {
    /// Arguments of SETXATTR.
    #[derive(Copy)]
    pub struct SetxattrArgs<'a> {
        /// Whether to create or replace.
        pub option: SetxattrOption,
        /// Name.
        pub name: Name<'a>,
        /// Value.
        pub value: Opaque<'a, MAX_XATTR_VALUE>,
    }
}

xdr_struct! {
    /// Arguments of LISTXATTRS.
    pub struct ListxattrsArgs {
        /// Cookie of the previous result; 0 to start.
        pub cookie: u64,
        /// Maximum size of the result in bytes, from the cookie to the `eof` flag.
        pub maxcount: u32,
    }
}

xdr_struct! {
    /// Result of LISTXATTRS, as a client receives it; a server uses [`ListxattrsEncoder`].
    pub struct ListxattrsOk<'a> {
        /// Cookie to continue.
        pub cookie: u64,
        /// The names.
        pub names: List<Name<'a>, { 1 << 16 }>,
        /// Whether there are no more names.
        pub eof: bool,
    }
}

xdr_struct! {
    /// Arguments of REMOVEXATTR.
    #[derive(Copy)]
    pub struct RemovexattrArgs<'a> {
        /// Name.
        pub name: Name<'a>,
    }
}

/// Size of the cookie, the number of names and the `eof` flag in bytes.
const FIXED: usize = 16;

/// Encodes the result of LISTXATTRS after its status, within the limits of the client and of the session.
pub struct ListxattrsEncoder<'e> {
    e: &'e mut Encoder,
    start: usize,
    used: usize,
    limit: usize,
    names: u32,
    full: bool,
}

impl<'e> ListxattrsEncoder<'e> {
    /// Encodes the part before the names. `limit` is the maximum size of the result in bytes that the session
    /// permits.
    pub fn begin(e: &'e mut Encoder, maxcount: u32, limit: usize) -> Self {
        let start = e.len();
        e.put_u64(0);
        e.put_u32(0);
        Self { e, start, used: FIXED, limit: limit.min(maxcount as usize), names: 0, full: false }
    }

    /// Appends a name. `false` if it does not fit; nothing is appended then, and no later name is either.
    pub fn push(&mut self, name: &[u8]) -> bool {
        let bytes = 4 + name.len() + pad(name.len());
        if self.full || self.used.saturating_add(bytes) > self.limit {
            self.full = true;
            return false;
        }
        self.used += bytes;
        self.names += 1;
        self.e.put_opaque(name);
        true
    }

    /// Ends the list. `cookie` is that of the last name that fitted. `eof`: no names follow those passed to
    /// `push` (ignored if one did not fit).
    ///
    /// # Errors
    /// [`TooSmall`] if no name fitted. The caller replaces the result by a failure
    /// ([`CompoundEncoder::fail`](super::CompoundEncoder::fail)).
    pub fn finish(self, cookie: u64, eof: bool) -> Result<(), TooSmall> {
        if self.used > self.limit || (self.names == 0 && self.full) {
            return Err(TooSmall);
        }
        self.e.patch_u32(self.start, (cookie >> 32) as u32);
        self.e.patch_u32(self.start + 4, cookie as u32);
        self.e.patch_u32(self.start + 8, self.names);
        self.e.put_bool(eof && !self.full);
        Ok(())
    }
}
