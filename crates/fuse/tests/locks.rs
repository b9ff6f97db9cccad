//! Locks of two mounts of one export: at the server with NFSv4, local with NFSv3.

#![allow(clippy::unwrap_used, clippy::panic)] // Helpers of tests, which are to fail.

mod common;

use std::{
    fs::{File, OpenOptions},
    io::{BufRead, BufReader, Write},
    os::unix::fs::FileExt,
    path::Path,
    process::{Child, ChildStdout, Command, Stdio},
    sync::mpsc,
    thread,
    time::Duration,
};

use common::{
    CASES, Export, HANG, Mounted, for_each, fuse_is_available, io_uring_is_available, random_bytes,
};
use millrace_nfs::v4::Operation;
use rustix::{
    fs::{FlockOperation as Op, fcntl_lock, flock},
    io::Errno,
};

fn open(mount: &Mounted) -> File {
    let path = mount.at.join("file");
    OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path).unwrap()
}

/// Locks without waiting; whether it succeeded.
fn try_flock(file: &File, how: Op) -> bool {
    match flock(file, how) {
        Ok(()) => true,
        Err(e) => {
            assert_eq!(e, Errno::AGAIN);
            false
        }
    }
}

fn has_python() -> bool {
    let has =
        Command::new("python3").args(["-c", "import fcntl, sqlite3"]).status().is_ok_and(|s| s.success());
    if !has {
        eprintln!("SKIPPED, NOTHING WAS TESTED: python3 with sqlite3 is not installed");
    }
    has
}

/// A Python program and its output.
struct Python {
    child: Child,
    out: BufReader<ChildStdout>,
}

impl Python {
    /// Starts a program with the file as its argument.
    fn start(script: &str, mount: &Mounted) -> Self {
        Self::start_with(script, mount, &[])
    }

    /// Starts a program with the file and others as its arguments.
    fn start_with(script: &str, mount: &Mounted, arguments: &[String]) -> Self {
        let mut python = Command::new("python3");
        python.args(["-c", script]).arg(mount.at.join("file")).args(arguments);
        let mut child = python.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let out = BufReader::new(child.stdout.take().unwrap());
        Self { child, out }
    }

    /// The next line of its output.
    fn line(&mut self) -> String {
        let mut line = String::new();
        self.out.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }
}

/// Runs a program that prints `done`, on a mount with each of `options`, of a local export or one in memory.
fn run_on_mounts(script: &str, options: &[(bool, &str)]) {
    for (local, options) in options {
        let export = Export::start(*local);
        let mount = export.mount("tcp", options);
        let mut program = Python::start(script, &mount);
        assert_eq!(program.line(), "done");
        assert!(program.child.wait().unwrap().success());
        mount.unmount();
    }
}

#[test]
fn two_mounts_exclude_each_other() {
    if !fuse_is_available() {
        return;
    }
    for case in CASES {
        let export = Export::start(case.local);
        let (a, b) = (export.mount(case.proto, "vers=4.2"), export.mount("tcp", "vers=4.1"));
        let (file_a, file_b) = (open(&a), open(&b));
        flock(&file_a, Op::LockExclusive).unwrap();
        assert!(!try_flock(&file_b, Op::NonBlockingLockExclusive));
        assert!(!try_flock(&file_b, Op::NonBlockingLockShared));
        assert!(!try_flock(&open(&a), Op::NonBlockingLockExclusive), "another description of one mount");
        flock(&file_a, Op::LockShared).unwrap();
        assert!(try_flock(&file_b, Op::NonBlockingLockShared));
        assert!(!try_flock(&file_b, Op::NonBlockingLockExclusive));
        flock(&file_a, Op::Unlock).unwrap();
        assert!(try_flock(&file_b, Op::NonBlockingLockExclusive));
        drop(file_b); // Releases the lock.
        flock(&file_a, Op::LockExclusive).unwrap();
        flock(&file_a, Op::Unlock).unwrap();
        // Locks of the process.
        fcntl_lock(&file_a, Op::LockExclusive).unwrap();
        let file_b = open(&b);
        assert_eq!(fcntl_lock(&file_b, Op::NonBlockingLockExclusive), Err(Errno::AGAIN));
        drop(open(&a)); // As POSIX requires, this releases the locks of the process.
        fcntl_lock(&file_b, Op::LockExclusive).unwrap();
        drop((file_a, file_b));
        a.unmount();
        b.unmount();
    }
}

