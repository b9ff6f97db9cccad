//! The connections of a client, a pool for each process.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use millrace_client::{Client, Options, RetryPolicy, TokioRuntime, Url};
use pyo3::prelude::*;
use tokio::{
    runtime::Handle,
    sync::{OnceCell, Semaphore, SemaphorePermit},
};

use crate::{
    errors::Failure,
    runtime::{self, OfProcess},
};

/// Maximum number of READ and WRITE calls in flight for whole files and ranges, over all operations of a client. Each
/// has memory of the client's arena, which fails an allocation beyond its limit (1 GiB), where these calls wait.
const CALLS: usize = 64;
/// Number of WRITEs in flight for one file (`millrace_client::Client::write`).
const WRITES: usize = 8;

/// The connections of a process.
pub(crate) struct Connected {
    pub(crate) client: Client,
    calls: Semaphore,
}

impl Connected {
    fn new(client: Client) -> Self {
        Self { client, calls: Semaphore::new(CALLS) }
    }

    /// Waits until a READ may be sent; dropping the result permits the next one.
    pub(crate) async fn read(&self) -> Option<SemaphorePermit<'_>> {
        self.calls.acquire().await.ok() // The semaphore is never closed.
    }

    /// Waits until the WRITEs of a whole file may be sent.
    pub(crate) async fn write(&self) -> Option<SemaphorePermit<'_>> {
        self.calls.acquire_many(WRITES as u32).await.ok()
    }
}

/// The export of a URL, which each process mounts at its first use.
pub(crate) struct Export {
    url: Url,
    options: Options,
    /// Whether the paths in errors begin with the export.
    absolute: bool,
    mounted: Mutex<OfProcess<Arc<OnceCell<Connected>>>>,
    closed: AtomicBool,
}

/// The arguments of `millrace_nfs.Client` that are not part of the URL, `millrace_nfs._settings.Settings`.
#[derive(FromPyObject)]
pub(crate) struct Settings {
    pub(crate) timeout: Option<f64>,
    pub(crate) connect_timeout: Option<f64>,
    pub(crate) retry: Option<f64>,
    pub(crate) uid: Option<u32>,
    pub(crate) gid: Option<u32>,
    pub(crate) gids: Option<Vec<u32>>,
}

impl Settings {
    fn options(self) -> Result<Options, Failure> {
        let mut options = Options::default();
        let seconds = |name: &str, value: f64| {
            Duration::try_from_secs_f64(value)
                .map_err(|e| Failure::Value(format!("{name}={value}: {e}; expected a number of seconds")))
        };
        if let Some(value) = self.timeout {
            options = options.timeout(seconds("timeout", value)?);
        }
        if let Some(value) = self.connect_timeout {
            options = options.connect_timeout(seconds("connect_timeout", value)?);
        }
        if let Some(value) = self.retry {
            let max_elapsed = seconds("retry", value)?;
            options = options.retry(RetryPolicy { max_elapsed, ..RetryPolicy::default() });
        }
        let mut who = options.credential.clone();
        if let Some(uid) = self.uid {
            who.uid = uid;
        }
        if let Some(gid) = self.gid {
            who.gid = gid;
        }
        if let Some(gids) = self.gids {
            who.gids = gids;
        }
        Ok(options.credential(who))
    }
}

impl Export {
    pub(crate) fn new(url: &str, settings: Settings, absolute: bool) -> Result<Self, Failure> {
        Ok(Self {
            url: url.parse::<Url>()?,
            options: settings.options()?,
            absolute,
            mounted: Mutex::new(OfProcess::new(Arc::default())),
            closed: AtomicBool::new(false),
        })
    }

    /// Returns the client of this process, which [`Mount::client`] connects.
    ///
    /// # Errors
    /// ValueError after [`Self::close`].
    pub(crate) fn mount(&self, py: Python<'_>) -> PyResult<Mount> {
        if self.closed.load(Ordering::Relaxed) {
            return Err(Failure::Closed("client").exception(py));
        }
        // As in `runtime::handle`, the lock is held only with the GIL.
        let mut mounted = self.mounted.lock().unwrap_or_else(PoisonError::into_inner);
        let cell = match mounted.get() {
            Some(cell) => Arc::clone(cell),
            None => {
                let cell = Arc::<OnceCell<Connected>>::default();
                *mounted = OfProcess::new(Arc::clone(&cell));
                cell
            }
        };
        let (url, options, absolute) = (self.url.clone(), self.options.clone(), self.absolute);
        Ok(Mount { cell, url, options, absolute, runtime: runtime::handle(py)? })
    }

    /// Makes later operations fail. The first call returns the client of this process, which the caller shuts down.
    pub(crate) fn close(&self) -> Option<Client> {
        if self.closed.swap(true, Ordering::Relaxed) {
            return None;
        }
        let mounted = self.mounted.lock().unwrap_or_else(PoisonError::into_inner);
        mounted.get().and_then(|cell| cell.get()).map(|connected| connected.client.clone())
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Relaxed)
    }
}

/// The client of this process, connected or to be connected.
pub(crate) struct Mount {
    cell: Arc<OnceCell<Connected>>,
    url: Url,
    options: Options,
    absolute: bool,
    pub(crate) runtime: Handle,
}

impl Mount {
    /// The client. Connects it first if no operation has done so.
    pub(crate) async fn client(&self) -> Result<Client, Failure> {
        Ok(self.connected().await?.client.clone())
    }

    /// As [`Self::client`], with the limit of calls.
    pub(crate) async fn connected(&self) -> Result<&Connected, Failure> {
        let connect = || async {
            let builder = Client::builder(self.url.clone()).options(self.options.clone());
            let client = builder.runtime(TokioRuntime::from_handle(self.runtime.clone())).connect().await?;
            Ok::<_, Failure>(Connected::new(client))
        };
        self.cell.get_or_try_init(connect).await
    }

    /// The error of an operation with the path that its exception has.
    pub(crate) fn located(&self, failure: Failure) -> Failure {
        match self.cell.get().filter(|_| self.absolute) {
            Some(connected) => failure.below(connected.client.export()),
            None => failure,
        }
    }
}
