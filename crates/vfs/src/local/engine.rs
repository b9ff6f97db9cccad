//! What moves file data: io_uring, or threads that block.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
};

use futures::channel::oneshot;
use millrace_buffer::Arena;
use rustix::io::{Errno, ReadWriteFlags};

use super::{
    IoMode, LocalError,
    data_file::DataFile,
    pool::Pool,
    sys,
    transfer::{Begun, Next, Outcome, Request, Transfer, Work},
    uring::{Ring, Tools},
};
use crate::{FsError, FsResult, Stability};

/// The write verifier: random at each start, and changed when the kernel reports that written data was lost.
#[derive(Debug)]
pub(super) struct Verifier(AtomicU64);

impl Verifier {
    pub(super) fn new(random: u64) -> Arc<Self> {
        Arc::new(Self(AtomicU64::new(random)))
    }

    pub(super) fn bytes(&self) -> [u8; 8] {
        self.0.load(Ordering::Acquire).to_be_bytes()
    }

    pub(super) fn change(&self) {
        tracing::error!(
            "written data may have been lost; the write verifier changes so that clients send it again"
        );
        self.0.fetch_add(1, Ordering::AcqRel);
    }
}

enum Mover {
    Rings(Vec<Ring>),
    Threads(Pool),
}

/// The data path.
pub(super) struct Engine {
    mover: Mover,
    arena: Arena,
    verifier: Arc<Verifier>,
    next: AtomicUsize,
}

impl Engine {
    /// Starts rings, or threads where there are none.
    pub(super) fn start(
        mode: IoMode,
        rings: usize,
        threads: usize,
        arena: Arena,
        verifier: Arc<Verifier>,
    ) -> Result<Self, LocalError> {
        let tools = Tools { arena: arena.clone(), verifier: Arc::clone(&verifier), threads };
        let make = |_| Ring::start(tools.clone());
        let rings = match mode {
            IoMode::Blocking => None,
            IoMode::IoUring => {
                let rings: Result<Vec<_>, _> = (0..rings.max(1)).map(make).collect();
                Some(rings.map_err(|source| LocalError::IoUring { source })?)
            }
            IoMode::Auto => match (0..rings.max(1)).map(make).collect::<Result<Vec<_>, _>>() {
                Ok(rings) => Some(rings),
                Err(error) => {
                    tracing::info!(%error, "no io_uring here; file data goes through blocking threads");
                    None
                }
            },
        };
        let mover = match rings {
            Some(rings) => Mover::Rings(rings),
            None => Mover::Threads(data_threads(threads).map_err(|source| LocalError::Threads { source })?),
        };
        Ok(Self { mover, arena, verifier, next: AtomicUsize::new(0) })
    }

    /// Whether io_uring is in use.
    pub(super) fn is_io_uring(&self) -> bool {
        matches!(self.mover, Mover::Rings(_))
    }

    /// Starts a transfer. It is made even if the future is dropped.
    pub(super) fn submit(
        &self,
        file: Arc<DataFile>,
        offset: u64,
        work: Work,
    ) -> impl Future<Output = FsResult<Outcome>> + Send + 'static {
        let (reply, answer) = oneshot::channel();
        let request = Request { file, offset, work, reply };
        match &self.mover {
            Mover::Rings(rings) => {
                let at = self.next.fetch_add(1, Ordering::Relaxed) % rings.len();
                if let Some(ring) = rings.get(at) {
                    ring.submit(request);
                }
            }
            Mover::Threads(pool) => {
                let (arena, verifier) = (self.arena.clone(), Arc::clone(&self.verifier));
                pool.push(Box::new(move || move_blocking(request, &arena, &verifier)));
            }
        }
        async move { answer.await.unwrap_or(Err(FsError::ServerFault)) }
    }

    /// Starts a sync of each of `files` that no other one is in progress on, and waits for none.
    pub(super) fn sync_unattended(&self, files: Vec<Arc<DataFile>>) {
        for file in files {
            if let Some(turn) = file.try_begin_sync() {
                drop(self.submit(file, 0, Work::Sync { count: 0, turn: Some(turn) }));
            }
        }
    }
}

/// The range that `fsync` shall cover: `None` is the whole file.
pub(super) fn sync_range(offset: u64, count: u32) -> Option<(u64, u32)> {
    let end = offset.checked_add(count.into())?;
    (count != 0 && i64::try_from(end).is_ok()).then_some((offset, count))
}

/// The flags that make a write as durable as asked.
pub(super) fn write_flags(stable: Stability) -> ReadWriteFlags {
    match stable {
        Stability::Unstable => ReadWriteFlags::empty(),
        Stability::DataSync => ReadWriteFlags::DSYNC,
        Stability::FileSync => ReadWriteFlags::SYNC,
    }
}

/// Threads that move file data by system calls that block.
pub(super) fn data_threads(threads: usize) -> io::Result<Pool> {
    Pool::start("local-data", threads, sys::prepare_data_thread, || ())
}

/// Makes a transfer on this thread.
pub(super) fn move_blocking(request: Request, arena: &Arena, verifier: &Verifier) {
    let Begun::Going(mut transfer) = Transfer::begin(request, arena) else { return };
    loop {
        let result = one_call(&mut transfer);
        match transfer.advance(result, verifier) {
            Next::Again(t) => transfer = t,
            Next::Answered => return,
        }
    }
}

fn one_call(transfer: &mut Transfer) -> Result<usize, Errno> {
    let at = transfer.position();
    match transfer.work() {
        Work::Read { .. } => {
            let file = Arc::clone(transfer.file());
            rustix::io::preadv(&file, &mut transfer.unfilled(), at)
        }
        Work::Write { stable, .. } => {
            let flags = write_flags(*stable);
            let slices = transfer.unwritten();
            if flags.is_empty() {
                rustix::io::pwritev(transfer.file(), &slices, at)
            } else {
                rustix::io::pwritev2(transfer.file(), &slices, at, flags)
            }
        }
        Work::Sync { .. } => rustix::fs::fsync(transfer.file()).map(|()| 0),
    }
}
