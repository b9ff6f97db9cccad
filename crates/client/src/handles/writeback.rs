//! Writes to a file: their order, and retention of the data until it is on stable storage of the server.

use std::{
    cmp::Reverse,
    collections::HashMap,
    future::Future,
    ops::Range,
    sync::{
        Arc, OnceLock, Weak,
        atomic::{AtomicUsize, Ordering},
    },
};

use futures::{StreamExt, stream};
use millrace_buffer::Views;
use millrace_runtime::{RangeLocks, Uncancelled, sync::Mutex};

use super::{
    Client, Written,
    retained::{Piece, Retained},
};
use crate::{
    Error,
    ops::{FileHandle, LockEpoch, StableHow, Wcc},
    pool::Retry,
    stats::add,
    v4::FileLocks,
};

/// The data that all files retain is limited to the client's memory divided by this number.
const RETAINED_FRACTION: usize = 2;

/// Maximum number of WRITEs in flight while lost data is rewritten.
const REWRITES: usize = 8;

/// The files that are open through [`super::File`], by handle.
#[derive(Default)]
pub(crate) struct OpenFiles {
    files: Mutex<HashMap<FileHandle, Weak<Writeback>>>,
    /// The memory of the retained data of all files.
    retained: Arc<AtomicUsize>,
}

impl OpenFiles {
    /// Returns the state of a file, if it is open.
    pub(crate) fn get(&self, handle: FileHandle) -> Option<Arc<Writeback>> {
        let files = self.files.lock();
        // Avoid the hash for programs that transfer data by handle and have no open files.
        if files.is_empty() { None } else { files.get(&handle)?.upgrade() }
    }

    /// The files, those that retain the most data first.
    fn by_retained_data(&self) -> Vec<Arc<Writeback>> {
        // The last reference to a file locks `files` when it is dropped, so all are kept until after the statement.
        let mut files: Vec<_> = self.files.lock().values().filter_map(Weak::upgrade).collect();
        files.sort_by_cached_key(|file| Reverse(file.retained().memory()));
        files
    }
}

/// State that all [`super::File`]s of one file share, so that none of them replaces newer data of another.
pub(crate) struct Writeback {
    pub(crate) client: Client,
    pub(crate) handle: FileHandle,
    retained: Mutex<Retained>,
    /// Held during each call that changes data, so that the server executes calls on overlapping ranges in
    /// the order of their replies.
    ranges: RangeLocks,
    /// Held during a commit.
    committing: futures::lock::Mutex<()>,
    /// The locks of the file, which are released with it.
    locks: OnceLock<Arc<FileLocks>>,
}

impl Drop for Writeback {
    fn drop(&mut self) {
        let bytes = self.retained.get_mut().bytes();
        if bytes > 0 {
            tracing::warn!(bytes, file = %self.handle, "a file was dropped with uncommitted data");
        }
        let mut files = self.client.shared.open_files.files.lock();
        if files.get(&self.handle).is_some_and(|f| f.strong_count() == 0) {
            files.remove(&self.handle);
        }
    }
}

/// Combines attributes with those of the following call, `next`.
fn join(wcc: Option<Wcc>, next: Wcc) -> Wcc {
    wcc.map_or(next, |wcc| wcc.then(next))
}

/// The range of `len` bytes at `offset`.
fn range(offset: u64, len: usize) -> Result<Range<u64>, Error> {
    let end = offset.checked_add(len as u64);
    end.map(|end| offset..end).ok_or_else(|| Error::InvalidInput("the range exceeds 2^64 bytes".into()))
}

impl Client {
    /// Commits files while all together retain more than half of the client's memory.
    async fn limit_retained_data(&self) {
        let (open, limit) = (&self.shared.open_files, self.options().arena_limit / RETAINED_FRACTION);
        let exceeds = || open.retained.load(Ordering::Relaxed) > limit;
        if !exceeds() {
            return;
        }
        for file in open.by_retained_data() {
            if !exceeds() {
                return;
            }
            // A file whose commit fails keeps its data, and its own next commit returns the error.
            let _ = file.commit().await;
        }
    }

