//! Results of READDIR and READDIRPLUS (RFC 1813 sections 3.3.16 and 3.3.17), limited in size by the client.

use millrace_xdr::{Decode, Decoder, Encoder, XdrError, pad};

use super::{FATTR_BYTES, MAX_NAME, PostOpAttr, PostOpHandle, Status, Verifier};

/// Size of the end of the list and of the `eof` flag in bytes.
const TAIL: usize = 8;

/// Encoded size of a READDIR entry in bytes, including its list link.
pub const fn entry_bytes(name_len: usize) -> usize {
    4 + 8 + 4 + name_len + pad(name_len) + 8
}

/// Encoded size of a READDIRPLUS entry in bytes, including its list link.
pub const fn plus_entry_bytes(name_len: usize, attributes: bool, handle_len: Option<usize>) -> usize {
    let attr = if attributes { 4 + FATTR_BYTES } else { 4 };
    let handle = match handle_len {
        Some(n) => 8 + n + pad(n),
        None => 4,
    };
    entry_bytes(name_len) + attr + handle
}

/// Not even one entry fits into the client's limit; the reply is [`Status::TooSmall`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("no directory entry fits into the client's limit")]
pub struct TooSmall;

/// Encodes a list of entries within a limit: `begin` encodes the part before the entries, entries are added
/// while they fit, `finish` ends the list.
struct List<'e> {
    e: &'e mut Encoder,
    start: usize,
    used: usize,
    limit: usize,
    entries: usize,
    full: bool,
}

impl<'e> List<'e> {
    fn begin(e: &'e mut Encoder, dir: &PostOpAttr, verifier: Verifier, limit: u32) -> Self {
        let start = e.len();
        e.put(&Status::Ok);
        let body = e.len();
        e.put(dir);
        e.put(&verifier);
        // Computed from sizes, since the encoder stops growing when the arena is exhausted.
        let used = if dir.is_some() { 4 + FATTR_BYTES } else { 4 } + 8 + TAIL;
        debug_assert!(e.len() == body || e.len() - body + TAIL == used);
        Self { e, start, used, limit: limit as usize, entries: 0, full: false }
    }

    /// Whether an entry of `bytes` fits; if so, it must be added.
    fn admit(&mut self, bytes: usize) -> bool {
        if self.full || self.used.saturating_add(bytes) > self.limit {
            self.full = true;
            return false;
        }
        self.used += bytes;
        self.entries += 1;
        true
    }

    fn put_entry(&mut self, fileid: u64, name: &[u8], cookie: u64) {
        self.e.put_bool(true);
        self.e.put_u64(fileid);
        self.e.put_opaque(name);
        self.e.put_u64(cookie);
    }

    fn finish(self, eof: bool) -> Result<usize, TooSmall> {
        if self.used > self.limit || (self.entries == 0 && self.full) {
            self.e.truncate(self.start);
            return Err(TooSmall);
        }
        self.e.put_bool(false);
        self.e.put_bool(eof && !self.full);
        Ok(self.entries)
    }
}

/// Encodes the result of READDIR, starting with its status, within the client's `count`.
pub struct ReaddirEncoder<'e>(List<'e>);

impl<'e> ReaddirEncoder<'e> {
    /// Encodes everything before the entries.
    pub fn begin(e: &'e mut Encoder, dir: &PostOpAttr, verifier: Verifier, count: u32) -> Self {
        Self(List::begin(e, dir, verifier, count))
    }

    /// Appends an entry. `false` if it does not fit; nothing is appended then, and no later entry is either.
    pub fn push(&mut self, fileid: u64, name: &[u8], cookie: u64) -> bool {
        if !self.0.admit(entry_bytes(name.len())) {
            return false;
        }
        self.0.put_entry(fileid, name, cookie);
        true
    }

    /// Ends the list and returns the number of entries. `eof`: no entries follow those passed to `push`
    /// (ignored if one did not fit).
    ///
    /// # Errors
    /// [`TooSmall`] if no entry fitted; the encoder is reset to its state before `begin`, so that a failure
    /// can be encoded.
    pub fn finish(self, eof: bool) -> Result<usize, TooSmall> {
        self.0.finish(eof)
    }
}

/// Encodes the result of READDIRPLUS, starting with its status, within the client's `dircount` and
/// `maxcount`.
pub struct ReaddirplusEncoder<'e> {
    list: List<'e>,
    names: usize,
    names_limit: usize,
}

