//! All commands on files, over {rdma, tcp} x {memory, local}.

use std::{
    fs,
    io::{Read, Seek, SeekFrom, Write},
    net::{SocketAddr, TcpListener},
    os::unix::fs::{MetadataExt, PermissionsExt, symlink},
    path::Path,
    process::Stdio,
    time::{Duration, UNIX_EPOCH},
};

use crate::common::{Server, fails, millrace, names, noise, ok, run, shell, text};

/// Runs `test` with the URL of an empty directory for each transport and back end.
fn with_all_transports_and_backends(test: impl Fn(&dyn Fn(&str) -> String, &Path)) {
    let dir = tempfile::tempdir().unwrap();
    let served = dir.path().join("served");
    fs::create_dir(&served).unwrap();
    let local = format!("/loc=local:{},squash=none", served.display());
    let server = Server::start(&["--export", "/mem=memory:256MiB", "--export", &local]);
    for export in ["mem", "loc"] {
        for proto in ["rdma", "tcp"] {
            let directory = format!("/{export}/{proto}");
            ok(&["mkdir", &server.url(proto, &directory)]);
            let here = dir.path().join(format!("{export}-{proto}"));
            fs::create_dir(&here).unwrap();
            test(&|path| server.url(proto, &format!("{directory}{path}")), &here);
        }
    }
}

#[test]
fn a_tree_is_unchanged_after_put_and_get() {
    with_all_transports_and_backends(|url, dir| {
        let from = dir.join("from");
        fs::create_dir_all(from.join("a/b")).unwrap();
        fs::write(from.join("empty"), b"").unwrap();
        fs::write(from.join("small"), b"hello\n").unwrap();
        fs::write(from.join("a/large"), noise(5_000_001, 1)).unwrap();
        fs::write(from.join("a/b/record"), noise(1 << 20, 2)).unwrap();
        fs::write(from.join("name with ä and space"), b"x").unwrap();
        symlink("a/large", from.join("link")).unwrap();
        fs::hard_link(from.join("small"), from.join("a/same")).unwrap();
        fs::set_permissions(from.join("small"), fs::Permissions::from_mode(0o640)).unwrap();
        let old = UNIX_EPOCH + Duration::new(1_234_567_890, 987_654_321);
        fs::File::open(from.join("a/large")).unwrap().set_modified(old).unwrap();
        fs::File::open(from.join("a/b")).unwrap().set_modified(old).unwrap();

        let (src, back) = (from.to_str().unwrap(), dir.join("back"));
        let message = ok(&["put", "-r", "--verify", "--hard-links", "--json", src, &url("/tree")]);
        let json: serde_json::Value = serde_json::from_str(&message).unwrap();
        assert_eq!((json["files"].as_u64(), json["verified"].as_u64()), (Some(5), Some(5)), "{message}");
        assert_eq!((json["hard_links"].as_u64(), json["symlinks"].as_u64()), (Some(1), Some(1)));
        ok(&["get", "-r", "--verify", "--hard-links", &url("/tree"), back.to_str().unwrap()]);

        assert_eq!(names(&back), names(&from));
        for name in names(&from) {
            let name = name.trim_end_matches(['/', '@']);
            let (a, b) = (from.join(name), back.join(name));
            let (ma, mb) = (fs::symlink_metadata(&a).unwrap(), fs::symlink_metadata(&b).unwrap());
            assert_eq!(ma.mode(), mb.mode(), "{name}");
            if !ma.is_symlink() {
                assert_eq!((ma.mtime(), ma.mtime_nsec()), (mb.mtime(), mb.mtime_nsec()), "{name}");
            }
            if ma.is_file() {
                assert!(fs::read(&a).unwrap() == fs::read(&b).unwrap(), "{name} differs");
            }
        }
        assert_eq!(fs::read_link(back.join("link")).unwrap(), Path::new("a/large"));
        assert_eq!(
            fs::metadata(back.join("small")).unwrap().ino(),
            fs::metadata(back.join("a/same")).unwrap().ino()
        );
    });
}

#[test]
fn listings_and_attributes_match_the_files() {
    with_all_transports_and_backends(|url, dir| {
        let file = dir.join("file");
        fs::write(&file, noise(10_000, 3)).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o604)).unwrap();
        ok(&["mkdir", "-p", &url("/d/e/f")]);
        ok(&["put", file.to_str().unwrap(), &url("/d")]);
        ok(&["ln", "-s", "../file", &url("/d/e/link")]);

        assert_eq!(ok(&["ls", &url("/d")]), "e/\nfile\n");
        let long = ok(&["ls", "-l", &url("/d")]);
        assert!(long.contains("-rw----r--") && long.contains("10000"), "{long}");
        let tree = ok(&["tree", &url("/d")]);
        assert!(tree.ends_with("2 directories, 2 files, 9.8 KiB\n"), "{tree}");
        assert!(tree.contains("|   |-- f\n|   `-- link -> ../file\n`-- file\n"), "{tree}");
        assert!(!ok(&["tree", "--depth", "1", &url("/d")]).contains("link"));

        let stat: serde_json::Value =
            serde_json::from_str(&ok(&["stat", "--json", &url("/d/file")])).unwrap();
        assert_eq!((stat["kind"].as_str(), stat["size"].as_u64()), (Some("file"), Some(10_000)));
        assert_eq!(stat["mode"].as_str(), Some("0604"));
        let link: serde_json::Value =
            serde_json::from_str(&ok(&["stat", "--json", &url("/d/e/link")])).unwrap();
        assert_eq!(link["target"].as_str(), Some("../file"));
        let entries = ok(&["ls", "--json", &url("/d")]);
        let kinds: Vec<serde_json::Value> = entries
            .lines()
            .map(|l| serde_json::from_str::<serde_json::Value>(l).unwrap()["kind"].clone())
            .collect();
        assert_eq!(kinds, ["directory", "file"]);
        let df: serde_json::Value = serde_json::from_str(&ok(&["df", "--json", &url("")])).unwrap();
        assert!(df["total_bytes"].as_u64() >= df["available_bytes"].as_u64());
        assert!(ok(&["exports", &url("")]).contains("/mem"));
    });
}

