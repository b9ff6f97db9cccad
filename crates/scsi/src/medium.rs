//! The file that contains the blocks of a disk.

use std::sync::Arc;

use millrace_runtime::MaybeReady;
use millrace_vfs::{
    FileSystemRef, FsError, FsResult, Handle, Identity, SeekTarget, Stability, Views, Written,
};
use parking_lot::Mutex;

use crate::{
    failure::{Direction, Failure, Outcome, Step},
    sense::{AdditionalSense, Sense, SenseKey},
};

/// A regular file with the identity that accesses it.
pub(crate) struct Medium {
    fs: FileSystemRef,
    file: Handle,
    caller: Identity,
    durability: Mutex<Durability>,
}

type Verifier = [u8; 8];

/// Unstable data, and whether the file system may have lost some (RFC 1813 section 4.8).
#[derive(Debug, Default)]
struct Durability {
    /// The write verifier of unstable data that is not committed.
    unstable: Option<Verifier>,
    /// Number of unstable changes.
    changes: u64,
    /// Number of losses found.
    losses: u64,
}

impl Durability {
    /// A change is complete that is unstable, with the verifiers before and after it.
    fn changed(&mut self, before: Verifier, after: Verifier) {
        if before != after || self.unstable.is_some_and(|v| v != after) {
            self.losses += 1;
        }
        self.unstable = Some(after);
        self.changes += 1;
    }

    /// A commit of all data is complete that started after `changes`.
    fn committed(&mut self, changes: u64, after: Verifier) {
        if self.unstable.is_some_and(|v| v != after) {
            self.losses += 1;
            self.unstable = None;
        } else if self.changes == changes {
            self.unstable = None;
        }
    }
}

impl Medium {
    pub(crate) fn new(fs: FileSystemRef, file: Handle, caller: Identity) -> Arc<Self> {
        Arc::new(Self { fs, file, caller, durability: Mutex::default() })
    }

