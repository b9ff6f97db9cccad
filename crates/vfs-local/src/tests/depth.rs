//! Directories far below the root.

use std::{path::PathBuf, sync::Arc, time::Instant};

use millrace_vfs::{FileSystem, FsError, NewNode};
use rustix::fs::{CWD, Mode, OFlags};

use super::*;
use crate::LocalFs;

/// A directory with exports, in which chains of directories are created.
struct Deep(tempfile::TempDir);

impl Deep {
    fn new() -> Self {
        // In memory if possible: creating and removing this number of directories takes a minute on disk.
        Self(tempfile::tempdir_in("/dev/shm").unwrap_or_else(|_| tempfile::tempdir().unwrap()))
    }

    fn path(&self, name: &str) -> PathBuf {
        let path = self.0.path().join(name);
        let _ = std::fs::create_dir(&path);
        path
    }
}

impl Drop for Deep {
    /// Removes the chains from the top, in time proportional to their depth.
    fn drop(&mut self) {
        let entries = |dir: &Path| std::fs::read_dir(dir).unwrap().map(|e| e.unwrap().path());
        for first in entries(self.0.path()).flat_map(|parent| entries(&parent)) {
            let next = first.with_file_name("next");
            while let Some(below) = entries(&first).next() {
                std::fs::rename(below, &next).unwrap();
                std::fs::remove_dir(&first).unwrap();
                std::fs::rename(&next, &first).unwrap();
            }
        }
    }
}

fn close_all(fs: &LocalFs) {
    fs.export.tree.cache.close_idle(Instant::now() + 2 * super::super::node::IDLE_TIMEOUT);
    assert_eq!(fs.open_objects(), 0);
}

/// Opens exports on a private mount with their directory as its root, and without CAP_SYS_ADMIN on that of their path.
fn open_both(root: &Path) -> impl Iterator<Item = Arc<LocalFs>> {
    const CAP_SYS_ADMIN: u32 = 21;
    configs(root).flat_map(|config| {
        let config = LocalConfig { sync_metadata: false, ..config };
        let open = |dropped: &'static [u32]| {
            let config = config.clone();
            let opened = std::thread::spawn(move || {
                super::super::sys::drop_capabilities(dropped);
                LocalFs::open(config).unwrap()
            });
            opened.join().unwrap()
        };
        [open(&[]), open(&[CAP_SYS_ADMIN])]
    })
}

/// Creates `depth` nested directories. Returns the handles of the last two.
fn descend(fs: &LocalFs, name: &[u8], depth: usize) -> [Handle; 2] {
    let set = SetAttr { mode: Some(0o755), ..SetAttr::default() };
    let mut at = [fs.root(); 2];
    for _ in 0..depth {
        at = [at[1], wait(fs.create_node(&me(), &at[1], name, &NewNode::Directory, &set)).unwrap().handle];
    }
    at
}

#[test]
fn closed_deep_directory_is_reopened() {
    let dir = Deep::new();
    for (i, fs) in open_both(&dir.path("export")).enumerate() {
        for (j, (length, depth)) in [(1, 30), (1, 5000), (255, 40), (100, 300)].into_iter().enumerate() {
            let name = vec![b'A' + (4 * i + j) as u8; length];
            let [above, deepest] = descend(&fs, &name, depth);
            close_all(&fs);
            let found = wait(fs.getattr(&deepest));
            assert!(found.is_ok(), "{length}, {depth}: {found:?}");
            let (parent, _) = wait(fs.lookup(&me(), &deepest, b"..")).unwrap();
            assert_eq!(parent, above, "{length}, {depth}");
            close_all(&fs);
            assert_eq!(wait(fs.lookup(&me(), &deepest, b"..")).unwrap().0, above);
        }
    }
}

