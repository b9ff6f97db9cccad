//! Tests of all workloads with small parameters, over both transports and in a local directory.

use crate::common::{ok, run};

/// Small parameters of a workload, and the kinds of operation that it reports.
type Small = (&'static [&'static str], &'static [&'static str]);

const FILEOP: Small = (
    &["fileop", "--factor", "2"],
    &[
        "mkdir", "create", "write", "stat", "open", "read", "access", "chmod", "readdir", "link", "unlink",
        "delete", "rmdir",
    ],
);
const POSTMARK: Small = (
    &["postmark", "--files", "20", "--transactions", "60"],
    &[
        "create",
        "append",
        "read",
        "create in transactions",
        "delete in transactions",
        "transaction",
        "delete",
    ],
);
const UNTAR: Small = (&["untar", "--files", "40"], &["mkdir", "extract", "untar"]);
const COMPILE: Small = (
    &["compile", "--files", "60"],
    &[
        "stat",
        "stat of what is not there",
        "read a source",
        "write an object",
        "read an object",
        "write the image",
        "make",
    ],
);
const OLTP: Small = (
    &["oltp", "--shadows", "8", "--writers", "2", "--io", "4K", "--file-size", "64K", "--reads", "6500"],
    &["shadow read", "log write", "database write", "all operations"],
);
const BTIO: Small = (
    &["btio", "--class", "S", "--steps", "4", "--interval", "2"],
    &["collective write", "write", "collective read", "read and verify"],
);
const TILE: Small = (
    &["tile", "--columns", "3", "--rows", "2", "--width", "16", "--height", "8"],
    &["row write", "tile write", "row read", "tile read"],
);
const LATENCY: Small = (
    &["latency", "--operations", "20"],
    &[
        "stat",
        "access",
        "create",
        "remove",
        "read 4 KiB",
        "write 4 KiB",
        "write 4 KiB, stable",
        "read 1 MiB",
        "write 1 MiB",
    ],
);
const CLIENTS: Small = (
    &["clients", "--clients", "2", "--size", "256K", "--record", "64K"],
    &["record write", "write", "record read", "read"],
);
const ALL: [Small; 9] = [FILEOP, POSTMARK, UNTAR, COMPILE, OLTP, BTIO, TILE, LATENCY, CLIENTS];

fn check((args, kinds): Small, place: &[&str], proto: &str) {
    let out = ok(&[args, place, &["--json"]].concat());
    let lines: Vec<serde_json::Value> = out.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    let mut seen: Vec<_> = lines.iter().map(|l| l["test"].as_str().unwrap()).collect();
    let mut want = kinds.to_vec();
    // The order of the kinds depends on the seed and on the fastest member.
    seen.sort_unstable();
    want.sort_unstable();
    assert_eq!(seen, want, "{args:?} {place:?}");
    for l in &lines {
        assert!(l["ops_per_s"].as_f64() > Some(0.0), "{l}");
        assert_eq!((l["workload"].as_str(), l["proto"].as_str()), (Some(args[0]), Some(proto)));
    }
}

#[test]
fn every_workload_runs_on_a_server_over_both_transports() {
    for small in ALL {
        for proto in ["rdma", "tcp"] {
            check(small, &["--self", "--proto", proto], proto);
        }
    }
}

#[test]
fn every_workload_runs_in_a_directory_and_removes_its_files() {
    let dir = tempfile::tempdir().unwrap();
    for small in ALL {
        check(small, &["--dir", dir.path().to_str().unwrap()], "local");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "{small:?}");
    }
}

/// Runs a command that must fail, and returns its standard error.
fn fails(args: &[&str]) -> String {
    let out = run(args);
    assert!(!out.status.success(), "{args:?}");
    String::from_utf8(out.stderr).unwrap()
}

#[test]
fn invalid_workloads_and_places_are_rejected() {
    let dir = tempfile::tempdir().unwrap();
    let place = ["--dir", dir.path().to_str().unwrap()];
    for (args, reason) in [
        (&["postmark", "--low", "9K", "--high", "1K"][..], "smallest"),
        (&["btio", "--steps", "1", "--interval", "2"], "more steps"),
        (&["oltp", "--io", "1M", "--file-size", "4K"], "at least one record"),
    ] {
        let said = fails(&[args, &place].concat());
        assert!(said.contains(reason), "{said}");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "{args:?}");
    }
    let said = fails(&["tile", "--dir", "/nonexistent/place"]);
    assert!(said.contains("create a directory"), "{said}");
    let said = fails(&["latency"]);
    assert!(said.contains("--self"), "{said}");
}
