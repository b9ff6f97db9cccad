//! A request that waits for its reply.

use std::{
    io,
    os::fd::{AsFd, OwnedFd},
    sync::Arc,
};

use crate::protocol::{Header, InitFlags, Message, Operation, Reply, WriteRequest};
use millrace_buffer::Arena;
use rustix::io::{Errno, writev};

use super::{
    clone::clone,
    interrupts::{Interruption, Interrupts},
    receive::WriteData,
    ring::Slot,
};

/// The operations of a file system.
pub trait Handler: Send + Sync + 'static {
    /// The capabilities to enable in addition to those of all file systems. `offered`: those of the kernel.
    fn capabilities(&self, offered: InitFlags) -> InitFlags;

    /// Where the data of writes is received, if [`Self::write`] keeps it.
    fn arena(&self) -> Option<&Arena> {
        None
    }

    /// Handles a request other than a write, now or later. The thread that has read it waits: it must not block for long,
    /// and not at all in [`super::Session::run_on`].
    fn handle(&self, call: Call, operation: Operation<'_>);

    /// As [`Self::handle`], for a write.
    fn write(&self, call: Call, write: WriteRequest, data: WriteData<'_>);

    /// Lowers the lookup count of a node.
    fn forget(&self, _node: u64, _lookups: u64) {}
}

/// One descriptor of a session.
pub(super) struct Channel {
    pub(super) device: OwnedFd,
    pub(super) interrupts: Arc<Interrupts>,
}

impl Channel {
    /// Another descriptor of the session.
    pub(super) fn clone_device(&self) -> io::Result<Arc<Self>> {
        let device = clone(self.device.as_fd())?;
        Ok(Arc::new(Self { device, interrupts: Arc::clone(&self.interrupts) }))
    }

    /// Sends a message. The kernel takes all of it or none.
    pub(super) fn send(&self, message: &Message<'_>) -> Result<(), Errno> {
        rustix::io::retry_on_intr(|| writev(&self.device, &message.slices())).map(drop)
    }
}

/// A request that waits for its reply. If it is dropped without one, the request fails with EIO.
pub struct Call {
    pub(super) header: Header,
    pub(super) channel: Arc<Channel>,
    /// The entry of the ring that the reply goes to; `None` for a request of the device.
    slot: Option<Arc<Slot>>,
    is_answered: bool,
}

impl Call {
    pub(super) fn new(header: Header, channel: Arc<Channel>, slot: Option<Arc<Slot>>) -> Self {
        Self { header, channel, slot, is_answered: false }
    }

    /// The node that the request applies to.
    pub fn node(&self) -> u64 {
        self.header.node
    }

    /// User and group of the caller.
    pub fn ids(&self) -> (u32, u32) {
        (self.header.uid, self.header.gid)
    }

    /// The thread of the caller; 0 if it is unknown.
    pub fn tid(&self) -> u32 {
        self.header.pid
    }

    /// Completes when a signal waits for the caller. A call has one.
    pub fn interruption(&self) -> Interruption {
        self.channel.interrupts.interruption(self.header.unique)
    }

    /// Sends the reply.
    pub fn reply(mut self, reply: &Reply<'_>) {
        self.send(reply);
    }

    /// Sends an error.
    pub fn error(self, e: Errno) {
        self.reply(&Reply::Error(e.raw_os_error()));
    }

    /// Sends the result of a request without a result.
    pub fn finish(self, done: Result<(), Errno>) {
        match done {
            Ok(()) => self.reply(&Reply::Empty),
            Err(e) => self.error(e),
        }
    }

    /// Marks a request that has no reply.
    pub(super) fn dismiss(mut self) {
        self.is_answered = true;
    }

    fn send(&mut self, reply: &Reply<'_>) {
        self.is_answered = true;
        let message = reply.encode(self.header.unique);
        if let Some(slot) = &self.slot {
            return slot.reply(self.header.unique, &message);
        }
        match self.channel.send(&message) {
            // The kernel has aborted the request, or the mount has ended.
            Ok(()) | Err(Errno::NOENT | Errno::NODEV) => {}
            Err(e) => tracing::warn!(opcode = self.header.opcode, "the kernel rejected a reply: {e}"),
        }
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        if !self.is_answered {
            self.send(&Reply::Error(Errno::IO.raw_os_error()));
        }
    }
}
