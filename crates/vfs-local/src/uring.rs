//! A thread that drives an io_uring.
//!
//! Requests are queued in an inbox. An eventfd, read through the ring itself, wakes the thread. All queued
//! requests are submitted with one `io_uring_enter`, which also waits for completions.
//!
//! If `io_uring_enter` fails, the thread completes the transfers in flight with an error, creates a new ring
//! and continues with the inbox; after [`RESTARTS`] failures, or if no ring can be created, it passes
//! requests to blocking threads.
//!
//! Soundness invariant: a [`Transfer`] submitted to the kernel is owned by `in_flight`, boxed, together with
//! the iovec array that its entry points to, and is removed only after its completion has been seen. The
//! thread exits only when no transfer is in flight (or leaks them, if it fails), so memory that the kernel
//! may still write to is not freed.

#![allow(unsafe_code)] // Pushes submission entries; see the invariant above.

use std::{
    collections::VecDeque,
    io,
    os::fd::{AsRawFd, OwnedFd},
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, mpsc},
    thread,
};

use io_uring::{IoUring, opcode, squeue, types};
use millrace_buffer::Arena;
use millrace_vfs::FsError;
use parking_lot::Mutex;
use rustix::{event::EventfdFlags, io::Errno};

use super::{
    engine::{Verifier, data_threads, sync_range, transfer_blocking, write_flags},
    sys,
    transfer::{Operation, Progress, Request, Started, Transfer},
};

/// Ring size: maximum transfers in flight; more wait in the inbox.
const ENTRIES: u32 = 256;
/// User data of the eventfd read.
const WAKE: u64 = u64::MAX;

/// Maximum number of times that a failed ring is replaced.
const RESTARTS: u32 = 3;

struct Inbox {
    requests: VecDeque<Request>,
    /// Wakes the thread. Each ring has its own, because the pending read of a failed ring may still consume a
    /// value.
    eventfd: Arc<OwnedFd>,
    closed: bool,
}

struct Shared {
    inbox: Mutex<Inbox>,
    /// Number of times that `io_uring_enter` fails.
    #[cfg(test)]
    failures: std::sync::atomic::AtomicU32,
}

fn signal(eventfd: &OwnedFd) {
    // Fails only if the counter is at its maximum; the thread is awake then.
    let _ = rustix::io::write(eventfd, &1u64.to_ne_bytes());
}

fn new_eventfd() -> io::Result<Arc<OwnedFd>> {
    Ok(Arc::new(rustix::event::eventfd(0, EventfdFlags::CLOEXEC)?))
}

/// Handle to the thread. Submitted requests complete after it is dropped.
pub(super) struct Ring {
    shared: Arc<Shared>,
}

/// Resources of a ring's thread.
#[derive(Clone)]
pub(super) struct RingContext {
    pub(super) arena: Arena,
    pub(super) verifier: Arc<Verifier>,
    /// Number of threads that replace a failed ring.
    pub(super) threads: usize,
    /// Whether the file system has blocks that only root may use.
    pub(super) reserved_blocks: bool,
}

impl Ring {
    /// Starts the thread.
    ///
    /// # Errors
    /// io_uring is not available, or the thread cannot be started.
    pub(super) fn start(context: RingContext) -> io::Result<Self> {
        let inbox = Inbox { requests: VecDeque::new(), eventfd: new_eventfd()?, closed: false };
        let shared = Arc::new(Shared {
            inbox: Mutex::new(inbox),
            #[cfg(test)]
            failures: Default::default(),
        });
        let thread_shared = Arc::clone(&shared);
        let (tx, rx) = mpsc::channel();
        thread::Builder::new().name("local-uring".into()).spawn(move || {
            sys::prepare_data_thread(context.reserved_blocks);
            let ring = match IoUring::new(ENTRIES) {
                Ok(ring) => {
                    drop(tx.send(Ok(())));
                    ring
                }
                Err(e) => return drop(tx.send(Err(e))),
            };
            let _guard = CloseInbox(&thread_shared);
            serve(ring, &thread_shared, &context);
        })?;
        rx.recv().map_err(|_| io::Error::other("the io_uring thread ended"))??;
        Ok(Self { shared })
    }

    /// Queues a request.
    pub(super) fn submit(&self, request: Request) {
        let mut inbox = self.shared.inbox.lock();
        if inbox.closed {
            return; // The caller's receiver fails, since the sender of the reply is dropped.
        }
        // Otherwise the eventfd has been signalled already, or the thread waits for a free entry.
        let eventfd = inbox.requests.is_empty().then(|| Arc::clone(&inbox.eventfd));
        inbox.requests.push_back(request);
        drop(inbox);
        if let Some(eventfd) = eventfd {
            signal(&eventfd);
        }
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        let mut inbox = self.shared.inbox.lock();
        inbox.closed = true;
        signal(&inbox.eventfd);
    }
}

