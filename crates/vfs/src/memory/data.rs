//! READ, WRITE and COMMIT, and the calls on ranges of sparse files.

use std::ops::{ControlFlow, Range};

use millrace_buffer::{Quota, Views};

use super::{
    MAX_FILE_SIZE, MemoryFs,
    content::{Content, Truncated},
    permission,
};
use crate::{
    FileKind, FsError, FsResult, Handle, Identity, Read, SeekTarget, Stability, Wcc, WccAttr, Written,
};

/// A change of a range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RangeChange {
    /// Extend the file to the end of the range.
    Allocate,
    /// Free the storage.
    Deallocate,
    /// Free the storage, and extend the file.
    Zero,
}

impl MemoryFs {
    pub(super) fn read_now(
        &self,
        caller: &Identity,
        file: &Handle,
        offset: u64,
        count: u32,
    ) -> FsResult<Read> {
        let inode = self.inode(file)?;
        let st = inode.read()?;
        let content = st.content()?;
        permission::check_read(&st, caller)?;
        let (data, eof) = content.read(offset, count, || self.zeros())?;
        Ok(Read { data, eof, attr: self.attr(&inode, &st) })
    }

    /// Writes all of `data` or nothing. All writes are reported as FILE_SYNC, since memory cannot be more
    /// durable.
    pub(super) fn write_now(
        &self,
        caller: &Identity,
        file: &Handle,
        offset: u64,
        data: Views,
    ) -> FsResult<Written> {
        self.write_with(caller, file, offset, data, Content::write)
    }

    /// As [`write_now`](Self::write_now), with `write` to change the content.
    pub(super) fn write_with(
        &self,
        caller: &Identity,
        file: &Handle,
        offset: u64,
        data: Views,
        write: impl FnOnce(&mut Content, &Quota, u64, &Views) -> FsResult<()>,
    ) -> FsResult<Written> {
        let count = u32::try_from(data.len()).map_err(|_| FsError::Inval)?;
        let inode = self.inode(file)?;
        let mut guard = inode.write()?;
        let st = &mut *guard;
        st.content()?;
        permission::check_write(st, caller)?;
        offset.checked_add(u64::from(count)).filter(|end| *end <= MAX_FILE_SIZE).ok_or(FsError::FBig)?;
        let before = Some(WccAttr::from(&self.attr(&inode, st)));
        if count > 0 {
            write(st.content_mut()?, &self.quota, offset, &data)?;
            st.mode = permission::mode_after_write(st.mode, caller);
            st.set_mtime_and_ctime(self.now());
        }
        let wcc = Wcc { before, after: Some(self.attr(&inode, st)) };
        Ok(Written { count, committed: Stability::FileSync, wcc })
    }

    /// A step of a change of a range, which removes at most `limit` blocks, and subtracts them from it. Continues at an
    /// offset. Holes take no memory, so that an allocation only extends the file.
    pub(super) fn range_now(
        &self,
        caller: &Identity,
        file: &Handle,
        offset: u64,
        length: u64,
        change: RangeChange,
        limit: &mut usize,
    ) -> FsResult<ControlFlow<Wcc, u64>> {
        let inode = self.inode(file)?;
        let mut guard = inode.write()?;
        let st = &mut *guard;
        st.content()?;
        permission::check_write(st, caller)?;
        let end = offset.checked_add(length).ok_or(FsError::Inval)?;
        let extend = change != RangeChange::Deallocate;
        if extend && end > MAX_FILE_SIZE {
            return Err(FsError::FBig);
        }
        let before = Some(WccAttr::from(&self.attr(&inode, st)));
        let (mut freed, mut done) = (Truncated::default(), end);
        if length > 0 {
            let content = st.content_mut()?;
            if change != RangeChange::Allocate {
                done = content.part_end(offset, end, *limit);
                freed = content.deallocate(&self.quota, offset, done)?;
                *limit = limit.saturating_sub(freed.len());
            }
            if extend && done == end && end > content.size() {
                content.set_size(&self.quota, end);
            }
            st.mode = permission::mode_after_write(st.mode, caller);
            st.set_mtime_and_ctime(self.now());
        }
        let wcc = Wcc { before, after: Some(self.attr(&inode, st)) };
        drop(guard);
        drop(freed);
        Ok(if done < end { ControlFlow::Continue(done) } else { ControlFlow::Break(wcc) })
    }

    /// One step of a search; continues at an offset.
    pub(super) fn seek_now(
        &self,
        caller: &Identity,
        file: &Handle,
        range: Range<u64>,
        target: SeekTarget,
    ) -> FsResult<ControlFlow<Option<u64>, u64>> {
        let inode = self.inode(file)?;
        let st = inode.read()?;
        let content = st.content()?;
        permission::check_read(&st, caller)?;
        Ok(content.seek(range, target))
    }

    /// Checks the type of object; there is nothing to commit.
    pub(super) fn commit_now(&self, caller: &Identity, file: &Handle) -> FsResult<Wcc> {
        let inode = self.inode(file)?;
        let st = inode.read()?;
        if inode.kind != FileKind::Regular {
            return Err(if inode.is_dir() { FsError::IsDir } else { FsError::Inval });
        }
        permission::check_write(&st, caller)?;
        let attr = self.attr(&inode, &st);
        Ok(Wcc { before: Some(WccAttr::from(&attr)), after: Some(attr) })
    }
}
