//! Mount points in an export.

use std::{fs, path::Path, sync::Arc};

use millrace_vfs::{FileSystem, FsError, Identity, ReadDirLimits};
use rustix::{io::Errno, mount::UnmountFlags};

use super::{HandleMode, IoMode, configs, mounts::Mounts, wait};
use crate::{LocalFs, sys};

/// `CAP_SYS_ADMIN` of linux/capability.h.
const CAP_SYS_ADMIN: u32 = 21;

/// A file system `e` with the directory `disk` and a file `under` in it, on which another one with `above` is mounted.
fn mounts() -> Option<Mounts> {
    Mounts::new(|m| {
        let e = m.mount("e", &["-t", "tmpfs", "none"])?;
        fs::create_dir(e.join("disk")).unwrap();
        fs::write(e.join("disk/under"), "under").unwrap();
        let disk = m.mount("e/disk", &["-t", "tmpfs", "none"])?;
        fs::write(disk.join("above"), "above").unwrap();
        Ok(())
    })
}

fn open_as(root: &Path, mode: HandleMode) -> Arc<LocalFs> {
    let config = configs(root).find(|c| (c.handles, c.io) == (mode, IoMode::Auto)).unwrap();
    LocalFs::open(config).unwrap()
}

/// The names in the root of `fs`, with whether they have attributes.
fn listed(fs: &LocalFs) -> Vec<(String, bool)> {
    let limits = ReadDirLimits { max_entries: 100, max_name_bytes: 10_000, plus: true };
    let page = wait(fs.readdir(&Identity::root(), &fs.root(), 0, [0; 8], limits)).unwrap();
    let names =
        page.entries.iter().map(|e| (String::from_utf8_lossy(&e.name).into_owned(), e.plus.is_some()));
    names.filter(|(name, _)| !name.starts_with('.')).collect()
}

#[test]
fn a_mount_point_is_the_directory_that_it_covers() {
    let Some(m) = mounts() else { return };
    let root = Identity::root();
    for mode in [HandleMode::Kernel, HandleMode::Index] {
        let fs = open_as(&m.path("e"), mode);
        assert_eq!(listed(&fs), [("disk".to_owned(), true)]);
        let (disk, _) = wait(fs.lookup(&root, &fs.root(), b"disk")).unwrap();
        let (under, attr) = wait(fs.lookup(&root, &disk, b"under")).unwrap();
        assert_eq!(attr.size, 5);
        assert_eq!(wait(fs.lookup(&root, &disk, b"above")).unwrap_err(), FsError::NoEnt);
        // Handles are valid when the objects are not open, and after a restart.
        drop(fs);
        let fs = open_as(&m.path("e"), mode);
        assert_eq!(wait(fs.lookup(&root, &disk, b"..")).unwrap().0, fs.root());
        assert!(wait(fs.read(&root, &under, 0, 10)).unwrap().eof);
    }
    let _open = open_as(&m.path("e"), HandleMode::Kernel);
    rustix::mount::unmount(m.path("e/disk"), UnmountFlags::empty()).unwrap();
    assert_eq!(rustix::mount::unmount(m.path("e"), UnmountFlags::empty()), Err(Errno::BUSY), "it is in use");
}

#[test]
fn without_privileges_a_mount_point_is_listed_and_refused() {
    let Some(m) = mounts() else { return };
    let at = m.path("e");
    let open = move || {
        sys::drop_capabilities(&[CAP_SYS_ADMIN]);
        open_as(&at, HandleMode::Kernel)
    };
    let fs = std::thread::spawn(open).join().unwrap();
    assert_eq!(listed(&fs), [("disk".to_owned(), false)]);
    assert_eq!(wait(fs.lookup(&Identity::root(), &fs.root(), b"disk")).unwrap_err(), FsError::Access);
}
