//! A thread with an io_uring.
//!
//! Requests arrive in an inbox; an eventfd, which the ring itself reads, wakes the thread. Everything that arrived
//! goes to the kernel in one `io_uring_enter`, which also waits for completions.
//!
//! When `io_uring_enter` fails, the thread answers the transfers in flight, sets up another ring and goes on with the
//! inbox; after [`RESTARTS`] failures, or without another ring, it hands requests to threads that block.
//!
//! The invariant that makes this sound: a [`Transfer`] that the kernel works on is owned by `flights`, boxed, with
//! the vector of pieces that its entry points to, and leaves it only when its completion has been seen. The thread
//! ends only when no flight is left (or leaks them, if it fails), so nothing that the kernel may still write is freed.

#![allow(unsafe_code)] // Pushing entries; see the invariant above.

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
use parking_lot::Mutex;
use rustix::{event::EventfdFlags, io::Errno};

use super::{
    engine::{Verifier, data_threads, move_blocking, sync_range, write_flags},
    sys,
    transfer::{Begun, Next, Request, Transfer, Work},
};
use crate::FsError;

/// Entries of a ring: transfers in flight at once; more wait in the inbox.
const ENTRIES: u32 = 256;
/// Marks the read of the eventfd.
const WAKE: u64 = u64::MAX;

/// How many times a ring that fails is replaced.
const RESTARTS: u32 = 3;

struct Inbox {
    requests: VecDeque<Request>,
    /// Wakes the thread. Each ring has one of its own: the read of a ring that failed may still take a value.
    bell: Arc<OwnedFd>,
    closed: bool,
}

struct Shared {
    inbox: Mutex<Inbox>,
    /// Times that `io_uring_enter` is to fail.
    #[cfg(test)]
    failures: std::sync::atomic::AtomicU32,
}

fn ring_bell(bell: &OwnedFd) {
    // It can fail only when the counter is full, and then the thread is awake anyway.
    let _ = rustix::io::write(bell, &1u64.to_ne_bytes());
}

fn new_bell() -> io::Result<Arc<OwnedFd>> {
    Ok(Arc::new(rustix::event::eventfd(0, EventfdFlags::CLOEXEC)?))
}

/// A handle to the thread. Dropping it lets what was submitted finish.
pub(super) struct Ring {
    shared: Arc<Shared>,
}

/// What a ring's thread works with.
#[derive(Clone)]
pub(super) struct Tools {
    pub(super) arena: Arena,
    pub(super) verifier: Arc<Verifier>,
    /// Threads instead of a ring that fails.
    pub(super) threads: usize,
}

impl Ring {
    /// Starts the thread.
    ///
    /// # Errors
    /// When the machine refuses io_uring or a thread.
    pub(super) fn start(tools: Tools) -> io::Result<Self> {
        let inbox = Inbox { requests: VecDeque::new(), bell: new_bell()?, closed: false };
        let shared = Arc::new(Shared {
            inbox: Mutex::new(inbox),
            #[cfg(test)]
            failures: Default::default(),
        });
        let theirs = Arc::clone(&shared);
        let (tx, rx) = mpsc::channel();
        thread::Builder::new().name("local-uring".into()).spawn(move || {
            sys::prepare_data_thread();
            let ring = match IoUring::new(ENTRIES) {
                Ok(ring) => {
                    drop(tx.send(Ok(())));
                    ring
                }
                Err(e) => return drop(tx.send(Err(e))),
            };
            let _guard = CloseInbox(&theirs);
            serve(ring, &theirs, &tools);
        })?;
        rx.recv().map_err(|_| io::Error::other("the io_uring thread ended"))??;
        Ok(Self { shared })
    }

    /// Hands a request over.
    pub(super) fn submit(&self, request: Request) {
        let mut inbox = self.shared.inbox.lock();
        if inbox.closed {
            return; // The dropped reply tells the caller.
        }
        // If there is one already, the bell has been rung for it, or the thread waits for a free entry.
        let bell = inbox.requests.is_empty().then(|| Arc::clone(&inbox.bell));
        inbox.requests.push_back(request);
        drop(inbox);
        if let Some(bell) = bell {
            ring_bell(&bell);
        }
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        let mut inbox = self.shared.inbox.lock();
        inbox.closed = true;
        ring_bell(&inbox.bell);
    }
}

