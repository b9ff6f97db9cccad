//! Executors for commands.

use tokio::runtime::{Builder, Runtime};

use crate::failure::Failure;

fn failed(e: std::io::Error) -> Failure {
    Failure::new(format!("cannot start: {e}; are there too many processes or open files?"))
}

/// One thread, for commands that make a few calls.
///
/// # Errors
/// When the operating system refuses threads or descriptors.
pub fn small() -> Result<Runtime, Failure> {
    Builder::new_current_thread().enable_all().build().map_err(failed)
}

/// Several threads, for commands that transfer data.
///
/// # Errors
/// When the operating system refuses threads or descriptors.
pub fn large() -> Result<Runtime, Failure> {
    let threads = std::thread::available_parallelism().map_or(2, |n| n.get().clamp(2, 8));
    Builder::new_multi_thread().worker_threads(threads).enable_all().build().map_err(failed)
}
