//! Writing: gathering, sending without waiting, and what became of it.
//!
//! A file's writes that follow each other are put together in one buffer, which is sent when it is full, when something
//! else is written, when somebody asks for the file, or after a second. What is on its way is a *flight*; a flight waits
//! for earlier ones that it overlaps. Failures are counted, and each open description is told of those that it has not
//! been told of.

use std::{
    ops::Range,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use millrace_buffer::{Buffer, View};
use millrace_client::{Client, File};
use millrace_nfs::v3::WccData;
use millrace_runtime::{Instant, RuntimeExt};
use parking_lot::Mutex;
use rustix::io::Errno;
use tokio::sync::Notify;

use crate::{LostFile, error::errno, fs::Fs, inode::Inode};

/// The first buffer of a file; later ones are up to four times what the last one held.
const INITIAL_BUFFER: usize = 64 << 10;
/// With so much on its way, writers wait.
const MAX_IN_FLIGHT: usize = 32 << 20;
/// How long data waits for more.
const MAX_DELAY: Duration = Duration::from_secs(1);
/// How long data stays unstable: as in Linux (`vm.dirty_expire_centisecs`). Until it is stable, this client's data hides
/// what another client has written to the same place.
const COMMIT_DELAY: Duration = Duration::from_secs(30);

struct PendingWrite {
    /// Who writes.
    caller: Client,
    offset: u64,
    buffer: Buffer,
    len: usize,
    since: Instant,
}

struct InFlightWrite {
    number: u64,
    range: Range<u64>,
}

#[derive(Default)]
struct Inner {
    /// Retains what is not yet committed; there from the first write to the last close.
    file: Option<File>,
    pending: Option<PendingWrite>,
    last_len: usize,
    flights: Vec<InFlightWrite>,
    next_id: u64,
    /// The first write since the last commit.
    first_unstable: Option<Instant>,
    failures: u64,
    /// Of them, so many were told to a program, by fsync or close.
    reported: u64,
    last_error: Option<Errno>,
}

/// The writing side of an inode.
#[derive(Default)]
pub(crate) struct WriteQueue {
    inner: Mutex<Inner>,
    flight_done: Notify,
}

/// Data that goes out, and the flight that it is.
struct OutgoingWrite {
    number: u64,
    caller: Client,
    offset: u64,
    data: View,
}

impl Inner {
    /// What is gathered becomes a flight.
    fn start_pending(&mut self) -> Option<OutgoingWrite> {
        let mut g = self.pending.take()?;
        self.last_len = g.len;
        g.buffer.set_len(g.len);
        let number = self.next_id;
        self.next_id += 1;
        self.flights.push(InFlightWrite { number, range: g.offset..g.offset + g.len as u64 });
        Some(OutgoingWrite { number, caller: g.caller, offset: g.offset, data: g.buffer.freeze() })
    }

    /// Puts `data` to what is gathered, if it overlaps or follows it, is the same caller's, and there is room.
    fn merge(&mut self, caller: &Client, offset: u64, data: &[u8]) -> bool {
        let Some(g) = self.pending.as_mut().filter(|g| g.caller.is_same_caller(caller)) else { return false };
        let Some(at) = offset.checked_sub(g.offset).and_then(|at| usize::try_from(at).ok()) else {
            return false;
        };
        let Some(room) = g.buffer.len().checked_sub(at).filter(|_| at <= g.len) else { return false };
        if data.len() > room {
            return false;
        }
        millrace_buffer::copy(&mut g.buffer[at..at + data.len()], data);
        g.len = g.len.max(at + data.len());
        true
    }
}

impl WriteQueue {
    /// Nothing is on its way or waits for it.
    pub(crate) fn is_clean(&self) -> bool {
        let w = self.inner.lock();
        w.pending.is_none() && w.flights.is_empty()
    }

    /// Whether it is clean, and the file that retains data, if there is one.
    pub(crate) fn for_read(&self) -> (bool, Option<File>) {
        let w = self.inner.lock();
        (w.pending.is_none() && w.flights.is_empty(), w.file.clone())
    }

    /// Something that was written may not be stable.
    pub(crate) fn is_unstable(&self) -> bool {
        let w = self.inner.lock();
        w.first_unstable.is_some() || w.file.as_ref().is_some_and(|f| f.retained_bytes() > 0)
    }

    /// Clean, and everything is stable.
    pub(crate) fn is_idle(&self) -> bool {
        self.is_clean() && self.inner.lock().file.is_none()
    }

    /// Where the data ends that the server has not acknowledged, and where the data ends that it may still lose.
    pub(crate) fn ends(&self) -> (Option<u64>, Option<u64>) {
        let w = self.inner.lock();
        let gathered = w.pending.as_ref().map(|g| g.offset + g.len as u64);
        let unwritten = w.flights.iter().map(|f| f.range.end).chain(gathered).max();
        (unwritten, w.file.as_ref().and_then(File::retained_end))
    }

    /// How many failures there were, and the last one.
    pub(crate) fn failures(&self) -> (u64, Option<Errno>) {
        let w = self.inner.lock();
        (w.failures, w.last_error)
    }

    /// A program was told of all failures up to this one.
    pub(crate) fn mark_reported(&self, failures: u64) {
        let mut w = self.inner.lock();
        w.reported = w.reported.max(failures);
    }

    /// The last failure, if there is one that no program was told of; it counts as told then.
    fn take_unreported(&self) -> Option<Errno> {
        let mut w = self.inner.lock();
        let unreported = w.failures > w.reported;
        w.reported = w.failures;
        w.last_error.filter(|_| unreported)
    }

    /// Counts a failure. `is_new`: of something else than what had failed before.
    fn record_failure(&self, e: Errno, is_new: bool) {
        let mut w = self.inner.lock();
        let all_reported = w.reported == w.failures;
        w.failures += 1;
        w.last_error = Some(e);
        if all_reported && !is_new {
            w.reported = w.failures;
        }
    }

    /// Waits until no flight is left of which `blocks` says that it matters.
    async fn wait_until_none(&self, blocks: impl Fn(&InFlightWrite) -> bool) {
        loop {
            let mut flight_done = std::pin::pin!(self.flight_done.notified());
            flight_done.as_mut().enable();
            if !self.inner.lock().flights.iter().any(&blocks) {
                return;
            }
            flight_done.await;
        }
    }
}

/// Where data is to be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WritePosition {
    /// At this offset.
    Offset(u64),
    /// At the end of the file, which for the kernel is here.
    Append(u64),
}