/// As ls(1) and df(1): `-h` is not the help, which `--help` prints.
#[test]
fn sizes_are_readable_with_h_and_help_has_its_long_option() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(&["--export", "/m=memory:64MiB"]);
    let (file, url) = (dir.path().join("file"), server.url("tcp", "/m"));
    fs::write(&file, noise(10_000, 3)).unwrap();
    ok(&["put", text(&file), &url]);
    let long = ok(&["ls", "-lh", &url]);
    assert!(long.contains("9.8 KiB") && !long.contains("10000"), "{long}");
    assert_eq!(ok(&["ls", "-h", &url]), "file\n");
    assert_eq!(ok(&["df", "-h", &url]), ok(&["df", &url]));
    for command in ["ls", "df"] {
        let help = ok(&[command, "--help"]);
        assert!(help.contains("-h, --human-readable") && !help.contains("-h, --help"), "{help}");
    }
}

#[test]
fn listings_are_sorted_and_the_space_of_directories_is_summed() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(&["--export", "/m=memory:64MiB"]);
    let (tree, url) = (dir.path().join("tree"), server.url("tcp", "/m/tree"));
    fs::create_dir_all(tree.join("sub/below")).unwrap();
    for (name, size, time) in [("a", 300_000, 2000), ("b", 100_000, 3000), ("sub/c", 200_000, 1000)] {
        fs::write(tree.join(name), noise(size, 1)).unwrap();
        let time = UNIX_EPOCH + Duration::from_secs(time);
        fs::File::open(tree.join(name)).unwrap().set_modified(time).unwrap();
    }
    fs::hard_link(tree.join("sub/c"), tree.join("sub/below/d")).unwrap();
    ok(&["put", "-r", "--hard-links", text(&tree), &url]);
    let listed = |option: &str| ok(&["ls", option, &url]);
    for (option, names) in [("-r", "sub/ b a"), ("-t", "sub/ b a"), ("-tr", "a b sub/"), ("-S", "a b sub/")] {
        assert_eq!(listed(option).split_whitespace().collect::<Vec<_>>().join(" "), names, "{option}");
    }
    let used = |line: &str| {
        let line: serde_json::Value = serde_json::from_str(line).unwrap();
        (line["name"].as_str().unwrap().to_owned(), line["used"].as_u64().unwrap())
    };
    let all: Vec<_> = ok(&["du", "--json", &url]).lines().map(used).collect();
    let stat = |path: &str| {
        let at = server.url("tcp", &format!("/m/tree{path}"));
        let stat: serde_json::Value = serde_json::from_str(&ok(&["stat", "--json", &at])).unwrap();
        stat["used"].as_u64().unwrap()
    };
    let of = |paths: &[&str]| paths.iter().map(|path| stat(path)).sum::<u64>();
    let names: Vec<_> = all.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["sub/below", "sub", &url]);
    // The two names of one file count once.
    let sub = of(&["/sub", "/sub/below", "/sub/c"]);
    assert_eq!((all[1].1, all[2].1), (sub, sub + of(&["", "/a", "/b"])));
    assert!(sub < 300_000 && all[2].1 >= 600_000, "{all:?}");
    assert_eq!(ok(&["du", "-sh", &url]).lines().count(), 1);
    assert_eq!(used(ok(&["du", "-s", "--json", &server.url("tcp", "/m/tree/a")]).trim()).1, stat("/a"));
}

