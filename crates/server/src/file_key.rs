//! Keys of files in the state of NFSv4 clients.

use millrace_vfs::Handle;
use smallvec::SmallVec;

use crate::export::Export;

/// The key of a file: the export and the handle of its file system.
pub(crate) type FileKey = SmallVec<[u8; 4 + Handle::MAX]>;

/// The key of a file.
pub(crate) fn file_key(export: &Export, handle: &Handle) -> FileKey {
    key_of(export.id(), handle)
}

/// The key of the file with a handle in the export with an ID.
pub(crate) fn key_of(export: u32, handle: &Handle) -> FileKey {
    let mut key = FileKey::new();
    key.extend_from_slice(&export.to_be_bytes());
    key.extend_from_slice(handle.as_bytes());
    key
}

/// The export and the handle of a key.
pub(crate) fn split_key(key: &[u8]) -> Option<(u32, &[u8])> {
    let (export, handle) = key.split_first_chunk()?;
    Some((u32::from_be_bytes(*export), handle))
}
