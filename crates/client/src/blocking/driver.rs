//! Background thread of the blocking client.

use std::future::Future;

use millrace_runtime::{RuntimeRef, tokio_rt::TokioRuntime};

use crate::Error;

/// The thread that drives the connections. Drop does not wait for it.
pub(crate) struct Driver(Option<tokio::runtime::Runtime>);

impl Driver {
    pub(crate) fn new() -> Result<Self, Error> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("millrace-client")
            .enable_all()
            .build();
        runtime.map(|r| Self(Some(r))).map_err(|e| Error::Local(format!("cannot start a runtime: {e}")))
    }

    pub(crate) fn runtime(&self) -> Result<RuntimeRef, Error> {
        let tokio = self.0.as_ref().ok_or(Error::Closed)?;
        Ok(TokioRuntime::from_handle(tokio.handle().clone()))
    }

    pub(crate) fn wait<T, E: From<Error>>(&self, future: impl Future<Output = Result<T, E>>) -> Result<T, E> {
        self.0.as_ref().ok_or(Error::Closed)?.block_on(future)
    }

    /// As [`Self::wait`], for a future that cannot fail.
    pub(crate) fn complete(&self, future: impl Future<Output = ()>) {
        if let Some(runtime) = &self.0 {
            runtime.block_on(future);
        }
    }
}

impl std::fmt::Debug for Driver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Driver")
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        // Waiting would panic if the last clone is dropped inside another runtime.
        if let Some(r) = self.0.take() {
            r.shutdown_background();
        }
    }
}