    /// Waits before data is written again that the server has lost `times` times.
    pub(super) async fn pause_after_loss(&self, retry: &mut Retry<'_>, times: u32) -> Result<(), Error> {
        let server = self.server().to_owned();
        retry.pause("the server lost data again").await.map_err(|e| match e {
            Error::Unreachable { .. } => Error::Unstable { server, times },
            other => other,
        })
    }
}

impl Writeback {
    /// Returns the state of the file with this handle.
    pub(crate) fn open(client: Client, handle: FileHandle) -> Arc<Self> {
        let shared = Arc::clone(&client.shared);
        let mut files = shared.open_files.files.lock();
        if let Some(open) = files.get(&handle).and_then(Weak::upgrade) {
            return open;
        }
        let new = Arc::new(Self {
            client,
            handle,
            retained: Mutex::new(Retained::counted_in(&shared.open_files.retained)),
            ranges: RangeLocks::default(),
            committing: Default::default(),
            locks: OnceLock::new(),
        });
        files.insert(handle, Arc::downgrade(&new));
        new
    }

    /// The locks of the file; `None` with NFSv3.
    pub(crate) fn locks(&self) -> Option<&Arc<FileLocks>> {
        let session = self.client.session()?;
        let new = || FileLocks::of(session, self.handle.as_bytes(), self.client.credential());
        Some(self.locks.get_or_init(new))
    }

    /// Checks that the server has not revoked locks of the file. Returns the epoch of the operation that begins.
    pub(crate) fn check_locks(&self) -> Result<LockEpoch, Error> {
        self.locks.get().map_or(Ok(LockEpoch::UNLOCKED), |locks| locks.begin())
    }

    /// The epoch of the file's locks.
    fn epoch(&self) -> LockEpoch {
        self.locks.get().map_or(LockEpoch::UNLOCKED, |locks| locks.epoch())
    }

