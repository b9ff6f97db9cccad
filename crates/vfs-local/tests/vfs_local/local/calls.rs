//! Data and name operations.

use std::{future::Future, os::unix::fs::MetadataExt, time::Duration};

use millrace_vfs::{
    CreateHow, FileSystem, FsError, NewNode, ReadDirLimits, SetAttr, SetTime, Stability, Time,
};
use rustix::fs::{Mode, OFlags};

use super::common::*;

#[test]
fn written_data_is_read_back_and_stored() {
    for m in modes() {
        let dir = tempfile::tempdir().unwrap();
        let fs = open(dir.path(), m);
        let f = create(&fs, &fs.root(), "f");
        assert_eq!(write(&fs, &f, 3, b"hello"), Ok(5));
        assert_eq!(read(&fs, &f, 0, 100).unwrap(), b"\0\0\0hello");
        let r = wait(fs.read(&me(), &f, 3, 2)).unwrap();
        assert_eq!((r.data.to_vec(), r.eof, r.attr.size), (b"he".to_vec(), false, 8));
        let r = wait(fs.read(&me(), &f, 6, 2)).unwrap();
        assert_eq!((r.data.to_vec(), r.eof), (b"lo".to_vec(), true));
        let r = wait(fs.read(&me(), &f, 1 << 40, 10)).unwrap();
        assert!(r.data.is_empty() && r.eof);
        assert_eq!(std::fs::read(dir.path().join("f")).unwrap(), b"\0\0\0hello");
    }
}

#[test]
fn transfers_of_many_iovecs_are_complete() {
    let content: Vec<u8> = (0..(5 << 20) + 4321u32).map(|i| (i % 251) as u8).collect();
    for m in modes() {
        let dir = tempfile::tempdir().unwrap();
        let fs = open(dir.path(), m);
        let f = create(&fs, &fs.root(), "big");
        assert_eq!(write(&fs, &f, 7, &content), Ok(content.len() as u32));
        assert!(read(&fs, &f, 7, u32::MAX).unwrap() == content);
        // More iovecs than one system call accepts.
        let arena = arena();
        let small: millrace_vfs::Views = (0..1500).map(|i| arena.copy_from(&[i as u8; 3]).unwrap()).collect();
        let w = wait(fs.write(&me(), &f, 0, small.clone(), Stability::FileSync)).unwrap();
        assert_eq!((w.count, w.committed), (4500, Stability::FileSync));
        assert!(read(&fs, &f, 0, 4500).unwrap() == small.to_vec());
    }
}

#[test]
fn concurrent_transfers_are_independent() {
    for m in modes() {
        let dir = tempfile::tempdir().unwrap();
        let fs = open(dir.path(), m);
        let f = create(&fs, &fs.root(), "f");
        wait(async {
            let me = me();
            let writes: Vec<_> = (0..600u64)
                .map(|i| fs.write(&me, &f, i * 512, views(&[i as u8; 512]), Stability::Unstable))
                .collect();
            for w in writes {
                assert_eq!(w.await.unwrap().count, 512);
            }
            let reads: Vec<_> = (0..600u64).map(|i| fs.read(&me, &f, i * 512, 512)).collect();
            for (i, r) in reads.into_iter().enumerate() {
                assert_eq!(r.await.unwrap().data.to_vec(), [i as u8; 512]);
            }
        });
    }
}

#[test]
fn stable_writes_and_commit_keep_the_verifier() {
    for m in modes() {
        let dir = tempfile::tempdir().unwrap();
        let fs = open(dir.path(), m);
        let before = fs.write_verifier();
        let f = create(&fs, &fs.root(), "f");
        for stable in [Stability::DataSync, Stability::FileSync] {
            let w = wait(fs.write(&me(), &f, 0, views(b"x"), stable)).unwrap();
            assert_eq!((w.count, w.committed), (1, stable));
        }
        assert_eq!(write(&fs, &f, 0, b"more"), Ok(4));
        for (offset, count) in [(0, 0), (1, 0), (0, 4), (u64::MAX, 9)] {
            let wcc = wait(fs.commit(&me(), &f, offset, count)).unwrap();
            assert_eq!(wcc.after.unwrap().size, 4);
        }
        assert_eq!(fs.write_verifier(), before);
        assert_ne!(open(dir.path(), m).write_verifier(), before);
    }
}