#[test]
fn a_long_listing_has_local_times_and_the_names_of_owners() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(&["--export", "/m=memory:64MiB"]);
    let url = server.url("tcp", "/m");
    for (name, seconds) in [("winter", 1_768_478_400), ("summer", 1_784_116_800)] {
        let file = dir.path().join(name);
        fs::write(&file, "x").unwrap();
        fs::File::open(&file).unwrap().set_modified(UNIX_EPOCH + Duration::from_secs(seconds)).unwrap();
        ok(&["put", text(&file), &url]);
    }
    let old = dir.path().join("old");
    fs::write(&old, "x").unwrap();
    let time = UNIX_EPOCH - Duration::new(312_508_800, 1);
    fs::File::open(&old).unwrap().set_modified(time).unwrap();
    ok(&["put", text(&old), &url]);
    let listed = |zone: &str, option: &str| {
        let out = millrace().env("TZ", zone).args(["ls", option, &url]).output().unwrap();
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        String::from_utf8(out.stdout).unwrap()
    };
    // The rules of POSIX need no time zone database.
    for (zone, winter, summer, before) in [
        ("UTC0", "2026-01-15 12:00", "2026-07-15 12:00", "1960-02-05 23:59"),
        ("EST5EDT,M3.2.0,M11.1.0", "2026-01-15 07:00", "2026-07-15 08:00", "1960-02-05 18:59"),
        ("<+0530>-5:30", "2026-01-15 17:30", "2026-07-15 17:30", "1960-02-06 05:29"),
    ] {
        let lines = listed(zone, "-l");
        for (name, time) in [("winter", winter), ("summer", summer), ("old", before)] {
            assert!(lines.contains(&format!("{time}  {name}\n")), "{zone}: {lines}");
        }
    }
    let words = |option: &str| -> Vec<String> {
        let lines = listed("UTC0", option);
        lines.lines().next().unwrap().split_whitespace().map(str::to_owned).collect()
    };
    let (names, numbers) = (words("-l"), words("-n"));
    let stat: serde_json::Value =
        serde_json::from_str(&ok(&["stat", "--json", &server.url("tcp", "/m/old")])).unwrap();
    assert_eq!(numbers[2..4], [stat["uid"].to_string(), stat["gid"].to_string()]);
    let known = |database: &str, n: &str| {
        let out = std::process::Command::new("getent").args([database, n]).output().unwrap();
        let line = String::from_utf8(out.stdout).unwrap();
        line.split(':').next().filter(|name| !name.is_empty()).unwrap_or(n).to_owned()
    };
    assert_eq!(names[2..4], [known("passwd", &numbers[2]), known("group", &numbers[3])]);
}

#[test]
fn files_are_printed_moved_linked_and_removed() {
    with_all_transports_and_backends(|url, dir| {
        let content = noise(3_000_000, 4);
        let file = dir.join("f");
        fs::write(&file, &content).unwrap();
        ok(&["put", file.to_str().unwrap(), &url("/f")]);
        let out = run(&["cat", &url("/f")]);
        assert!(out.stdout == content);

        ok(&["mv", &url("/f"), &url("/g")]);
        ok(&["mkdir", &url("/dir")]);
        ok(&["mv", &url("/g"), &url("/dir")]);
        ok(&["ln", &url("/dir/g"), &url("/h")]);
        let stat: serde_json::Value = serde_json::from_str(&ok(&["stat", "--json", &url("/h")])).unwrap();
        assert_eq!(stat["links"].as_u64(), Some(2));

        assert!(fails(1, &["rm", &url("/dir")]).contains("-r"));
        ok(&["rm", "-r", &url("/dir")]);
        ok(&["rm", &url("/h")]);
        ok(&["rm", "-f", &url("/h")]);
        assert!(fails(1, &["rm", &url("/h")]).contains("no such file"));
        assert_eq!(ok(&["ls", "-a", &url("")]), "");
    });
}

#[test]
fn one_server_copies_to_another() {
    let dir = tempfile::tempdir().unwrap();
    let (one, two) =
        (Server::start(&["--export", "/x=memory:64MiB"]), Server::start(&["--export", "/y=memory:64MiB"]));
    fs::create_dir(dir.path().join("t")).unwrap();
    fs::write(dir.path().join("t/f"), noise(2_500_000, 5)).unwrap();
    ok(&["put", "-r", dir.path().join("t").to_str().unwrap(), &one.url("rdma", "/x")]);
    ok(&["cp", "-r", "--verify", &one.url("rdma", "/x/t"), &two.url("tcp", "/y/copy")]);
    ok(&["get", &two.url("rdma", "/y/copy/f"), dir.path().to_str().unwrap()]);
    assert!(fs::read(dir.path().join("f")).unwrap() == fs::read(dir.path().join("t/f")).unwrap());
    let message = fails(1, &["cp", "-r", &one.url("rdma", "/x/t"), &one.url("rdma", "/x/t/inside")]);
    assert!(message.contains("which is below it"), "{message}");
}

