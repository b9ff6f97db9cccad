//! FUSE session settings shared by all file systems, so that their benchmarks are comparable.

use std::{fs, io, path::Path};

use crate::protocol::InitFlags;

use crate::{
    channel::{Handler, Session, SessionOptions},
    device::MountRequest,
    mountpoint::detach,
};

/// Block size that stat(2) and statfs(2) report, in bytes.
pub const BLOCK: u32 = 4096;
/// Maximum READ or WRITE size requested; the kernel may use less (`/proc/sys/fs/fuse/max_pages_limit`).
const MAX_TRANSFER: u32 = 1 << 20;
/// Kernel read-ahead in KiB, if the mount may set it.
const READ_AHEAD_KIB: u32 = 4096;
/// Maximum number of threads that read requests.
const MAX_THREADS: usize = 4;

/// Capabilities of file systems with directories.
pub const TREE: InitFlags = InitFlags::DO_READDIRPLUS
    .union(InitFlags::READDIRPLUS_AUTO)
    .union(InitFlags::PARALLEL_DIROPS)
    .union(InitFlags::CACHE_SYMLINKS);

/// The settings of a session with a number of threads, for the requests of `owner` or of all users.
pub fn options(threads: usize, owner: Option<u32>) -> SessionOptions {
    SessionOptions {
        max_write: MAX_TRANSFER,
        max_readahead: 8 * MAX_TRANSFER,
        threads,
        owner,
        io_uring: false,
    }
}

/// Mounts a file system on `at`, whose requests `threads` threads will read, or arrive over io_uring.
///
/// # Errors
/// Those of [`MountRequest::mount`] and of FUSE_INIT; nothing is mounted then.
pub fn start<H: Handler>(
    handler: H,
    request: &MountRequest,
    at: &Path,
    threads: usize,
    io_uring: bool,
) -> io::Result<Session<H>> {
    let owner = (!request.allow_other).then(|| rustix::process::geteuid().as_raw());
    let device = request.mount(at)?;
    let options = SessionOptions { io_uring, ..options(threads, owner) };
    let session = Session::start(handler, device, options);
    session.inspect_err(|_| drop(detach(at)))
}

/// The number of threads for a session whose handler blocks, or whose executor has several threads. The kernel wakes the
/// thread that has waited longest. With more threads than processors, each request wakes another thread, although one
/// that is running would read the next request by itself.
pub fn threads() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from).min(MAX_THREADS)
}

/// Raises the kernel's read-ahead from 128 KiB, too little for a network, which only root may do. Returns
/// whether it succeeded. Calls stat(2) on the mount, which must be serving already.
pub fn raise_kernel_read_ahead(path: &Path) -> bool {
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
