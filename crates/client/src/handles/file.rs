//! Open files: transfers of whole ranges with many calls in flight, and retention of unstable data.

use std::{
    io,
    ops::ControlFlow,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use futures::{StreamExt, stream::FuturesOrdered, stream::FuturesUnordered};
use millrace_buffer::{Buffer, Views};

use super::{Client, ReadInto, writeback::Writeback};
use crate::{
    Error,
    ops::{Attributes, CreateHow, FileHandle, FileType, SetAttributes, Wcc},
};

/// Result of a consumer of data: `()` continues, [`ControlFlow::Break`] stops, and an error of [`io::Result`]
/// stops with that error.
pub trait Flow {
    /// Whether to continue.
    ///
    /// # Errors
    /// The consumer's error.
    fn flow(self) -> io::Result<ControlFlow<()>>;
}

impl Flow for () {
    fn flow(self) -> io::Result<ControlFlow<()>> {
        Ok(ControlFlow::Continue(()))
    }
}

impl Flow for ControlFlow<()> {
    fn flow(self) -> io::Result<Self> {
        Ok(self)
    }
}

impl Flow for io::Result<()> {
    fn flow(self) -> io::Result<ControlFlow<()>> {
        self.map(ControlFlow::Continue)
    }
}

/// An open file.
///
/// NFSv3 has no open and close procedures: a `File` is a handle with the UNSTABLE data that has not been
/// committed. All `File`s of one handle and one mounted [`Client`] share that data. Call [`Self::commit`] or
/// [`Self::close`] to make written data stable; drop does not commit.
///
/// Until then the file retains the newest data of each byte, rewrites it if the server has lost it, and
/// returns it in reads. Writes to overlapping ranges are executed in the order in which they started. A write
/// whose future is dropped may be executed or not, but not after a later write to the same range. After an
/// error of a write, such as [`Error::Unreachable`], the content of its range on the server is undefined.
///
/// If the server revokes locks of the file, the data that is not committed is discarded: other clients may have changed
/// the file since, and the data must not replace theirs. Each `File` then reports [`Error::Discarded`] once, by the next
/// commit or close, as Linux reports a failure of write-back to each descriptor.
pub struct File {
    pub(super) shared: Arc<Writeback>,
    /// Number of discards of data that this `File` has reported.
    reported: AtomicU64,
}

impl Clone for File {
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared), reported: self.reported.load(Ordering::Relaxed).into() }
    }
}

impl Client {
    /// Opens the regular file at `path`, which [`Client::resolve`] looks up.
    ///
    /// # Errors
    /// As [`Client::resolve`]; [`Error::Path`] if it is not a regular file.
    pub async fn open(&self, path: impl AsRef<[u8]>) -> Result<File, Error> {
        let path = path.as_ref();
        let (handle, attributes) = self.resolve(path).await?;
        if attributes.file_type != FileType::Regular {
            return Err(Error::Path {
                path: String::from_utf8_lossy(path).into_owned(),
                reason: format!("not a regular file but a {:?}", attributes.file_type).to_lowercase(),
                kind: match attributes.file_type {
                    FileType::Directory => io::ErrorKind::IsADirectory,
                    _ => io::ErrorKind::InvalidInput,
                },
            });
        }
        Ok(File::new(self.clone(), handle))
    }

    /// Opens the file at `path` for writing. Creates it with the permission bits `mode` if it does not exist,
    /// otherwise truncates it.
    ///
    /// # Errors
    /// As [`Client::resolve_parent`] and [`Client::create`].
    pub async fn create_file(&self, path: impl AsRef<[u8]>, mode: u32) -> Result<File, Error> {
        let (dir, name) = self.resolve_parent(path).await?;
        let how = CreateHow::Unchecked(SetAttributes {
            mode: Some(mode),
            size: Some(0),
            ..SetAttributes::default()
        });
        let made = self.create(dir, &name, how).await?;
        Ok(File::new(self.clone(), made.handle))
    }
}

