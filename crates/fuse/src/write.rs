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
const FIRST: usize = 64 << 10;
/// With so much on its way, writers wait.
const MOST_FLYING: usize = 32 << 20;
/// How long data waits for more.
const PATIENCE: Duration = Duration::from_secs(1);
/// How long data stays unstable: as in Linux (`vm.dirty_expire_centisecs`). Until it is stable, this client's data hides
/// what another client has written to the same place.
const UNSTABLE: Duration = Duration::from_secs(30);

struct Gather {
    /// Who writes.
    caller: Client,
    offset: u64,
    buffer: Buffer,
    filled: usize,
    since: Instant,
}

struct Flight {
    number: u64,
    range: Range<u64>,
}

#[derive(Default)]
struct Inner {
    /// Retains what is not yet committed; there from the first write to the last close.
    file: Option<File>,
    gather: Option<Gather>,
    last_filled: usize,
    flights: Vec<Flight>,
    next: u64,
    /// The first write since the last commit.
    written: Option<Instant>,
    failures: u64,
    /// Of them, so many were told to a program, by fsync or close.
    told: u64,
    last: Option<Errno>,
}

/// The writing side of an inode.
#[derive(Default)]
pub(crate) struct Writes {
    inner: Mutex<Inner>,
    landed: Notify,
}

/// Data that goes out, and the flight that it is.
struct Departure {
    number: u64,
    caller: Client,
    offset: u64,
    data: View,
}

impl Inner {
    /// What is gathered becomes a flight.
    fn launch(&mut self) -> Option<Departure> {
        let mut g = self.gather.take()?;
        self.last_filled = g.filled;
        g.buffer.set_len(g.filled);
        let number = self.next;
        self.next += 1;
        self.flights.push(Flight { number, range: g.offset..g.offset + g.filled as u64 });
        Some(Departure { number, caller: g.caller, offset: g.offset, data: g.buffer.freeze() })
    }

    /// Puts `data` to what is gathered, if it overlaps or follows it, is the same caller's, and there is room.
    fn join(&mut self, caller: &Client, offset: u64, data: &[u8]) -> bool {
        let Some(g) = self.gather.as_mut().filter(|g| g.caller.is_same_caller(caller)) else { return false };
        let Some(at) = offset.checked_sub(g.offset).and_then(|at| usize::try_from(at).ok()) else {
            return false;
        };
        let Some(room) = g.buffer.len().checked_sub(at).filter(|_| at <= g.filled) else { return false };
        if data.len() > room {
            return false;
        }
        millrace_buffer::copy(&mut g.buffer[at..at + data.len()], data);
        g.filled = g.filled.max(at + data.len());
        true
    }
}

impl Writes {
    /// Nothing is on its way or waits for it.
    pub(crate) fn is_clean(&self) -> bool {
        let w = self.inner.lock();
        w.gather.is_none() && w.flights.is_empty()
    }

    /// Whether it is clean, and the file that retains data, if there is one.
    pub(crate) fn for_read(&self) -> (bool, Option<File>) {
        let w = self.inner.lock();
        (w.gather.is_none() && w.flights.is_empty(), w.file.clone())
    }

    /// Something that was written may not be stable.
    pub(crate) fn is_unstable(&self) -> bool {
        let w = self.inner.lock();
        w.written.is_some() || w.file.as_ref().is_some_and(|f| f.retained_bytes() > 0)
    }

    /// Clean, and everything is stable.
    pub(crate) fn is_idle(&self) -> bool {
        self.is_clean() && self.inner.lock().file.is_none()
    }

    /// Where the data ends that the server has not acknowledged, and where the data ends that it may still lose.
    pub(crate) fn ends(&self) -> (Option<u64>, Option<u64>) {
        let w = self.inner.lock();
        let gathered = w.gather.as_ref().map(|g| g.offset + g.filled as u64);
        let unwritten = w.flights.iter().map(|f| f.range.end).chain(gathered).max();
        (unwritten, w.file.as_ref().and_then(File::retained_end))
    }

    /// How many failures there were, and the last one.
    pub(crate) fn failures(&self) -> (u64, Option<Errno>) {
        let w = self.inner.lock();
        (w.failures, w.last)
    }

    /// A program was told of all failures up to this one.
    pub(crate) fn told(&self, failures: u64) {
        let mut w = self.inner.lock();
        w.told = w.told.max(failures);
    }

    /// The last failure, if there is one that no program was told of; it counts as told then.
    fn take_untold(&self) -> Option<Errno> {
        let mut w = self.inner.lock();
        let untold = w.failures > w.told;
        w.told = w.failures;
        w.last.filter(|_| untold)
    }

    /// Counts a failure. `is_news`: of something else than what had failed before.
    fn fail(&self, e: Errno, is_news: bool) {
        let mut w = self.inner.lock();
        let all_told = w.told == w.failures;
        w.failures += 1;
        w.last = Some(e);
        if all_told && !is_news {
            w.told = w.failures;
        }
    }

