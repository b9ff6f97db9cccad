//! Transfers of file data, by io_uring or by blocking threads.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
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

/// Maximum number of bytes of a read that is first tried on the calling thread, which copies them meanwhile.
const MAX_CACHED_READ: u32 = 16 << 10;

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
    /// Whether the file system can read without waiting (RWF_NOWAIT).
    cached_reads: AtomicBool,
}

impl Engine {
    /// Starts io_uring instances, or threads if they are not available.
    pub(super) fn start(mode: IoMode, rings: usize, context: RingContext) -> Result<Self, LocalError> {
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
            None => {
                Backend::Threads(data_threads(&context).map_err(|source| LocalError::Threads { source })?)
            }
        };
        let RingContext { arena, verifier, .. } = context;
        Ok(Self { backend, arena, verifier, next: AtomicUsize::new(0), cached_reads: AtomicBool::new(true) })
    }

    pub(super) fn is_io_uring(&self) -> bool {
        matches!(self.backend, Backend::Rings(_))
    }

    /// The memory of the transfers.
    pub(super) fn arena(&self) -> &Arena {
        &self.arena
    }

    /// Starts a transfer. It completes even if the future is dropped. A short read of data in the page cache
    /// has completed already, without the cost of another thread.
    pub(super) fn submit(
        &self,
        file: Arc<DataFile>,
        offset: u64,
        operation: Operation,
    ) -> impl Future<Output = FsResult<Outcome>> + Send + 'static {
        let (reply, reply_rx) = oneshot::channel();
        let request = Request { file, offset, operation, reply };
        if let Some(request) = self.read_cached(request) {
            self.pass_on(request);
        }
        async move { reply_rx.await.unwrap_or(Err(FsError::ServerFault)) }
    }

    /// Completes the request if it is a short read of data in the page cache; otherwise returns it.
    fn read_cached(&self, request: Request) -> Option<Request> {
        let short = matches!(request.operation, Operation::Read { count } if count <= MAX_CACHED_READ);
        if !short || !self.cached_reads.load(Ordering::Relaxed) {
            return Some(request);
        }
        let Started::InProgress(mut transfer) = Transfer::begin(request, &self.arena) else { return None };
        let (file, at) = (Arc::clone(transfer.file()), transfer.position());
        let read = rustix::io::preadv2(&file, &mut transfer.unfilled(), at, ReadWriteFlags::NOWAIT);
        match read {
            Ok(n) if n as u64 == transfer.length() => {
                transfer.advance(read, &self.verifier);
                return None;
            }
            Err(Errno::OPNOTSUPP) => self.cached_reads.store(false, Ordering::Relaxed),
            // Only a part of the data, or nothing, is in the page cache.
            _ => {}
        }
        Some(transfer.into_request())
    }

    /// Passes the request to a ring or a thread.
    fn pass_on(&self, request: Request) {
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
pub(super) fn data_threads(context: &RingContext) -> io::Result<Pool> {
    let reserved_blocks = context.reserved_blocks;
    Pool::start("local-data", context.threads, move || sys::prepare_data_thread(reserved_blocks), || ())
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

#[cfg(test)]
mod tests {
    use std::{
        fs::{self, File},
        sync::mpsc,
    };

    use futures::FutureExt as _;
    use millrace_buffer::ArenaConfig;

    use super::{super::pool::block_on, *};

    #[test]
    fn a_short_read_of_cached_data_needs_no_thread() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        let content: Vec<u8> = (0..100_000_u32).map(|i| (i % 251) as u8).collect();
        fs::write(&path, &content).unwrap();
        let arena = Arena::new(ArenaConfig { limit: 32 << 20, huge_pages: false });
        let context = RingContext { arena, verifier: Verifier::new(7), threads: 1, reserved_blocks: false };
        let engine = Engine::start(IoMode::Blocking, 1, context).unwrap();
        let file = DataFile::new(File::open(&path).unwrap().into());
        // The only thread is busy.
        let (release, busy) = mpsc::channel::<()>();
        let Backend::Threads(pool) = &engine.backend else { panic!("the engine has threads") };
        pool.push(Box::new(move || _ = busy.recv()));
        let read = |offset, count| engine.submit(Arc::clone(&file), offset, Operation::Read { count });
        let equal = |outcome: Outcome, at: usize, length: usize| {
            assert_eq!(
                outcome.data.iter().flat_map(|v| v.to_vec()).collect::<Vec<_>>(),
                content[at..at + length]
            );
            assert_eq!((outcome.count, outcome.stat.stx_size), (length, 100_000));
        };
        let (cached, end) = (read(5000, 4096).now_or_never(), read(99_000, 4096).now_or_never());
        let beyond = read(100_000, 4096).now_or_never();
        let long = read(0, MAX_CACHED_READ + 1);
        release.send(()).unwrap();
        equal(block_on(long).unwrap(), 0, MAX_CACHED_READ as usize + 1);
        if engine.cached_reads.load(Ordering::Relaxed) {
            equal(cached.unwrap().unwrap(), 5000, 4096);
            equal(end.unwrap().unwrap(), 99_000, 1000);
        } else {
            println!("skipped: the file system has no RWF_NOWAIT");
        }
        assert_eq!(beyond.unwrap().unwrap().count, 0);
    }

    #[test]
    fn a_short_read_of_uncached_data_is_complete() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        fs::write(&path, vec![7; 1 << 20]).unwrap();
        let arena = Arena::new(ArenaConfig { limit: 32 << 20, huge_pages: false });
        let context = RingContext { arena, verifier: Verifier::new(7), threads: 1, reserved_blocks: false };
        let engine = Engine::start(IoMode::Blocking, 1, context).unwrap();
        let file = DataFile::new(File::open(&path).unwrap().into());
        rustix::fs::fsync(&file).unwrap();
        for offset in (0..1 << 20).step_by(64 << 10) {
            // Only the second page of the read may be in the page cache.
            rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
            block_on(engine.submit(Arc::clone(&file), offset + 4096, Operation::Read { count: 1 })).unwrap();
            let read = engine.submit(Arc::clone(&file), offset, Operation::Read { count: 12_288 });
            let outcome = block_on(read).unwrap();
            assert_eq!(outcome.count, 12_288);
            assert!(outcome.data.iter().all(|view| view.iter().all(|b| *b == 7)));
        }
    }
}
