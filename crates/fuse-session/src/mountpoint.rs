//! Checks of mount points, and unmounting.

use std::{
    ffi::OsString,
    fs::{self, File},
    io,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
    sync::mpsc,
    time::Duration,
};

use rustix::{
    fs::{FlockOperation, Mode, OFlags, flock, statfs},
    io::Errno,
    mount::{MountFlags, UnmountFlags, unmount},
};

use crate::MountError;

/// Returns the absolute path of `dir` if it is a usable mount point: an empty directory that is not one of
/// our mounts.
pub fn check(dir: &Path) -> Result<PathBuf, MountError> {
    let refuse = |reason: String| MountError::MountPoint { path: dir.to_owned(), reason };
    let path = absolute(dir).map_err(|e| match e.kind() {
        io::ErrorKind::NotFound => refuse("the directory does not exist; create it first".into()),
        _ => refuse(e.to_string()),
    })?;
    if mounted(&path).is_some_and(|m| m.is_ours) {
        let what = match is_dead(&path) {
            true => "a mount whose process has ended is still there; remove it",
            false => "millrace has already mounted an NFS export there; unmount it",
        };
        return Err(refuse(format!("{what} with: millrace umount {}", dir.display())));
    }
    if !path.is_dir() {
        return Err(refuse("it is not a directory".into()));
    }
    let mut entries = fs::read_dir(&path).map_err(|e| refuse(e.to_string()))?;
    if entries.next().is_some() {
        return Err(refuse("it is not empty, and a mount would hide its content".into()));
    }
    Ok(path)
}

/// The absolute path of `dir`, also if the process of a mount there has ended.
fn absolute(dir: &Path) -> io::Result<PathBuf> {
    match dir.canonicalize() {
        Err(e) if is_not_connected(&e) => {
            let (above, name) = dir.parent().zip(dir.file_name()).ok_or(e)?;
            let above = if above.as_os_str().is_empty() { Path::new(".") } else { above };
            Ok(above.canonicalize()?.join(name))
        }
        path => path,
    }
}

/// What the kernel answers for a FUSE mount whose process has ended.
fn is_not_connected(e: &io::Error) -> bool {
    matches!(Errno::from_io_error(e), Some(Errno::NOTCONN | Errno::CONNABORTED))
}

/// Whether the process of the mount on `path` has ended.
fn is_dead(path: &Path) -> bool {
    // The kernel asks the process at each statfs(2), which may wait for its server: one that does not reply is alive.
    let (sender, answer) = mpsc::channel();
    let path = path.to_owned();
    std::thread::spawn(move || sender.send(statfs(&path).is_err_and(|e| is_not_connected(&e.into()))));
    answer.recv_timeout(Duration::from_secs(2)).unwrap_or(false)
}

fn open(dir: &Path) -> Result<File, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(rustix::fs::open(dir, flags, Mode::empty())?.into())
}

/// Locks the directory `path`, on which an export will be mounted, until the mount has ended and written its data. `None` if
/// its file system does not permit that: then [`umount`] does not wait.
pub fn hold(path: &Path) -> Option<File> {
    let dir = open(path).ok()?;
    flock(&dir, FlockOperation::NonBlockingLockShared).ok()?;
    Some(dir)
}

/// Unmounts the export on `dir`, and waits until the process of the mount has written all data and ended. A mount whose process
/// has ended already is removed, also if files are open.
///
/// # Errors
/// [`MountError::Unmount`]: no export is mounted there, or it is in use.
pub fn umount(dir: &Path) -> Result<(), MountError> {
    let refuse = |reason: String| MountError::Unmount { path: dir.to_owned(), reason };
    let path = absolute(dir).map_err(|e| refuse(e.to_string()))?;
    if !mounted(&path).is_some_and(|m| m.is_ours) {
        return Err(refuse("millrace has not mounted an export there".into()));
    }
    if let Err(e) = unmount_idle(&path) {
        if !is_dead(&path) {
            let path = path.display();
            return Err(refuse(format!("{e}; end the programs that use it, which `fuser -vm {path}` lists")));
        }
        tracing::warn!("the process of the mount has ended: data that it had not written is lost");
        detach(&path).map_err(|e| refuse(e.to_string()))?;
    }
    if let Ok(dir) = open(&path) {
        let (_waiting, ended) = mpsc::channel::<()>();
        std::thread::spawn(move || {
            if ended.recv_timeout(Duration::from_secs(5)) == Err(mpsc::RecvTimeoutError::Timeout) {
                tracing::info!(
                    "waiting for the process of the mount: it writes data, or another mount namespace has the mount too"
                );
            }
        });
        let _ = flock(&dir, FlockOperation::LockExclusive); // An error: the file system has no such locks.
    }
    Ok(())
}

