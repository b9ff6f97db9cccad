//! A READ, WRITE, COMMIT or change of a range on an open file, for either engine.

use std::{
    io::{IoSlice, IoSliceMut},
    os::fd::AsFd,
    sync::Arc,
};

use futures::channel::oneshot;
use millrace_buffer::{Arena, Buffer, Views};
use millrace_vfs::{FsError, FsResult, Stability};
use rustix::{
    fs::{FallocateFlags, Statx},
    io::Errno,
};

use super::{
    attr,
    data_file::{DataFile, SyncGuard},
    engine::{Verifier, sync_range},
};

/// Maximum size of a read buffer.
const MAX_BUFFER: usize = 1 << 20;
/// Maximum number of iovecs per system call (`UIO_MAXIOV`).
pub(super) const MAX_IOV: usize = 1024;

/// Result of a transfer.
#[derive(Debug)]
pub(super) struct Outcome {
    /// The data read.
    pub(super) data: Views,
    /// Number of bytes transferred.
    pub(super) count: usize,
    /// Attributes of the file afterwards.
    pub(super) stat: Statx,
}

/// The operation of a transfer.
#[derive(Debug)]
pub(super) enum Operation {
    /// Read up to `count` bytes.
    Read { count: u32 },
    /// Write all data.
    Write { data: Views, stable: Stability },
    /// Free the storage of `length` bytes, without those beyond the size of the file, or zero or allocate them.
    Range { change: RangeChange, length: u64 },
    /// Sync `count` bytes (0: to the end of the file). The guard is taken when the sync completes.
    Sync { count: u32, guard: Option<SyncGuard> },
}

/// A change of a range of a file by fallocate(2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RangeChange {
    Allocate,
    Deallocate,
    Zero,
}

impl RangeChange {
    pub(super) fn flags(self) -> FallocateFlags {
        match self {
            Self::Allocate => FallocateFlags::empty(),
            Self::Deallocate => FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
            Self::Zero => FallocateFlags::ZERO_RANGE,
        }
    }
}

/// A transfer to be executed, with its reply channel.
pub(super) struct Request {
    pub(super) file: Arc<DataFile>,
    pub(super) offset: u64,
    pub(super) operation: Operation,
    pub(super) reply: oneshot::Sender<FsResult<Outcome>>,
}

/// A transfer in progress.
pub(super) struct Transfer {
    request: Request,
    buffers: Vec<Buffer>,
    /// Number of bytes to transfer, or length of the range to change.
    total: usize,
    done: usize,
}

/// The state of a transfer after its start.
pub(super) enum Started {
    /// The transfer needs a system call. Boxed, because it must not move while the kernel works on it.
    InProgress(Box<Transfer>),
    /// The transfer has completed.
    Done,
}

/// Next step of a transfer after a system call.
pub(super) enum Progress {
    /// Another system call for the rest.
    Again(Box<Transfer>),
    /// The transfer has completed.
    Done,
}