#[test]
fn a_line_says_which_attributes_were_not_copied() {
    use rustix::fs::{XattrFlags, getxattr, setxattr};
    let dir = tempfile::tempdir().unwrap();
    let (from, back) = (dir.path().join("from"), dir.path().join("back"));
    fs::write(&from, "x").unwrap();
    if let Err(e) = setxattr(&from, "user.k", b"v", XattrFlags::empty()) {
        eprintln!("SKIPPED, NOTHING WAS TESTED: the file system has no extended attributes: {e}");
        return;
    }
    let server = Server::start(&["--export", "/x=memory:64MiB"]);
    let (from, back_text) = (from.to_str().unwrap(), back.to_str().unwrap());
    let url = server.url("tcp", "/x/copy");
    let copy = |args: &[&str]| {
        let output = run(args);
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    let line = "not copied: extended attributes of 1 file or directory";
    assert!(copy(&["put", from, &url]).contains(&format!("{line} (add --xattrs, with NFSv4.2)")));
    let old = format!("{url}&vers=3");
    assert!(copy(&["put", "--xattrs", from, &old]).contains(&format!("{line} (the target has none")));
    assert_eq!(copy(&["put", "--xattrs", from, &url]), "");
    assert_eq!(copy(&["get", "--xattrs", &url, back_text]), "");
    let mut value = [0; 8];
    assert_eq!(getxattr(&back, "user.k", &mut value), Ok(1));
    assert_eq!(value[0], b'v');
}

fn json(args: &[&str]) -> serde_json::Value {
    serde_json::from_str(&ok(args)).unwrap()
}

#[test]
fn a_directory_is_synchronised_in_every_direction() {
    with_all_transports_and_backends(|url, dir| {
        let at = |name: &str| dir.join(name);
        for name in ["from/a", "from/gone", "from/sub/b", "from/sub/c.o"] {
            fs::create_dir_all(at(name).parent().unwrap()).unwrap();
            fs::write(at(name), noise(20_000, 1)).unwrap();
        }
        let time = UNIX_EPOCH - Duration::new(312_508_800, 5);
        fs::File::open(at("from/a")).unwrap().set_modified(time).unwrap();
        symlink("a", at("from/link")).unwrap();
        let (from, one, two) = (at("from"), url("/one"), url("/two"));
        let (from, back) = (text(&from), at("back"));
        let hops = [(from, one.as_str()), (&one, &two), (&two, text(&back))];
        for (source, target) in hops {
            let done = json(&["sync", "--json", source, target]);
            assert_eq!(
                (&done["files"], &done["symlinks"], &done["skipped"]),
                (&4.into(), &1.into(), &0.into())
            );
            let again = json(&["sync", "--json", source, target]);
            assert_eq!(
                (&again["files"], &again["bytes"], &again["skipped"]),
                (&0.into(), &0.into(), &5.into())
            );
        }
        fs::remove_file(at("from/gone")).unwrap();
        fs::write(at("from/sub/b"), b"changed").unwrap();
        fs::write(at("from/sub/c.o"), b"changed").unwrap();
        for (source, target) in hops {
            let options = ["sync", "--delete", "--exclude", "*.o", "-v", source, target];
            let printed = |options: &[&str]| {
                let out = ok(options);
                let mut lines: Vec<_> = out.lines().map(str::to_owned).collect();
                lines.sort_by_key(|line| line.contains("gone"));
                lines
            };
            let lines = |copied: &str, removed: &str| {
                let path = |name: &str| format!("{source}/{name}");
                vec![format!("{copied} {}", path("sub/b")), format!("{removed} {}", path("gone"))]
            };
            let dry = printed(&[&["sync", "--dry-run"], &options[1..]].concat());
            assert_eq!(dry, lines("would copy", "would remove"));
            assert_eq!(printed(&options), lines("copied", "removed"));
            assert_eq!(printed(&options), Vec::<String>::new());
        }
        assert_eq!(names(&back), ["a", "link@", "sub/", "sub/b", "sub/c.o"]);
        assert_eq!(fs::read(back.join("sub/b")).unwrap(), b"changed");
        assert!(fs::read(back.join("sub/c.o")).unwrap() == noise(20_000, 1));
        assert_eq!(fs::metadata(back.join("a")).unwrap().modified().unwrap(), time);

        assert!(fails(1, &["sync", text(&at("from/a")), &one]).contains("use `millrace cp`"));
        let message = fails(1, &["sync", "--delete", &url("/one/sub"), &one]);
        assert!(message.contains("--delete would remove it"), "{message}");
        assert!(fails(2, &["sync", from, text(&back)]).contains("rsync(1)"));
        assert!(fails(2, &["sync", "--exclude", "[", from, &one]).contains("--exclude"));
        assert_eq!(ok(&["ls", &url("/one/sub")]), "b\nc.o\n");
    });
}

#[test]
fn existing_files_are_kept_if_the_options_of_cp_say_so() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(&["--export", "/m=memory:64MiB,squash=none"]);
    let url = |path: &str| server.url("tcp", &format!("/m/{path}"));
    let file = dir.path().join("file");
    let write = |content: &str, seconds| {
        fs::write(&file, content).unwrap();
        fs::File::open(&file).unwrap().set_modified(UNIX_EPOCH + Duration::from_secs(seconds)).unwrap();
    };
    write("first", 1000);
    ok(&["cp", text(&file), &url("file")]);
    let copy = |option: &str| {
        ok(&["cp", option, text(&file), &url("file")]);
        ok(&["cat", &url("file")])
    };
    write("second", 2000);
    assert_eq!(copy("-n"), "first");
    assert_eq!(copy("--dry-run"), "first");
    assert_eq!(copy("-u"), "second");
    write("third", 1500);
    assert_eq!(copy("-u"), "second");
    assert_eq!(ok(&["cp", "-v", text(&file), &url("file")]), format!("copied {}\n", file.display()));
    assert_eq!(ok(&["cat", &url("file")]), "third");
    // Everything that a copy can keep.
    let tree = dir.path().join("tree");
    fs::create_dir(&tree).unwrap();
    fs::write(tree.join("a"), "x").unwrap();
    fs::hard_link(tree.join("a"), tree.join("b")).unwrap();
    let set = std::process::Command::new("chown").args(["7:8", text(&tree.join("a"))]).status().unwrap();
    ok(&["cp", "-a", text(&tree), &url("tree")]);
    let stat = json(&["stat", "--json", &url("tree/b")]);
    assert_eq!(stat["links"], 2);
    if set.success() {
        assert_eq!((&stat["uid"], &stat["gid"]), (&7.into(), &8.into()));
    }
    assert!(fails(2, &["get", "-v", &url("file"), "-"]).contains("--verbose"));
}