/// Closes the inbox when the thread ends for any reason.
struct CloseInbox<'a>(&'a Shared);

impl Drop for CloseInbox<'_> {
    fn drop(&mut self) {
        let mut inbox = self.0.inbox.lock();
        inbox.closed = true;
        inbox.requests.clear();
    }
}

/// Serves the inbox until it is closed: with `ring`, with a new one after a failure, or with threads.
fn serve(mut ring: IoUring, shared: &Shared, context: &RingContext) {
    for restarts in 0.. {
        let eventfd = Arc::clone(&shared.inbox.lock().eventfd);
        let run = AssertUnwindSafe(|| Driver::new(ring, shared, eventfd, context).run());
        let error = match catch_unwind(run) {
            Ok(Ok(())) => return,
            Ok(Err(error)) => error,
            Err(_) => io::Error::other("its thread panicked"),
        };
        tracing::error!(%error, restarts, "io_uring failed; calls in progress return JUKEBOX");
        if restarts == RESTARTS {
            break;
        }
        match new_eventfd().and_then(|eventfd| Ok((IoUring::new(ENTRIES)?, eventfd))) {
            Ok((fresh, eventfd)) => (ring, shared.inbox.lock().eventfd) = (fresh, eventfd),
            Err(error) => {
                tracing::error!(%error, "cannot create another io_uring");
                break;
            }
        }
    }
    tracing::error!("giving up on io_uring; using blocking threads for file data");
    serve_with_threads(shared, context);
}

/// Serves the inbox with threads until it is closed.
fn serve_with_threads(shared: &Shared, context: &RingContext) {
    let pool = data_threads(context).inspect_err(|e| tracing::error!("cannot start threads: {e}")).ok();
    loop {
        let (requests, closed, eventfd) = {
            let mut inbox = shared.inbox.lock();
            (std::mem::take(&mut inbox.requests), inbox.closed, Arc::clone(&inbox.eventfd))
        };
        let is_idle = requests.is_empty();
        for request in requests {
            let context = context.clone();
            let job = move || transfer_blocking(request, &context.arena, &context.verifier);
            match &pool {
                Some(pool) => pool.push(Box::new(job)),
                None => job(),
            }
        }
        if closed {
            return;
        }
        if is_idle {
            let _ = rustix::io::read(&eventfd, &mut [0u8; 8]);
        }
    }
}

/// A submitted transfer, with the iovecs that its entry points to.
struct InFlight {
    transfer: Box<Transfer>,
    iovecs: Vec<libc::iovec>,
}

struct Driver<'a> {
    ring: IoUring,
    shared: &'a Shared,
    eventfd: Arc<OwnedFd>,
    context: &'a RingContext,
    in_flight: Vec<Option<InFlight>>,
    free: Vec<usize>,
    wake_value: Box<[u8; 8]>,
    wake_armed: bool,
}

impl<'a> Driver<'a> {
    fn new(ring: IoUring, shared: &'a Shared, eventfd: Arc<OwnedFd>, context: &'a RingContext) -> Self {
        // One entry is for the eventfd.
        let slots = ENTRIES as usize - 1;
        Self {
            ring,
            shared,
            eventfd,
            context,
            in_flight: (0..slots).map(|_| None).collect(),
            free: (0..slots).rev().collect(),
            wake_value: Box::new([0; 8]),
            wake_armed: false,
        }
    }

    /// Serves the inbox until it is closed.
    ///
    /// # Errors
    /// If `io_uring_enter` fails; the transfers in flight have been completed with an error.
    fn run(mut self) -> io::Result<()> {
        loop {
            self.arm_wake();
            let closed = self.take_requests();
            if closed && self.free.len() == self.in_flight.len() {
                break;
            }
            match self.enter() {
                Ok(_) => {}
                Err(e) if matches!(e.raw_os_error(), Some(libc::EINTR | libc::EAGAIN | libc::EBUSY)) => {}
                Err(error) => {
                    self.take_completions();
                    return Err(error);
                }
            }
            self.take_completions();
        }
        self.disarm_wake();
        Ok(())
    }

    fn enter(&mut self) -> io::Result<usize> {
        #[cfg(test)]
        {
            use std::sync::atomic::Ordering::Relaxed;
            if self.shared.failures.fetch_update(Relaxed, Relaxed, |n| n.checked_sub(1)).is_ok() {
                return Err(io::Error::from_raw_os_error(libc::EBADFD));
            }
        }
        self.ring.submit_and_wait(1)
    }

