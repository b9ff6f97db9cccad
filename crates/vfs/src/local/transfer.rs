//! One READ, WRITE or COMMIT on an open file, whichever engine moves it.

use std::{
    io::{IoSlice, IoSliceMut},
    os::fd::{AsFd, OwnedFd},
    sync::Arc,
};

use buffer::{Arena, Buffer, Views};
use futures::channel::oneshot;
use rustix::{fs::Statx, io::Errno};

use super::attr;
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
    /// Make `count` bytes durable (0: to the end).
    Sync { count: u32 },
}

/// A transfer to be made, with the way back.
pub(super) struct Request {
    pub(super) file: Arc<OwnedFd>,
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
    /// It was answered. True if the kernel reported that data may have been lost.
    Answered { lost: bool },
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
    pub(super) fn file(&self) -> &Arc<OwnedFd> {
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

    /// Takes the result of a system call.
    pub(super) fn advance(mut self: Box<Self>, result: Result<usize, Errno>) -> Next {
        let write = matches!(self.request.work, Work::Write { .. });
        match result {
            Err(Errno::INTR) => Next::Again(self),
            // What was written before the error counts; the client meets the error again with the rest.
            Err(e) if self.done == 0 || !write => {
                let lost = matches!(e, Errno::IO | Errno::NOSPC | Errno::DQUOT)
                    && matches!(self.request.work, Work::Sync { .. })
                    || write && e == Errno::IO;
                drop(self.request.reply.send(Err(e.into())));
                Next::Answered { lost }
            }
            Ok(n) if n > 0 && self.done.saturating_add(n) < self.total => {
                self.done += n;
                Next::Again(self)
            }
            Ok(n) => {
                self.done = self.done.saturating_add(n).min(self.total);
                self.answer()
            }
            Err(e) => {
                let lost = e == Errno::IO;
                self.answer();
                Next::Answered { lost }
            }
        }
    }

    fn answer(self) -> Next {
        let Self { request, buffers, done, .. } = self;
        let outcome = match attr::live_stat(request.file.as_fd()) {
            Ok(_) if done == 0 && matches!(request.work, Work::Write { .. }) => Err(FsError::Io),
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
        drop(request.reply.send(outcome));
        Next::Answered { lost: false }
    }

    /// Answers with an error because the engine cannot go on.
    pub(super) fn fail(self, e: FsError) {
        drop(self.request.reply.send(Err(e)));
    }
}

#[cfg(test)]
mod tests {
    use buffer::ArenaConfig;

    use super::*;

    fn arena() -> Arena {
        Arena::new(ArenaConfig { limit: 4 << 20, huge_pages: false })
    }

    fn going(work: Work) -> (Box<Transfer>, oneshot::Receiver<FsResult<Outcome>>, tempfile::TempDir) {
        let (reply, answer) = oneshot::channel();
        // With a name: a file without links is stale.
        let dir = tempfile::tempdir().unwrap();
        let file = std::fs::File::create_new(dir.path().join("f")).unwrap();
        file.set_len(10).unwrap();
        let request = Request { file: Arc::new(file.into()), offset: 0, work, reply };
        match Transfer::begin(request, &arena()) {
            Begun::Going(t) => (t, answer, dir),
            Begun::Answered => panic!("nothing to do"),
        }
    }

    fn write() -> Work {
        Work::Write { data: arena().copy_from(b"0123456789").unwrap().into(), stable: Stability::FileSync }
    }

    fn lost(next: Next) -> bool {
        match next {
            Next::Answered { lost } => lost,
            Next::Again(_) => panic!("not answered"),
        }
    }

    fn taken(answer: &mut oneshot::Receiver<FsResult<Outcome>>) -> FsResult<Outcome> {
        answer.try_recv().unwrap().unwrap()
    }

    #[test]
    fn a_failed_sync_or_write_back_is_reported_and_changes_the_verifier() {
        for errno in [Errno::IO, Errno::NOSPC] {
            let (t, mut answer, _dir) = going(Work::Sync { count: 0 });
            assert!(lost(t.advance(Err(errno))));
            assert_eq!(taken(&mut answer).unwrap_err(), FsError::from(errno));
        }
        let (t, mut answer, _dir) = going(write());
        assert!(lost(t.advance(Err(Errno::IO))));
        assert_eq!(taken(&mut answer).unwrap_err(), FsError::Io);
        let (t, mut answer, _dir) = going(write());
        assert!(!lost(t.advance(Err(Errno::NOSPC))), "nothing was acknowledged that is lost now");
        assert_eq!(taken(&mut answer).unwrap_err(), FsError::NoSpc);
    }

    #[test]
    fn what_was_written_before_an_error_counts() {
        let (t, mut answer, _dir) = going(write());
        let Next::Again(t) = t.advance(Ok(4)) else { panic!("4 of 10 bytes are not all") };
        assert_eq!((t.position(), t.unwritten().iter().map(|s| s.len()).sum::<usize>()), (4, 6));
        assert!(!lost(t.advance(Err(Errno::NOSPC))));
        assert_eq!(taken(&mut answer).unwrap().count, 4);
    }

    #[test]
    fn a_read_that_meets_the_end_early_gives_only_what_was_read() {
        let (mut t, mut answer, _dir) = going(Work::Read { count: 100 });
        assert_eq!(t.unfilled().iter().map(|s| s.len()).sum::<usize>(), 10);
        let Next::Again(t) = t.advance(Ok(3)) else { panic!("3 of 10 bytes are not all") };
        assert!(!lost(t.advance(Ok(0))));
        let outcome = taken(&mut answer).unwrap();
        assert_eq!((outcome.count, outcome.data.len()), (3, 3));
    }
}