/// The elements of `iovecs` after the first `done` bytes, each with the number of its bytes to skip.
fn rest_of<'a, T: 'a, I>(
    iovecs: I,
    done: usize,
    len: impl Fn(&T) -> usize,
) -> impl Iterator<Item = (&'a mut T, usize)>
where
    I: Iterator<Item = &'a mut T>,
{
    let mut skip = done;
    iovecs.filter_map(move |p| {
        let n = len(p);
        let s = skip.min(n);
        skip -= s;
        (s < n).then_some((p, s))
    })
}

/// The size of a file, rounded up to a multiple of its block size: the end of what it can have stored.
fn end_of_last_block(st: &Statx) -> u64 {
    let block = u64::from(st.stx_blksize).max(1);
    st.stx_size.checked_next_multiple_of(block).unwrap_or(u64::MAX).min(i64::MAX as u64)
}

impl Transfer {
    /// Checks the file and allocates memory.
    pub(super) fn begin(request: Request, arena: &Arena) -> Started {
        match Self::prepare(&request, arena) {
            Ok(Some((buffers, total))) => {
                Started::InProgress(Box::new(Self { request, buffers, total, done: 0 }))
            }
            Ok(None) => {
                let outcome = attr::live_stat(request.file.as_fd());
                let outcome = outcome.map(|stat| Outcome { data: Views::new(), count: 0, stat });
                drop(request.reply.send(outcome));
                Started::Done
            }
            Err(e) => {
                drop(request.reply.send(Err(e)));
                Started::Done
            }
        }
    }

    /// Returns the buffers and the length of the transfer; `None` if there is nothing to transfer.
    fn prepare(request: &Request, arena: &Arena) -> FsResult<Option<(Vec<Buffer>, usize)>> {
        match &request.operation {
            Operation::Read { count } => {
                let size = attr::live_stat(request.file.as_fd())?.stx_size;
                let left = size.saturating_sub(request.offset).min((*count).into());
                let total = usize::try_from(left).map_err(|_| FsError::Inval)?;
                if total == 0 {
                    return Ok(None);
                }
                let mut buffers = Vec::with_capacity(total.div_ceil(MAX_BUFFER));
                let mut want = total;
                while want > 0 {
                    let n = want.min(MAX_BUFFER);
                    // Memory is released as replies are sent; the client retries.
                    buffers.push(arena.alloc(n).map_err(|_| FsError::Jukebox)?);
                    want -= n;
                }
                Ok(Some((buffers, total)))
            }
            Operation::Write { data, .. } => {
                let end = request.offset.checked_add(data.len() as u64);
                if end.is_none_or(|end| i64::try_from(end).is_err()) {
                    return Err(FsError::FBig);
                }
                Ok((!data.is_empty()).then(|| (Vec::new(), data.len())))
            }
            Operation::Range { change, length } => {
                let mut end = request.offset.checked_add(*length).ok_or(FsError::Inval)?;
                if *change == RangeChange::Deallocate {
                    // The kernel refuses ranges that end after the maximum file size. A range that ends in
                    // the last block is not extended: another write may extend the file meanwhile.
                    end = end.min(end_of_last_block(&attr::live_stat(request.file.as_fd())?));
                }
                if i64::try_from(end).is_err() {
                    return Err(FsError::FBig);
                }
                let length =
                    usize::try_from(end.saturating_sub(request.offset)).map_err(|_| FsError::Inval)?;
                Ok((length > 0).then(|| (Vec::new(), length)))
            }
            Operation::Sync { .. } => Ok(Some((Vec::new(), 0))),
        }
    }

    /// The file to transfer from or to.
    pub(super) fn file(&self) -> &Arc<DataFile> {
        &self.request.file
    }

    /// The operation.
    pub(super) fn operation(&self) -> &Operation {
        &self.request.operation
    }

    /// The request, to be begun again.
    pub(super) fn into_request(self) -> Request {
        self.request
    }

    /// Number of bytes to transfer, or length of the range to change.
    pub(super) fn length(&self) -> u64 {
        self.total as u64
    }

    /// File offset of the next system call.
    pub(super) fn position(&self) -> u64 {
        self.request.offset.saturating_add(self.done as u64)
    }

    /// Memory still to be filled by a read.
    pub(super) fn unfilled(&mut self) -> Vec<IoSliceMut<'_>> {
        rest_of(self.buffers.iter_mut(), self.done, |b| b.len())
            .take(MAX_IOV)
            .map(|(b, skip)| IoSliceMut::new(&mut b[skip..]))
            .collect()
    }

    /// Data still to be written.
    pub(super) fn unwritten(&self) -> Vec<IoSlice<'_>> {
        let Operation::Write { data, .. } = &self.request.operation else { return Vec::new() };
        let mut skip = self.done;
        let mut out = Vec::new();
        for view in data {
            let s = skip.min(view.len());
            skip -= s;
            if s < view.len() && out.len() < MAX_IOV {
                out.push(IoSlice::new(&view[s..]));
            }
        }
        out
    }

    /// Processes the result of a system call. Updates `verifier` before the reply if data was lost.
    pub(super) fn advance(
        mut self: Box<Self>,
        result: Result<usize, Errno>,
        verifier: &Verifier,
    ) -> Progress {
        if result == Err(Errno::INTR) {
            return Progress::Again(self);
        }
        if let Ok(n) = result
            && n > 0
            && self.done.saturating_add(n) < self.total
        {
            self.done += n;
            return Progress::Again(self);
        }
        self.publish(result, verifier);
        match result {
            Ok(n) => {
                self.done = self.done.saturating_add(n).min(self.total);
                self.send_outcome();
            }
            // A partial write succeeds; the client gets the error when it sends the rest.
            Err(_) if self.done > 0 && matches!(self.request.operation, Operation::Write { .. }) => {
                self.send_outcome()
            }
            Err(e) => self.fail(e.into()),
        }
        Progress::Done
    }

    /// Records the effect of a result on the durability of data.
    fn publish(&mut self, result: Result<usize, Errno>, verifier: &Verifier) {
        let Request { file, offset, operation, .. } = &mut self.request;
        match operation {
            Operation::Read { .. } => {}
            Operation::Write { stable: Stability::Unstable, .. } => {
                if self.done > 0 || result.is_ok_and(|n| n > 0) {
                    file.note_unstable_write();
                }
                if result == Err(Errno::IO) {
                    verifier.change();
                }
            }
            // A part of the range may have changed before an error.
            Operation::Range { .. } => {
                file.note_unstable_write();
                if result == Err(Errno::IO) {
                    verifier.change();
                }
            }
            // The sync of a stable write also reports the failed write-back of earlier, unstable writes.
            Operation::Write { .. } => {
                let earlier = matches!(result, Err(Errno::NOSPC | Errno::DQUOT)) && !file.is_synced();
                if earlier || result == Err(Errno::IO) {
                    verifier.change();
                }
            }
            Operation::Sync { count, guard } => {
                let whole = sync_range(*offset, *count).is_none();
                if let Some(guard) = guard.take() {
                    guard.finish(result.map(drop), whole, verifier);
                }
            }
        }
    }

    fn send_outcome(self) {
        let Self { request: Request { file, operation, reply, .. }, buffers, done, .. } = self;
        let outcome = match attr::live_stat(file.as_fd()) {
            Ok(_) if done == 0 && matches!(operation, Operation::Write { .. }) => Err(FsError::Io),
            Ok(stat) => {
                let mut left = done;
                let data = buffers.into_iter().map_while(|mut b| {
                    let n = b.len().min(left);
                    left -= n;
                    b.set_len(n);
                    (n > 0).then(|| b.freeze())
                });
                Ok(Outcome { data: data.collect(), count: done, stat })
            }
            Err(e) => Err(e),
        };
        // Release the file before the caller continues.
        drop(file);
        drop(reply.send(outcome));
    }

    /// Completes with JUKEBOX without waiting for the kernel. The kernel may still transfer data, so the
    /// memory is leaked. (It holds its own reference to the file.)
    pub(super) fn abandon(mut self, verifier: &Verifier) {
        // A sync still in progress may consume the error that the next one should report.
        if let Operation::Sync { guard, .. } = &mut self.request.operation
            && let Some(guard) = guard.take()
        {
            guard.finish(Err(Errno::IO), true, verifier);
        }
        let Self { request: Request { file, operation, reply, .. }, buffers, .. } = self;
        std::mem::forget((operation, buffers));
        drop(file);
        drop(reply.send(Err(FsError::Jukebox)));
    }

    /// Completes with an error.
    pub(super) fn fail(self, e: FsError) {
        let Request { file, reply, .. } = self.request;
        drop(file);
        drop(reply.send(Err(e)));
    }
}

