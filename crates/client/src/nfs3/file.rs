//! An open file: whole ranges with many calls in flight, and unstable data retained until it is stable.

use std::{io, ops::ControlFlow, sync::Arc};

use futures::{StreamExt, stream::FuturesOrdered, stream::FuturesUnordered};
use millrace_buffer::{Buffer, Views};
use millrace_nfs::v3::{CreateHow, Fattr, FileHandle, FileType, Sattr, WccData};

use super::{Client, ReadInto, writeback::Writeback};
use crate::Error;

/// Whether a consumer of data wants more: `()` always does, [`ControlFlow::Break`] does not, and an error of
/// [`io::Result`] ends with it.
pub trait Flow {
    /// Whether to go on.
    ///
    /// # Errors
    /// The consumer's own.
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
/// NFSv3 has no open and close on the wire: this is a handle with the data that was written UNSTABLE and not yet
/// committed. All `File`s of one handle that one mounted [`Client`] has made share that data. Call [`Self::commit`] (or
/// [`Self::close`]) when written data shall be stable; dropping does not.
///
/// Until then the file keeps the newest data of each byte, writes it again when the server has lost it, and reads return
/// it. Writes to overlapping ranges are executed in the order in which they were begun. A write whose future is dropped
/// before it ends may be executed or not, but not after a later write to the same range. What a write that *failed*
/// ([`Error::Unreachable`], for example) left on the server is not known.
#[derive(Clone)]
pub struct File {
    shared: Arc<Writeback>,
}

impl Client {
    /// Opens the regular file at `path` (as [`Client::resolve`] finds it).
    ///
    /// # Errors
    /// As [`Client::resolve`]; [`Error::Path`] when it is not a regular file.
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

    /// Opens the file at `path` for writing: makes it with the permission bits `mode` if there is none, empties it if
    /// there is.
    ///
    /// # Errors
    /// As [`Client::resolve_parent`] and [`Client::create`].
    pub async fn create_file(&self, path: impl AsRef<[u8]>, mode: u32) -> Result<File, Error> {
        let (dir, name) = self.resolve_parent(path).await?;
        let how = CreateHow::Unchecked(Sattr { mode: Some(mode), size: Some(0), ..Sattr::default() });
        let made = self.create(dir, &name, how).await?;
        Ok(File::new(self.clone(), made.handle))
    }
}

impl File {
    /// The file with this handle.
    pub fn new(client: Client, handle: FileHandle) -> Self {
        Self { shared: Writeback::open(client, handle) }
    }

    /// Its handle.
    pub fn handle(&self) -> FileHandle {
        self.shared.handle
    }

    /// Its client.
    pub fn client(&self) -> &Client {
        &self.shared.client
    }

    /// Bytes that are retained because they are not yet stable on the server.
    pub fn retained_bytes(&self) -> usize {
        self.shared.retained().bytes()
    }

    /// The offset at which the last retained byte ends; `None` when nothing is retained. The file is at least that long,
    /// whatever size the server gives.
    pub fn retained_end(&self) -> Option<u64> {
        self.shared.retained().end()
    }

    /// How often this client has changed the file's data, through any of its `File`s or by handle.
    pub(crate) fn changes(&self) -> u64 {
        self.shared.retained().changes()
    }

    /// Its attributes, asked of the server. The size covers data that is retained and that the server may have lost.
    ///
    /// # Errors
    /// As [`Client::getattr`].
    pub async fn attributes(&self) -> Result<Fattr, Error> {
        let end = self.retained_end();
        let mut attributes = self.client().getattr(self.handle()).await?;
        attributes.size = attributes.size.max(end.unwrap_or(0));
        Ok(attributes)
    }

    /// As [`Client::read_into`]; retained data is read as it was written, also when the server has lost it.
    ///
    /// # Errors
    /// As [`Client::read_into`].
    pub async fn read_into(&self, offset: u64, buffer: Buffer) -> Result<ReadInto, Error> {
        self.read_into_as(self.client(), offset, buffer).await
    }

    /// As [`Self::read_into`], as `caller` (see [`Client::as_caller`]).
    ///
    /// # Errors
    /// As [`Client::read_into`].
    pub async fn read_into_as(
        &self,
        caller: &Client,
        offset: u64,
        buffer: Buffer,
    ) -> Result<ReadInto, Error> {
        let wanted = buffer.len().min(caller.rsize() as usize);
        let retained = self.shared.retained().overlay(offset, wanted);
        let mut read = caller.read_into(self.handle(), offset, buffer).await?;
        if let Some(retained) = retained {
            retained.put_into(&mut read);
        }
        Ok(read)
    }

