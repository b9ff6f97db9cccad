//! Makes the kernel send requests to the entries of a queue.

use std::{
    io,
    os::fd::OwnedFd,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread,
};

use crate::protocol::Notification;
use core_affinity::{CoreId, set_for_current};
use rustix::io::writev;

/// Numbers of requests that the kernel does not use: it counts from 2 in steps of 2.
static NEXT: AtomicU64 = AtomicU64::new(1 << 63);

/// Sends `count` notifications, each of which causes a request, from a thread on the processor of the queue. The handler
/// rejects the requests. The kernel accepts only nodes that are files, and in its cache: `nodes` are tried in turn. If there
/// is none, the next request of a process on this processor has the same effect.
///
/// # Errors
/// The operating system refuses the thread.
pub(super) fn start(device: Arc<OwnedFd>, nodes: Vec<u64>, (queue, count): (usize, usize)) -> io::Result<()> {
    let send = move |node: u64| {
        let unique = NEXT.fetch_add(2, Ordering::Relaxed);
        writev(&*device, &Notification::Retrieve { unique, node }.encode().slices()).is_ok()
    };
    let send_all = move || {
        if !set_for_current(CoreId { id: queue }) {
            tracing::warn!(queue, "cannot run on the processor of the queue: requests in it may wait");
        }
        if let Some(node) = nodes.into_iter().find(|node| send(*node)) {
            (1..count).for_each(|_| _ = send(node));
        }
    };
    thread::Builder::new().name("millrace-queue".into()).spawn(send_all).map(drop)
}
