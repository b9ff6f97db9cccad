//! Objects outside the export: beyond a bind mount, or in another subvolume.

use std::{path::PathBuf, process::Command, time::Instant};

use millrace_vfs::{FileSystem, FsError, NewNode};

use super::{
    mounts::{Mounts, text},
    *,
};
use crate::LocalFs;

fn mkdir(fs: &LocalFs, dir: &Handle, name: &str) -> Handle {
    let set = SetAttr { mode: Some(0o755), ..SetAttr::default() };
    wait(fs.create_node(&me(), dir, name.as_bytes(), &NewNode::Directory, &set)).unwrap().handle
}

fn close_all(fs: &LocalFs) {
    fs.export.tree.cache.close_idle(Instant::now() + 2 * super::super::node::IDLE_TIMEOUT);
    assert_eq!(fs.open_objects(), 0);
}

/// The kernel reports an arbitrary path for a directory beyond a bind mount.
#[test]
fn directory_moved_out_of_a_bind_mount_is_stale() {
    let made = Mounts::new(|m| {
        std::fs::create_dir_all(m.path("disk/part")).unwrap();
        let part = m.path("disk/part");
        m.mount("export", &["--bind", text(&part)]).map(drop)
    });
    let Some(m) = made else { return };
    for (i, config) in configs(&m.path("export")).enumerate() {
        let fs = LocalFs::open(config).unwrap();
        let d = mkdir(&fs, &fs.root(), &format!("d{i}"));
        let e = mkdir(&fs, &d, "e");
        close_all(&fs);
        assert!(retry_jukebox(|| wait(fs.getattr(&e))).is_ok());
        // A path that looks as if it were in the export.
        let outside = m.path("disk").join(m.path("export").strip_prefix("/").unwrap());
        std::fs::create_dir_all(&outside).unwrap();
        std::fs::rename(m.path(&format!("disk/part/d{i}")), outside.join(format!("d{i}"))).unwrap();
        close_all(&fs);
        assert_eq!(retry_jukebox(|| wait(fs.getattr(&e))).unwrap_err(), FsError::Stale, "{i}");
        assert_eq!(retry_jukebox(|| wait(fs.getattr(&d))).unwrap_err(), FsError::Stale, "{i}");
    }
}

/// A btrfs with the subvolumes `a`, `a/b` and `c`: the root of each has inode number 256, on one mount.
fn subvolumes() -> Option<Mounts> {
    Mounts::new(|m| {
        let image = m.path("image");
        let root = m.format(&image, 256 << 20, &["mkfs.btrfs", "-q", "-M"], "root", "defaults")?;
        for name in ["a", "a/b", "c"] {
            let args = ["subvolume", "create", "-q", text(&root.join(name))].map(str::to_owned);
            let args = args.iter().filter(|a| *a != "-q");
            let out = Command::new("btrfs").args(args).output().map_err(|e| e.to_string())?;
            assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        }
        Ok(())
    })
}

#[test]
fn nested_subvolume_root_is_not_the_export_root() {
    let Some(m) = subvolumes() else { return };
    let export: PathBuf = m.path("root/a");
    for (i, config) in configs(&export).enumerate() {
        let fs = LocalFs::open(config.clone()).unwrap();
        let root = fs.root();
        let (b, _) = wait(fs.lookup(&me(), &root, b"b")).unwrap();
        assert_ne!(b, root, "configuration {i}");
        // Created in the same order in both, these have equal inode numbers too.
        let d = mkdir(&fs, &b, &format!("d{i}"));
        let x = mkdir(&fs, &root, &format!("d{i}"));
        let files = [create(&fs, &b, &format!("f{i}")), create(&fs, &root, &format!("f{i}"))];
        assert!(d != x && files[0] != files[1], "configuration {i}");
        let parent = |of: &Handle| wait(fs.lookup(&me(), of, b"..")).unwrap().0;
        assert_eq!((parent(&d), parent(&b), parent(&root)), (b, root, root), "configuration {i}");
        drop(fs);
        let fs = LocalFs::open(config).unwrap();
        for handle in [b, d, x, files[0], files[1]] {
            assert!(retry_jukebox(|| wait(fs.getattr(&handle))).is_ok(), "configuration {i}");
        }
    }
}

#[test]
fn sibling_subvolume_is_outside_the_export() {
    let Some(m) = subvolumes() else { return };
    std::fs::create_dir(m.path("root/a/sub")).unwrap();
    std::fs::create_dir(m.path("root/c/sub")).unwrap();
    for (a, c) in configs(&m.path("root/a")).zip(configs(&m.path("root/c"))) {
        let (a, c) = (LocalFs::open(a).unwrap(), LocalFs::open(c).unwrap());
        assert_ne!(a.root(), c.root());
        let (sub, _) = wait(c.lookup(&me(), &c.root(), b"sub")).unwrap();
        close_all(&a);
        // With the same key, only the location distinguishes them. Without kernel handles the handle refers
        // to another object.
        let found = retry_jukebox(|| wait(a.getattr(&sub)));
        if a.uses_kernel_handles() {
            assert_eq!(found.unwrap_err(), FsError::Stale);
            assert_eq!(wait(a.getattr(&c.root())).unwrap_err(), FsError::Stale);
        }
    }
}

#[test]
fn rename_across_subvolumes_fails_without_loss() {
    let Some(m) = subvolumes() else { return };
    for (i, config) in configs(&m.path("root/a")).enumerate() {
        let fs = LocalFs::open(config).unwrap();
        let root = fs.root();
        let (b, _) = wait(fs.lookup(&me(), &root, b"b")).unwrap();
        let name = format!("r{i}");
        let (one, other) = (create(&fs, &root, &name), create(&fs, &b, &name));
        let renamed = wait(fs.rename(&me(), &root, name.as_bytes(), &b, name.as_bytes()));
        assert_eq!(renamed.unwrap_err(), FsError::XDev);
        close_all(&fs);
        for (dir, handle) in [(&root, one), (&b, other)] {
            assert_eq!(wait(fs.lookup(&me(), dir, name.as_bytes())).unwrap().0, handle);
        }
    }
}