#[test]
fn invalid_offsets_are_rejected() {
    for m in modes() {
        let dir = tempfile::tempdir().unwrap();
        let fs = open(dir.path(), m);
        let f = create(&fs, &fs.root(), "f");
        for offset in [u64::MAX, i64::MAX as u64, u64::MAX - 1] {
            assert_eq!(write(&fs, &f, offset, b"xx"), Err(FsError::FBig));
        }
        let r = wait(fs.read(&me(), &f, u64::MAX, u32::MAX)).unwrap();
        assert!(r.eof && r.data.is_empty());
        let set = SetAttr { size: Some(u64::MAX), ..SetAttr::default() };
        assert_eq!(wait(fs.setattr(&me(), &f, &set, None)).unwrap_err(), FsError::FBig);
    }
}

#[test]
fn setattr_respects_the_guard() {
    for m in modes() {
        let dir = tempfile::tempdir().unwrap();
        let fs = open(dir.path(), m);
        let f = create(&fs, &fs.root(), "f");
        let when = Time { seconds: 1_000_000_000, nanos: 123_456_000 };
        let set = SetAttr {
            mode: Some(0o4751),
            size: Some(10),
            mtime: SetTime::To(when),
            atime: SetTime::To(when),
            ..SetAttr::default()
        };
        let after = wait(fs.setattr(&me(), &f, &set, None)).unwrap().after.unwrap();
        assert_eq!((after.mode, after.size, after.mtime, after.atime), (0o4751, 10, when, when));
        let wrong = Time { seconds: 1, nanos: 0 };
        assert_eq!(wait(fs.setattr(&me(), &f, &mode(0o600), Some(wrong))).unwrap_err(), FsError::NotSync);
        assert!(wait(fs.setattr(&me(), &f, &mode(0o600), Some(after.ctime))).is_ok());
        assert_eq!(wait(fs.getattr(&f)).unwrap().mode, 0o600);
    }
}

#[test]
fn modes_do_not_depend_on_the_umask() {
    for m in modes() {
        let dir = tempfile::tempdir().unwrap();
        let fs = open(dir.path(), m);
        let c = wait(fs.create(&me(), &fs.root(), b"f", &CreateHow::Guarded(mode(0o666)))).unwrap();
        assert_eq!(c.attr.mode, 0o666);
        let d = wait(fs.create_node(&me(), &fs.root(), b"d", &NewNode::Directory, &mode(0o777))).unwrap();
        assert_eq!(d.attr.mode, 0o777);
        let p = wait(fs.create_node(&me(), &fs.root(), b"p", &NewNode::Fifo, &mode(0o622))).unwrap();
        assert_eq!((p.attr.mode, p.attr.kind), (0o622, millrace_vfs::FileKind::Fifo));
    }
}

#[test]
fn listing_in_pages_contains_each_name_once() {
    for m in modes() {
        let dir = tempfile::tempdir().unwrap();
        let fs = open(dir.path(), m);
        let mut expected: Vec<Vec<u8>> = (0..300).map(|i| format!("name-{i}").into_bytes()).collect();
        for name in &expected {
            std::fs::write(dir.path().join(std::str::from_utf8(name).unwrap()), b"").unwrap();
        }
        expected.extend([b".".to_vec(), b"..".to_vec()]);
        expected.sort();
        for page in [1, 7, 1000] {
            let mut names = list(&fs, &fs.root(), page);
            names.sort();
            assert_eq!(names, expected);
        }
    }
}

