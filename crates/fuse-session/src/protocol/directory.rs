//! The entries of a directory in the reply to a list (`fuse_dirent`, `fuse_direntplus`).

use crate::protocol::{Entry, Reply, message::Head};

/// A name in a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DirectoryEntry<'a> {
    /// Inode number that programs see.
    pub inode: u64,
    /// Offset with which a list continues after this entry.
    pub offset: u64,
    /// Mode, of which the type is used.
    pub mode: u32,
    /// The name.
    pub name: &'a [u8],
}

/// Entries of a directory, up to the size that a request permits.
#[derive(Debug)]
pub struct DirectoryEntries {
    bytes: Vec<u8>,
    limit: usize,
}

impl DirectoryEntries {
    /// Entries with at most `size` encoded bytes.
    pub fn new(size: u32) -> Self {
        Self { bytes: Vec::new(), limit: size as usize }
    }

    /// Appends an entry, for [`crate::protocol::Operation::ReadDirectory`]. `false`: there is no space for it.
    #[must_use]
    pub fn push(&mut self, entry: &DirectoryEntry<'_>) -> bool {
        self.append(&[], entry)
    }

    /// Appends an entry with its attributes, for [`crate::protocol::Operation::ReadDirectoryPlus`]. `false`: there is no space for
    /// it.
    #[must_use]
    pub fn push_plus(&mut self, found: &Entry, entry: &DirectoryEntry<'_>) -> bool {
        let mut head = Head::new();
        found.encode(&mut head);
        self.append(head.body(), entry)
    }

    fn append(&mut self, before: &[u8], entry: &DirectoryEntry<'_>) -> bool {
        const ALIGNMENT: usize = 8;
        const DIRENT: usize = 24;
        let end = self.bytes.len() + (before.len() + DIRENT + entry.name.len()).next_multiple_of(ALIGNMENT);
        if end > self.limit {
            return false;
        }
        if self.bytes.is_empty() {
            self.bytes.reserve_exact(self.limit.min(Self::ALLOCATED));
        }
        self.bytes.extend_from_slice(before);
        self.bytes.extend([entry.inode, entry.offset].map(u64::to_ne_bytes).as_flattened());
        // The type is the upper part of the mode, as in `struct dirent`.
        let kind = (entry.mode & 0o170_000) >> 12;
        self.bytes.extend([entry.name.len() as u32, kind].map(u32::to_ne_bytes).as_flattened());
        self.bytes.extend_from_slice(entry.name);
        self.bytes.resize(end, 0);
        true
    }

    /// Bytes that are allocated at the first entry: what the kernel requests at least.
    const ALLOCATED: usize = 4096;

    /// The reply with the entries.
    pub fn reply(&self) -> Reply<'_> {
        Reply::Data(&self.bytes)
    }
}
