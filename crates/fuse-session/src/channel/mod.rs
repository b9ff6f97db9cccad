//! The channel to the kernel: reads requests from `/dev/fuse`, passes them to a [`Handler`], writes replies and
//! notifications.
//!
//! A task of an executor reads requests without blocking, if the handler does not block. Otherwise threads read them, each
//! from its own clone of the device (FUSE_DEV_IOC_CLONE). A request is decoded in the buffers into which it was read; a
//! handler may keep that of the data of a write. A reply is one writev(2) on the clone that the request was read from, of
//! data that is not copied before. With `io_uring` the task receives most requests over io_uring instead (`ring/`).

mod call;
mod clone;
mod interrupts;
mod receive;
mod ring;
mod session;

#[cfg(test)]
pub(crate) use self::interrupts::Interrupts;
pub use self::{
    call::{Call, Handler},
    interrupts::Interruption,
    receive::WriteData,
    session::{Notifier, Session, SessionOptions},
};

/// Requests and bytes that a task receives before other tasks of the executor run.
const BATCH: usize = 16;
const BATCH_BYTES: usize = 256 << 10;
/// Smallest buffer for requests that the kernel accepts (`FUSE_MIN_READ_BUFFER`).
const MIN_BUFFER: usize = 8192;
