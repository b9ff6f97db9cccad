//! The page cache is kept across local writes and dropped after remote ones.

#![allow(clippy::unwrap_used, clippy::panic)] // Helpers of tests, which are to fail.

mod common;

use std::{
    fs::{self, File, OpenOptions},
    io::{BufRead, BufReader, Write},
    os::unix::fs::{FileExt, MetadataExt},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use common::{Export, HANG, Mounted, for_each, fuse_is_available, proxy::Action, random_bytes};
use millrace_client::ops::{Procedure, Status};
use rustix::fs::{Advice, fadvise};

/// Whole pages: the kernel reads the rest of a page that is written partially and was not read.
const SIZE: usize = 73 * 4096;
/// Whether the export is local, and the options of the mount under test.
const WAYS: [(bool, &str); 5] = [
    (false, "vers=3,writeback"),
    (false, "vers=4.2"),
    (false, "vers=4.2,writeback"),
    (true, "vers=3"),
    (true, "vers=4.2,writeback"),
];

/// A mount whose READs are counted, and another mount of the same export.
struct Pair {
    a: Mounted,
    b: Mounted,
    reads: Arc<AtomicUsize>,
    export: Export,
}

impl Pair {
    fn start(local: bool, options: &str) -> Self {
        let export = Export::start(local);
        let reads = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&reads);
        let a = export.mount_through_proxy(options, move |seen| {
            let is_read = seen.procedure == Procedure::Read && !seen.is_reply;
            counted.fetch_add(usize::from(is_read), Ordering::Relaxed);
            Action::Pass
        });
        let b = export.mount("rdma", "noac");
        Self { a, b, reads, export }
    }

    fn at_a(&self) -> PathBuf {
        self.a.at.join("file")
    }

    /// Opens and reads the whole file. Returns the number of READs that the server got.
    fn read(&self) -> (Vec<u8>, usize) {
        let before = self.reads.load(Ordering::Relaxed);
        let data = fs::read(self.at_a()).unwrap();
        (data, self.reads.load(Ordering::Relaxed) - before)
    }

    /// Changes a part of the file on the other mount, and closes it.
    fn other_writes(&self, offset: u64, data: &[u8]) {
        let f = OpenOptions::new().write(true).open(self.b.at.join("file")).unwrap();
        f.write_all_at(data, offset).unwrap();
        f.sync_all().unwrap();
    }

    /// Truncates or extends the file on the other mount.
    fn other_sets_len(&self, size: usize) {
        let f = OpenOptions::new().write(true).open(self.b.at.join("file")).unwrap();
        f.set_len(size as u64).unwrap();
    }

    fn unmount(self) {
        self.a.unmount();
        self.b.unmount();
        drop(self.export);
    }
}

/// Runs for each kind of export and each write mode.
fn pairs(each: impl Fn(Pair, bool) + Sync) {
    if !fuse_is_available() {
        return;
    }
    for_each(WAYS, |(local, options)| {
        eprintln!("local: {local}, options: {options:?}");
        each(Pair::start(local, options), local);
    });
}

fn open(path: &Path) -> File {
    OpenOptions::new().read(true).write(true).open(path).unwrap()
}

fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let started = Instant::now();
    while !is_so() {
        assert!(started.elapsed() < HANG, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn local_writes_keep_pages_if_the_server_returns_wcc_data() {
    pairs(|pair, local| {
        let path = pair.at_a();
        let mut data = random_bytes(SIZE, 1);
        // Without pre-operation attributes in WRITE replies nothing is proven: check only the data then.
        let check = |data: &[u8], most: usize, what: &str| {
            let (read, reads) = pair.read();
            assert!(read == data, "{what}: wrong data");
            assert!(local || reads <= most, "{what}: {reads} READs");
        };
        fs::write(&path, &data).unwrap();
        check(&data, 0, "made");

        let f = open(&path);
        for (offset, len) in [(0, 100), (5000, 9000), (200_000, 50_000), (4096, 4096)] {
            let new = random_bytes(len, offset);
            data[offset as usize..][..len].copy_from_slice(&new);
            f.write_all_at(&new, offset).unwrap();
            assert_eq!(f.metadata().unwrap().len(), SIZE as u64); // Forces a write-back.
        }
        drop(f);
        check(&data, 0, "written into");

        let mut f = OpenOptions::new().append(true).open(&path).unwrap();
        for i in 0..3 {
            let new = random_bytes(4096 * (i + 1), 9);
            data.extend_from_slice(&new);
            f.write_all(&new).unwrap();
        }
        drop(f);
        check(&data, 0, "appended to");
        data.push(7);
        OpenOptions::new().append(true).open(&path).unwrap().write_all(&[7]).unwrap();
        check(&data, 1, "appended to by a byte");

        fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o640)).unwrap();
        open(&path).set_modified(std::time::UNIX_EPOCH + Duration::from_secs(1000)).unwrap();
        check(&data, 0, "its attributes changed");

        // Truncation makes the kernel drop its pages.
        data.truncate(100_000);
        open(&path).set_len(data.len() as u64).unwrap();
        check(&data, usize::MAX, "cut");
        data.resize(150_000, 0);
        open(&path).set_len(data.len() as u64).unwrap();
        check(&data, usize::MAX, "made longer");
        check(&data, 0, "only read");
        pair.unmount();
    });
}

#[test]
fn open_shows_remote_writes() {
    pairs(|pair, _| {
        let path = pair.at_a();
        let mut data = random_bytes(SIZE, 2);
        fs::write(&path, &data).unwrap();
        for round in 0..4 {
            let new = random_bytes(4096, 100 + round);
            let offset = 8192 * (round as usize + 1);
            data[offset..][..4096].copy_from_slice(&new);
            pair.other_writes(offset as u64, &new);
            assert!(pair.read().0 == data, "round {round}: stale pages");
            // The same with a local write after the remote change.
            let new = random_bytes(100, 200 + round);
            pair.other_writes(250_000, &[round as u8; 300]);
            data[250_000..250_300].fill(round as u8);
            open(&path).write_all_at(&new, 0).unwrap();
            data[..100].copy_from_slice(&new);
            assert!(pair.read().0 == data, "round {round}: stale pages after a write");
        }
        pair.unmount();
    });
}

#[test]
fn open_shows_remote_writes_between_local_ones() {
    pairs(|pair, _| {
        let path = pair.at_a();
        let mut data = random_bytes(SIZE, 3);
        fs::write(&path, &data).unwrap();
        let f = open(&path);
        assert!(pair.read().0 == data);
        let ours = random_bytes(4096, 30);
        f.write_all_at(&ours, 0).unwrap();
        f.sync_all().unwrap();
        pair.other_writes(100_000, &ours);
        f.write_all_at(&ours, 200_000).unwrap();
        drop(f);
        for offset in [0, 100_000, 200_000] {
            data[offset..][..4096].copy_from_slice(&ours);
        }
        assert!(pair.read().0 == data, "a remote change between local ones is not visible");
        pair.unmount();
    });
}

