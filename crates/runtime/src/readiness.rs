//! Readiness of file descriptors that are not byte streams, such as the event channels of adapters.

use std::{
    io,
    task::{Context, Poll},
};

/// A file descriptor that a [`crate::Runtime`] watches for something to read. Any thread may poll it.
pub trait Readiness: Send {
    /// Tries `operation` whenever there may be something to read, until it has an outcome other than
    /// [`io::ErrorKind::WouldBlock`]. `Pending` when it would block; the waker of the latest call is called when it is
    /// worth another try. `operation` must have seen that there is *nothing* left to read before it says that it would
    /// block: it is not woken for what it leaves.
    ///
    /// # Errors
    /// Those of `operation`, and of a runtime that has ended.
    fn poll_io(
        &mut self,
        cx: &mut Context<'_>,
        operation: &mut dyn FnMut() -> io::Result<()>,
    ) -> Poll<io::Result<()>>;
}
