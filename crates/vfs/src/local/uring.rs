//! A thread with an io_uring.
//!
//! Requests arrive in an inbox; an eventfd, which the ring itself reads, wakes the thread. Everything that arrived
//! goes to the kernel in one `io_uring_enter`, which also waits for completions.
//!
//! The invariant that makes this sound: a [`Transfer`] that the kernel works on is owned by `flights`, boxed, with
//! the vector of pieces that its entry points to, and leaves it only when its completion has been seen. The thread
//! ends only when no flight is left (or leaks them, if it fails), so nothing that the kernel may still write is freed.

#![allow(unsafe_code)] // Pushing entries; see the invariant above.

use std::{
    collections::VecDeque,
    io,
    os::fd::{AsRawFd, OwnedFd},
    sync::{Arc, mpsc},
    thread,
};

use buffer::Arena;
use io_uring::{IoUring, opcode, squeue, types};
use parking_lot::Mutex;
use rustix::{event::EventfdFlags, io::Errno};

use super::{
    engine::{Verifier, sync_range, write_flags},
    sys,
    transfer::{Begun, Next, Request, Transfer, Work},
};
use crate::FsError;

/// Entries of a ring: transfers in flight at once; more wait in the inbox.
const ENTRIES: u32 = 256;
/// Marks the read of the eventfd.
const WAKE: u64 = u64::MAX;

#[derive(Default)]
struct Inbox {
    requests: VecDeque<Request>,
    closed: bool,
}

struct Shared {
    inbox: Mutex<Inbox>,
    bell: OwnedFd,
}

impl Shared {
    fn ring_bell(&self) {
        // It can fail only when the counter is full, and then the thread is awake anyway.
        let _ = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
    }
}

/// A handle to the thread. Dropping it lets what was submitted finish.
pub(super) struct Ring {
    shared: Arc<Shared>,
}

impl Ring {
    /// Starts the thread.
    ///
    /// # Errors
    /// When the machine refuses io_uring or a thread.
    pub(super) fn start(arena: Arena, verifier: Arc<Verifier>) -> io::Result<Self> {
        let bell = rustix::event::eventfd(0, EventfdFlags::CLOEXEC)?;
        let shared = Arc::new(Shared { inbox: Mutex::default(), bell });
        let theirs = Arc::clone(&shared);
        let (tx, rx) = mpsc::channel();
        thread::Builder::new().name("local-uring".into()).spawn(move || {
            sys::drop_write_privileges();
            let ring = match IoUring::new(ENTRIES) {
                Ok(ring) => {
                    drop(tx.send(Ok(())));
                    ring
                }
                Err(e) => return drop(tx.send(Err(e))),
            };
            let guard = CloseInbox(&theirs);
            Driver::new(ring, &theirs, arena, verifier).run();
            drop(guard);
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
        let quiet = inbox.requests.is_empty();
        inbox.requests.push_back(request);
        drop(inbox);
        // If there was one already, the bell has been rung for it, or the thread waits for a free entry.
        if quiet {
            self.shared.ring_bell();
        }
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        self.shared.inbox.lock().closed = true;
        self.shared.ring_bell();
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

/// A transfer that the kernel works on, with the pieces that its entry points to.
struct Flight {
    transfer: Box<Transfer>,
    pieces: Vec<libc::iovec>,
}

struct Driver<'a> {
    ring: IoUring,
    shared: &'a Shared,
    arena: Arena,
    verifier: Arc<Verifier>,
    flights: Vec<Option<Flight>>,
    free: Vec<usize>,
    bell_value: Box<[u8; 8]>,
    bell_armed: bool,
}

impl<'a> Driver<'a> {
    fn new(ring: IoUring, shared: &'a Shared, arena: Arena, verifier: Arc<Verifier>) -> Self {
        // One entry is the bell's.
        let slots = ENTRIES as usize - 1;
        Self {
            ring,
            shared,
            arena,
            verifier,
            flights: (0..slots).map(|_| None).collect(),
            free: (0..slots).rev().collect(),
            bell_value: Box::new([0; 8]),
            bell_armed: false,
        }
    }

    fn run(mut self) {
        loop {
            self.arm_bell();
            let closed = self.take_requests();
            if closed && self.free.len() == self.flights.len() {
                break;
            }
            match self.ring.submit_and_wait(1) {
                Ok(_) => {}
                Err(e) if matches!(e.raw_os_error(), Some(libc::EINTR | libc::EAGAIN | libc::EBUSY)) => {}
                Err(error) => {
                    tracing::error!(%error, "io_uring failed; its thread stops");
                    return;
                }
            }
            self.take_completions();
        }
        self.disarm_bell();
    }

    /// Lets the ring read the eventfd, so that a request ends the wait.
    fn arm_bell(&mut self) {
        if self.bell_armed {
            return;
        }
        let bell = types::Fd(self.shared.bell.as_raw_fd());
        let entry = opcode::Read::new(bell, self.bell_value.as_mut_ptr(), 8).build().user_data(WAKE);
        self.bell_armed = self.push(&entry);
    }

    /// Ends the read of the eventfd before its memory goes.
    fn disarm_bell(&mut self) {
        self.shared.ring_bell();
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
            if let Begun::Going(transfer) = Transfer::begin(request, &self.arena) {
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
            match flight.transfer.advance(result, &self.verifier) {
                Next::Again(transfer) => self.launch(transfer),
                Next::Answered => {}
            }
        }
    }
}

impl Drop for Driver<'_> {
    /// After a failure or a panic the kernel may still write into memory of ours; that memory is never given back.
    fn drop(&mut self) {
        self.flights.drain(..).flatten().for_each(std::mem::forget);
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