impl<'e> ReaddirplusEncoder<'e> {
    /// Encodes everything before the entries. `dircount` is a hint: the first entry is added regardless, and
    /// zero means no limit.
    pub fn begin(
        e: &'e mut Encoder,
        dir: &PostOpAttr,
        verifier: Verifier,
        dircount: u32,
        maxcount: u32,
    ) -> Self {
        let names_limit = if dircount == 0 { usize::MAX } else { dircount as usize };
        Self { list: List::begin(e, dir, verifier, maxcount), names: 0, names_limit }
    }

    /// Appends an entry. `false` if it does not fit; nothing is appended then, and no later entry is either.
    pub fn push(&mut self, entry: &EntryPlus<'_>) -> bool {
        let handle_len = entry.handle.map(|h| h.len());
        let bytes = plus_entry_bytes(entry.name.len(), entry.attributes.is_some(), handle_len);
        // File ID, name and cookie, without the list link (RFC 1813 section 3.3.17).
        self.names = self.names.saturating_add(entry_bytes(entry.name.len()) - 4);
        if self.list.entries > 0 && self.names > self.names_limit {
            self.list.full = true;
        }
        if !self.list.admit(bytes) {
            return false;
        }
        self.list.put_entry(entry.fileid, entry.name, entry.cookie);
        self.list.e.put(&entry.attributes);
        self.list.e.put(&entry.handle);
        true
    }

    /// See [`ReaddirEncoder::finish`].
    ///
    /// # Errors
    /// [`TooSmall`].
    pub fn finish(self, eof: bool) -> Result<usize, TooSmall> {
        self.list.finish(eof)
    }
}

/// An entry of READDIR.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry<'a> {
    /// File ID.
    pub fileid: u64,
    /// Name.
    pub name: &'a [u8],
    /// Cookie to continue after this entry.
    pub cookie: u64,
}

impl<'a> Decode<'a> for Entry<'a> {
    fn decode(d: &mut Decoder<'a>) -> Result<Self, XdrError> {
        Ok(Self { fileid: d.get()?, name: d.opaque(MAX_NAME)?, cookie: d.get()? })
    }
}

/// An entry of READDIRPLUS.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EntryPlus<'a> {
    /// File ID.
    pub fileid: u64,
    /// Name.
    pub name: &'a [u8],
    /// Cookie to continue after this entry.
    pub cookie: u64,
    /// Attributes, if returned.
    pub attributes: PostOpAttr,
    /// File handle, if returned.
    pub handle: PostOpHandle,
}

impl<'a> Decode<'a> for EntryPlus<'a> {
    fn decode(d: &mut Decoder<'a>) -> Result<Self, XdrError> {
        let Entry { fileid, name, cookie } = d.get()?;
        Ok(Self { fileid, name, cookie, attributes: d.get()?, handle: d.get()? })
    }
}

/// Decodes entries; their number is bounded by the size of the message.
fn decode_entries<'a, T: Decode<'a>>(d: &mut Decoder<'a>) -> Result<Vec<T>, XdrError> {
    let mut out = Vec::new();
    while d.bool()? {
        out.push(d.get()?);
    }
    Ok(out)
}

/// Result of READDIR.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReaddirOk<'a> {
    /// Attributes of the directory.
    pub attributes: PostOpAttr,
    /// Cookie verifier.
    pub verifier: Verifier,
    /// The entries.
    pub entries: Vec<Entry<'a>>,
    /// Whether the end of the directory has been reached.
    pub eof: bool,
}

impl<'a> Decode<'a> for ReaddirOk<'a> {
    fn decode(d: &mut Decoder<'a>) -> Result<Self, XdrError> {
        Ok(Self { attributes: d.get()?, verifier: d.get()?, entries: decode_entries(d)?, eof: d.get()? })
    }
}

/// Result of READDIRPLUS.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReaddirplusOk<'a> {
    /// Attributes of the directory.
    pub attributes: PostOpAttr,
    /// Cookie verifier.
    pub verifier: Verifier,
    /// The entries.
    pub entries: Vec<EntryPlus<'a>>,
    /// Whether the end of the directory has been reached.
    pub eof: bool,
}

impl<'a> Decode<'a> for ReaddirplusOk<'a> {
    fn decode(d: &mut Decoder<'a>) -> Result<Self, XdrError> {
        Ok(Self { attributes: d.get()?, verifier: d.get()?, entries: decode_entries(d)?, eof: d.get()? })
    }
}