/// NFSv3 has times from 1970 to 2106.
#[test]
fn a_line_says_that_times_were_not_copied() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(&["--export", "/m=memory:64MiB"]);
    let file = dir.path().join("file");
    fs::write(&file, "x").unwrap();
    fs::File::open(&file).unwrap().set_modified(UNIX_EPOCH - Duration::from_nanos(1)).unwrap();
    let url = server.url("tcp", "/m");
    for (version, is_kept) in [("3", false), ("4.1", true), ("4.2", true)] {
        let out = run(&["cp", text(&file), &format!("{url}&vers={version}")]);
        let message = String::from_utf8(out.stderr).unwrap();
        assert!(out.status.success() && message.is_empty() == is_kept, "{version}: {message}");
        assert!(is_kept || message.contains("times of 1 file or directory") && message.contains("vers=4.2"));
        let stat = json(&["stat", "--json", &format!("{}&vers=4.2", server.url("tcp", "/m/file"))]);
        let time = if is_kept { "1969-12-31T23:59:59.999999999Z" } else { "1970-01-01T00:00:00.000000000Z" };
        assert_eq!(stat["mtime"], time, "{version}");
    }
}

#[test]
fn modes_owners_and_times_are_changed() {
    with_all_transports_and_backends(|url, dir| {
        let tree = dir.join("tree");
        fs::create_dir_all(tree.join("sub")).unwrap();
        for name in ["tree/a", "tree/sub/b", "outside"] {
            fs::write(dir.join(name), "x").unwrap();
            fs::set_permissions(dir.join(name), fs::Permissions::from_mode(0o600)).unwrap();
        }
        symlink("../outside", tree.join("link")).unwrap();
        ok(&["put", "-r", text(&tree), text(&dir.join("outside")), &url("/")]);
        let of = |path: &str| json(&["stat", "--json", &url(path)]);
        ok(&["chmod", "-R", "u=rwX,go=rX", &url("/tree")]);
        let modes =
            ["/tree", "/tree/sub", "/tree/sub/b", "/tree/a", "/outside"].map(|path| of(path)["mode"].clone());
        assert_eq!(modes, ["0755", "0755", "0644", "0644", "0600"]);
        ok(&["chmod", "4750", &url("/tree/a"), &url("/tree/link")]);
        assert_eq!((&of("/tree/a")["mode"], &of("/outside")["mode"]), (&"4750".into(), &"4750".into()));

        let time = ["touch", "-d", "1960-02-06T12:00:00.5Z"];
        ok(&[&time[..], &[&url("/tree/a"), &url("/new")]].concat());
        for path in ["/tree/a", "/new"] {
            assert_eq!(of(path)["mtime"], "1960-02-06T12:00:00.500000000Z", "{path}");
        }
        assert_eq!(of("/new")["mode"], "0644");
        ok(&["touch", "-c", &url("/none"), &url("/new")]);
        assert!(of("/new")["mtime"].as_str().unwrap() > "2020");
        assert!(fails(1, &["stat", &url("/none")]).contains("no such file"));
        for (args, words) in [
            (&["touch", "-d", "noon"][..], "2026-11-28"),
            (&["chmod", "rwx"], "u+w,go-rx"),
            (&["chown", "no such user"], "no user"),
        ] {
            let out = run(&[args, &[&url("/new")]].concat());
            let message = String::from_utf8(out.stderr).unwrap();
            assert!(out.status.code() == Some(2) && message.contains(words), "{message}");
        }
    });
    let server = Server::start(&["--export", "/m=memory:64MiB,squash=none"]);
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let url = |path: &str| server.url("tcp", &format!("/m/{path}"));
    ok(&["mkdir", "-p", &url("a/b")]);
    ok(&["ln", "-s", "b", &url("a/link")]);
    ok(&["chown", "-R", "7:8", &url("a")]);
    ok(&["chown", ":9", &url("a/b")]);
    for (path, owner) in [("a", [7, 8]), ("a/b", [7, 9]), ("a/link", [7, 8])] {
        let stat = json(&["stat", "--json", &url(path)]);
        assert_eq!([&stat["uid"], &stat["gid"]], owner, "{path}");
    }
    // As chown(1) -R without -H or -L: a link is changed, and not followed.
    ok(&["chown", "-R", "5:6", &url("a/link")]);
    ok(&["mkdir", &url("a/b/c")]);
    ok(&["chown", "-R", ":4", &url("a/link/")]);
    for (path, owner) in [("a", [7, 8]), ("a/b", [7, 4]), ("a/b/c", [0, 4]), ("a/link", [5, 6])] {
        let stat = json(&["stat", "--json", &url(path)]);
        assert_eq!([&stat["uid"], &stat["gid"]], owner, "{path}");
    }
}