impl File {
    /// Returns an open file for `handle`.
    pub fn new(client: Client, handle: FileHandle) -> Self {
        let shared = Writeback::open(client, handle);
        let reported = shared.retained().reported().into();
        Self { shared, reported }
    }

    /// The file handle.
    pub fn handle(&self) -> FileHandle {
        self.shared.handle
    }

    /// The client.
    pub fn client(&self) -> &Client {
        &self.shared.client
    }

    /// Number of retained bytes, which are not yet on stable storage.
    pub fn retained_bytes(&self) -> usize {
        self.shared.retained().bytes()
    }

    /// Whether discarded data is to be reported.
    pub(super) fn has_unreported(&self) -> bool {
        self.shared.retained().has_unreported(self.reported.load(Ordering::Relaxed))
    }

    /// The end offset of the last retained byte; `None` without retained data. The file is at least that
    /// long, even if the server returns a smaller size.
    pub fn retained_end(&self) -> Option<u64> {
        self.shared.retained().end()
    }

    /// Number of changes of the file's data by this client, through any of its `File`s or by handle.
    pub(crate) fn changes(&self) -> u64 {
        self.shared.retained().changes()
    }

    /// Gets the attributes from the server. The size includes retained data that the server may have lost.
    ///
    /// # Errors
    /// As [`Client::getattr`].
    pub async fn attributes(&self) -> Result<Attributes, Error> {
        let end = self.retained_end();
        let mut attributes = self.client().getattr(self.handle()).await?;
        attributes.size = attributes.size.max(end.unwrap_or(0));
        Ok(attributes)
    }

    /// As [`Client::read_into`]. Retained data is returned as written, even if the server has lost it.
    ///
    /// # Errors
    /// As [`Client::read_into`].
    pub async fn read_into(&self, offset: u64, buffer: Buffer) -> Result<ReadInto, Error> {
        self.read_into_as(self.client(), offset, buffer).await
    }

    /// As [`Self::read_into`], with the credentials of `caller` (see [`Client::as_caller`]).
    ///
    /// # Errors
    /// As [`Client::read_into`].
    pub async fn read_into_as(
        &self,
        caller: &Client,
        offset: u64,
        buffer: Buffer,
    ) -> Result<ReadInto, Error> {
        let since = self.shared.check_locks()?;
        let wanted = buffer.len().min(caller.rsize() as usize);
        let retained = self.shared.retained().overlay(offset, wanted);
        let mut read = caller.read_into_since(Some(since), self.handle(), offset, buffer).await?;
        if let Some(retained) = retained {
            retained.put_into(&mut read);
        }
        Ok(read)
    }

    /// As [`Self::read_into`]. Returns the data as views of `buffer` (or of the received message), and
    /// whether the file ends after them.
    async fn read_views(&self, caller: &Client, offset: u64, buffer: Buffer) -> Result<(Views, bool), Error> {
        if self.shared.retained().bytes() > 0 {
            let read = self.read_into_as(caller, offset, buffer).await?;
            return Ok((read.buffer.freeze().into(), read.eof));
        }
        let since = self.shared.check_locks()?;
        let ok = caller.read_views(Some(since), self.handle(), offset, buffer).await?;
        Ok((ok.data, ok.eof))
    }

    /// Reads into `out` until it is full or the file ends, in sequential calls of at most [`Client::rsize`]
    /// bytes. Returns the number of bytes. The data is copied once. Retained data is handled as in
    /// [`Self::read_into`].
    ///
    /// # Errors
    /// As [`Client::read`].
    pub async fn read(&self, offset: u64, out: &mut [u8]) -> Result<usize, Error> {
        let mut done = 0;
        while done < out.len() {
            let Some(at) = offset.checked_add(done as u64) else { break };
            let wanted = (out.len() - done).min(self.client().rsize() as usize);
            let buffer = self.client().wait_for_buffer(wanted).await?;
            let (data, eof) = self.read_views(self.client(), at, buffer).await?;
            data.copy_to(&mut out[done..]);
            done += data.len();
            if eof {
                break;
            }
        }
        Ok(done)
    }

