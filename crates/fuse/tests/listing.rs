//! A large directory, in its own process because it measures the memory of the process.

#![allow(clippy::unwrap_used, clippy::panic)] // Helpers of tests, which are to fail.

mod common;

use std::{
    fs::{self, File},
    path::Path,
};

use common::{Export, fuse_is_available};

const ENTRIES: usize = 100_000;

/// Resident memory of this process, in bytes.
fn resident() -> usize {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|l| l.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<usize>().unwrap() << 10
}

/// Lists the directory, checks that each entry appears once, and returns the growth of this process in bytes.
fn list(dir: &Path) -> usize {
    let mut seen = vec![false; ENTRIES];
    let before = resident();
    for e in fs::read_dir(dir).unwrap() {
        let name = e.unwrap().file_name().into_string().unwrap();
        let i: usize = name.rsplit('-').next().unwrap().parse().unwrap();
        assert!(!std::mem::replace(&mut seen[i], true), "{name} is listed twice");
    }
    let missing = seen.iter().filter(|s| !**s).count();
    assert_eq!(missing, 0);
    resident().saturating_sub(before)
}

#[test]
fn listing_100_000_entries_needs_bounded_memory() {
    if !fuse_is_available() {
        return;
    }
    let export = Export::start(true);
    fs::create_dir(export.dir.path().join("large")).unwrap();
    for i in 0..ENTRIES {
        File::create(export.dir.path().join(format!("large/a-name-that-is-not-short-{i:06}"))).unwrap();
    }
    let mounted = export.mount("rdma", "");
    let dir = mounted.at.join("large");
    let (first, again) = (list(&dir), list(&dir));
    println!("grown by {first} bytes, then by {again}");
    // The first listing allocates connection buffers. All entries with their handles would need more than 20
    // MiB each time.
    assert!(first < 32 << 20 && again < 8 << 20, "grown by {first} bytes, then by {again}");
    mounted.unmount();
}
