//! Confinement to the export.

use std::os::unix::fs::symlink;

use millrace_vfs::{FileKind, FileSystem, FsError, Handle};
use proptest::prelude::*;

use super::common::*;

#[test]
fn dot_dot_stops_at_the_root() {
    for m in modes() {
        let outer = tempfile::tempdir().unwrap();
        let inner = outer.path().join("export");
        std::fs::create_dir(&inner).unwrap();
        let fs = open(&inner, m);
        assert_eq!(lookup(&fs, &fs.root(), "..").unwrap(), fs.root());
        assert_eq!(lookup(&fs, &fs.root(), ".").unwrap(), fs.root());
        let d = mkdir(&fs, &fs.root(), "d");
        let e = mkdir(&fs, &d, "e");
        assert_eq!(lookup(&fs, &e, "..").unwrap(), d);
        assert_eq!(lookup(&fs, &d, "..").unwrap(), fs.root());
    }
}

#[test]
fn names_with_several_components_are_rejected() {
    for m in modes() {
        let dir = tempfile::tempdir().unwrap();
        let fs = open(dir.path(), m);
        for name in ["/etc/passwd", "../x", "a/b", "/", "a\0b", ""] {
            assert_eq!(lookup(&fs, &fs.root(), name).unwrap_err(), FsError::Inval, "{name:?}");
        }
        assert_eq!(lookup(&fs, &fs.root(), &"n".repeat(256)).unwrap_err(), FsError::NameTooLong);
    }
}

#[test]
fn symbolic_links_are_never_followed() {
    for m in modes() {
        let outer = tempfile::tempdir().unwrap();
        let secret = outer.path().join("secret");
        std::fs::write(&secret, b"secret").unwrap();
        let inner = outer.path().join("export");
        std::fs::create_dir(&inner).unwrap();
        symlink(&secret, inner.join("l")).unwrap();
        symlink("..", inner.join("up")).unwrap();
        let fs = open(&inner, m);
        for name in ["l", "up"] {
            let (h, attr) = wait(fs.lookup(&me(), &fs.root(), name.as_bytes())).unwrap();
            assert_eq!(attr.kind, FileKind::Symlink);
            assert!(lookup(&fs, &h, "secret").is_err());
            assert!(read(&fs, &h, 0, 10).is_err());
            assert!(write(&fs, &h, 0, b"x").is_err());
        }
        let truncate =
            millrace_vfs::CreateHow::Unchecked(millrace_vfs::SetAttr { size: Some(0), ..Default::default() });
        assert_eq!(wait(fs.create(&me(), &fs.root(), b"l", &truncate)).unwrap_err(), FsError::Exist);
        assert_eq!(std::fs::read(&secret).unwrap(), b"secret");
    }
}

/// A local attacker replaces a directory by a symbolic link to the outside while a client walks through it.
#[test]
fn swapping_a_directory_for_a_symlink_does_not_escape() {
    for m in modes() {
        let outer = tempfile::tempdir().unwrap();
        let inner = outer.path().join("export");
        std::fs::create_dir_all(inner.join("real")).unwrap();
        std::fs::create_dir(outer.path().join("outside")).unwrap();
        std::fs::write(outer.path().join("outside/f"), b"outside").unwrap();
        std::fs::write(inner.join("real/f"), b"inside").unwrap();
        symlink(outer.path().join("outside"), inner.join("link")).unwrap();
        let fs = open(&inner, m);
        let stop = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|s| {
            s.spawn(|| {
                use rustix::fs::{CWD, RenameFlags, renameat_with};
                while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                    let (a, b) = (inner.join("real"), inner.join("link"));
                    renameat_with(CWD, &a, CWD, &b, RenameFlags::EXCHANGE).unwrap();
                }
            });
            for _ in 0..300 {
                let Ok(d) = lookup(&fs, &fs.root(), "real") else { continue };
                let Ok(f) = lookup(&fs, &d, "f") else { continue };
                if let Ok(bytes) = read(&fs, &f, 0, 100) {
                    assert_eq!(bytes, b"inside");
                }
            }
            stop.store(true, std::sync::atomic::Ordering::Relaxed);
        });
    }
}

