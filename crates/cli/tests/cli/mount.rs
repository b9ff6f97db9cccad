//! `millrace mount` as a process: signals, log messages, background operation, use without root.

use std::{
    fs,
    io::Write,
    os::unix::{fs::PermissionsExt, net::UnixDatagram, process::CommandExt},
    path::Path,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal};

use crate::common::{
    self, HANG, Server, fails, kill, millrace,
    mounting::{Mounting, fuse_is_available, is_mounted},
    ok, text,
};

/// An unprivileged user and group.
const NOBODY: u32 = 65534;

/// Runs `command` with arguments that mount `url` on `at`, and waits until the mount is ready.
fn mount(mut command: Command, url: &str, at: &Path, more: &[&str]) -> Mounting {
    command.args(["mount", url, text(at)]).args(more);
    Mounting::start(command, at)
}

#[test]
fn a_signal_writes_back_all_data_and_unmounts() {
    if !fuse_is_available() {
        return;
    }
    let (stored, at) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let server = Server::start(&["--export", &format!("/x=local:{},squash=none", stored.path().display())]);
    for signal in ["TERM", "INT"] {
        let mut mounting = mount(millrace(), &server.url("rdma", "/x"), at.path(), &[]);
        let mut open = fs::File::create(at.path().join(signal)).unwrap();
        open.write_all(b"not closed").unwrap();
        kill(mounting.child.id(), signal);
        let (status, message) = mounting.end();
        assert_eq!(status.code(), Some(0), "{message}");
        assert_eq!(fs::read(stored.path().join(signal)).unwrap(), b"not closed");
    }
}

/// As [`kill`], without a child process: closing its copies of open files would flush them.
fn signal(pid: u32, signal: Signal) {
    rustix::process::kill_process(Pid::from_raw(pid as i32).unwrap(), signal).unwrap();
}

