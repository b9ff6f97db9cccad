//! Write coalescing, asynchronous WRITE calls, and error reporting.
//!
//! Adjacent writes to a file are coalesced in one buffer. It is sent when it is full, when a non-adjacent
//! write follows, when the file's data or attributes are requested, or after a second. A WRITE in flight
//! waits for earlier ones that it overlaps. Failures are counted, and each open description reports those
//! that it has not reported yet.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use millrace_buffer::Buffer;
use millrace_client::{
    Error,
    handles::{Client, File},
    ops::Wcc,
};
use millrace_fuse_session::channel::WriteData;
use millrace_runtime::{Instant, RuntimeExt};
use rustix::io::Errno;

use crate::{
    LostFile,
    error::errno,
    fs::Fs,
    inode::Inode,
    write_queue::{OutgoingWrite, PendingWrite},
};

/// Size of a file's first write buffer; later ones are up to four times the previous amount of data.
const INITIAL_BUFFER: usize = 64 << 10;
/// Bytes in flight above which writers block.
const MAX_IN_FLIGHT: usize = 32 << 20;
/// Maximum time that a write waits to be coalesced.
const MAX_DELAY: Duration = Duration::from_secs(1);
/// Maximum time before a COMMIT, as in Linux (`vm.dirty_expire_centisecs`). Until data is committed, this
/// client reads its own data even if another client has overwritten it.
const COMMIT_DELAY: Duration = Duration::from_secs(30);

/// A COMMIT in progress. If it is cancelled, its data still counts as uncommitted since the first write, and
/// the attributes as changed.
struct CommitGuard<'c> {
    fs: &'c Fs,
    inode: &'c Inode,
    first_unstable: Option<Instant>,
    is_done: bool,
}

impl CommitGuard<'_> {
    /// Records the replies, if there was a call. Returns whether data was written since the last COMMIT.
    fn finish(mut self, wcc: Option<&Wcc>) -> bool {
        self.is_done = true;
        if let Some(wcc) = wcc {
            self.inode.note_change(&self.fs.clock, wcc);
        }
        self.first_unstable.is_some()
    }
}

impl Drop for CommitGuard<'_> {
    fn drop(&mut self) {
        if self.is_done {
            return;
        }
        self.inode.note_unknown_change(&self.fs.clock);
        if let Some(since) = self.first_unstable {
            let mut w = self.inode.writes.lock();
            w.first_unstable = Some(w.first_unstable.map_or(since, |later| later.min(since)));
        }
    }
}

/// Where to write data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WritePosition {
    Offset(u64),
    /// At the end of the file, which the kernel assumes to be at this offset.
    Append(u64),
}

impl WritePosition {
    /// The offset according to the kernel.
    pub(crate) fn kernel_offset(self) -> u64 {
        match self {
            Self::Offset(offset) | Self::Append(offset) => offset,
        }
    }
}

/// An accepted write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct AcceptedWrite {
    /// The writer must wait for this WRITE, since too many bytes are in flight.
    pub(crate) flight: Option<u64>,
    /// The data was written at another offset than the kernel assumes.
    pub(crate) relocated: bool,
}

/// A buffer of `room` bytes that begins with `data`: that in which the data was received, if possible. `None` if there is
/// no memory.
fn new_buffer(client: &Client, room: usize, data: &mut WriteData<'_>) -> Option<Buffer> {
    data.take(room).or_else(|| {
        let mut buffer = client.buffer(room).ok()?;
        millrace_buffer::copy(&mut buffer, data);
        Some(buffer)
    })
}