/// Deep below an export, and equally deep outside it.
#[test]
fn deep_directory_moved_out_of_the_export_is_stale() {
    let dir = Deep::new();
    for (i, fs) in open_both(&dir.path("export")).enumerate() {
        for depth in [1, 20, 3000] {
            let name = [b'a' + i as u8];
            let [_, deepest] = descend(&fs, &name, depth);
            close_all(&fs);
            assert!(wait(fs.getattr(&deepest)).is_ok());
            close_all(&fs);
            let outside = dir.path(&format!("outside-{i}-{depth}"));
            let name = std::str::from_utf8(&name).unwrap();
            std::fs::rename(dir.path("export").join(name), outside.join(name)).unwrap();
            assert_eq!(retry_jukebox(|| wait(fs.getattr(&deepest))).unwrap_err(), FsError::Stale, "{depth}");
        }
    }
}

#[test]
fn a_check_of_a_deep_directory_takes_no_more_steps_than_of_another() {
    let dir = Deep::new();
    let Some(config) = configs(&dir.path("export")).find(|config| config.handles == HandleMode::Kernel)
    else {
        println!("skipped: not root");
        return;
    };
    let fs = LocalFs::open(LocalConfig { sync_metadata: false, ..config }).unwrap();
    let steps = || fs.export.tree.steps.swap(0, std::sync::atomic::Ordering::Relaxed);
    for (name, depth) in [(b"a", 1), (b"b", 10), (b"c", 4000)] {
        let [_, deepest] = descend(&fs, name, depth);
        close_all(&fs);
        steps();
        wait(fs.getattr(&deepest)).unwrap();
        assert_eq!(steps(), 1, "GETATTR at depth {depth}");
        wait(fs.lookup(&me(), &deepest, b"..")).unwrap();
        assert_eq!(steps(), 1, "LOOKUP of .. at depth {depth}");
    }
}

/// The path of the root may change while the server runs.
#[test]
fn renamed_root_still_contains_its_directories() {
    let dir = Deep::new();
    for (i, config) in configs(&dir.path("export")).enumerate() {
        let fs = LocalFs::open(LocalConfig { sync_metadata: false, ..config }).unwrap();
        let [above, deepest] = descend(&fs, b"d", 3);
        close_all(&fs);
        let moved = dir.0.path().join("moved");
        std::fs::rename(dir.path("export"), &moved).unwrap();
        // Another directory has taken the root's old path.
        let decoy = dir.path("export");
        assert_eq!(wait(fs.lookup(&me(), &deepest, b"..")).unwrap().0, above, "{i}");
        std::fs::rename(moved.join("d"), decoy.join("d")).unwrap();
        close_all(&fs);
        assert_eq!(retry_jukebox(|| wait(fs.getattr(&deepest))).unwrap_err(), FsError::Stale, "{i}");
        std::fs::remove_dir_all(&decoy).unwrap();
        std::fs::rename(moved, dir.0.path().join("export")).unwrap();
    }
}

/// Prints the cost of `..` and of opening a directory at several depths (`--ignored --nocapture`).
#[test]
#[ignore = "measures"]
fn measure_depth() {
    let dir = Deep::new();
    let Some(config) = configs(&dir.path("export")).nth(2) else { return };
    let fs = LocalFs::open(LocalConfig { sync_metadata: false, ..config }).unwrap();
    for depth in [1, 10, 100, 1000, 4000] {
        let name = depth.to_string();
        let [_, deepest] = descend(&fs, &name.as_bytes()[..1], depth);
        let time = |what: &str, call: &dyn Fn()| {
            let mut times: Vec<_> = (0..50)
                .map(|_| {
                    close_all(&fs);
                    let started = Instant::now();
                    call();
                    started.elapsed()
                })
                .collect();
            times.sort();
            println!("depth {depth}: {what} {:?}", times[25]);
        };
        time("GETATTR", &|| assert!(wait(fs.getattr(&deepest)).is_ok()));
        time("LOOKUP of ..", &|| assert!(wait(fs.lookup(&me(), &deepest, b"..")).is_ok()));
        let root = rustix::fs::openat(CWD, dir.path("export"), OFlags::PATH, Mode::empty()).unwrap();
        rustix::fs::renameat(&root, &name[..1], &root, format!("x{depth}")).unwrap();
    }
}
