//! Opening files that other clients change, and the number of calls it takes.

#![allow(clippy::unwrap_used, clippy::panic)] // Helpers of tests, which are to fail.

mod common;

use std::{
    collections::BTreeMap,
    fs::{self, File, OpenOptions},
    io::Write,
    os::unix::fs::{MetadataExt, OpenOptionsExt},
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant, SystemTime},
};

use common::{Export, HANG, Mounted, fuse_is_available, proxy::Action};
use millrace_nfs::v4::Operation;
use parking_lot::Mutex;

/// Calls of a mount, by procedure.
#[derive(Default)]
struct Calls(Mutex<BTreeMap<String, u32>>);

impl Calls {
    /// Creates a mount whose calls are counted.
    fn mount(export: &Export, options: &str) -> (Mounted, Arc<Self>) {
        let calls = Arc::new(Self::default());
        let counted = Arc::clone(&calls);
        let mounted = export.mount_through_proxy(options, move |seen| {
            if !seen.is_reply {
                *counted.0.lock().entry(format!("{:?}", seen.procedure)).or_default() += 1;
            }
            Action::Pass
        });
        (mounted, calls)
    }

    /// The calls that `work` makes, as text.
    fn of(&self, work: impl FnOnce()) -> String {
        self.0.lock().clear();
        work();
        self.0.lock().iter().map(|(what, n)| format!("{what} {n}")).collect::<Vec<_>>().join(", ")
    }
}

fn open(path: &Path) {
    File::open(path).unwrap();
}

/// A local export stores the verifier in the times, which a second call then sets.
#[test]
fn a_file_is_created_exclusively_in_one_call_if_that_suffices() {
    if !fuse_is_available() {
        return;
    }
    for (local, expected) in [(false, (1, 0)), (true, (1, 1))] {
        let export = Export::start(local);
        let counts = || {
            let operations = export.server.stats().nfs4_operations;
            let of =
                |which| operations.iter().filter(|(o, _)| *o == which).map(|(_, s)| s.calls).sum::<u64>();
            (of(Operation::Open), of(Operation::Setattr))
        };
        for version in ["4.2", "4.1"] {
            let mounted = export.mount("tcp", &format!("vers={version}"));
            let before = counts();
            let options = OpenOptions::new().write(true).create_new(true).mode(0o640).clone();
            let created = options.open(mounted.at.join(version)).unwrap();
            let after = counts();
            assert_eq!((after.0 - before.0, after.1 - before.1), expected, "{version} {local}");
            let seen = created.metadata().unwrap();
            assert_eq!(seen.mode() & 0o7777, 0o640);
            // The times of the verifier are random ones from 1970 to 2038.
            for time in [seen.accessed(), seen.modified()].map(Result::unwrap) {
                let age = SystemTime::now().duration_since(time).unwrap();
                assert!(age < Duration::from_secs(600), "{version} {local}: {age:?}");
            }
            drop(created);
            mounted.unmount();
        }
    }
}

#[test]
fn open_takes_as_many_calls_as_linux() {
    if !fuse_is_available() {
        return;
    }
    for (options, rights) in [("", "Access 1, "), ("allow_other", "Getattr 1, ")] {
        for local in [false, true] {
            let export = Export::start(local);
            let (mounted, calls) = Calls::mount(&export, options);
            let other = export.mount("tcp", "");
            fs::write(other.at.join("file"), "content").unwrap();
            let path = mounted.at.join("file");
            open(&mounted.at); // Caches attributes and access rights.
            // Linux: LOOKUP, ACCESS. On a busy host the open may come long after the LOOKUP, and then looks
            // the name up again.
            let started = Instant::now();
            let names = (0..).map(|n| mounted.at.join(format!("name{n}")));
            for name in names {
                fs::write(other.at.join(name.file_name().unwrap()), "content").unwrap();
                if calls.of(|| open(&name)) == format!("{rights}Lookup 1") {
                    break;
                }
                assert!(started.elapsed() < HANG, "the first open never takes two calls");
            }
            open(&path);
            // Linux: GETATTR.
            assert_eq!(calls.of(|| open(&path)), "Lookup 1", "{options:?}");
            assert_eq!(calls.of(|| assert!(path.exists())), "", "{options:?}: the name is cached");
            // Linux: GETATTR, ACCESS, since the ctime has changed.
            fs::set_permissions(other.at.join("file"), std::os::unix::fs::PermissionsExt::from_mode(0o640))
                .unwrap();
            let changed = calls.of(|| open(&path));
            assert!(changed.contains("Lookup") && !changed.contains("Read"), "{changed}");
            assert_eq!(calls.of(|| open(&path)), "Lookup 1", "{options:?}");
            other.unmount();
            mounted.unmount();
        }
    }
}

