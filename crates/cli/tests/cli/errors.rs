//! Errors are one sentence with a remedy, and leave no partial results.

use std::{
    fs,
    io::{BufRead, BufReader, Read},
    os::unix::fs::PermissionsExt,
    process::Stdio,
};

use crate::common::{RESTARTS_AT, Server, fails, millrace, names, noise, ok, run, text};

#[test]
fn invalid_command_lines_are_usage_errors() {
    assert!(fails(2, &["ls", "somewhere"]).contains("nfs://"));
    assert!(fails(2, &["ls", "http://host/x"]).contains("nfs://"));
    assert!(fails(2, &["ls", "nfs://host/x?proto=udp"]).contains("rdma or tcp"));
    assert!(fails(2, &["ls", "host:/x"]).contains("write 'nfs://host/x'"));
    assert!(fails(2, &["cp", "a", "b"]).contains("cp(1)"));
    assert!(fails(2, &["put", "a", "b"]).contains("not a URL"));
    assert!(fails(2, &["serve", "--export", "/x=disk:/y"]).contains("memory:SIZE"));
    assert!(fails(2, &["--log", "a=b=c", "ls", "nfs://h/x"]).contains("--log"));
    for args in [&["nonsense"][..], &["ls"], &["bench", "iozone"], &["serve"], &["ls", "--nonsense", "x"]] {
        assert_eq!(millrace().args(args).output().unwrap().status.code(), Some(2), "{args:?}");
    }
}

#[test]
fn a_refused_connection_names_the_address_and_what_to_check() {
    let unused = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = unused.local_addr().unwrap();
    drop(unused);
    for proto in ["rdma", "tcp"] {
        let message = fails(1, &["ls", &format!("nfs://{addr}/x?proto={proto}")]);
        assert!(
            message.contains(&addr.to_string()) && message.contains("check that the server runs"),
            "{message}"
        );
    }
}

#[test]
fn a_copy_waits_for_a_server_that_cannot_be_reached_yet() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("file"), noise(100_000, 3)).unwrap();
    let file = dir.path().join("file");
    let free = || std::net::TcpListener::bind(RESTARTS_AT).unwrap().local_addr().unwrap().to_string();
    let (rdma, tcp) = (free(), free());
    let mut copies = Vec::new();
    for (proto, addr) in [("rdma", &rdma), ("tcp", &tcp)] {
        let url = format!("nfs://{addr}/data/{proto}?proto={proto}");
        let mut cp = millrace();
        cp.args(["cp", file.to_str().unwrap(), &url]).stderr(Stdio::piped());
        let mut cp = cp.spawn().unwrap();
        let mut message = BufReader::new(cp.stderr.take().unwrap());
        let mut first = String::new();
        message.read_line(&mut first).unwrap();
        assert!(first.contains("retrying") && first.contains(addr), "{first}");
        copies.push((cp, message));
    }
    let server = Server::start_at(&rdma, &tcp, &["--export", "/data=memory:16MiB"]);
    for (mut cp, mut message) in copies {
        let mut rest = String::new();
        message.read_to_string(&mut rest).unwrap();
        assert!(cp.wait().unwrap().success(), "{rest}");
    }
    for proto in ["rdma", "tcp"] {
        let copy = dir.path().join(proto);
        ok(&["get", &server.url(proto, &format!("/data/{proto}")), copy.to_str().unwrap()]);
        assert_eq!(fs::read(copy).unwrap(), noise(100_000, 3));
    }
}

#[test]
fn unknown_exports_and_unknown_files_have_different_errors() {
    let server = Server::start(&["--export", "/data=memory:16MiB"]);
    for proto in ["rdma", "tcp"] {
        // The root of NFSv4 shows the exports, and cannot be changed.
        assert_eq!(ok(&["ls", &format!("{}&vers=4.2", server.url(proto, "/"))]), "data/\n");
        assert!(fails(1, &["mkdir", &format!("{}&vers=4.2", server.url(proto, "/new"))]).contains("/data"));
        let message = fails(1, &["ls", &format!("{}&vers=3", server.url(proto, "/"))]);
        assert!(message.contains("no export") && message.contains("/data"), "{message}");
        let message = fails(1, &["ls", &server.url(proto, "/nope")]);
        assert!(message.contains("/nope") && message.contains("/data"), "{message}");
        let dir = tempfile::tempdir().unwrap();
        fails(1, &["get", &server.url(proto, "/nope/file"), dir.path().join("file").to_str().unwrap()]);
        assert_eq!(names(dir.path()), Vec::<String>::new());
        let message = fails(1, &["ls", &server.url(proto, "/data/nope")]);
        assert!(message.contains("no such file") && message.contains("millrace ls"), "{message}");
    }
}

#[test]
fn a_full_export_leaves_no_file_under_its_name_and_no_other() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(&["--export", "/small=memory:4MiB"]);
    fs::write(dir.path().join("big"), noise(8 << 20, 1)).unwrap();
    fs::write(dir.path().join("fits"), noise(1 << 20, 2)).unwrap();
    let big = dir.path().join("big");
    for proto in ["rdma", "tcp"] {
        let message = fails(1, &["put", big.to_str().unwrap(), &server.url(proto, "/small/big")]);
        assert!(message.contains("no space left") && message.contains("free some space"), "{message}");
        assert_eq!(ok(&["ls", "-a", &server.url(proto, "/small")]), "");
    }
    ok(&["put", dir.path().join("fits").to_str().unwrap(), &server.url("rdma", "/small/")]);
}

