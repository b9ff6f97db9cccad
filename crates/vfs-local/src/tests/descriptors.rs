//! Exhaustion of file descriptors.

use std::{fs::File, sync::Arc};

use millrace_vfs::{FileSystem, FsError, NewNode, Stability};

use super::*;
use crate::{LocalFs, descriptors::with_free_descriptor_retrying};

/// Opens files until `left` descriptors remain.
fn take_all_but(left: usize) -> Vec<File> {
    let mut taken = Vec::new();
    while let Ok(file) = File::open("/dev/null") {
        taken.push(file);
    }
    taken.truncate(taken.len() - left.min(taken.len()));
    taken
}

fn use_files(fs: &LocalFs, dir: &Handle, files: &[Handle]) {
    for (i, file) in files.iter().enumerate() {
        let written = wait(fs.write(&me(), file, 0, views(b"abc"), Stability::Unstable));
        assert_eq!(written.unwrap().count, 3, "file {i}");
        assert_eq!(wait(fs.read(&me(), file, 0, 9)).unwrap().data.to_vec(), b"abc", "file {i}");
        wait(fs.lookup(&me(), dir, i.to_string().as_bytes())).unwrap();
    }
}

#[test]
fn cached_descriptors_are_closed_on_demand() {
    if !in_own_process("tests::descriptors::cached_descriptors_are_closed_on_demand") {
        return;
    }
    let limit = rustix::process::Rlimit { current: Some(128), maximum: Some(128) };
    rustix::process::setrlimit(rustix::process::Resource::Nofile, limit).unwrap();
    let dirs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    for i in 0..configs(dirs[0].path()).count() {
        let open = |dir: &tempfile::TempDir| {
            let config = configs(dir.path()).nth(i).unwrap();
            LocalFs::open(LocalConfig { open_objects: 1024, ..config }).unwrap()
        };
        let exports: [Arc<LocalFs>; 2] = [open(&dirs[0]), open(&dirs[1])];
        let made = exports.each_ref().map(|fs| {
            let how = NewNode::Directory;
            let set = SetAttr { mode: Some(0o755), ..SetAttr::default() };
            let name = format!("d{i}");
            let dir = wait(fs.create_node(&me(), &fs.root(), name.as_bytes(), &how, &set)).unwrap().handle;
            let files: Vec<_> = (0..50).map(|n| create(fs, &dir, &n.to_string())).collect();
            (dir, files)
        });
        // Both caches are as full as possible.
        for (fs, (dir, files)) in exports.iter().zip(&made) {
            use_files(fs, dir, files);
            assert!(fs.open_objects() <= 128 / 8 / 2 + 1, "{} objects", fs.open_objects());
        }
        let taken = take_all_but(0);
        for (fs, (dir, files)) in exports.iter().zip(&made) {
            use_files(fs, dir, files);
            create(fs, dir, "new");
        }
        drop(taken);
    }
}

#[test]
fn remaining_caches_share_the_descriptors_of_a_dropped_one() {
    if !in_own_process("tests::descriptors::remaining_caches_share_the_descriptors_of_a_dropped_one") {
        return;
    }
    let limit = rustix::process::Rlimit { current: Some(240), maximum: Some(240) };
    rustix::process::setrlimit(rustix::process::Resource::Nofile, limit).unwrap();
    let dir = tempfile::tempdir().unwrap();
    for n in 0..60 {
        File::create(dir.path().join(n.to_string())).unwrap();
    }
    let open = || {
        let config = configs(dir.path()).next().unwrap();
        LocalFs::open(LocalConfig { open_objects: 1024, ..config }).unwrap()
    };
    let look = |fs: &LocalFs| {
        for n in 0..60 {
            wait(fs.lookup(&me(), &fs.root(), n.to_string().as_bytes())).unwrap();
        }
        fs.open_objects()
    };
    let (one, other) = (open(), open());
    assert!((10..=20).contains(&look(&one)), "{}", look(&one));
    drop(other);
    // The threads of an export end after it is dropped.
    let limit = std::time::Instant::now() + std::time::Duration::from_secs(30);
    while look(&one) <= 20 {
        assert!(std::time::Instant::now() < limit);
    }
    assert_eq!(wait(one.lookup(&me(), &one.root(), b"none")).unwrap_err(), FsError::NoEnt);
}

#[test]
fn created_object_is_opened_when_descriptors_are_free() {
    let tries = std::cell::Cell::new(0);
    let open = |succeeds_at| {
        tries.set(tries.get() + 1);
        if tries.get() == succeeds_at { Ok(()) } else { Err(FsError::Jukebox) }
    };
    assert_eq!((with_free_descriptor_retrying(|| open(4)), tries.replace(0)), (Ok(()), 4));
    assert_eq!((with_free_descriptor_retrying(|| open(100)), tries.replace(0)), (Err(FsError::Jukebox), 11));
    let fails = || -> millrace_vfs::FsResult<()> {
        tries.set(tries.get() + 1);
        Err(FsError::NoEnt)
    };
    assert_eq!((with_free_descriptor_retrying(fails), tries.get()), (Err(FsError::NoEnt), 1));
}