    /// Reads `len` bytes from `offset` (or up to the end of the file) with up to `depth` calls in flight, and
    /// passes offset and data to `each` in order, without a copy. Returns the number of bytes.
    ///
    /// `each` returns `()`, [`ControlFlow::Break`] to stop early, or an [`io::Result`] whose error stops the
    /// transfer.
    ///
    /// # Errors
    /// [`Error::Sink`] from `each`; [`Error::Nfs`] and the errors of a call.
    pub async fn read_stream<R: Flow>(
        &self,
        offset: u64,
        len: u64,
        depth: usize,
        mut each: impl FnMut(u64, Views) -> R,
    ) -> Result<u64, Error> {
        let end = offset.saturating_add(len);
        if len == 0 {
            return Ok(0);
        }
        // Calls are pipelined up to the known size; beyond it (the file may grow), one call at a time.
        let ahead = self.attributes().await?.size.min(end);
        let depth = depth.max(1);
        let mut calls = FuturesOrdered::new();
        let (mut next, mut total) = (offset, 0);
        loop {
            while next < end && calls.len() < depth && (next < ahead || calls.is_empty()) {
                let n = (end - next).min(u64::from(self.client().rsize()));
                calls.push_back(self.read_piece(self.client(), next, n as usize));
                next += n;
            }
            let Some(piece) = calls.next().await else { return Ok(total) };
            let (at, data, eof) = piece?;
            total += data.len() as u64;
            let stop = !data.is_empty() && each(at, data).flow().map_err(Error::Sink)?.is_break();
            if eof || stop {
                return Ok(total);
            }
        }
    }

    /// Reads `len` bytes at `offset`, or fewer at the end of the file, in sequential calls of at most [`Client::rsize`]
    /// bytes, without a copy. Returns views of the received data. Retained data is handled as in [`Self::read_into`].
    ///
    /// # Errors
    /// As [`Client::read`].
    pub async fn read_shared(&self, offset: u64, len: usize) -> Result<Views, Error> {
        let mut data = Views::new();
        // A server can return data up to the largest offset.
        while data.len() < len
            && let Some(at) = offset.checked_add(data.len() as u64)
        {
            let wanted = (len - data.len()).min(self.client().rsize() as usize);
            let memory = self.client().wait_for_buffer(wanted).await?;
            let (more, eof) = self.read_views(self.client(), at, memory).await?;
            data.extend(more.iter().cloned());
            if eof {
                break;
            }
        }
        Ok(data)
    }

    /// Reads a piece with the credentials of `caller`; a shorter result is the end of the file. Returns
    /// offset, data, and whether the file ends after them.
    pub(crate) async fn read_piece(
        &self,
        caller: &Client,
        at: u64,
        len: usize,
    ) -> Result<(u64, Views, bool), Error> {
        let mut data = Views::new();
        loop {
            let memory = caller.wait_for_buffer(len - data.len()).await?;
            let (more, eof) = self.read_views(caller, at + data.len() as u64, memory).await?;
            if data.is_empty() {
                data = more;
            } else {
                data.extend(more.iter().cloned());
            }
            if eof || data.len() >= len {
                return Ok((at, data, eof));
            }
        }
    }

    /// Writes `data` at `offset`, UNSTABLE and without a copy, in sequential calls. Retains the data until it
    /// is committed. Commits if the retained data exceeds [`crate::Options::unstable_limit`].
    ///
    /// # Errors
    /// [`Error::Nfs`], [`Error::Unstable`] and the errors of a call.
    pub async fn write_from(&self, offset: u64, data: Views) -> Result<(), Error> {
        self.write_from_as(self.client(), offset, data).await.map(drop)
    }