impl Fs {
    /// Accepts write data, whose buffer it may take.
    ///
    /// # Errors
    /// [`Errno::NOMEM`] if no buffer is available; the data was not accepted.
    pub(crate) fn write(
        self: &Arc<Self>,
        inode: &Arc<Inode>,
        client: &Client,
        position: WritePosition,
        data: &mut WriteData<'_>,
    ) -> Result<AcceptedWrite, Errno> {
        let mut out = [None, None];
        let (offset, has_set_id) = {
            let mut w = inode.writes.lock();
            let offset = match position {
                WritePosition::Offset(offset) => offset,
                WritePosition::Append(_) => inode.size(),
            };
            let end = |offset: u64| offset.checked_add(data.len() as u64).ok_or(Errno::FBIG);
            let (end, kernel_end) = (end(offset)?, end(position.kernel_offset())?);
            if w.file.is_none() {
                w.file = Some(Arc::new(File::new(client.clone(), inode.handle)));
                self.dirty.lock().insert(inode.number, Arc::clone(inode));
            }
            w.first_unstable.get_or_insert_with(|| self.rt.now());
            if !w.merge(client, offset, data) {
                out[0] = w.start_pending();
                let max_size = client.wsize() as usize;
                let room = data.len().max(INITIAL_BUFFER.max(w.last_len * 4).min(max_size));
                let len = data.len();
                let Some(buffer) = new_buffer(client, room, data) else {
                    drop(w);
                    out.into_iter().flatten().for_each(|d| self.start_flight(inode, d));
                    return Err(Errno::NOMEM);
                };
                let caller = client.clone();
                w.pending = Some(PendingWrite { caller, offset, buffer, len, since: self.rt.now() });
            }
            if w.pending.as_ref().is_some_and(|g| g.len >= g.buffer.len()) {
                out[1] = w.start_pending();
            }
            (offset, inode.note_write(&self.clock, end, kernel_end))
        };
        if has_set_id && let Some(invalidator) = self.invalidator.get() {
            invalidator.invalidate_attributes(inode.number); // Otherwise the kernel would execute the new data with the old mode.
        }
        let last = out.iter().flatten().last().map(|d| d.number);
        out.into_iter().flatten().for_each(|d| self.start_flight(inode, d));
        let flight = last.filter(|_| self.in_flight_bytes.load(Ordering::Relaxed) > MAX_IN_FLIGHT);
        Ok(AcceptedWrite { flight, relocated: offset != position.kernel_offset() })
    }

    /// Waits for a WRITE in flight.
    pub(crate) async fn wait_for_flight(&self, inode: &Inode, flight: u64) {
        inode.writes.wait_until_none(|f| f.number <= flight).await;
    }

    fn start_flight(self: &Arc<Self>, inode: &Arc<Inode>, d: OutgoingWrite) {
        self.in_flight_bytes.fetch_add(d.data.len(), Ordering::Relaxed);
        let (fs, inode) = (Arc::clone(self), Arc::clone(inode));
        let flight = async move {
            let (len, number) = (d.data.len(), d.number);
            let range = d.offset..d.offset + len as u64;
            let w = &inode.writes;
            w.wait_until_none(|f| {
                f.number < number && f.range.start < range.end && range.start < f.range.end
            })
            .await;
            let file = w.lock().file.clone();
            let written = match file {
                Some(file) => {
                    file.write_from_as(&d.caller, d.offset, d.data.into()).await.map_err(|e| errno(&e))
                }
                None => Err(Errno::IO),
            };
            let wcc = written.unwrap_or_else(|e| {
                let file = fs.lost_file(&inode, e);
                tracing::warn!(%file, handle = %inode.handle, ?range, "data could not be written");
                w.record_failure(e, true);
                // The kernel's pages contain data that the server does not have.
                fs.apply_update(&inode, inode.invalidate_pages());
                Wcc::default()
            });
            inode.note_change(&fs.clock, &wcc);
            fs.in_flight_bytes.fetch_sub(len, Ordering::Relaxed);
            w.finish_flight(number);
        };
        self.rt.spawn("mount write", Box::pin(flight));
    }

    /// Sends the coalesced data and waits for all earlier writes.
    pub(crate) async fn write_back(self: &Arc<Self>, inode: &Arc<Inode>) {
        let (outgoing, next) = {
            let mut w = inode.writes.lock();
            (w.start_pending(), w.next_id)
        };
        if let Some(d) = outgoing {
            self.start_flight(inode, d);
        }
        inode.writes.wait_until_none(|f| f.number < next).await;
    }

    /// Commits all earlier writes; failures are recorded.
    ///
    /// # Errors
    /// Those of COMMIT: the data is retained, and a later commit retries. (Data whose WRITE failed is not
    /// retained.) [`Errno::IO`] until the owner of locks that the server has revoked unlocks.
    pub(crate) async fn commit(self: &Arc<Self>, inode: &Arc<Inode>) -> Result<(), Errno> {
        self.write_back(inode).await;
        let (file, first_unstable) = {
            let mut w = inode.writes.lock();
            (w.file.clone(), w.first_unstable.take())
        };
        let Some(file) = file else { return Ok(()) };
        let commit = CommitGuard { fs: self, inode, first_unstable, is_done: false };
        match file.commit_and_attributes().await {
            Ok(wcc) => {
                commit.finish(wcc.as_ref());
                Ok(())
            }
            // Not a failure of data: its loss was returned before.
            Err(e @ Error::LocksLost) => {
                commit.finish(None);
                Err(errno(&e))
            }
            Err(e) => {
                let (e, bytes) = (errno(&e), file.retained_bytes());
                let has_new_data = commit.finish(Some(&Wcc::default()));
                let file = self.lost_file(inode, e);
                tracing::warn!(%file, handle = %inode.handle, bytes, "data could not be committed");
                inode.writes.record_failure(e, has_new_data);
                Err(e)
            }
        }
    }

