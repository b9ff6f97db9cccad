//! Two mounts of one export, and servers that become unreachable.

#![allow(clippy::unwrap_used, clippy::panic)] // Helpers of tests, which are to fail.

mod common;

use std::{
    fs::{self, OpenOptions},
    io::{Read, Write},
    net::SocketAddr,
    os::unix::{fs::MetadataExt, process::ExitStatusExt},
    path::Path,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use common::{Export, HANG, Mounted, fuse_is_available, proxy::Action, random_bytes};
use millrace_client::ops::{Procedure, Status};
use millrace_server::{Config, Server};
use rustix::process::Signal;

#[test]
fn open_returns_data_of_the_last_close() {
    if !fuse_is_available() {
        return;
    }
    for local in [false, true] {
        let export = Export::start(local);
        let (a, b) = (export.mount("rdma", ""), export.mount("tcp", ""));
        let (at_a, at_b) = (a.at.join("file"), b.at.join("file"));
        for round in 0..10_usize {
            // The file grows, shrinks, and keeps its size.
            let data = random_bytes([5000, 70_000, 300, 300, 0][round % 5], round as u64);
            fs::write(&at_a, &data).unwrap();
            assert_eq!(fs::read(&at_b).unwrap(), data, "round {round}");
            let data = random_bytes([100, 200_000, 4096][round % 3], round as u64 + 50);
            fs::write(&at_b, &data).unwrap();
            assert_eq!(fs::read(&at_a).unwrap(), data, "round {round}");
        }
        // Each appends after the other's data, although it has cached attributes.
        fs::write(&at_a, "").unwrap();
        for round in 0..10 {
            for at in [&at_a, &at_b] {
                let mut f = OpenOptions::new().append(true).open(at).unwrap();
                writeln!(f, "{round}").unwrap();
            }
        }
        let text = fs::read_to_string(&at_a).unwrap();
        assert_eq!(text, (0..10).map(|r| format!("{r}\n{r}\n")).collect::<String>());
        // Appends after the other has truncated the file.
        fs::write(&at_b, "short\n").unwrap();
        OpenOptions::new().append(true).open(&at_a).unwrap().write_all(b"end\n").unwrap();
        assert_eq!(fs::read_to_string(&at_b).unwrap(), "short\nend\n");
        a.unmount();
        b.unmount();
    }
}

#[test]
fn replaced_file_is_found_by_its_path() {
    if !fuse_is_available() {
        return;
    }
    let export = Export::start(true);
    let (a, b) = (export.mount("rdma", ""), export.mount("rdma", ""));
    fs::create_dir(a.at.join("dir")).unwrap();
    fs::write(a.at.join("dir/file"), "old").unwrap();
    assert_eq!(fs::read_to_string(b.at.join("dir/file")).unwrap(), "old");
    // The kernel still has the names cached, but they refer to removed files.
    fs::write(a.at.join("next"), "newer").unwrap();
    fs::rename(a.at.join("next"), a.at.join("dir/file")).unwrap();
    assert_eq!(fs::read_to_string(b.at.join("dir/file")).unwrap(), "newer");
    fs::remove_dir_all(a.at.join("dir")).unwrap();
    fs::create_dir(a.at.join("dir")).unwrap();
    fs::write(a.at.join("dir/file"), "newest").unwrap();
    assert_eq!(fs::read_to_string(b.at.join("dir/file")).unwrap(), "newest");
    // A file that is open at `b` remains readable until its removal at `a` is detected. Then the name leads
    // to a new file.
    let open = fs::File::open(b.at.join("dir/file")).unwrap();
    fs::remove_file(a.at.join("dir/file")).unwrap();
    let started = Instant::now();
    let gone = loop {
        // The attributes expire after acregmin.
        match open.metadata() {
            Err(e) => break e,
            Ok(_) => assert!(started.elapsed() < HANG, "the attributes do not expire"),
        }
        std::thread::sleep(Duration::from_millis(50));
    };
    assert_eq!(gone.raw_os_error(), Some(rustix::io::Errno::STALE.raw_os_error()));
    fs::write(b.at.join("dir/file"), "from b").unwrap();
    assert_eq!(fs::read_to_string(a.at.join("dir/file")).unwrap(), "from b");
    a.unmount();
    b.unmount();
}

#[test]
fn noac_shows_remote_changes_at_once() {
    if !fuse_is_available() {
        return;
    }
    let export = Export::start(false);
    let (a, b) = (export.mount("tcp", ""), export.mount("tcp", "noac"));
    for i in 1..10_u64 {
        fs::write(a.at.join("file"), vec![0; i as usize]).unwrap();
        assert_eq!(fs::metadata(b.at.join("file")).unwrap().len(), i);
        let name = b.at.join(format!("name{i}"));
        assert!(!name.exists());
        fs::write(a.at.join(format!("name{i}")), "").unwrap();
        assert!(name.exists());
    }
}

#[test]
fn full_file_system_is_reported_at_close_or_earlier() {
    if !fuse_is_available() {
        return;
    }
    let server = Server::start(Export::config("memory:8MiB")).unwrap();
    let url = format!("nfs://{}/data?proto=tcp", server.tcp_addr().unwrap()).parse().unwrap();
    let mounted = Mounted::new(&url, "");
    let mut f = fs::File::create(mounted.at.join("big")).unwrap();
    let wrong = (0..64).find_map(|_| f.write_all(&[1; 1 << 20]).err());
    let wrong = wrong.or_else(|| f.sync_all().err()).expect("64 MiB exceed the quota of 8 MiB");
    assert_eq!(wrong.kind(), std::io::ErrorKind::StorageFull);
    drop(f);
    // Fill the remaining space, less than a write of 1 MiB.
    let mut rest = fs::File::create(mounted.at.join("rest")).unwrap();
    while rest.write_all(&[1; 4096]).and_then(|()| rest.sync_all()).is_ok() {}
    drop(rest);
    // A small write that is sent only at close.
    let f = fs::File::create(mounted.at.join("small"));
    let failed = f.and_then(|mut f| {
        f.write_all(&[1; 300_000])?;
        f.sync_all()
    });
    assert_eq!(failed.unwrap_err().kind(), std::io::ErrorKind::StorageFull);
    // Close itself reports the error, as cp needs it.
    fs::remove_file(mounted.at.join("small")).unwrap();
    let beside = tempfile::tempdir().unwrap();
    fs::write(beside.path().join("from"), random_bytes(60_000, 1)).unwrap();
    let mut cp = Command::new("cp");
    let out = cp.arg(beside.path().join("from")).arg(mounted.at.join("copied")).output().unwrap();
    let output = String::from_utf8_lossy(&out.stderr);
    assert!(!out.status.success() && output.contains("No space left on device"), "{output}");
    fs::remove_file(mounted.at.join("big")).unwrap();
    fs::write(mounted.at.join("copied"), "there is space again").unwrap();
    mounted.unmount();
}

/// A child process closes its copy of a descriptor when it executes a program, and the kernel discards the error of that
/// close.
#[test]
fn close_in_a_child_does_not_hide_a_write_error() {
    if !fuse_is_available() {
        return;
    }
    let server = Server::start(Export::config("memory:1MiB")).unwrap();
    let url = format!("nfs://{}/data?proto=tcp", server.tcp_addr().unwrap()).parse().unwrap();
    let mounted = Mounted::new(&url, "");
    let mut f = fs::File::create(mounted.at.join("big")).unwrap();
    f.write_all(&[1; 2 << 20]).unwrap();
    assert!(Command::new("true").status().unwrap().success());
    let failed = f.sync_all().expect_err("2 MiB exceed the quota of 1 MiB");
    assert_eq!(failed.kind(), std::io::ErrorKind::StorageFull);
    f.sync_all().expect("fsync reports an error once");
    drop(f);
    mounted.unmount();
}

/// Address of a server that restarts. Not 127.0.0.1: there, another connection may get the free port as its local one.
const RESTARTS_AT: &str = "127.0.0.2:0";

/// Starts a server on a directory, at fixed addresses so that it can be restarted.
fn start(dir: &Path, tcp: SocketAddr) -> millrace_server::Running {
    let mut config: Config = Export::config(&format!("local:{}", dir.display()));
    config.listen_tcp = vec![tcp];
    config.listen_rdma.clear();
    let started = Instant::now();
    loop {
        match Server::start(config.clone()) {
            Ok(running) => return running,
            Err(e) if started.elapsed() > HANG => panic!("{e}"),
            Err(_) => std::thread::sleep(Duration::from_millis(20)),
        }
    }
}

/// Waits until `child` ends.
fn wait_for_exit(child: &mut std::process::Child) -> std::process::ExitStatus {
    let started = Instant::now();
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status;
        }
        assert!(started.elapsed() < HANG, "the process does not exit");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn hard_mount_waits_and_callers_can_be_killed() {
    if !fuse_is_available() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path(), RESTARTS_AT.parse().unwrap());
    let tcp = server.tcp_addr().unwrap();
    let mounted = Mounted::new(&format!("nfs://{tcp}/data?proto=tcp").parse().unwrap(), "timeo=20");
    let data = random_bytes(200_000, 3);
    fs::write(mounted.at.join("file"), &data).unwrap();
    // A shell for which the first signal is not fatal; the kernel reports only that one.
    let mut signalled = Command::new("sh")
        .args(["-c", "trap : USR1; echo ready; read -r line; : < \"$0\""])
        .arg(mounted.at.join("not looked up 3"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    signalled.stdout.as_mut().unwrap().read_exact(&mut [0; 6]).unwrap();
    let mut written = fs::File::create(mounted.at.join("written")).unwrap();
    written.write_all(&data).unwrap();
    drop(server);
    signalled.stdin.as_mut().unwrap().write_all(b"\n").unwrap();

    let cat = |name: &str| {
        let mut c = Command::new("stat");
        c.arg(mounted.at.join(name)).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
    };
    let (mut killed, mut patient) = (cat("not looked up 1"), cat("not looked up 2"));
    let closing = std::thread::spawn(move || written.sync_all());
    std::thread::sleep(Duration::from_millis(300));
    assert!(killed.try_wait().unwrap().is_none() && patient.try_wait().unwrap().is_none());
    let signal = |child: &std::process::Child, signal| {
        rustix::process::kill_process(rustix::process::Pid::from_child(child), signal).unwrap();
    };
    signal(&signalled, Signal::USR1);
    signal(&killed, Signal::TERM);
    assert_eq!(wait_for_exit(&mut killed).signal(), Some(Signal::TERM.as_raw()));
    assert!(signalled.try_wait().unwrap().is_none());
    signal(&signalled, Signal::KILL);
    assert_eq!(wait_for_exit(&mut signalled).signal(), Some(Signal::KILL.as_raw()));

    let _server = start(dir.path(), tcp);
    assert!(wait_for_exit(&mut patient).code().is_some());
    closing.join().unwrap().unwrap();
    assert_eq!(fs::read(mounted.at.join("written")).unwrap(), data);
    mounted.unmount();
    assert!(fs::read(dir.path().join("written")).unwrap() == data);
}

#[test]
fn soft_mount_fails_when_the_server_is_unreachable() {
    if !fuse_is_available() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path(), RESTARTS_AT.parse().unwrap());
    let url = format!("nfs://{}/data?proto=tcp", server.tcp_addr().unwrap()).parse().unwrap();
    let mounted = Mounted::new(&url, "soft,timeo=5,retrans=1");
    let mut f = fs::File::create(mounted.at.join("file")).unwrap();
    drop(server);
    let io = rustix::io::Errno::IO.raw_os_error();
    // A concurrent test that starts a process closes a copy of the file; that close may get the error instead
    // of fsync.
    let failed = (0..5).any(|_| {
        f.write_all(b"never arrives").unwrap();
        f.sync_all().is_err_and(|e| e.raw_os_error() == Some(io))
    });
    assert!(failed);
    assert_eq!(fs::metadata(mounted.at.join("other")).unwrap_err().raw_os_error(), Some(io));
}

#[test]
fn calls_carry_the_credentials_of_the_caller() {
    if !fuse_is_available() || !rustix::process::geteuid().is_root() {
        eprintln!("SKIPPED: only root can switch users");
        return;
    }
    let export = Export::start(false);
    let mounted = export.mount("tcp", "allow_other");
    fs::set_permissions(&mounted.at, std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
    for dir in mounted.at.ancestors().skip(1).take(1) {
        fs::set_permissions(dir, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    }
    fs::write(mounted.at.join("of root"), "secret").unwrap();
    fs::set_permissions(mounted.at.join("of root"), std::os::unix::fs::PermissionsExt::from_mode(0o600))
        .unwrap();
    let sh = |script: &str| {
        let mut c = Command::new("sh");
        std::os::unix::process::CommandExt::uid(&mut c, 4711);
        std::os::unix::process::CommandExt::gid(&mut c, 4712);
        c.args(["-c", script]).current_dir(&mounted.at).stderr(Stdio::null()).status().unwrap().success()
    };
    assert!(sh("echo mine > mine && mkdir -m 700 dir && echo x > dir/x && cat mine dir/x > both"));
    let meta = fs::metadata(mounted.at.join("mine")).unwrap();
    assert_eq!((meta.uid(), meta.gid()), (4711, 4712));
    assert!(!sh("cat 'of root'") && !sh("echo > 'of root'") && !sh("chown 1 mine"));
    mounted.unmount();
}

/// Names in the backing directory once `still` is false for them: RELEASE is processed after close(2)
/// returns.
fn names_when(dir: &Path, still: impl Fn(&[String]) -> bool) -> Vec<String> {
    let started = Instant::now();
    loop {
        let mut names: Vec<_> =
            fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        if !still(&names) {
            return names;
        }
        assert!(started.elapsed() < HANG, "{names:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A hook that holds the replies of one procedure for a mount of a local export.
struct HeldReplies {
    /// Receives a message for each reply.
    came: std::sync::mpsc::Receiver<()>,
    /// Releases one reply.
    go: std::sync::mpsc::Sender<()>,
}

/// A rule that holds each reply of `procedure` until it is released (or the [`HeldReplies`] is dropped).
fn holding(procedure: Procedure) -> (HeldReplies, impl common::proxy::Rule) {
    let ((say, came), (go, may)) = (std::sync::mpsc::channel(), std::sync::mpsc::channel());
    let ends = std::sync::Mutex::new((say, may));
    let rule = move |seen: &common::proxy::ObservedCall<'_>| {
        if seen.procedure == procedure && seen.is_reply {
            let ends = ends.lock().unwrap();
            let _ = (ends.0.send(()), ends.1.recv());
        }
        Action::Pass
    };
    (HeldReplies { came, go }, rule)
}

/// An open file that was renamed on the server. The mount has not received the new name yet, and so removes
/// an open file.
struct Removal {
    export: Export,
    held: HeldReplies,
    mounted: Mounted,
    path: std::path::PathBuf,
    open: fs::File,
}

impl Removal {
    fn prepare() -> Self {
        let export = Export::start(true);
        let (held, rule) = holding(Procedure::Rename);
        let mounted = export.mount_through_proxy("", rule);
        let path = mounted.at.join("file");
        fs::write(&path, "old").unwrap();
        let open = fs::File::open(&path).unwrap();
        Self { export, held, mounted, path, open }
    }
}

#[test]
fn close_during_remove_leaves_no_silly_name() {
    if !fuse_is_available() {
        return;
    }
    let Removal { export, held, mounted, path, open } = Removal::prepare();
    let remover = std::thread::spawn(move || fs::remove_file(&path).unwrap());
    // The server has renamed the file, and the mount has no reply yet: now the last close arrives.
    held.came.recv_timeout(HANG).unwrap();
    drop(open);
    std::thread::sleep(Duration::from_millis(200)); // RELEASE is processed after close(2) returns.
    held.go.send(()).unwrap();
    remover.join().unwrap();
    let names = names_when(export.dir.path(), |n| !n.is_empty());
    assert_eq!(names, Vec::<String>::new());
    mounted.unmount();
}

#[test]
fn killed_remove_keeps_the_open_file_and_leaves_no_silly_name() {
    if !fuse_is_available() {
        return;
    }
    let Removal { export, held, mounted, path, open } = Removal::prepare();
    let mut rm = Command::new("rm").arg(&path).spawn().unwrap();
    held.came.recv_timeout(HANG).unwrap();
    rm.kill().unwrap();
    wait_for_exit(&mut rm);
    held.go.send(()).unwrap();
    assert_eq!(std::io::read_to_string(&open).unwrap(), "old");
    drop(open);
    let names = names_when(export.dir.path(), |n| !n.is_empty());
    assert_eq!(names, Vec::<String>::new());
    mounted.unmount();
}

#[test]
fn times_and_modes_survive_a_server_restart() {
    if !fuse_is_available() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let mut server = start(dir.path(), RESTARTS_AT.parse().unwrap());
    let tcp = server.tcp_addr().unwrap();
    let mounted = Mounted::new(&format!("nfs://{tcp}/data?proto=tcp").parse().unwrap(), "timeo=20");
    let set = std::time::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
    let mut f = fs::File::create(mounted.at.join("file")).unwrap();
    f.write_all(&random_bytes(8192, 12)).unwrap();
    f.set_times(fs::FileTimes::new().set_accessed(set).set_modified(set)).unwrap();
    f.set_permissions(std::os::unix::fs::PermissionsExt::from_mode(0o4755)).unwrap();
    drop(server);
    server = start(dir.path(), tcp);
    // Requests sent at close must set no time and clear no mode bit.
    f.sync_all().unwrap();
    drop(f);
    mounted.unmount();
    drop(server);
    let there = fs::metadata(dir.path().join("file")).unwrap();
    assert_eq!(there.modified().unwrap(), set);
    assert_eq!(there.mode() & 0o7777, 0o4755);
    assert_eq!(fs::read(dir.path().join("file")).unwrap(), random_bytes(8192, 12));
}

#[test]
fn recreated_file_has_no_old_data() {
    if !fuse_is_available() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let mut server = start(dir.path(), RESTARTS_AT.parse().unwrap());
    let tcp = server.tcp_addr().unwrap();
    let mounted = Mounted::new(&format!("nfs://{tcp}/data?proto=tcp").parse().unwrap(), "timeo=20");
    let mut f = fs::File::create(mounted.at.join("file")).unwrap();
    // The kernel has a negative entry, so it creates the file instead of opening it.
    assert!(!mounted.at.join("other").exists());
    fs::hard_link(dir.path().join("file"), dir.path().join("other")).unwrap();
    f.write_all(&random_bytes(8192, 13)).unwrap();
    f.metadata().unwrap(); // Forces a write-back.
    let other = fs::File::create(mounted.at.join("other")).unwrap();
    drop(server);
    server = start(dir.path(), tcp);
    f.sync_all().unwrap();
    drop((f, other));
    mounted.unmount();
    drop(server);
    assert_eq!(fs::metadata(dir.path().join("file")).unwrap().len(), 0);
}

#[test]
fn truncation_waits_for_the_commit() {
    if !fuse_is_available() {
        return;
    }
    let export = Export::start(true);
    let full = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(true));
    let (is_full, cuts) = (std::sync::Arc::clone(&full), std::sync::Arc::new(std::sync::Mutex::new(0)));
    let counted = std::sync::Arc::clone(&cuts);
    let mounted = export.mount_through_proxy("", move |seen| match seen.procedure {
        Procedure::Commit if is_full.load(std::sync::atomic::Ordering::Relaxed) => {
            Action::Fail(Status::NoSpc)
        }
        Procedure::Setattr => {
            *counted.lock().unwrap() += 1;
            Action::Pass
        }
        _ => Action::Pass,
    });
    let mut f = fs::File::create(mounted.at.join("file")).unwrap();
    let before = *cuts.lock().unwrap();
    f.write_all(&random_bytes(10_000, 5)).unwrap();
    assert_eq!(f.set_len(5000).unwrap_err().kind(), std::io::ErrorKind::StorageFull);
    assert_eq!(*cuts.lock().unwrap(), before, "the server was asked to truncate the file");
    full.store(false, std::sync::atomic::Ordering::Relaxed);
    f.set_len(5000).unwrap();
    assert!(f.sync_all().is_err(), "fsync did not report the failure");
    drop(f);
    assert_eq!(fs::read(mounted.at.join("file")).unwrap(), random_bytes(10_000, 5)[..5000]);
    mounted.unmount();
}

#[test]
fn sync_write_is_stable_when_it_returns_despite_memory_pressure() {
    if !fuse_is_available() {
        return;
    }
    let export = Export::start(true);
    let (held, rule) = holding(Procedure::Write);
    let addr = common::proxy::start(export.server.tcp_addr().unwrap(), rule);
    let dir = tempfile::tempdir().unwrap();
    let mut options = millrace_fuse::MountOptions::default();
    options.read("sync", false).unwrap();
    // Enough for the connection, and for a few of the writes below.
    let client = millrace_client::Options::default().arena_limit(8 << 20);
    let url = format!("nfs://{addr}/data?proto=tcp&nconnect=1&vers=3").parse().unwrap();
    let mount = millrace_fuse::Mount::new(&url, dir.path(), &options, client).unwrap();
    let at = mount.path().to_owned();
    let files: Vec<_> = (0..12).map(|i| fs::File::create(at.join(format!("file{i}"))).unwrap()).collect();
    let mut writers = Vec::new();
    for (i, mut f) in (0..).zip(files) {
        let stored = export.dir.path().join(format!("file{i}"));
        writers.push(std::thread::spawn(move || {
            // The first writes exhaust the memory; the second must wait for it.
            for len in [1 << 20, 4096] {
                f.write_all(&random_bytes(len, i)).unwrap();
                let there = fs::metadata(&stored).unwrap().len();
                assert!(there >= len as u64, "{there} bytes of {len} are there");
            }
            assert_eq!(fs::metadata(&stored).unwrap().len(), (1 << 20) + 4096);
        }));
    }
    held.came.recv_timeout(HANG).unwrap();
    std::thread::sleep(Duration::from_millis(200)); // So that all have started.
    drop(held); // From here on replies pass.
    writers.into_iter().for_each(|w| w.join().unwrap());
    mount.unmount(HANG).unwrap();
}

#[test]
fn writes_use_the_credentials_of_the_open() {
    if !fuse_is_available() || !rustix::process::geteuid().is_root() {
        eprintln!("SKIPPED: only root can switch users");
        return;
    }
    let export = Export::start(false);
    let writes = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
    let seen_writes = std::sync::Arc::clone(&writes);
    let mounted = export.mount_through_proxy("allow_other", move |seen| {
        if seen.procedure == Procedure::Write && !seen.is_reply {
            let text = |t: &str| seen.call.windows(t.len()).any(|w| w == t.as_bytes());
            seen_writes.lock().unwrap().push((seen.uid, text("of root"), text("of another")));
        }
        Action::Pass
    });
    for dir in mounted.at.ancestors().skip(1).take(1) {
        fs::set_permissions(dir, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    }
    let path = mounted.at.join("log");
    let mut root = fs::File::create(&path).unwrap();
    fs::set_permissions(&mounted.at, std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
    fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o666)).unwrap();
    // Started before root writes: starting a process closes its copies of open files, which writes back their
    // data.
    let mut other = Command::new("sh");
    std::os::unix::process::CommandExt::uid(&mut other, 4711);
    other.args(["-c", "read go; echo of another >> log"]).current_dir(&mounted.at).stdin(Stdio::piped());
    let mut other = other.spawn().unwrap();
    root.write_all(b"of root\n").unwrap();
    other.stdin.take().unwrap().write_all(b"go\n").unwrap();
    assert!(other.wait().unwrap().success());
    root.sync_all().unwrap();
    assert_eq!(*writes.lock().unwrap(), [(0, true, false), (4711, false, true)]);
    assert_eq!(fs::read_to_string(&path).unwrap(), "of root\nof another\n");
    mounted.unmount();
}

#[test]
fn uncommitted_data_lost_by_the_server_is_still_read() {
    if !fuse_is_available() {
        return;
    }
    let export = Export::start(true);
    let mounted = export.mount("rdma", "");
    let stored = export.dir.path().join("file");
    let mut f =
        fs::File::options().create_new(true).read(true).write(true).open(mounted.at.join("file")).unwrap();
    let data = random_bytes(10_000, 17);
    f.write_all(&data).unwrap();
    f.metadata().unwrap(); // Forces a write-back.
    assert_eq!(fs::metadata(&stored).unwrap().len(), 10_000);
    // As after a restart, but with the same write verifier, which this test does not concern.
    fs::File::options().write(true).open(&stored).unwrap().set_len(100).unwrap();
    assert_eq!(f.metadata().unwrap().len(), 10_000);
    let mut read = vec![0; 20_000];
    let len = std::os::unix::fs::FileExt::read_at(&f, &mut read, 0).unwrap();
    assert!(read[..len] == data, "{len} bytes");
    drop(f);
    mounted.unmount();
}
