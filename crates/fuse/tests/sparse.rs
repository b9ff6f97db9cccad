//! fallocate(2), lseek(2) for data and holes, and copy_file_range(2): on NFSv4.2 compared with a model, on NFSv3 refused or
//! emulated.

#![allow(clippy::unwrap_used, clippy::panic)] // Helpers of tests, which are to fail.

mod common;

use std::{
    fs::{self, File, OpenOptions},
    os::unix::fs::FileExt,
    path::Path,
    process::Command,
};

use millrace_nfs::v4::Operation;

use common::{Export, fuse_is_available, random_bytes};
use rustix::{
    fs::{FallocateFlags as Mode, SeekFrom, copy_file_range, fallocate, seek},
    io::Errno,
};

const PUNCH: Mode = Mode::PUNCH_HOLE.union(Mode::KEEP_SIZE);
/// Maximum size of the file of the model.
const MAX: u64 = 300_000;
const SEED: u64 = 0x5eed_0015;

fn open(path: &Path) -> File {
    OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path).unwrap()
}

/// Copies within a file. Returns the number of bytes.
fn copy(file: &File, mut from: u64, mut to: u64, len: u64) -> Result<u64, Errno> {
    copy_file_range(file, Some(&mut from), file, Some(&mut to), len as usize).map(|count| count as u64)
}

/// The data segments according to lseek(2).
fn segments(file: &File) -> Vec<(u64, u64)> {
    let (mut found, mut at) = (Vec::new(), 0);
    loop {
        let start = match seek(file, SeekFrom::Data(at)) {
            Ok(start) => start,
            Err(e) => {
                assert_eq!(e, Errno::NXIO);
                return found;
            }
        };
        at = seek(file, SeekFrom::Hole(start)).unwrap();
        assert!(at > start, "an empty segment at {start}");
        found.push((start, at));
    }
}

/// Checks that all data of `model` is in segments, and that no segment passes the end.
fn check_segments(file: &File, model: &[u8], what: &str) {
    let segments = segments(file);
    assert!(segments.iter().all(|s| s.1 <= model.len() as u64), "{what}: {segments:?}");
    let is_data = |at: usize| segments.iter().any(|s| (s.0..s.1).contains(&(at as u64)));
    let lost = (0..model.len()).step_by(97).find(|at| model[*at] != 0 && !is_data(*at));
    assert_eq!(lost, None, "{what}: data outside of the segments {segments:?}");
}

fn random_operations(local: bool, options: &str) {
    let export = Export::start(local);
    let (a, b) = (export.mount("tcp", options), export.mount("rdma", "vers=4.2,noac"));
    let (at_a, at_b) = (a.at.join("file"), b.at.join("file"));
    let file = open(&at_a);
    let mut random = SEED;
    let mut next = |n: u64| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) % n
    };
    let mut model: Vec<u8> = Vec::new();
    for step in 0..150_u64 {
        let start = next(MAX);
        let (end, what) = (start + 1 + next((MAX - start).min(90_000)), next(9));
        let range = start as usize..end as usize;
        let text = format!("seed {SEED:#x}, local {local}, {options:?}, step {step}: {what} of {range:?}");
        let within = range.start.min(model.len())..range.end.min(model.len());
        match what {
            0 | 1 => {
                let data = random_bytes(range.len(), step + 1);
                file.write_all_at(&data, start).unwrap();
                model.resize(model.len().max(range.end), 0);
                model[range.clone()].copy_from_slice(&data);
            }
            2 => {
                fallocate(&file, PUNCH, start, end - start).unwrap();
                model[within].fill(0);
            }
            3 => {
                fallocate(&file, Mode::ZERO_RANGE, start, end - start).unwrap();
                model.resize(model.len().max(range.end), 0);
                model[range.clone()].fill(0);
            }
            4 => {
                fallocate(&file, Mode::empty(), start, end - start).unwrap();
                model.resize(model.len().max(range.end), 0);
            }
            5 => {
                file.set_len(start).unwrap();
                model.resize(range.start, 0);
            }
            6 | 7 => {
                let from = next(MAX);
                let copied = copy(&file, from, start, end - start);
                let len = (end - start).min((model.len() as u64).saturating_sub(from));
                if from < start + len && start < from + len {
                    assert_eq!(copied, Err(Errno::INVAL), "{text}: overlapping {from}");
                } else {
                    assert_eq!(copied, Ok(len), "{text}: from {from}");
                    let end = range.start + len as usize;
                    let data = model.get(from as usize..(from + len) as usize).unwrap_or_default().to_vec();
                    if len > 0 {
                        model.resize(model.len().max(end), 0);
                        model[range.start..end].copy_from_slice(&data);
                    }
                }
            }
            _ => check_segments(&file, &model, &text),
        }
        assert_eq!(file.metadata().unwrap().len(), model.len() as u64, "{text}");
        if step % 3 == 0 {
            let mut read = vec![0; model.len()];
            file.read_exact_at(&mut read, 0).unwrap();
            assert!(read == model, "{text}: the mount returns other data");
        }
        if step % 7 == 0 {
            file.sync_all().unwrap();
            assert!(fs::read(&at_b).unwrap() == model, "{text}: the other mount returns other data");
            check_segments(&File::open(&at_b).unwrap(), &model, &text);
        }
    }
    drop(file);
    assert!(fs::read(&at_a).unwrap() == model);
    if options.contains("writeback") {
        return; // Changes by other clients become visible late.
    }
    // Another client changes the space: the next open sees it.
    let size = model.len() as u64 + 100;
    model.resize(size as usize, 0);
    model[..50_000.min(size as usize)].fill(0);
    let other = open(&at_b);
    fallocate(&other, Mode::empty(), 0, size).unwrap();
    fallocate(&other, PUNCH, 0, 50_000).unwrap();
    drop(other);
    assert!(fs::read(&at_a).unwrap() == model, "local {local}, {options:?}: pages from before the hole");
    a.unmount();
    b.unmount();
}

