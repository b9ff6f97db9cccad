//! Requests over io_uring (Linux 6.14, `Documentation/filesystems/fuse-io-uring.rst`).
//!
//! The kernel has a queue of requests for each processor. The mount registers entries for each queue: memory for a request
//! and its reply. The completion of an entry's command is a request; the next command of the entry sends the reply and
//! waits for the next request. One io_uring has the entries of all queues, and the task that also reads `/dev/fuse` drives
//! it (`driver.rs`). FUSE_INIT, FUSE_FORGET, FUSE_INTERRUPT and notifications stay on `/dev/fuse`.
//!
//! Task work is deferred (IORING_SETUP_DEFER_TASKRUN): the kernel accesses the entries' memory only while the thread that
//! has enabled the ring is in io_uring_enter(2). The ring is therefore enabled by the task that drives it, which must stay
//! on one thread.

mod driver;
mod slot;
mod unblock;
mod uring;

use std::{
    fs, io,
    os::fd::OwnedFd,
    sync::{Arc, atomic::AtomicBool},
};

use crate::protocol::InitFlags;
use millrace_runtime::RuntimeRef;

use self::uring::Uring;
pub(super) use self::{
    driver::{Driver, Next},
    slot::Slot,
};
use super::MIN_BUFFER;

/// Entries of all queues at the start, if the limits for one queue permit it.
const ENTRIES: usize = 64;
/// Smallest and largest number of entries of a queue at the start.
const MIN_DEPTH: usize = 2;
const MAX_DEPTH: usize = 8;
/// The processors that the kernel has queues for.
const POSSIBLE: &str = "/sys/devices/system/cpu/possible";
/// The parameter of the kernel that permits FUSE over io_uring.
const PARAMETER: &str = "/sys/module/fuse/parameters/enable_uring";

/// A ring that exists, for which the kernel has not yet any entries.
pub(super) struct Ring {
    uring: Uring,
    queues: u16,
    payload: usize,
    /// Set when a request has arrived.
    is_used: Arc<AtomicBool>,
}

impl Ring {
    /// Creates a ring for a kernel that offers `offered`, with `payload` bytes for the largest request. `None`: the kernel
    /// cannot, and the reason is logged.
    pub(super) fn new(offered: InitFlags, payload: u32) -> Option<Self> {
        let reason = if !offered.contains(InitFlags::OVER_IO_URING) {
            format!(
                "the kernel does not offer it (enable it with `echo Y > {PARAMETER}` as root; it needs Linux 6.14 \
                 with CONFIG_FUSE_IO_URING)"
            )
        } else {
            match Self::create(payload) {
                Ok(ring) => return Some(ring),
                Err(e) => {
                    format!("cannot create an io_uring: {e} (check /proc/sys/kernel/io_uring_disabled)")
                }
            }
        };
        tracing::warn!("mount option \"io_uring\" has no effect, requests are read from /dev/fuse: {reason}");
        None
    }

    fn create(payload: u32) -> io::Result<Self> {
        let queues = count(&fs::read_to_string(POSSIBLE)?)
            .ok_or_else(|| io::Error::other(format!("{POSSIBLE} has an unknown format")))?;
        Ok(Self {
            uring: Uring::new()?,
            queues,
            payload: (payload as usize).max(MIN_BUFFER),
            is_used: Arc::default(),
        })
    }

    /// Becomes true when a request has arrived.
    pub(super) fn is_used(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.is_used)
    }

    /// Entries of a queue at the start.
    fn depth(&self) -> usize {
        (ENTRIES / usize::from(self.queues)).clamp(MIN_DEPTH, MAX_DEPTH)
    }

    /// Prepares to serve the session of `device`.
    ///
    /// # Errors
    /// Those of eventfd(2), of io_uring_register(2) and of the runtime.
    pub(super) fn driver(self, rt: &RuntimeRef, device: OwnedFd) -> io::Result<Driver> {
        let (depth, bytes) = (self.depth(), self.payload);
        tracing::debug!(queues = self.queues, depth, bytes, "requests over io_uring");
        Driver::new(self, Arc::clone(rt), device)
    }
}

/// The number of processors in a list such as `0-3,8`.
fn count(list: &str) -> Option<u16> {
    let mut processors = 0_u16;
    for range in list.trim().split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (u16, u16) = (first.parse().ok()?, last.parse().ok()?);
        processors = processors.checked_add(last.checked_sub(first)?.checked_add(1)?)?;
    }
    Some(processors)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_without_the_capability_get_no_ring() {
        assert!(Ring::new(InitFlags::all().difference(InitFlags::OVER_IO_URING), 1 << 20).is_none());
    }

    #[test]
    fn processors_of_a_list_are_counted() {
        let counts = [("0\n", 1), ("0-1\n", 2), ("0-3,8-11,15", 9), ("0-65534", 65535)];
        assert!(counts.into_iter().all(|(list, n)| count(list) == Some(n)));
        assert!(["", "a", "3-1", "0-65535", "0,"].into_iter().all(|list| count(list).is_none()));
    }
}
