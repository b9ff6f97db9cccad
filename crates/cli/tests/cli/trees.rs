//! Trees with unusual names, modes and links, and JSON output.

use std::{
    ffi::{OsStr, OsString},
    fs,
    os::unix::{
        ffi::OsStrExt,
        fs::{MetadataExt, PermissionsExt, symlink},
    },
    path::Path,
    time::{Duration, UNIX_EPOCH},
};

use crate::common::{self, Server, fails, names, noise, ok, text};

/// Creates a tree with unusual names, sizes, modes, links and times.
fn unusual_tree(root: &Path) {
    fs::create_dir_all(root.join("dir with space/ünïcødé/深い")).unwrap();
    fs::create_dir(root.join("empty dir")).unwrap();
    for (i, size) in [0, 1, 4095, 4096, 65_537, 1 << 20, (1 << 20) + 1, 5 << 20].into_iter().enumerate() {
        fs::write(root.join(format!("size {size}")), noise(size, i as u64)).unwrap();
    }
    fs::write(root.join("dir with space/ünïcødé/深い/файл \"quoted\" 'x' %41 ?a=b #c"), b"deep").unwrap();
    fs::write(root.join(".hidden"), b"h").unwrap();
    fs::write(root.join("x".repeat(255)), b"long").unwrap();
    symlink("size 4096", root.join("link")).unwrap();
    symlink("/nowhere/at all", root.join("dangling")).unwrap();
    symlink("..", root.join("dir with space/up")).unwrap();
    fs::hard_link(root.join("size 1"), root.join("dir with space/another name")).unwrap();
    for (name, mode) in [("size 0", 0o444), ("size 1", 0o755), ("size 4095", 0o600), ("empty dir", 0o1777)] {
        fs::set_permissions(root.join(name), fs::Permissions::from_mode(mode)).unwrap();
    }
    for (i, name) in ["size 1", "size 4096", "dir with space", "empty dir"].iter().enumerate() {
        let then = UNIX_EPOCH + Duration::new(1_000_000_000 + i as u64, 123_456_789);
        fs::File::open(root.join(name)).unwrap().set_modified(then).unwrap();
    }
    let then = UNIX_EPOCH + Duration::new(999_999_999, 5);
    fs::File::open(root).unwrap().set_modified(then).unwrap();
}

fn assert_same_tree(a: &Path, b: &Path) {
    assert_eq!(names(a), names(b));
    let mut all = names(a);
    all.push(String::new());
    for name in all {
        let name = name.trim_end_matches(['/', '@']);
        let (x, y) = (a.join(name), b.join(name));
        let (mx, my) = (fs::symlink_metadata(&x).unwrap(), fs::symlink_metadata(&y).unwrap());
        assert_eq!(mx.mode(), my.mode(), "mode of {name:?}");
        assert_eq!((mx.mtime(), mx.mtime_nsec()), (my.mtime(), my.mtime_nsec()), "time of {name:?}");
        if mx.is_symlink() {
            assert_eq!(fs::read_link(&x).unwrap(), fs::read_link(&y).unwrap());
        } else if mx.is_file() {
            assert!(fs::read(&x).unwrap() == fs::read(&y).unwrap(), "{name:?} differs");
        }
    }
}