#[cfg(test)]
mod tests {
    use millrace_buffer::ArenaConfig;

    use super::*;

    fn arena() -> Arena {
        Arena::new(ArenaConfig { limit: 4 << 20, huge_pages: false })
    }

    struct Fixture {
        file: Arc<DataFile>,
        reply_rx: oneshot::Receiver<FsResult<Outcome>>,
        verifier: Arc<Verifier>,
        _dir: tempfile::TempDir,
    }

    fn start_transfer(operation: impl FnOnce(&Arc<DataFile>) -> Operation) -> (Box<Transfer>, Fixture) {
        let (reply, reply_rx) = oneshot::channel();
        // A file without links is stale, so it needs a name.
        let dir = tempfile::tempdir().unwrap();
        let file = std::fs::File::create_new(dir.path().join("f")).unwrap();
        file.set_len(10).unwrap();
        let file = DataFile::new(file.into());
        let request = Request { file: Arc::clone(&file), offset: 0, operation: operation(&file), reply };
        match Transfer::begin(request, &arena()) {
            Started::InProgress(t) => (t, Fixture { file, reply_rx, verifier: Verifier::new(7), _dir: dir }),
            Started::Done => panic!("nothing to do"),
        }
    }

    fn sync(file: &Arc<DataFile>) -> Operation {
        Operation::Sync { count: 0, guard: file.try_start_sync() }
    }

    fn write(stable: Stability) -> impl FnOnce(&Arc<DataFile>) -> Operation {
        move |_| Operation::Write { data: arena().copy_from(b"0123456789").unwrap().into(), stable }
    }

    impl Fixture {
        /// Completes the transfer with `result`. Returns the reply, and whether the verifier has changed.
        fn end(&mut self, t: Box<Transfer>, result: Result<usize, Errno>) -> (FsResult<Outcome>, bool) {
            let before = self.verifier.bytes();
            let Progress::Done = t.advance(result, &self.verifier) else { panic!("not complete") };
            (self.reply_rx.try_recv().unwrap().unwrap(), self.verifier.bytes() != before)
        }
    }

