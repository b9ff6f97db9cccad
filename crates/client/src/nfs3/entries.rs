//! Entries of directories.

use millrace_nfs::v3::{self, Fattr, FileHandle, ReaddirOk, ReaddirplusOk, Verifier};
use millrace_xdr::{Decoder, XdrError};

/// An entry of a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DirEntry {
    /// The file ID.
    pub fileid: u64,
    /// The name.
    pub name: Vec<u8>,
    /// Cookie of the position after this entry.
    pub cookie: u64,
    /// The attributes, if the server sent them.
    pub attributes: Option<Fattr>,
    /// The file handle, if the server sent it.
    pub handle: Option<FileHandle>,
}

impl DirEntry {
    /// The name as text; invalid UTF-8 is replaced.
    pub fn name_lossy(&self) -> std::borrow::Cow<'_, str> {
        String::from_utf8_lossy(&self.name)
    }

    /// Whether it is `.` or `..`.
    pub fn is_dot(&self) -> bool {
        matches!(self.name.as_slice(), b"." | b"..")
    }
}

/// One page of the entries of a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DirPage {
    /// The entries.
    pub entries: Vec<DirEntry>,
    /// The cookie verifier, to be sent with the cookie of the last entry.
    pub verifier: Verifier,
    /// Whether this is the last page.
    pub eof: bool,
    /// The attributes of the directory, if the server sent them.
    pub dir: Option<Fattr>,
}

impl DirPage {
    /// Decodes the results of READDIR.
    pub(super) fn decode_plain(d: &mut Decoder<'_>) -> Result<Self, XdrError> {
        let ok: ReaddirOk<'_> = d.get()?;
        let own = |e: v3::Entry<'_>| DirEntry {
            fileid: e.fileid,
            name: e.name.to_vec(),
            cookie: e.cookie,
            attributes: None,
            handle: None,
        };
        let entries = ok.entries.into_iter().map(own).collect();
        Ok(Self { entries, verifier: ok.verifier, eof: ok.eof, dir: ok.attributes })
    }

    /// Decodes the results of READDIRPLUS.
    pub(super) fn decode_plus(d: &mut Decoder<'_>) -> Result<Self, XdrError> {
        let ok: ReaddirplusOk<'_> = d.get()?;
        let own = |e: v3::EntryPlus<'_>| DirEntry {
            fileid: e.fileid,
            name: e.name.to_vec(),
            cookie: e.cookie,
            attributes: e.attributes,
            handle: e.handle,
        };
        let entries = ok.entries.into_iter().map(own).collect();
        Ok(Self { entries, verifier: ok.verifier, eof: ok.eof, dir: ok.attributes })
    }
}