#[test]
fn an_unusual_tree_is_unchanged_after_copies_through_two_servers() {
    let dir = tempfile::tempdir().unwrap();
    let (from, served) = (dir.path().join("from"), dir.path().join("served"));
    unusual_tree(&from);
    fs::create_dir(&served).unwrap();
    let one = Server::start(&["--export", "/m=memory:64MiB"]);
    let local = format!("/l=local:{},squash=none", served.display());
    let two = Server::start(&["--export", &local, "--metrics", "127.0.0.1:0"]);
    for proto in ["rdma", "tcp"] {
        let other = if proto == "rdma" { "tcp" } else { "rdma" };
        let (there, copy) = (one.url(proto, "/m/tree"), two.url(other, &format!("/l/{proto}")));
        let cp = ["cp", "-r", "--verify", "--hard-links", "--json"];
        ok(&[&cp[..], &[text(&from), &there]].concat());
        ok(&[&cp[..], &[&format!("{there}&nconnect=2"), &copy]].concat());
        assert_same_tree(&from, &served.join(proto));
        ok(&["cp", "-r", "--hard-links", "--quiet", &copy, &two.url(other, &format!("/l/{proto}-again"))]);
        assert_same_tree(&from, &served.join(format!("{proto}-again")));
        let back = dir.path().join(format!("back-{proto}"));
        let message = ok(&[&cp[..], &[&copy, text(&back)]].concat());
        let report: serde_json::Value = serde_json::from_str(&message).unwrap();
        assert_eq!(report["hard_links"].as_u64(), Some(1), "{message}");
        assert_eq!(
            (report["symlinks"].as_u64(), report["failed"].as_array().map(Vec::len)),
            (Some(3), Some(0))
        );
        assert_same_tree(&from, &back);
        let ino = |name| fs::metadata(back.join(name)).unwrap().ino();
        assert_eq!(ino("size 1"), ino("dir with space/another name"));
        ok(&["rm", "-r", &there]);
    }
    // The two files above the size of a WRITE are copied by the server, once for each transport.
    let metrics = two.metrics();
    assert!(metrics.contains("millrace_nfs_calls_total{version=\"4\",procedure=\"COPY\"} 4\n"), "{metrics}");
}

#[test]
fn urls_may_contain_spaces_and_non_ascii_letters() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("ein Name.txt");
    fs::write(&file, b"content").unwrap();
    let server = Server::start(&["--export", "/m=memory:16MiB"]);
    for proto in ["rdma", "tcp"] {
        ok(&["mkdir", "-p", &server.url(proto, "/m/Übung 1/日本")]);
        ok(&["put", text(&file), &server.url(proto, "/m/Übung 1/日本/")]);
        let url = server.url(proto, "/m/Übung 1/日本/ein Name.txt");
        assert_eq!(ok(&["cat", &url]), "content");
        assert!(ok(&["tree", &server.url(proto, "/m")]).contains("    `-- ein Name.txt"));
        ok(&["rm", "-r", &server.url(proto, "/m/Übung 1")]);
    }
}

#[test]
fn a_name_that_is_not_utf8_is_copied_unchanged() {
    let dir = tempfile::tempdir().unwrap();
    let from = dir.path().join("from");
    fs::create_dir(&from).unwrap();
    if fs::write(from.join(OsStr::from_bytes(b"latin-\xe4")), b"x").is_err() {
        println!("skipped: this file system takes UTF-8 names only");
        return;
    }
    let server = Server::start(&["--export", "/m=memory:16MiB"]);
    ok(&["put", "-r", text(&from), &server.url("rdma", "/m/t")]);
    ok(&["get", "-r", &server.url("tcp", "/m/t"), text(&dir.path().join("back"))]);
    assert!(dir.path().join("back").join(OsStr::from_bytes(b"latin-\xe4")).exists());
}