#[test]
fn readdirplus_agrees_with_lookup() {
    for m in modes() {
        let dir = tempfile::tempdir().unwrap();
        let fs = open(dir.path(), m);
        create(&fs, &fs.root(), "f");
        let d = mkdir(&fs, &fs.root(), "d");
        let limits = ReadDirLimits { max_entries: 100, max_name_bytes: 10_000, plus: true };
        let page = wait(fs.readdir(&me(), &d, 0, [0; 8], limits)).unwrap();
        let up = page.entries.iter().find(|e| e.name == b"..").unwrap();
        assert_eq!(up.plus.unwrap().0, fs.root());
        let page = wait(fs.readdir(&me(), &fs.root(), 0, [0; 8], limits)).unwrap();
        assert!(page.eof && page.entries.len() == 4);
        for e in page.entries {
            let (handle, attr) = e.plus.unwrap();
            let (found, mut now) = wait(fs.lookup(&me(), &fs.root(), &e.name)).unwrap();
            now.atime = attr.atime; // Listing the directory has changed its atime.
            assert_eq!((found, now), (handle, attr));
            assert_eq!(e.fileid, attr.fileid);
        }
        assert_eq!(
            wait(fs.readdir(&me(), &fs.root(), u64::MAX, [0; 8], limits)).unwrap_err(),
            FsError::BadCookie
        );
        assert_eq!(wait(fs.readdir(&me(), &fs.root(), 1, [1; 8], limits)).unwrap_err(), FsError::BadCookie);
    }
}

#[test]
fn removed_files_are_stale_and_release_space() {
    for m in modes() {
        let dir = tempfile::tempdir().unwrap();
        let fs = open(dir.path(), m);
        let f = create(&fs, &fs.root(), "f");
        write(&fs, &f, 0, b"x").unwrap();
        wait(fs.remove(&me(), &fs.root(), b"f")).unwrap();
        assert_eq!(wait(fs.getattr(&f)).unwrap_err(), FsError::Stale);
        assert_eq!(read(&fs, &f, 0, 1).unwrap_err(), FsError::Stale);
        assert_eq!(wait(fs.remove(&me(), &fs.root(), b"f")).unwrap_err(), FsError::NoEnt);
        assert_eq!(fs.open_objects(), 0);
    }
}

#[test]
fn objects_live_until_the_last_link_is_removed() {
    for m in modes() {
        let dir = tempfile::tempdir().unwrap();
        let fs = open(dir.path(), m);
        let root = fs.root();
        let f = create(&fs, &root, "f");
        let (attr, _) = wait(fs.link(&me(), &f, &root, b"g")).unwrap();
        assert_eq!(attr.nlink, 2);
        wait(fs.remove(&me(), &root, b"f")).unwrap();
        assert_eq!(wait(fs.getattr(&f)).unwrap().nlink, 1);
        assert_eq!(lookup(&fs, &root, "g").unwrap(), f);
        let d = mkdir(&fs, &root, "d");
        assert_eq!(wait(fs.link(&me(), &d, &root, b"h")).unwrap_err(), FsError::IsDir);
        wait(fs.create_node(&me(), &root, b"l", &NewNode::Symlink(b"nowhere".to_vec()), &SetAttr::default()))
            .unwrap();
        let l = lookup(&fs, &root, "l").unwrap();
        wait(fs.link(&me(), &l, &root, b"l2")).unwrap();
        assert_eq!(std::fs::read_link(dir.path().join("l2")).unwrap().to_str(), Some("nowhere"));
    }
}

#[test]
fn rename_makes_the_replaced_object_stale() {
    for m in modes() {
        let dir = tempfile::tempdir().unwrap();
        let fs = open(dir.path(), m);
        let root = fs.root();
        let (a, b, d) = (create(&fs, &root, "a"), create(&fs, &root, "b"), mkdir(&fs, &root, "d"));
        wait(fs.rename(&me(), &root, b"a", &root, b"b")).unwrap();
        assert_eq!(wait(fs.getattr(&b)).unwrap_err(), FsError::Stale);
        assert_eq!(lookup(&fs, &root, "b").unwrap(), a);
        wait(fs.rename(&me(), &root, b"b", &d, b"c")).unwrap();
        assert_eq!(lookup(&fs, &d, "c").unwrap(), a);
        assert_eq!(wait(fs.rename(&me(), &root, b"d", &d, b"x")).unwrap_err(), FsError::Inval);
        assert_eq!(wait(fs.rmdir(&me(), &root, b"d")).unwrap_err(), FsError::NotEmpty);
        assert_eq!(wait(fs.remove(&me(), &root, b"d")).unwrap_err(), FsError::IsDir);
        assert_eq!(wait(fs.rmdir(&me(), &d, b"c")).unwrap_err(), FsError::NotDir);
    }
}

