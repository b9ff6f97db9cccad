//! Copies between files within the server, with NFSv4.2: COPY (RFC 7862 section 15.2).
//!
//! CLONE (section 15.13) is not used: servers share storage in COPY where the file system can, and the reply to CLONE has
//! no write verifier, so that a client cannot find out whether a restarted server has lost the copy.

use std::sync::{Arc, atomic::Ordering};

use millrace_nfs::v4::{CopyOk, Operation, StableHow, Status, share_access};
use millrace_oncrpc::CallClass;

use super::{Client, File};
use crate::{
    Error, Version,
    ops::{FileHandle, LockEpoch, Verifier},
    pool::Retry,
    stats::add,
    v4::{self, compounds::Copy},
};

/// Maximum number of bytes that become stable together. Servers divide it further (Linux: 4 MiB), and a dropped
/// [`File::copy_range`] ends after it.
const PIECE: u64 = 64 << 20;
/// Size of the reply in bytes.
const REPLY: usize = 512;

/// The parts of two files that a copy concerns.
#[derive(Clone, Copy)]
struct Range {
    source: FileHandle,
    from: u64,
    destination: FileHandle,
    to: u64,
    len: u64,
    /// The epochs of the locks of source and destination in which the copy began.
    since: [LockEpoch; 2],
}

impl Range {
    /// The part after the first `done` bytes, at most `limit` bytes.
    fn rest(self, done: u64, limit: u64) -> Self {
        let (from, to) = (self.from + done, self.to + done);
        Self { from, to, len: (self.len - done).min(limit), ..self }
    }
}

impl File {
    /// Copies `len` bytes from offset `from` of `source` to offset `to` of this file within the server, with the
    /// credentials of `caller` ([`Client::as_caller`]). Returns the number of bytes, fewer only at the end of the source.
    /// The copy is on stable storage.
    ///
    /// The copy includes the writes to both files that completed before. It replaces data that this client retains for the
    /// range; later writes to the range wait. A copy whose future is dropped ends at some time, and no later write of this
    /// client precedes it. After an error the content of the range is undefined, as after that of a write.
    ///
    /// # Errors
    /// [`Error::RequiresV4_2`]; [`Error::Nfs4`] with NOTSUPP or XDEV if the server cannot copy between these files: then
    /// read and write. [`Error::InvalidInput`] if the ranges overlap in one file; [`Error::Unstable`]; the errors of
    /// [`Self::commit`] and of a call.
    pub async fn copy_range(
        &self,
        caller: &Client,
        (source, from): (&Self, u64),
        to: u64,
        len: u64,
    ) -> Result<u64, Error> {
        let client = self.client();
        if client.version() != Version::V4_2 {
            return Err(Error::RequiresV4_2("COPY"));
        }
        if !client.shared.copies.load(Ordering::Relaxed)
            || !Arc::ptr_eq(&client.shared, &source.client().shared)
        {
            return Err(unsupported());
        }
        let (Some(from_end), Some(to_end)) = (from.checked_add(len), to.checked_add(len)) else {
            return Err(Error::InvalidInput("the range exceeds 2^64 bytes".into()));
        };
        if source.handle() == self.handle() && from < to_end && to < from_end {
            return Err(Error::InvalidInput("the ranges of the copy overlap".into()));
        }
        let since = [source.shared.check_locks()?, self.shared.check_locks()?];
        // A restarted server may lack retained data of the source. That of this file would be rewritten over the copy.
        source.commit().await?;
        self.commit().await?;
        let size = source.attributes().await?.size;
        let len = len.min(size.saturating_sub(from));
        let whole = Range { source: source.handle(), from, destination: self.handle(), to, len, since };
        let mut done = 0;
        while done < len {
            let piece = whole.rest(done, PIECE);
            let caller = caller.clone();
            let call = async move { caller.copy_piece(piece).await };
            let locked = piece.to..piece.to + piece.len;
            let copied = Arc::clone(&self.shared);
            let copied = copied.replace(locked, call, move |count| piece.to..piece.to + count).await?;
            done += copied;
            if copied < piece.len {
                break; // The source was truncated.
            }
        }
        Ok(done)
    }
}

