//! Entries of directories.

use super::{Attributes, FileHandle, Verifier};

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
    pub attributes: Option<Attributes>,
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
    pub dir: Option<Attributes>,
}
