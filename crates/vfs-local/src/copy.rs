//! Copies between files: copy_file_range(2), and FICLONERANGE.

use std::{os::fd::AsFd, sync::Arc};

use millrace_vfs::{Copied, FsError, FsResult, Handle, Identity, Stability, Wcc, check_copy};

use rustix::io::Errno;

use super::{
    attr,
    data::{self, Purpose},
    setup::Export,
    sys,
};

/// Maximum bytes that one call copies: it keeps a thread of the pool busy meanwhile.
const MAX_DATA: u64 = 16 << 20;

/// Copies up to `length` bytes. The kernel shares or copies blocks. Runs with the caller's credentials, so that
/// a copy by others clears set-ID bits and quotas apply.
pub(super) async fn copy(
    export: Arc<Export>,
    caller: Identity,
    (source, from): (Handle, u64),
    (destination, to): (Handle, u64),
    length: u64,
) -> FsResult<Copied> {
    check_copy((&source, from), (&destination, to), length)?;
    if i64::try_from(to + length).is_err() {
        return Err(FsError::FBig);
    }
    let input = data::open(&export, caller.clone(), source, Purpose::Read).await?;
    let output = data::open(&export, caller.clone(), destination, Purpose::Write).await?;
    let shared = Arc::clone(&export);
    let job = move || {
        attr::live_stat(input.as_fd())?;
        attr::live_stat(output.as_fd())?;
        let (mut at, mut to) = (from, to);
        let end = from.saturating_add(length.min(MAX_DATA));
        let copy_piece = |at: &mut u64, to: &mut u64| {
            let wanted = usize::try_from(end - *at).map_err(|_| FsError::Inval)?;
            let copied = rustix::fs::copy_file_range(&*input, Some(at), &*output, Some(to), wanted)?;
            output.note_unstable_write();
            Ok(copied)
        };
        shared.creds.as_caller(&caller, || {
            while at < end && i64::try_from(at).is_ok() {
                match copy_piece(&mut at, &mut to) {
                    Ok(0) => break,
                    Ok(_) => {}
                    Err(e) if at == from => return Err(e),
                    Err(_) => break, // The next call reports the error.
                }
            }
            Ok(Copied { count: at - from, committed: Stability::Unstable })
        })
    };
    export.pool.run(job).await
}

/// Shares storage between files. The destination is synced, because CLONE has no COMMIT.
pub(super) async fn clone_range(
    export: Arc<Export>,
    caller: Identity,
    (source, from): (Handle, u64),
    (destination, to): (Handle, u64),
    length: u64,
) -> FsResult<Wcc> {
    check_copy((&source, from), (&destination, to), length)?;
    if i64::try_from(to + length).is_err() {
        return Err(FsError::FBig);
    }
    let input = data::open(&export, caller.clone(), source, Purpose::Read).await?;
    let output = data::open(&export, caller.clone(), destination, Purpose::Write).await?;
    let shared = Arc::clone(&export);
    let job = move || {
        let source = attr::live_stat(input.as_fd())?;
        attr::live_stat(output.as_fd())?;
        if from + length > source.stx_size {
            return Err(FsError::Inval);
        }
        if length > 0 {
            shared.creds.as_caller(&caller, || {
                output.note_unstable_write();
                match sys::clone_range((input.as_fd(), from), (output.as_fd(), to), length) {
                    // The file system does not support FICLONERANGE.
                    Err(Errno::NOTTY) => Err(FsError::NotSupp),
                    done => Ok(done?),
                }
            })?;
            output.sync_now(&shared.verifier)?;
        }
        shared.after(&attr::stat(output.as_fd())?)
    };
    export.pool.run(job).await
}