impl Client {
    /// Copies a piece and makes it stable. Its range of the destination is locked.
    ///
    /// A piece is copied again after a loss. That is safe, although the source may have changed meanwhile: the copy then
    /// has the newer data, as if it had started later, and no other write of this client has changed the range.
    async fn copy_piece(&self, piece: Range) -> Result<u64, Error> {
        let mut retry = Retry::new(&self.shared.pool, "COPY");
        let mut losses = 0;
        loop {
            let (count, unstable) = self.copy_unstable(piece).await?;
            let Some(verifiers) = unstable else { return Ok(count) };
            // A piece has less than 4 GiB.
            let committed = self.commit(piece.destination, piece.to, count as u32).await?.verifier;
            if verifiers == [committed; 2] {
                return Ok(count);
            }
            add(&self.shared.pool.counts.rewritten, count as usize);
            losses += 1;
            if losses > 1 {
                self.pause_after_loss(&mut retry, losses).await?;
            }
        }
    }

    /// Copies a piece. Returns the number of bytes, fewer at the end of the source, and the first and the last verifier of
    /// the data that is not yet stable.
    async fn copy_unstable(&self, piece: Range) -> Result<(u64, Option<[Verifier; 2]>), Error> {
        let (mut done, mut verifiers) = (0, None);
        while done < piece.len {
            let rest = piece.rest(done, piece.len);
            let ok = match self.copy_call(rest).await {
                Err(Error::Nfs4 { status: Status::Inval, .. }) if self.is_shorter(rest).await? => break,
                copied => copied?,
            };
            if ok.count > rest.len {
                let reason = format!("{} bytes copied of {}", ok.count, rest.len);
                return Err(self.shared.pool.bad_reply("COPY", reason));
            }
            if ok.callback_id.is_some() || !ok.requirements.synchronous {
                return Err(self
                    .shared
                    .pool
                    .bad_reply("COPY", "an asynchronous copy that was not requested"));
            }
            if ok.count == 0 {
                break;
            }
            if ok.committed != StableHow::FileSync {
                // A change between them remains visible: a verifier does not return.
                let [first, _] = verifiers.unwrap_or([ok.verifier; 2]);
                verifiers = Some([first, ok.verifier]);
            }
            done += ok.count;
        }
        Ok((done, verifiers))
    }

    /// Whether the source ends before the end of `range`.
    async fn is_shorter(&self, range: Range) -> Result<bool, Error> {
        Ok(self.getattr(range.source).await?.size < range.from + range.len)
    }

    /// One COPY.
    async fn copy_call(&self, range: Range) -> Result<CopyOk, Error> {
        let Some(session) = self.session() else { return Err(unsupported()) };
        let Range { source, from, destination, to, len, since: [source_since, destination_since] } = range;
        let source_state = self.open_state(source, share_access::READ, Some(source_since))?;
        let destination_state = self.open_state(destination, share_access::WRITE, Some(destination_since))?;
        let mut call = Copy { source, from, destination, to, len, source_state, destination_state };
        let spec = v4::spec("COPY", REPLY, CallClass::Other);
        match session.call(self.credential(), spec, true, &mut call, None).await?.result {
            Ok(ok) => Ok(ok),
            Err((Operation::Copy, status)) => Err(self.refused(status)),
            Err((operation, status)) => Err(Error::Nfs4 { operation, status }),
        }
    }

    /// The error for the status of COPY.
    fn refused(&self, status: Status) -> Error {
        match status {
            Status::NotSupp | Status::OpIllegal | Status::OffloadNoReqs => {
                self.shared.copies.store(false, Ordering::Relaxed);
                unsupported()
            }
            // Some servers copy only between open files.
            Status::BadStateid => unsupported(),
            status => Error::Nfs4 { operation: Operation::Copy, status },
        }
    }
}

/// The server cannot copy between the files.
fn unsupported() -> Error {
    Error::Nfs4 { operation: Operation::Copy, status: Status::NotSupp }
}