#[test]
fn open_shows_remote_writes_during_local_ones() {
    if !fuse_is_available() {
        return;
    }
    for (local, options) in [(false, ""), (true, ""), (false, "writeback"), (true, "writeback")] {
        let export = Export::start(local);
        let ((say, came), (go, may)) = (std::sync::mpsc::channel(), std::sync::mpsc::channel());
        let ends = std::sync::Mutex::new((say, may));
        let writes = AtomicUsize::new(0);
        // The second WRITE after the file was created is held.
        let mounted = export.mount_through_proxy(options, move |seen| {
            let is_call = seen.procedure == Procedure::Write && !seen.is_reply;
            if is_call && writes.fetch_add(1, Ordering::Relaxed) == 2 {
                let ends = ends.lock().unwrap();
                let _ = (ends.0.send(()), ends.1.recv());
            }
            Action::Pass
        });
        // Mount now: mounting may start a process, which closes its copies of open files and waits for their
        // writes.
        let b = export.mount("tcp", "");
        let path = mounted.at.join("file");
        let mut data = random_bytes(SIZE, 4);
        fs::write(&path, &data).unwrap();
        assert!(fs::read(&path).unwrap() == data);
        let (f, ours) = (open(&path), random_bytes(4096, 40));
        f.write_all_at(&ours, 0).unwrap();
        f.write_all_at(&ours, 200_000).unwrap();
        let closing = std::thread::spawn(move || f.sync_all().unwrap());
        came.recv_timeout(HANG).unwrap();
        open(&b.at.join("file")).write_all_at(&ours, 100_000).unwrap();
        go.send(()).unwrap();
        closing.join().unwrap();
        for offset in [0, 100_000, 200_000] {
            data[offset..][..4096].copy_from_slice(&ours);
        }
        assert!(fs::read(&path).unwrap() == data, "local: {local}, {options:?}: a change is not visible");
        b.unmount();
        mounted.unmount();
    }
}

#[test]
fn concurrent_opens_show_a_remote_change() {
    if !fuse_is_available() {
        return;
    }
    let pair = Pair::start(false, "");
    // The file is large, and changed at its end, so that the kernel takes a while to drop its pages at the
    // first open.
    let (size, last) = (32 << 20, (32 << 20) - 4096);
    fs::write(pair.at_a(), vec![0; size as usize]).unwrap();
    for round in 1..40 {
        fs::read(pair.at_a()).unwrap();
        pair.other_writes(last, &[round; 4096]);
        let reader = || {
            let mut data = [0; 4096];
            File::open(pair.at_a()).unwrap().read_exact_at(&mut data, last).unwrap();
            assert!(data == [round; 4096], "round {round}: stale pages");
        };
        std::thread::scope(|s| (0..8).for_each(|_| drop(s.spawn(reader))));
    }
    pair.unmount();
}

#[test]
fn open_file_shows_remote_writes_after_attribute_timeout() {
    if !fuse_is_available() {
        return;
    }
    for options in ["actimeo=1", "actimeo=1,writeback"] {
        let pair = Pair::start(true, options);
        let data = random_bytes(SIZE, 5);
        fs::write(pair.at_a(), &data).unwrap();
        let f = File::open(pair.at_a()).unwrap();
        let part = || {
            let mut part = vec![0; 4096];
            f.read_exact_at(&mut part, 100_000).unwrap();
            part
        };
        assert!(part() == data[100_000..][..4096]);
        let new = random_bytes(4096, 50);
        pair.other_writes(100_000, &new);
        // Only the mount requests attributes.
        until("the open file stays as it was", || part() == new);
        pair.unmount();
    }
}

#[test]
fn mapped_file_shows_remote_writes() {
    if !fuse_is_available() {
        return;
    }
    let pair = Pair::start(true, "actimeo=1");
    fs::write(pair.at_a(), vec![b'a'; SIZE]).unwrap();
    let script = "import mmap, sys, time\n\
        f = open(sys.argv[1])\n\
        m = mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ)\n\
        while True:\n    print(chr(m[100000]), flush=True)\n    time.sleep(0.01)\n";
    let mut child =
        Command::new("python3").args(["-c", script]).arg(pair.at_a()).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    assert_eq!(lines.next().unwrap(), "a");
    pair.other_writes(100_000, b"b");
    let started = Instant::now();
    let seen = lines.find(|l| l == "b" || started.elapsed() > HANG);
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(seen.as_deref(), Some("b"));
    pair.unmount();
}

