//! Common programs on a mount. A program that is not installed is skipped with a message.

#![allow(clippy::unwrap_used, clippy::panic)] // Helpers of tests, which are to fail.

mod common;

use std::{
    fs,
    path::Path,
    process::{Command, Stdio},
};

use common::{CASES, Export, for_each, fuse_is_available, random_bytes};

/// Runs a shell script in `dir`, which must succeed, and returns its output.
fn sh(dir: &Path, script: &str) -> String {
    let mut sh = Command::new("sh");
    // Cargo is to build on the mount.
    sh.args(["-euc", script]).current_dir(dir).env_remove("CARGO_TARGET_DIR");
    let out = sh.stdin(Stdio::null()).output().unwrap();
    let (output, wrong) = (String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    assert!(out.status.success(), "{script}\n{output}{wrong}");
    output.into_owned()
}

fn is_installed(program: &str) -> bool {
    let found =
        Command::new("sh").args(["-c", &format!("command -v {program}")]).stdout(Stdio::null()).status();
    let is_installed = found.is_ok_and(|s| s.success());
    if !is_installed {
        eprintln!("SKIPPED: {program} is not installed, so it was not tried on a mount");
    }
    is_installed
}

/// Runs on a mount of each kind, with a local scratch directory.
fn on_all(test: impl Fn(&Path, &Path) + Sync) {
    if !fuse_is_available() {
        return;
    }
    for_each(CASES, |case| {
        println!("{case:?}");
        let export = Export::start(case.local);
        let mounted = export.mount(case.proto, "");
        let scratch = tempfile::tempdir().unwrap();
        test(&mounted.at, scratch.path());
        mounted.unmount();
    });
}

/// Creates a tree with files of several sizes, links, and old modification times.
fn tree(at: &Path) {
    for d in 0..4 {
        let dir = at.join(format!("dir{d}/sub"));
        fs::create_dir_all(&dir).unwrap();
        for f in 0..12_usize {
            fs::write(dir.join(format!("file{f}")), random_bytes(f * f * 1500, (d * 100 + f) as u64))
                .unwrap();
        }
        std::os::unix::fs::symlink("file3", dir.join("link")).unwrap();
        fs::hard_link(dir.join("file4"), dir.join("hard")).unwrap();
    }
    // Links too: rsync does not correct a time that differs by less than a second.
    sh(at, "find . ! -type d -exec touch -h -d '2020-02-03 04:05:06.789' {} +; chmod 600 dir1/sub/file1");
}

/// Names, types, modes, times and content of a tree.
fn describe_tree(at: &Path) -> String {
    let list =
        "find . ! -type d -printf '%p %y %m %n %T@ %l\\n' | sort; find . -type f | sort | xargs sha256sum";
    sh(at, list)
}

#[test]
fn cp_tar_and_rsync_copy_a_tree_both_ways() {
    on_all(|mount, scratch| {
        let from = scratch.join("from");
        fs::create_dir(&from).unwrap();
        tree(&from);
        let expected = describe_tree(&from);
        let text = |p: &Path| p.display().to_string();
        sh(mount, &format!("cp -a {} cp && cp -a cp cp2 && cp -a cp2 {}/cp", text(&from), text(scratch)));
        assert_eq!(describe_tree(&mount.join("cp2")), expected);
        assert_eq!(describe_tree(&scratch.join("cp")), expected);
        if is_installed("tar") {
            sh(
                mount,
                &format!(
                    "mkdir tar && tar --format=posix -C {} -cf all.tar . && tar -C tar -xf all.tar",
                    text(&from)
                ),
            );
            assert_eq!(describe_tree(&mount.join("tar")), expected);
        }
        if is_installed("rsync") {
            sh(mount, &format!("rsync -aH {}/ rsync && rsync -aH --checksum rsync/ rsync2", text(&from)));
            assert_eq!(describe_tree(&mount.join("rsync2")), expected);
        }
        sh(mount, "rm -r cp cp2; find . -name 'file*' -delete");
    });
}

#[test]
fn git_works() {
    if !is_installed("git") {
        return;
    }
    on_all(|mount, scratch| {
        let git = "git -c user.name=n -c user.email=e@x -c init.defaultBranch=main -c gc.auto=0";
        let origin = scratch.join("origin");
        fs::create_dir(&origin).unwrap();
        tree(&origin);
        sh(&origin, &format!("{git} init -q . && {git} add . && {git} commit -qm one"));
        sh(mount, &format!("{git} clone -q {} work", origin.display()));
        let work = mount.join("work");
        sh(
            &work,
            &format!(
                "echo more >> dir0/sub/file1 && {git} commit -qam two && {git} checkout -qb side HEAD~1"
            ),
        );
        sh(
            &work,
            &format!("git rm -q dir2/sub/file5 && {git} commit -qm three && {git} merge -q -m four main"),
        );
        sh(&work, &format!("{git} gc -q && {git} fsck --full --strict && {git} stash list"));
        assert_eq!(sh(&work, "git status --porcelain"), "");
        assert_eq!(sh(&work, "git log --format=%s main").lines().count(), 2);
    });
}

const SQLITE: &str = r#"
import sqlite3, sys
for mode in sys.argv[1:]:
    name = "db-" + mode
    db = sqlite3.connect(name, isolation_level=None)
    assert db.execute("pragma journal_mode=" + mode).fetchone()[0] == mode
    db.execute("create table t (a integer primary key, b text)")
    for batch in range(20):
        db.execute("begin")
        for i in range(100):
            db.execute("insert into t (b) values (?)", ("x" * (i * 10),))
        db.execute("rollback" if batch % 5 == 4 else "commit")
    other = sqlite3.connect(name, timeout=0.1)
    db.execute("begin immediate")
    try:
        other.execute("insert into t (b) values ('locked')")
        raise SystemExit("two writers at once")
    except sqlite3.OperationalError as e:
        assert "locked" in str(e), e
    db.execute("commit")
    assert other.execute("select count(*) from t").fetchone()[0] == 1600
    other.close()
    db.execute("delete from t where a % 3 = 0"); db.execute("vacuum")
    assert db.execute("pragma integrity_check").fetchone()[0] == "ok"
    db.close()
"#;

#[test]
fn sqlite_works_in_all_journal_modes() {
    let has_sqlite = Command::new("python3").args(["-c", "import sqlite3"]).stderr(Stdio::null()).status();
    if !has_sqlite.is_ok_and(|s| s.success()) {
        eprintln!("SKIPPED: python3 with sqlite3 is not installed, so no database was tested");
        return;
    }
    on_all(|mount, scratch| {
        let script = scratch.join("test.py");
        fs::write(&script, SQLITE).unwrap();
        sh(mount, &format!("python3 {} delete truncate persist wal", script.display()));
    });
}

#[test]
fn cargo_builds_a_crate() {
    if !is_installed("cargo") {
        return;
    }
    on_all(|mount, _| {
        sh(
            mount,
            "cargo new -q --vcs none tiny && cd tiny && cargo build -q --offline && test \"$(./target/debug/tiny)\" = 'Hello, world!'",
        );
        sh(&mount.join("tiny"), "touch src/main.rs && cargo build -q --offline && cargo clean -q --offline");
    });
}

#[test]
fn vim_saves_a_file() {
    if !is_installed("vim") {
        return;
    }
    on_all(|mount, _| {
        fs::write(mount.join("text"), "one\ntwo\n").unwrap();
        sh(mount, "vim -u NONE -es -c 'set backup' -c '%s/two/three/' -c 'wq' text </dev/null");
        assert_eq!(fs::read_to_string(mount.join("text")).unwrap(), "one\nthree\n");
    });
}

const MMAP: &str = r#"
import mmap, os
with open("mapped", "wb") as f:
    f.truncate(3 << 20)
with open("mapped", "r+b") as f:
    m = mmap.mmap(f.fileno(), 0)
    for i in range(0, 3 << 20, 4099):
        m[i] = i % 251
    m.flush()
    assert os.pread(f.fileno(), 1, 4099 * 5)[0] == 4099 * 5 % 251
    m[7] = 77
    m.close()
with open("mapped", "rb") as f:
    data = f.read()
assert len(data) == 3 << 20 and data[7] == 77
assert all(data[i] == i % 251 for i in range(0, 3 << 20, 4099)), "lost"
"#;

#[test]
fn mapped_files_can_be_read_and_written() {
    if !is_installed("python3") {
        return;
    }
    on_all(|mount, scratch| {
        let script = scratch.join("test.py");
        fs::write(&script, MMAP).unwrap();
        sh(mount, &format!("python3 {}", script.display()));
    });
}