#[test]
fn a_waiting_lock_is_granted_after_the_release() {
    if !fuse_is_available() {
        return;
    }
    let export = Export::start(false);
    let (a, b) = (export.mount("tcp", "vers=4.2"), export.mount("tcp", "vers=4.2"));
    let (file_a, file_b) = (open(&a), open(&b));
    flock(&file_a, Op::LockExclusive).unwrap();
    let (locked, waits) = mpsc::channel();
    let waiter = thread::spawn(move || {
        flock(&file_b, Op::LockExclusive).unwrap();
        locked.send(()).unwrap();
        file_b
    });
    assert!(waits.recv_timeout(Duration::from_millis(200)).is_err(), "two exclusive locks");
    drop(file_a);
    waits.recv_timeout(HANG).unwrap();
    drop(waiter.join().unwrap());
    a.unmount();
    b.unmount();
}

/// Ranges, the test for a lock, and the end of a waiting process by a signal.
#[test]
fn processes_lock_ranges_and_can_be_interrupted() {
    if !fuse_is_available() || !has_python() {
        return;
    }
    const HOLDER: &str = "
import fcntl, sys
f = open(sys.argv[1], 'r+b', buffering=0)
fcntl.lockf(f, fcntl.LOCK_EX, 10, 100)
print('locked', flush=True)
sys.stdin.readline()
";
    const OTHER: &str = "
import fcntl, os, signal, struct, sys
f = open(sys.argv[1], 'r+b', buffering=0)
fcntl.lockf(f, fcntl.LOCK_EX | fcntl.LOCK_NB, 100, 0)
fcntl.lockf(f, fcntl.LOCK_EX | fcntl.LOCK_NB, 0, 110)
try:
    fcntl.lockf(f, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 109)
    print('no conflict', flush=True)
except BlockingIOError:
    print('conflict', flush=True)
asked = struct.pack('hhqqi4x', fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
kind, _, start, length, _ = struct.unpack('hhqqi4x', fcntl.fcntl(f, fcntl.F_GETLK, asked))
print(kind == fcntl.F_WRLCK, start, length, flush=True)
class Alarm(Exception): pass
def ring(*_): raise Alarm()
signal.signal(signal.SIGALRM, ring)
signal.setitimer(signal.ITIMER_REAL, 0.3)
try:
    fcntl.lockf(f, fcntl.LOCK_EX, 10, 100)
    print('not interrupted', flush=True)
except Alarm:
    print('interrupted', flush=True)
fcntl.lockf(f, fcntl.LOCK_EX, 10, 100)
";
    let over_io_uring = io_uring_is_available().then_some("vers=4.2,io_uring");
    for options in ["vers=4.2"].into_iter().chain(over_io_uring) {
        let export = Export::start(true);
        let (a, b) = (export.mount("tcp", options), export.mount("rdma", options));
        drop(open(&a));
        let mut holder = Python::start(HOLDER, &a);
        assert_eq!(holder.line(), "locked");
        let mut other = Python::start(OTHER, &b);
        assert_eq!(other.line(), "conflict");
        assert_eq!(other.line(), "True 100 10");
        assert_eq!(other.line(), "interrupted");
        // It waits again; a fatal signal ends it. Over io_uring the kernel does not pass on a signal that arrives before the
        // request is in an entry.
        if a.uses_io_uring() {
            thread::sleep(Duration::from_millis(200));
        }
        rustix::process::kill_process(
            rustix::process::Pid::from_child(&other.child),
            rustix::process::Signal::TERM,
        )
        .unwrap();
        assert!(!other.child.wait().unwrap().success());
        writeln!(holder.child.stdin.as_mut().unwrap()).unwrap();
        assert!(holder.child.wait().unwrap().success());
        // No lock is left.
        flock(open(&a), Op::NonBlockingLockExclusive).unwrap();
        a.unmount();
        b.unmount();
    }
}

/// Adds one to the number in the file, under a lock.
fn increment(file: &File) {
    flock(file, Op::LockExclusive).unwrap();
    let mut number = [0; 8];
    file.read_exact_at(&mut number, 0).unwrap();
    file.write_all_at(&(u64::from_ne_bytes(number) + 1).to_ne_bytes(), 0).unwrap();
    flock(file, Op::Unlock).unwrap();
}

fn count(path: &Path) -> u64 {
    let mut number = [0; 8];
    File::open(path).unwrap().read_exact_at(&mut number, 0).unwrap();
    u64::from_ne_bytes(number)
}

/// Without the data of the previous holder, an increment would be lost: size and times of the file may not show a change.
#[test]
fn a_holder_sees_the_data_of_earlier_holders() {
    if !fuse_is_available() {
        return;
    }
    const ROUNDS: u64 = 25;
    let options = ["vers=4.2", "vers=4.2,writeback"];
    let cases = [false, true].into_iter().flat_map(|local| options.map(|options| (local, options)));
    for_each(cases, |(local, options)| {
        let export = Export::start(local);
        let mounts = [export.mount("tcp", options), export.mount("rdma", options)];
        open(&mounts[0]).write_all_at(&[0; 8], 0).unwrap();
        let workers = [0, 1, 0, 1].map(|n| {
            let file = open(&mounts[n]);
            thread::spawn(move || (0..ROUNDS).for_each(|_| increment(&file)))
        });
        workers.into_iter().for_each(|w| w.join().unwrap());
        for mount in &mounts {
            assert_eq!(count(&mount.at.join("file")), 4 * ROUNDS, "local {local}, {options}");
        }
        mounts.into_iter().for_each(Mounted::unmount);
    });
}

/// The size of the file under a lock, as a read of it shows.
fn locked_size(file: &File) -> usize {
    flock(file, Op::LockExclusive).unwrap();
    file.read_at(&mut [0; 4096], 0).unwrap()
}

/// Two mounts change the size of a file in turn, each under a lock. A read that ended at the size from before the lock would
/// let the next write replace data.
#[test]
fn a_holder_sees_the_size_that_earlier_holders_left() {
    if !fuse_is_available() {
        return;
    }
    let options = ["vers=4.2", "vers=4.1,actimeo=0", "vers=4.2,writeback"];
    let cases = [false, true].into_iter().flat_map(|local| options.map(|options| (local, options)));
    for_each(cases, |(local, options)| {
        let export = Export::start(local);
        let mounts = [export.mount("tcp", options), export.mount("rdma", options)];
        let held = mounts.each_ref().map(open);
        for (turn, is_open) in (0..40).map(|n| (n, n / 2 % 2 == 0)) {
            let file = if is_open { &held[turn % 2] } else { &open(&mounts[turn % 2]) };
            assert_eq!(locked_size(file), turn, "local {local}, {options}");
            file.write_all_at(b"x", turn as u64).unwrap();
            flock(file, Op::Unlock).unwrap();
        }
        for (turn, file) in (0..40).rev().zip(held.iter().cycle()) {
            if options.contains("writeback") {
                break; // The kernel takes its size for the right one if it is larger (docs/limits.md).
            }
            assert_eq!(locked_size(file), turn + 1, "local {local}, {options}");
            file.set_len(turn as u64).unwrap();
            flock(file, Op::Unlock).unwrap();
        }
        drop(held);
        mounts.into_iter().for_each(Mounted::unmount);
    });
}

/// The kernel ignores the reply to its GETATTR if a notification overtakes it, so it has the size before.
#[test]
fn a_holder_has_the_size_that_others_left_without_a_request() {
    if !fuse_is_available() {
        return;
    }
    let cases = [false, true].into_iter().flat_map(|local| ["", ",writeback"].map(|more| (local, more)));
    for_each(cases, |(local, more)| {
        let export = Export::start(local);
        let [writer, reader] = ["tcp", "rdma"].map(|proto| export.mount(proto, &format!("vers=4.2{more}")));
        let (written, read) = (open(&writer), open(&reader));
        let count = |wanted: Operation| {
            let operations = export.server.stats().nfs4_operations;
            operations.iter().filter(|(operation, _)| *operation == wanted).map(|(_, s)| s.calls).sum::<u64>()
        };
        let mut content = Vec::new();
        for size in [1, 4096, 4097, 20_000] {
            let before = content.len();
            content.extend(random_bytes(size - before, size as u64));
            written.write_all_at(&content[before..], before as u64).unwrap();
            written.sync_all().unwrap();
            flock(&read, Op::LockExclusive).unwrap();
            let requests = count(Operation::Getattr);
            // A read beyond the size that the kernel has would ask for the attributes.
            let mut found = vec![0; size];
            read.read_exact_at(&mut found, 0).unwrap();
            assert!(found == content, "local {local}{more}, {size}");
            assert_eq!(count(Operation::Getattr), requests, "local {local}{more}, {size}");
            flock(&read, Op::Unlock).unwrap();
        }
        drop((written, read));
        [writer, reader].into_iter().for_each(Mounted::unmount);
    });
}

#[test]
fn locks_are_local_with_nfsv3_and_on_request() {
    if !fuse_is_available() {
        return;
    }
    let export = Export::start(false);
    for options in ["vers=3", "vers=4.2,nolock", "vers=4.2,local_lock=all"] {
        let (a, b) = (export.mount("tcp", options), export.mount("tcp", options));
        let (file_a, file_b) = (open(&a), open(&b));
        flock(&file_a, Op::LockExclusive).unwrap();
        flock(&file_b, Op::NonBlockingLockExclusive).unwrap();
        assert!(!try_flock(&open(&a), Op::NonBlockingLockExclusive));
        drop((file_a, file_b));
        a.unmount();
        b.unmount();
    }
}

/// Processes that open, lock, unlock or not, and close a file, many times: no two of them hold it at once.
fn exclude_each_other(rounds: u32) {
    if !fuse_is_available() || !has_python() {
        return;
    }
    const PROCESSES: u32 = 16;
    const SCRIPT: &str = "
import fcntl, os, struct, sys
lock, local, kind, rounds = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
counter, holder = lock + '.counter', local + '/holder'
OFD_SETLKW = 38
def whole(how): return struct.pack('hhqqi4x', how, os.SEEK_SET, 0, 0, 0)
def set_lock(f, is_locked):
    if kind == 'flock': fcntl.flock(f, fcntl.LOCK_EX if is_locked else fcntl.LOCK_UN)
    elif kind == 'fcntl': fcntl.lockf(f, fcntl.LOCK_EX if is_locked else fcntl.LOCK_UN)
    else: fcntl.fcntl(f, OFD_SETLKW, whole(fcntl.F_WRLCK if is_locked else fcntl.F_UNLCK))
for i in range(rounds):
    f = os.open(lock, os.O_RDWR | os.O_CREAT)
    set_lock(f, True)
    os.close(os.open(holder, os.O_CREAT | os.O_EXCL))
    c = os.open(counter, os.O_RDWR | os.O_CREAT)
    n = int(os.pread(c, 20, 0) or b'0')
    os.pwrite(c, b'%d' % (n + 1), 0)
    os.close(c)
    os.unlink(holder)
    if i % 2: set_lock(f, False)
    os.close(f)
print('done', flush=True)
";
    let cases = ["vers=3", "vers=4.1", "vers=4.2"]
        .map(|options| ["flock", "fcntl", "ofd"].map(|kind| (options, kind)));
    for (options, kind) in cases.into_iter().flatten() {
        let export = Export::start(false);
        let mount = export.mount("tcp", options);
        let local = tempfile::tempdir().unwrap();
        let start = |_| {
            let arguments = [local.path().to_str().unwrap(), kind, &rounds.to_string()].map(str::to_owned);
            Python::start_with(SCRIPT, &mount, &arguments)
        };
        let mut processes: Vec<_> = (0..PROCESSES).map(start).collect();
        for process in &mut processes {
            assert_eq!(process.line(), "done", "{options}, {kind}: two held the lock at once");
            assert!(process.child.wait().unwrap().success());
        }
        let counted = std::fs::read_to_string(mount.at.join("file.counter")).unwrap();
        assert_eq!(counted, (PROCESSES * rounds).to_string(), "{options}, {kind}");
        mount.unmount();
    }
}

#[test]
fn locks_exclude_processes_that_open_and_close_the_file() {
    exclude_each_other(8);
}

#[test]
#[ignore = "takes minutes"]
fn locks_exclude_processes_that_open_and_close_the_file_many_times() {
    exclude_each_other(400);
}

/// A program locks and unlocks a file of which it has mapped and changed a page, as SQLite does with its log. The WRITE of
/// the page, which the kernel sends because pages are dropped, is answered at once.
#[test]
fn locks_of_a_file_with_a_dirty_mapped_page_wait_for_no_time_limit() {
    if !fuse_is_available() || !has_python() {
        return;
    }
    const SCRIPT: &str = "
import fcntl, mmap, os, sys
f = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
os.ftruncate(f, 3 * mmap.PAGESIZE)
m = mmap.mmap(f, 3 * mmap.PAGESIZE)
for i in range(40):
    m[i % 7] = i
    fcntl.lockf(f, fcntl.LOCK_EX)
    os.pwrite(f, b'%d' % i, mmap.PAGESIZE + 9)
    m[2 * mmap.PAGESIZE + i] = i
    fcntl.lockf(f, fcntl.LOCK_UN)
    os.pread(f, 3 * mmap.PAGESIZE, 0)
    os.pwrite(f, b'.', mmap.PAGESIZE)
print('done', flush=True)
";
    run_on_mounts(SCRIPT, &[(false, "vers=4.2"), (true, "vers=4.1"), (false, "vers=4.2,writeback")]);
}

/// A program locks a file, changes a part of a page, and unlocks it, while others read the pages through mappings and with
/// read(2), so that the kernel reads pages again while it drops them.
#[test]
fn locks_of_a_file_that_others_read_wait_for_no_time_limit() {
    if !fuse_is_available() || !has_python() {
        return;
    }
    const READER: &str = "
import mmap, os, sys
f = os.open(sys.argv[1], os.O_RDWR)
m = mmap.mmap(f, 4 * mmap.PAGESIZE)
print('reads', flush=True)
while True:
    for page in range(4):
        m[page * mmap.PAGESIZE]
        os.pread(f, 10, (3 - page) * mmap.PAGESIZE)
";
    const WRITER: &str = "
import fcntl, mmap, os, sys
f = os.open(sys.argv[1], os.O_RDWR)
for i in range(200):
    fcntl.lockf(f, fcntl.LOCK_EX)
    at = i % 4 * mmap.PAGESIZE + 9
    os.pwrite(f, b'%d' % i, at)
    assert os.pread(f, len(b'%d' % i), at) == b'%d' % i
    fcntl.lockf(f, fcntl.LOCK_UN)
print('done', flush=True)
";
    for (local, options) in [(false, "vers=4.2"), (true, "vers=4.1")] {
        let export = Export::start(local);
        let mount = export.mount("tcp", options);
        open(&mount).set_len(1 << 16).unwrap();
        let mut readers = [(); 3].map(|()| Python::start(READER, &mount));
        readers.iter_mut().for_each(|reader| assert_eq!(reader.line(), "reads"));
        let mut writer = Python::start(WRITER, &mount);
        assert_eq!(writer.line(), "done");
        assert!(writer.child.wait().unwrap().success());
        for reader in &mut readers {
            reader.child.kill().unwrap();
            reader.child.wait().unwrap();
        }
        mount.unmount();
    }
}

/// A program reads a file under a lock, and truncates it or lets the kernel drop its pages before it writes a part of one.
#[test]
fn writes_to_dropped_pages_under_a_lock_wait_for_no_time_limit() {
    if !fuse_is_available() || !has_python() {
        return;
    }
    const SCRIPT: &str = "
import fcntl, mmap, os, sys
f = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
os.pwrite(f, b'.' * 2 * mmap.PAGESIZE, 0)
for i in range(10):
    fcntl.lockf(f, fcntl.LOCK_EX)
    os.pread(f, 100, 0)
    if i % 2: os.ftruncate(f, 0)
    else: os.posix_fadvise(f, 0, 0, os.POSIX_FADV_DONTNEED)
    os.pwrite(f, b'%d' % i, 9)
    assert os.pread(f, 1, 9) == b'%d' % i
    fcntl.lockf(f, fcntl.LOCK_UN)
print('done', flush=True)
";
    run_on_mounts(SCRIPT, &[(false, "vers=4.2"), (true, "vers=4.1")]);
}

/// Processes change a database: SQLite maps a file that it locks, or a journal, which it truncates.
#[test]
fn sqlite_waits_for_no_time_limit() {
    if !fuse_is_available() || !has_python() {
        return;
    }
    const PROCESSES: usize = 3;
    const ROWS: usize = 10;
    const SCRIPT: &str = "
import sqlite3, sys
journal, rows = sys.argv[2], int(sys.argv[3])
db = sqlite3.connect(sys.argv[1] + '.db', timeout=60, isolation_level=None)
assert db.execute('PRAGMA journal_mode=' + journal).fetchone() == (journal,)
if rows == 0:
    db.execute('CREATE TABLE t (n INTEGER)')
    sys.exit()
for n in range(rows):
    db.execute('BEGIN IMMEDIATE')
    db.execute('INSERT INTO t SELECT count(*) FROM t')
    db.execute('COMMIT')
assert db.execute('PRAGMA integrity_check').fetchone() == ('ok',)
print('done', flush=True)
sys.stdin.readline()
print(db.execute('SELECT count(*), count(DISTINCT n), max(n) FROM t').fetchone(), flush=True)
";
    let cases = [("wal", "vers=4.2"), ("truncate", "vers=4.1"), ("persist", "vers=4.2")];
    for_each(cases, |(journal, options)| {
        let export = Export::start(false);
        let mount = export.mount("tcp", options);
        let start = |rows: usize| Python::start_with(SCRIPT, &mount, &[journal.to_owned(), rows.to_string()]);
        assert!(start(0).child.wait().unwrap().success());
        let mut programs = [ROWS; PROCESSES].map(start);
        programs.iter_mut().for_each(|program| assert_eq!(program.line(), "done", "{journal}"));
        let all = PROCESSES * ROWS;
        for program in &mut programs {
            writeln!(program.child.stdin.as_mut().unwrap()).unwrap();
            assert_eq!(program.line(), format!("({all}, {all}, {})", all - 1), "{journal}");
            assert!(program.child.wait().unwrap().success());
        }
        mount.unmount();
    });
}

/// Processes of one mount lock different ranges of a file, and change them in the same pages, so that one drops pages which
/// another writes.
#[test]
fn locks_of_ranges_in_the_same_pages_lose_no_data() {
    if !fuse_is_available() || !has_python() {
        return;
    }
    const SCRIPT: &str = "
import fcntl, mmap, os, sys
n, rounds = int(sys.argv[2]), int(sys.argv[3])
f = os.open(sys.argv[1], os.O_RDWR)
for i in range(rounds):
    at = i % 4 * mmap.PAGESIZE + 100 * n
    fcntl.lockf(f, fcntl.LOCK_EX, 100, at)
    if i >= 4: assert os.pread(f, 6, at) == b'%06d' % (i - 4), (n, i)
    os.pwrite(f, b'%06d' % i, at)
    assert os.pread(f, 6, at) == b'%06d' % i, (n, i)
    fcntl.lockf(f, fcntl.LOCK_UN, 100, at)
print('done', flush=True)
";
    for (local, options) in [(false, "vers=4.2"), (true, "vers=4.1")] {
        let export = Export::start(local);
        let mut mount = export.mount("tcp", options);
        mount.permit_page_drop_timeouts();
        open(&mount).set_len(1 << 16).unwrap();
        let start = |n: usize| Python::start_with(SCRIPT, &mount, &[n.to_string(), "200".to_owned()]);
        let mut programs = [0, 1, 2, 3].map(start);
        for program in &mut programs {
            assert_eq!(program.line(), "done", "{options}");
            assert!(program.child.wait().unwrap().success());
        }
        mount.unmount();
    }
}
