//! An open file: whole ranges with many calls in flight, and unstable data retained until it is stable.

use std::{io, ops::ControlFlow, sync::Arc};

use buffer::{Buffer, Views};
use futures::{StreamExt, stream::FuturesOrdered, stream::FuturesUnordered};
use nfs::v3::{CreateHow, Fattr, FileHandle, FileType, Sattr, StableHow, Verifier, WccData};
use parking_lot::Mutex;

use crate::{Client, Error, ReadInto, stats::add};

/// How often data is written again because the server restarted.
const MAX_RESTARTS: u32 = 8;

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

/// Data that the server has taken and may still lose.
#[derive(Clone)]
struct Unstable {
    number: u64,
    offset: u64,
    data: Views,
    /// As whom it was written.
    caller: Client,
    verifier: Verifier,
}

#[derive(Default)]
struct Retained {
    next: u64,
    bytes: usize,
    /// In the order in which the server answered.
    writes: Vec<Unstable>,
}

impl Retained {
    fn keep(&mut self, caller: &Client, offset: u64, data: Views, verifier: Verifier) {
        self.bytes += data.len();
        self.writes.push(Unstable { number: self.next, offset, data, caller: caller.clone(), verifier });
        self.next += 1;
    }

    /// Forgets what a COMMIT with this verifier made stable, of the writes before `before`; gives copies of those
    /// that it did not.
    fn settle(&mut self, before: u64, verifier: Verifier) -> Vec<Unstable> {
        self.writes.retain(|w| w.number >= before || w.verifier != verifier);
        self.bytes = self.writes.iter().map(|w| w.data.len()).sum();
        self.writes.iter().filter(|w| w.number < before).cloned().collect()
    }
}

struct Shared {
    client: Client,
    handle: FileHandle,
    retained: Mutex<Retained>,
    /// Held by the one that commits.
    committing: futures::lock::Mutex<()>,
}

impl Drop for Shared {
    fn drop(&mut self) {
        let bytes = self.retained.get_mut().bytes;
        if bytes > 0 {
            tracing::warn!(bytes, file = %self.handle, "a file was dropped before its data was committed");
        }
    }
}

/// An open file. Clones share what is retained.
///
/// NFSv3 has no open and close on the wire: this is a handle with the data that was written UNSTABLE and not yet
/// committed. Call [`Self::commit`] (or [`Self::close`]) when written data shall be stable; dropping does not.
#[derive(Clone)]
pub struct File {
    shared: Arc<Shared>,
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
        let shared = Shared { client, handle, retained: Mutex::default(), committing: Default::default() };
        Self { shared: Arc::new(shared) }
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
        self.shared.retained.lock().bytes
    }

    /// Its attributes, asked of the server.
    ///
    /// # Errors
    /// As [`Client::getattr`].
    pub async fn attributes(&self) -> Result<Fattr, Error> {
        self.client().getattr(self.handle()).await
    }

    /// As [`Client::read_into`].
    ///
    /// # Errors
    /// As [`Client::read_into`].
    pub async fn read_into(&self, offset: u64, buffer: Buffer) -> Result<ReadInto, Error> {
        self.client().read_into(self.handle(), offset, buffer).await
    }

    /// As [`Client::read`].
    ///
    /// # Errors
    /// As [`Client::read`].
    pub async fn read(&self, offset: u64, out: &mut [u8]) -> Result<usize, Error> {
        self.client().read(self.handle(), offset, out).await
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
                calls.push_back(self.read_piece(next, n as usize));
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

    /// Reads all of a piece; less only at the end of the file.
    async fn read_piece(&self, at: u64, len: usize) -> Result<(u64, Views, bool), Error> {
        let mut data = Views::new();
        loop {
            let memory = self.client().buffer(len - data.len())?;
            let ok = self.client().read_views(self.handle(), at + data.len() as u64, memory).await?;
            if data.is_empty() {
                data = ok.data;
            } else {
                data.extend(ok.data.iter().cloned());
            }
            if ok.eof || data.len() >= len {
                return Ok((at, data, ok.eof));
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
        let limit = self.client().options().unstable_limit;
        let (mut done, mut wcc) = (0, WccData::default());
        while done < data.len() {
            let at = offset
                .checked_add(done as u64)
                .ok_or_else(|| Error::Local("the range ends beyond 2^64 bytes".into()))?;
            let rest = data.slice(done, data.len() - done);
            let part = caller.write_from(self.handle(), at, rest, StableHow::Unstable).await?;
            let written = data.slice(done, part.count);
            wcc = if done == 0 { part.wcc } else { wcc.then(part.wcc) };
            done += part.count;
            if part.committed == StableHow::Unstable {
                let retained = {
                    let mut r = self.shared.retained.lock();
                    r.keep(caller, at, written, part.verifier);
                    r.bytes
                };
                if retained > limit {
                    self.commit().await?;
                }
            }
        }
        Ok(wcc)
    }

    /// As [`Self::write_from`], from plain memory; the data is copied once.
    ///
    /// # Errors
    /// As [`Self::write_from`].
    pub async fn write(&self, offset: u64, data: &[u8]) -> Result<(), Error> {
        let mut at = offset;
        for piece in data.chunks(self.client().wsize() as usize) {
            let mut b = self.client().buffer(piece.len())?;
            buffer::copy(&mut b, piece);
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
        let _one = self.shared.committing.lock().await;
        let (mut restarts, mut wcc) = (0, None::<WccData>);
        let join = |wcc: Option<WccData>, next| Some(wcc.map_or(next, |wcc| wcc.then(next)));
        loop {
            let (before, caller) = {
                let r = self.shared.retained.lock();
                let Some(first) = r.writes.first() else { return Ok(wcc.unwrap_or_default()) };
                (r.next, first.caller.clone())
            };
            let ok = caller.commit(self.handle(), 0, 0).await?;
            wcc = join(wcc, ok.file);
            let lost = self.shared.retained.lock().settle(before, ok.verifier);
            if lost.is_empty() {
                return Ok(wcc.unwrap_or_default());
            }
            restarts += 1;
            if restarts > MAX_RESTARTS {
                let server = self.client().server().to_owned();
                return Err(Error::Unstable { server, times: restarts });
            }
            for write in lost {
                wcc = join(wcc, self.write_again(write).await?);
            }
        }
    }

    async fn write_again(
        &self,
        Unstable { number, offset, data, caller, .. }: Unstable,
    ) -> Result<WccData, Error> {
        add(&self.client().shared.pool.counts.rewritten, data.len());
        let written = caller.write_all(self.handle(), offset, &data, StableHow::Unstable).await?;
        let mut r = self.shared.retained.lock();
        if written.committed == StableHow::Unstable {
            if let Some(w) = r.writes.iter_mut().find(|w| w.number == number) {
                w.verifier = written.verifier;
            }
        } else {
            r.writes.retain(|w| w.number != number);
            r.bytes = r.writes.iter().map(|w| w.data.len()).sum();
        }
        Ok(written.wcc)
    }

    /// Commits and lets the file go.
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
