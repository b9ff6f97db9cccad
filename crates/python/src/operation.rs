//! Operations, which Python code waits for or awaits.

use std::{
    pin::Pin,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use pyo3::{
    IntoPyObjectExt,
    exceptions::PyRuntimeError,
    prelude::*,
    types::{PyCFunction, PyDict, PyTuple},
};
use tokio::{runtime::Handle, time::timeout};

use crate::{errors::Failure, runtime};

/// Time between checks for signals while an operation waits: Ctrl-C ends it after this time.
const TICK: Duration = Duration::from_millis(100);

/// Converts the result of an operation to a Python object, with the GIL.
pub(crate) type Finish = Box<dyn FnOnce(Python<'_>) -> PyResult<Py<PyAny>> + Send>;

type Running = Pin<Box<dyn Future<Output = Result<Finish, Failure>> + Send>>;

/// An operation that has not started. `wait` runs it in the calling thread without the GIL; `start` runs it in the
/// background for an event loop of asyncio. It runs once; to drop it cancels it.
#[pyclass(frozen, module = "millrace_nfs._native")]
pub(crate) struct Operation {
    running: Mutex<Option<Running>>,
    /// Number of bytes that the operation has transferred, if it counts them.
    progress: Arc<AtomicU64>,
    handle: Handle,
}

impl Operation {
    pub(crate) fn new<T>(
        py: Python<'_>,
        running: impl Future<Output = Result<T, Failure>> + Send + 'static,
    ) -> PyResult<Self>
    where
        T: for<'py> IntoPyObject<'py> + Send + 'static,
    {
        Self::finished_by(py, async move {
            let result = running.await?;
            Ok(Box::new(move |py: Python<'_>| result.into_py_any(py)) as Finish)
        })
    }

    /// An operation whose future also converts the result.
    pub(crate) fn finished_by(
        py: Python<'_>,
        running: impl Future<Output = Result<Finish, Failure>> + Send + 'static,
    ) -> PyResult<Self> {
        Ok(Self {
            running: Mutex::new(Some(Box::pin(running))),
            progress: Arc::default(),
            handle: runtime::handle(py)?,
        })
    }

    /// Counts the transferred bytes in `progress`.
    pub(crate) fn counted(self, progress: Arc<AtomicU64>) -> Self {
        Self { progress, ..self }
    }

    fn take(&self) -> PyResult<Running> {
        let running = self.running.lock().unwrap_or_else(PoisonError::into_inner).take();
        running.ok_or_else(|| PyRuntimeError::new_err("the operation has already run"))
    }
}

#[pymethods]
impl Operation {
    /// Runs the operation and returns its result. Signals are handled meanwhile. Calls `progress`, if it is not None,
    /// with the number of transferred bytes at least every 100 ms, and at the end.
    #[pyo3(signature = (progress=None))]
    fn wait(&self, py: Python<'_>, progress: Option<Py<PyAny>>) -> PyResult<Py<PyAny>> {
        let mut running = self.take()?;
        let report = |py: Python<'_>| match &progress {
            Some(progress) => progress.call1(py, (self.progress.load(Ordering::Relaxed),)).map(drop),
            None => Ok(()),
        };
        loop {
            let ended = py.detach(|| self.handle.block_on(async { timeout(TICK, &mut running).await }));
            match ended {
                Ok(Ok(finish)) => {
                    report(py)?;
                    return finish(py);
                }
                Ok(Err(failure)) => return Err(failure.exception(py)),
                Err(_) => {
                    let interrupted = py.check_signals().and_then(|()| report(py));
                    if let Err(e) = interrupted {
                        py.detach(|| drop(running));
                        return Err(e);
                    }
                }
            }
        }
    }

    /// Number of bytes that the operation has transferred.
    #[getter]
    fn transferred(&self) -> u64 {
        self.progress.load(Ordering::Relaxed)
    }

    /// Starts the operation in the background. Returns a future of `event_loop`; to cancel it cancels the operation.
    fn start(&self, py: Python<'_>, event_loop: Py<PyAny>) -> PyResult<Py<PyAny>> {
        let running = self.take()?;
        let future = event_loop.call_method0(py, "create_future")?;
        let settled = future.clone_ref(py);
        let handle = self.handle.clone();
        let task = self.handle.spawn(async move {
            let result = running.await;
            // A thread that waits for the GIL must not be the one that drives the connections.
            handle.spawn_blocking(move || settle(&event_loop, settled, result));
        });
        let abort = task.abort_handle();
        let cancel = move |args: &Bound<'_, PyTuple>, _: Option<&Bound<'_, PyDict>>| -> PyResult<()> {
            if args.get_item(0)?.call_method0("cancelled")?.is_truthy()? {
                abort.abort();
            }
            Ok(())
        };
        let cancel = PyCFunction::new_closure(py, None, None, cancel)?;
        future.call_method1(py, "add_done_callback", (cancel,))?;
        Ok(future)
    }
}

/// Gives the result to the future in the thread of its event loop.
fn settle(event_loop: &Py<PyAny>, future: Py<PyAny>, result: Result<Finish, Failure>) {
    // While the interpreter ends it is dropped.
    Python::try_attach(|py| {
        let result = match result {
            Ok(finish) => finish(py),
            Err(failure) => Err(failure.exception(py)),
        };
        let (method, value) = match result {
            Ok(value) => ("set_result", value),
            Err(e) => ("set_exception", e.into_value(py).into_any()),
        };
        let set = move |_: &Bound<'_, PyTuple>, _: Option<&Bound<'_, PyDict>>| -> PyResult<()> {
            Python::attach(|py| {
                if future.call_method0(py, "done")?.is_truthy(py)? {
                    return Ok(()); // Cancelled.
                }
                future.call_method1(py, method, (&value,)).map(drop)
            })
        };
        let set = PyCFunction::new_closure(py, None, None, set);
        // An event loop that was closed meanwhile refuses the callback.
        drop(set.and_then(|set| event_loop.call_method1(py, "call_soon_threadsafe", (set,))));
    });
}
