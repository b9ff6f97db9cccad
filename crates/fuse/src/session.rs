//! What every file system here agrees on with the kernel, so that figures of one can stand beside those of another.

use std::{
    fs::{self, File},
    io,
    path::Path,
};

use fuser::{Config, Filesystem, InitFlags, KernelConfig, Session, SessionACL};

use crate::{device::MountRequest, mountpoint::detach};

/// The most bytes of one READ or WRITE of the kernel; it may want less (`/proc/sys/fs/fuse/max_pages_limit`).
const MAX_TRANSFER: u32 = 1 << 20;
/// Requests that the kernel makes of its own accord (read-ahead, writing back) at a time.
const BACKGROUND: u16 = 64;
/// How far ahead the kernel reads, where we may say so, KiB.
const READ_AHEAD_KIB: u32 = 4096;
/// The most threads that take requests.
const MAX_THREADS: usize = 4;

/// Asks the kernel for what it can do that helps, and `more`.
pub(crate) fn negotiate(config: &mut KernelConfig, more: &[InitFlags]) {
    let wanted = [
        InitFlags::FUSE_ASYNC_READ,
        InitFlags::FUSE_DO_READDIRPLUS,
        InitFlags::FUSE_READDIRPLUS_AUTO,
        InitFlags::FUSE_PARALLEL_DIROPS,
        InitFlags::FUSE_CACHE_SYMLINKS,
        InitFlags::FUSE_ASYNC_DIO,
        InitFlags::FUSE_MAX_PAGES,
    ];
    for flag in wanted.iter().chain(more) {
        if config.add_capabilities(*flag).is_err() {
            tracing::info!("this kernel's FUSE has no {flag:?}");
        }
    }
    // Where the kernel wants less, it says so in what it can.
    let _ = config.set_max_write(MAX_TRANSFER);
    if let Err(most) = config.set_max_readahead(8 * MAX_TRANSFER) {
        let _ = config.set_max_readahead(most);
    }
    let _ = config.set_max_background(BACKGROUND);
}

/// Mounts on `at` a file system whose requests several threads take, each with a channel of its own to the kernel. The
/// device is for notifications.
///
/// # Errors
/// Those of [`MountRequest::mount`], and of the first exchange with the kernel; nothing is mounted then.
pub(crate) fn start<F: Filesystem>(
    filesystem: F,
    request: &MountRequest,
    at: &Path,
) -> io::Result<(Session<F>, File)> {
    let mut config = Config::default();
    config.n_threads = Some(session_threads());
    config.clone_fd = true;
    let acl = if request.allow_other { SessionACL::All } else { SessionACL::Owner };
    let device = request.mount(at)?;
    let session = device.try_clone().and_then(|copy| {
        let session = Session::from_fd(filesystem, device, acl, config)?;
        Ok((session, File::from(copy)))
    });
    session.inspect_err(|_| drop(detach(at)))
}

/// The kernel wakes one of the threads that wait for requests, the longest asleep: more threads than processors only
/// take turns in being woken, where one that is awake finds the next request by itself.
fn session_threads() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from).min(MAX_THREADS)
}

/// The kernel reads 128 KiB ahead of its own accord, too little for a network; root may say otherwise: whether we could.
/// Asks the mount itself, which must answer by now.
pub(crate) fn raise_kernel_read_ahead(path: &Path) -> bool {
    let Ok(stat) = rustix::fs::stat(path) else { return false };
    let (major, minor) = (rustix::fs::major(stat.st_dev), rustix::fs::minor(stat.st_dev));
    let knob = format!("/sys/class/bdi/{major}:{minor}/read_ahead_kb");
    match fs::write(&knob, READ_AHEAD_KIB.to_string()) {
        Ok(()) => true,
        Err(e) => {
            tracing::info!("the kernel reads only 128 KiB ahead ({knob}: {e}), so the mount does");
            false
        }
    }
}