#[test]
fn names_that_are_not_utf8_can_be_given_and_are_printed() {
    let dir = tempfile::tempdir().unwrap();
    let local = |name: &[u8]| dir.path().join(OsStr::from_bytes(name));
    let (file, exported) = (local(b"abc\xe9.txt"), local(b"srv-\xe9"));
    if fs::write(&file, b"content").is_err() {
        println!("skipped: this file system takes UTF-8 names only");
        return;
    }
    fs::create_dir(&exported).unwrap();
    let export = [b"/l=local:", exported.as_os_str().as_bytes(), b",squash=none"].concat();
    let arg = |bytes: &[u8]| OsStr::from_bytes(bytes).to_owned();
    let exports = [arg(b"--export"), arg(b"/m=memory:16MiB"), arg(b"--export"), arg(&export)];
    let server = Server::start_with("127.0.0.1:0", "127.0.0.1:0", &exports);
    for (export, vers) in [("/m", 3), ("/m", 4), ("/l", 3), ("/l", 4)] {
        let vers = if vers == 3 { "3" } else { "4.2" };
        let url = |path: &[u8]| {
            let end = format!("?proto=tcp&vers={vers}");
            arg(&[b"nfs://", server.tcp.as_bytes(), export.as_bytes(), path, end.as_bytes()].concat())
        };
        let out = |args: &[OsString]| {
            let out = common::run(args);
            assert!(out.status.success(), "{args:?}: {}", String::from_utf8_lossy(&out.stderr));
            out.stdout
        };
        let is_in = |part: &[u8], text: &[u8]| text.windows(part.len()).any(|found| found == part);
        out(&[arg(b"mkdir"), url(b"/\xe9")]);
        out(&[arg(b"put"), file.clone().into(), url(b"/\xe9")]);
        for path in [&b"/\xe9/abc\xe9.txt"[..], b"/%E9/abc%e9.txt"] {
            assert_eq!(out(&[arg(b"cat"), url(path)]), b"content");
        }
        assert_eq!(out(&[arg(b"ls"), url(b"/%E9")]), b"abc\xe9.txt\n");
        assert!(is_in(b" abc\xe9.txt\n", &out(&[arg(b"ls"), arg(b"-l"), url(b"/%E9")])));
        assert!(is_in(b"`-- abc\xe9.txt\n", &out(&[arg(b"tree"), url(b"")])));
        out(&[arg(b"ln"), arg(b"-s"), arg(b"abc\xe9.txt"), url(b"/link")]);
        let json = |args: &[OsString]| serde_json::from_slice::<serde_json::Value>(&out(args)).unwrap();
        let entry = json(&[arg(b"ls"), arg(b"--json"), url(b"/%E9")]);
        assert_eq!(entry["name"], "abc\u{fffd}.txt");
        assert_eq!(entry["name_bytes"], "abc%E9.txt");
        assert_eq!(json(&[arg(b"stat"), arg(b"--json"), url(b"/link")])["target_bytes"], "abc%E9.txt");
        out(&[arg(b"mv"), url(b"/\xe9/abc\xe9.txt"), url(b"/\xff")]);
        out(&[arg(b"get"), url(b"/%FF"), local(b"back-\xe9").into()]);
        assert_eq!(fs::read(local(b"back-\xe9")).unwrap(), b"content");
        if export == "/l" {
            assert_eq!(fs::read(exported.join(OsStr::from_bytes(b"\xff"))).unwrap(), b"content");
        }
        out(&[arg(b"rm"), arg(b"-r"), url(b"/\xff"), url(b"/%e9"), url(b"/link")]);
        assert_eq!(out(&[arg(b"ls"), arg(b"-a"), url(b"")]), b"");
    }
    let refused = fails(2, &[arg(b"serve"), arg(b"--export"), arg(b"/\xe9=memory:16MiB")]);
    assert!(refused.contains("is not UTF-8"), "{refused}");
}

#[test]
fn json_output_is_valid() {
    let dir = tempfile::tempdir().unwrap();
    let from = dir.path().join("a \"name\"");
    unusual_tree(&from);
    let server = Server::start(&["--export", "/m=memory:64MiB,client=127.0.0.0/8"]);
    ok(&["put", "-r", text(&from), &server.url("rdma", "/m/")]);
    let url = server.url("rdma", "/m/a \"name\"");
    for (args, keys) in [
        (&["ls", "-a", "--json", &url][..], &["name", "kind", "size", "mtime"][..]),
        (&["tree", "-a", "--json", &url], &["name", "kind"]),
        (&["stat", "--json", &url, &url], &["name", "mode", "uid", "gid", "ctime"]),
        (&["df", "--json", &url], &["export", "total_bytes", "free_bytes", "available_files"]),
        (&["exports", "--json", &url], &["export", "clients"]),
    ] {
        let message = ok(args);
        assert!(!message.is_empty());
        for line in message.lines() {
            let value: serde_json::Value = serde_json::from_str(line).unwrap();
            assert!(keys.iter().all(|k| value.get(k).is_some()), "{args:?}: {line}");
        }
    }
    let bytes = ok(&["ls", "--json", &url]);
    let total: u64 = bytes
        .lines()
        .map(|l| serde_json::from_str::<serde_json::Value>(l).unwrap())
        .filter(|v| v["kind"] == "file")
        .map(|v| v["size"].as_u64().unwrap())
        .sum();
    assert!(total > 7 << 20);
}