/// Refuses further requests when the thread ends, whatever ends it.
struct CloseInbox<'a>(&'a Shared);

impl Drop for CloseInbox<'_> {
    fn drop(&mut self) {
        let mut inbox = self.0.inbox.lock();
        inbox.closed = true;
        inbox.requests.clear();
    }
}

/// Serves the inbox until it is closed: through `ring`, through another one when that fails, or through threads.
fn serve(mut ring: IoUring, shared: &Shared, tools: &Tools) {
    for restarts in 0.. {
        let bell = Arc::clone(&shared.inbox.lock().bell);
        let run = AssertUnwindSafe(|| Driver::new(ring, shared, bell, tools).run());
        let error = match catch_unwind(run) {
            Ok(Ok(())) => return,
            Ok(Err(error)) => error,
            Err(_) => io::Error::other("its thread panicked"),
        };
        tracing::error!(%error, restarts, "io_uring failed; calls in progress are answered JUKEBOX");
        if restarts == RESTARTS {
            break;
        }
        match new_bell().and_then(|bell| Ok((IoUring::new(ENTRIES)?, bell))) {
            Ok((fresh, bell)) => (ring, shared.inbox.lock().bell) = (fresh, bell),
            Err(error) => {
                tracing::error!(%error, "another ring cannot be set up");
                break;
            }
        }
    }
    tracing::error!("io_uring is given up; file data goes through blocking threads");
    serve_with_threads(shared, tools);
}

/// Serves the inbox through threads until it is closed.
fn serve_with_threads(shared: &Shared, tools: &Tools) {
    let pool = data_threads(tools.threads).inspect_err(|e| tracing::error!("cannot start threads: {e}")).ok();
    loop {
        let (requests, closed, bell) = {
            let mut inbox = shared.inbox.lock();
            (std::mem::take(&mut inbox.requests), inbox.closed, Arc::clone(&inbox.bell))
        };
        let quiet = requests.is_empty();
        for request in requests {
            let tools = tools.clone();
            let job = move || move_blocking(request, &tools.arena, &tools.verifier);
            match &pool {
                Some(pool) => pool.push(Box::new(job)),
                None => job(),
            }
        }
        if closed {
            return;
        }
        if quiet {
            let _ = rustix::io::read(&bell, &mut [0u8; 8]);
        }
    }
}

/// A transfer that the kernel works on, with the pieces that its entry points to.
struct Flight {
    transfer: Box<Transfer>,
    pieces: Vec<libc::iovec>,
}

struct Driver<'a> {
    ring: IoUring,
    shared: &'a Shared,
    bell: Arc<OwnedFd>,
    tools: &'a Tools,
    flights: Vec<Option<Flight>>,
    free: Vec<usize>,
    bell_value: Box<[u8; 8]>,
    bell_armed: bool,
}

impl<'a> Driver<'a> {
    fn new(ring: IoUring, shared: &'a Shared, bell: Arc<OwnedFd>, tools: &'a Tools) -> Self {
        // One entry is the bell's.
        let slots = ENTRIES as usize - 1;
        Self {
            ring,
            shared,
            bell,
            tools,
            flights: (0..slots).map(|_| None).collect(),
            free: (0..slots).rev().collect(),
            bell_value: Box::new([0; 8]),
            bell_armed: false,
        }
    }

