//! Mounts for tests, removed at their end.

use std::{
    ffi::CString,
    fs::File,
    os::fd::AsRawFd,
    path::{Path, PathBuf},
    process::Command,
};

use rustix::mount::MountFlags;

fn run(program: &str, args: &[&str]) -> Result<String, String> {
    let out = Command::new(program).args(args).output().map_err(|e| format!("{program}: {e}"))?;
    let message = String::from_utf8_lossy(&out.stderr);
    if out.status.success() {
        Ok(String::from_utf8_lossy(&out.stdout).trim().to_owned())
    } else {
        Err(format!("{program} {args:?}: {message}"))
    }
}

pub(super) fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// A temporary directory, with mounts in it.
pub(super) struct Mounts {
    dir: tempfile::TempDir,
    mounted: Vec<PathBuf>,
    devices: Vec<String>,
}

impl Mounts {
    /// Creates mounts with `make`. `None`, after printing the reason, if the host does not allow it.
    pub(super) fn new(make: impl FnOnce(&mut Self) -> Result<(), String>) -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            println!("skipped: mounting needs root");
            return None;
        }
        let dir = tempfile::tempdir().unwrap();
        let mut mounts = Self { dir, mounted: Vec::new(), devices: Vec::new() };
        match make(&mut mounts) {
            Ok(()) => Some(mounts),
            Err(e) => {
                println!("skipped: {e}");
                None
            }
        }
    }

    /// A path in the directory.
    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Creates the directory `name` and mounts on it.
    pub(super) fn mount(&mut self, name: &str, args: &[&str]) -> Result<PathBuf, String> {
        let at = self.path(name);
        let _ = std::fs::create_dir(&at);
        run("mount", &[args, &[text(&at)]].concat())?;
        self.mounted.push(at.clone());
        Ok(at)
    }

    /// Mounts a FUSE file system for all users on the new directory `name`. The caller serves its device.
    pub(super) fn fuse(&mut self, name: &str) -> Result<File, String> {
        let at = self.path(name);
        let _ = std::fs::create_dir(&at);
        let device = File::options().read(true).write(true).open("/dev/fuse");
        let device = device.map_err(|e| format!("/dev/fuse: {e}"))?;
        let options = format!(
            "fd={},rootmode=40000,user_id=0,group_id=0,allow_other,default_permissions",
            device.as_raw_fd()
        );
        let options = CString::new(options).unwrap();
        rustix::mount::mount("millrace", &at, "fuse", MountFlags::NOSUID, options.as_c_str())
            .map_err(|e| format!("mount {}: {e}", text(&at)))?;
        self.mounted.push(at);
        Ok(device)
    }

    /// Creates a file system in the new file `image` of `size` bytes with a mkfs program, and mounts it.
    pub(super) fn format(
        &mut self,
        image: &Path,
        size: u64,
        program: &[&str],
        name: &str,
        options: &str,
    ) -> Result<PathBuf, String> {
        File::create(image).unwrap().set_len(size).unwrap();
        run(program[0], &[&program[1..], &[text(image)]].concat())?;
        let device = run("losetup", &["--find", "--show", text(image)])?;
        self.devices.push(device.clone());
        self.mount(name, &["-o", options, &device])
    }
}

impl Drop for Mounts {
    fn drop(&mut self) {
        for at in self.mounted.iter().rev() {
            let _ = run("umount", &["-l", text(at)]);
        }
        for device in &self.devices {
            let _ = run("losetup", &["--detach", device]);
        }
    }
}
