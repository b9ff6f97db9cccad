//! READ, WRITE and COMMIT: finding the descriptor, and what the engine's outcome means.

use std::{
    os::fd::{AsFd, OwnedFd},
    sync::Arc,
};

use super::{attr, setup::Export, transfer::Outcome};
use crate::{FileKind, FsError, FsResult, Handle, Identity, Read, Stability, Wcc, Written};

/// A descriptor through which `who` may read (or write) `file`. Waits for a thread only if the file is not open or
/// the permission not known.
pub(super) async fn open(
    export: &Arc<Export>,
    who: Identity,
    file: Handle,
    write: bool,
) -> FsResult<Arc<OwnedFd>> {
    if write {
        export.writable()?;
    }
    let ready =
        export.tree.cached(&file).filter(|n| n.is_granted(&who, write)).and_then(|n| n.data_fd(write));
    if let Some(fd) = ready {
        return Ok(fd);
    }
    let this = Arc::clone(export);
    let job = move || {
        let node = this.tree.open(&file)?;
        let st = attr::live_stat(node.as_fd())?;
        this.creds.may_transfer(&who, node.as_fd(), &st, write)?;
        let fd = node.open_data(write)?;
        node.grant(&who, write);
        Ok(fd)
    };
    export.pool.run(job).await
}

/// A descriptor through which `file` can be synced.
pub(super) async fn open_to_sync(export: &Arc<Export>, file: Handle) -> FsResult<Arc<OwnedFd>> {
    if let Some(fd) = export.tree.cached(&file).and_then(|n| n.data_fd(true)) {
        return Ok(fd);
    }
    let this = Arc::clone(export);
    let job = move || {
        let node = this.tree.open(&file)?;
        match node.kind() {
            FileKind::Regular => node.open_any(),
            FileKind::Directory => Err(FsError::IsDir),
            _ => Err(FsError::Inval),
        }
    };
    export.pool.run(job).await
}

impl Export {
    /// What READ gives.
    pub(super) fn finish_read(&self, offset: u64, out: Outcome) -> FsResult<Read> {
        let attr = attr::attr(&out.stat, self.fsid)?;
        let eof = offset.saturating_add(out.count as u64) >= attr.size;
        Ok(Read { data: out.data, eof, attr })
    }

    /// What WRITE gives.
    pub(super) fn finish_write(&self, stable: Stability, out: Outcome) -> FsResult<Written> {
        let count = u32::try_from(out.count).map_err(|_| FsError::ServerFault)?;
        Ok(Written { count, committed: stable, wcc: self.after(&out.stat)? })
    }

    /// An object's attributes after a change; see the module about why not before.
    pub(super) fn after(&self, st: &rustix::fs::Statx) -> FsResult<Wcc> {
        Ok(Wcc { before: None, after: Some(attr::attr(st, self.fsid)?) })
    }
}
