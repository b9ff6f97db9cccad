//! Trees with unusual names, modes and links, and JSON output.

#![allow(clippy::unwrap_used, clippy::panic)] // Helpers of tests, which are to fail.

mod common;

use std::{
    ffi::OsStr,
    fs,
    os::unix::{
        ffi::OsStrExt,
        fs::{MetadataExt, PermissionsExt, symlink},
    },
    path::Path,
    time::{Duration, UNIX_EPOCH},
};

use common::{Server, names, noise, ok, text};

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
