//! A real file system whose device fails on demand.

use std::{fs::File, path::PathBuf};

use rustix::fs::FallocateFlags;

use super::mounts::Mounts;

/// ext4 on a loop device backed by a sparse file on a small tmpfs. While the tmpfs is full, write-back of new
/// blocks fails, and blocks written before remain readable.
pub(super) struct FailingDisk(Mounts);

impl FailingDisk {
    /// Creates one; `None`, after printing the reason, if the host does not allow it.
    pub(super) fn new() -> Option<Self> {
        Self::sized(256 << 20, 0)
    }

    /// One of `size` bytes, with `reserved` per cent reserved for root.
    pub(super) fn sized(size: u64, reserved: u32) -> Option<Self> {
        let reserved = reserved.to_string();
        let extended = "lazy_itable_init=0,nodiscard";
        let program =
            ["mkfs.ext4", "-qF", "-b", "4096", "-m", &reserved, "-O", "^has_journal", "-E", extended];
        Mounts::new(|m| {
            let image = m.mount("back", &["-t", "tmpfs", "-o", "size=48m", "none"])?.join("image");
            m.format(&image, size, &program, "root", "errors=continue").map(drop)
        })
        .map(Self)
    }

    /// The mount point.
    pub(super) fn root(&self) -> PathBuf {
        self.0.path("root")
    }

    fn ballast(&self) -> PathBuf {
        self.0.path("back/ballast")
    }

    /// Makes the write-back of new blocks fail.
    pub(super) fn fail(&self) {
        let file = File::options().append(true).create(true).open(self.ballast()).unwrap();
        let mut size = 16 << 20;
        while size >= 4096 {
            let end = file.metadata().unwrap().len();
            if rustix::fs::fallocate(&file, FallocateFlags::empty(), end, size).is_err() {
                size /= 2;
            }
        }
    }

    /// Makes write-back succeed again.
    pub(super) fn heal(&self) {
        // Removing the file would not do: a process that another test starts may have inherited its descriptor.
        File::create(self.ballast()).unwrap();
    }

    /// Writes back everything and waits for completion. Errors stay unreported.
    pub(super) fn write_back(&self) {
        let _ = rustix::fs::syncfs(File::open(self.root()).unwrap());
    }

    /// Content of a file on the disk: drops its clean pages from the page cache and reads it.
    pub(super) fn content(&self, name: &str) -> Vec<u8> {
        let file = File::open(self.root().join(name)).unwrap();
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
        std::fs::read(self.root().join(name)).unwrap()
    }

    /// A local `fsync` of a file, which consumes an unreported error.
    pub(super) fn local_sync(&self, name: &str) {
        let _ = File::open(self.root().join(name)).unwrap().sync_all();
    }
}