#[test]
fn opens_succeed_while_another_client_appends() {
    if !fuse_is_available() {
        return;
    }
    let export = Export::start(false);
    for options in ["", "allow_other"] {
        let (a, b) = (export.mount("rdma", ""), export.mount("tcp", options));
        let name = format!("log{}", options.len());
        fs::write(a.at.join(&name), "").unwrap();
        let is_done = AtomicBool::new(false);
        std::thread::scope(|s| {
            s.spawn(|| {
                let mut log = OpenOptions::new().append(true).open(a.at.join(&name)).unwrap();
                while !is_done.load(Ordering::Relaxed) {
                    log.write_all(&[b'x'; 63]).unwrap();
                    log.sync_all().unwrap();
                }
            });
            let fails =
                |open: &OpenOptions| (0..3000).filter(|_| open.open(b.at.join(&name)).is_err()).count();
            let failed = [fails(OpenOptions::new().read(true)), fails(OpenOptions::new().append(true))];
            is_done.store(true, Ordering::Relaxed);
            assert_eq!(failed, [0, 0], "{options:?}: opens that failed, for reading and for appending");
        });
        a.unmount();
        b.unmount();
    }
}

#[test]
fn opens_succeed_while_another_client_replaces_the_file() {
    if !fuse_is_available() {
        return;
    }
    const THREADS: usize = 4;
    let export = Export::start(true);
    for options in ["", "allow_other"] {
        let (a, b) = (export.mount("tcp", ""), export.mount("tcp", options));
        fs::write(a.at.join("file"), "0").unwrap();
        let is_done = AtomicBool::new(false);
        std::thread::scope(|s| {
            let opens = || {
                let (mut last, mut opened) = (0, 0);
                while !is_done.load(Ordering::Relaxed) {
                    let content =
                        fs::read_to_string(b.at.join("file")).expect("the name exists at all times");
                    let number = content.parse::<u32>().unwrap();
                    assert!(number >= last, "{number} after {last}");
                    (last, opened) = (number, opened + 1);
                }
                opened
            };
            let threads: Vec<_> = (0..THREADS).map(|_| s.spawn(opens)).collect();
            for n in 1..=500 {
                fs::write(a.at.join("new"), n.to_string()).unwrap();
                // The old file stays, so the server returns no ESTALE.
                fs::hard_link(a.at.join("file"), a.at.join(format!("old{}{n}", options.len()))).unwrap();
                fs::rename(a.at.join("new"), a.at.join("file")).unwrap();
            }
            is_done.store(true, Ordering::Relaxed);
            threads.into_iter().for_each(|thread| assert!(thread.join().unwrap() > 0));
        });
        a.unmount();
        b.unmount();
    }
}

#[test]
fn alternating_appends_lose_no_data() {
    if !fuse_is_available() {
        return;
    }
    let export = Export::start(true);
    let (a, b) = (export.mount("rdma", ""), export.mount("tcp", ""));
    let mut expected = String::new();
    for round in 0..200 {
        for (mount, by) in [(&a, "a"), (&b, "b")] {
            let line = format!("{by}{round} {}\n", "x".repeat(round % 7));
            expected.push_str(&line);
            let mut log = OpenOptions::new().append(true).create(true).open(mount.at.join("log")).unwrap();
            log.write_all(line.as_bytes()).unwrap();
        }
    }
    assert!(fs::read_to_string(a.at.join("log")).unwrap() == expected);
    a.unmount();
    b.unmount();
}

