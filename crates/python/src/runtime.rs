//! The Tokio runtime of this process.

use std::sync::{Mutex, PoisonError};

use pyo3::{exceptions::PyRuntimeError, prelude::*};
use tokio::runtime::{Builder, Handle, Runtime};

/// The runtime and the ID of its process. A child of fork(2) has none of its threads, and creates another one.
static RUNTIME: Mutex<Option<(u32, &'static Runtime)>> = Mutex::new(None);

/// Returns the runtime of this process. One thread drives all connections, as in the blocking client.
///
/// The lock is held only with the GIL, which os.fork() needs: the child never inherits a locked one.
pub(crate) fn handle(_gil: Python<'_>) -> PyResult<Handle> {
    let pid = std::process::id();
    let mut current = RUNTIME.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((owner, runtime)) = *current
        && owner == pid
    {
        return Ok(runtime.handle().clone());
    }
    let runtime = Builder::new_multi_thread().worker_threads(1).thread_name("millrace").enable_all().build();
    let runtime = runtime.map_err(|e| PyRuntimeError::new_err(format!("cannot start a runtime: {e}")))?;
    // It lives as long as the process: its end would wait for the threads, which a forked child does not have.
    let runtime: &'static Runtime = Box::leak(Box::new(runtime));
    *current = Some((pid, runtime));
    Ok(runtime.handle().clone())
}

/// A value of one process. In a child of fork(2) it is absent, and is never dropped: its drop would use connections and
/// threads that belong to the parent.
pub(crate) struct OfProcess<T> {
    pid: u32,
    value: Option<T>,
}

impl<T> OfProcess<T> {
    pub(crate) fn new(value: T) -> Self {
        Self { pid: std::process::id(), value: Some(value) }
    }

    /// The value, if this is its process.
    pub(crate) fn get(&self) -> Option<&T> {
        self.value.as_ref().filter(|_| self.pid == std::process::id())
    }
}

impl<T> Drop for OfProcess<T> {
    fn drop(&mut self) {
        if self.pid != std::process::id() {
            std::mem::forget(self.value.take());
        }
    }
}
