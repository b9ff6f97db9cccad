//! READ and WRITE, into and out of caller-owned memory.

use millrace_buffer::{Buffer, Views};
use millrace_nfs::v4::{Stateid, share_access};

use super::Client;
use crate::{
    Error,
    error::nfs_error,
    ops::{FileHandle, LockEpoch, OpenState, Procedure, Read, ReadOk, StableHow, Verifier, Wcc, Write},
    stats::add,
};

/// Result of [`Client::read_into`].
#[derive(Debug)]
pub struct ReadInto {
    /// The buffer; its length is `count`, its capacity is unchanged.
    pub buffer: Buffer,
    /// Number of bytes read.
    pub count: usize,
    /// Whether the file ends after these bytes.
    pub eof: bool,
}

/// Result of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Written {
    /// Number of bytes written, from the start of the data.
    pub count: usize,
    /// Stability of the written data.
    pub committed: StableHow,
    /// The write verifier, to be compared with that of COMMIT.
    pub verifier: Verifier,
    /// The attributes before and after the write, if the server sent them; those of several calls are
    /// combined by [`Wcc::then`].
    pub wcc: Wcc,
}

impl Written {
    /// The result before the first call.
    const NOTHING: Self = Self {
        count: 0,
        committed: StableHow::FileSync,
        verifier: [0; 8],
        wcc: Wcc { before: None, after: None, change: None },
    };
}

/// Maximum number of rewrites of a range because the server restarted between its parts.
const MAX_RESTARTS: u32 = 8;

impl Client {
    /// The epoch of the file's locks, for an operation that begins.
    pub(super) fn lock_epoch(&self, file: FileHandle) -> LockEpoch {
        self.session().map_or(LockEpoch::UNLOCKED, |s| s.locked.epoch(file.as_bytes()))
    }

    /// The state of a request whose operation began in the epoch `since`, or begins now.
    ///
    /// # Errors
    /// [`Error::LocksLost`].
    pub(super) fn open_state(
        &self,
        file: FileHandle,
        access: u32,
        since: Option<LockEpoch>,
    ) -> Result<OpenState, Error> {
        match self.session() {
            Some(session) => session.locked.open_state(file.as_bytes(), access, since),
            None => Ok(OpenState::NONE),
        }
    }

    /// Whether this client has locks of the file.
    ///
    /// # Errors
    /// [`Error::LocksLost`].
    pub(super) fn is_locked(&self, file: FileHandle) -> Result<bool, Error> {
        Ok(self.open_state(file, share_access::READ, None)?.stateid != Stateid::ANONYMOUS)
    }

    /// READ: up to `buffer.len()` bytes (and at most [`Self::rsize`]) in one call into `buffer`, without a
    /// copy if the transport supports direct placement. A short count is the end of the file only if `eof` is
    /// set.
    ///
    /// The returned buffer is the argument, unless a connection was lost or the transport could not place the
    /// data; its size class is the same in any case.
    ///
    /// # Errors
    /// [`Error::Nfs`] and the errors of a call, which drop the buffer.
    pub async fn read_into(&self, file: FileHandle, offset: u64, buffer: Buffer) -> Result<ReadInto, Error> {
        self.read_into_since(None, file, offset, buffer).await
    }

    /// As [`Self::read_into`], for an operation that began in the epoch `since`, if not now.
    pub(super) async fn read_into_since(
        &self,
        since: Option<LockEpoch>,
        file: FileHandle,
        offset: u64,
        mut buffer: Buffer,
    ) -> Result<ReadInto, Error> {
        if buffer.is_empty() {
            return Ok(ReadInto { buffer, count: 0, eof: false });
        }
        let wanted = buffer.len().min(self.rsize() as usize);
        buffer.set_len(wanted);
        let ok = self.read_views(since, file, offset, buffer).await?;
        let (count, eof) = (ok.data.len(), ok.eof);
        let buffer = self.own(ok.data, wanted)?;
        Ok(ReadInto { buffer, count, eof })
    }

    /// READ into `buffer`, for an operation that began in the epoch `since`, if not now. Returns the data as views of
    /// it (or of the received message).
    pub(crate) async fn read_views(
        &self,
        since: Option<LockEpoch>,
        file: FileHandle,
        offset: u64,
        buffer: Buffer,
    ) -> Result<ReadOk, Error> {
        let wanted = buffer.len();
        let state = self.open_state(file, share_access::READ, since)?;
        let mut args = Read { file, offset, count: wanted as u32, state };
        let answer = self.call(&mut args, Some(buffer)).await?;
        let ok = answer.result.map_err(|s| nfs_error(Procedure::Read, file, s))?;
        if ok.data.len() > wanted {
            return Err(self.shared.pool.bad_reply("READ", "more data than requested"));
        }
        if ok.data.is_empty() && !ok.eof {
            // A reader up to the end of the file would not terminate.
            return Err(self.shared.pool.bad_reply("READ", "neither data nor the end of the file"));
        }
        add(&self.shared.pool.counts.bytes_read, ok.data.len());
        Ok(ok)
    }

    /// Converts `data` to an exclusively owned buffer, without a copy if it is the only reference to its
    /// memory.
    fn own(&self, data: Views, wanted: usize) -> Result<Buffer, Error> {
        let copy = |data: &Views| -> Result<Buffer, Error> {
            let mut b = self.buffer(wanted)?;
            data.copy_to(&mut b);
            b.set_len(data.len());
            Ok(b)
        };
        let view = match data.into_view() {
            Ok(view) if view.capacity() < wanted => return copy(&view.into()),
            Ok(view) => view,
            Err(data) => return copy(&data),
        };
        match view.try_into_buffer() {
            Ok(b) => Ok(b),
            Err(view) => copy(&view.into()),
        }
    }

