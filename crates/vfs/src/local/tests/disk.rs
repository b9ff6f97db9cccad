//! A real file system whose device fails on demand.

use std::{fs::File, path::PathBuf};

use rustix::fs::FallocateFlags;

use super::mounts::Mounts;

/// ext4 on a loop device whose file is sparse and lies on a small tmpfs. While the tmpfs is full, the write-back of
/// blocks that were never written fails, and what was written before can be read.
pub(super) struct FailingDisk(Mounts);

impl FailingDisk {
    /// A fresh one; `None`, after a word about the reason, where the machine does not allow it.
    pub(super) fn new() -> Option<Self> {
        Self::sized(256 << 20, 0)
    }

    /// One of `size` bytes, of which `reserved` per cent are the superuser's.
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

    /// Where it is mounted.
    pub(super) fn root(&self) -> PathBuf {
        self.0.path("root")
    }

    fn ballast(&self) -> PathBuf {
        self.0.path("back/ballast")
    }

    /// From now on write-back of new blocks fails.
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

    /// From now on it works.
    pub(super) fn heal(&self) {
        let _ = std::fs::remove_file(self.ballast());
    }

    /// Starts write-back of everything and waits for it. Errors stay unreported.
    pub(super) fn write_back(&self) {
        let _ = rustix::fs::syncfs(File::open(self.root()).unwrap());
    }

    /// What the disk has of a file: reads it after its clean pages are gone from the page cache.
    pub(super) fn content(&self, name: &str) -> Vec<u8> {
        let file = File::open(self.root().join(name)).unwrap();
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
        std::fs::read(self.root().join(name)).unwrap()
    }

    /// A local program's `fsync` of a file, which takes the error that is not reported yet.
    pub(super) fn local_sync(&self, name: &str) {
        let _ = File::open(self.root().join(name)).unwrap().sync_all();
    }
}