#[test]
fn a_read_only_export_refuses_every_change() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("f"), b"x").unwrap();
    let export = format!("/ro=local:{},ro,squash=none", dir.path().display());
    let server = Server::start(&["--export", &export]);
    let (url, file) = (server.url("rdma", "/ro/f"), dir.path().join("f"));
    for args in [
        &["put", file.to_str().unwrap(), &server.url("tcp", "/ro/new")][..],
        &["rm", &url],
        &["mkdir", &server.url("rdma", "/ro/d")],
        &["mv", &url, &server.url("rdma", "/ro/g")],
        &["ln", "-s", "x", &server.url("rdma", "/ro/l")],
    ] {
        let message = fails(1, args);
        assert!(message.contains("read-only"), "{message}");
    }
    assert_eq!(names(dir.path()), ["f"]);
}

#[test]
fn missing_permission_is_reported() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("new"), b"x").unwrap();
    // All callers are mapped to the anonymous user, which has no privileges.
    let server = Server::start(&["--export", "/m=memory:16MiB,squash=all"]);
    ok(&["mkdir", "--mode", "555", &server.url("rdma", "/m/d")]);
    for proto in ["rdma", "tcp"] {
        let to = server.url(proto, "/m/d/new");
        let message = fails(1, &["put", dir.path().join("new").to_str().unwrap(), &to]);
        assert!(message.contains("permission denied") && message.contains("squash"), "{message}");
    }
}

#[test]
fn a_copy_with_an_unsupported_file_is_partial() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(&["--export", "/m=memory:16MiB"]);
    let from = dir.path().join("from");
    fs::create_dir(&from).unwrap();
    fs::write(from.join("good"), b"x").unwrap();
    let fifo = from.join("pipe");
    assert!(std::process::Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    let message = fails(3, &["put", "-r", from.to_str().unwrap(), &server.url("rdma", "/m/to")]);
    assert!(message.contains("pipe") && message.contains("not copied"), "{message}");
    assert_eq!(ok(&["ls", "-a", &server.url("rdma", "/m/to")]), "good\n");
}

#[test]
fn entries_that_cannot_be_removed_are_named_and_the_others_are_removed() {
    let dir = tempfile::tempdir().unwrap();
    let (from, locked) = (dir.path().join("t"), dir.path().join("t/locked"));
    for name in ["a", "locked/below", "z/deep"] {
        fs::create_dir_all(from.join(name)).unwrap();
        fs::write(from.join(name).join("f"), b"x").unwrap();
    }
    fs::write(locked.join("x"), b"x").unwrap();
    let set_mode = |mode| fs::set_permissions(&locked, fs::Permissions::from_mode(mode)).unwrap();
    set_mode(0o555);
    // All callers are the anonymous user, who may not remove entries of a directory without write permission.
    let server = Server::start(&["--export", "/m=memory:16MiB,squash=all"]);
    for proto in ["rdma", "tcp"] {
        let (tree, other) = (server.url(proto, "/m/t"), server.url(proto, "/m/other"));
        ok(&["put", "-r", text(&from), &tree]);
        ok(&["mkdir", &other]);
        let named = |args: &[&str], code| {
            let out = run(args);
            let message = String::from_utf8(out.stderr).unwrap();
            assert_eq!(out.status.code(), Some(code), "{message}");
            let mut lines: Vec<_> = message.lines().collect();
            lines.sort_unstable();
            assert_eq!(lines.len(), 2, "{message}");
            for (line, name) in lines.iter().zip(["locked/below", "locked/x"]) {
                assert!(
                    line.starts_with(&format!("millrace: cannot remove {name} in {tree}: permission")),
                    "{line}"
                );
            }
        };
        named(&["rm", "-r", &tree], 3);
        let left = ok(&["tree", &tree]);
        assert!(
            left.contains("`-- locked\n") && left.contains("|-- below\n") && left.contains("`-- x"),
            "{left}"
        );
        assert!(left.ends_with("\n2 directories, 1 file, 1 B\n"), "{left}");
        named(&["rm", "-r", &tree], 1);
        named(&["rm", "-r", &tree, &other], 3);
        fails(1, &["ls", &other]);
        ok(&["mv", &tree, &server.url(proto, &format!("/m/left-{proto}"))]);
    }
    set_mode(0o755);
}

#[test]
fn a_pipe_that_closes_is_not_a_panic() {
    let server = Server::start(&["--export", "/m=memory:64MiB"]);
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("f"), noise(8 << 20, 3)).unwrap();
    ok(&["put", dir.path().join("f").to_str().unwrap(), &server.url("rdma", "/m/f")]);
    let mut child = millrace()
        .args(["cat", &server.url("rdma", "/m/f")])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let out = child.wait_with_output().unwrap();
    assert!(out.stderr.is_empty(), "{}", String::from_utf8_lossy(&out.stderr));
}