impl WritePosition {
    /// The kernel's offset.
    pub(crate) fn kernel_offset(self) -> u64 {
        match self {
            Self::Offset(offset) | Self::Append(offset) => offset,
        }
    }
}

/// What became of data that was taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct AcceptedWrite {
    /// So much is on its way that the writer is to wait for this flight.
    pub(crate) flight: Option<u64>,
    /// Elsewhere than where the kernel has it.
    pub(crate) relocated: bool,
}

impl Fs {
    /// Takes `data` to be written.
    ///
    /// # Errors
    /// [`Errno::NOMEM`] when there is no buffer; nothing was taken then.
    pub(crate) fn write(
        self: &Arc<Self>,
        inode: &Arc<Inode>,
        client: &Client,
        position: WritePosition,
        data: &[u8],
    ) -> Result<AcceptedWrite, Errno> {
        let mut out = [None, None];
        let (offset, has_set_id) = {
            let mut w = inode.writes.inner.lock();
            let offset = match position {
                WritePosition::Offset(offset) => offset,
                WritePosition::Append(_) => inode.size(),
            };
            let end = |offset: u64| offset.checked_add(data.len() as u64).ok_or(Errno::FBIG);
            let (end, kernel_end) = (end(offset)?, end(position.kernel_offset())?);
            if w.file.is_none() {
                w.file = Some(File::new(client.clone(), inode.handle));
                self.dirty.lock().insert(inode.number, Arc::clone(inode));
            }
            w.first_unstable.get_or_insert_with(|| self.rt.now());
            if !w.merge(client, offset, data) {
                out[0] = w.start_pending();
                let most = client.wsize() as usize;
                let room = data.len().max(INITIAL_BUFFER.max(w.last_len * 4).min(most));
                let Ok(mut buffer) = client.buffer(room) else {
                    drop(w);
                    out.into_iter().flatten().for_each(|d| self.start_flight(inode, d));
                    return Err(Errno::NOMEM);
                };
                millrace_buffer::copy(&mut buffer[..data.len()], data);
                let (caller, len) = (client.clone(), data.len());
                w.pending = Some(PendingWrite { caller, offset, buffer, len, since: self.rt.now() });
            }
            if w.pending.as_ref().is_some_and(|g| g.len >= g.buffer.len()) {
                out[1] = w.start_pending();
            }
            (offset, inode.note_write(&self.clock, end, kernel_end))
        };
        if has_set_id && let Some(invalidator) = self.invalidator.get() {
            invalidator.invalidate_attributes(inode.number); // Else it would execute the new data with the old mode.
        }
        let last = out.iter().flatten().last().map(|d| d.number);
        out.into_iter().flatten().for_each(|d| self.start_flight(inode, d));
        let flight = last.filter(|_| self.in_flight_bytes.load(Ordering::Relaxed) > MAX_IN_FLIGHT);
        Ok(AcceptedWrite { flight, relocated: offset != position.kernel_offset() })
    }