    /// As [`Self::write_from`], with the credentials of `caller` (see [`Client::as_caller`]), which also
    /// apply to rewrites. Returns the attributes before and after the calls, if the server sends them,
    /// combined by [`Wcc::then`].
    ///
    /// # Errors
    /// As [`Self::write_from`].
    pub async fn write_from_as(&self, caller: &Client, offset: u64, data: Views) -> Result<Wcc, Error> {
        self.shared.write(caller, offset, data).await
    }

    /// As [`Self::write_from`], from ordinary memory. The data is copied once.
    ///
    /// # Errors
    /// As [`Self::write_from`].
    pub async fn write(&self, offset: u64, data: &[u8]) -> Result<(), Error> {
        let mut at = offset;
        for piece in data.chunks(self.client().wsize() as usize) {
            let mut b = self.client().wait_for_buffer(piece.len()).await?;
            millrace_buffer::copy(&mut b, piece);
            self.write_from(at, b.freeze().into()).await?;
            at = at.saturating_add(piece.len() as u64);
        }
        Ok(())
    }

    /// Writes the data from `source` at `offset`, UNSTABLE and without a copy, with up to `depth` calls in
    /// flight, and commits at the end. Returns the number of bytes.
    ///
    /// The argument of `source` is the preferred size ([`Client::wsize`]); it returns at most that number of
    /// bytes, or `None` at the end.
    ///
    /// # Errors
    /// [`Error::Source`] from `source`; the errors of [`Self::write_from`] and [`Self::commit`].
    pub async fn write_stream(
        &self,
        offset: u64,
        depth: usize,
        mut source: impl FnMut(usize) -> io::Result<Option<Views>>,
    ) -> Result<u64, Error> {
        let mut calls = FuturesUnordered::new();
        let (mut total, mut ended) = (0_u64, false);
        loop {
            while !ended && calls.len() < depth.max(1) {
                match source(self.client().wsize() as usize)? {
                    Some(data) if data.is_empty() => {}
                    Some(data) => {
                        let len = data.len() as u64;
                        calls.push(self.write_from(offset.saturating_add(total), data));
                        total += len;
                    }
                    None => ended = true,
                }
            }
            match calls.next().await {
                Some(written) => written?,
                None => break,
            }
        }
        self.commit().await?;
        Ok(total)
    }

    /// Makes all data stable that was written before this call. Rewrites data that a restarted server has
    /// lost.
    ///
    /// # Errors
    /// [`Error::Nfs`], [`Error::Unstable`] and the errors of a call, after which the data stays retained,
    /// and a later commit retries. [`Error::Discarded`], once, if data was discarded because the server has revoked locks of
    /// the file, or because it could not be committed at an unlock. [`Error::LocksLost`] then until the owner unlocks.
    pub async fn commit(&self) -> Result<(), Error> {
        self.commit_and_attributes().await.map(drop)
    }

    /// As [`Self::commit`]. Returns the attributes before and after its calls, as [`Self::write_from_as`]; `None` if
    /// all data was stable, so that it made none.
    ///
    /// # Errors
    /// As [`Self::commit`].
    pub async fn commit_and_attributes(&self) -> Result<Option<Wcc>, Error> {
        let committed = self.shared.commit().await;
        if self.has_unreported() {
            self.reported.store(self.shared.retained().report(), Ordering::Relaxed);
            return Err(Error::Discarded); // Also if the commit found the loss, and failed by it.
        }
        self.shared.check_locks()?;
        committed
    }

    /// Commits and drops this `File`.
    ///
    /// # Errors
    /// As [`Self::commit`].
    pub async fn close(self) -> Result<(), Error> {
        self.commit().await
    }
}

impl std::fmt::Debug for File {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "File({}, {} bytes retained)", self.handle(), self.retained_bytes())
    }
}