    /// Serves the inbox until it is closed.
    ///
    /// # Errors
    /// When `io_uring_enter` fails. The transfers in flight are answered then.
    fn run(mut self) -> io::Result<()> {
        loop {
            self.arm_bell();
            let closed = self.take_requests();
            if closed && self.free.len() == self.flights.len() {
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
        self.disarm_bell();
        Ok(())
    }

    fn enter(&mut self) -> io::Result<usize> {
        #[cfg(test)]
        {
            use std::sync::atomic::Ordering::Relaxed;
            if self.shared.failures.try_update(Relaxed, Relaxed, |n| n.checked_sub(1)).is_ok() {
                return Err(io::Error::from_raw_os_error(libc::EBADFD));
            }
        }
        self.ring.submit_and_wait(1)
    }

    /// Lets the ring read the eventfd, so that a request ends the wait.
    fn arm_bell(&mut self) {
        if self.bell_armed {
            return;
        }
        let bell = types::Fd(self.bell.as_raw_fd());
        let entry = opcode::Read::new(bell, self.bell_value.as_mut_ptr(), 8).build().user_data(WAKE);
        self.bell_armed = self.push(&entry);
    }

    /// Ends the read of the eventfd before its memory goes.
    fn disarm_bell(&mut self) {
        ring_bell(&self.bell);
        while self.bell_armed {
            match self.ring.submit_and_wait(1) {
                Err(e) if e.raw_os_error() != Some(libc::EINTR) => return,
                _ => self.take_completions(),
            }
        }
    }

    /// Starts as many requests as there are free flights. True if no more will come.
    fn take_requests(&mut self) -> bool {
        while !self.free.is_empty() {
            let request = {
                let mut inbox = self.shared.inbox.lock();
                match inbox.requests.pop_front() {
                    Some(r) => r,
                    None => return inbox.closed,
                }
            };
            if let Begun::Going(transfer) = Transfer::begin(request, &self.tools.arena) {
                self.launch(transfer);
            }
        }
        false
    }

    /// Gives a transfer's next system call to the kernel.
    fn launch(&mut self, mut transfer: Box<Transfer>) {
        let Some(slot) = self.free.pop() else { return transfer.fail(FsError::Jukebox) };
        let pieces = pieces_of(&mut transfer);
        let flight = self.flights[slot].insert(Flight { transfer, pieces });
        let entry = flight.entry().user_data(slot as u64);
        if !self.push(&entry) {
            self.free.push(slot);
            if let Some(flight) = self.flights[slot].take() {
                flight.transfer.fail(FsError::Jukebox);
            }
        }
    }

    /// Queues an entry, making room if need be.
    fn push(&mut self, entry: &squeue::Entry) -> bool {
        for _ in 0..2 {
            // SAFETY: what the entry points to (pieces and buffers of a flight, or the bell's value) is owned by this
            // driver and stays where it is until the completion has been seen: see the module's invariant.
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
                self.bell_armed = false;
                continue;
            }
            let slot = done.user_data() as usize;
            let Some(flight) = self.flights.get_mut(slot).and_then(Option::take) else { continue };
            self.free.push(slot);
            let result = usize::try_from(done.result()).map_err(|_| Errno::from_raw_os_error(-done.result()));
            match flight.transfer.advance(result, &self.tools.verifier) {
                Next::Again(transfer) => self.launch(transfer),
                Next::Answered => {}
            }
        }
    }
}

impl Drop for Driver<'_> {
    /// After a failure or a panic the kernel may still write into memory of ours; that memory is never given back.
    /// The calls are answered, and may be sent again.
    fn drop(&mut self) {
        for flight in self.flights.drain(..).flatten() {
            std::mem::forget(flight.pieces);
            flight.transfer.abandon(&self.tools.verifier);
        }
        if self.bell_armed {
            std::mem::forget(std::mem::replace(&mut self.bell_value, Box::new([0; 8])));
        }
    }
}

fn pieces_of(transfer: &mut Transfer) -> Vec<libc::iovec> {
    let piece = |base: *mut u8, len| libc::iovec { iov_base: base.cast(), iov_len: len };
    match transfer.work() {
        Work::Read { .. } => transfer.unfilled().iter_mut().map(|s| piece(s.as_mut_ptr(), s.len())).collect(),
        // The kernel only reads these.
        Work::Write { .. } => {
            transfer.unwritten().iter().map(|s| piece(s.as_ptr().cast_mut(), s.len())).collect()
        }
        Work::Sync { .. } => Vec::new(),
    }
}

