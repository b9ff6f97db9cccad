//! One READ, WRITE or COMMIT on an open file, whichever engine moves it.

use std::{
    io::{IoSlice, IoSliceMut},
    os::fd::AsFd,
    sync::Arc,
};

use futures::channel::oneshot;
use millrace_buffer::{Arena, Buffer, Views};
use rustix::{fs::Statx, io::Errno};

use super::{
    attr,
    data_file::{DataFile, SyncTurn},
    engine::{Verifier, sync_range},
};
use crate::{FsError, FsResult, Stability};

/// Data is read into pieces of at most this many bytes.
const PIECE: usize = 1 << 20;
/// The most pieces in one system call (`UIO_MAXIOV`).
pub(super) const MAX_IOV: usize = 1024;

/// What a finished transfer gives.
#[derive(Debug)]
pub(super) struct Outcome {
    /// The bytes read.
    pub(super) data: Views,
    /// Bytes moved.
    pub(super) count: usize,
    /// The file afterwards.
    pub(super) stat: Statx,
}

/// What to do.
#[derive(Debug)]
pub(super) enum Work {
    /// Read up to `count` bytes.
    Read { count: u32 },
    /// Write everything.
    Write { data: Views, stable: Stability },
    /// Make `count` bytes durable (0: to the end). The turn is taken when the sync has ended.
    Sync { count: u32, turn: Option<SyncTurn> },
}

/// A transfer to be made, with the way back.
pub(super) struct Request {
    pub(super) file: Arc<DataFile>,
    pub(super) offset: u64,
    pub(super) work: Work,
    pub(super) reply: oneshot::Sender<FsResult<Outcome>>,
}

/// A transfer that is being made.
pub(super) struct Transfer {
    request: Request,
    buffers: Vec<Buffer>,
    total: usize,
    done: usize,
}

/// Whether a transfer needs the kernel.
pub(super) enum Begun {
    /// It does; boxed, since it stays where it is while the kernel works on it.
    Going(Box<Transfer>),
    /// It was answered.
    Answered,
}

/// What is next for a transfer after a system call.
pub(super) enum Next {
    /// Another system call for the rest.
    Again(Box<Transfer>),
    /// It was answered.
    Answered,
}

