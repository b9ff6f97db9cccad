//! READ, WRITE and COMMIT: finds the descriptor, and converts the outcome of the transfer.

use std::{os::fd::AsFd, sync::Arc};

use millrace_vfs::{FsError, FsResult, Handle, Identity, Read, Stability, Wcc, Written};

use super::{attr, data_file::DataFile, setup::Export, transfer::Outcome};

/// Purpose of a descriptor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Purpose {
    Read,
    Write,
    /// COMMIT, which requires write permission (as in knfsd).
    Sync,
}

/// Returns a descriptor of `file` for `purpose`, if `caller` has permission. Uses a pool thread only if the
/// file is not open, or the permission not cached.
pub(super) async fn open(
    export: &Arc<Export>,
    caller: Identity,
    file: Handle,
    purpose: Purpose,
) -> FsResult<Arc<DataFile>> {
    let write = purpose != Purpose::Read;
    if write {
        export.writable()?;
    }
    let ready =
        export.tree.cached(&file).filter(|n| n.is_granted(&caller, write)).and_then(|n| n.data_fd(write));
    if let Some(fd) = ready {
        return Ok(fd);
    }
    let export_ref = Arc::clone(export);
    let job = move || {
        let node = export_ref.tree.open(&file)?;
        let st = attr::live_stat(node.as_fd())?;
        export_ref.creds.may_transfer(&caller, node.as_fd(), &st, write)?;
        let fd = match purpose {
            Purpose::Read | Purpose::Write => node.open_data(write)?,
            Purpose::Sync => node.open_any()?,
        };
        node.grant(&caller, write);
        Ok(fd)
    };
    export.pool.run(job).await
}

/// Returns the descriptor for a write. Uses a pool thread only for a stable write that is the first one, or
/// concurrent with another.
pub(super) async fn writer(
    export: &Arc<Export>,
    file: &Arc<DataFile>,
    stable: Stability,
) -> FsResult<Arc<DataFile>> {
    if stable == Stability::Unstable {
        return Ok(Arc::clone(file));
    }
    if let Some(spare) = file.take_spare() {
        return Ok(spare);
    }
    let file = Arc::clone(file);
    export.pool.run(move || Ok(file.open_spare()?)).await
}

impl Export {
    /// Result of READ of `requested` bytes.
    pub(super) fn finish_read(&self, offset: u64, requested: u32, out: Outcome) -> FsResult<Read> {
        let attr = attr::attr(&out.stat, self.fsid)?;
        let eof = reached_end(offset, requested, out.count, attr.size);
        Ok(Read { data: out.data, eof, attr })
    }

    /// Result of WRITE.
    pub(super) fn finish_write(&self, stable: Stability, out: Outcome) -> FsResult<Written> {
        let count = u32::try_from(out.count).map_err(|_| FsError::ServerFault)?;
        Ok(Written { count, committed: stable, wcc: self.after(&out.stat)? })
    }

    /// Attributes of an object after a change; the module documentation explains why there are none from
    /// before.
    pub(super) fn after(&self, st: &rustix::fs::Statx) -> FsResult<Wcc> {
        Ok(Wcc { before: None, after: Some(attr::attr(st, self.fsid)?) })
    }
}

/// Whether a READ of `requested` bytes that returned `count` reached the end of the file, whose size was
/// `size` afterwards.
///
/// Another call may extend the file between the read and the stat. A READ that returned no data still sets
/// `eof`: the Linux client returns EIO to the application for a reply without data and without `eof`.
fn reached_end(offset: u64, requested: u32, count: usize, size: u64) -> bool {
    (requested > 0 && count == 0) || offset.saturating_add(count as u64) >= size
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn read_without_data_sets_eof() {
        assert!(reached_end(4096, 4096, 0, 8192));
        assert!(reached_end(4096, 4096, 4096, 8192));
        assert!(reached_end(4096, 4096, 100, 4196));
        assert!(!reached_end(4096, 4096, 100, 8192));
        assert!(!reached_end(4096, 0, 0, 8192));
        assert!(reached_end(8192, 0, 0, 8192));
        assert!(reached_end(u64::MAX, 1, 0, 0));
    }
}
