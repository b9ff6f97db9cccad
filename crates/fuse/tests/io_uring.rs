//! Mounts whose requests arrive over io_uring: their life cycle, and requests that wait for others. `posix.rs` and
//! `locks.rs` run their checks over io_uring too.

#![allow(clippy::unwrap_used, clippy::panic)] // Helpers of tests, which are to fail.

mod common;

use std::{
    fs::{self, File, OpenOptions},
    io::{BufRead, BufReader},
    os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt},
    path::Path,
    process::{Child, Command, Stdio},
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use common::{CASES, Export, HANG, Mounted, io_uring_is_available, is_mounted, random_bytes};
use rustix::fs::{FlockOperation as Op, OFlags, flock};

/// More than the entries of one queue at the start.
const MANY: usize = 12;

fn open(mount: &Mounted) -> File {
    let path = mount.at.join("file");
    OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path).unwrap()
}

/// Lets this thread and those that it starts run on one processor, so that their requests are in one queue.
fn stay_on_one_processor() {
    let first = core_affinity::get_core_ids().unwrap()[0];
    assert!(core_affinity::set_for_current(first));
}

/// Ends the connection of the kernel to the mount. `false`: fusectl is not mounted.
fn abort(at: &Path) -> bool {
    let device = rustix::fs::minor(fs::metadata(at).unwrap().dev());
    fs::write(format!("/sys/fs/fuse/connections/{device}/abort"), "1").is_ok()
}

#[test]
fn files_are_intact_over_io_uring() {
    if !io_uring_is_available() {
        return;
    }
    for (case, version) in [(CASES[0], "vers=3"), (CASES[1], "vers=4.2")] {
        let export = Export::start(case.local);
        let mounted = export.mount(case.proto, &format!("io_uring,{version}"));
        assert!(mounted.uses_io_uring());
        // Several requests of the largest size, and parts of one.
        let data = random_bytes((5 << 20) + 1, 7);
        fs::create_dir(mounted.at.join("dir")).unwrap();
        fs::write(mounted.at.join("dir/file"), &data).unwrap();
        mounted.unmount();
        let again = export.mount(case.proto, &format!("io_uring,{version}"));
        let path = again.at.join("dir/file");
        let direct = OpenOptions::new().read(true).custom_flags(OFlags::DIRECT.bits() as i32).open(&path);
        let mut block = vec![0; 2 << 20];
        direct.unwrap().read_exact_at(&mut block, 1 << 20).unwrap();
        assert!(block == data[1 << 20..3 << 20], "{case:?}");
        assert!(fs::read(&path).unwrap() == data, "{case:?}");
        again.unmount();
    }
}

#[test]
fn several_connections_use_the_device() {
    if !io_uring_is_available() || thread::available_parallelism().unwrap().get() == 1 {
        return;
    }
    let export = Export::start(false);
    let mounted = export.mount("tcp", "io_uring,nconnect=2");
    fs::write(mounted.at.join("file"), "data").unwrap();
    assert!(!mounted.uses_io_uring());
    mounted.unmount();
}

/// Starts `flock file COMMAND`. Other processes can be killed if the mount does not reply to them.
fn flock_command(mount: &Mounted, command: &[&str]) -> Child {
    let mut flock = Command::new("flock");
    flock.arg(mount.at.join("file")).args(command).stdin(Stdio::piped()).stdout(Stdio::piped());
    flock.spawn().unwrap()
}

/// Requests that wait do not keep the kernel from sending the one that ends their waiting.
#[test]
fn many_waiting_locks_do_not_block_the_release() {
    if !io_uring_is_available() {
        return;
    }
    let export = Export::start(false);
    let mounted = export.mount("tcp", "io_uring,vers=4.2");
    drop(open(&mounted));
    stay_on_one_processor();
    let mut holder = flock_command(&mounted, &["sh", "-c", "echo locked; read end"]);
    let mut line = String::new();
    BufReader::new(holder.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let waiting: Vec<_> = (0..MANY).map(|_| flock_command(&mounted, &["true"])).collect();
    // The last ones may have to wait for an entry, and so may the release.
    thread::sleep(Duration::from_millis(200));
    drop(holder.stdin.take());
    for mut child in waiting.into_iter().chain([holder]) {
        let deadline = Instant::now() + HANG;
        while child.try_wait().unwrap().is_none() {
            assert!(Instant::now() < deadline, "a lock is not granted");
            thread::sleep(Duration::from_millis(5));
        }
        child.wait().unwrap();
    }
    mounted.unmount();
}

#[test]
fn aborted_mount_ends_and_its_callers_get_errors() {
    if !io_uring_is_available() {
        return;
    }
    let export = Export::start(false);
    let mounted = export.mount("tcp", "io_uring,vers=4.2");
    let (held, waiting) = (open(&mounted), open(&mounted));
    flock(&held, Op::LockExclusive).unwrap();
    let (started, is_waiting) = mpsc::channel();
    let waiter = thread::spawn(move || {
        started.send(()).unwrap();
        flock(&waiting, Op::LockExclusive)
    });
    is_waiting.recv().unwrap();
    if !abort(&mounted.at) {
        eprintln!("SKIPPED, NOTHING WAS TESTED: fusectl is not mounted on /sys/fs/fuse/connections");
        flock(&held, Op::Unlock).unwrap();
    } else {
        waiter.join().unwrap().unwrap_err();
        fs::metadata(mounted.at.join("file")).unwrap_err();
    }
    drop(held);
    drop(mounted); // It is unmounted although its connection has ended.
}

#[test]
fn detached_or_dropped_mount_ends_with_open_files() {
    if !io_uring_is_available() {
        return;
    }
    let export = Export::start(false);
    let mounted = export.mount("rdma", "io_uring");
    let (at, file) = (mounted.at.clone(), open(&mounted));
    file.write_all_at(b"data", 0).unwrap();
    millrace_fuse::detach(&at).unwrap();
    assert!(!is_mounted(&at));
    // The file is usable until it is closed.
    file.write_all_at(b"more", 4).unwrap();
    drop(file);
    drop(mounted);
    let again = export.mount("rdma", "io_uring");
    let file = open(&again);
    assert_eq!(fs::read(again.at.join("file")).unwrap(), b"datamore");
    drop(again);
    file.write_all_at(b"late", 0).unwrap_err();
}