/// The part `start..` of a list of pieces, as at most [`MAX_IOV`] slices' worth of (piece, skip) pairs.
fn rest_of<'a, T: 'a, I>(
    pieces: I,
    done: usize,
    len: impl Fn(&T) -> usize,
) -> impl Iterator<Item = (&'a mut T, usize)>
where
    I: Iterator<Item = &'a mut T>,
{
    let mut skip = done;
    pieces.filter_map(move |p| {
        let n = len(p);
        let s = skip.min(n);
        skip -= s;
        (s < n).then_some((p, s))
    })
}

impl Transfer {
    /// Looks at the file and prepares memory.
    pub(super) fn begin(request: Request, arena: &Arena) -> Begun {
        match Self::prepare(&request, arena) {
            Ok(Some((buffers, total))) => Begun::Going(Box::new(Self { request, buffers, total, done: 0 })),
            Ok(None) => {
                let outcome = attr::live_stat(request.file.as_fd());
                let outcome = outcome.map(|stat| Outcome { data: Views::new(), count: 0, stat });
                drop(request.reply.send(outcome));
                Begun::Answered
            }
            Err(e) => {
                drop(request.reply.send(Err(e)));
                Begun::Answered
            }
        }
    }

    /// Buffers and length of the transfer; `None` if there is nothing to move.
    fn prepare(request: &Request, arena: &Arena) -> FsResult<Option<(Vec<Buffer>, usize)>> {
        match &request.work {
            Work::Read { count } => {
                let size = attr::live_stat(request.file.as_fd())?.stx_size;
                let left = size.saturating_sub(request.offset).min((*count).into());
                let total = usize::try_from(left).map_err(|_| FsError::Inval)?;
                if total == 0 {
                    return Ok(None);
                }
                let mut buffers = Vec::with_capacity(total.div_ceil(PIECE));
                let mut want = total;
                while want > 0 {
                    let n = want.min(PIECE);
                    // Memory comes back as replies leave; the client tries again.
                    buffers.push(arena.alloc(n).map_err(|_| FsError::Jukebox)?);
                    want -= n;
                }
                Ok(Some((buffers, total)))
            }
            Work::Write { data, .. } => {
                let end = request.offset.checked_add(data.len() as u64);
                if end.is_none_or(|end| i64::try_from(end).is_err()) {
                    return Err(FsError::FBig);
                }
                Ok((!data.is_empty()).then(|| (Vec::new(), data.len())))
            }
            Work::Sync { .. } => Ok(Some((Vec::new(), 0))),
        }
    }

    /// The file.
    pub(super) fn file(&self) -> &Arc<DataFile> {
        &self.request.file
    }

    /// What to do.
    pub(super) fn work(&self) -> &Work {
        &self.request.work
    }

    /// Where the next system call begins.
    pub(super) fn position(&self) -> u64 {
        self.request.offset.saturating_add(self.done as u64)
    }

    /// The memory that is still to be filled (read).
    pub(super) fn unfilled(&mut self) -> Vec<IoSliceMut<'_>> {
        rest_of(self.buffers.iter_mut(), self.done, |b| b.len())
            .take(MAX_IOV)
            .map(|(b, skip)| IoSliceMut::new(&mut b[skip..]))
            .collect()
    }

    /// The data that is still to be written.
    pub(super) fn unwritten(&self) -> Vec<IoSlice<'_>> {
        let Work::Write { data, .. } = &self.request.work else { return Vec::new() };
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

    /// Takes the result of a system call. What it says about lost data is published in `verifier` before the answer.
    pub(super) fn advance(mut self: Box<Self>, result: Result<usize, Errno>, verifier: &Verifier) -> Next {
        if result == Err(Errno::INTR) {
            return Next::Again(self);
        }
        if let Ok(n) = result
            && n > 0
            && self.done.saturating_add(n) < self.total
        {
            self.done += n;
            return Next::Again(self);
        }
        self.publish(result, verifier);
        match result {
            Ok(n) => {
                self.done = self.done.saturating_add(n).min(self.total);
                self.answer();
            }
            // What was written before the error counts; the client meets the error again with the rest.
            Err(_) if self.done > 0 && matches!(self.request.work, Work::Write { .. }) => self.answer(),
            Err(e) => self.fail(e.into()),
        }
        Next::Answered
    }

    /// Takes note of what the last system call says about the durability of data.
    fn publish(&mut self, result: Result<usize, Errno>, verifier: &Verifier) {
        let Request { file, offset, work, .. } = &mut self.request;
        match work {
            Work::Read { .. } => {}
            Work::Write { stable: Stability::Unstable, .. } => {
                if self.done > 0 || result.is_ok_and(|n| n > 0) {
                    file.wrote();
                }
                if result == Err(Errno::IO) {
                    verifier.change();
                }
            }
            // The sync that follows a stable write reports the failed write-back of earlier, unstable ones.
            Work::Write { .. } => {
                let earlier = matches!(result, Err(Errno::NOSPC | Errno::DQUOT)) && !file.is_synced();
                if earlier || result == Err(Errno::IO) {
                    verifier.change();
                }
            }
            Work::Sync { count, turn } => {
                let whole = sync_range(*offset, *count).is_none();
                if let Some(turn) = turn.take() {
                    turn.end(result.map(drop), whole, verifier);
                }
            }
        }
    }

    fn answer(self) {
        let Self { request: Request { file, work, reply, .. }, buffers, done, .. } = self;
        let outcome = match attr::live_stat(file.as_fd()) {
            Ok(_) if done == 0 && matches!(work, Work::Write { .. }) => Err(FsError::Io),
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
        // Not in use any more when the caller goes on.
        drop(file);
        drop(reply.send(outcome));
    }

    /// Answers because the kernel's result will not be seen; the caller may try again. The kernel may still move the
    /// data, so the memory is never given back. (It has a reference of its own to the file.)
    pub(super) fn abandon(mut self, verifier: &Verifier) {
        // A sync that is still in progress may take the error that the next one would get.
        if let Work::Sync { turn, .. } = &mut self.request.work
            && let Some(turn) = turn.take()
        {
            turn.end(Err(Errno::IO), true, verifier);
        }
        let Self { request: Request { file, work, reply, .. }, buffers, .. } = self;
        std::mem::forget((work, buffers));
        drop(file);
        drop(reply.send(Err(FsError::Jukebox)));
    }

    /// Answers with an error.
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

    struct Trial {
        file: Arc<DataFile>,
        answer: oneshot::Receiver<FsResult<Outcome>>,
        verifier: Arc<Verifier>,
        _dir: tempfile::TempDir,
    }

    fn going(work: impl FnOnce(&Arc<DataFile>) -> Work) -> (Box<Transfer>, Trial) {
        let (reply, answer) = oneshot::channel();
        // With a name: a file without links is stale.
        let dir = tempfile::tempdir().unwrap();
        let file = std::fs::File::create_new(dir.path().join("f")).unwrap();
        file.set_len(10).unwrap();
        let file = DataFile::new(file.into());
        let request = Request { file: Arc::clone(&file), offset: 0, work: work(&file), reply };
        match Transfer::begin(request, &arena()) {
            Begun::Going(t) => (t, Trial { file, answer, verifier: Verifier::new(7), _dir: dir }),
            Begun::Answered => panic!("nothing to do"),
        }
    }

    fn sync(file: &Arc<DataFile>) -> Work {
        Work::Sync { count: 0, turn: file.try_begin_sync() }
    }

    fn write(stable: Stability) -> impl FnOnce(&Arc<DataFile>) -> Work {
        move |_| Work::Write { data: arena().copy_from(b"0123456789").unwrap().into(), stable }
    }

    impl Trial {
        /// Ends the transfer with `result`. Gives the answer, and whether the verifier has changed.
        fn end(&mut self, t: Box<Transfer>, result: Result<usize, Errno>) -> (FsResult<Outcome>, bool) {
            let before = self.verifier.bytes();
            let Next::Answered = t.advance(result, &self.verifier) else { panic!("not answered") };
            (self.answer.try_recv().unwrap().unwrap(), self.verifier.bytes() != before)
        }
    }

    #[test]
    fn a_failed_sync_or_write_back_is_reported_and_changes_the_verifier() {
        for errno in [Errno::IO, Errno::NOSPC, Errno::DQUOT, Errno::ROFS] {
            let (t, mut trial) = going(sync);
            let (answer, changed) = trial.end(t, Err(errno));
            assert_eq!((answer.unwrap_err(), changed), (FsError::from(errno), true));
            assert!(trial.file.try_begin_sync().is_some(), "the next sync may begin");
        }
        for stable in [Stability::Unstable, Stability::DataSync, Stability::FileSync] {
            let (t, mut trial) = going(write(stable));
            let (answer, changed) = trial.end(t, Err(Errno::IO));
            assert_eq!((answer.unwrap_err(), changed), (FsError::Io, true));
            let (t, mut trial) = going(write(stable));
            let (answer, changed) = trial.end(t, Err(Errno::NOSPC));
            assert_eq!(answer.unwrap_err(), FsError::NoSpc);
            assert!(!changed, "nothing was acknowledged that is lost now");
        }
    }

    #[test]
    fn a_stable_write_that_finds_no_space_after_unstable_ones_changes_the_verifier() {
        let (t, mut trial) = going(write(Stability::FileSync));
        trial.file.wrote();
        assert!(trial.end(t, Err(Errno::NOSPC)).1);
    }

    #[test]
    fn a_file_needs_a_sync_from_an_unstable_write_to_the_end_of_a_sync_that_began_later() {
        let (t, mut trial) = going(write(Stability::Unstable));
        assert!(trial.file.is_synced());
        trial.end(t, Ok(10)).0.unwrap();
        assert!(!trial.file.is_synced());
        let turn = trial.file.try_begin_sync().unwrap();
        assert!(trial.file.try_begin_sync().is_none(), "one at a time");
        trial.file.wrote();
        turn.end(Ok(()), true, &trial.verifier);
        assert!(!trial.file.is_synced(), "written after the sync began");
        trial.file.try_begin_sync().unwrap().end(Ok(()), false, &trial.verifier);
        assert!(!trial.file.is_synced(), "a range is not the whole file");
        trial.file.try_begin_sync().unwrap().end(Ok(()), true, &trial.verifier);
        assert!(trial.file.is_synced());
        let (t, mut trial) = going(write(Stability::DataSync));
        trial.end(t, Ok(10)).0.unwrap();
        assert!(trial.file.is_synced());
    }

    #[test]
    fn what_was_written_before_an_error_counts() {
        let (t, mut trial) = going(write(Stability::Unstable));
        let Next::Again(t) = t.advance(Ok(4), &trial.verifier) else { panic!("4 of 10 bytes are not all") };
        assert_eq!((t.position(), t.unwritten().iter().map(|s| s.len()).sum::<usize>()), (4, 6));
        let (answer, changed) = trial.end(t, Err(Errno::NOSPC));
        assert_eq!((answer.unwrap().count, changed, trial.file.is_synced()), (4, false, false));
    }

    #[test]
    fn a_read_that_meets_the_end_early_gives_only_what_was_read() {
        let (mut t, mut trial) = going(|_| Work::Read { count: 100 });
        assert_eq!(t.unfilled().iter().map(|s| s.len()).sum::<usize>(), 10);
        let Next::Again(t) = t.advance(Ok(3), &trial.verifier) else { panic!("3 of 10 bytes are not all") };
        let outcome = trial.end(t, Ok(0)).0.unwrap();
        assert_eq!((outcome.count, outcome.data.len()), (3, 3));
    }
}
