//! Handles live as long as their objects.

use millrace_vfs::{FileSystem, FsError};
use millrace_vfs_local::{KeySource, LocalConfig, LocalFs};

use super::common::*;

#[test]
fn handles_survive_a_restart() {
    for m in modes() {
        let dir = tempfile::tempdir().unwrap();
        let fs = open(dir.path(), m);
        let d = mkdir(&fs, &fs.root(), "d");
        let f = create(&fs, &d, "f");
        write(&fs, &f, 0, b"abc").unwrap();
        let root = fs.root();
        drop(fs);
        let fs = open(dir.path(), m);
        assert_eq!(fs.root(), root);
        assert_eq!(read(&fs, &f, 0, 9).unwrap(), b"abc");
        assert_eq!(lookup(&fs, &d, "f").unwrap(), f);
    }
}

#[test]
fn handles_survive_renames_and_a_restart() {
    for m in modes() {
        let dir = tempfile::tempdir().unwrap();
        let fs = open(dir.path(), m);
        let root = fs.root();
        let d = mkdir(&fs, &root, "d");
        let f = create(&fs, &d, "f");
        write(&fs, &f, 0, b"abc").unwrap();
        wait(fs.rename(&me(), &root, b"d", &root, b"e")).unwrap();
        wait(fs.rename(&me(), &d, b"f", &root, b"g")).unwrap();
        assert_eq!(read(&fs, &f, 0, 9).unwrap(), b"abc");
        assert_eq!(lookup(&fs, &root, "e").unwrap(), d);
        drop(fs);
        std::fs::rename(dir.path().join("g"), dir.path().join("e/h")).unwrap();
        std::fs::rename(dir.path().join("e"), dir.path().join("z")).unwrap();
        let fs = open(dir.path(), m);
        assert_eq!(read(&fs, &f, 0, 9).unwrap(), b"abc");
        assert_eq!(lookup(&fs, &d, "h").unwrap(), f);
    }
}

#[test]
fn handles_of_removed_objects_are_stale_after_a_restart() {
    for m in modes() {
        let dir = tempfile::tempdir().unwrap();
        let fs = open(dir.path(), m);
        let f = create(&fs, &fs.root(), "f");
        drop(fs);
        std::fs::remove_file(dir.path().join("f")).unwrap();
        // The inode number is likely to be reused.
        std::fs::write(dir.path().join("f"), b"another").unwrap();
        let fs = open(dir.path(), m);
        for _ in 0..3 {
            assert_eq!(read(&fs, &f, 0, 9).unwrap_err(), FsError::Stale);
        }
    }
}

#[test]
fn key_is_stored_in_an_attribute_or_file() {
    for (handles, io) in modes() {
        let (dir, keys) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        for key in [KeySource::Attribute, KeySource::File(keys.path().join("key"))] {
            let config = LocalConfig { key: key.clone(), ..config(dir.path(), (handles, io)) };
            let fs = LocalFs::open(config.clone()).unwrap();
            let root = fs.root();
            drop(fs);
            assert_eq!(LocalFs::open(config).unwrap().root(), root, "{key:?}");
        }
    }
}
