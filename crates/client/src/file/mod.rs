//! Open files with a cursor.
//!
//! `File` implements the traits of Tokio. Sequential reads are read ahead (`read_ahead`), and sequential
//! writes are sent in the background (`write_behind`); both use an `handles::File`, which has no cursor.

mod read_ahead;
mod write_behind;

use std::{
    io::{self, ErrorKind, SeekFrom},
    ops::Range,
    path::{Path, PathBuf},
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, ready},
};

use millrace_buffer::{Buffer, Views};
use millrace_runtime::{BoxFuture, RuntimeExt, sync::Mutex};
use tokio::io::{AsyncRead, AsyncSeek, AsyncWrite, ReadBuf};

use self::{read_ahead::ReadAhead, write_behind::WriteBehind};
use crate::{
    Client, Error, FileTimes, LockKind, Metadata, ReadInto, SetxattrOption,
    handles::{self, resolve::bad_path},
    ops::{FileHandle, SetAttributes},
    paths::bytes,
};

/// Access mode of an open file.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Access {
    pub(crate) read: bool,
    pub(crate) write: bool,
    pub(crate) append: bool,
}

/// An open file with a cursor. [`Client::open`], [`Client::create`] and [`crate::OpenOptions`] return one.
///
/// It implements [`AsyncRead`], [`AsyncWrite`] and [`AsyncSeek`], so the extension traits of Tokio and
/// [`tokio::io::copy`] work on it. [`Self::read_at_into`] and [`Self::write_at_from`] move data at an offset
/// into and out of registered memory, without a copy and without the cursor; any number of them may be in
/// flight.
///
/// ```
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/doc/server.rs"));
/// # fn main() { run(|url| async move {
/// use std::io::SeekFrom;
/// use millrace_client::{Client, OpenOptions};
/// use tokio::io::{AsyncReadExt, AsyncSeekExt, AsyncWriteExt};
///
/// let client = Client::connect(&url).await?;
/// let mut file = OpenOptions::new().read(true).write(true).create(true).open(&client, "data").await?;
/// file.write_all(b"hello, world").await?;
/// file.seek(SeekFrom::Start(7)).await?;
/// let mut word = [0; 5];
/// file.read_exact(&mut word).await?;
/// assert_eq!(&word, b"world");
/// file.sync_all().await?;
///
/// // Into memory of the client's arena: over RDMA the server writes there.
/// let read = file.read_at_into(0, client.buffer(5)?).await?;
/// assert_eq!(&read.buffer[..], b"hello");
/// # Ok(()) }) }
/// ```
///
/// # Reading
/// A stream that is read sequentially is read ahead, with up to 8 READs in flight. A read sees all data that
/// this client, through any of its files, had written when the read began. Changes by other clients become
/// visible after a seek to another position and at the end of the file; prefetched data may be older.
///
/// # Writing
/// Data of the stream is coalesced into WRITEs of up to [`handles::Client::wsize`] bytes, up to 8 of which are
/// in flight.
/// - `write` returns when the data is accepted. Other files and other clients may not see it yet.
/// - `flush` sends all data and waits for the replies: the data is visible to all clients, and this client
///   retains it until it is on stable storage (the WRITEs are UNSTABLE, RFC 1813 section 3.3.7). Data that a
///   restarted server has lost is rewritten.
/// - [`Self::sync_all`] and `shutdown` flush and COMMIT: the data is on stable storage.
/// - The first WRITE that fails is reported once, by the next `write`, `flush`, `shutdown` or
///   [`Self::sync_all`]. Its data is not written again.
/// - Dropping a file flushes and commits in the background; an error is only logged, and a runtime that shuts
///   down before loses data. Call `shutdown` to receive errors.
///
/// # Cancellation
/// Dropping the future of a `read` loses no data, and dropping that of a `write` accepts no data; the cursor
/// moves only when the future completes. After dropping a `write_all` or `read_exact`,
/// [`stream_position`](tokio::io::AsyncSeekExt) returns the progress. Dropping the future of `flush`,
/// `shutdown` or [`Self::sync_all`] leaves the data in flight; calling them again waits for it. A seek from
/// the end whose future is dropped may move the cursor later.
pub struct File {
    client: Client,
    inner: handles::File,
    path: PathBuf,
    access: Access,
    /// The owner of the file's locks.
    lock_owner: u64,
    /// Whether the file may have locks.
    locked: AtomicBool,
    write: Arc<WriteBehind>,
    /// Locked through `&mut self` only: the futures in it are not `Sync`, the file is.
    stream: Mutex<Stream>,
}