/// A user with write permission on a directory replaces an object just created by root with another of root's
/// objects.
#[test]
fn object_replacing_a_new_one_keeps_its_attributes() {
    use std::os::unix::fs::{MetadataExt, PermissionsExt};
    if !rustix::process::geteuid().is_root() {
        println!("not root: skipped");
        return;
    }
    for m in modes() {
        let dir = tempfile::tempdir().unwrap();
        let fs = millrace_vfs_local::LocalFs::open(millrace_vfs_local::LocalConfig {
            sync_metadata: false,
            ..config(dir.path(), m)
        })
        .unwrap();
        let victims = ["file", "dir"].map(|n| dir.path().join(n));
        std::fs::write(&victims[0], b"").unwrap();
        std::fs::create_dir(&victims[1]).unwrap();
        for victim in &victims {
            std::fs::set_permissions(victim, PermissionsExt::from_mode(0o700)).unwrap();
        }
        let inodes = victims.each_ref().map(|v| std::fs::metadata(v).unwrap().ino());
        // A separate directory, because objects that the test removes below could be victims too.
        let elsewhere = tempfile::tempdir_in(dir.path().parent().unwrap()).unwrap();
        let spare = elsewhere.path().join("file");
        std::fs::hard_link(&victims[0], &spare).unwrap();
        std::fs::write(victims[1].join("entry"), b"").unwrap();
        // Ensure an earlier birth time.
        std::thread::sleep(std::time::Duration::from_millis(50));
        let stop = std::sync::atomic::AtomicBool::new(false);
        let mut changed = None;
        std::thread::scope(|s| {
            s.spawn(|| {
                use rustix::fs::{CWD, RenameFlags, renameat_with};
                while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                    for (victim, name) in victims.iter().zip(["f", "d"]) {
                        let _ = renameat_with(CWD, victim, CWD, dir.path().join(name), RenameFlags::EXCHANGE);
                    }
                }
            });
            let set = millrace_vfs::SetAttr { uid: Some(1000), gid: Some(1000), ..mode(0o2777) };
            for _ in 0..500 {
                let _ = std::fs::hard_link(&spare, &victims[0]);
                let _ = wait(fs.create(&me(), &fs.root(), b"f", &millrace_vfs::CreateHow::Guarded(set)));
                let _ =
                    wait(fs.create_node(&me(), &fs.root(), b"d", &millrace_vfs::NewNode::Directory, &set));
                for name in ["f", "d", "file", "dir"] {
                    let path = dir.path().join(name);
                    let Ok(found) = std::fs::symlink_metadata(&path) else { continue };
                    if inodes.contains(&found.ino()) {
                        let attributes = (found.uid(), found.mode() & 0o7777);
                        changed = changed.or((attributes != (0, 0o700)).then_some((name, attributes)));
                    } else if found.is_dir() {
                        let _ = std::fs::remove_dir(&path);
                    } else {
                        let _ = std::fs::remove_file(&path);
                    }
                }
            }
            stop.store(true, std::sync::atomic::Ordering::Relaxed);
        });
        assert_eq!(changed, None, "{m:?}");
    }
}

#[test]
fn handle_of_another_export_is_rejected() {
    for m in modes() {
        let (a, b) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let fs_a = open(a.path(), m);
        let key = millrace_vfs_local::KeySource::Bytes([7; 16]);
        let fs_b =
            millrace_vfs_local::LocalFs::open(millrace_vfs_local::LocalConfig { key, ..config(b.path(), m) })
                .unwrap();
        let f = create(&fs_a, &fs_a.root(), "f");
        assert_eq!(wait(fs_b.getattr(&f)).unwrap_err(), FsError::BadHandle);
        assert_eq!(read(&fs_b, &f, 0, 1).unwrap_err(), FsError::BadHandle);
        assert_eq!(lookup(&fs_b, &fs_a.root(), "f").unwrap_err(), FsError::BadHandle);
    }
}

/// Even with the right key, the root of another directory on the same file system is not beneath the root.
#[test]
fn outside_directory_is_rejected_despite_a_valid_mac() {
    for m in modes() {
        let (a, b) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let (fs_a, fs_b) = (open(a.path(), m), open(b.path(), m));
        let d = mkdir(&fs_a, &fs_a.root(), "d");
        assert_eq!(wait(fs_b.getattr(&d)).unwrap_err(), FsError::Stale);
        assert_eq!(wait(fs_b.getattr(&fs_a.root())).unwrap_err(), FsError::Stale);
    }
}

#[test]
fn directory_moved_out_of_the_export_does_not_escape() {
    for m in modes() {
        let outer = tempfile::tempdir().unwrap();
        let inner = outer.path().join("export");
        std::fs::create_dir(&inner).unwrap();
        let fs = open(&inner, m);
        let d = mkdir(&fs, &fs.root(), "d");
        std::fs::rename(inner.join("d"), outer.path().join("d")).unwrap();
        assert!(lookup(&fs, &d, "..").is_err());
    }
}

#[test]
fn mount_points_are_not_crossed() {
    if !rustix::process::geteuid().is_root() {
        println!("not root: skipped");
        return;
    }
    for m in modes() {
        // /dev/shm and /dev/pts are mounts inside /dev on every Linux host.
        let fs = match millrace_vfs_local::LocalFs::open(config(std::path::Path::new("/dev"), m)) {
            Ok(fs) => fs,
            Err(e) => {
                println!("skipped: {e}");
                continue;
            }
        };
        match lookup(&fs, &fs.root(), "pts") {
            Ok(covered) => assert_eq!(lookup(&fs, &covered, "ptmx").unwrap_err(), FsError::NoEnt),
            Err(e) => assert_eq!(e, FsError::Access),
        }
        assert!(lookup(&fs, &fs.root(), "null").is_ok());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn random_handles_are_bad(bytes in proptest::collection::vec(any::<u8>(), 0..=48)) {
        use std::sync::{Arc, OnceLock};
        static FS: OnceLock<(tempfile::TempDir, Vec<Arc<millrace_vfs_local::LocalFs>>)> = OnceLock::new();
        let (_, all) = FS.get_or_init(|| {
            let dir = tempfile::tempdir().unwrap();
            let all = modes().into_iter().map(|m| open(dir.path(), m)).collect();
            (dir, all)
        });
        let h = Handle::new(&bytes).unwrap();
        for fs in all {
            prop_assert_eq!(wait(fs.getattr(&h)).unwrap_err(), FsError::BadHandle);
            prop_assert_eq!(wait(fs.read(&me(), &h, 0, 1)).unwrap_err(), FsError::BadHandle);
            prop_assert_eq!(wait(fs.lookup(&me(), &h, b"x")).unwrap_err(), FsError::BadHandle);
        }
    }
}
