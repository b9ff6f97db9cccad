//! The programs in `crates/client/examples/`, run against a server.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
    time::Duration,
};

use millrace_server::{Config, Running, Server};

/// Path of an example: beside the directory of the tests. `cargo test` builds the examples, unless only this
/// test is selected.
fn program(name: &str) -> PathBuf {
    let tests = std::env::current_exe().unwrap();
    let path = tests.parent().unwrap().parent().unwrap().join("examples").join(name);
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples").join(name).with_extension("rs");
    let changed = |path: &Path| fs::metadata(path).and_then(|m| m.modified());
    let fresh = changed(&path).is_ok_and(|built| built >= changed(&source).unwrap());
    assert!(fresh, "{path:?} is not up to date: `cargo build -p millrace-client --examples` builds it");
    path
}

fn run(name: &str, args: &[&str]) -> Output {
    Command::new(program(name)).args(args).output().unwrap()
}

/// Runs an example, which must succeed, and returns its output.
fn ok(name: &str, args: &[&str]) -> String {
    let out = run(name, args);
    assert!(out.status.success(), "{name} {args:?}: {}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8(out.stdout).unwrap()
}

/// Runs `test` on a new server for each transport, with a function from a path to a URL.
fn on_both(test: impl Fn(&dyn Fn(&str) -> String)) {
    let server = start();
    let (rdma, tcp) = (server.rdma_addr().unwrap(), server.tcp_addr().unwrap());
    test(&|path| format!("nfs://{rdma}/data{path}"));
    test(&|path| format!("nfs://{tcp}/data{path}?proto=tcp"));
    server.stop_blocking(Duration::from_secs(1));
}

fn start() -> Running {
    let config = Config {
        exports: vec!["/data=memory:256MiB".parse().unwrap()],
        listen_rdma: vec!["127.0.0.1:0".parse().unwrap()],
        listen_tcp: vec!["127.0.0.1:0".parse().unwrap()],
        shards: Some(1),
        ..Config::default()
    };
    Server::start(config).unwrap()
}

/// Creates a local file with the given number of lines; returns its path and content.
fn lines(dir: &Path, n: usize) -> (String, Vec<u8>) {
    let text: String =
        (0..n).map(|i| format!("line {i} of a file that takes more than one call\n")).collect();
    let path = dir.join("lines");
    fs::write(&path, &text).unwrap();
    (path.to_str().unwrap().to_owned(), text.into_bytes())
}

#[test]
fn copy_transfers_a_file_in_both_directions() {
    let dir = tempfile::tempdir().unwrap();
    let (path, bytes) = lines(dir.path(), 60_000);
    let back = dir.path().join("back");
    on_both(|url| {
        let message = format!("{} bytes copied\n", bytes.len());
        assert_eq!(ok("copy", &[&path, &url("/there")]), message);
        assert_eq!(ok("copy", &[&url("/there"), back.to_str().unwrap()]), message);
        assert!(fs::read(&back).unwrap() == bytes);
        fs::remove_file(&back).unwrap();
    });
}

#[test]
fn parallel_read_counts_every_line_once() {
    let dir = tempfile::tempdir().unwrap();
    let (path, bytes) = lines(dir.path(), 200_000);
    on_both(|url| {
        ok("copy", &[&path, &url("/lines")]);
        let placed = if url("").contains("tcp") { 0 } else { bytes.len() };
        let message = format!(
            "200000 lines, {} bytes\n{placed} bytes were placed by the server's RDMA Writes\n",
            bytes.len()
        );
        assert_eq!(ok("parallel_read", &[&url("/lines")]), message);
    });
}

#[test]
fn throughput_prints_one_line_of_figures_per_second() {
    let dir = tempfile::tempdir().unwrap();
    let (path, _) = lines(dir.path(), 60_000);
    on_both(|url| {
        ok("copy", &[&path, &url("/lines")]);
        let text = ok("throughput", &[&url("/lines"), "1"]);
        let (head, figures) = text.split_once('\n').unwrap();
        assert!(head.contains("MB/s") && figures.lines().count() == 1, "{text}");
        let numbers: Vec<u64> = figures.split_whitespace().map(|n| n.parse().unwrap()).collect();
        assert_eq!((numbers.len(), numbers[0], &numbers[3..]), (6, 1, &[1, 0, 0][..]), "{text}");
    });
}

#[test]
fn blocking_threads_write_one_file() {
    on_both(|url| {
        let text = ok("blocking", &[&url("")]);
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines[..4], ["thread 00", "thread 01", "thread 02", "thread 03"]);
        assert_eq!(lines[4..], ["lines"]);
    });
}

#[test]
fn every_example_prints_its_usage_and_its_errors() {
    let server = start();
    let missing = format!("nfs://{}/data/no/such", server.rdma_addr().unwrap());
    let cases: [(&str, &[&str]); 4] = [
        ("copy", &[&missing, "/dev/null"]),
        ("parallel_read", &[&missing]),
        ("throughput", &[&missing]),
        ("blocking", &[&missing]),
    ];
    for (name, args) in cases {
        let used = run(name, &[]);
        let message = String::from_utf8(used.stderr).unwrap();
        assert!(
            used.status.code() == Some(2) && message.starts_with(&format!("usage: {name} ")),
            "{message}"
        );
        let failed = run(name, args);
        let message = String::from_utf8(failed.stderr).unwrap();
        assert_eq!(failed.status.code(), Some(1), "{name}: {message}");
        assert!(message.starts_with(&format!("{name}: ")) && message.contains("NFSERR_NOENT"), "{message}");
        assert_eq!(message.lines().count(), 1, "{message}");
    }
    server.stop_blocking(Duration::from_secs(1));
}