/// The state of the stream.
struct Stream {
    cursor: u64,
    read: ReadAhead,
    /// A seek relative to the end: gets the size of the file.
    seek: Option<BoxFuture<'static, Result<u64, Error>>>,
    /// Gets the size of the file before an append.
    end: Option<BoxFuture<'static, Result<u64, Error>>>,
    /// Offset of the next append while earlier appends are in flight.
    append_at: Option<u64>,
    /// The COMMIT of a shutdown.
    commit: Option<BoxFuture<'static, Result<(), Error>>>,
}

impl File {
    pub(crate) fn new(client: Client, handle: FileHandle, size: u64, path: PathBuf, access: Access) -> Self {
        let inner = handles::File::new(client.by_handle().clone(), handle);
        let write = WriteBehind::new(inner.clone(), client.by_handle().clone());
        let read = ReadAhead::new(size);
        let stream = Stream { cursor: 0, read, seek: None, end: None, append_at: None, commit: None };
        let (lock_owner, locked) = (client.runtime().random_u64(), AtomicBool::new(false));
        Self { client, inner, path, access, lock_owner, locked, write, stream: Mutex::new(stream) }
    }

    /// The path with which the file was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The client.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// The file handle.
    pub fn handle(&self) -> FileHandle {
        self.inner.handle()
    }

    /// The file in the protocol layer, which bypasses the stream: flush the stream before using it.
    pub fn by_handle(&self) -> &handles::File {
        &self.inner
    }

    /// Reads up to `buffer.len()` bytes at `offset` in one READ (of at most [`handles::Client::rsize`] bytes)
    /// into `buffer`, without a copy if the transport supports direct placement. First waits for WRITEs of
    /// the stream.
    ///
    /// The buffer is from [`Client::buffer`] and is returned with the data. A short count is the end of the
    /// file only if [`ReadInto::eof`] is set.
    ///
    /// # Errors
    /// Kind [`ErrorKind::PermissionDenied`] if the file was not opened for reading; the errors of
    /// [`handles::Client::read_into`]. The buffer is dropped then.
    pub async fn read_at_into(&self, offset: u64, buffer: Buffer) -> Result<ReadInto, Error> {
        self.check(self.access.read, "reading")?;
        self.write.drained().await;
        let read = self.inner.read_into_as(self.client.by_handle(), offset, buffer).await;
        read.map_err(|e| self.at(e))
    }

    /// Writes `data` at `offset`, UNSTABLE and without a copy, in WRITEs of at most [`handles::Client::wsize`]
    /// bytes sequentially. First waits for WRITEs of the stream. [`Self::sync_all`] makes the data stable.
    ///
    /// The data is a frozen [`Buffer`] from [`Client::buffer`]: `buffer.freeze().into()`. If the future is
    /// dropped, some of the WRITEs may be executed.
    ///
    /// # Errors
    /// Kind [`ErrorKind::PermissionDenied`] if the file was not opened for writing; the errors of
    /// [`handles::File::write_from`].
    pub async fn write_at_from(&self, offset: u64, data: Views) -> Result<(), Error> {
        self.check(self.access.write, "writing")?;
        self.write.drained().await;
        let written = self.inner.write_from_as(self.client.by_handle(), offset, data).await;
        written.map(drop).map_err(|e| self.at(e))
    }

    /// Flushes and makes all written data stable (COMMIT, RFC 1813 section 3.3.21). Data that a restarted
    /// server has lost is rewritten.
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/doc/server.rs"));
    /// # fn main() { run(|url| async move {
    /// # let client = millrace_client::Client::connect(&url).await?;
    /// let file = client.create("data").await?;
    /// let mut buffer = client.buffer(1 << 20)?;
    /// buffer.fill(7);
    /// file.write_at_from(0, buffer.freeze().into()).await?; // Sent from this memory.
    /// file.sync_all().await?;
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Errors
    /// The error of an earlier write; the errors of [`handles::File::commit`], after which a later call retries.
    pub async fn sync_all(&self) -> Result<(), Error> {
        self.write.flush().await.map_err(|e| self.at(e))?;
        self.inner.commit().await.map_err(|e| self.at(e))
    }

