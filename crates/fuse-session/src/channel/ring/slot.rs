//! An entry of a queue, from its request to the reply.

use std::{
    io::{self, IoSlice},
    sync::Arc,
};

use crate::protocol::{DecodeError, Header, Message, Reply, RingEntry};
use futures::task::AtomicWaker;
use parking_lot::Mutex;
use rustix::io::Errno;

/// The replies that wait to be committed.
#[derive(Default)]
pub(super) struct Replies {
    /// Numbers of their slots.
    ready: Mutex<Vec<u32>>,
    /// Wakes the driver.
    pub(super) driver: AtomicWaker,
}

impl Replies {
    /// Moves the numbers of the slots with replies to the end of `slots`.
    pub(super) fn take(&self, slots: &mut Vec<u32>) {
        slots.append(&mut self.ready.lock());
    }

    fn push(&self, slot: u32, wakes: bool) {
        let mut ready = self.ready.lock();
        let is_first = ready.is_empty();
        ready.push(slot);
        drop(ready);
        if is_first && wakes {
            self.driver.wake();
        }
    }
}

/// An entry of a queue of the kernel.
pub(in crate::channel) struct Slot {
    /// The queue, and the number of the slot.
    pub(super) id: (u16, u32),
    replies: Arc<Replies>,
    state: Mutex<State>,
}

struct State {
    /// The memory; `None` while [`Slot::request`] uses it.
    entry: Option<RingEntry>,
    /// A request waits for its reply.
    is_open: bool,
    /// Number with which the reply is committed.
    commit: u64,
    /// The node of the request.
    node: u64,
    /// The reply that was sent while [`Slot::request`] was using the memory.
    early: Option<Vec<u8>>,
}

impl Slot {
    pub(super) fn new(id: (u16, u32), entry: RingEntry, replies: &Arc<Replies>) -> Self {
        let state = State { entry: Some(entry), is_open: false, commit: 0, node: 0, early: None };
        Self { id, replies: Arc::clone(replies), state: Mutex::new(state) }
    }

    /// Passes the request that the kernel has written to `handle`.
    ///
    /// # Errors
    /// Those of `handle`; [`io::ErrorKind::InvalidData`] for a request with wrong lengths.
    pub(super) fn request<T>(&self, handle: impl FnOnce(&[u8]) -> io::Result<T>) -> io::Result<T> {
        let mut state = self.state.lock();
        let Some(mut entry) = state.entry.take() else {
            return Err(io::Error::other("a request arrived in an entry that is in use"));
        };
        let request = entry.request().map_err(invalid)?;
        let (header, _) = Header::decode(request.message).map_err(invalid)?;
        (state.is_open, state.commit, state.node) = (true, request.commit, header.node);
        drop(state);
        let result = handle(request.message);
        let mut state = self.state.lock();
        if let Some(reply) = state.early.take() {
            let _ = entry.set_reply(&[IoSlice::new(&reply)]); // `reply` has made it fit.
            self.replies.push(self.id.1, false); // The driver calls this function.
        }
        state.entry = Some(entry);
        result
    }

    /// Sends the reply to the request with the number `unique`. Only the first reply has an effect.
    pub(in crate::channel) fn reply(&self, unique: u64, message: &Message<'_>) {
        let mut state = self.state.lock();
        if !std::mem::take(&mut state.is_open) {
            return;
        }
        let Some(entry) = &mut state.entry else {
            // The handler may still use the request, which is in the same memory.
            state.early = Some(message.slices().iter().flat_map(|part| part.iter().copied()).collect());
            return;
        };
        if !entry.set_reply(&message.slices()) {
            let error = Reply::Error(Errno::IO.raw_os_error()).encode(unique);
            let _ = entry.set_reply(&error.slices()); // A header always fits.
        }
        drop(state);
        self.replies.push(self.id.1, true);
    }

    /// The node of the request that waits for its reply.
    pub(super) fn waiting(&self) -> Option<u64> {
        let state = self.state.lock();
        state.is_open.then_some(state.node)
    }

    /// The number with which the reply is committed.
    pub(super) fn commit(&self) -> u64 {
        self.state.lock().commit
    }
}

fn invalid(e: DecodeError) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, e)
}
