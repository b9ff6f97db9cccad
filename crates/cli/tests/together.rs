//! Several clients at once, servers that come back, and trees that are hard to copy.

mod common;

use std::{
    collections::BTreeSet,
    ffi::OsStr,
    fs,
    os::unix::{
        ffi::OsStrExt,
        fs::{MetadataExt, PermissionsExt, symlink},
    },
    path::Path,
    process::{Command, Stdio},
    time::{Duration, UNIX_EPOCH},
};

use common::{Server, fails, kill, millrace, names, noise, ok};

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Runs each command line in a process of its own, all at once; all must succeed.
fn at_once(lines: &[Vec<String>]) {
    let spawn = |line: &Vec<String>| {
        let mut c: Command = millrace();
        c.args(line).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let children: Vec<_> = lines.iter().map(spawn).collect();
    for (child, line) in children.into_iter().zip(lines) {
        let out = child.wait_with_output().unwrap();
        assert!(out.status.success(), "{line:?}: {}", String::from_utf8_lossy(&out.stderr));
    }
}

#[test]
fn two_clients_fill_and_empty_one_directory() {
    let dir = tempfile::tempdir().unwrap();
    let served = dir.path().join("served");
    fs::create_dir(&served).unwrap();
    let local = format!("/l=local:{}", served.display());
    let server = Server::start(&["--export", "/m=memory:64MiB", "--export", &local]);
    for who in ["one", "two"] {
        fs::create_dir(dir.path().join(who)).unwrap();
        for i in 0..60_u64 {
            fs::write(dir.path().join(who).join(format!("{who}-{i:02}")), noise(3000, i)).unwrap();
        }
        // Both bring this one.
        fs::write(dir.path().join(who).join("both"), who.repeat(50_000)).unwrap();
    }
    for export in ["m", "l"] {
        let url = |proto, path: &str| server.url(proto, &format!("/{export}{path}"));
        ok(&["mkdir", &url("tcp", "/d")]);
        let put = |proto, who: &str| {
            let mut line = vec!["put".to_owned(), "-q".into()];
            line.extend(
                names(&dir.path().join(who)).iter().map(|n| format!("{}/{who}/{n}", dir.path().display())),
            );
            line.push(url(proto, "/d/"));
            line
        };
        at_once(&[put("rdma", "one"), put("tcp", "two")]);
        let listed = ok(&["ls", "-a", &url("rdma", "/d")]);
        let all: BTreeSet<String> =
            ["one", "two"].iter().flat_map(|who| names(&dir.path().join(who))).collect();
        assert_eq!(listed.lines().map(str::to_owned).collect::<BTreeSet<_>>(), all);
        // One or the other, never a mixture.
        let both = ok(&["cat", &url("rdma", "/d/both")]);
        assert!(both == "one".repeat(50_000) || both == "two".repeat(50_000));

        // One removes while the other adds.
        let rm = ["rm".to_owned(), "-f".into()]
            .into_iter()
            .chain((0..60).map(|i| url("rdma", &format!("/d/one-{i:02}"))))
            .collect();
        let again = vec![
            "cp".into(),
            "-r".into(),
            "--verify".into(),
            text(&dir.path().join("two")).to_owned(),
            url("tcp", "/d/again"),
        ];
        at_once(&[rm, again, vec!["tree".into(), url("tcp", "/d")]]);
        let listed = ok(&["ls", &url("tcp", "/d")]);
        assert!(!listed.contains("one-") && listed.lines().count() == 62, "{listed}");
        // Both remove the same tree, and a third one looks: what is gone is gone.
        let rm = |proto| vec!["rm".to_owned(), "-rf".into(), url(proto, "/d")];
        at_once(&[rm("rdma"), rm("tcp"), vec!["tree".into(), url("tcp", "")]]);
        assert_eq!(ok(&["ls", "-a", &url("rdma", "")]), "");
    }
}

/// A directory with everything that is hard to copy.
fn hard_tree(root: &Path) {
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
fn a_hard_tree_goes_round_through_two_servers_and_back() {
    let dir = tempfile::tempdir().unwrap();
    let (from, served) = (dir.path().join("from"), dir.path().join("served"));
    hard_tree(&from);
    fs::create_dir(&served).unwrap();
    let one = Server::start(&["--export", "/m=memory:64MiB"]);
    let two = Server::start(&["--export", &format!("/l=local:{}", served.display())]);
    for proto in ["rdma", "tcp"] {
        let other = if proto == "rdma" { "tcp" } else { "rdma" };
        let (there, copy) = (one.url(proto, "/m/tree"), two.url(other, &format!("/l/{proto}")));
        let cp = ["cp", "-r", "--verify", "--hard-links", "--json"];
        ok(&[&cp[..], &[text(&from), &there]].concat());
        ok(&[&cp[..], &[&format!("{there}&nconnect=2"), &copy]].concat());
        assert_same_tree(&from, &served.join(proto));
        let back = dir.path().join(format!("back-{proto}"));
        let said = ok(&[&cp[..], &[&copy, text(&back)]].concat());
        let report: serde_json::Value = serde_json::from_str(&said).unwrap();
        assert_eq!(report["hard_links"].as_u64(), Some(1), "{said}");
        assert_eq!(
            (report["symlinks"].as_u64(), report["failed"].as_array().map(Vec::len)),
            (Some(3), Some(0))
        );
        assert_same_tree(&from, &back);
        let ino = |name| fs::metadata(back.join(name)).unwrap().ino();
        assert_eq!(ino("size 1"), ino("dir with space/another name"));
        ok(&["rm", "-r", &there]);
    }
}

#[test]
fn names_with_spaces_and_other_letters_can_be_given_in_urls() {
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
fn a_name_that_is_not_utf8_is_copied_as_it_is() {
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
fn every_json_form_is_json() {
    let dir = tempfile::tempdir().unwrap();
    let from = dir.path().join("a \"name\"");
    hard_tree(&from);
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
        let said = ok(args);
        assert!(!said.is_empty());
        for line in said.lines() {
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

/// What a configuration file makes the server say when it refuses it.
fn refused(dir: &Path, toml: &str) -> String {
    let file = dir.join("millrace.toml");
    fs::write(&file, toml).unwrap();
    let out = common::run(&["serve", "--log", "off", "--config", text(&file)]);
    let said = String::from_utf8(out.stderr).unwrap();
    assert!(matches!(out.status.code(), Some(1 | 2)) && out.stdout.is_empty(), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
    said
}

#[test]
fn a_wrong_configuration_file_is_told_by_line_and_key() {
    let dir = tempfile::tempdir().unwrap();
    let export = "[[export]]\nname = \"/a\"\nbackend = \"memory:16MiB\"\n";
    let said = refused(dir.path(), &format!("{export}readonly = true\n"));
    assert!(said.contains("line 4") && said.contains("`readonly`") && said.contains("`read_only`"), "{said}");
    let said = refused(dir.path(), &format!("shards = \"two\"\n{export}"));
    assert!(said.contains("line 1") && said.contains("two"), "{said}");
    let said = refused(dir.path(), "[[export]]\nname = \"/a\"\nbackend = \"disk:/x\"\n");
    assert!(said.contains("line 3") && said.contains("memory:SIZE"), "{said}");
    let said = refused(dir.path(), &format!("[limits]\nrtmax = 5000\n{export}"));
    assert!(said.contains("rtmax") && said.contains("4096"), "{said}");
    let said = refused(dir.path(), "[[export]\n");
    assert!(said.contains("line 1"), "{said}");
    let said = refused(dir.path(), "");
    assert!(said.contains("--export"), "{said}");
    let missing = dir.path().join("missing.toml");
    let said = fails(1, &["serve", "--log", "off", "--config", text(&missing)]);
    assert!(said.contains("missing.toml") && said.contains("--config"), "{said}");
}

#[test]
fn a_server_with_a_state_directory_comes_back_in_the_middle_of_a_copy() {
    let dir = tempfile::tempdir().unwrap();
    let (served, from, state) =
        (dir.path().join("served"), dir.path().join("from"), dir.path().join("state"));
    for d in [&served, &from, &state] {
        fs::create_dir(d).unwrap();
    }
    for i in 0..30 {
        fs::write(from.join(format!("{i}")), noise(2_000_000, i)).unwrap();
    }
    let config = dir.path().join("millrace.toml");
    let toml = format!(
        "state_dir = \"{}\"\n[[export]]\nname = \"/x\"\nbackend = \"local:{}\"\n",
        state.display(),
        served.display()
    );
    fs::write(&config, toml).unwrap();
    for proto in ["rdma", "tcp"] {
        let to = served.join(proto);
        let mut server = Server::start(&["--config", text(&config)]);
        let (rdma, tcp) = (server.rdma.clone(), server.tcp.clone());
        let url = server.url(proto, &format!("/x/{proto}"));
        let copy = millrace()
            .args(["cp", "-r", "--verify", "--json", "--parallel", "2", text(&from), &url])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        while fs::read_dir(&to).map_or(0, Iterator::count) < 4 {
            std::thread::sleep(Duration::from_millis(1));
        }
        kill(server.child.id(), "KILL");
        server.wait();
        let _again = Server::start_at(&rdma, &tcp, &["--config", text(&config)]);
        let out = copy.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&out.stdout).into_owned();
        assert!(out.status.success(), "{said}{}", String::from_utf8_lossy(&out.stderr));
        let report: serde_json::Value = serde_json::from_str(&said).unwrap();
        assert_eq!((report["files"].as_u64(), report["verified"].as_u64()), (Some(30), Some(30)), "{said}");
        assert_eq!(names(&to), names(&from));
        assert!(
            names(&from).iter().all(|n| fs::read(to.join(n)).unwrap() == fs::read(from.join(n)).unwrap())
        );
    }
}

#[test]
fn a_server_told_to_stop_lets_a_copy_end_or_tells_it_and_leaves_no_half_file() {
    let dir = tempfile::tempdir().unwrap();
    let (served, from) = (dir.path().join("served"), dir.path().join("from"));
    fs::create_dir(&served).unwrap();
    fs::create_dir(&from).unwrap();
    for i in 0..30 {
        fs::write(from.join(format!("{i}")), noise(2_000_000, i)).unwrap();
    }
    let export = format!("/x=local:{}", served.display());
    let mut server = Server::start(&["--export", &export]);
    let (rdma, tcp) = (server.rdma.clone(), server.tcp.clone());
    let copy = millrace()
        .args(["put", "-r", "--verify", text(&from), &server.url("rdma", "/x/t")])
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    while fs::read_dir(served.join("t")).map_or(0, Iterator::count) < 4 {
        std::thread::sleep(Duration::from_millis(1));
    }
    kill(server.child.id(), "TERM");
    assert_eq!(server.wait().code(), Some(0));
    // What has its final name is whole, whenever the server ends.
    for name in names(&served.join("t")).iter().filter(|n| !n.contains(".millrace-")) {
        assert!(
            fs::read(served.join("t").join(name)).unwrap() == fs::read(from.join(name)).unwrap(),
            "{name}"
        );
    }
    let _again = Server::start_at(&rdma, &tcp, &["--export", &export]);
    let out = copy.wait_with_output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    assert_eq!(names(&served.join("t")), names(&from));
}