    /// As [`Self::sync_all`]: COMMIT of NFSv3 does not distinguish data from attributes.
    ///
    /// # Errors
    /// As [`Self::sync_all`].
    pub async fn sync_data(&self) -> Result<(), Error> {
        self.sync_all().await
    }

    /// Locks a range of bytes, and waits while others have conflicting locks: other files of this client too, each of
    /// which has its own locks, as with `F_OFD_SETLKW` of Linux. A new lock replaces the file's earlier locks in the
    /// range. An end of [`u64::MAX`] is the end of the file, however long it becomes. Locks require NFSv4.
    ///
    /// Reads after this call see what earlier holders of the lock have written. Dropping the future gives up the
    /// lock; dropping the file releases all its locks.
    ///
    /// ```
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/doc/server.rs"));
    /// # fn main() { run(|url| async move {
    /// use millrace_client::{Client, LockKind, Version};
    ///
    /// let client = Client::builder(&url).vers(Some(Version::V4_2)).connect().await?;
    /// let (one, other) = (client.create("data").await?, client.open("data").await?);
    /// one.lock(0..100, LockKind::Exclusive).await?;
    /// assert!(!other.try_lock(50..60, LockKind::Shared).await?);
    /// one.unlock(0..100).await?;
    /// assert!(other.try_lock(50..60, LockKind::Shared).await?);
    /// # Ok(()) }) }
    /// ```
    ///
    /// # Errors
    /// As [`handles::File::lock`].
    pub async fn lock(&self, range: Range<u64>, kind: LockKind) -> Result<(), Error> {
        self.write.drained().await;
        self.locked.store(true, Ordering::Release);
        self.inner.lock(self.lock_owner, range, kind).await.map_err(|e| self.at(e))
    }

    /// As [`Self::lock`], without waiting. `false` if another lock conflicts.
    ///
    /// # Errors
    /// As [`handles::File::lock`].
    pub async fn try_lock(&self, range: Range<u64>, kind: LockKind) -> Result<bool, Error> {
        self.write.drained().await;
        self.locked.store(true, Ordering::Release);
        let conflict = self.inner.try_lock(self.lock_owner, range, kind).await;
        Ok(conflict.map_err(|e| self.at(e))?.is_none())
    }

    /// Flushes, and unlocks a range of bytes.
    ///
    /// # Errors
    /// The error of an earlier write, after which the range is still locked; as [`handles::File::lock`].
    pub async fn unlock(&self, range: Range<u64>) -> Result<(), Error> {
        self.write.flush().await.map_err(|e| self.at(e))?;
        self.inner.unlock(self.lock_owner, range).await.map_err(|e| self.at(e))
    }

    /// Flushes, and releases all locks of the file, as dropping it does without a result. Without locks it has no effect.
    ///
    /// # Errors
    /// As [`Self::unlock`].
    pub async fn unlock_all(&self) -> Result<(), Error> {
        if !self.locked.load(Ordering::Acquire) {
            return Ok(());
        }
        match self.unlock(0..u64::MAX).await {
            Err(Error::LocksUnsupported) => Ok(()), // The lock has failed too.
            unlocked => unlocked,
        }
    }

    /// The attributes. The size includes data of the stream.
    ///
    /// # Errors
    /// The errors of [`handles::Client::getattr`].
    pub async fn metadata(&self) -> Result<Metadata, Error> {
        self.write.drained().await;
        Ok(self.inner.attributes().await.map_err(|e| self.at(e))?.into())
    }

    /// Truncates or extends the file to `size` bytes; a new part reads as zeros. The cursor is unchanged.
    ///
    /// # Errors
    /// Kind [`ErrorKind::PermissionDenied`] if the file was not opened for writing; the errors of
    /// [`handles::Client::setattr`].
    pub async fn set_len(&self, size: u64) -> Result<(), Error> {
        self.check(self.access.write, "writing")?;
        self.set(SetAttributes { size: Some(size), ..SetAttributes::default() }).await
    }

    /// Sets the permission bits, as [`Client::set_permissions`].
    ///
    /// # Errors
    /// As [`Client::set_permissions`].
    pub async fn set_permissions(&self, mode: u32) -> Result<(), Error> {
        self.set(SetAttributes { mode: Some(mode & 0o7777), ..SetAttributes::default() }).await
    }