    #[test]
    fn failed_sync_is_reported_and_changes_the_verifier() {
        for errno in [Errno::IO, Errno::NOSPC, Errno::DQUOT, Errno::ROFS] {
            let (t, mut fixture) = start_transfer(sync);
            let (outcome, changed) = fixture.end(t, Err(errno));
            assert_eq!((outcome.unwrap_err(), changed), (FsError::from(errno), true));
            assert!(fixture.file.try_start_sync().is_some(), "the next sync can start");
        }
        for stable in [Stability::Unstable, Stability::DataSync, Stability::FileSync] {
            let (t, mut fixture) = start_transfer(write(stable));
            let (outcome, changed) = fixture.end(t, Err(Errno::IO));
            assert_eq!((outcome.unwrap_err(), changed), (FsError::Io, true));
            let (t, mut fixture) = start_transfer(write(stable));
            let (outcome, changed) = fixture.end(t, Err(Errno::NOSPC));
            assert_eq!(outcome.unwrap_err(), FsError::NoSpc);
            assert!(!changed, "no acknowledged data is lost");
        }
    }

    #[test]
    fn nospc_on_stable_write_after_unstable_ones_changes_the_verifier() {
        let (t, mut fixture) = start_transfer(write(Stability::FileSync));
        fixture.file.note_unstable_write();
        assert!(fixture.end(t, Err(Errno::NOSPC)).1);
    }

    #[test]
    fn only_a_later_complete_sync_makes_a_file_synced() {
        let (t, mut fixture) = start_transfer(write(Stability::Unstable));
        assert!(fixture.file.is_synced());
        fixture.end(t, Ok(10)).0.unwrap();
        assert!(!fixture.file.is_synced());
        let guard = fixture.file.try_start_sync().unwrap();
        assert!(fixture.file.try_start_sync().is_none(), "syncs are serialized");
        fixture.file.note_unstable_write();
        guard.finish(Ok(()), true, &fixture.verifier);
        assert!(!fixture.file.is_synced(), "written after the sync started");
        fixture.file.try_start_sync().unwrap().finish(Ok(()), false, &fixture.verifier);
        assert!(!fixture.file.is_synced(), "a range is not the whole file");
        fixture.file.try_start_sync().unwrap().finish(Ok(()), true, &fixture.verifier);
        assert!(fixture.file.is_synced());
        let (t, mut fixture) = start_transfer(write(Stability::DataSync));
        fixture.end(t, Ok(10)).0.unwrap();
        assert!(fixture.file.is_synced());
    }

    #[test]
    fn partial_write_before_an_error_succeeds() {
        let (t, mut fixture) = start_transfer(write(Stability::Unstable));
        let Progress::Again(t) = t.advance(Ok(4), &fixture.verifier) else {
            panic!("4 of 10 bytes are incomplete")
        };
        assert_eq!((t.position(), t.unwritten().iter().map(|s| s.len()).sum::<usize>()), (4, 6));
        let (outcome, changed) = fixture.end(t, Err(Errno::NOSPC));
        assert_eq!((outcome.unwrap().count, changed, fixture.file.is_synced()), (4, false, false));
    }

    #[test]
    fn deallocation_ends_with_the_last_block() {
        let deallocate = |length| {
            let change = RangeChange::Deallocate;
            start_transfer(move |_| Operation::Range { change, length }).0.length()
        };
        let block = deallocate(u64::MAX);
        assert!(block >= 512 && block.is_power_of_two(), "{block}");
        assert_eq!([deallocate(5), deallocate(10), deallocate(11), deallocate(1 << 62)], [5, 10, 11, block]);
    }

    #[test]
    fn changed_range_needs_a_sync() {
        for change in [RangeChange::Allocate, RangeChange::Deallocate, RangeChange::Zero] {
            for result in [Ok(0), Err(Errno::NOSPC), Err(Errno::IO)] {
                let (t, mut fixture) = start_transfer(|_| Operation::Range { change, length: 10 });
                let (outcome, changed) = fixture.end(t, result);
                assert_eq!((outcome.is_ok(), changed), (result.is_ok(), result == Err(Errno::IO)));
                assert!(!fixture.file.is_synced());
            }
        }
    }

    #[test]
    fn read_at_early_end_of_file_is_short() {
        let (mut t, mut fixture) = start_transfer(|_| Operation::Read { count: 100 });
        assert_eq!(t.unfilled().iter().map(|s| s.len()).sum::<usize>(), 10);
        let Progress::Again(t) = t.advance(Ok(3), &fixture.verifier) else {
            panic!("3 of 10 bytes are incomplete")
        };
        let outcome = fixture.end(t, Ok(0)).0.unwrap();
        assert_eq!((outcome.count, outcome.data.len()), (3, 3));
    }
}
