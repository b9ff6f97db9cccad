//! `millrace bench mount` with small sizes over both transports.

use std::path::Path;

use crate::common::{millrace, mounting::fuse_is_available, ok, run, text};

const SMALL: [&str; 12] = [
    "bench",
    "mount",
    "--size",
    "2M",
    "--random-ops",
    "64",
    "--files",
    "20",
    "--entries",
    "300",
    "--runs",
    "1",
];

/// Runs a bench that must fail, and returns standard error.
fn fails(args: &[&str]) -> String {
    let out = run(args);
    assert!(!out.status.success(), "{args:?}");
    String::from_utf8(out.stderr).unwrap()
}

fn is_mounted_below(dir: &Path) -> bool {
    std::fs::read_to_string("/proc/self/mountinfo").unwrap().contains(text(dir))
}

#[test]
fn library_passthrough_and_mount_are_measured_in_each_case() {
    if !fuse_is_available() {
        return;
    }
    for proto in ["rdma", "tcp"] {
        let out = ok(&[&SMALL[..], &["--proto", proto, "--json"]].concat());
        let lines: Vec<serde_json::Value> = out.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
        let seen: Vec<_> =
            lines.iter().map(|l| (l["test"].as_str().unwrap(), l["workload"].as_str().unwrap())).collect();
        let tests = ["write", "read", "random-read", "stat", "list", "list-attributes"];
        let subjects = ["library", "passthrough", "mount"];
        let all: Vec<_> = tests.iter().flat_map(|t| subjects.map(|s| (*t, s))).collect();
        assert_eq!(seen, all);
        for l in &lines {
            assert!(l["ops_per_s"].as_f64() > Some(0.0), "{l}");
            let local = l["workload"] == "passthrough";
            assert_eq!(l["proto"], if local { "local" } else { proto }, "{l}");
        }
    }
}

#[test]
fn the_table_shows_goals_and_nothing_stays_mounted() {
    if !fuse_is_available() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let out = millrace().args(SMALL).env("TMPDIR", dir.path()).output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    assert!(!is_mounted_below(dir.path()));
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    let out = String::from_utf8(out.stdout).unwrap();
    for goal in [
        ">= 0.7 of the lower",
        ">= 0.6 of the lower",
        ">= 0.5 of passthrough",
        ">= 0.95 of passthrough",
        "< 2 s",
        "Maximum memory of the mount's process",
    ] {
        assert!(out.contains(goal), "{goal} is missing:\n{out}");
    }
    assert_eq!(out.lines().filter(|l| l.ends_with(" yes") || l.ends_with(" no")).count(), 5, "{out}");
}

#[test]
fn errors_are_one_sentence() {
    assert!(fails(&["bench", "mount", "--size", "1000"]).contains("multiple"));
    if !fuse_is_available() {
        assert!(fails(&SMALL).contains("/dev/fuse cannot be opened"));
        return;
    }
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let message = fails(&[&SMALL[..], &["--tmpfs", text(dir.path())]].concat());
    assert!(message.contains("not in a tmpfs; specify a directory in a tmpfs with --tmpfs"), "{message}");
    let nowhere = dir.path().join("nowhere");
    assert!(fails(&[&SMALL[..], &["--tmpfs", text(&nowhere)]].concat()).contains("nowhere"));
}