#[test]
fn reads_after_new_attributes_return_new_data() {
    if !fuse_is_available() {
        return;
    }
    let pair = Pair::start(false, "actimeo=1");
    fs::write(pair.at_a(), vec![0; SIZE]).unwrap();
    let f = File::open(pair.at_a()).unwrap();
    for round in 1..4 {
        let mut data = vec![0; SIZE];
        f.read_exact_at(&mut data, 0).unwrap();
        let before = f.metadata().unwrap();
        pair.other_writes(0, &vec![round; SIZE]);
        until("it never changes", || {
            let now = f.metadata().unwrap();
            (now.mtime(), now.mtime_nsec()) != (before.mtime(), before.mtime_nsec())
        });
        f.read_exact_at(&mut data, 0).unwrap();
        assert!(data.iter().all(|b| *b == round), "round {round}: old data with new attributes");
    }
    for size in [SIZE + 100, SIZE + 10_000, 100] {
        pair.other_sets_len(size);
        until("the size never changes", || f.metadata().unwrap().len() == size as u64);
        assert_eq!(f.read_at(&mut vec![0; 2 * SIZE], 0).unwrap(), size);
    }
    pair.unmount();
}

#[test]
fn noac_open_file_shows_remote_changes_at_once() {
    if !fuse_is_available() {
        return;
    }
    let pair = Pair::start(false, "noac");
    fs::write(pair.at_a(), vec![0; SIZE]).unwrap();
    let f = open(&pair.at_a());
    for round in 0..5 {
        pair.other_writes(0, &vec![round; SIZE]);
        let mut data = vec![99; SIZE];
        f.read_exact_at(&mut data, 0).unwrap();
        assert!(data.iter().all(|b| *b == round), "round {round}");
    }
    // The read itself requests the attributes.
    for size in [SIZE + 100, SIZE + 10_000, 100, 5000].into_iter().cycle().take(40) {
        pair.other_sets_len(size);
        let mut data = vec![99; 2 * SIZE];
        assert_eq!(f.read_at(&mut data, 0).unwrap(), size);
        let extended = &data[size.min(if size > SIZE { SIZE } else { 100 })..size];
        assert!(extended.iter().all(|b| *b == 0), "{size}: old data after the old end");
        // While the mount lets the kernel drop the pages.
        f.write_all_at(&[0], size as u64 - 1).unwrap();
    }
    pair.unmount();
}

/// Writes the whole file `argv[1]` by Linux AIO with O_DIRECT, `argv[2]` times, each time with another byte.
/// Other threads read it through the page cache meanwhile, and the program reads it after each time: prints
/// how often the data was not what it had written.
const WRITES_ASIDE: &str = r#"
import ctypes, mmap, os, struct, subprocess, sys
path, rounds = sys.argv[1], int(sys.argv[2])
SETUP, SUBMIT, EVENTS = (206, 209, 208) if os.uname().machine == "x86_64" else (0, 2, 4)
call = ctypes.CDLL(None).syscall
SIZE, N = 16 << 10, 40
context = ctypes.c_ulong(0)
assert call(SETUP, N, ctypes.byref(context)) == 0
fd = os.open(path, os.O_RDWR | os.O_DIRECT | os.O_CREAT, 0o644)
memory = mmap.mmap(-1, SIZE * N)
address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
def write(byte):
    memory[:] = bytes([byte]) * (SIZE * N)
    # struct iocb: data, key, flags, IOCB_CMD_PWRITE, priority, descriptor, address, length, offset
    blocks = [ctypes.create_string_buffer(struct.pack(
        "<QIIHhIQQqQII", 0, 0, 0, 1, 0, fd, address + i * SIZE, SIZE, i * SIZE, 0, 0, 0), 64) for i in range(N)]
    assert call(SUBMIT, context, N, (ctypes.c_void_p * N)(*map(ctypes.addressof, blocks))) == N
    events = ctypes.create_string_buffer(32 * N)
    assert call(EVENTS, context, N, N, events, None) == N
    assert all(struct.unpack_from("<QQqq", events, 32 * i)[2] == SIZE for i in range(N))
def read():
    with open(path, "rb", buffering=0) as f:
        return b"".join(iter(lambda: f.read(1 << 20), b""))
