//! The session of a FUSE file system with the Linux kernel: from a mount point to the requests that arrive there.
//!
//! A file system implements [`channel::Handler`]. [`mountpoint::check`] examines the directory, [`settings::start`] mounts
//! it ([`device::MountRequest`]) and negotiates, and [`serving::Serving`] serves the session on threads or on an executor until
//! it is unmounted. A handler that does not answer at once hands requests to a [`dispatch::Dispatcher`], and ends those of
//! killed processes with [`interrupt::cancel_at`]. [`protocol`] is the codec, without I/O.

pub mod caller;
pub mod channel;
pub mod device;
pub mod dispatch;
mod error;
pub mod flags;
pub mod interrupt;
pub mod mountpoint;
pub mod protocol;
pub mod serving;
pub mod settings;

pub use error::MountError;