    /// The retained data of the current epoch.
    pub(crate) fn retained(&self) -> millrace_runtime::sync::MutexGuard<'_, Retained> {
        let mut retained = self.retained.lock();
        retained.begin_epoch(self.epoch());
        retained
    }

    /// Writes all of `data` with the credentials of `caller`, UNSTABLE, in sequential calls. Commits if the
    /// retained data exceeds the limit. Returns the attributes before and after the calls. Dropping the
    /// future does not cancel the call in flight.
    pub(crate) async fn write(
        self: &Arc<Self>,
        caller: &Client,
        offset: u64,
        data: Views,
    ) -> Result<Wcc, Error> {
        let since = self.check_locks()?;
        let limit = self.client.options().unstable_limit;
        let (mut done, mut wcc) = (0, None);
        while done < data.len() {
            let part = data.slice(done, (data.len() - done).min(caller.wsize() as usize));
            let range = range(range(offset, done)?.end, part.len())?;
            let (this, caller) = (Arc::clone(self), caller.clone());
            let write = async move {
                let _lock = RangeLocks::lock(&this.ranges, range.clone(), true).await;
                this.write_locked(&caller, range.start, part, since).await
            };
            let written = Uncancelled::new(self.client.runtime(), "write", write).await?;
            wcc = Some(join(wcc, written.wcc));
            done += written.count;
            if self.retained().memory() > limit {
                self.commit().await?;
            }
            self.client.limit_retained_data().await;
        }
        Ok(wcc.unwrap_or_default())
    }

    /// Sends one UNSTABLE WRITE of data of the epoch `since`, whose range is locked, and retains the written data.
    async fn write_locked(
        &self,
        caller: &Client,
        offset: u64,
        data: Views,
        since: LockEpoch,
    ) -> Result<Written, Error> {
        let written =
            caller.write_call(self.handle, offset, data.clone(), StableHow::Unstable, Some(since)).await?;
        let data = data.slice(0, written.count);
        let mut retained = self.retained();
        // A later loss begins another epoch of `retained`.
        self.locks.get().map_or(Ok(()), |locks| locks.check(since))?;
        if written.committed == StableHow::Unstable {
            retained.replace(caller, (offset, data), written.verifier);
        } else {
            retained.cut(&range(offset, written.count)?);
        }
        Ok(written)
    }

    /// Makes a call that changes data of `range` without retaining it. The range is locked during the call.
    /// `changed` is the changed range. Dropping the future does not cancel the call.
    pub(crate) fn replace<T: Send + 'static>(
        self: Arc<Self>,
        range: Range<u64>,
        call: impl Future<Output = Result<T, Error>> + Send + 'static,
        changed: impl FnOnce(&T) -> Range<u64> + Send + 'static,
    ) -> impl Future<Output = Result<T, Error>> + Send {
        let rt = self.client.runtime().clone();
        Uncancelled::new(&rt, "change data", async move {
            let _lock = RangeLocks::lock(&self.ranges, range, true).await;
            let done = call.await?;
            self.retained().cut(&changed(&done));
            Ok(done)
        })
    }

    /// Makes all acknowledged data stable, or discards it: nothing of it is written later. For the end of a lock.
    pub(crate) async fn commit_or_discard(self: &Arc<Self>) -> Result<(), Error> {
        let committed = self.commit().await;
        if committed.is_err() {
            self.retained().discard();
        }
        committed.map(drop)
    }

    /// Makes all acknowledged data stable. Returns the attributes before and after the calls, if it made some.
    pub(crate) async fn commit(self: &Arc<Self>) -> Result<Option<Wcc>, Error> {
        let _one = self.committing.lock().await;
        let mut retry = Retry::new(&self.client.shared.pool, "COMMIT");
        let (mut losses, mut wcc) = (0, None);
        loop {
            let Some(to) = self.retained().to_commit() else { break };
            let ok = to.caller.commit(self.handle, 0, 0).await?;
            wcc = Some(join(wcc, ok.file));
            let lost = self.retained().committed(to.before, ok.verifier);
            if to.verifiers.iter().all(|v| *v == ok.verifier) {
                break;
            }
            losses += 1;
            if losses > 1 {
                self.client.pause_after_loss(&mut retry, losses).await?;
            }
            wcc = self.rewrite(lost, wcc).await?;
        }
        Ok(wcc)
    }

    /// Rewrites lost pieces. Continues with the others after an error of one.
    async fn rewrite(self: &Arc<Self>, lost: Vec<Piece>, wcc: Option<Wcc>) -> Result<Option<Wcc>, Error> {
        let rewrites = lost.into_iter().map(|piece| {
            let this = Arc::clone(self);
            Uncancelled::new(
                self.client.runtime(),
                "rewrite",
                async move { this.rewrite_piece(&piece).await },
            )
        });
        let ended: Vec<Result<_, Error>> = stream::iter(rewrites).buffered(REWRITES).collect().await;
        ended.into_iter().try_fold(wcc, |wcc, next| Ok(next?.map(|next| join(wcc, next)).or(wcc)))
    }

    /// Rewrites the parts of a piece that newer data has not replaced.
    async fn rewrite_piece(&self, piece: &Piece) -> Result<Option<Wcc>, Error> {
        let _lock = RangeLocks::lock(&self.ranges, piece.range(), true).await;
        let since = self.check_locks()?;
        let left = self.retained().left_of(piece);
        let mut wcc = None;
        for Piece { offset, data, caller, .. } in left {
            add(&self.client.shared.pool.counts.rewritten, data.len());
            let mut done = 0;
            while done < data.len() {
                let part = data.slice(done, (data.len() - done).min(caller.wsize() as usize));
                let written = self.write_locked(&caller, offset + done as u64, part, since).await?;
                wcc = Some(join(wcc, written.wcc));
                done += written.count;
            }
        }
        Ok(wcc)
    }
}