    /// Commits after the last close, and releases the file.
    pub(crate) async fn finish_writes(self: &Arc<Self>, inode: &Arc<Inode>) {
        let _ = self.commit(inode).await;
        let mut w = inode.writes.lock();
        let opened_again = inode.state.lock().open_count > 0;
        if w.pending.is_none() && w.flights.is_empty() && !opened_again {
            w.file = None;
            self.dirty.lock().remove(&inode.number);
            drop(w);
            self.record_loss(inode);
        }
    }

    /// Records a failure that was not reported to a program, for the report at unmount.
    fn record_loss(&self, inode: &Inode) {
        if let Some(e) = inode.writes.take_unreported() {
            self.lost.lock().insert(inode.number, self.lost_file(inode, e));
        }
    }

    /// Describes a failed file for messages.
    fn lost_file(&self, inode: &Inode, error: Errno) -> LostFile {
        LostFile { path: self.inodes.path(inode.number), number: inode.number, error }
    }

    /// Files whose data was lost without a program having been informed. Called at unmount: data still in
    /// flight counts as lost with TIMEDOUT.
    pub(crate) fn losses(&self) -> Vec<LostFile> {
        let writing: Vec<_> = self.dirty.lock().values().cloned().collect();
        for inode in writing {
            self.record_loss(&inode);
            let uncommitted = inode.writes.lock().file.as_ref().is_some_and(|f| f.retained_bytes() > 0);
            if uncommitted || !inode.writes.is_clean() {
                let file = self.lost_file(&inode, Errno::TIMEDOUT);
                self.lost.lock().entry(inode.number).or_insert(file);
            }
        }
        self.lost.lock().values().cloned().collect()
    }

    /// Number of files with uncommitted data, and the amount in bytes.
    pub(crate) fn pending(&self) -> (usize, usize) {
        let writing: Vec<_> = self.dirty.lock().values().cloned().collect();
        let bytes = |inode: &Arc<Inode>| {
            let w = inode.writes.lock();
            let pending_end = w.pending.as_ref().map_or(0, |g| g.len);
            let flying: u64 = w.flights.iter().map(|f| f.range.end - f.range.start).sum();
            pending_end + flying as usize + w.file.as_ref().map_or(0, |file| file.retained_bytes())
        };
        let bytes = writing.iter().map(bytes).filter(|b| *b > 0);
        bytes.fold((0, 0), |(files, sum), b| (files + 1, sum + b))
    }

    /// Every half second sends buffered data that is due, commits data that is due, and notifies waiting
    /// requests to check their callers. Runs forever.
    pub(crate) async fn run_timer(self: Arc<Self>) {
        loop {
            self.rt.sleep(MAX_DELAY / 2).await;
            self.send_old();
            self.commit_old();
            self.ticks.notify_waiters();
        }
    }

    /// Sends coalesced data that has waited for [`MAX_DELAY`].
    fn send_old(self: &Arc<Self>) {
        let now = self.rt.now();
        let writing: Vec<_> = self.dirty.lock().values().cloned().collect();
        for inode in writing {
            let outgoing = {
                let mut w = inode.writes.lock();
                let old = w.pending.as_ref().is_some_and(|g| now.duration_since(g.since) >= MAX_DELAY);
                if old { w.start_pending() } else { None }
            };
            if let Some(d) = outgoing {
                self.start_flight(&inode, d);
            }
        }
    }

    /// Commits data that has been uncommitted for [`COMMIT_DELAY`].
    fn commit_old(self: &Arc<Self>) {
        let now = self.rt.now();
        let is_old = |inode: &Arc<Inode>| {
            let written = inode.writes.lock().first_unstable;
            written.is_some_and(|since| now.duration_since(since) >= COMMIT_DELAY)
        };
        let writing: Vec<_> = self.dirty.lock().values().filter(|inode| is_old(inode)).cloned().collect();
        for inode in writing {
            let fs = Arc::clone(self);
            let commit = async move {
                let _ = fs.commit(&inode).await; // The next fsync or close returns a failure.
            };
            self.rt.spawn("mount commit", Box::pin(commit));
        }
    }

    /// Commits all files: at unmount, or to release memory.
    pub(crate) async fn commit_all(self: &Arc<Self>) {
        let writing: Vec<_> = self.dirty.lock().values().cloned().collect();
        futures::future::join_all(writing.iter().map(|inode| self.commit(inode))).await;
    }
}