    /// Submits a read of the eventfd, so that a new request ends the wait.
    fn arm_wake(&mut self) {
        if self.wake_armed {
            return;
        }
        let eventfd = types::Fd(self.eventfd.as_raw_fd());
        let entry = opcode::Read::new(eventfd, self.wake_value.as_mut_ptr(), 8).build().user_data(WAKE);
        self.wake_armed = self.push(&entry);
    }

    /// Completes the read of the eventfd before its buffer is freed.
    fn disarm_wake(&mut self) {
        signal(&self.eventfd);
        while self.wake_armed {
            match self.ring.submit_and_wait(1) {
                Err(e) if e.raw_os_error() != Some(libc::EINTR) => return,
                _ => self.take_completions(),
            }
        }
    }

    /// Starts as many requests as there are free slots. Returns whether the inbox is closed and empty.
    fn take_requests(&mut self) -> bool {
        while !self.free.is_empty() {
            let request = {
                let mut inbox = self.shared.inbox.lock();
                match inbox.requests.pop_front() {
                    Some(r) => r,
                    None => return inbox.closed,
                }
            };
            if let Started::InProgress(transfer) = Transfer::begin(request, &self.context.arena) {
                self.start_transfer(transfer);
            }
        }
        false
    }

    /// Submits the next system call of a transfer.
    fn start_transfer(&mut self, mut transfer: Box<Transfer>) {
        let Some(slot) = self.free.pop() else { return transfer.fail(FsError::Jukebox) };
        let iovecs = iovecs_of(&mut transfer);
        let entry_in_flight = self.in_flight[slot].insert(InFlight { transfer, iovecs });
        let entry = entry_in_flight.entry().user_data(slot as u64);
        if !self.push(&entry) {
            self.free.push(slot);
            if let Some(entry_in_flight) = self.in_flight[slot].take() {
                entry_in_flight.transfer.fail(FsError::Jukebox);
            }
        }
    }

    /// Queues an entry, submitting earlier ones if the queue is full.
    fn push(&mut self, entry: &squeue::Entry) -> bool {
        for _ in 0..2 {
            // SAFETY: the memory that the entry points to (iovecs and buffers of a transfer in flight, or the
            // eventfd value) is owned by this driver and does not move until the completion has been seen:
            // see the module's invariant.
            if unsafe { self.ring.submission().push(entry) }.is_ok() {
                return true;
            }
            drop(self.ring.submit());
        }
        false
    }

    fn take_completions(&mut self) {
        loop {
            let Some(done) = self.ring.completion().next() else { return };
            if done.user_data() == WAKE {
                self.wake_armed = false;
                continue;
            }
            let slot = done.user_data() as usize;
            let Some(entry_in_flight) = self.in_flight.get_mut(slot).and_then(Option::take) else { continue };
            self.free.push(slot);
            let result = usize::try_from(done.result()).map_err(|_| Errno::from_raw_os_error(-done.result()));
            match entry_in_flight.transfer.advance(result, &self.context.verifier) {
                Progress::Again(transfer) => self.start_transfer(transfer),
                Progress::Done => {}
            }
        }
    }
}

impl Drop for Driver<'_> {
    /// After a failure or panic, the kernel may still write to the memory of transfers in flight, which is
    /// therefore leaked. The calls fail and may be retried.
    fn drop(&mut self) {
        for entry_in_flight in self.in_flight.drain(..).flatten() {
            std::mem::forget(entry_in_flight.iovecs);
            entry_in_flight.transfer.abandon(&self.context.verifier);
        }
        if self.wake_armed {
            std::mem::forget(std::mem::replace(&mut self.wake_value, Box::new([0; 8])));
        }
    }
}

fn iovecs_of(transfer: &mut Transfer) -> Vec<libc::iovec> {
    let iovec = |base: *mut u8, len| libc::iovec { iov_base: base.cast(), iov_len: len };
    match transfer.operation() {
        Operation::Read { .. } => {
            transfer.unfilled().iter_mut().map(|s| iovec(s.as_mut_ptr(), s.len())).collect()
        }
        // The kernel only reads this memory.
        Operation::Write { .. } => {
            transfer.unwritten().iter().map(|s| iovec(s.as_ptr().cast_mut(), s.len())).collect()
        }
        Operation::Range { .. } | Operation::Sync { .. } => Vec::new(),
    }
}