write(0)
reader = """
import sys
while True:
    with open(sys.argv[1], "rb", buffering=0) as f:
        while f.read(1 << 16): pass
"""
others = [subprocess.Popen([sys.executable, "-c", reader, path]) for _ in range(2)]
wrong = 0
for n in range(rounds):
    write(n % 251)
    wrong += read() != bytes([n % 251]) * (SIZE * N)
for other in others:
    other.kill()
    other.wait()
print(wrong)
"#;

#[test]
fn async_direct_writes_leave_no_stale_pages() {
    if !fuse_is_available() {
        return;
    }
    for_each(WAYS.into_iter().filter(|(local, _)| !local), |(local, options)| {
        let export = Export::start(local);
        let mounted = export.mount("tcp", options);
        let path = mounted.at.join("file");
        // A mount that does not drop the pages again has 1 to 4 wrong reads.
        let out = Command::new("python3").args(["-c", WRITES_ASIDE]).arg(&path).arg("1000").output().unwrap();
        assert!(out.status.success(), "{out:?}");
        assert_eq!(String::from_utf8(out.stdout).unwrap(), "0\n", "{options:?}: wrong reads of 1000");
        mounted.unmount();
    });
}

/// The kernel drops pages by itself: when it truncates a file, needs memory, or opens a file that has changed. It then locks
/// a page until the reply to a WRITE of a part of it, which waits for no page (see [`Mounted`]).
#[test]
fn writes_to_pages_that_the_kernel_has_dropped_wait_for_no_time_limit() {
    if !fuse_is_available() {
        return;
    }
    pairs(|pair, _| {
        let create = || fs::write(pair.at_a(), vec![1; SIZE]).unwrap();
        let open_changed = || {
            pair.other_writes(0, &[2]);
            let file = open(&pair.at_a());
            file.read_exact_at(&mut [0; 1], 0).unwrap();
            file
        };
        create();
        let file = open_changed();
        file.set_len(0).unwrap();
        file.write_all_at(b"truncated", 9).unwrap();
        drop(file);
        create();
        let file = open_changed();
        fadvise(&file, 0, None, Advice::DontNeed).unwrap();
        file.write_all_at(b"reclaimed", 9).unwrap();
        drop(file);
        // Another thread opens the file, so that the kernel drops the pages, and reads others then.
        let writer = OpenOptions::new().write(true).open(pair.at_a()).unwrap();
        let read_page = |page: u64| {
            pair.other_writes(0, &[3]);
            let file = File::open(pair.at_a()).unwrap();
            fadvise(&file, 0, None, Advice::Random).unwrap();
            file.read_exact_at(&mut [0; 1], page * 4096).unwrap();
        };
        std::thread::scope(|scope| scope.spawn(|| [0, 8].map(read_page)).join().map(drop).unwrap());
        writer.write_all_at(b"opened", 9).unwrap();
        drop(writer);
        assert_eq!(pair.read().0[9..15], *b"opened");
        pair.unmount();
    });
}

#[test]
fn failed_writes_do_not_stay_in_the_page_cache() {
    if !fuse_is_available() {
        return;
    }
    for local in [false, true] {
        let export = Export::start(local);
        let full = Arc::new(std::sync::atomic::AtomicBool::new(false));
        let is_full = Arc::clone(&full);
        let mounted = export.mount_through_proxy("", move |seen| match seen.procedure {
            Procedure::Write if is_full.load(Ordering::Relaxed) => Action::Fail(Status::NoSpc),
            _ => Action::Pass,
        });
        let (path, data) = (mounted.at.join("file"), random_bytes(SIZE, 6));
        fs::write(&path, &data).unwrap();
        let f = open(&path);
        let read = || {
            let mut all = vec![0; SIZE];
            f.read_exact_at(&mut all, 0).unwrap();
            all
        };
        assert!(read() == data);
        full.store(true, Ordering::Relaxed);
        f.write_all_at(&random_bytes(8192, 60), 4096).unwrap();
        assert!(f.sync_all().is_err());
        until("what the server does not have is read", || read() == data);
        drop(f);
        assert!(fs::read(&path).unwrap() == data);
        mounted.unmount();
    }
}