impl Flight {
    fn entry(&self) -> squeue::Entry {
        let fd = types::Fd(self.transfer.file().as_raw_fd());
        let at = self.transfer.position();
        let (iov, n) = (self.pieces.as_ptr(), self.pieces.len() as u32);
        match self.transfer.work() {
            Work::Read { .. } => opcode::Readv::new(fd, iov, n).offset(at).build(),
            Work::Write { stable, .. } => {
                let flags = write_flags(*stable).bits() as i32;
                opcode::Writev::new(fd, iov, n).offset(at).rw_flags(flags).build()
            }
            Work::Sync { count, .. } => match sync_range(at, *count) {
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

    use super::{
        super::{data_file::DataFile, pool::block_on, transfer::Outcome},
        *,
    };
    use crate::{FsResult, Stability};

    struct Trial {
        ring: Ring,
        file: Arc<DataFile>,
        tools: Tools,
        _dir: tempfile::TempDir,
    }

    impl Trial {
        /// `None` where io_uring is refused.
        fn new() -> Option<Self> {
            let arena = Arena::new(ArenaConfig { limit: 4 << 20, huge_pages: false });
            let tools = Tools { arena, verifier: Verifier::new(7), threads: 2 };
            let ring = Ring::start(tools.clone()).inspect_err(|e| println!("skipped: {e}")).ok()?;
            let dir = tempfile::tempdir().unwrap();
            let options = File::options().read(true).write(true).create_new(true).to_owned();
            let file = DataFile::new(options.open(dir.path().join("f")).unwrap().into());
            Some(Self { ring, file, tools, _dir: dir })
        }

        fn fail(&self, times: u32) {
            self.ring.shared.failures.store(times, Ordering::Relaxed);
        }

        fn submit(&self, work: Work) -> oneshot::Receiver<FsResult<Outcome>> {
            let (reply, answer) = oneshot::channel();
            self.ring.submit(Request { file: Arc::clone(&self.file), offset: 0, work, reply });
            answer
        }

        /// What the call is answered; again until it is not to be sent again.
        fn until_done(&self, work: impl Fn() -> Work) -> (FsResult<Outcome>, usize) {
            for tries in 0.. {
                match block_on(self.submit(work())).expect("every call is answered") {
                    Err(FsError::Jukebox) => {}
                    other => return (other, tries),
                }
            }
            unreachable!()
        }

        fn write(&self) -> Work {
            let data = self.tools.arena.copy_from(b"0123456789").unwrap().into();
            Work::Write { data, stable: Stability::Unstable }
        }

        fn sync(&self) -> Work {
            Work::Sync { count: 0, turn: Some(block_on(self.file.begin_sync())) }
        }
    }

    #[test]
    fn a_ring_that_fails_is_replaced_by_another_and_then_by_threads() {
        let Some(trial) = Trial::new() else { return };
        trial.until_done(|| trial.write()).0.unwrap();
        // The bell's read returns first, so that a failure meets the call that follows.
        for failures in [1, RESTARTS - 1, 1, 1] {
            trial.fail(failures);
            for _ in 0..3 {
                let (written, _) = trial.until_done(|| trial.write());
                assert_eq!(written.unwrap().count, 10);
                let (read, _) = trial.until_done(|| Work::Read { count: 100 });
                assert_eq!(read.unwrap().data.to_vec(), b"0123456789");
                trial.until_done(|| trial.sync()).0.unwrap();
            }
        }
    }

    #[test]
    fn a_sync_that_a_failed_ring_leaves_changes_the_verifier_and_the_next_one_is_made() {
        let Some(trial) = Trial::new() else { return };
        trial.until_done(|| trial.write()).0.unwrap();
        let before = trial.tools.verifier.bytes();
        let mut abandoned = 0;
        for _ in 0..RESTARTS {
            trial.fail(1);
            abandoned += trial.until_done(|| trial.sync()).1;
        }
        assert!(abandoned > 0, "no sync was in flight when the ring failed");
        assert_ne!(trial.tools.verifier.bytes(), before);
        trial.until_done(|| trial.sync()).0.unwrap();
    }

    #[test]
    fn a_ring_that_is_dropped_finishes_what_was_submitted() {
        for failures in [0, 1, RESTARTS + 1] {
            let Some(trial) = Trial::new() else { return };
            trial.fail(failures);
            let answers: Vec<_> = (0..20).map(|_| trial.submit(trial.write())).collect();
            drop(trial.ring);
            for answer in answers {
                let answer = block_on(answer).expect("every call is answered");
                assert!(answer.is_ok() || failures > 0, "{answer:?}");
            }
        }
    }
}
