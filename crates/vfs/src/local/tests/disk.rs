//! A real file system whose device fails on demand.

use std::{
    fs::File,
    path::{Path, PathBuf},
    process::Command,
};

use rustix::fs::FallocateFlags;

/// ext4 on a loop device whose file is sparse and lies on a small tmpfs. While the tmpfs is full, the write-back of
/// blocks that were never written fails, and what was written before can be read.
pub(super) struct FailingDisk {
    dir: tempfile::TempDir,
    device: String,
}

fn run(program: &str, args: &[&str]) -> Result<String, String> {
    let out = Command::new(program).args(args).output().map_err(|e| format!("{program}: {e}"))?;
    let said = String::from_utf8_lossy(&out.stderr);
    if out.status.success() {
        Ok(String::from_utf8_lossy(&out.stdout).trim().to_owned())
    } else {
        Err(format!("{program} {args:?}: {said}"))
    }
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

impl FailingDisk {
    /// A fresh one; `None`, after a word about the reason, where the machine does not allow it.
    pub(super) fn new() -> Option<Self> {
        Self::sized(256 << 20, 0)
    }

    /// One of `size` bytes, of which `reserved` per cent are the superuser's.
    pub(super) fn sized(size: u64, reserved: u32) -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            println!("skipped: a loop device needs root");
            return None;
        }
        let mut disk = Self { dir: tempfile::tempdir().unwrap(), device: String::new() };
        match disk.mount(size, reserved) {
            Ok(()) => Some(disk),
            Err(e) => {
                println!("skipped: {e}");
                None
            }
        }
    }

    fn mount(&mut self, size: u64, reserved: u32) -> Result<(), String> {
        let (back, root) = (self.dir.path().join("back"), self.root());
        std::fs::create_dir(&back).unwrap();
        std::fs::create_dir(&root).unwrap();
        run("mount", &["-t", "tmpfs", "-o", "size=48m", "none", text(&back)])?;
        let image = back.join("image");
        File::create(&image).unwrap().set_len(size).unwrap();
        let options = "lazy_itable_init=0,nodiscard";
        run(
            "mkfs.ext4",
            &[
                "-q",
                "-F",
                "-b",
                "4096",
                "-m",
                &reserved.to_string(),
                "-O",
                "^has_journal",
                "-E",
                options,
                text(&image),
            ],
        )?;
        self.device = run("losetup", &["--find", "--show", text(&image)])?;
        run("mount", &["-t", "ext4", "-o", "errors=continue", &self.device, text(&root)])?;
        Ok(())
    }

    /// Where it is mounted.
    pub(super) fn root(&self) -> PathBuf {
        self.dir.path().join("root")
    }

    fn ballast(&self) -> PathBuf {
        self.dir.path().join("back/ballast")
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

impl Drop for FailingDisk {
    fn drop(&mut self) {
        self.heal();
        let _ = run("umount", &["-l", text(&self.root())]);
        if !self.device.is_empty() {
            let _ = run("losetup", &["--detach", &self.device]);
        }
        let _ = run("umount", &["-l", text(&self.dir.path().join("back"))]);
    }
}
