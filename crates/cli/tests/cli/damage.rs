//! Failed copies leave no partial or temporary file, and keep existing files.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::Path,
    process::{Command, Stdio},
    time::Duration,
};

use crate::common::{self, Server, fails, kill, names, noise, ok, text};

/// A tmpfs, unmounted when dropped; `None` without the privilege to mount.
struct Tmpfs<'a>(&'a Path);

impl<'a> Tmpfs<'a> {
    fn mount(at: &'a Path, options: &str) -> Option<Self> {
        fs::create_dir_all(at).unwrap();
        let mut c = Command::new("mount");
        c.args(["-t", "tmpfs", "-o", options, "tmpfs"]).arg(at).stderr(Stdio::null());
        c.status().is_ok_and(|s| s.success()).then_some(Self(at))
    }
}

impl Drop for Tmpfs<'_> {
    fn drop(&mut self) {
        drop(Command::new("umount").arg("-l").arg(self.0).status());
    }
}

#[test]
fn a_full_local_disk_leaves_no_partial_file() {
    let dir = tempfile::tempdir().unwrap();
    let small = dir.path().join("small");
    let Some(_mounted) = Tmpfs::mount(&small, "size=1m") else {
        println!("skipped: this user may not mount a small file system to fill");
        return;
    };
    let server = Server::start(&["--export", "/m=memory:64MiB"]);
    let big = dir.path().join("big");
    fs::write(&big, noise(3 << 20, 1)).unwrap();
    ok(&["put", text(&big), &server.url("rdma", "/m/big")]);
    fs::write(small.join("big"), b"the old one").unwrap();
    for proto in ["rdma", "tcp"] {
        let message = fails(1, &["get", "--atomic", &server.url(proto, "/m/big"), text(&small)]);
        assert!(message.contains("disk is full") && message.contains("free some space"), "{message}");
        assert_eq!(names(&small), ["big"]);
        assert_eq!(fs::read(small.join("big")).unwrap(), b"the old one");
    }
}

#[test]
fn a_full_disk_of_the_server_leaves_no_partial_file() {
    let dir = tempfile::tempdir().unwrap();
    let small = dir.path().join("small");
    let Some(_mounted) = Tmpfs::mount(&small, "size=1m") else {
        println!("skipped: this user may not mount a small file system to fill");
        return;
    };
    let server = Server::start(&["--export", &format!("/l=local:{},squash=none", small.display())]);
    let big = dir.path().join("big");
    fs::write(&big, noise(3 << 20, 1)).unwrap();
    for proto in ["rdma", "tcp"] {
        let message = fails(1, &["put", text(&big), &server.url(proto, "/l/big")]);
        assert!(message.contains("no space left") && message.contains("millrace df"), "{message}");
        assert_eq!(names(&small), Vec::<String>::new());
    }
}

#[test]
fn an_atomic_put_that_does_not_fit_keeps_the_existing_file() {
    let dir = tempfile::tempdir().unwrap();
    let (old, new) = (dir.path().join("old"), dir.path().join("new"));
    fs::write(&old, b"the old one").unwrap();
    fs::write(&new, noise(3 << 20, 1)).unwrap();
    let server = Server::start(&["--export", "/m=memory:1MiB"]);
    for proto in ["rdma", "tcp"] {
        let url = server.url(proto, "/m/file");
        ok(&["put", text(&old), &url]);
        fails(1, &["put", "--atomic", text(&new), &url]);
        assert_eq!(ok(&["cat", &url]), "the old one");
        assert_eq!(ok(&["ls", "-a", &server.url(proto, "/m")]), "file\n");
    }
}

#[test]
fn permission_errors_contain_a_remedy() {
    let dir = tempfile::tempdir().unwrap();
    let served = dir.path().join("served");
    fs::create_dir(&served).unwrap();
    fs::write(served.join("secret"), b"x").unwrap();
    fs::set_permissions(served.join("secret"), fs::Permissions::from_mode(0o600)).unwrap();
    fs::set_permissions(&served, fs::Permissions::from_mode(0o755)).unwrap();
    let local = format!("/l=local:{},squash=all,anon_uid=65534,anon_gid=65534", served.display());
    let server = Server::start(&["--export", &local]);
    if fs::metadata("/proc/self").map(|m| std::os::unix::fs::MetadataExt::uid(&m)).unwrap() != 0 {
        println!("skipped: only a server that is root can act as others");
        return;
    }
    let here = dir.path().join("here");
    fs::write(&here, b"x").unwrap();
    let url = |path| server.url("rdma", path);
    for args in [
        &["put", text(&here), &url("/l/new")][..],
        &["mkdir", &url("/l/new")],
        &["rm", &url("/l/secret")],
        &["cat", &url("/l/secret")],
        &["mv", &url("/l/secret"), &url("/l/s")],
        &["ln", "-s", "x", &url("/l/s")],
        &["get", &url("/l/secret"), text(&dir.path().join("stolen"))],
    ] {
        let message = fails(1, args);
        assert!(message.contains("permission denied") && message.contains("squash"), "{args:?}: {message}");
    }
    assert_eq!(names(&served), ["secret"]);
    assert!(!dir.path().join("stolen").exists());
}