/// A line of `/proc/self/mountinfo`.
#[derive(Debug, PartialEq, Eq)]
pub struct MountEntry {
    /// An NFS export mounted by this program.
    pub is_ours: bool,
    /// Options of the mount, separated by commas.
    pub options: String,
    /// Options of the file system (superblock).
    pub super_options: String,
}

impl MountEntry {
    /// All options that the kernel reports for the mount.
    pub fn option_names(&self) -> impl Iterator<Item = &str> {
        self.options.split(',').chain(self.super_options.split(','))
    }

    /// The mount(2) flags among the options.
    pub fn flags(&self) -> MountFlags {
        let mut flags = MountFlags::empty();
        for name in self.option_names().filter(|w| *w != "rw") {
            crate::flags::apply(&mut flags, name);
        }
        flags
    }
}

/// Returns the topmost mount on `path`.
pub fn mounted(path: &Path) -> Option<MountEntry> {
    let table = fs::read_to_string("/proc/self/mountinfo").ok()?;
    let escaped = escape(path);
    // ID PARENT MAJOR:MINOR ROOT POINT OPTIONS... - TYPE SOURCE OPTIONS; the last line is the topmost mount.
    let line = table.lines().rfind(|l| l.split(' ').nth(4) == Some(escaped.as_str()))?;
    let (mount, file_system) = line.split_once(" - ")?;
    let mut file_system = file_system.split(' ').skip(1);
    let is_ours = file_system.next()?.starts_with(SOURCE);
    let text = |words: Option<&str>| words.map(str::to_owned);
    Some(MountEntry {
        is_ours,
        options: text(mount.split(' ').nth(5))?,
        super_options: text(file_system.next())?,
    })
}

/// Prefix of the source of our mounts.
pub const SOURCE: &str = "nfs://";

/// Escapes a path as the kernel does in mountinfo.
pub fn escape(path: &Path) -> String {
    let mut out = Vec::new();
    for b in path.as_os_str().as_bytes() {
        match b {
            b' ' | b'\t' | b'\n' | b'\\' => out.extend(format!("\\{b:03o}").bytes()),
            _ => out.push(*b),
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

/// Unmounts `path` lazily (umount(8) `--lazy`): open files stay usable while the mounting process lives.
///
/// # Errors
/// Those of umount(2).
pub fn detach(path: &Path) -> io::Result<()> {
    unmount_with(path, UnmountFlags::DETACH)
}

/// Unmounts `path` if it is not in use.
pub fn unmount_idle(path: &Path) -> io::Result<()> {
    unmount_with(path, UnmountFlags::empty())
}

fn unmount_with(path: &Path, flags: UnmountFlags) -> io::Result<()> {
    match unmount(path, flags) {
        Ok(()) => Ok(()),
        Err(Errno::PERM) => fusermount(path, flags),
        Err(e) => Err(e.into()),
    }
}

/// The set-user-ID helper of libfuse. FUSERMOUNT_PATH overrides its path, as in libfuse.
pub fn fusermount_program() -> OsString {
    std::env::var_os("FUSERMOUNT_PATH").unwrap_or_else(|| "fusermount3".into())
}

/// Unmounts with the set-user-ID helper, for callers without privileges.
fn fusermount(path: &Path, flags: UnmountFlags) -> io::Result<()> {
    let mut c = std::process::Command::new(fusermount_program());
    c.args(["-u", "-q"]);
    if flags.contains(UnmountFlags::DETACH) {
        c.arg("-z");
    }
    match c.arg("--").arg(path).status()?.success() {
        true => Ok(()),
        false => Err(io::Error::other("fusermount3 failed to unmount it")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mount_point_must_be_an_empty_directory() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(check(dir.path()).unwrap(), dir.path().canonicalize().unwrap());
        fs::write(dir.path().join("file"), "x").unwrap();
        for (path, expected) in [
            (dir.path().to_owned(), "not empty"),
            (dir.path().join("file"), "not a directory"),
            (dir.path().join("nothing"), "create it first"),
        ] {
            let message = check(&path).unwrap_err().to_string();
            assert!(message.contains(expected) && message.contains("cannot mount on"), "{message}");
        }
    }

    #[test]
    fn recognizes_own_mounts() {
        assert!(!mounted(Path::new("/")).unwrap().is_ours);
        assert_eq!(mounted(Path::new("/no such place")), None);
        assert_eq!(escape(Path::new("/a b\\c")), "/a\\040b\\134c");
    }
}
