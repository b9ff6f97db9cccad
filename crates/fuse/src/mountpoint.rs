//! Directories to mount on: which will do, and letting go of them.

use std::{fs, io, os::unix::ffi::OsStrExt, path::Path};

use rustix::{
    io::Errno,
    mount::{UnmountFlags, unmount},
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
    if mounted(&path) == Some(true) {
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

/// Whether `path` is a mount point, and then whether the mount is ours.
pub(crate) fn mounted(path: &Path) -> Option<bool> {
    let table = fs::read_to_string("/proc/self/mountinfo").ok()?;
    let escaped = escape(path);
    // ID PARENT MAJOR:MINOR ROOT POINT OPTIONS... - TYPE SOURCE OPTIONS; the last one lies on top.
    let line = table.lines().rfind(|l| l.split(' ').nth(4) == Some(escaped.as_str()))?;
    let source = line.split_once(" - ")?.1.split(' ').nth(1)?;
    Some(source.starts_with(SOURCE))
}

/// How the source of our mounts begins.
pub(crate) const SOURCE: &str = "nfs://";

/// As the kernel writes paths in its tables.
fn escape(path: &Path) -> String {
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

/// Without root, the set-uid helper does it.
fn fusermount(path: &Path, flags: UnmountFlags) -> io::Result<()> {
    let mut c = std::process::Command::new("fusermount3");
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
        for (path, says) in [
            (dir.path().to_owned(), "not empty"),
            (dir.path().join("file"), "not a directory"),
            (dir.path().join("nothing"), "make it first"),
        ] {
            let said = check(&path).unwrap_err().to_string();
            assert!(said.contains(says) && said.contains("cannot mount on"), "{said}");
        }
    }

    #[test]
    fn mounts_of_others_are_told_from_ours() {
        assert_eq!(mounted(Path::new("/")), Some(false));
        assert_eq!(mounted(Path::new("/no such place")), None);
        assert_eq!(escape(Path::new("/a b\\c")), "/a\\040b\\134c");
    }
}
