//! Results of READDIR and READDIRPLUS (RFC 1813 sections 3.3.16 and 3.3.17): lists whose size the client limits.

use millrace_xdr::{Decode, Decoder, Encoder, XdrError, pad};

use super::{FATTR_BYTES, MAX_NAME, PostOpAttr, PostOpHandle, Status, Verifier};

/// Bytes after the last entry: the end of the list and the end-of-directory mark.
const TAIL: usize = 8;

/// Bytes of a READDIR entry on the wire, with its list link.
pub const fn entry_bytes(name_len: usize) -> usize {
    4 + 8 + 4 + name_len + pad(name_len) + 8
}

/// Bytes of a READDIRPLUS entry on the wire, with its list link.
pub const fn plus_entry_bytes(name_len: usize, attributes: bool, handle_len: Option<usize>) -> usize {
    let attr = if attributes { 4 + FATTR_BYTES } else { 4 };
    let handle = match handle_len {
        Some(n) => 8 + n + pad(n),
        None => 4,
    };
    entry_bytes(name_len) + attr + handle
}

/// Not even one entry fits into the size that the client allows: answer [`Status::TooSmall`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the client's limit has no room for one directory entry")]
pub struct TooSmall;

/// Appends a list of entries under a limit. The head is put by `begin`, entries follow as long as they fit, `finish`
/// closes the list.
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
        // Counted from sizes and not from the encoder, which stops growing when memory runs out.
        let used = if dir.is_some() { 4 + FATTR_BYTES } else { 4 } + 8 + TAIL;
        debug_assert!(e.len() == body || e.len() - body + TAIL == used);
        Self { e, start, used, limit: limit as usize, entries: 0, full: false }
    }

    /// Whether an entry of `bytes` may follow; if so it must.
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

/// Builds the result of READDIR, from its status on, within the client's `count`.
pub struct ReaddirEncoder<'e>(List<'e>);

impl<'e> ReaddirEncoder<'e> {
    /// Puts everything before the entries.
    pub fn begin(e: &'e mut Encoder, dir: &PostOpAttr, verifier: Verifier, count: u32) -> Self {
        Self(List::begin(e, dir, verifier, count))
    }

    /// Appends an entry; `false` if it does not fit (nothing is appended then, and no later entry will be).
    pub fn push(&mut self, fileid: u64, name: &[u8], cookie: u64) -> bool {
        if !self.0.admit(entry_bytes(name.len())) {
            return false;
        }
        self.0.put_entry(fileid, name, cookie);
        true
    }

    /// Ends the list; gives the number of entries. `eof`: no entry follows those that were offered (an entry that
    /// did not fit makes it false).
    ///
    /// # Errors
    /// [`TooSmall`] when no entry fitted; everything put since `begin` is taken back, and a failure can be put.
    pub fn finish(self, eof: bool) -> Result<usize, TooSmall> {
        self.0.finish(eof)
    }
}

/// Builds the result of READDIRPLUS, from its status on, within the client's `dircount` and `maxcount`.
pub struct ReaddirplusEncoder<'e> {
    list: List<'e>,
    names: usize,
    names_limit: usize,
}

impl<'e> ReaddirplusEncoder<'e> {
    /// Puts everything before the entries. `dircount` is a hint: it never keeps the first entry out, and zero sets
    /// no limit.
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

    /// Appends an entry; `false` if it does not fit (nothing is appended then, and no later entry will be).
    pub fn push(&mut self, entry: &EntryPlus<'_>) -> bool {
        let handle_len = entry.handle.map(|h| h.len());
        let bytes = plus_entry_bytes(entry.name.len(), entry.attributes.is_some(), handle_len);
        // The file number, name and cookie, without the list link (RFC 1813 section 3.3.17).
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

    /// As [`ReaddirEncoder::finish`].
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
    /// Number of the file.
    pub fileid: u64,
    /// Its name.
    pub name: &'a [u8],
    /// Where a scan continues after it.
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
    /// Number of the file.
    pub fileid: u64,
    /// Its name.
    pub name: &'a [u8],
    /// Where a scan continues after it.
    pub cookie: u64,
    /// Its attributes.
    pub attributes: PostOpAttr,
    /// Its handle.
    pub handle: PostOpHandle,
}

impl<'a> Decode<'a> for EntryPlus<'a> {
    fn decode(d: &mut Decoder<'a>) -> Result<Self, XdrError> {
        let Entry { fileid, name, cookie } = d.get()?;
        Ok(Self { fileid, name, cookie, attributes: d.get()?, handle: d.get()? })
    }
}

/// A page of entries as decoded; its size is bounded by the bytes that are there.
fn decode_entries<'a, T: Decode<'a>>(d: &mut Decoder<'a>) -> Result<Vec<T>, XdrError> {
    let mut out = Vec::new();
    while d.bool()? {
        out.push(d.get()?);
    }
    Ok(out)
}

/// READDIR.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReaddirOk<'a> {
    /// The directory's attributes.
    pub attributes: PostOpAttr,
    /// Goes back with a cookie.
    pub verifier: Verifier,
    /// The entries.
    pub entries: Vec<Entry<'a>>,
    /// Whether no entry follows.
    pub eof: bool,
}

impl<'a> Decode<'a> for ReaddirOk<'a> {
    fn decode(d: &mut Decoder<'a>) -> Result<Self, XdrError> {
        Ok(Self { attributes: d.get()?, verifier: d.get()?, entries: decode_entries(d)?, eof: d.get()? })
    }
}

/// READDIRPLUS.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReaddirplusOk<'a> {
    /// The directory's attributes.
    pub attributes: PostOpAttr,
    /// Goes back with a cookie.
    pub verifier: Verifier,
    /// The entries.
    pub entries: Vec<EntryPlus<'a>>,
    /// Whether no entry follows.
    pub eof: bool,
}

impl<'a> Decode<'a> for ReaddirplusOk<'a> {
    fn decode(d: &mut Decoder<'a>) -> Result<Self, XdrError> {
        Ok(Self { attributes: d.get()?, verifier: d.get()?, entries: decode_entries(d)?, eof: d.get()? })
    }
}
