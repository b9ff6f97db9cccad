//! Operations on locks.

use std::sync::Arc;

use millrace_fuse_protocol::{LockRequest, Reply};
use rustix::io::Errno;

use super::{FuseHandler, done};
use crate::{
    channel::Call,
    interrupt::End,
    locks::{OwnedRange, lock_kind, tested},
};

impl FuseHandler {
    pub(super) fn get_lock(&self, call: Call, lock: LockRequest) {
        let LockRequest { handle, owner, start, last, kind } = lock;
        let Ok(Some(kind)) = lock_kind(kind) else { return call.error(Errno::INVAL) };
        let (fs, range) = (Arc::clone(&self.fs), OwnedRange::new(owner, start, last));
        let tested_range = range.clone();
        let op = async move { fs.test_lock(&*fs.open_file(handle)?, range, kind).await };
        self.run(call, op, move |call, conflict| call.reply(&Reply::Lock(tested(conflict, &tested_range))));
    }

    pub(super) fn set_lock(&self, call: Call, lock: LockRequest, waits: bool) {
        let LockRequest { handle, owner, start, last, kind } = lock;
        let (fs, range) = (Arc::clone(&self.fs), OwnedRange::new(owner, start, last));
        match lock_kind(kind) {
            Ok(None) => {
                let op = async move { fs.unlock(&fs.open_file(handle)?.inode, range).await };
                self.run_detached(call, op, done);
            }
            Ok(Some(kind)) => {
                let op = async move { fs.lock(&*fs.open_file(handle)?, range, kind, waits).await };
                self.run_until(End::Signal, call, op, done);
            }
            Err(e) => call.error(e),
        }
    }
}
