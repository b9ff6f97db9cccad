//! READ, WRITE and COMMIT.

use millrace_buffer::Views;

use super::{MAX_FILE_SIZE, MemoryFs, permission};
use crate::{FileKind, FsError, FsResult, Handle, Identity, Read, Stability, Wcc, WccAttr, Written};

impl MemoryFs {
    pub(super) fn read_now(&self, who: &Identity, file: &Handle, offset: u64, count: u32) -> FsResult<Read> {
        let inode = self.inode(file)?;
        let st = inode.read()?;
        let content = st.content()?;
        permission::check_read(&st, who)?;
        let (data, eof) = content.read(offset, count, || self.zeros())?;
        Ok(Read { data, eof, attr: self.attr(&inode, &st) })
    }

    /// All of `data` or nothing. Memory knows no difference between stable and unstable, so the write is as durable
    /// as it will ever be.
    pub(super) fn write_now(
        &self,
        who: &Identity,
        file: &Handle,
        offset: u64,
        data: Views,
    ) -> FsResult<Written> {
        let count = u32::try_from(data.len()).map_err(|_| FsError::Inval)?;
        let inode = self.inode(file)?;
        let mut guard = inode.write()?;
        let st = &mut *guard;
        st.content()?;
        permission::check_write(st, who)?;
        offset.checked_add(u64::from(count)).filter(|end| *end <= MAX_FILE_SIZE).ok_or(FsError::FBig)?;
        let before = Some(WccAttr::from(&self.attr(&inode, st)));
        if count > 0 {
            st.content_mut()?.write(&self.quota, offset, &data)?;
            st.mode = permission::mode_after_write(st.mode, who);
            st.modified(self.now());
        }
        let wcc = Wcc { before, after: Some(self.attr(&inode, st)) };
        Ok(Written { count, committed: Stability::FileSync, wcc })
    }

    /// Nothing to do but to answer for the right kind of object.
    pub(super) fn commit_now(&self, who: &Identity, file: &Handle) -> FsResult<Wcc> {
        let inode = self.inode(file)?;
        let st = inode.read()?;
        if inode.kind != FileKind::Regular {
            return Err(if inode.is_dir() { FsError::IsDir } else { FsError::Inval });
        }
        permission::check_write(&st, who)?;
        let attr = self.attr(&inode, &st);
        Ok(Wcc { before: Some(WccAttr::from(&attr)), after: Some(attr) })
    }
}