/// The command, with the signals that are ignored under nohup(1), where these tests may run.
fn interruptible() -> Command {
    let mut command = Command::new("env");
    command
        .args(["--default-signal=INT,HUP,QUIT,TERM", env!("CARGO_BIN_EXE_millrace")])
        .env_remove("RUST_LOG");
    command
}

/// Waits until `dir` contains a temporary file.
fn wait_for_a_temporary_name(dir: &Path) {
    let start = std::time::Instant::now();
    while !names(dir).iter().any(|n| n.contains(".millrace-")) {
        assert!(start.elapsed() < Duration::from_secs(60), "no file is copied");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn an_interrupted_copy_removes_and_reports_unfinished_files() {
    let dir = tempfile::tempdir().unwrap();
    let served = dir.path().join("served");
    fs::create_dir(&served).unwrap();
    let from = dir.path().join("from");
    fs::create_dir(&from).unwrap();
    for i in 0..40 {
        fs::write(from.join(format!("{i}")), noise(5 << 20, i)).unwrap();
    }
    let server = Server::start(&["--export", &format!("/l=local:{},squash=none", served.display())]);
    for (signal, proto) in [("INT", "rdma"), ("TERM", "tcp"), ("HUP", "tcp"), ("QUIT", "rdma")] {
        let to = served.join(signal);
        let url = server.url(proto, &format!("/l/{signal}"));
        let child = interruptible()
            .args(["put", "-r", "--parallel", "2", "--record", "64K", text(&from), &url])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        while !to.exists() {
            std::thread::sleep(Duration::from_millis(1));
        }
        wait_for_a_temporary_name(&to);
        kill(child.id(), signal);
        let out = child.wait_with_output().unwrap();
        let message = String::from_utf8(out.stderr).unwrap();
        assert_eq!(out.status.code(), Some(130), "{message}");
        assert!(message.contains("stopping") && message.lines().count() == 1, "{message}");
        let left = names(&to);
        assert!(left.len() < 40, "the copy was over before it was interrupted");
        for name in left {
            assert!(fs::read(to.join(&name)).unwrap() == fs::read(from.join(&name)).unwrap(), "{name}");
        }
    }
}

#[test]
fn a_missing_source_does_not_stop_the_others() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    fs::write(at("a"), b"a").unwrap();
    fs::write(at("b"), b"b").unwrap();
    fs::create_dir(at("d")).unwrap();
    fs::write(at("d/a"), b"another").unwrap();
    let server = Server::start(&["--export", "/m=memory:16MiB"]);
    let url = server.url("rdma", "/m");
    let message = fails(3, &["put", text(&at("a")), text(&at("missing")), text(&at("b")), &url]);
    assert!(message.contains("missing") && message.contains("check the name"), "{message}");
    assert_eq!(ok(&["ls", &url]), "a\nb\n");
    // The second `a` would replace the first.
    let message = fails(3, &["put", text(&at("a")), text(&at("d/a")), &url]);
    assert!(message.contains("d/a") && message.contains("replace"), "{message}");
    assert_eq!(ok(&["cat", &server.url("rdma", "/m/a")]), "a");

    let message = fails(3, &["rm", &server.url("rdma", "/m/nope"), &server.url("rdma", "/m/b")]);
    assert!(message.contains("/m/nope"), "{message}");
    assert_eq!(ok(&["ls", &url]), "a\n");
    let message = fails(1, &["put", text(&at("d")), &url]);
    assert!(message.contains("/d: it is a directory; add -r"), "{message}");
}

#[test]
fn the_port_of_the_other_transport_is_reported() {
    let server = Server::start(&["--export", "/m=memory:16MiB"]);
    let message = fails(1, &["ls", &format!("nfs://{}/m?proto=rdma", server.tcp)]);
    assert!(message.contains("offers rdma"), "{message}");
    let message = fails(1, &["ls", &format!("nfs://{}/m?proto=tcp", server.rdma)]);
    assert!(message.contains("proto=rdma"), "{message}");
    let message = fails(1, &["ls", "nfs://no-such-host.invalid/m"]);
    assert!(message.contains("no-such-host.invalid") && message.contains("check the name"), "{message}");
}

#[test]
fn the_root_of_an_export_cannot_be_changed() {
    let server = Server::start(&["--export", "/m=memory:16MiB"]);
    for path in ["/m", "/m/"] {
        let message = fails(1, &["rm", "-r", &server.url("rdma", path)]);
        assert!(message.contains("root of an export"), "{message}");
    }
    let message = fails(1, &["mkdir", &server.url("rdma", "/m/a/b")]);
    assert!(message.contains("add -p"), "{message}");
    ok(&["mkdir", &server.url("rdma", "/m/a")]);
    assert!(fails(1, &["mkdir", &server.url("rdma", "/m/a")]).contains("exists"));
    let message = fails(1, &["cat", &server.url("rdma", "/m/a")]);
    assert!(message.contains("millrace ls"), "{message}");
    let (a, b) = (server.url("rdma", "/m/a"), server.url("rdma", "/m/a/b"));
    assert!(fails(1, &["mv", &a, &b]).contains("cannot be moved into itself"));
    assert!(fails(1, &["ln", &a, &server.url("rdma", "/m/c")]).contains("use -s"));
    assert!(fails(1, &["cp", "-r", &a, &a]).contains("choose another target"));
}

#[test]
fn entries_that_cannot_be_read_are_named_and_the_others_are_shown() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let served = dir.path().join("served");
    for name in ["names", "secret"] {
        fs::create_dir_all(served.join(name)).unwrap();
        fs::write(served.join(name).join("x"), b"x").unwrap();
    }
    fs::write(served.join("f"), b"f").unwrap();
    // Others read the names in one directory, but not the attributes, and cannot read the other.
    for (name, mode) in [("", 0o755), ("names", 0o744), ("secret", 0o700)] {
        fs::set_permissions(served.join(name), fs::Permissions::from_mode(mode)).unwrap();
    }
    let server = Server::start(&["--export", &format!("/l=local:{},squash=all", served.display())]);
    for vers in ["3", "4.2"] {
        let url = |path: &str| format!("{}&vers={vers}", server.url("tcp", path));
        let partial = |args: &[&str], failures: &[&str]| {
            let out = common::run(args);
            let message = String::from_utf8(out.stderr).unwrap();
            assert_eq!(out.status.code(), Some(3), "{args:?}: {message}");
            assert_eq!(message.lines().count(), failures.len(), "{args:?}: {message}");
            for name in failures {
                assert!(message.contains(name) && message.contains("permission denied"), "{name}: {message}");
            }
            String::from_utf8(out.stdout).unwrap()
        };
        assert_eq!(
            partial(&["ls", &url("/l/names"), &url("/l")], &[" x in "]).lines().last(),
            Some("secret/")
        );
        let tree = partial(&["tree", &url("/l")], &["names/x in ", " secret in "]);
        assert!(tree.contains("|-- f\n|-- names\n`-- secret\n"), "{tree}");
        let to = dir.path().join(vers);
        partial(&["get", "-r", &url("/l"), text(&to)], &["/names/x: ", "/secret: "]);
        assert_eq!(names(&to), ["f", "names/"]);
    }
}