#[test]
fn random_operations_match_a_model() {
    if !fuse_is_available() {
        return;
    }
    for local in [false, true] {
        for options in ["vers=4.2", "vers=4.2,writeback", "vers=4.2,noac"] {
            random_operations(local, options);
        }
    }
}

#[test]
fn unsupported_modes_are_refused() {
    if !fuse_is_available() {
        return;
    }
    let export = Export::start(true);
    let mount = export.mount("tcp", "vers=4.2");
    let file = open(&mount.at.join("file"));
    for mode in
        [Mode::KEEP_SIZE, Mode::ZERO_RANGE | Mode::KEEP_SIZE, Mode::COLLAPSE_RANGE, Mode::INSERT_RANGE]
    {
        assert_eq!(fallocate(&file, mode, 0, 4096), Err(Errno::OPNOTSUPP), "{mode:?}");
    }
    assert_eq!(file.metadata().unwrap().len(), 0);
    assert_eq!(seek(&file, SeekFrom::Data(0)), Err(Errno::NXIO));
    file.write_all_at(b"data", 0).unwrap();
    assert_eq!(seek(&file, SeekFrom::Hole(0)), Ok(4));
    assert_eq!(seek(&file, SeekFrom::Hole(4)), Err(Errno::NXIO));
    let read_only = File::open(mount.at.join("file")).unwrap();
    assert_eq!(fallocate(&read_only, Mode::empty(), 0, 4096), Err(Errno::BADF));
    drop((file, read_only));
    mount.unmount();
}

/// The server copies, or with NFSv3 the kernel.
#[test]
fn a_copy_does_not_pass_through_the_mount() {
    if !fuse_is_available() {
        return;
    }
    for (version, by_server) in [("4.2", true), ("4.1", false), ("3", false)] {
        let export = Export::start(true);
        let mount = export.mount("rdma", &format!("vers={version}"));
        let data = random_bytes(3 << 20, SEED);
        let (from, to) = (mount.at.join("from"), mount.at.join("to"));
        fs::write(&from, &data).unwrap();
        let (source, target) = (File::open(&from).unwrap(), File::create(&to).unwrap());
        let mut copied = 0;
        while copied < data.len() {
            copied += copy_file_range(&source, None, &target, None, data.len() - copied).unwrap();
        }
        target.sync_all().unwrap();
        let operations = export.server.stats().nfs4_operations;
        let copies: u64 =
            operations.iter().filter(|(o, _)| *o == Operation::Copy).map(|(_, s)| s.calls).sum();
        assert_eq!(copies > 0, by_server, "vers={version}");
        assert!(fs::read(&to).unwrap() == data, "vers={version}");
        drop((source, target));
        mount.unmount();
    }
}

#[test]
fn nfsv3_has_neither() {
    if !fuse_is_available() {
        return;
    }
    let export = Export::start(true);
    let mount = export.mount("tcp", "vers=3");
    let file = open(&mount.at.join("file"));
    file.set_len(100_000).unwrap();
    for mode in [Mode::empty(), PUNCH, Mode::ZERO_RANGE] {
        assert_eq!(fallocate(&file, mode, 0, 4096), Err(Errno::OPNOTSUPP), "{mode:?}");
    }
    assert_eq!(segments(&file), [(0, 100_000)]);
    drop(file);
    mount.unmount();
}

/// Data of a mapping is only in the kernel's pages until it is written back.
#[test]
fn data_in_mapped_pages_is_no_hole() {
    let has_python = Command::new("python3").args(["-c", "import mmap"]).status().is_ok_and(|s| s.success());
    if !fuse_is_available() || !has_python {
        eprintln!("SKIPPED, NOTHING WAS TESTED: python3 is not installed");
        return;
    }
    const SCRIPT: &str = "
import mmap, os, sys
f = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
os.ftruncate(f, 1 << 20)
m = mmap.mmap(f, 1 << 20)
m[700000:700004] = b'data'
at = os.lseek(f, 0, os.SEEK_DATA)
assert at <= 700000, at
assert os.lseek(f, 700000, os.SEEK_DATA) == 700000
";
    for local in [false, true] {
        let export = Export::start(local);
        for options in ["vers=4.2", "vers=4.2,writeback"] {
            let mount = export.mount("tcp", options);
            let path = mount.at.join(options);
            let status = Command::new("python3").args(["-c", SCRIPT]).arg(&path).status().unwrap();
            assert!(status.success(), "local {local}, {options}");
            mount.unmount();
        }
    }
}