    /// Waits for a flight.
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
            let file = w.inner.lock().file.clone();
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
                // The kernel's pages have what the server does not.
                fs.apply_update(&inode, inode.invalidate_pages());
                WccData::default()
            });
            inode.note_change(&fs.clock, &wcc);
            w.inner.lock().flights.retain(|f| f.number != number);
            fs.in_flight_bytes.fetch_sub(len, Ordering::Relaxed);
            w.flight_done.notify_waiters();
        };
        self.rt.spawn("mount write", Box::pin(flight));
    }

    /// Sends what is gathered and waits for everything that was written before.
    pub(crate) async fn write_back(self: &Arc<Self>, inode: &Arc<Inode>) {
        let (departure, next) = {
            let mut w = inode.writes.inner.lock();
            (w.start_pending(), w.next_id)
        };
        if let Some(d) = departure {
            self.start_flight(inode, d);
        }
        inode.writes.wait_until_none(|f| f.number < next).await;
    }

    /// Makes everything stable that was written before; what fails is counted.
    ///
    /// # Errors
    /// Those of COMMIT: the data is retained, and a later commit tries again. (Data that failed to be written is not.)
    pub(crate) async fn commit(self: &Arc<Self>, inode: &Arc<Inode>) -> Result<(), Errno> {
        self.write_back(inode).await;
        let (file, written) = {
            let mut w = inode.writes.inner.lock();
            (w.file.clone(), w.first_unstable.take())
        };
        let Some(file) = file.filter(|f| f.retained_bytes() > 0) else { return Ok(()) };
        let done = file.commit_and_attributes().await.map_err(|e| errno(&e));
        if let Err(e) = done {
            let bytes = file.retained_bytes();
            let file = self.lost_file(inode, e);
            tracing::warn!(%file, handle = %inode.handle, bytes, "data could not be committed");
            inode.writes.record_failure(e, written.is_some());
        }
        inode.note_change(&self.clock, &done.unwrap_or_default());
        done.map(drop)
    }

    /// After the last close: commits, and lets the file go.
    pub(crate) async fn finish_writes(self: &Arc<Self>, inode: &Arc<Inode>) {
        let _ = self.commit(inode).await;
        let mut w = inode.writes.inner.lock();
        let opened_again = inode.state.lock().open_count > 0;
        if w.pending.is_none() && w.flights.is_empty() && !opened_again {
            w.file = None;
            self.dirty.lock().remove(&inode.number);
            drop(w);
            self.record_loss(inode);
        }
    }

    /// Remembers for the end what no program was told of.
    fn record_loss(&self, inode: &Inode) {
        if let Some(e) = inode.writes.take_unreported() {
            self.lost.lock().insert(inode.number, self.lost_file(inode, e));
        }
    }

    /// What went wrong with a file, for people.
    fn lost_file(&self, inode: &Inode, error: Errno) -> LostFile {
        LostFile { path: self.inodes.path(inode.number), number: inode.number, error }
    }

    /// Files whose data was lost without a program being told. For the end: what is still on its way counts as lost, as
    /// TIMEDOUT.
    pub(crate) fn losses(&self) -> Vec<LostFile> {
        let writing: Vec<_> = self.dirty.lock().values().cloned().collect();
        for inode in writing {
            self.record_loss(&inode);
            let retains = inode.writes.inner.lock().file.as_ref().is_some_and(|f| f.retained_bytes() > 0);
            if retains || !inode.writes.is_clean() {
                let file = self.lost_file(&inode, Errno::TIMEDOUT);
                self.lost.lock().entry(inode.number).or_insert(file);
            }
        }
        self.lost.lock().values().cloned().collect()
    }

    /// Files with data that is not stable, and its bytes.
    pub(crate) fn pending(&self) -> (usize, usize) {
        let writing: Vec<_> = self.dirty.lock().values().cloned().collect();
        let bytes = |inode: &Arc<Inode>| {
            let w = inode.writes.inner.lock();
            let gathered = w.pending.as_ref().map_or(0, |g| g.len);
            let flying: u64 = w.flights.iter().map(|f| f.range.end - f.range.start).sum();
            gathered + flying as usize + w.file.as_ref().map_or(0, File::retained_bytes)
        };
        let bytes = writing.iter().map(bytes).filter(|b| *b > 0);
        bytes.fold((0, 0), |(files, sum), b| (files + 1, sum + b))
    }

    /// Sends, every half second, what has waited for more for too long, and gives requests the beat at which they look at their
    /// callers. Goes on for ever.
    pub(crate) async fn run_timer(self: Arc<Self>) {
        loop {
            self.rt.sleep(MAX_DELAY / 2).await;
            self.send_old();
            self.commit_old();
            self.ticks.notify_waiters();
        }
    }

    /// Sends what has waited for more for too long.
    fn send_old(self: &Arc<Self>) {
        let now = self.rt.now();
        let writing: Vec<_> = self.dirty.lock().values().cloned().collect();
        for inode in writing {
            let departure = {
                let mut w = inode.writes.inner.lock();
                let old = w.pending.as_ref().is_some_and(|g| now.duration_since(g.since) >= MAX_DELAY);
                if old { w.start_pending() } else { None }
            };
            if let Some(d) = departure {
                self.start_flight(&inode, d);
            }
        }
    }

    /// Commits what has been unstable for too long.
    fn commit_old(self: &Arc<Self>) {
        let now = self.rt.now();
        let is_old = |inode: &Arc<Inode>| {
            let written = inode.writes.inner.lock().first_unstable;
            written.is_some_and(|since| now.duration_since(since) >= COMMIT_DELAY)
        };
        let writing: Vec<_> = self.dirty.lock().values().filter(|inode| is_old(inode)).cloned().collect();
        for inode in writing {
            let fs = Arc::clone(self);
            let commit = async move {
                let _ = fs.commit(&inode).await; // What fails is counted.
            };
            self.rt.spawn("mount commit", Box::pin(commit));
        }
    }

    /// Commits everything: at the end, or to have memory back.
    pub(crate) async fn commit_all(self: &Arc<Self>) {
        let writing: Vec<_> = self.dirty.lock().values().cloned().collect();
        futures::future::join_all(writing.iter().map(|inode| self.commit(inode))).await;
    }
}