    /// Sets the times of last access and modification, as [`Client::set_times`].
    ///
    /// # Errors
    /// As [`Client::set_times`].
    pub async fn set_times(&self, times: FileTimes) -> Result<(), Error> {
        let (atime, mtime) = times.to_nfs(self.client.by_handle().version())?;
        self.set(SetAttributes { atime, mtime, ..SetAttributes::default() }).await
    }

    /// The value of an extended attribute, as [`Client::xattr`].
    ///
    /// # Errors
    /// As [`Client::xattr`].
    pub async fn xattr(&self, name: impl AsRef<[u8]>) -> Result<Option<Vec<u8>>, Error> {
        self.client.by_handle().xattr(self.handle(), name).await.map_err(|e| self.at(e))
    }

    /// Creates or replaces an extended attribute, as [`Client::set_xattr`].
    ///
    /// # Errors
    /// As [`Client::set_xattr`].
    pub async fn set_xattr(&self, name: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Result<(), Error> {
        let (client, how) = (self.client.by_handle(), SetxattrOption::Either);
        let set = client.set_xattr(self.handle(), name, value.as_ref(), how).await;
        set.map(drop).map_err(|e| self.at(e))
    }

    /// The names of the extended attributes, as [`Client::list_xattrs`].
    ///
    /// # Errors
    /// As [`Client::list_xattrs`].
    pub async fn list_xattrs(&self) -> Result<Vec<Vec<u8>>, Error> {
        self.client.by_handle().list_xattrs(self.handle()).await.map_err(|e| self.at(e))
    }

    /// Removes an extended attribute, as [`Client::remove_xattr`].
    ///
    /// # Errors
    /// As [`Client::remove_xattr`].
    pub async fn remove_xattr(&self, name: impl AsRef<[u8]>) -> Result<(), Error> {
        let removed = self.client.by_handle().remove_xattr(self.handle(), name).await;
        removed.map(drop).map_err(|e| self.at(e))
    }

    async fn set(&self, attributes: SetAttributes) -> Result<(), Error> {
        self.write.drained().await;
        let set = self.client.by_handle().setattr(self.handle(), attributes, None).await;
        set.map(drop).map_err(|e| self.at(e))
    }

    /// Whether all written data has been flushed and committed.
    pub(crate) fn is_closed(&self) -> bool {
        !self.locked.load(Ordering::Acquire)
            && self.write.is_idle()
            && (!self.access.write || self.inner.retained_bytes() == 0)
    }

    /// Flushes and commits. Logs an error, because no caller receives it.
    pub(crate) fn close_logged(&self) -> impl Future<Output = Result<(), Error>> + Send + use<> {
        let (write, file, path) = (Arc::clone(&self.write), self.inner.clone(), self.path.clone());
        let locked = self.locked.load(Ordering::Acquire).then_some(self.lock_owner);
        async move {
            let flushed = write.flush().await;
            if let Some(owner) = locked
                && let Err(error) = file.unlock(owner, 0..u64::MAX).await
            {
                tracing::debug!(path = %path.display(), %error, "cannot release the locks of a dropped file");
            }
            let closed = match flushed {
                Ok(()) => file.commit().await,
                failed => failed,
            };
            closed.inspect_err(|error| {
                tracing::warn!(path = %path.display(), %error, "a dropped file could not be closed: written data may be lost");
            })
        }
    }

    /// Adds the path of this file to an error.
    fn at(&self, e: Error) -> Error {
        e.at(bytes(&self.path))
    }

    fn check(&self, allowed: bool, purpose: &str) -> Result<(), Error> {
        if allowed {
            return Ok(());
        }
        let reason = format!("the file was not opened for {purpose}");
        Err(bad_path(bytes(&self.path), ErrorKind::PermissionDenied, &reason))
    }

    /// The error of a stream operation.
    fn io(&self, e: Error) -> io::Error {
        self.at(e).into()
    }

    /// Completes a started seek relative to the end.
    fn poll_seek(&mut self, cx: &mut Context<'_>) -> Poll<Result<u64, Error>> {
        let stream = self.stream.get_mut();
        if let Some(seek) = &mut stream.seek {
            let sought = ready!(seek.as_mut().poll(cx));
            stream.seek = None;
            stream.cursor = sought?;
        }
        Poll::Ready(Ok(stream.cursor))
    }

    /// Offset of the next write of the stream.
    fn poll_offset(&mut self, cx: &mut Context<'_>) -> Poll<Result<u64, Error>> {
        let cursor = ready!(self.poll_seek(cx))?;
        let stream = self.stream.get_mut();
        if !self.access.append {
            return Poll::Ready(Ok(cursor));
        }
        if let Some(at) = stream.append_at.filter(|_| !self.write.is_idle()) {
            return Poll::Ready(Ok(at));
        }
        let inner = &self.inner;
        let end = stream.end.get_or_insert_with(|| {
            let file = inner.clone();
            Box::pin(async move { Ok(file.attributes().await?.size) })
        });
        let end = ready!(end.as_mut().poll(cx));
        stream.end = None;
        Poll::Ready(end)
    }

    fn poll_read_stream(&mut self, cx: &mut Context<'_>, out: &mut ReadBuf<'_>) -> Poll<Result<(), Error>> {
        self.check(self.access.read, "reading")?;
        let cursor = ready!(self.poll_seek(cx))?;
        ready!(self.write.poll_drained(cx));
        let stream = self.stream.get_mut();
        let len = ready!(stream.read.poll_read(cx, (&self.inner, self.client.by_handle()), cursor, out))?;
        stream.cursor += len as u64;
        Poll::Ready(Ok(()))
    }

    fn poll_write_stream(&mut self, cx: &mut Context<'_>, data: &[u8]) -> Poll<Result<usize, Error>> {
        self.check(self.access.write, "writing")?;
        let offset = ready!(self.poll_offset(cx))?;
        let len = ready!(self.write.poll_write(cx, offset, data))?;
        let stream = self.stream.get_mut();
        stream.cursor = offset + len as u64;
        stream.append_at = Some(stream.cursor);
        stream.commit = None;
        Poll::Ready(Ok(len))
    }

    fn poll_close(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        ready!(self.write.poll_flush(cx))?;
        let (inner, stream) = (&self.inner, self.stream.get_mut());
        let commit = stream.commit.get_or_insert_with(|| {
            let file = inner.clone();
            Box::pin(async move { file.commit().await })
        });
        let committed = ready!(commit.as_mut().poll(cx));
        stream.commit = None;
        Poll::Ready(committed)
    }

    /// The target of a seek to `position`; `None` if it is relative to the end.
    fn target(base: u64, by: i64) -> io::Result<u64> {
        base.checked_add_signed(by).ok_or_else(|| {
            io::Error::new(ErrorKind::InvalidInput, "invalid seek to a negative or overflowing position")
        })
    }
}

impl AsyncRead for File {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, out: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        this.poll_read_stream(cx, out).map_err(|e| this.io(e))
    }
}