#[test]
fn trees_are_listed_and_searched() {
    let server = Server::start(&["--export", "/m=memory:64MiB"]);
    let url = |path: &str| server.url("tcp", &format!("/m/{path}"));
    ok(&["mkdir", "-p", &url("t/a.d/sub"), &url("t/.hidden"), &url("t/{b}")]);
    ok(&["touch", &url("t/a.d/one.log"), &url("t/a.d/sub/two.log"), &url("t/three.txt")]);
    ok(&["ln", "-s", "a.d", &url("t/link.log")]);
    let root = url("t");
    assert_eq!(
        ok(&["ls", "-R", &root]),
        format!(
            "{root}:\na.d/\nlink.log\nthree.txt\n{{b}}/\n\na.d:\none.log\nsub/\n\na.d/sub:\ntwo.log\n\n{{b}}:\n"
        )
    );
    assert!(
        ok(&["ls", "-Rar", &root]).ends_with(":\n\na.d:\nsub/\none.log\n\na.d/sub:\ntwo.log\n\n.hidden:\n")
    );
    let names: Vec<_> = ok(&["ls", "-R", "--json", &root])
        .lines()
        .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap()["name"].clone())
        .collect();
    assert_eq!(names, ["a.d", "link.log", "three.txt", "{b}", "a.d/one.log", "a.d/sub", "a.d/sub/two.log"]);

    let find = |options: &[&str]| ok(&[&["find", &root][..], options].concat());
    let all = ".\n.hidden\na.d\na.d/one.log\na.d/sub\na.d/sub/two.log\nlink.log\nthree.txt\n{b}\n";
    assert_eq!(find(&[]), all);
    for (options, expected) in [
        (&["-name", "*.log"][..], "a.d/one.log\na.d/sub/two.log\nlink.log\n"),
        (&["--name", "*.log", "-type", "f"], "a.d/one.log\na.d/sub/two.log\n"),
        (&["-type", "l"], "link.log\n"),
        (&["-type", "d", "-maxdepth", "1"], ".\n.hidden\na.d\n{b}\n"),
        (&["-maxdepth", "0"], ".\n"),
        (&["-name", "t"], ".\n"),
        (&["-name", "{b}"], "{b}\n"),
        (&["-name", "[!.]*.?og", "-print0"], "a.d/one.log\0a.d/sub/two.log\0link.log\0"),
    ] {
        assert_eq!(find(options), expected, "{options:?}");
    }
    assert_eq!(ok(&["find", &url("t/link.log")]), ".\n");
    assert_eq!(ok(&["find", &url("t/link.log/"), "-name", "o*"]), "one.log\n");
    for (option, value) in [("-name", "a/b"), ("-name", "["), ("-type", "x"), ("-maxdepth", "-1")] {
        assert_eq!(run(&["find", &root, option, value]).status.code(), Some(2), "{option} {value}");
    }
}

#[test]
fn directories_that_cannot_be_read_are_named_and_the_others_are_done() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(&["--export", "/m=memory:64MiB"]);
    let url = |path: &str| server.url("tcp", &format!("/m/{path}"));
    // A name of a server must not control the terminal.
    ok(&["mkdir", "-p", &url("tree/a\x1b[2J/below"), &url("tree/b")]);
    ok(&["touch", &url("tree/b/file")]);
    ok(&["chmod", "0", &url("tree/a\x1b[2J")]);
    let message = |args: &[&str]| {
        let out = run(args);
        assert_eq!(out.status.code(), Some(3), "{args:?}: {out:?}");
        let message = String::from_utf8(out.stderr).unwrap();
        assert!(!message.contains('\x1b') && message.contains("permission denied"), "{message:?}");
        message
    };
    let back = dir.path().join("back");
    for args in [
        &["du", &url("tree")][..],
        &["tree", &url("tree")],
        &["ls", "-R", &url("tree")],
        &["find", &url("tree")],
        &["chown", "-R", "65534", &url("tree")],
        &["chmod", "-R", "o+r", &url("tree")],
        &["get", "-r", &url("tree"), text(&back)],
    ] {
        assert!(message(args).contains("a\\u{1b}[2J"), "{args:?}: {}", message(args));
    }
    assert_eq!(names(&back), ["b/", "b/file"]);
    let name = url("tree/b");
    let refused = message(&["chmod", "-R", "0", &name]);
    assert!(refused.contains(&format!("cannot list {name}: ")), "{refused}");
}

#[test]
fn existing_files_are_written_through_links_and_in_place() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let served = at("served");
    fs::create_dir(&served).unwrap();
    fs::write(at("new"), b"new").unwrap();
    let server = Server::start(&["--export", &format!("/l=local:{},squash=none", served.display())]);
    let url = |path: &str| server.url("tcp", &format!("/l{path}"));
    let new = at("new").display().to_string();
    for (to, atomic) in [("/link", false), ("/", false), ("/link", true)] {
        fs::write(served.join("file"), b"old").unwrap();
        for name in ["link", "new"] {
            drop(fs::remove_file(served.join(name)));
            symlink("file", served.join(name)).unwrap();
        }
        if atomic {
            assert!(fails(1, &["put", "--atomic", &new, &url(to)]).contains("symbolic link"));
            continue;
        }
        ok(&["put", &new, &url(to)]);
        assert!(served.join("link").is_symlink() && served.join("new").is_symlink());
        assert_eq!(fs::read(served.join("file")).unwrap(), b"new");
    }
    symlink("nowhere", served.join("dangling")).unwrap();
    assert!(fails(1, &["put", &new, &url("/dangling")]).contains("does not exist"));
    assert!(served.join("dangling").is_symlink() && !served.join("nowhere").exists());

    // Local targets.
    fs::write(at("old"), b"old").unwrap();
    symlink("old", at("link")).unwrap();
    symlink("/dev/null", at("null")).unwrap();
    for target in ["null", "link"] {
        fs::write(served.join("file"), b"new").unwrap();
        ok(&["get", &url("/file"), at(target).to_str().unwrap()]);
        assert!(at(target).is_symlink());
    }
    assert_eq!(fs::read(at("old")).unwrap(), b"new");
    assert_eq!(ok(&["get", &url("/file"), "/dev/stdout"]), "new");
    assert!(Path::new("/dev/stdout").is_symlink());
    // The export is this directory.
    fails(1, &["get", &url("/file"), served.join("file").to_str().unwrap()]);
    assert_eq!(fs::read(served.join("file")).unwrap(), b"new");
}