#[test]
fn cache_is_bounded_and_evicted_files_reopen() {
    for m in modes() {
        let dir = tempfile::tempdir().unwrap();
        let fs = millrace_vfs_local::LocalFs::open(millrace_vfs_local::LocalConfig {
            open_objects: 8,
            sync_metadata: false,
            ..config(dir.path(), m)
        })
        .unwrap();
        let files: Vec<_> = (0..50).map(|i| create(&fs, &fs.root(), &i.to_string())).collect();
        for (i, f) in files.iter().enumerate() {
            write(&fs, f, 0, &[i as u8; 10]).unwrap();
            assert!(fs.open_objects() <= 8);
        }
        for (i, f) in files.iter().enumerate() {
            assert_eq!(read(&fs, f, 0, 10).unwrap(), [i as u8; 10]);
        }
    }
}

#[test]
fn exclusive_create_is_idempotent_across_restarts() {
    for m in modes() {
        let dir = tempfile::tempdir().unwrap();
        let fs = open(dir.path(), m);
        let how = CreateHow::Exclusive([0xff, 1, 2, 3, 0xfe, 5, 6, 7], SetAttr::default());
        let first = wait(fs.create(&me(), &fs.root(), b"x", &how)).unwrap();
        assert_eq!(wait(fs.create(&me(), &fs.root(), b"x", &how)).unwrap().handle, first.handle);
        drop(fs);
        let fs = open(dir.path(), m);
        assert_eq!(wait(fs.create(&me(), &fs.root(), b"x", &how)).unwrap().handle, first.handle);
        let other = CreateHow::Exclusive([9; 8], SetAttr::default());
        assert_eq!(wait(fs.create(&me(), &fs.root(), b"x", &other)).unwrap_err(), FsError::Exist);
    }
}

/// If the server is killed, no file may be left that a retransmitted call would take for another one.
#[test]
fn exclusive_create_sets_verifier_and_mode_atomically() {
    const FILES: usize = 300;
    for m in modes() {
        let dir = tempfile::tempdir().unwrap();
        let unnamed = OFlags::TMPFILE | OFlags::WRONLY;
        if let Err(e) = rustix::fs::open(dir.path(), unnamed, Mode::RWXU) {
            println!("the file system under test does not support O_TMPFILE: {e}");
            return;
        }
        let fs = open(dir.path(), m);
        let path = dir.path().to_owned();
        let watcher = std::thread::spawn(move || {
            (0..FILES).all(|i| {
                let name = path.join(i.to_string());
                let seen = std::iter::repeat_with(|| std::fs::metadata(&name).ok()).flatten().next().unwrap();
                (seen.mtime(), seen.atime(), seen.mode() & 0o7777) == (0x0102_0304, 0x0506_0708, 0o640)
            })
        });
        let how = CreateHow::Exclusive([1, 2, 3, 4, 5, 6, 7, 8], mode(0o640));
        for i in 0..FILES {
            wait(fs.create(&me(), &fs.root(), i.to_string().as_bytes(), &how)).unwrap();
        }
        assert!(watcher.join().unwrap(), "a file was visible without its verifier or its mode");
    }
}

#[test]
fn read_only_export_rejects_changes() {
    for m in modes() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("f"), b"abc").unwrap();
        let fs = millrace_vfs_local::LocalFs::open(millrace_vfs_local::LocalConfig {
            read_only: true,
            ..config(dir.path(), m)
        })
        .unwrap();
        let root = fs.root();
        let f = lookup(&fs, &root, "f").unwrap();
        assert_eq!(read(&fs, &f, 0, 9).unwrap(), b"abc");
        assert_eq!(write(&fs, &f, 0, b"x"), Err(FsError::RoFs));
        assert_eq!(wait(fs.setattr(&me(), &f, &mode(0), None)).unwrap_err(), FsError::RoFs);
        assert_eq!(wait(fs.remove(&me(), &root, b"f")).unwrap_err(), FsError::RoFs);
        assert_eq!(wait(fs.rename(&me(), &root, b"f", &root, b"g")).unwrap_err(), FsError::RoFs);
        let how = CreateHow::Unchecked(SetAttr::default());
        assert_eq!(wait(fs.create(&me(), &root, b"f", &how)).unwrap_err(), FsError::RoFs);
        let (access, _) = wait(fs.access(&me(), &f, millrace_vfs::Access(0x3f))).unwrap();
        assert_eq!(access.0 & (millrace_vfs::Access::MODIFY | millrace_vfs::Access::EXTEND), 0);
    }
}

