//! FUSE session settings shared by all file systems, so that their benchmarks are comparable.

use std::{
    fs::{self, File},
    io,
    path::Path,
};

use fuser::{Config, Filesystem, InitFlags, KernelConfig, Session, SessionACL};

use crate::{device::MountRequest, mountpoint::detach};

/// Maximum READ or WRITE size requested; the kernel may use less (`/proc/sys/fs/fuse/max_pages_limit`).
const MAX_TRANSFER: u32 = 1 << 20;
/// Maximum number of background requests (read-ahead, write-back) of the kernel.
const BACKGROUND: u16 = 64;
/// Kernel read-ahead in KiB, if the mount may set it.
const READ_AHEAD_KIB: u32 = 4096;
/// Maximum number of threads that read requests.
const MAX_THREADS: usize = 4;

/// Capabilities of file systems with directories.
pub(crate) const TREE: [InitFlags; 4] = [
    InitFlags::FUSE_DO_READDIRPLUS,
    InitFlags::FUSE_READDIRPLUS_AUTO,
    InitFlags::FUSE_PARALLEL_DIROPS,
    InitFlags::FUSE_CACHE_SYMLINKS,
];

/// Enables the common FUSE capabilities, and `more`.
pub(crate) fn negotiate(config: &mut KernelConfig, more: &[InitFlags]) {
    let wanted = [InitFlags::FUSE_ASYNC_READ, InitFlags::FUSE_ASYNC_DIO, InitFlags::FUSE_MAX_PAGES];
    for flag in wanted.iter().chain(more) {
        if config.add_capabilities(*flag).is_err() {
            tracing::info!("the kernel does not support {flag:?}");
        }
    }
    // The kernel reports its own limits in the error.
    let _ = config.set_max_write(MAX_TRANSFER);
    if let Err(most) = config.set_max_readahead(8 * MAX_TRANSFER) {
        let _ = config.set_max_readahead(most);
    }
    let _ = config.set_max_background(BACKGROUND);
}

/// Mounts a file system on `at`; several threads read requests, each from its own clone of `/dev/fuse`. The
/// returned device is for notifications.
///
/// # Errors
/// Those of [`MountRequest::mount`] and of FUSE_INIT; nothing is mounted then.
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

/// The kernel wakes the thread that has waited longest. With more threads than processors, each request wakes
/// another thread, although one that is running would read the next request by itself.
fn session_threads() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from).min(MAX_THREADS)
}

/// Raises the kernel's read-ahead from 128 KiB, too little for a network, which only root may do. Returns
/// whether it succeeded. Calls stat(2) on the mount, which must be serving already.
pub(crate) fn raise_kernel_read_ahead(path: &Path) -> bool {
    let Ok(stat) = rustix::fs::stat(path) else { return false };
    let (major, minor) = (rustix::fs::major(stat.st_dev), rustix::fs::minor(stat.st_dev));
    let knob = format!("/sys/class/bdi/{major}:{minor}/read_ahead_kb");
    match fs::write(&knob, READ_AHEAD_KIB.to_string()) {
        Ok(()) => true,
        Err(e) => {
            tracing::info!(
                "the mount does the read-ahead, since the kernel's is limited to 128 KiB ({knob}: {e})"
            );
            false
        }
    }
}
