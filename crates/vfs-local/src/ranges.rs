//! Calls on ranges of sparse files: fallocate(2), and lseek(2) for data and holes.

use std::{ops::Range, os::fd::AsFd, sync::Arc};

use millrace_buffer::BLOCK_BYTES;
use millrace_vfs::{FsError, FsResult, Handle, Identity, SeekTarget, Stability, Views, Wcc};
use rustix::{
    fs::{SeekFrom, Statx},
    io::Errno,
};

use super::{
    attr,
    data::{self, Purpose},
    data_file::DataFile,
    setup::Export,
    transfer::{Operation, RangeChange},
};

/// Maximum size of one write of zeros.
const ZEROS: usize = 1 << 20;

/// ALLOCATE, DEALLOCATE, or zeroing, which extends the file. File systems without `FALLOC_FL_ZERO_RANGE` get zeros.
pub(super) async fn change(
    export: Arc<Export>,
    caller: Identity,
    file: Handle,
    offset: u64,
    length: u64,
    change: RangeChange,
) -> FsResult<Wcc> {
    let fd = data::open(&export, caller, file, Purpose::Write).await?;
    let out = export.engine.submit(Arc::clone(&fd), offset, Operation::Range { change, length }).await;
    let st = match out {
        Err(FsError::NotSupp) if change == RangeChange::Zero => {
            write_zeros(&export, &fd, offset, length).await?
        }
        out => out?.stat,
    };
    export.after(&st)
}

/// Writes zeros to a range whose end the engine has checked. Returns the attributes afterwards.
async fn write_zeros(export: &Export, fd: &Arc<DataFile>, offset: u64, length: u64) -> FsResult<Statx> {
    let zeros = {
        let mut block = export.engine.arena().alloc(BLOCK_BYTES).map_err(|_| FsError::Jukebox)?;
        block.fill(0);
        block.freeze()
    };
    let end = offset.saturating_add(length);
    let mut at = offset;
    loop {
        let mut data: Views = (0..ZEROS / BLOCK_BYTES).map(|_| zeros.clone()).collect();
        data.truncate(usize::try_from(end - at).unwrap_or(ZEROS));
        let write = Operation::Write { data, stable: Stability::Unstable };
        let out = export.engine.submit(Arc::clone(fd), at, write).await?;
        at = at.saturating_add(out.count as u64);
        if at >= end {
            return Ok(out.stat);
        }
    }
}

/// The offset of the first data or hole of a range; `None` if there is none before the end of the file. The kernel
/// may search further.
pub(super) async fn seek(
    export: Arc<Export>,
    caller: Identity,
    file: Handle,
    range: Range<u64>,
    target: SeekTarget,
) -> FsResult<Option<u64>> {
    let fd = data::open(&export, caller, file, Purpose::Read).await?;
    if i64::try_from(range.start).is_err() {
        return Ok(None);
    }
    let from = match target {
        SeekTarget::Data => SeekFrom::Data(range.start),
        SeekTarget::Hole => SeekFrom::Hole(range.start),
    };
    let job = move || {
        attr::live_stat(fd.as_fd())?;
        match rustix::fs::seek(&*fd, from) {
            Ok(at) => Ok(Some(at).filter(|at| *at < range.end)),
            Err(Errno::NXIO) => Ok(None),
            Err(e) => Err(e.into()),
        }
    };
    export.pool.run(job).await
}