    /// Size of the file in bytes.
    pub(crate) fn size(&self) -> MaybeReady<'static, FsResult<u64>> {
        self.fs.getattr(&self.file).map(|attr| attr.map(|a| a.size))
    }

    /// Reads exactly `count` bytes.
    pub(crate) fn read(&self, offset: u64, count: u32) -> Step<Views> {
        self.fs.read(&self.caller, &self.file, offset, count).map(move |read| match read {
            Ok(read) if read.data.len() as u64 == u64::from(count) => Ok(read.data),
            Ok(_) => Err(Sense::new(SenseKey::MediumError, AdditionalSense::READ_ERROR).into()),
            Err(e) => Err(Failure::of_file(e, Direction::Read)),
        })
    }

    /// Writes all of `data`.
    pub(crate) fn write(self: &Arc<Self>, offset: u64, data: Views, stable: Stability) -> Step<()> {
        let before = self.fs.write_verifier();
        match self.fs.write(&self.caller, &self.file, offset, data.clone(), stable) {
            MaybeReady::Ready(result) => match self.written(before, result) {
                Ok(count) if count >= data.len() => Step::Ready(Ok(())),
                Ok(count) => Step::wait(Arc::clone(self).write_rest(offset, data, count, stable)),
                Err(e) => Step::Ready(Err(e)),
            },
            pending => {
                let this = Arc::clone(self);
                Step::wait(async move {
                    let count = this.written(before, pending.await)?;
                    this.write_rest(offset, data, count, stable).await
                })
            }
        }
    }

    /// Writes `data` after its first `done` bytes.
    async fn write_rest(
        self: Arc<Self>,
        offset: u64,
        data: Views,
        mut done: usize,
        stable: Stability,
    ) -> Outcome<()> {
        while done < data.len() {
            let before = self.fs.write_verifier();
            let rest = data.slice(done, data.len() - done);
            let result = self.fs.write(&self.caller, &self.file, offset + done as u64, rest, stable).await;
            let count = self.written(before, result)?;
            if count == 0 {
                return Err(Failure::of_file(FsError::Io, Direction::Write));
            }
            done = done.saturating_add(count);
        }
        Ok(())
    }

    /// Records the durability of a write, and returns the number of bytes written.
    fn written(&self, before: Verifier, result: FsResult<Written>) -> Outcome<usize> {
        let written = result.map_err(|e| Failure::of_file(e, Direction::Write))?;
        if written.committed == Stability::Unstable {
            self.changed(before);
        }
        Ok(written.count as usize)
    }

    fn changed(&self, before: Verifier) {
        let mut durability = self.durability.lock();
        durability.changed(before, self.fs.write_verifier());
    }

    /// Makes all data durable. Returns the number of losses of data so far; a loss is data of a completed write
    /// that the file system may have lost before it was durable.
    pub(crate) async fn commit(&self) -> Outcome<u64> {
        let changes = {
            let durability = self.durability.lock();
            // Also on a read-only file system, which refuses COMMIT.
            if durability.unstable.is_none() {
                return Ok(durability.losses);
            }
            durability.changes
        };
        let result = self.fs.commit(&self.caller, &self.file, 0, 0).await;
        result.map_err(|e| Failure::of_file(e, Direction::Write))?;
        let mut durability = self.durability.lock();
        durability.committed(changes, self.fs.write_verifier());
        Ok(durability.losses)
    }

    /// Number of losses found so far.
    pub(crate) fn losses(&self) -> u64 {
        self.durability.lock().losses
    }

    /// Frees the storage of a range, which reads as zeros afterwards.
    pub(crate) async fn deallocate(&self, offset: u64, length: u64) -> Outcome<Supported> {
        let before = self.fs.write_verifier();
        let result = self.fs.deallocate(&self.caller, &self.file, offset, length).await;
        self.range_changed(before, result.map(drop))
    }

    /// Writes zeros to a range.
    pub(crate) async fn zero(&self, offset: u64, length: u64) -> Outcome<Supported> {
        let before = self.fs.write_verifier();
        let result = self.fs.zero(&self.caller, &self.file, offset, length).await;
        self.range_changed(before, result.map(drop))
    }

    fn range_changed(&self, before: Verifier, result: FsResult<()>) -> Outcome<Supported> {
        match result {
            Ok(()) => {
                self.changed(before);
                Ok(Supported::Yes)
            }
            Err(FsError::NotSupp) => Ok(Supported::No),
            Err(e) => Err(Failure::of_file(e, Direction::Write)),
        }
    }

    /// Whether the data at `offset` is allocated, and where this ends; a file system that cannot search has no
    /// holes. `end` is the end of the disk.
    pub(crate) async fn extent(&self, offset: u64, end: u64) -> Outcome<(bool, u64)> {
        let seek = |target| self.fs.seek(&self.caller, &self.file, offset..end, target);
        let failed = |e| Failure::of_file(e, Direction::Read);
        let data = match seek(SeekTarget::Data).await {
            Ok(data) => data.unwrap_or(end),
            Err(FsError::NotSupp) => return Ok((true, end)),
            Err(e) => return Err(failed(e)),
        };
        if data > offset {
            return Ok((false, data));
        }
        let hole = seek(SeekTarget::Hole).await.map_err(failed)?;
        Ok((true, hole.unwrap_or(end)))
    }
}

/// Whether the file system supports a call on this file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Supported {
    Yes,
    No,
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: Verifier = [1; 8];
    const B: Verifier = [2; 8];

    #[test]
    fn a_changed_verifier_is_a_loss_of_uncommitted_data_only() {
        let mut d = Durability::default();
        d.changed(A, A);
        d.committed(1, A);
        d.changed(B, B);
        assert_eq!(d.losses, 0, "the first write was committed");
        d.committed(2, A);
        assert_eq!(d.losses, 1, "the second write was not");
        d.committed(2, B);
        assert_eq!(d.losses, 1, "a loss is counted once");
    }

    #[test]
    fn a_write_during_a_commit_stays_uncommitted() {
        let mut d = Durability::default();
        d.changed(A, A);
        d.changed(A, A);
        d.committed(1, A);
        d.committed(2, B);
        assert_eq!(d.losses, 1);
    }

    #[test]
    fn a_loss_is_found_by_the_next_write() {
        let mut d = Durability::default();
        d.changed(A, A);
        d.changed(B, B);
        assert_eq!(d.losses, 1);
        d.changed(B, A);
        assert_eq!(d.losses, 2, "the verifier changed during the write");
    }
}
