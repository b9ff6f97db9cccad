//! Writes to a file: their order, and the data that is kept until the server has it in stable storage.

use std::{
    collections::HashMap,
    future::Future,
    ops::Range,
    sync::{Arc, Weak},
};

use futures::{StreamExt, stream};
use millrace_buffer::Views;
use millrace_nfs::v3::{FileHandle, StableHow, WccData};
use millrace_runtime::Uncancelled;
use parking_lot::Mutex;

use super::{
    Client, Written,
    ranges::RangeLocks,
    retained::{Piece, Retained},
};
use crate::{Error, pool::Attempt, stats::add};

/// WRITEs in flight while lost data is written again.
const REWRITES: usize = 8;

/// The files that are open through [`super::File`], by handle.
#[derive(Default)]
pub(crate) struct OpenFiles(Mutex<HashMap<FileHandle, Weak<Writeback>>>);

impl OpenFiles {
    /// The state of a file, if it is open.
    pub(crate) fn get(&self, handle: FileHandle) -> Option<Arc<Writeback>> {
        let files = self.0.lock();
        // Programs that move data by handle have no open files, or few: they pay no hash then.
        if files.is_empty() { None } else { files.get(&handle)?.upgrade() }
    }
}

/// What all [`super::File`]s of one file share, so that none of them replaces what another has written.
pub(crate) struct Writeback {
    pub(crate) client: Client,
    pub(crate) handle: FileHandle,
    retained: Mutex<Retained>,
    /// Held over each call that changes data, so that the server executes calls on overlapping ranges in the order in
    /// which they are acknowledged.
    ranges: RangeLocks,
    /// Held over a commit.
    committing: futures::lock::Mutex<()>,
}

impl Drop for Writeback {
    fn drop(&mut self) {
        let bytes = self.retained.get_mut().bytes();
        if bytes > 0 {
            tracing::warn!(bytes, file = %self.handle, "a file was dropped before its data was committed");
        }
        let mut files = self.client.shared.open_files.0.lock();
        if files.get(&self.handle).is_some_and(|f| f.strong_count() == 0) {
            files.remove(&self.handle);
        }
    }
}

/// The attributes before and after calls of which `next` is the last one.
fn join(wcc: Option<WccData>, next: WccData) -> WccData {
    wcc.map_or(next, |wcc| wcc.then(next))
}

/// The range of `len` bytes at `offset`.
fn range(offset: u64, len: usize) -> Result<Range<u64>, Error> {
    let end = offset.checked_add(len as u64);
    end.map(|end| offset..end).ok_or_else(|| Error::InvalidInput("the range ends beyond 2^64 bytes".into()))
}

impl Writeback {
    /// The state of the file with this handle.
    pub(crate) fn open(client: Client, handle: FileHandle) -> Arc<Self> {
        let shared = Arc::clone(&client.shared);
        let mut files = shared.open_files.0.lock();
        if let Some(open) = files.get(&handle).and_then(Weak::upgrade) {
            return open;
        }
        let new = Arc::new(Self {
            client,
            handle,
            retained: Mutex::default(),
            ranges: RangeLocks::default(),
            committing: Default::default(),
        });
        files.insert(handle, Arc::downgrade(&new));
        new
    }

    /// The data that is retained.
    pub(crate) fn retained(&self) -> parking_lot::MutexGuard<'_, Retained> {
        self.retained.lock()
    }

    /// Writes all of `data` as `caller`, UNSTABLE, in calls one after the other; commits when too much is retained.
    /// Gives the file before and after the calls. Dropping the future does not stop the call that is in flight.
    pub(crate) async fn write(
        self: &Arc<Self>,
        caller: &Client,
        offset: u64,
        data: Views,
    ) -> Result<WccData, Error> {
        let limit = self.client.options().unstable_limit;
        let (mut done, mut wcc) = (0, None);
        while done < data.len() {
            let part = data.slice(done, (data.len() - done).min(caller.wsize() as usize));
            let range = range(range(offset, done)?.end, part.len())?;
            let (this, caller) = (Arc::clone(self), caller.clone());
            let write = async move {
                let _lock = this.ranges.lock(range.clone()).await;
                this.write_locked(&caller, range.start, part).await
            };
            let written = Uncancelled::new(self.client.runtime(), "write", write).await?;
            wcc = Some(join(wcc, written.wcc));
            done += written.count;
            if self.retained().memory() > limit {
                self.commit().await?;
            }
        }
        Ok(wcc.unwrap_or_default())
    }

    /// One WRITE, UNSTABLE, of data whose range is locked; retains what it wrote.
    async fn write_locked(&self, caller: &Client, offset: u64, data: Views) -> Result<Written, Error> {
        let written = caller.write_call(self.handle, offset, data.clone(), StableHow::Unstable).await?;
        let data = data.slice(0, written.count);
        let mut retained = self.retained();
        if written.committed == StableHow::Unstable {
            retained.replace(caller, (offset, data), written.verifier);
        } else {
            retained.cut(&range(offset, written.count)?);
        }
        Ok(written)
    }

    /// Makes a call that changes data of `range` and needs no retaining here; nothing else changes the range meanwhile.
    /// `changed` is the range that it changed. Dropping the future does not stop the call.
    pub(crate) fn replace<T: Send + 'static>(
        self: Arc<Self>,
        range: Range<u64>,
        call: impl Future<Output = Result<T, Error>> + Send + 'static,
        changed: impl FnOnce(&T) -> Range<u64> + Send + 'static,
    ) -> impl Future<Output = Result<T, Error>> + Send {
        let rt = self.client.runtime().clone();
        Uncancelled::new(&rt, "change data", async move {
            let _lock = self.ranges.lock(range).await;
            let done = call.await?;
            self.retained().cut(&changed(&done));
            Ok(done)
        })
    }

    /// Makes everything stable that was acknowledged before. Gives the file before and after the calls that it took.
    pub(crate) async fn commit(self: &Arc<Self>) -> Result<WccData, Error> {
        let _one = self.committing.lock().await;
        let mut attempt = Attempt::new(&self.client.shared.pool, "COMMIT");
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
                self.pause(&mut attempt, losses).await?;
            }
            wcc = self.rewrite(lost, wcc).await?;
        }
        Ok(wcc.unwrap_or_default())
    }

    /// Waits before data is written again that was lost again.
    async fn pause(&self, attempt: &mut Attempt<'_>, times: u32) -> Result<(), Error> {
        let server = self.client.server().to_owned();
        attempt.pause("the server lost data again".into()).await.map_err(|e| match e {
            Error::Unreachable { .. } => Error::Unstable { server, times },
            other => other,
        })
    }

    /// Writes lost pieces again, each to its end whatever becomes of the others.
    async fn rewrite(
        self: &Arc<Self>,
        lost: Vec<Piece>,
        wcc: Option<WccData>,
    ) -> Result<Option<WccData>, Error> {
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

    /// Writes again what newer data has not replaced of a piece.
    async fn rewrite_piece(&self, piece: &Piece) -> Result<Option<WccData>, Error> {
        let _lock = self.ranges.lock(piece.range()).await;
        let left = self.retained().left_of(piece);
        let mut wcc = None;
        for Piece { offset, data, caller, .. } in left {
            add(&self.client.shared.pool.counts.rewritten, data.len());
            let mut done = 0;
            while done < data.len() {
                let part = data.slice(done, (data.len() - done).min(caller.wsize() as usize));
                let written = self.write_locked(&caller, offset + done as u64, part).await?;
                wcc = Some(join(wcc, written.wcc));
                done += written.count;
            }
        }
        Ok(wcc)
    }
}
