//! The same client without `async`: each call blocks its thread until it is answered.
//!
//! A background thread drives the connections. The functions panic when they are called from `async` code, as
//! [`tokio::runtime::Runtime::block_on`] does.

use std::future::Future;

use millrace_runtime::{RuntimeRef, tokio_rt::TokioRuntime};

use crate::{Error, Options, Url};

/// The thread that drives connections. Dropping it does not wait.
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
}

impl Drop for Driver {
    fn drop(&mut self) {
        // Waiting here would panic when the last clone is dropped inside another runtime.
        if let Some(r) = self.0.take() {
            r.shutdown_background();
        }
    }
}

/// As [`crate::exports`].
///
/// # Errors
/// As [`crate::exports`].
pub fn exports(url: &Url, options: &Options) -> Result<Vec<(String, Vec<String>)>, Error> {
    let driver = Driver::new()?;
    driver.wait(crate::exports(driver.runtime()?, url, options))
}
