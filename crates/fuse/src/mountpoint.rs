//! Directories to mount on: which will do, and letting go of them.

use std::{ffi::OsString, fs, io, os::unix::ffi::OsStrExt, path::Path};

use rustix::{
    io::Errno,
    mount::{MountFlags, UnmountFlags, unmount},
};

use crate::MountError;

/// The absolute path of `dir`, if it can be mounted on: a directory, empty, and no mount of ours.
pub(crate) fn check(dir: &Path) -> Result<std::path::PathBuf, MountError> {
    let refuse = |reason: String| MountError::MountPoint { path: dir.to_owned(), reason };
    let path = dir.canonicalize().map_err(|e| match e.kind() {
        io::ErrorKind::NotFound => refuse("there is no such directory; make it first".into()),
        _ if e.raw_os_error() == Some(Errno::NOTCONN.raw_os_error()) => refuse(format!(
            "a mount whose process has ended is still there; take it away with: umount {}",
            dir.display()
        )),
        _ => refuse(e.to_string()),
    })?;
    if mounted(&path).is_some_and(|m| m.is_ours) {
        return Err(refuse("an NFS export is mounted there by millrace already; unmount it first".into()));
    }
    if !path.is_dir() {
        return Err(refuse("it is not a directory".into()));
    }
    let mut entries = fs::read_dir(&path).map_err(|e| refuse(e.to_string()))?;
    if entries.next().is_some() {
        return Err(refuse("it is not empty; what is in it could not be reached any more".into()));
    }
    Ok(path)
}

/// A line of `/proc/self/mountinfo`.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct MountEntry {
    /// An export, mounted by us.
    pub(crate) is_ours: bool,
    /// Options of the mount, and of its file system, with commas.
    pub(crate) options: String,
    pub(crate) super_options: String,
}

impl MountEntry {
    /// What the kernel says of the mount, word by word.
    pub(crate) fn option_names(&self) -> impl Iterator<Item = &str> {
        self.options.split(',').chain(self.super_options.split(','))
    }

    /// Its flags, of mount(2).
    pub(crate) fn flags(&self) -> MountFlags {
        let mut flags = MountFlags::empty();
        for name in self.option_names().filter(|w| *w != "rw") {
            crate::flags::apply(&mut flags, name);
        }
        flags
    }
}

/// What is mounted on `path`, if it is a mount point.
pub(crate) fn mounted(path: &Path) -> Option<MountEntry> {
    let table = fs::read_to_string("/proc/self/mountinfo").ok()?;
    let escaped = escape(path);
    // ID PARENT MAJOR:MINOR ROOT POINT OPTIONS... - TYPE SOURCE OPTIONS; the last one lies on top.
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

/// How the source of our mounts begins.
pub(crate) const SOURCE: &str = "nfs://";

/// As the kernel writes paths in its tables.
pub(crate) fn escape(path: &Path) -> String {
    let mut out = Vec::new();
    for b in path.as_os_str().as_bytes() {
        match b {
            b' ' | b'\t' | b'\n' | b'\\' => out.extend(format!("\\{b:03o}").bytes()),
            _ => out.push(*b),
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

/// Takes a mount away from `path` at once; open files in it stay usable while the mounting process lives (umount(8)
/// `--lazy`).
///
/// # Errors
/// Those of umount(2).
pub fn detach(path: &Path) -> io::Result<()> {
    unmount_with(path, UnmountFlags::DETACH)
}

/// Takes an idle mount away from `path`.
pub(crate) fn unmount_idle(path: &Path) -> io::Result<()> {
    unmount_with(path, UnmountFlags::empty())
}

fn unmount_with(path: &Path, flags: UnmountFlags) -> io::Result<()> {
    match unmount(path, flags) {
        Ok(()) => Ok(()),
        Err(Errno::PERM) => fusermount(path, flags),
        Err(e) => Err(e.into()),
    }
}

/// The set-uid helper of libfuse; libfuse too takes another path from this variable.
pub(crate) fn fusermount_program() -> OsString {
    std::env::var_os("FUSERMOUNT_PATH").unwrap_or_else(|| "fusermount3".into())
}

/// Without root, the set-uid helper does it.
fn fusermount(path: &Path, flags: UnmountFlags) -> io::Result<()> {
    let mut c = std::process::Command::new(fusermount_program());
    c.args(["-u", "-q"]);
    if flags.contains(UnmountFlags::DETACH) {
        c.arg("-z");
    }
    match c.arg("--").arg(path).status()?.success() {
        true => Ok(()),
        false => Err(io::Error::other("fusermount3 could not unmount it")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_empty_directories_will_do() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(check(dir.path()).unwrap(), dir.path().canonicalize().unwrap());
        fs::write(dir.path().join("file"), "x").unwrap();
        for (path, expected) in [
            (dir.path().to_owned(), "not empty"),
            (dir.path().join("file"), "not a directory"),
            (dir.path().join("nothing"), "make it first"),
        ] {
            let message = check(&path).unwrap_err().to_string();
            assert!(message.contains(expected) && message.contains("cannot mount on"), "{message}");
        }
    }

    #[test]
    fn mounts_of_others_are_told_from_ours() {
        assert!(!mounted(Path::new("/")).unwrap().is_ours);
        assert_eq!(mounted(Path::new("/no such place")), None);
        assert_eq!(escape(Path::new("/a b\\c")), "/a\\040b\\134c");
    }
}
