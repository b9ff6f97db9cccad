//! The native file: a stream with a cursor.

use std::{
    io::SeekFrom,
    ops::Range,
    path::PathBuf,
    pin::Pin,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    task::{Context, Poll, ready},
};

use millrace_client::{File as Stream, LockKind, OpenOptions};
use pyo3::prelude::*;
use tokio::{
    io::{AsyncRead, AsyncSeekExt, AsyncWriteExt, ReadBuf},
    sync::{Mutex as Lock, OnceCell, OwnedMutexGuard},
};

use crate::{
    connection::{Export, Mount},
    errors::{Failure, at},
    memory::{Destination, NewBytes, UserBuffer, keep_freed_memory},
    metadata::{Stat, stat},
    operation::{Finish, Operation},
    runtime::OfProcess,
};

/// How a file is opened.
#[derive(Clone, Copy, FromPyObject)]
pub(crate) struct Access {
    pub(crate) read: bool,
    pub(crate) write: bool,
    pub(crate) append: bool,
    pub(crate) truncate: bool,
    pub(crate) create: bool,
    pub(crate) create_new: bool,
}

/// The stream of one process; opened again in a child of fork(2), at its first operation.
type Opened = Arc<OnceCell<Arc<Lock<Stream>>>>;

/// An open file.
#[pyclass(frozen, module = "millrace_nfs._native")]
pub(crate) struct File {
    export: Arc<Export>,
    path: PathBuf,
    access: Access,
    opened: Mutex<OfProcess<Opened>>,
    /// The cursor after the last operation.
    cursor: Arc<AtomicU64>,
    closed: AtomicBool,
}

/// What an operation needs of a [`File`].
struct Use {
    opened: Opened,
    mount: Mount,
    path: PathBuf,
    access: Access,
    cursor: Arc<AtomicU64>,
}

impl Use {
    /// Waits for earlier operations, and returns the stream.
    async fn stream(&self) -> Result<OwnedMutexGuard<Stream>, Failure> {
        let open = || async {
            let client = self.mount.client().await?;
            let options = self.access.reopened().options();
            let mut stream = options.open(&client, &self.path).await.map_err(at(&self.path))?;
            stream.seek(SeekFrom::Start(self.cursor.load(Ordering::Relaxed))).await?;
            Ok::<_, Failure>(Arc::new(Lock::new(stream)))
        };
        let stream = self.opened.get_or_try_init(open).await?;
        Ok(Arc::clone(stream).lock_owned().await)
    }

    /// The error of an operation with the path of the file.
    fn located(&self, failure: Failure) -> Failure {
        self.mount.located(failure.or_at(&self.path))
    }

    /// Remembers the cursor, for a process that opens the file again.
    async fn moved(&self, stream: &mut Stream) -> Result<u64, Failure> {
        let cursor = stream.stream_position().await?;
        self.cursor.store(cursor, Ordering::Relaxed);
        Ok(cursor)
    }
}

impl File {
    pub(crate) fn new(export: Arc<Export>, path: PathBuf, access: Access, stream: Stream) -> Self {
        let opened = Arc::new(OnceCell::new_with(Some(Arc::new(Lock::new(stream)))));
        let opened = Mutex::new(OfProcess::new(opened));
        Self { export, path, access, opened, cursor: Arc::default(), closed: AtomicBool::new(false) }
    }

    fn used(&self, py: Python<'_>) -> PyResult<Use> {
        if self.closed.load(Ordering::Relaxed) {
            return Err(Failure::Closed("file").exception(py));
        }
        let mount = self.export.mount(py)?;
        // As in `runtime::handle`, the lock is held only with the GIL.
        let mut current = self.opened.lock().unwrap_or_else(PoisonError::into_inner);
        let opened = match current.get() {
            Some(opened) => Arc::clone(opened),
            None => {
                let opened = Opened::default();
                *current = OfProcess::new(Arc::clone(&opened));
                opened
            }
        };
        let (path, access, cursor) = (self.path.clone(), self.access, Arc::clone(&self.cursor));
        Ok(Use { opened, mount, path, access, cursor })
    }

    /// An operation that calls `run` with the stream.
    fn operation<T, F>(
        &self,
        py: Python<'_>,
        run: impl FnOnce(OwnedMutexGuard<Stream>) -> F + Send + 'static,
    ) -> PyResult<Operation>
    where
        F: Future<Output = Result<(OwnedMutexGuard<Stream>, T), Failure>> + Send,
        T: for<'py> IntoPyObject<'py> + Send + 'static,
    {
        let used = self.used(py)?;
        Operation::new(py, async move {
            let done = async {
                let (mut stream, result) = run(used.stream().await?).await?;
                used.moved(&mut stream).await?;
                Ok(result)
            };
            done.await.map_err(|e| used.located(e))
        })
    }
}