impl AsyncWrite for File {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        this.poll_write_stream(cx, data).map_err(|e| this.io(e))
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.write.poll_flush(cx).map_err(|e| self.io(e))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        this.poll_close(cx).map_err(|e| this.io(e))
    }
}

impl AsyncSeek for File {
    fn start_seek(self: Pin<&mut Self>, position: SeekFrom) -> io::Result<()> {
        let this = self.get_mut();
        let stream = this.stream.get_mut();
        if stream.seek.is_some() {
            return Err(io::Error::other("a seek is in progress: call poll_complete first"));
        }
        match position {
            SeekFrom::Start(at) => stream.cursor = at,
            SeekFrom::Current(by) => stream.cursor = Self::target(stream.cursor, by)?,
            SeekFrom::End(by) => {
                let (file, write) = (this.inner.clone(), Arc::clone(&this.write));
                stream.seek = Some(Box::pin(async move {
                    write.drained().await;
                    let size = file.attributes().await?.size;
                    Self::target(size, by).map_err(|e| Error::InvalidInput(e.to_string()))
                }));
            }
        }
        Ok(())
    }

    fn poll_complete(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<u64>> {
        let this = self.get_mut();
        this.poll_seek(cx).map_err(|e| this.io(e))
    }
}

impl Drop for File {
    fn drop(&mut self) {
        if !self.is_closed() {
            let close = self.close_logged();
            self.client.runtime().spawn("close file", Box::pin(async { drop(close.await) }));
        }
    }
}

impl std::fmt::Debug for File {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("File")
            .field("path", &self.path)
            .field("handle", &self.handle())
            .finish_non_exhaustive()
    }
}
