//! Operations on locks.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use millrace_fuse_session::{
    channel::Call,
    interrupt::End,
    protocol::{LockRequest, Reply},
};
use rustix::io::Errno;

use super::{FuseHandler, done};
use crate::locks::{HeldRange, lock_kind, tested};

impl FuseHandler {
    pub(super) fn get_lock(&self, call: Call, lock: LockRequest) {
        let Ok(Some(kind)) = lock_kind(lock.kind) else { return call.error(Errno::INVAL) };
        let (fs, range) = (Arc::clone(&self.fs), HeldRange::new(&lock));
        let tested_range = range.clone();
        let op = async move { fs.test_lock(&*fs.open_file(lock.handle)?, range, kind).await };
        self.run(call, op, move |call, conflict| call.reply(&Reply::Lock(tested(conflict, &tested_range))));
    }

    pub(super) fn set_lock(&self, call: Call, lock: LockRequest, waits: bool) {
        let fs = Arc::clone(&self.fs);
        let (file, kind) = match (fs.open_file(lock.handle), lock_kind(lock.kind)) {
            (Ok(file), Ok(kind)) => (file, kind),
            (Err(e), _) | (_, Err(e)) => return call.error(e),
        };
        let HeldRange { holder, range } = HeldRange::new(&lock);
        let inode = Arc::clone(&file.inode);
        let done = move |call: Call, ()| {
            inode.note_caller(call.tid());
            done(call, ());
        };
        let Some(kind) = kind else {
            let Some(unlocking) = file.inode.locks.begin_unlock(holder) else { return done(call, ()) };
            let op = async move { fs.unlock(&file.inode, unlocking, range).await };
            return self.run_detached(call, op, done);
        };
        let granted = Arc::new(AtomicBool::new(false));
        let end = End::Signal { unless: Arc::clone(&granted) };
        let op = async move {
            fs.lock((&file, lock.handle), HeldRange { holder, range }, (kind, waits)).await?;
            granted.store(true, Ordering::Relaxed);
            fs.drop_unlocked_pages(&file).await;
            Ok(())
        };
        self.run_until(end, call, op, done);
    }
}