#[pymethods]
impl File {
    /// Reads up to `len` bytes at the cursor; fewer only at the end of the file.
    fn read(&self, py: Python<'_>, len: usize) -> PyResult<Operation> {
        let used = self.used(py)?;
        keep_freed_memory(py, len);
        let mut data = NewBytes::new(py, len)?;
        Operation::finished_by(py, async move {
            let read = async {
                let mut stream = used.stream().await?;
                let filled = fill(&mut stream, &mut data).await?;
                used.moved(&mut stream).await?;
                Ok(filled)
            };
            let filled = read.await.map_err(|e| used.located(e))?;
            Ok(Box::new(move |py: Python<'_>| Ok(data.finish(py, filled).into_any())) as Finish)
        })
    }

    /// Fills a writable buffer from the cursor. Returns the number of bytes; fewer only at the end of the file.
    fn readinto(&self, py: Python<'_>, buffer: &Bound<'_, PyAny>) -> PyResult<Operation> {
        let mut buffer = UserBuffer::writable(buffer)?;
        self.operation(py, async move |mut stream| {
            let filled = fill(&mut stream, &mut buffer).await?;
            Ok((stream, filled))
        })
    }

    /// Writes all data at the cursor (or the end, if the file is open for appending). Returns the number of bytes.
    fn write(&self, py: Python<'_>, data: &Bound<'_, PyAny>) -> PyResult<Operation> {
        let data = UserBuffer::readable(data)?;
        self.operation(py, async move |mut stream| {
            stream.write_all(data.data()).await?;
            Ok((stream, data.data().len()))
        })
    }

    /// Moves the cursor: `whence` is 0, 1 or 2, as in io.IOBase.seek. Returns the new offset.
    fn seek(&self, py: Python<'_>, offset: i64, whence: i32) -> PyResult<Operation> {
        let invalid = |reason: String| Failure::Value(reason).exception(py);
        let to = match (whence, u64::try_from(offset)) {
            (0, Ok(offset)) => SeekFrom::Start(offset),
            (0, Err(_)) => return Err(invalid(format!("negative seek position {offset}"))),
            (1, _) => SeekFrom::Current(offset),
            (2, _) => SeekFrom::End(offset),
            _ => return Err(invalid(format!("whence is 0, 1 or 2, not {whence}"))),
        };
        self.operation(py, async move |mut stream| {
            let offset = stream.seek(to).await?;
            Ok((stream, offset))
        })
    }

    /// The cursor.
    fn position(&self) -> u64 {
        self.cursor.load(Ordering::Relaxed)
    }

    /// Sends all written data, and with `stable` makes it stable.
    fn flush(&self, py: Python<'_>, stable: bool) -> PyResult<Operation> {
        self.operation(py, async move |mut stream| {
            match stable {
                true => stream.sync_all().await?,
                false => stream.flush().await?,
            }
            Ok((stream, ()))
        })
    }

    /// Locks a range of bytes, up to the end of the file without `len`. Returns whether it is locked; waits with `wait`.
    fn lock(
        &self,
        py: Python<'_>,
        start: u64,
        len: Option<u64>,
        exclusive: bool,
        wait: bool,
    ) -> PyResult<Operation> {
        let kind = if exclusive { LockKind::Exclusive } else { LockKind::Shared };
        self.operation(py, async move |stream| {
            let locked = match wait {
                true => stream.lock(range(start, len), kind).await.map(|()| true)?,
                false => stream.try_lock(range(start, len), kind).await?,
            };
            Ok((stream, locked))
        })
    }

    fn unlock(&self, py: Python<'_>, start: u64, len: Option<u64>) -> PyResult<Operation> {
        self.operation(py, async move |stream| {
            stream.unlock(range(start, len)).await?;
            Ok((stream, ()))
        })
    }

    fn truncate(&self, py: Python<'_>, size: u64) -> PyResult<Operation> {
        self.operation(py, async move |stream| {
            stream.set_len(size).await?;
            Ok((stream, size))
        })
    }

    fn stat(&self, py: Python<'_>) -> PyResult<Operation> {
        self.operation(py, async move |stream| {
            let attributes: Stat = stat(Some(stream.handle()), stream.metadata().await?.attributes());
            Ok((stream, attributes))
        })
    }

    /// Makes all written data stable, releases the locks, and closes the file. After an error it is closed too.
    fn close(&self, py: Python<'_>) -> PyResult<Operation> {
        let used = self.used(py)?;
        self.closed.store(true, Ordering::Relaxed);
        // The stream ends with the operation, and the Python object may live on.
        *self.opened.lock().unwrap_or_else(PoisonError::into_inner) = OfProcess::new(Opened::default());
        Operation::new(py, async move {
            // A process that has not used the file has no data to write, and no locks.
            if used.opened.initialized() {
                let closed = async {
                    let mut stream = used.stream().await?;
                    let written = if used.access.writes() { stream.shutdown().await } else { Ok(()) };
                    let unlocked = stream.unlock_all().await;
                    written?;
                    Ok(unlocked?)
                };
                closed.await.map_err(|e| used.located(e))?;
            }
            Ok(())
        })
    }

    #[getter]
    fn closed(&self) -> bool {
        self.closed.load(Ordering::Relaxed)
    }
}

impl Access {
    /// The options that open a file with this access.
    pub(crate) fn options(self) -> OpenOptions {
        let mut options = OpenOptions::new();
        options.read(self.read).write(self.write).append(self.append);
        options.truncate(self.truncate).create(self.create).create_new(self.create_new);
        options
    }

    /// The access that opens the same file again.
    fn reopened(self) -> Self {
        Self { truncate: false, create: false, create_new: false, ..self }
    }

    fn writes(self) -> bool {
        self.write || self.append
    }
}

/// The range of a lock: to the end of the file, however long it becomes, without `len`.
fn range(start: u64, len: Option<u64>) -> Range<u64> {
    start..len.map_or(u64::MAX, |len| start.saturating_add(len))
}

/// Reads until `out` is full or the file ends. Returns the number of bytes.
async fn fill(stream: &mut Stream, out: &mut impl Destination) -> Result<usize, Failure> {
    let mut read = ReadBuf::uninit(out.memory());
    std::future::poll_fn(|cx| poll_fill(stream, cx, &mut read)).await?;
    Ok(read.filled().len())
}

fn poll_fill(stream: &mut Stream, cx: &mut Context<'_>, out: &mut ReadBuf<'_>) -> Poll<Result<(), Failure>> {
    while out.remaining() > 0 {
        let before = out.filled().len();
        ready!(Pin::new(&mut *stream).poll_read(cx, out))?;
        if out.filled().len() == before {
            break;
        }
    }
    Poll::Ready(Ok(()))
}