    /// As [`Self::read_into`]; gives the data as views of `buffer` (or of the received message), and whether the file ends
    /// after them.
    async fn read_views(&self, caller: &Client, offset: u64, buffer: Buffer) -> Result<(Views, bool), Error> {
        if self.shared.retained().bytes() > 0 {
            let read = self.read_into_as(caller, offset, buffer).await?;
            return Ok((read.buffer.freeze().into(), read.eof));
        }
        let ok = caller.read_views(self.handle(), offset, buffer).await?;
        Ok((ok.data, ok.eof))
    }

    /// Reads into `out` until it is full or the file ends; gives the number of bytes. In calls of at most
    /// [`Client::rsize`], one after the other; the data is copied once. Retained data is read as by [`Self::read_into`].
    ///
    /// # Errors
    /// As [`Client::read`].
    pub async fn read(&self, offset: u64, out: &mut [u8]) -> Result<usize, Error> {
        let mut done = 0;
        while done < out.len() {
            let Some(at) = offset.checked_add(done as u64) else { break };
            let buffer = self.client().buffer((out.len() - done).min(self.client().rsize() as usize))?;
            let (data, eof) = self.read_views(self.client(), at, buffer).await?;
            data.copy_to(&mut out[done..]);
            done += data.len();
            if eof {
                break;
            }
        }
        Ok(done)
    }

    /// Reads `len` bytes from `offset` (or up to the end of the file) with up to `depth` calls in flight, and gives
    /// them to `each` in order, without a copy: offset and data. Gives the number of bytes.
    ///
    /// `each` returns nothing, [`ControlFlow::Break`] to stop early, or an [`io::Result`] whose error ends the reading.
    ///
    /// # Errors
    /// [`Error::Sink`] from `each`; [`Error::Nfs`] and those of a call.
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
        // Up to here it is worth asking ahead; beyond (the file may grow) only one call goes out at a time.
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

    /// Reads all of a piece as `caller`; less only at the end of the file. Gives its offset, its data, and whether the
    /// file ends after it.
    pub(crate) async fn read_piece(
        &self,
        caller: &Client,
        at: u64,
        len: usize,
    ) -> Result<(u64, Views, bool), Error> {
        let mut data = Views::new();
        loop {
            let memory = caller.buffer(len - data.len())?;
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

    /// Writes `data` at `offset`, UNSTABLE, without a copy, in calls one after the other; retains it until it is
    /// committed. Commits by itself when more is retained than [`crate::Options::unstable_limit`].
    ///
    /// # Errors
    /// [`Error::Nfs`], [`Error::Unstable`] and those of a call.
    pub async fn write_from(&self, offset: u64, data: Views) -> Result<(), Error> {
        self.write_from_as(self.client(), offset, data).await.map(drop)
    }

    /// As [`Self::write_from`], as `caller` (see [`Client::as_caller`]): so it is written, and written again if need be.
    /// Gives the file before and after the calls, as far as the server says and as [`WccData::then`] joins them.
    ///
    /// # Errors
    /// As [`Self::write_from`].
    pub async fn write_from_as(&self, caller: &Client, offset: u64, data: Views) -> Result<WccData, Error> {
        self.shared.write(caller, offset, data).await
    }

    /// As [`Self::write_from`], from plain memory; the data is copied once.
    ///
    /// # Errors
    /// As [`Self::write_from`].
    pub async fn write(&self, offset: u64, data: &[u8]) -> Result<(), Error> {
        let mut at = offset;
        for piece in data.chunks(self.client().wsize() as usize) {
            let mut b = self.client().buffer(piece.len())?;
            millrace_buffer::copy(&mut b, piece);
            self.write_from(at, b.freeze().into()).await?;
            at = at.saturating_add(piece.len() as u64);
        }
        Ok(())
    }

    /// Writes what `source` gives from `offset` on, UNSTABLE, with up to `depth` calls in flight, without a copy, and
    /// commits at the end. Gives the number of bytes.
    ///
    /// `source` is called with the size that suits the server best ([`Client::wsize`]) and gives that much or less,
    /// or `None` at the end.
    ///
    /// # Errors
    /// [`Error::Source`] from `source`; those of [`Self::write_from`] and [`Self::commit`].
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

    /// Makes everything that was written before this call stable. What a restarted server has lost is written again.
    ///
    /// # Errors
    /// [`Error::Nfs`], [`Error::Unstable`] and those of a call; the data stays retained then, and a later commit
    /// tries again.
    pub async fn commit(&self) -> Result<(), Error> {
        self.commit_and_attributes().await.map(drop)
    }

    /// As [`Self::commit`]. Gives the file before and after the calls that it took, as [`Self::write_from_as`] does.
    ///
    /// # Errors
    /// As [`Self::commit`].
    pub async fn commit_and_attributes(&self) -> Result<WccData, Error> {
        self.shared.commit().await
    }

    /// Commits, and drops this `File`.
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