/// Runs the program with `input` as its standard input. Returns standard output.
fn with_input(input: impl Into<Stdio>, args: &[&str]) -> Vec<u8> {
    let out = millrace().args(args).stdin(input).output().unwrap();
    assert!(out.status.success(), "{args:?}: {}", String::from_utf8_lossy(&out.stderr));
    out.stdout
}

#[test]
fn standard_streams_pipes_and_devices_are_copied_to_their_end() {
    with_all_transports_and_backends(|url, dir| {
        let content = noise(3_000_000, 5);
        let file = dir.join("file");
        fs::write(&file, &content).unwrap();
        let mode = format!("0{:o}", fs::metadata(&file).unwrap().mode() & 0o777);
        shell(r#"cat "$2" | "$0" put - "$1""#, &[&url("/put"), text(&file)]);
        shell(r#"cat "$2" | "$0" cp -r --verify /dev/stdin "$1""#, &[&url("/cp"), text(&file)]);
        for name in ["/put", "/cp"] {
            assert!(with_input(Stdio::null(), &["cat", &url(name)]) == content, "{name}");
            let stat: serde_json::Value = serde_json::from_str(&ok(&["stat", "--json", &url(name)])).unwrap();
            assert_eq!(stat["mode"].as_str(), Some(mode.as_str()), "{name}");
        }
        // What a file at standard input has after the part that the shell has read.
        let mut rest = fs::File::open(&file).unwrap();
        rest.seek(SeekFrom::Start(1_000_000)).unwrap();
        with_input(rest, &["put", "-", &url("/rest")]);
        assert!(with_input(Stdio::null(), &["get", &url("/rest"), "-"]) == content[1_000_000..]);

        let pipe = dir.join("pipe");
        shell(r#"mkfifo "$2"; cat "$3" > "$2" & "$0" put "$2" "$1""#, &[&url(""), text(&pipe), text(&file)]);
        assert!(with_input(Stdio::null(), &["cp", &url("/pipe"), "-"]) == content);
        ok(&["put", "/dev/null", &url("/")]);
        assert_eq!(ok(&["cat", &url("/null")]), "");
        shell(r#"echo start > "$2"; "$0" get "$1" - >> "$2""#, &[&url("/put"), text(&dir.join("log"))]);
        assert!(fs::read(dir.join("log")).unwrap() == [b"start\n", &content[..]].concat());
        // The reader ends first.
        assert_eq!(shell(r#""$0" get "$1" - | head -c 1 > "$2""#, &[&url("/put"), "/dev/null"]), "");

        assert!(fails(1, &["put", "-", &url("/")]).contains("no file name"));
        assert!(fails(2, &["get", "--json", &url("/put"), "-"]).contains("--json"));
        assert_eq!(ok(&["ls", "-a", &url("")]), "cp\nnull\npipe\nput\nrest\n");
    });
}

/// A MOUNT server (RFC 1813 appendix I) that exports `name`, for one connection.
fn mount_server(name: &'static [u8]) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut mark = [0; 4];
        while stream.read_exact(&mut mark).is_ok() {
            let mut call = vec![0; (u32::from_be_bytes(mark) & 0x7fff_ffff) as usize];
            stream.read_exact(&mut call).unwrap();
            // The XID, REPLY, MSG_ACCEPTED, AUTH_NONE, SUCCESS.
            let mut reply = call[..4].to_vec();
            reply.extend([1, 0, 0, 0, 0].map(u32::to_be_bytes).concat());
            if call[20..24] == [0, 0, 0, 5] {
                // EXPORT: one entry without groups.
                reply.extend([0, 0, 0, 1]);
                reply.extend((name.len() as u32).to_be_bytes());
                reply.extend(name);
                reply.resize(reply.len().next_multiple_of(4) + 8, 0);
            }
            let mark = 0x8000_0000 | reply.len() as u32;
            stream.write_all(&[&mark.to_be_bytes(), &reply[..]].concat()).unwrap();
        }
    });
    addr
}

#[test]
fn exports_whose_names_are_not_utf8_can_be_named() {
    let exports = |json: &[&str]| {
        let addr = mount_server(b"/100% se\xf1or");
        let url = format!("nfs://{addr}?proto=tcp&mountport={}", addr.port());
        ok(&[&["exports"], json, &[url.as_str()]].concat())
    };
    assert!(exports(&[]).contains("/100% se\\361or"));
    let line: serde_json::Value = serde_json::from_str(&exports(&["--json"])).unwrap();
    assert_eq!(
        (&line["export"], &line["export_bytes"]),
        (&"/100% se\u{fffd}or".into(), &"/100%25 se%F1or".into())
    );
}

#[test]
fn a_dot_as_source_is_the_contents_of_the_directory() {
    with_all_transports_and_backends(|url, dir| {
        let (tree, here) = (dir.join("tree"), dir.join("here"));
        fs::create_dir_all(tree.join("sub")).unwrap();
        fs::create_dir(&here).unwrap();
        for name in ["f", "sub/g"] {
            fs::write(tree.join(name), name).unwrap();
        }
        let contents = ["f", "sub/", "sub/g"];
        ok(&["mkdir", &url("/dst")]);
        ok(&["put", "-r", text(&tree.join(".")), &url("/dst")]);
        assert_eq!(ok(&["ls", &url("/dst")]), "f\nsub/\n");
        shell(r#"cd "$2"; "$0" put -r . "$1""#, &[&url("/tree"), text(&tree)]);
        assert_eq!(ok(&["ls", &url("/tree")]), "f\nsub/\n");
        shell(r#"cd "$2"; "$0" put -r .. "$1""#, &[&url("/dst/up"), text(&tree.join("sub"))]);
        assert_eq!(ok(&["ls", &url("/dst/up")]), "f\nsub/\n");

        for source in ["/tree/.", "/tree/sub/..", "//tree/./"] {
            ok(&["get", "-r", &url(source), text(&here)]);
            assert_eq!(names(&here), contents, "{source}");
            fs::remove_dir_all(&here).unwrap();
            ok(&["get", "-r", &url(source), text(&here)]);
            assert_eq!(names(&here), contents, "{source}");
        }
        ok(&["get", "-r", &url("//tree//"), &format!("{}/", text(&here))]);
        assert_eq!(names(&here.join("tree")), contents);
        ok(&["mkdir", &url("/to")]);
        ok(&["cp", "-r", &url("/tree/."), &url("/to/.")]);
        assert_eq!(ok(&["ls", &url("/to")]), "f\nsub/\n");
    });
}

#[test]
fn a_directory_is_not_copied_into_itself_nor_removed_as_a_dot() {
    with_all_transports_and_backends(|url, _| {
        ok(&["mkdir", "-p", &url("/tree/sub/below")]);
        ok(&["ln", "-s", "tree", &url("/alias")]);
        let before = ok(&["tree", &url("/tree")]);
        for (from, to) in [
            ("/tree", "/tree/sub"),
            ("/tree", "/tree/sub/below/new"),
            ("/tree/.", "/tree/sub"),
            ("/alias/", "/tree/sub/below"),
            ("/tree", "/alias/sub/below"),
            ("/tree/sub/..", "/tree/sub"),
            ("/tree", "/alias"),
        ] {
            let message = fails(1, &["cp", "-r", &url(from), &url(to)]);
            assert!(message.contains("which is below it"), "{from} {to}: {message}");
        }
        for (from, to) in [("/tree", "/tree"), ("/tree/.", "/tree/")] {
            assert!(fails(1, &["cp", "-r", &url(from), &url(to)]).contains("are the same"), "{from} {to}");
        }
        assert!(fails(1, &["cp", "-r", &url("/tree/sub"), &url("/tree")]).contains("into itself"));
        for args in [["rm", "-r", &url("/tree/.")], ["mv", &url("/tree/."), &url("/moved")]] {
            assert!(fails(1, &args).contains("does not end with the name"), "{args:?}");
        }
        assert_eq!(ok(&["tree", &url("/tree")]), before);
    });
}

#[test]
fn left_over_temporary_files_are_found_and_removed() {
    with_all_transports_and_backends(|url, dir| {
        let file = dir.join("f");
        fs::write(&file, b"content").unwrap();
        let left = ".f.millrace-0123456789abcdef";
        ok(&["mkdir", "-p", &url("/d/e")]);
        ok(&["put", text(&file), &url("/d/e/f")]);
        ok(&["put", text(&file), &url(&format!("/d/e/{left}"))]);
        fs::create_dir(dir.join("e")).unwrap();
        fs::write(dir.join("e").join(left), b"content").unwrap();

        assert_eq!(ok(&["clean", &url("/d"), text(dir)]), "", "the files are new");
        let paths = format!("e/{left}\n{}/e/{left}\n", text(dir));
        for remove in [&[][..], &["--remove"], &["--remove"]] {
            let url = url("/d");
            let args = [&["clean", "--older", "0s"][..], remove, &[url.as_str(), text(dir)]].concat();
            let is_first = remove.is_empty() || names(&file.parent().unwrap().join("e")) == [left];
            assert_eq!(ok(&args), if is_first { paths.as_str() } else { "" }, "{args:?}");
        }
        assert_eq!(ok(&["ls", "-a", &url("/d/e")]), "f\n");
        assert_eq!(names(dir), ["e/", "f"]);
        assert!(fails(1, &["clean", &url("/none")]).contains("no such file"));
        assert_eq!(run(&["clean", "--older", "1", text(dir)]).status.code(), Some(2));
    });
}