impl InFlight {
    fn entry(&self) -> squeue::Entry {
        let fd = types::Fd(self.transfer.file().as_raw_fd());
        let at = self.transfer.position();
        let (iov, n) = (self.iovecs.as_ptr(), self.iovecs.len() as u32);
        match self.transfer.operation() {
            Operation::Read { .. } => opcode::Readv::new(fd, iov, n).offset(at).build(),
            Operation::Write { stable, .. } => {
                let flags = write_flags(*stable).bits() as i32;
                opcode::Writev::new(fd, iov, n).offset(at).rw_flags(flags).build()
            }
            Operation::Range { change, .. } => {
                let mode = change.flags().bits() as i32;
                opcode::Fallocate::new(fd, self.transfer.length()).offset(at).mode(mode).build()
            }
            Operation::Sync { count, .. } => match sync_range(at, *count) {
                Some((offset, len)) => opcode::Fsync::new(fd).offset(offset).len(len).build(),
                None => opcode::Fsync::new(fd).build(),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{fs::File, sync::atomic::Ordering};

    use futures::channel::oneshot;
    use millrace_buffer::ArenaConfig;
    use millrace_vfs::{FsResult, Stability};

    use super::{
        super::{data_file::DataFile, pool::block_on, transfer::Outcome},
        *,
    };

    struct Fixture {
        ring: Ring,
        file: Arc<DataFile>,
        context: RingContext,
        _dir: tempfile::TempDir,
    }

    impl Fixture {
        /// `None` if io_uring is not available.
        fn new() -> Option<Self> {
            let arena = Arena::new(ArenaConfig { limit: 4 << 20, huge_pages: false });
            let context =
                RingContext { arena, verifier: Verifier::new(7), threads: 2, reserved_blocks: false };
            let ring = Ring::start(context.clone()).inspect_err(|e| println!("skipped: {e}")).ok()?;
            let dir = tempfile::tempdir().unwrap();
            let options = File::options().read(true).write(true).create_new(true).to_owned();
            let file = DataFile::new(options.open(dir.path().join("f")).unwrap().into());
            Some(Self { ring, file, context, _dir: dir })
        }

        fn fail(&self, times: u32) {
            self.ring.shared.failures.store(times, Ordering::Relaxed);
        }

        fn submit(&self, operation: Operation) -> oneshot::Receiver<FsResult<Outcome>> {
            let (reply, reply_rx) = oneshot::channel();
            self.ring.submit(Request { file: Arc::clone(&self.file), offset: 0, operation, reply });
            reply_rx
        }

        /// Retries until the result is not JUKEBOX; returns it and the number of retries.
        fn until_done(&self, operation: impl Fn() -> Operation) -> (FsResult<Outcome>, usize) {
            for tries in 0.. {
                match block_on(self.submit(operation())).expect("every call completes") {
                    Err(FsError::Jukebox) => {}
                    other => return (other, tries),
                }
            }
            unreachable!()
        }

        fn write(&self) -> Operation {
            let data = self.context.arena.copy_from(b"0123456789").unwrap().into();
            Operation::Write { data, stable: Stability::Unstable }
        }

        fn sync(&self) -> Operation {
            Operation::Sync { count: 0, guard: Some(block_on(self.file.start_sync())) }
        }
    }

    #[test]
    fn failed_ring_is_replaced_and_finally_by_threads() {
        let Some(fixture) = Fixture::new() else { return };
        fixture.until_done(|| fixture.write()).0.unwrap();
        // The eventfd read completes first, so a failure affects the next call.
        for failures in [1, RESTARTS - 1, 1, 1] {
            fixture.fail(failures);
            for _ in 0..3 {
                let (written, _) = fixture.until_done(|| fixture.write());
                assert_eq!(written.unwrap().count, 10);
                let (read, _) = fixture.until_done(|| Operation::Read { count: 100 });
                assert_eq!(read.unwrap().data.to_vec(), b"0123456789");
                fixture.until_done(|| fixture.sync()).0.unwrap();
            }
        }
    }

    #[test]
    fn sync_abandoned_by_a_failed_ring_changes_the_verifier() {
        let Some(fixture) = Fixture::new() else { return };
        fixture.until_done(|| fixture.write()).0.unwrap();
        let before = fixture.context.verifier.bytes();
        let mut abandoned = 0;
        for _ in 0..RESTARTS {
            fixture.fail(1);
            abandoned += fixture.until_done(|| fixture.sync()).1;
        }
        assert!(abandoned > 0, "no sync was in flight when the ring failed");
        assert_ne!(fixture.context.verifier.bytes(), before);
        fixture.until_done(|| fixture.sync()).0.unwrap();
    }

    #[test]
    fn dropped_ring_completes_submitted_requests() {
        for failures in [0, 1, RESTARTS + 1] {
            let Some(fixture) = Fixture::new() else { return };
            fixture.fail(failures);
            let replies: Vec<_> = (0..20).map(|_| fixture.submit(fixture.write())).collect();
            drop(fixture.ring);
            for reply_rx in replies {
                let reply = block_on(reply_rx).expect("every call completes");
                assert!(reply.is_ok() || failures > 0, "{reply:?}");
            }
        }
    }
}
