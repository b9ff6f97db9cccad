//! Read readiness of file descriptors that are not byte streams, such as the event channels of adapters.

use std::{
    io,
    task::{Context, Poll},
};

/// A file descriptor that is registered with a [`crate::Runtime`] for read readiness. Any thread can poll it.
pub trait Readiness: Send {
    /// Calls `operation` whenever the descriptor may be readable or has an error, until it returns a result other than
    /// [`io::ErrorKind::WouldBlock`]. Returns `Pending` when it would block; the waker of the latest call is
    /// woken when the descriptor may be readable again. `operation` must return `WouldBlock` only if
    /// *nothing* is left to read, because there is no wake-up for data that it leaves.
    ///
    /// # Errors
    /// Those of `operation`, and of a runtime that has ended.
    fn poll_io(
        &mut self,
        cx: &mut Context<'_>,
        operation: &mut dyn FnMut() -> io::Result<()>,
    ) -> Poll<io::Result<()>>;
}
