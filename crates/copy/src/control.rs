//! Events of a copy, and the stop signal for its tasks.

use tokio::sync::watch;

use crate::Error;

/// An event of a copy.
#[derive(Debug)]
#[non_exhaustive]
pub enum Event<'a> {
    /// The copy of a regular file starts.
    Started {
        /// The path of the file, as in [`Item::path`](crate::Item::path).
        path: &'a str,
        /// The size of the file in bytes, from its directory entry.
        bytes: u64,
    },
    /// Data was written to the target.
    Written {
        /// Number of bytes.
        bytes: usize,
    },
    /// A file, symbolic link or hard link was copied.
    Copied {
        /// Its path, as in [`Item::path`](crate::Item::path).
        path: &'a str,
    },
    /// An object of the target was removed.
    Deleted {
        /// The path that its copy would have in the source, as in [`Item::path`](crate::Item::path).
        path: &'a str,
    },
    /// An object could not be copied.
    Failed {
        /// The path of the object, as in [`Item::path`](crate::Item::path).
        path: &'a str,
        /// Reason.
        error: &'a Error,
    },
}

/// Receives the events of a copy, from all of its tasks.
pub(crate) type Listener = Box<dyn Fn(Event<'_>) + Send + Sync>;

/// State that the tasks of one copy share with its caller.
pub(crate) struct Control {
    stop: watch::Sender<bool>,
    listener: Listener,
}

impl Control {
    pub(crate) fn new(listener: Listener) -> Self {
        Self { stop: watch::Sender::new(false), listener }
    }

    /// Reports `event` to the caller.
    pub(crate) fn report(&self, event: Event<'_>) {
        (self.listener)(event);
    }

    /// Stops the copies of all files.
    pub(crate) fn stop(&self) {
        self.stop.send_replace(true);
    }

    /// Waits until [`Self::stop`] is called.
    pub(crate) async fn stopped(&self) {
        // Fails only if the sender has been dropped, which `self` owns.
        drop(self.stop.subscribe().wait_for(|s| *s).await);
    }

    /// Whether [`Self::stop`] was called.
    pub(crate) fn is_stopped(&self) -> bool {
        *self.stop.borrow()
    }

    /// Returns [`Error::Stopped`] if [`Self::stop`] was called.
    pub(crate) fn check(&self) -> Result<(), Error> {
        if self.is_stopped() { Err(Error::Stopped) } else { Ok(()) }
    }
}