/// Stops a process, and waits until all its threads are stopped.
fn stop(pid: u32) {
    signal(pid, Signal::STOP);
    let stands = |task: fs::DirEntry| {
        let stat = fs::read_to_string(task.path().join("stat")).unwrap();
        stat.rsplit(')').next().unwrap().trim_start().starts_with('T')
    };
    let begun = Instant::now();
    while !fs::read_dir(format!("/proc/{pid}/task")).unwrap().all(|t| stands(t.unwrap())) {
        assert!(begun.elapsed() < HANG, "the process does not stop");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn lost_data_is_reported_and_a_second_signal_exits_immediately() {
    if !fuse_is_available() {
        return;
    }
    let at = tempfile::tempdir().unwrap();
    let server = Server::start(&["--export", "/x=memory:16MiB"]);
    let lose = |grace: &str| {
        signal(server.child.id(), Signal::CONT);
        let mounting = mount(millrace(), &server.url("tcp", "/x"), at.path(), &["--grace", grace]);
        let mut open = fs::File::create(at.path().join("file")).unwrap();
        open.write_all(b"never arrives").unwrap();
        stop(server.child.id());
        signal(mounting.child.id(), Signal::TERM);
        (mounting, open)
    };
    let (mut patient, open) = lose("1");
    let (status, message) = patient.end();
    assert_eq!(status.code(), Some(1), "{message}");
    let failure = message.lines().find(|l| l.starts_with("millrace: ")).expect(&message);
    assert!(failure.contains("changes to 1 files were lost"), "{message}");
    drop(open);

    let (mut hurried, open) = lose("3600");
    let pending = hurried.wait_for_log("not yet written");
    assert!(pending.contains("13 bytes of 1 files"), "{pending}");
    signal(hurried.child.id(), Signal::TERM);
    let (status, message) = hurried.end();
    assert_eq!(status.code(), Some(1), "{message}");
    assert!(message.contains("exiting without writing back cached data"), "{message}");
    drop(open);
}

#[test]
fn neither_umount_nor_an_ioctl_logs_a_warning() {
    if !fuse_is_available() || !rustix::process::geteuid().is_root() {
        return;
    }
    let at = tempfile::tempdir().unwrap();
    let server = Server::start(&["--export", "/x=memory:16MiB"]);
    let mut mounting = mount(millrace(), &server.url("tcp", "/x"), at.path(), &[]);
    let file = fs::File::create(at.path().join("file")).unwrap();
    // isatty(3) calls ioctl(2).
    assert_eq!(rustix::termios::tcgetattr(&file).unwrap_err(), rustix::io::Errno::NOTTY);
    drop(file);
    assert!(Command::new("umount").arg(at.path()).status().unwrap().success());
    let (status, message) = mounting.end();
    assert_eq!(status.code(), Some(0), "{message}");
    assert!(message.contains("was unmounted") && !message.contains("WARN"), "{message}");
}

#[test]
fn a_mount_whose_process_was_killed_is_named_and_removed() {
    if !fuse_is_available() {
        return;
    }
    let at = tempfile::tempdir().unwrap();
    let server = Server::start(&["--export", "/x=memory:16MiB"]);
    let url = server.url("tcp", "/x");
    let mut mounting = mount(millrace(), &url, at.path(), &[]);
    fs::write(at.path().join("file"), "x").unwrap();
    let message = fails(1, &["mount", &url, text(at.path())]);
    assert!(message.contains("has already mounted") && message.contains("millrace umount"), "{message}");
    let open = fs::File::open(at.path().join("file")).unwrap();
    let busy = fails(1, &["umount", text(at.path())]);
    assert!(busy.contains("in use") || busy.contains("busy"), "{busy}");

    mounting.child.kill().unwrap();
    mounting.child.wait().unwrap();
    let message = fails(1, &["mount", &url, text(at.path())]);
    assert!(message.contains("whose process has ended") && message.contains("millrace umount"), "{message}");
    let message = fails(1, &["get", &format!("{url}&vers=4.2"), text(&at.path().join("new"))]);
    assert!(message.contains("millrace umount"), "{message}");
    // The open file does not keep it.
    let lost = millrace().args(["umount", text(at.path())]).output().unwrap();
    let message = String::from_utf8(lost.stderr).unwrap();
    assert!(lost.status.success() && message.contains("that it had not written is lost"), "{message}");
    assert!(!is_mounted(&mounting.at));
    drop(open);
    let message = fails(1, &["umount", text(at.path())]);
    assert!(message.contains("has not mounted an export there"), "{message}");
    mount(millrace(), &url, at.path(), &[]);
}

#[test]
fn umount_waits_until_the_process_of_the_mount_has_written_its_data() {
    if !fuse_is_available() {
        return;
    }
    let at = tempfile::tempdir().unwrap();
    let server = Server::start(&["--export", "/x=memory:16MiB"]);
    let mut mounting = mount(millrace(), &server.url("tcp", "/x"), at.path(), &[]);
    fs::write(at.path().join("file"), "x").unwrap();
    // The kernel needs no reply of the process to unmount it.
    stop(mounting.child.id());
    let start = || millrace().args(["umount", text(at.path())]).stderr(Stdio::null()).spawn().unwrap();
    let (mut umount, begun) = (start(), Instant::now());
    while is_mounted(&mounting.at) {
        assert!(begun.elapsed() < HANG, "it is not unmounted");
        // A process that another test starts may have copies of this one's descriptors for a moment.
        if umount.try_wait().unwrap().is_some() {
            umount = start();
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(umount.try_wait().unwrap().is_none(), "umount does not wait");
    signal(mounting.child.id(), Signal::CONT);
    assert!(common::wait_for(&mut umount).success());
    assert_eq!(mounting.end().0.code(), Some(0));
}

#[test]
fn a_mount_says_once_that_nfsv3_does_not_have_a_time() {
    if !fuse_is_available() {
        return;
    }
    let server = Server::start(&["--export", "/x=memory:16MiB"]);
    for (options, count) in [("vers=3", 1), ("vers=4.2", 0)] {
        let at = tempfile::tempdir().unwrap();
        let mut mounting = mount(millrace(), &server.url("tcp", "/x"), at.path(), &["-o", options]);
        for name in ["a", "b"] {
            let file = fs::File::create(at.path().join(name)).unwrap();
            file.set_modified(std::time::UNIX_EPOCH - Duration::from_nanos(1)).unwrap();
        }
        kill(mounting.child.id(), "TERM");
        let log = mounting.end().1;
        assert_eq!(log.matches("NFSv3 has times of 1970 to 2106").count(), count, "{options}: {log}");
    }
}

#[test]
fn the_first_signal_after_umount_waits_for_write_back() {
    if !fuse_is_available() || !rustix::process::geteuid().is_root() {
        return;
    }
    let (stored, at) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let server = Server::start(&["--export", &format!("/x=local:{},squash=none", stored.path().display())]);
    let mut mounting = mount(millrace(), &server.url("tcp", "/x"), at.path(), &["--grace", "3600"]);
    // The process closes no file, so that nothing flushes the data.
    let mut writer = Command::new("dd");
    writer.args(["of=file", "bs=8"]).current_dir(at.path()).stdin(Stdio::piped()).stderr(Stdio::null());
    let mut writer = writer.spawn().unwrap();
    writer.stdin.as_mut().unwrap().write_all(b"written\n").unwrap();
    let begun = Instant::now();
    while !fs::metadata(at.path().join("file")).is_ok_and(|m| m.len() == 8) {
        assert!(begun.elapsed() < HANG, "no data is written");
        std::thread::sleep(Duration::from_millis(5));
    }
    stop(server.child.id());
    millrace_fuse::detach(&mounting.at).unwrap();
    // The last close of the file, while the server cannot commit its data.
    writer.kill().unwrap();
    writer.wait().unwrap();
    mounting.wait_for_log("was unmounted");
    signal(mounting.child.id(), Signal::TERM);
    mounting.wait_for_log("a second signal exits immediately");
    signal(server.child.id(), Signal::CONT);
    let (status, message) = mounting.end();
    assert_eq!(status.code(), Some(0), "{message}");
    assert_eq!(fs::read(stored.path().join("file")).unwrap(), b"written\n");
}

/// Runs its arguments in a namespace where the program `$1` is the helper of mount(8) for the types
/// `millrace` and `fuse.millrace`; `$2` is an empty directory.
const WITH_HELPERS: &str = r#"
    mount --bind /usr/sbin "$2"
    mount -t tmpfs none /usr/sbin
    ln -s "$2"/* /usr/sbin
    for helper in mount.millrace mount.fuse.millrace; do ln -sf "$1" "/usr/sbin/$helper"; done
    shift 2
    "$@"
"#;

/// Mounts `$1` on `$2` with mount(8), and remounts it.
const MOUNT_8: &str = r#"
    table() { grep " $2 " /proc/self/mounts; }
    mount -t millrace -o suid,dev "$1" "$2"
    table "$@"
    umount "$2"
    mount -t millrace -o nodev,nodiratime,strictatime,nosymfollow,silent,iversion,nolazytime "$1" "$2"
    table "$@"
    mount -o remount,ro "$2"
    table "$@"
    touch "$2/file" 2>&1 || echo refused
    mount -o remount,rw,noexec "$2"
    table "$@"
    touch "$2/file"
    mount -o remount,rsize=4K "$2" 2>&1 || echo refused
    umount "$2"
"#;

#[test]
fn mount_8_passes_its_options_and_remounts() {
    if !fuse_is_available() || !rustix::process::geteuid().is_root() {
        return;
    }
    let (at, beside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let server = Server::start(&["--export", "/x=memory:16MiB"]);
    let mut c = Command::new("unshare");
    c.args(["-m", "sh", "-ec", WITH_HELPERS, "sh", env!("CARGO_BIN_EXE_millrace"), text(beside.path())]);
    c.args(["sh", "-exc", MOUNT_8, "sh", &server.url("tcp", "/x"), text(&at.path().canonicalize().unwrap())]);
    let out = c.env_remove("RUST_LOG").stdin(Stdio::null()).output().unwrap();
    let (message, steps) = (String::from_utf8(out.stdout).unwrap(), String::from_utf8(out.stderr).unwrap());
    assert!(out.status.success(), "{message}{steps}");
    let lines: Vec<&str> = message.lines().collect();
    let tables: Vec<&str> = lines.iter().copied().filter(|l| l.starts_with("nfs://")).collect();
    let [plain, with, read_only, again] = tables[..] else { panic!("{message}{steps}") };
    for table in &tables {
        assert!(table.contains(" fuse.millrace "), "{table}");
    }
    let has = |table: &str, word: &str| table.split([' ', ',']).any(|w| w == word);
    assert!(has(plain, "rw") && !has(plain, "nosuid") && !has(plain, "nodev"), "{plain}");
    for word in ["rw", "nodev", "nodiratime", "nosymfollow"] {
        assert!(has(with, word), "{word}: {with}");
    }
    assert!(!has(with, "nosuid") && !has(with, "relatime"), "{with}");
    assert!(has(read_only, "ro") && has(read_only, "nodiratime") && !has(read_only, "rw"), "{read_only}");
    assert!(has(again, "rw") && has(again, "noexec"), "{again}");
    assert_eq!(lines.iter().filter(|l| **l == "refused").count(), 2, "{message}");
    assert!(message.contains("Read-only file system") && message.contains("cannot be changed"), "{message}");
}

#[test]
fn a_background_mount_is_ready_when_the_command_exits_and_ends_with_umount() {
    if !fuse_is_available() || !rustix::process::geteuid().is_root() {
        return;
    }
    let at = tempfile::tempdir().unwrap();
    let server = Server::start(&["--export", "/x=memory:16MiB"]);
    let path = at.path().canonicalize().unwrap();
    ok(&["mount", "--daemon", &server.url("tcp", "/x"), text(at.path())]);
    fs::write(path.join("file"), "there").unwrap();
    assert!(Command::new("umount").arg(&path).status().unwrap().success());
    assert!(!is_mounted(&path));
    assert_eq!(ok(&["cat", &server.url("tcp", "/x/file")]), "there");
}

#[test]
fn an_error_of_a_soft_mount_names_its_options() {
    if !fuse_is_available() {
        return;
    }
    let at = tempfile::tempdir().unwrap();
    let mut server = Server::start(&["--export", "/x=memory:16MiB"]);
    let url = server.url("tcp", "/x");
    let mut mounting = mount(millrace(), &url, at.path(), &["-o", "soft,timeo=5,retrans=1,noac"]);
    server.child.kill().unwrap();
    server.child.wait().unwrap();
    let refused = fs::metadata(at.path().join("file")).unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(rustix::io::Errno::IO.raw_os_error()), "{refused}");
    let message = mounting.wait_for_log("no answer from");
    for word in ["`timeo`", "`retrans`", "`soft`", "`hard`"] {
        assert!(message.contains(word), "{message}");
    }
    assert!(!message.contains("retry limit"), "{message}");
}

/// Runs its arguments with `$1` as /dev, which contains FUSE, and `$2`, if not empty, as the socket of the
/// system log.
const IN_OWN_DEV: &str = r#"
    mount -t tmpfs none "$1"
    for device in fuse null urandom; do touch "$1/$device"; mount --bind /dev/$device "$1/$device"; done
    [ -z "$2" ] || ln -s "$2" "$1/log"
    mount --rbind "$1" /dev
    shift 2
    "$@"
"#;

/// Mounts in the background, under the name of the helper of mount(8), with its own /dev, then runs `then` in
/// a shell. Returns standard error.
fn in_own_dev(log: Option<&Path>, url: &str, at: &Path, then: &str) -> String {
    let beside = tempfile::tempdir().unwrap();
    let helper = beside.path().join("mount.millrace");
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_millrace"), &helper).unwrap();
    let dev = tempfile::tempdir().unwrap();
    let mut c = Command::new("unshare");
    c.args(["-m", "sh", "-ec", IN_OWN_DEV, "sh", text(dev.path()), log.map_or("", text)]);
    c.args(["sh", "-ec", &format!(r#""$0" "$1" "$2" --grace 1 -o rw; {then}"#)]);
    c.args([text(&helper), url, text(at)]).env_remove("RUST_LOG").stdin(Stdio::null());
    let out = c.output().unwrap();
    let message = String::from_utf8(out.stderr).unwrap();
    assert!(out.status.success(), "{message}");
    message
}

/// A process that is killed when this is dropped, if it has not ended.
struct Process(u32);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = rustix::process::kill_process(Pid::from_raw(self.0 as i32).unwrap(), Signal::KILL);
    }
}

#[test]
fn a_background_mount_logs_to_the_system_log_and_prints_nothing() {
    if !fuse_is_available() || !rustix::process::geteuid().is_root() {
        return;
    }
    let (beside, at) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let server = Server::start(&["--export", "/x=memory:16MiB"]);
    let path = beside.path().join("log");
    let log = UnixDatagram::bind(&path).unwrap();
    log.set_read_timeout(Some(HANG)).unwrap();
    let logged = |words: &str| loop {
        let mut line = [0; 4096];
        let len = log.recv(&mut line).unwrap();
        let line = String::from_utf8_lossy(&line[..len]).into_owned();
        if line.contains(words) {
            break line;
        }
    };
    let message = in_own_dev(Some(&path), &server.url("tcp", "/x"), at.path(), "true");
    assert_eq!(message, "");
    let mounted = logged("mounted");
    let id = mounted.strip_prefix("<30>millrace[").and_then(|rest| rest.split(']').next()).expect(&mounted);
    let process = Process(id.parse().unwrap());

    // Errors at exit, after standard error has been closed. The mount keeps the data, which the server receives no more.
    let seen_by_it = format!("/proc/{}/root{}/file", process.0, text(&at.path().canonicalize().unwrap()));
    let mut open = fs::File::create(seen_by_it).unwrap();
    stop(server.child.id());
    open.write_all(b"never arrives").unwrap();
    signal(process.0, Signal::TERM);
    let lost = logged("changes to 1 files were lost");
    assert!(lost.starts_with(&format!("<27>millrace[{}]: ", process.0)), "{lost}");
}

#[test]
fn a_background_mount_prints_nothing_without_a_system_log_unless_it_fails() {
    if !fuse_is_available() || !rustix::process::geteuid().is_root() {
        return;
    }
    let at = tempfile::tempdir().unwrap();
    let server = Server::start(&["--export", "/x=memory:16MiB"]);
    assert_eq!(in_own_dev(None, &server.url("tcp", "/x"), at.path(), r#"umount "$2""#), "");
    let message = fails(1, &["mount", "--daemon", &server.url("tcp", "/y"), text(at.path())]);
    assert!(message.contains("/y"), "{message}");
}

#[test]
fn an_unreachable_or_unresponsive_server_is_reported_in_one_sentence() {
    let at = tempfile::tempdir().unwrap();
    let message = fails(1, &["mount", "--log", "warn", "nfs://127.0.0.1:1/x?proto=tcp", text(at.path())]);
    assert!(message.contains("127.0.0.1:1"), "{message}");
    // A server that accepts connections and never replies.
    let mute = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = mute.local_addr().unwrap();
    std::thread::scope(|scope| {
        for proto in ["tcp", "rdma"] {
            let at = text(at.path());
            scope.spawn(move || {
                let message =
                    fails(1, &["mount", "--log", "warn", &format!("nfs://{address}/x?proto={proto}"), at]);
                assert!(message.contains("127.0.0.1"), "{message}");
            });
        }
    });
    assert!(!is_mounted(at.path()));
}

/// The command as an unprivileged user. Copies the binary, whose directory may be inaccessible to that user.
fn as_nobody(dir: &Path) -> Command {
    let binary = dir.join("millrace");
    if !binary.exists() {
        // By a process: a child of another test would keep a descriptor of this one open for writing (ETXTBSY).
        let program = env!("CARGO_BIN_EXE_millrace");
        assert!(Command::new("cp").arg(program).arg(&binary).status().unwrap().success());
    }
    let mut c = Command::new(binary);
    c.env_remove("RUST_LOG").stdin(Stdio::null()).current_dir("/").uid(NOBODY).gid(NOBODY);
    c
}

#[test]
fn without_root_fusermount3_mounts() {
    if !fuse_is_available() || !rustix::process::geteuid().is_root() {
        return;
    }
    let (beside, stored) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (at, of_root) = (beside.path().join("at"), beside.path().join("of root"));
    for dir in [&at, &of_root] {
        fs::create_dir(dir).unwrap();
        fs::set_permissions(dir, PermissionsExt::from_mode(0o755)).unwrap();
    }
    for dir in [beside.path(), stored.path()] {
        fs::set_permissions(dir, PermissionsExt::from_mode(0o777)).unwrap();
    }
    std::os::unix::fs::chown(&at, Some(NOBODY), Some(NOBODY)).unwrap();
    let server = Server::start(&["--export", &format!("/x=local:{},squash=none", stored.path().display())]);
    let url = server.url("rdma", "/x");
    let refused = |mut c: Command, at: &Path| {
        let out = c.args(["mount", &url, text(at)]).output().unwrap();
        assert_eq!(out.status.code(), Some(1));
        String::from_utf8(out.stderr).unwrap().lines().last().unwrap().to_owned()
    };
    let mut without = as_nobody(beside.path());
    without.env("FUSERMOUNT_PATH", "/there/is/no/fusermount3");
    let message = refused(without, &at);
    assert!(message.contains("mounting without root needs fusermount3 (package fuse3)"), "{message}");
    if !Command::new("fusermount3").arg("-V").stdout(Stdio::null()).status().is_ok_and(|s| s.success()) {
        eprintln!("SKIPPED: fusermount3 is not installed");
        return;
    }
    // fusermount3 opens the device with the rights of its caller.
    if fs::metadata("/dev/fuse").unwrap().permissions().mode() & 0o006 != 0o006 {
        eprintln!("SKIPPED: /dev/fuse is not accessible to all users");
        return;
    }
    let message = refused(as_nobody(beside.path()), &of_root);
    assert!(message.contains("no write access to mountpoint"), "{message}");

    let mut mounting = mount(as_nobody(beside.path()), &url, &at, &[]);
    let script = "echo one > f && mkdir d && mv f d/g && cat d/g && rm d/g && rmdir d && echo two > kept";
    let mut sh = Command::new("sh");
    sh.args(["-ec", &format!("cd '{}'; {script}", at.display())]).uid(NOBODY).gid(NOBODY);
    let out = sh.output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    assert_eq!(out.stdout, b"one\n");
    // Other users, including root, have no access.
    assert_eq!(fs::read_dir(&at).unwrap_err().kind(), std::io::ErrorKind::PermissionDenied);
    kill(mounting.child.id(), "TERM");
    let (status, message) = mounting.end();
    assert_eq!(status.code(), Some(0), "{message}");
    assert_eq!(fs::read(stored.path().join("kept")).unwrap(), b"two\n");
}