    /// Waits until no flight is left of which `still` says that it matters.
    async fn wait(&self, still: impl Fn(&Flight) -> bool) {
        loop {
            let mut landed = std::pin::pin!(self.landed.notified());
            landed.as_mut().enable();
            if !self.inner.lock().flights.iter().any(&still) {
                return;
            }
            landed.await;
        }
    }
}

/// Where data is to be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// At this offset.
    At(u64),
    /// At the end of the file, which for the kernel is here.
    End(u64),
}

impl Place {
    /// The kernel's offset.
    pub(crate) fn kernel(self) -> u64 {
        match self {
            Self::At(offset) | Self::End(offset) => offset,
        }
    }
}

/// What became of data that was taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Taken {
    /// So much is on its way that the writer is to wait for this flight.
    pub(crate) flight: Option<u64>,
    /// Elsewhere than where the kernel has it.
    pub(crate) is_moved: bool,
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
        place: Place,
        data: &[u8],
    ) -> Result<Taken, Errno> {
        let mut out = [None, None];
        let (offset, has_set_id) = {
            let mut w = inode.writes.inner.lock();
            let offset = match place {
                Place::At(offset) => offset,
                Place::End(_) => inode.size(),
            };
            let end = |offset: u64| offset.checked_add(data.len() as u64).ok_or(Errno::FBIG);
            let (end, kernel_end) = (end(offset)?, end(place.kernel())?);
            if w.file.is_none() {
                w.file = Some(File::new(client.clone(), inode.handle));
                self.writing.lock().insert(inode.number, Arc::clone(inode));
            }
            w.written.get_or_insert_with(|| self.rt.now());
            if !w.join(client, offset, data) {
                out[0] = w.launch();
                let most = client.wsize() as usize;
                let room = data.len().max(FIRST.max(w.last_filled * 4).min(most));
                let Ok(mut buffer) = client.buffer(room) else {
                    drop(w);
                    out.into_iter().flatten().for_each(|d| self.depart(inode, d));
                    return Err(Errno::NOMEM);
                };
                millrace_buffer::copy(&mut buffer[..data.len()], data);
                let (caller, filled) = (client.clone(), data.len());
                w.gather = Some(Gather { caller, offset, buffer, filled, since: self.rt.now() });
            }
            if w.gather.as_ref().is_some_and(|g| g.filled >= g.buffer.len()) {
                out[1] = w.launch();
            }
            (offset, inode.wrote(&self.clock, end, kernel_end))
        };
        if has_set_id && let Some(notices) = self.notices.get() {
            notices.attributes(inode.number); // Else it would execute the new data with the old mode.
        }
        let last = out.iter().flatten().last().map(|d| d.number);
        out.into_iter().flatten().for_each(|d| self.depart(inode, d));
        let flight = last.filter(|_| self.flying.load(Ordering::Relaxed) > MOST_FLYING);
        Ok(Taken { flight, is_moved: offset != place.kernel() })
    }

    /// Waits for a flight.
    pub(crate) async fn landed(&self, inode: &Inode, flight: u64) {
        inode.writes.wait(|f| f.number <= flight).await;
    }

    fn depart(self: &Arc<Self>, inode: &Arc<Inode>, d: Departure) {
        self.flying.fetch_add(d.data.len(), Ordering::Relaxed);
        let (fs, inode) = (Arc::clone(self), Arc::clone(inode));
        let flight = async move {
            let (len, number) = (d.data.len(), d.number);
            let range = d.offset..d.offset + len as u64;
            let w = &inode.writes;
            w.wait(|f| f.number < number && f.range.start < range.end && range.start < f.range.end).await;
            let file = w.inner.lock().file.clone();
            let written = match file {
                Some(file) => {
                    file.write_from_as(&d.caller, d.offset, d.data.into()).await.map_err(|e| errno(&e))
                }
                None => Err(Errno::IO),
            };
            let wcc = written.unwrap_or_else(|e| {
                let file = fs.file(&inode, e);
                tracing::warn!(%file, handle = %inode.handle, ?range, "data could not be written");
                w.fail(e, true);
                // The kernel's pages have what the server does not.
                fs.drop_cached(&inode, inode.spoil());
                WccData::default()
            });
            inode.changed_by(&fs.clock, &wcc);
            w.inner.lock().flights.retain(|f| f.number != number);
            fs.flying.fetch_sub(len, Ordering::Relaxed);
            w.landed.notify_waiters();
        };
        self.rt.spawn("mount write", Box::pin(flight));
    }

    /// Sends what is gathered and waits for everything that was written before.
    pub(crate) async fn settle(self: &Arc<Self>, inode: &Arc<Inode>) {
        let (departure, next) = {
            let mut w = inode.writes.inner.lock();
            (w.launch(), w.next)
        };
        if let Some(d) = departure {
            self.depart(inode, d);
        }
        inode.writes.wait(|f| f.number < next).await;
    }

    /// Makes everything stable that was written before; what fails is counted.
    ///
    /// # Errors
    /// Those of COMMIT: the data is retained, and a later commit tries again. (Data that failed to be written is not.)
    pub(crate) async fn commit(self: &Arc<Self>, inode: &Arc<Inode>) -> Result<(), Errno> {
        self.settle(inode).await;
        let (file, written) = {
            let mut w = inode.writes.inner.lock();
            (w.file.clone(), w.written.take())
        };
        let Some(file) = file.filter(|f| f.retained_bytes() > 0) else { return Ok(()) };
        let done = file.commit_and_attributes().await.map_err(|e| errno(&e));
        if let Err(e) = done {
            let bytes = file.retained_bytes();
            let file = self.file(inode, e);
            tracing::warn!(%file, handle = %inode.handle, bytes, "data could not be committed");
            inode.writes.fail(e, written.is_some());
        }
        inode.changed_by(&self.clock, &done.unwrap_or_default());
        done.map(drop)
    }

    /// After the last close: commits, and lets the file go.
    pub(crate) async fn finish(self: &Arc<Self>, inode: &Arc<Inode>) {
        let _ = self.commit(inode).await;
        let mut w = inode.writes.inner.lock();
        let opened_again = inode.state.lock().opens > 0;
        if w.gather.is_none() && w.flights.is_empty() && !opened_again {
            w.file = None;
            self.writing.lock().remove(&inode.number);
            drop(w);
            self.note_loss(inode);
        }
    }

    /// Remembers for the end what no program was told of.
    fn note_loss(&self, inode: &Inode) {
        if let Some(e) = inode.writes.take_untold() {
            self.lost.lock().insert(inode.number, self.file(inode, e));
        }
    }

    /// What went wrong with a file, for people.
    fn file(&self, inode: &Inode, error: Errno) -> LostFile {
        LostFile { path: self.table.path(inode.number), number: inode.number, error }
    }

    /// Files whose data was lost without a program being told. For the end: what is still on its way counts as lost, as
    /// TIMEDOUT.
    pub(crate) fn losses(&self) -> Vec<LostFile> {
        let writing: Vec<_> = self.writing.lock().values().cloned().collect();
        for inode in writing {
            self.note_loss(&inode);
            let retains = inode.writes.inner.lock().file.as_ref().is_some_and(|f| f.retained_bytes() > 0);
            if retains || !inode.writes.is_clean() {
                let file = self.file(&inode, Errno::TIMEDOUT);
                self.lost.lock().entry(inode.number).or_insert(file);
            }
        }
        self.lost.lock().values().cloned().collect()
    }

    /// Files with data that is not stable, and its bytes.
    pub(crate) fn pending(&self) -> (usize, usize) {
        let writing: Vec<_> = self.writing.lock().values().cloned().collect();
        let bytes = |inode: &Arc<Inode>| {
            let w = inode.writes.inner.lock();
            let gathered = w.gather.as_ref().map_or(0, |g| g.filled);
            let flying: u64 = w.flights.iter().map(|f| f.range.end - f.range.start).sum();
            gathered + flying as usize + w.file.as_ref().map_or(0, File::retained_bytes)
        };
        let bytes = writing.iter().map(bytes).filter(|b| *b > 0);
        bytes.fold((0, 0), |(files, sum), b| (files + 1, sum + b))
    }

    /// Sends, every half second, what has waited for more for too long, and gives requests the beat at which they look at their
    /// callers. Goes on for ever.
    pub(crate) async fn keep_time(self: Arc<Self>) {
        loop {
            self.rt.sleep(PATIENCE / 2).await;
            self.send_old();
            self.commit_old();
            self.ticks.notify_waiters();
        }
    }

    /// Sends what has waited for more for too long.
    fn send_old(self: &Arc<Self>) {
        let now = self.rt.now();
        let writing: Vec<_> = self.writing.lock().values().cloned().collect();
        for inode in writing {
            let departure = {
                let mut w = inode.writes.inner.lock();
                let old = w.gather.as_ref().is_some_and(|g| now.duration_since(g.since) >= PATIENCE);
                if old { w.launch() } else { None }
            };
            if let Some(d) = departure {
                self.depart(&inode, d);
            }
        }
    }

    /// Commits what has been unstable for too long.
    fn commit_old(self: &Arc<Self>) {
        let now = self.rt.now();
        let is_old = |inode: &Arc<Inode>| {
            let written = inode.writes.inner.lock().written;
            written.is_some_and(|since| now.duration_since(since) >= UNSTABLE)
        };
        let writing: Vec<_> = self.writing.lock().values().filter(|inode| is_old(inode)).cloned().collect();
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
        let writing: Vec<_> = self.writing.lock().values().cloned().collect();
        futures::future::join_all(writing.iter().map(|inode| self.commit(inode))).await;
    }
}