#[test]
fn open_by_descriptor_ignores_renames() {
    if !fuse_is_available() {
        return;
    }
    let export = Export::start(true);
    let (a, b) = (export.mount("tcp", ""), export.mount("tcp", ""));
    fs::write(a.at.join("file"), "content").unwrap();
    let open = File::open(b.at.join("file")).unwrap();
    fs::rename(a.at.join("file"), a.at.join("other")).unwrap();
    let by_descriptor = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&open));
    for _ in 0..2 {
        assert_eq!(fs::read_to_string(&by_descriptor).unwrap(), "content");
    }
    assert!(File::open(b.at.join("file")).is_err());
    assert_eq!(fs::read_to_string(&by_descriptor).unwrap(), "content");
    drop(open);
    a.unmount();
    b.unmount();
}

#[test]
fn open_after_remote_rename_takes_one_lookup() {
    if !fuse_is_available() {
        return;
    }
    let export = Export::start(true);
    let (b, calls) = Calls::mount(&export, "");
    let a = export.mount("tcp", "");
    fs::write(a.at.join("file"), "content").unwrap();
    open(&b.at.join("file"));
    fs::rename(a.at.join("file"), a.at.join("other")).unwrap();
    open(&b.at.join("other"));
    // The old name is expired in the kernel by another thread.
    let started = Instant::now();
    while calls.of(|| open(&b.at.join("other"))) != "Lookup 1" {
        assert!(started.elapsed() < HANG, "the old name is not expired");
    }
    assert!(File::open(b.at.join("file")).is_err());
    a.unmount();
    b.unmount();
}

#[test]
fn open_file_shows_remote_appends() {
    if !fuse_is_available() {
        return;
    }
    let export = Export::start(false);
    let (a, b) = (export.mount("tcp", ""), export.mount("tcp", "actimeo=1"));
    fs::write(a.at.join("log"), "one\n").unwrap();
    assert_eq!(fs::read_to_string(b.at.join("log")).unwrap(), "one\n");
    OpenOptions::new().append(true).open(a.at.join("log")).unwrap().write_all(b"two\n").unwrap();
    // The file is open for reading, so its new size is visible at once.
    let mut log = File::open(b.at.join("log")).unwrap();
    assert_eq!(std::io::read_to_string(&mut log).unwrap(), "one\ntwo\n");
    OpenOptions::new().append(true).open(a.at.join("log")).unwrap().write_all(b"three\n").unwrap();
    let started = Instant::now();
    while std::io::read_to_string(&mut log).unwrap() != "three\n" {
        assert!(started.elapsed() < HANG, "the new size is not visible");
        std::thread::sleep(Duration::from_millis(10));
    }
    a.unmount();
    b.unmount();
}

#[test]
fn open_shows_remote_writes_over_uncommitted_data() {
    if !fuse_is_available() {
        return;
    }
    for local in [false, true] {
        let export = Export::start(local);
        let (ours, other) = (export.mount("tcp", ""), export.mount("tcp", ""));
        let (path, old) = (ours.at.join("file"), vec![b'o'; 3 * 4096]);
        let mut kept_open = File::create(&path).unwrap();
        kept_open.write_all(&old).unwrap();
        assert_eq!(kept_open.metadata().unwrap().len(), old.len() as u64); // Forces a write-back without commit.
        let there = other.at.join("file");
        let started = Instant::now();
        while fs::metadata(&there).unwrap().len() != old.len() as u64 {
            assert!(started.elapsed() < HANG, "no WRITE is sent");
        }
        // Wait until the two changes have different times.
        std::thread::sleep(Duration::from_millis(20));
        let f = OpenOptions::new().write(true).open(&there).unwrap();
        std::os::unix::fs::FileExt::write_all_at(&f, b"new", 4096).unwrap();
        drop(f);
        let read = fs::read(&path).unwrap();
        assert_eq!(&read[4096..4100], b"newo", "local: {local}");
        assert_eq!(read.len(), old.len());
        drop(kept_open);
        assert_eq!(&fs::read(&path).unwrap()[4096..4100], b"newo", "local: {local}");
        ours.unmount();
        other.unmount();
    }
}
