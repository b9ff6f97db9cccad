//! Operations on space and holes, and copies: those of NFSv4.2. After ENOSYS the kernel no longer sends them: it fails them
//! with EOPNOTSUPP or emulates them.

use std::sync::Arc;

use millrace_client::handles::SeekTarget;
use millrace_fuse_session::{
    channel::Call,
    protocol::{CopyFileRange, FileRange, Reply},
};
use rustix::io::Errno;

use super::{FuseHandler, done};

/// `whence` of lseek(2) for data and for holes.
const SEEK_DATA: u32 = 3;
const SEEK_HOLE: u32 = 4;

impl FuseHandler {
    pub(super) fn fallocate(&self, call: Call, range: FileRange, mode: u32) {
        if !self.has_v4_2_operations() {
            return call.error(Errno::NOSYS);
        }
        let fs = Arc::clone(&self.fs);
        let op = async move {
            fs.fallocate(&*fs.open_file(range.handle)?, range.bytes(), mode.cast_signed()).await
        };
        self.run_detached(call, op, done);
    }

    pub(super) fn seek(&self, call: Call, handle: u64, (offset, whence): (u64, u32)) {
        let target = match whence {
            SEEK_DATA => SeekTarget::Data,
            SEEK_HOLE => SeekTarget::Hole,
            _ => return call.error(Errno::INVAL),
        };
        if !self.has_v4_2_operations() || i64::try_from(offset).is_err() {
            return call.error(Errno::NOSYS);
        }
        let fs = Arc::clone(&self.fs);
        let op = async move { fs.seek(&*fs.open_file(handle)?, offset, target).await };
        self.run(call, op, |call, found| call.reply(&Reply::Offset(found.min(i64::MAX as u64))));
    }

    pub(super) fn copy_file_range(&self, call: Call, copy: CopyFileRange) {
        if !self.has_v4_2_operations() {
            return call.error(Errno::NOSYS);
        }
        let CopyFileRange { source, handle, offset, has_long_reply } = copy;
        let fs = Arc::clone(&self.fs);
        let op = async move {
            let (from, to) = (fs.open_file(source.handle)?, fs.open_file(handle)?);
            fs.copy_file_range((&*from, source.offset), (&*to, offset), source.length).await
        };
        self.run_detached(call, op, move |call, copied| {
            call.reply(&if has_long_reply { Reply::Copied(copied.into()) } else { Reply::Written(copied) });
        });
    }
}