#[test]
fn attributes_agree_with_stat() {
    for m in modes() {
        let dir = tempfile::tempdir().unwrap();
        let fs = open(dir.path(), m);
        std::fs::write(dir.path().join("f"), b"abc").unwrap();
        let f = lookup(&fs, &fs.root(), "f").unwrap();
        let meta = std::fs::metadata(dir.path().join("f")).unwrap();
        let attr = wait(fs.getattr(&f)).unwrap();
        assert_eq!((attr.fileid, attr.size, attr.uid, attr.nlink), (meta.ino(), 3, meta.uid(), 1));
        assert_eq!((attr.mtime.seconds, attr.used), (meta.mtime(), meta.blocks() * 512));
        let space = wait(fs.stat()).unwrap();
        assert!(space.total_bytes >= space.free_bytes && space.free_bytes >= space.available_bytes);
        assert_eq!(fs.info().name_max, 255);
    }
}

/// A small tmpfs, unmounted on drop.
struct SmallMount(tempfile::TempDir);

impl SmallMount {
    fn new(bytes: usize) -> Option<Self> {
        let dir = tempfile::tempdir().unwrap();
        let mut mount = std::process::Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", &format!("size={bytes}"), "tmpfs"]).arg(dir.path());
        mount.stderr(std::process::Stdio::null());
        mount.status().is_ok_and(|s| s.success()).then(|| Self(dir))
    }
}

impl Drop for SmallMount {
    fn drop(&mut self) {
        let _ = std::process::Command::new("umount").arg("-l").arg(self.0.path()).status();
    }
}

#[test]
fn full_file_system_returns_nospc_after_partial_write() {
    let Some(mount) = SmallMount::new(1 << 20) else {
        println!("skipped: cannot mount a small file system");
        return;
    };
    for m in modes() {
        let fs = open(mount.0.path(), m);
        let f = create(&fs, &fs.root(), "f");
        let space = wait(fs.stat()).unwrap();
        assert_eq!(space.total_bytes, 1 << 20);
        let written = write(&fs, &f, 0, &vec![1; 2 << 20]).unwrap();
        assert!((1..=1 << 20).contains(&written), "{written}");
        assert_eq!(write(&fs, &f, written.into(), &[1; 8192]).unwrap_err(), FsError::NoSpc);
        wait(fs.remove(&me(), &fs.root(), b"f")).unwrap();
        drop(fs);
        // io_uring releases a file shortly after the last transfer.
        let used = || rustix::fs::statvfs(mount.0.path()).is_ok_and(|s| s.f_bfree < s.f_blocks);
        (0..10_000).take_while(|_| used()).for_each(|_| std::thread::sleep(Duration::from_millis(1)));
    }
}

#[test]
fn dropped_transfers_complete() {
    for m in modes() {
        let dir = tempfile::tempdir().unwrap();
        let fs = open(dir.path(), m);
        let f = create(&fs, &fs.root(), "f");
        write(&fs, &f, 0, b"first").unwrap();
        {
            // Polled once, then dropped with the file system.
            let op = fs.write(&me(), &f, 5, views(&[7; 1 << 20]), Stability::Unstable);
            let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
            let _ = std::pin::pin!(op.into_future()).poll(&mut cx);
        }
        drop(fs);
        let file = dir.path().join("f");
        while std::fs::metadata(&file).unwrap().len() < 5 + (1 << 20) {
            std::thread::yield_now();
        }
    }
}
