//! READDIR (RFC 8881 section 18.23): arguments, and a result limited in size by the client.

use millrace_xdr::{Decode, Decoder, Encoder, XdrError, pad};

use super::{Attributes, Bitmap, Fattr, Name, Verifier};
use crate::schema::xdr_struct;

xdr_struct! {
    /// Arguments of READDIR.
    pub struct ReaddirArgs {
        /// Cookie of the last entry processed; 0 to start.
        pub cookie: u64,
        /// Verifier returned with the cookie; 0 to start.
        pub verifier: Verifier,
        /// Hint: maximum size of names and cookies in bytes; 0: no limit.
        pub dircount: u32,
        /// Maximum size of the result in bytes, from the verifier to the `eof` flag.
        pub maxcount: u32,
        /// Requested attributes of the entries.
        pub requested: Bitmap,
    }
}

/// Size of the end of the list and of the `eof` flag in bytes.
const TAIL: usize = 8;

/// Not even one entry fits into the client's limit; the result is
/// [`Status::TooSmall`](super::Status::TooSmall).
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("no directory entry fits into the client's limit")]
pub struct TooSmall;

/// Encodes the result of READDIR after its status, within the limits of the client and of the session.
pub struct ReaddirEncoder<'e> {
    e: &'e mut Encoder,
    requested: Bitmap,
    start: usize,
    maxcount: usize,
    names: usize,
    names_limit: usize,
    entries: usize,
    full: bool,
}

impl<'e> ReaddirEncoder<'e> {
    /// Encodes the part before the entries. `limit` is the maximum size of the result in bytes that the session
    /// permits; the client's own limits are in `args`.
    pub fn begin(e: &'e mut Encoder, args: &ReaddirArgs, verifier: Verifier, limit: usize) -> Self {
        let start = e.len();
        e.put(&verifier);
        Self {
            e,
            requested: args.requested,
            start,
            maxcount: limit.min(args.maxcount as usize),
            names: 0,
            names_limit: if args.dircount == 0 { usize::MAX } else { args.dircount as usize },
            entries: 0,
            full: false,
        }
    }

    /// Appends an entry with those of the requested attributes that have a value. `false` if it does not fit;
    /// nothing is appended then, and no later entry is either.
    pub fn push(&mut self, cookie: u64, name: &[u8], attributes: &Attributes<'_>) -> bool {
        // Cookie and name; the first entry is added regardless of the hint.
        self.names = self.names.saturating_add(12 + name.len() + pad(name.len()));
        if self.full || (self.entries > 0 && self.names > self.names_limit) {
            self.full = true;
            return false;
        }
        let before = self.e.len();
        self.e.put_bool(true);
        self.e.put_u64(cookie);
        self.e.put_opaque(name);
        attributes.encode_requested(self.e, self.requested);
        if self.e.has_failed() {
            // The message fails; truncation would hide that.
            self.full = true;
            return false;
        }
        if self.e.len() - self.start + TAIL > self.maxcount {
            self.e.truncate(before);
            self.full = true;
            return false;
        }
        self.entries += 1;
        true
    }

    /// Ends the list and returns the number of entries. `eof`: no entries follow those passed to `push`
    /// (ignored if one did not fit).
    ///
    /// # Errors
    /// [`TooSmall`] if no entry fitted. The caller replaces the result by a failure
    /// ([`CompoundEncoder::fail`](super::CompoundEncoder::fail)).
    pub fn finish(self, eof: bool) -> Result<usize, TooSmall> {
        let used = self.e.len() - self.start + TAIL;
        if !self.e.has_failed() && (used > self.maxcount || (self.entries == 0 && self.full)) {
            return Err(TooSmall);
        }
        self.e.put_bool(false);
        self.e.put_bool(eof && !self.full);
        Ok(self.entries)
    }
}

/// An entry of READDIR.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry<'a> {
    /// Cookie to continue after this entry.
    pub cookie: u64,
    /// Name.
    pub name: Name<'a>,
    /// Attributes; [`Fattr::decode_values`] decodes them. (Decoded values need much more memory.)
    pub attributes: Fattr<'a>,
}

/// Result of READDIR.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReaddirOk<'a> {
    /// Cookie verifier.
    pub verifier: Verifier,
    /// The entries.
    pub entries: Vec<Entry<'a>>,
    /// Whether the end of the directory has been reached.
    pub eof: bool,
}

impl<'a> Decode<'a> for ReaddirOk<'a> {
    /// The size of the message bounds the number of entries.
    fn decode(d: &mut Decoder<'a>) -> Result<Self, XdrError> {
        let verifier = d.get()?;
        let mut entries = Vec::new();
        while d.bool()? {
            entries.push(Entry { cookie: d.get()?, name: d.get()?, attributes: d.get()? });
        }
        Ok(Self { verifier, entries, eof: d.get()? })
    }
}
