//! fallocate(2), and lseek(2) for data and holes, with NFSv4.2.
//!
//! Earlier versions have no such operations: the kernel then fails fallocate(2) with EOPNOTSUPP, and reports no holes.

use std::{ops::Range, sync::Arc};

use millrace_client::{handles::SeekTarget, ops::SpaceChange};
use rustix::{fs::FallocateFlags, io::Errno};

use crate::{error::errno, fs::Fs, open_file::OpenFile};

/// The largest offset in a file.
const OFFSET_MAX: u64 = i64::MAX as u64;

/// The change of a mode of fallocate(2). ALLOCATE extends the file, so that `FALLOC_FL_KEEP_SIZE` is possible only for
/// a hole.
fn space_change(mode: i32) -> Result<SpaceChange, Errno> {
    let mode = FallocateFlags::from_bits_retain(mode as u32);
    match mode {
        _ if mode.is_empty() => Ok(SpaceChange::Allocate),
        _ if mode == FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE => Ok(SpaceChange::Deallocate),
        FallocateFlags::ZERO_RANGE => Ok(SpaceChange::Zero),
        _ => Err(Errno::OPNOTSUPP),
    }
}

impl Fs {
    /// Changes the space of a range. The kernel drops the pages of the range after the reply.
    pub(crate) async fn fallocate(
        self: &Arc<Self>,
        file: &OpenFile,
        range: Range<u64>,
        mode: i32,
    ) -> Result<(), Errno> {
        file.note_use();
        let change = space_change(mode)?;
        let inode = &file.inode;
        self.commit(inode).await?;
        let _change = inode.begin_change(&self.clock);
        let end = range.end;
        let changed = file.client.change_space(inode.handle, range, change).await;
        // After an error a part may have been changed.
        inode.note_change(&self.clock, changed.as_ref().unwrap_or(&Default::default()));
        changed.map_err(|e| errno(&e))?;
        if change != SpaceChange::Deallocate {
            inode.note_extension(end);
        }
        Ok(())
    }

    /// Searches for data or a hole from `offset`.
    ///
    /// The server does not have the data of the kernel's dirty pages (`writeback`, or of mapped files). Where it sees a
    /// hole, the kernel therefore first writes and drops its pages.
    ///
    /// # Errors
    /// [`Errno::NXIO`] if there is none. [`Errno::NOSYS`] if the server cannot search: the kernel then treats the whole
    /// file as data.
    pub(crate) async fn seek(
        self: &Arc<Self>,
        file: &OpenFile,
        offset: u64,
        target: SeekTarget,
    ) -> Result<u64, Errno> {
        file.note_use();
        let inode = &file.inode;
        let mut written_to = offset;
        loop {
            self.commit(inode).await?; // Otherwise a restarted server could lack data.
            let found =
                file.client.seek(inode.handle, offset, target).await.map_err(|e| match errno(&e) {
                    Errno::OPNOTSUPP => Errno::NOSYS,
                    e => e,
                })?;
            let hole_end = found.unwrap_or(OFFSET_MAX);
            if target == SeekTarget::Hole || hole_end <= written_to {
                return found.ok_or(Errno::NXIO);
            }
            if let Some(invalidator) = self.invalidator.get() {
                invalidator.invalidate_range(inode, offset..hole_end).await;
            }
            written_to = hole_end;
        }
    }
}
