//! Files that share blocks.

use millrace_buffer::BLOCK_BYTES;

use super::{MAX_FILE_SIZE, MemoryFs, content::Truncated, permission};
use crate::{FsError, FsResult, Handle, Identity, Wcc, WccAttr, types::check_copy};

impl MemoryFs {
    pub(super) fn clone_now(
        &self,
        caller: &Identity,
        (source, from): (&Handle, u64),
        (destination, to): (&Handle, u64),
        length: u64,
    ) -> FsResult<Wcc> {
        check_copy((source, from), (destination, to), length)?;
        if [from, to].iter().any(|at| !at.is_multiple_of(BLOCK_BYTES as u64)) {
            return Err(FsError::Inval);
        }
        to.checked_add(length).filter(|end| *end <= MAX_FILE_SIZE).ok_or(FsError::FBig)?;
        let (input, output) = (self.inode(source)?, self.inode(destination)?);
        // The inodes are locked in the order of their indexes; one inode is locked once.
        let first = if input.id.index < output.id.index { Some(input.read()?) } else { None };
        let mut guard = output.write()?;
        let second = if input.id.index > output.id.index { Some(input.read()?) } else { None };
        let source = first.as_deref().or(second.as_deref()).unwrap_or(&guard);
        permission::check_read(source, caller)?;
        let shared = source.content()?.share(from, length)?;
        permission::check_write(&guard, caller)?;
        let before = Some(WccAttr::from(&self.attr(&output, &guard)));
        let mut replaced = Truncated::default();
        if length > 0 {
            replaced = guard.content_mut()?.replace(&self.quota, to, length, shared)?;
            guard.mode = permission::mode_after_write(guard.mode, caller);
            guard.set_mtime_and_ctime(self.now());
        }
        let after = Some(self.attr(&output, &guard));
        drop((first, guard, second));
        drop(replaced);
        Ok(Wcc { before, after })
    }
}