#[test]
fn a_copy_under_nohup_continues_after_a_hang_up() {
    let dir = tempfile::tempdir().unwrap();
    let served = dir.path().join("served");
    fs::create_dir(&served).unwrap();
    let (from, content) = (dir.path().join("from"), noise(40 << 20, 1));
    fs::write(&from, &content).unwrap();
    let server = Server::start(&["--export", &format!("/l=local:{},squash=none", served.display())]);
    // As nohup(1) does.
    let script = r#"trap "" HUP; exec "$0" put --outstanding 1 --record 64K "$@""#;
    let child = Command::new("sh")
        .args(["-c", script, env!("CARGO_BIN_EXE_millrace"), text(&from), &server.url("tcp", "/l/to")])
        .spawn()
        .unwrap();
    wait_for_a_temporary_name(&served);
    kill(child.id(), "HUP");
    assert!(child.wait_with_output().unwrap().status.success());
    assert!(fs::read(served.join("to")).unwrap() == content);
}

#[test]
fn an_interrupted_demo_removes_its_copies() {
    let dir = tempfile::tempdir().unwrap();
    let (tree, temporary) = (dir.path().join("tree"), dir.path().join("temporary"));
    fs::create_dir(&tree).unwrap();
    fs::create_dir(&temporary).unwrap();
    for i in 0..20 {
        fs::write(tree.join(format!("{i}")), noise(10 << 20, i)).unwrap();
    }
    let child = interruptible()
        .args(["demo", "--json", text(&tree)])
        .env("TMPDIR", &temporary)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // A directory of the first pass, which starts after the handlers of signals.
    while !names(&temporary).iter().any(|name| name.ends_with("/rdma/")) {
        std::thread::sleep(Duration::from_millis(1));
    }
    kill(child.id(), "HUP");
    let out = child.wait_with_output().unwrap();
    let message = String::from_utf8(out.stderr).unwrap();
    assert_eq!(out.status.code(), Some(130), "{message}");
    assert!(message.contains("stopping"), "{message}");
    assert!(names(&temporary).is_empty(), "{:?}", names(&temporary));
}
