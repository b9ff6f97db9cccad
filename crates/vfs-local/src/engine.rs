//! Transfers of file data, by io_uring or by blocking threads.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
};

use futures::channel::oneshot;
use millrace_buffer::Arena;
use millrace_vfs::{FsError, FsResult, Stability};
use rustix::io::{Errno, ReadWriteFlags};

use super::{
    IoMode, LocalError,
    data_file::DataFile,
    pool::Pool,
    sys,
    transfer::{Operation, Outcome, Progress, Request, Started, Transfer},
    uring::{Ring, RingContext},
};

/// Write verifier: random at each start; changed when the kernel reports that written data was lost.
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
            "written data may have been lost; changing the write verifier so that clients resend it"
        );
        self.0.fetch_add(1, Ordering::AcqRel);
    }
}

enum Backend {
    Rings(Vec<Ring>),
    Threads(Pool),
}

/// Executes transfers of file data.
pub(super) struct Engine {
    backend: Backend,
    arena: Arena,
    verifier: Arc<Verifier>,
    next: AtomicUsize,
}

impl Engine {
    /// Starts io_uring instances, or threads if they are not available.
    pub(super) fn start(
        mode: IoMode,
        rings: usize,
        threads: usize,
        arena: Arena,
        verifier: Arc<Verifier>,
    ) -> Result<Self, LocalError> {
        let context = RingContext { arena: arena.clone(), verifier: Arc::clone(&verifier), threads };
        let make = |_| Ring::start(context.clone());
        let rings = match mode {
            IoMode::Blocking => None,
            IoMode::IoUring => {
                let rings: Result<Vec<_>, _> = (0..rings.max(1)).map(make).collect();
                Some(rings.map_err(|source| LocalError::IoUring { source })?)
            }
            IoMode::Auto => match (0..rings.max(1)).map(make).collect::<Result<Vec<_>, _>>() {
                Ok(rings) => Some(rings),
                Err(error) => {
                    tracing::info!(%error, "io_uring is not available; using blocking threads for file data");
                    None
                }
            },
        };
        let backend = match rings {
            Some(rings) => Backend::Rings(rings),
            None => Backend::Threads(data_threads(threads).map_err(|source| LocalError::Threads { source })?),
        };
        Ok(Self { backend, arena, verifier, next: AtomicUsize::new(0) })
    }

    pub(super) fn is_io_uring(&self) -> bool {
        matches!(self.backend, Backend::Rings(_))
    }

    /// The memory of the transfers.
    pub(super) fn arena(&self) -> &Arena {
        &self.arena
    }

    /// Starts a transfer. It completes even if the future is dropped.
    pub(super) fn submit(
        &self,
        file: Arc<DataFile>,
        offset: u64,
        operation: Operation,
    ) -> impl Future<Output = FsResult<Outcome>> + Send + 'static {
        let (reply, reply_rx) = oneshot::channel();
        let request = Request { file, offset, operation, reply };
        match &self.backend {
            Backend::Rings(rings) => {
                let at = self.next.fetch_add(1, Ordering::Relaxed) % rings.len();
                if let Some(ring) = rings.get(at) {
                    ring.submit(request);
                }
            }
            Backend::Threads(pool) => {
                let (arena, verifier) = (self.arena.clone(), Arc::clone(&self.verifier));
                pool.push(Box::new(move || transfer_blocking(request, &arena, &verifier)));
            }
        }
        async move { reply_rx.await.unwrap_or(Err(FsError::ServerFault)) }
    }

    /// Starts a sync of each of `files` that has none in progress, without waiting.
    pub(super) fn sync_in_background(&self, files: Vec<Arc<DataFile>>) {
        for file in files {
            if let Some(guard) = file.try_start_sync() {
                drop(self.submit(file, 0, Operation::Sync { count: 0, guard: Some(guard) }));
            }
        }
    }
}

/// Range for `fsync`; `None` for the whole file.
pub(super) fn sync_range(offset: u64, count: u32) -> Option<(u64, u32)> {
    let end = offset.checked_add(count.into())?;
    (count != 0 && i64::try_from(end).is_ok()).then_some((offset, count))
}

/// Flags for a write with this durability.
pub(super) fn write_flags(stable: Stability) -> ReadWriteFlags {
    match stable {
        Stability::Unstable => ReadWriteFlags::empty(),
        Stability::DataSync => ReadWriteFlags::DSYNC,
        Stability::FileSync => ReadWriteFlags::SYNC,
    }
}

/// Threads for blocking data transfers.
pub(super) fn data_threads(threads: usize) -> io::Result<Pool> {
    Pool::start("local-data", threads, sys::prepare_data_thread, || ())
}

/// Executes a transfer on this thread.
pub(super) fn transfer_blocking(request: Request, arena: &Arena, verifier: &Verifier) {
    let Started::InProgress(mut transfer) = Transfer::begin(request, arena) else { return };
    loop {
        let result = issue_syscall(&mut transfer);
        match transfer.advance(result, verifier) {
            Progress::Again(t) => transfer = t,
            Progress::Done => return,
        }
    }
}

fn issue_syscall(transfer: &mut Transfer) -> Result<usize, Errno> {
    let at = transfer.position();
    match transfer.operation() {
        Operation::Read { .. } => {
            let file = Arc::clone(transfer.file());
            rustix::io::preadv(&file, &mut transfer.unfilled(), at)
        }
        Operation::Write { stable, .. } => {
            let flags = write_flags(*stable);
            let slices = transfer.unwritten();
            if flags.is_empty() {
                rustix::io::pwritev(transfer.file(), &slices, at)
            } else {
                rustix::io::pwritev2(transfer.file(), &slices, at, flags)
            }
        }
        Operation::Range { change, .. } => {
            rustix::fs::fallocate(transfer.file(), change.flags(), at, transfer.length()).map(|()| 0)
        }
        Operation::Sync { .. } => rustix::fs::fsync(transfer.file()).map(|()| 0),
    }
}
