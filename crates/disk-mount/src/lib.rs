//! A block device as a file: a FUSE file system that contains only the regular file `disk`.
//!
//! [`DiskMount::new`] mounts it; the caller has connected the device. `file.rs` reads and writes ranges of bytes that
//! need not begin or end at a block, `handler.rs` implements the FUSE operations. Mounting, the distribution of
//! requests over the executor's threads and the release of killed processes are those of `millrace_fuse_session`.
//!
//! # No page cache
//! The file is opened with FOPEN_DIRECT_IO: each read and write of a program is one of the device. Other initiators may
//! use the same device, and a target has no means to invalidate pages that the kernel has cached. This also avoids a
//! second copy in memory: a file system on a loop device, or a QEMU guest, has its own cache. O_DIRECT changes nothing,
//! and needs no alignment. Mapped pages (mmap) are cached by the kernel nevertheless, which permits shared mappings
//! since Linux 6.6 (FUSE_DIRECT_IO_ALLOW_MMAP); changes by other initiators appear in them only after the last mapping
//! is gone. Writes to the file run in parallel (FOPEN_PARALLEL_DIRECT_WRITES).
//!
//! # Durability
//! As with a disk, a completed write is durable after fsync, or when it completes if the file was opened with O_SYNC or
//! O_DSYNC. A close does not flush. [`DiskMount::unmount`] flushes. If the target reports that writes may be lost, each
//! open file reports it once, by a failing fsync.
//!
//! # Differences from a regular file
//! The size is that of the device: changing it fails with EPERM, which includes O_TRUNC. A write beyond the end fails
//! with ENOSPC. As on block devices of Linux, fallocate makes ranges zero (FALLOC_FL_ZERO_RANGE), and frees their storage
//! if the device can (FALLOC_FL_PUNCH_HOLE); SEEK_HOLE finds none. fallocate without these modes fails with EOPNOTSUPP.

mod file;
mod handler;
#[cfg(test)]
mod tests;

use std::{
    path::{Path, PathBuf},
    sync::{Arc, Weak},
    time::Duration,
};

use millrace_fuse_session::{MountError, device::MountRequest, mountpoint, serving::Serving, settings};
use millrace_iscsi_initiator::{BlockDevice, Error};
use millrace_runtime::{RuntimeExt, tokio_rt::TokioRuntime};
use rustix::mount::MountFlags;
use tokio::runtime::Handle;

use self::handler::{Disk, DiskHandler};

/// Name of the file.
const NAME: &str = "disk";
/// Time limit for the kernel to unmount an idle mount.
const UNMOUNT_TIMEOUT: Duration = Duration::from_secs(10);
/// Interval at which waiting requests look at their callers.
const TICK: Duration = Duration::from_millis(500);

/// A directory with a block device as the file `disk`. Dropping it detaches the mount at once; [`Self::unmount`]
/// flushes the device.
pub struct DiskMount {
    file: PathBuf,
    serving: Serving,
    disk: Arc<Disk>,
}

impl DiskMount {
    /// Mounts `device` on `dir`, for the user of this process (and root). It is read-only if `read_only`, or if the
    /// device is write-protected.
    ///
    /// # Errors
    /// [`MountError`]: `dir` is not an empty directory, or the kernel or fusermount3 refuses the mount.
    ///
    /// # Panics
    /// Outside the context of a Tokio runtime, whose threads answer the requests.
    pub fn new(device: BlockDevice, dir: &Path, read_only: bool) -> Result<Self, MountError> {
        let path = mountpoint::check(dir)?;
        let read_only = read_only || device.info().read_only;
        let mut flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
        flags.set(MountFlags::RDONLY, read_only);
        let source = device.url().to_owned();
        let request = MountRequest { source, flags, allow_other: false, default_permissions: false };
        let handle = Handle::current();
        let workers = handle.metrics().num_workers();
        let rt = TokioRuntime::from_handle(handle.clone());
        let disk = Arc::new(Disk::new(device, (rt, workers), read_only));
        let handler = DiskHandler::new(Arc::clone(&disk), handle);
        let session = settings::start(handler, &request, &path, settings::threads(), false)
            .map_err(|source| MountError::Kernel { path: path.clone(), source })?;
        let file = path.join(NAME);
        let serving = Serving::start(session, path)?;
        let task = tick(Arc::downgrade(&disk));
        disk.rt.spawn("disk timer", Box::pin(task));
        tracing::info!(device = disk.file.device().url(), path = %file.display(), "attached");
        Ok(Self { file, serving, disk })
    }

    /// The file.
    pub fn file(&self) -> &Path {
        &self.file
    }

    /// The mount point.
    pub fn path(&self) -> &Path {
        self.serving.path()
    }

    /// Completes when the mount has ended, by this process or by umount(8).
    pub async fn ended(&self) {
        self.serving.ended().await;
    }

    /// Unmounts, and makes completed writes durable. If the file is open, for example by a loop device, it becomes
    /// unusable when this process exits.
    ///
    /// # Errors
    /// That of the last flush: completed writes may be lost.
    pub async fn unmount(self) -> Result<(), Error> {
        self.serving.unmount(UNMOUNT_TIMEOUT).await;
        self.disk.file.device().flush().await
    }
}

/// Lets waiting requests look at their callers, while `disk` exists.
async fn tick(disk: Weak<Disk>) {
    while let Some(rt) = disk.upgrade().map(|disk| disk.rt.clone()) {
        rt.sleep(TICK).await;
        if let Some(disk) = disk.upgrade() {
            disk.ticks.notify_waiters();
        }
    }
}