    /// Reads into `out` until it is full or the file ends, in sequential calls of at most [`Self::rsize`]
    /// bytes. Returns the number of bytes. The data is copied once.
    ///
    /// # Errors
    /// [`Error::Nfs`] and the errors of a call.
    pub async fn read(&self, file: FileHandle, offset: u64, out: &mut [u8]) -> Result<usize, Error> {
        let mut done = 0;
        while done < out.len() {
            let Some(at) = offset.checked_add(done as u64) else { break };
            let buffer = self.wait_for_buffer((out.len() - done).min(self.rsize() as usize)).await?;
            let ok = self.read_views(None, file, at, buffer).await?;
            ok.data.copy_to(&mut out[done..]);
            done += ok.data.len();
            if ok.eof {
                break;
            }
        }
        Ok(done)
    }

    /// WRITE: `data` (at most [`Self::wsize`] bytes of it) in one call, without a copy. The server may write
    /// less.
    ///
    /// Replaces data that an open [`super::File`] of this client retains for the range. UNSTABLE data is
    /// not retained: use [`super::File`] for that. When the future is dropped before it ends, the server may
    /// execute the call at any later time.
    ///
    /// # Errors
    /// [`Error::Nfs`] and the errors of a call.
    pub async fn write_from(
        &self,
        file: FileHandle,
        offset: u64,
        data: Views,
        stable: StableHow,
    ) -> Result<Written, Error> {
        self.write_part(file, offset, data, stable, None).await
    }

    /// As [`Self::write_from`], with data of the epoch `since`, if not of the current one.
    async fn write_part(
        &self,
        file: FileHandle,
        offset: u64,
        mut data: Views,
        stable: StableHow,
        since: Option<LockEpoch>,
    ) -> Result<Written, Error> {
        data.truncate(self.wsize() as usize);
        let Some(open) = self.shared.open_files.get(file) else {
            return self.write_call(file, offset, data, stable, since).await;
        };
        let since = since.or_else(|| Some(self.lock_epoch(file)));
        let range = offset..offset.saturating_add(data.len() as u64);
        let me = self.clone();
        let call = async move { me.write_call(file, offset, data, stable, since).await };
        open.replace(range, call, move |written| offset..offset.saturating_add(written.count as u64)).await
    }

    /// WRITE of `data` of the epoch `since`, if not of the current one, at most [`Self::wsize`] bytes.
    pub(crate) async fn write_call(
        &self,
        file: FileHandle,
        offset: u64,
        data: Views,
        stable: StableHow,
        since: Option<LockEpoch>,
    ) -> Result<Written, Error> {
        let len = data.len();
        let state = self.open_state(file, share_access::WRITE, since)?;
        let answer = self.call(&mut Write { file, offset, stable, data, state }, None).await?;
        let ok = answer.result.map_err(|s| nfs_error(Procedure::Write, file, s))?;
        let count = ok.count as usize;
        if count > len || (count == 0 && len > 0) {
            return Err(self.shared.pool.bad_reply("WRITE", format!("{count} bytes written of {len}")));
        }
        if ok.committed < stable {
            return Err(self.shared.pool.bad_reply("WRITE", "less stable than requested"));
        }
        add(&self.shared.pool.counts.bytes_written, count);
        Ok(Written { count, committed: ok.committed, verifier: ok.verifier, wcc: ok.file })
    }

    /// Writes all of `data`, in sequential calls of at most [`Self::wsize`] bytes. The data is copied once.
    /// UNSTABLE data is not retained: use [`super::File`] to retain it, or write it FILE_SYNC.
    ///
    /// # Errors
    /// [`Error::Nfs`], [`Error::Unstable`] and the errors of a call.
    pub async fn write(
        &self,
        file: FileHandle,
        offset: u64,
        data: &[u8],
        stable: StableHow,
    ) -> Result<Written, Error> {
        let mut views = Views::new();
        for piece in data.chunks(self.wsize() as usize) {
            let mut b = self.buffer(piece.len())?;
            millrace_buffer::copy(&mut b, piece);
            views.push(b.freeze());
        }
        self.write_all(file, offset, &views, stable).await
    }

    /// Writes all of `data`. Restarts from the beginning if the server restarts between its parts.
    pub(crate) async fn write_all(
        &self,
        file: FileHandle,
        offset: u64,
        data: &Views,
        stable: StableHow,
    ) -> Result<Written, Error> {
        let mut all = Written::NOTHING;
        let (mut restarts, since) = (0, Some(self.lock_epoch(file)));
        loop {
            let rest = data.slice(all.count, data.len() - all.count);
            let at = offset
                .checked_add(all.count as u64)
                .ok_or_else(|| Error::InvalidInput("the range exceeds 2^64 bytes".into()))?;
            let part = self.write_part(file, at, rest, stable, since).await?;
            let restarted = all.count > 0 && part.verifier != all.verifier;
            if restarted && all.committed == StableHow::Unstable {
                restarts += 1;
                if restarts > MAX_RESTARTS {
                    return Err(Error::Unstable { server: self.server().to_owned(), times: restarts });
                }
                add(&self.shared.pool.counts.rewritten, all.count);
                all = Written::NOTHING;
                continue;
            }
            all = Written {
                count: all.count + part.count,
                committed: all.committed.min(part.committed),
                verifier: part.verifier,
                wcc: if all.count == 0 { part.wcc } else { all.wcc.then(part.wcc) },
            };
            if all.count >= data.len() {
                return Ok(all);
            }
        }
    }
}
