//! The io_uring: commands on the device.
//!
//! Invariant: the kernel gets the address of an entry's memory with [`Uring::register`], and accesses it only in
//! io_uring_enter(2) of the thread that has called [`Uring::enable`] (IORING_SETUP_DEFER_TASKRUN), which nothing but
//! [`Uring::enter`] calls.
#![allow(unsafe_code)]

use std::{
    io,
    os::fd::{AsRawFd, BorrowedFd},
};

use crate::protocol::{RingCommand, RingEntry};
use io_uring::{IoUring, cqueue, squeue::Entry128};
use rustix::io::Errno;

/// Space for commands that are submitted together; there is twice as much for completions, and the kernel keeps the rest.
const SUBMISSIONS: u32 = 64;
/// `IORING_OP_URING_CMD`.
const URING_CMD: u8 = 46;

/// An iovec of the header and one of the payload.
type Parts = [usize; 4];

/// An io_uring for commands of 128 bytes.
pub(super) struct Uring {
    ring: IoUring<Entry128, cqueue::Entry>,
    /// The addresses of the registered entries; the kernel reads them when it executes the command.
    #[expect(clippy::vec_box)] // They must not move.
    registered: Vec<Box<Parts>>,
}

/// Part of a command (`struct io_uring_sqe`).
struct Submission {
    command: RingCommand,
    argument: [u8; 80],
    address: u64,
    length: u32,
}

impl Uring {
    /// Creates a ring, which [`Self::enable`] enables.
    ///
    /// # Errors
    /// Those of io_uring_setup(2).
    pub(super) fn new() -> io::Result<Self> {
        let ring = IoUring::<Entry128, cqueue::Entry>::builder()
            .setup_single_issuer()
            .setup_defer_taskrun()
            .setup_taskrun_flag()
            .setup_r_disabled()
            .build(SUBMISSIONS)?;
        Ok(Self { ring, registered: Vec::new() })
    }

    /// Selects the descriptor that becomes readable when [`Self::has_work`].
    ///
    /// # Errors
    /// Those of io_uring_register(2).
    pub(super) fn notify(&self, eventfd: BorrowedFd<'_>) -> io::Result<()> {
        self.ring.submitter().register_eventfd(eventfd.as_raw_fd())
    }

    /// Enables the ring for commands of the calling thread.
    ///
    /// # Errors
    /// Those of io_uring_register(2).
    pub(super) fn enable(&self) -> io::Result<()> {
        self.ring.submitter().register_enable_rings()
    }

    /// Queues the registration of `entry` for a queue of `device`. `number` identifies its completions.
    ///
    /// The memory of `entry` must stay allocated as long as this ring, and must not be accessed until a completion.
    ///
    /// # Errors
    /// Those of [`Self::enter`].
    pub(super) fn register(
        &mut self,
        device: BorrowedFd<'_>,
        (queue, number): (u16, u32),
        entry: &mut RingEntry,
    ) -> io::Result<()> {
        let [header, payload] = entry.parts();
        let address = |part: &mut [u8]| part.as_mut_ptr().expose_provenance();
        let (header_length, payload_length) = (header.len(), payload.len());
        let parts = Box::new([address(header), header_length, address(payload), payload_length]);
        let submission = Submission {
            command: RingCommand::Register,
            argument: RingCommand::argument(queue, 0),
            address: parts.as_ptr().expose_provenance() as u64,
            length: 2,
        };
        self.registered.push(parts);
        self.push(device, &submission, number)
    }

    /// Queues the reply in an entry, after which the entry must not be accessed until its next completion.
    ///
    /// # Errors
    /// Those of [`Self::enter`].
    pub(super) fn commit(
        &mut self,
        device: BorrowedFd<'_>,
        (queue, number): (u16, u32),
        commit: u64,
    ) -> io::Result<()> {
        let argument = RingCommand::argument(queue, commit);
        let submission = Submission { command: RingCommand::CommitAndFetch, argument, address: 0, length: 0 };
        self.push(device, &submission, number)
    }

    fn push(&mut self, device: BorrowedFd<'_>, submission: &Submission, number: u32) -> io::Result<()> {
        // SAFETY: an `Entry128` has the layout of `struct io_uring_sqe` with 128 bytes, which consists of integers.
        let entry: Entry128 =
            unsafe { std::mem::transmute(submission.encode(device.as_raw_fd(), number.into())) };
        loop {
            // SAFETY: a registration points to `parts`, which `registered` keeps, and these to the memory of an entry,
            // which is kept, and not accessed until the completion (the driver's invariant). A commit has no address.
            if unsafe { self.ring.submission().push(&entry) }.is_ok() {
                return Ok(());
            }
            self.enter()?;
        }
    }

    /// Whether [`Self::enter`] or [`Self::completion`] has something to do.
    pub(super) fn has_work(&mut self) -> bool {
        let queue = self.ring.submission();
        !queue.is_empty() || queue.taskrun() || queue.cq_overflow()
    }

    /// Submits the queued commands and collects completions, without waiting.
    ///
    /// # Errors
    /// Those of io_uring_enter(2).
    pub(super) fn enter(&self) -> io::Result<()> {
        match self.ring.submit() {
            Ok(_) => Ok(()),
            // The kernel submits the rest at the next call.
            Err(e)
                if [Errno::INTR, Errno::AGAIN, Errno::BUSY]
                    .map(io::Error::from)
                    .iter()
                    .any(|known| known.raw_os_error() == e.raw_os_error()) =>
            {
                Ok(())
            }
            Err(e) => Err(e),
        }
    }

    /// Takes a completion: the number of the entry, and 0 or a negative errno.
    pub(super) fn completion(&mut self) -> Option<(u32, i32)> {
        let completion = self.ring.completion().next()?;
        Some((completion.user_data() as u32, completion.result()))
    }
}

impl Submission {
    /// Encodes `struct io_uring_sqe`.
    fn encode(&self, device: i32, user_data: u64) -> [u8; 128] {
        let mut bytes = [0; 128];
        bytes[0] = URING_CMD;
        bytes[4..8].copy_from_slice(&device.to_ne_bytes());
        bytes[8..12].copy_from_slice(&(self.command as u32).to_ne_bytes());
        bytes[16..24].copy_from_slice(&self.address.to_ne_bytes());
        bytes[24..28].copy_from_slice(&self.length.to_ne_bytes());
        bytes[32..40].copy_from_slice(&user_data.to_ne_bytes());
        bytes[48..].copy_from_slice(&self.argument);
        bytes
    }
}
