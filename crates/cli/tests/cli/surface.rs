//! Help, completions, manual pages, the demo and the benches.

use std::fs;

use crate::common::{self, Server, noise, ok};

#[test]
fn log_lines_have_colours_on_request() {
    let server = Server::start(&["--export", "/m=memory:1MiB"]);
    let log = |options: &[&str]| {
        let out = common::millrace()
            .args(["--log", "debug", "ls", &server.url("rdma", "/m")])
            .args(options)
            .env("NO_COLOR", "1")
            .output()
            .unwrap();
        assert!(out.status.success() && !out.stderr.is_empty());
        out.stderr
    };
    assert!(log(&["--color", "always"]).contains(&0x1b));
    assert!(!log(&["--color", "never"]).contains(&0x1b));
    assert!(!log(&[]).contains(&0x1b), "standard error is no terminal");
}

#[test]
fn help_contains_the_first_steps_and_the_exit_codes() {
    let help = ok(&["--help"]);
    for word in ["millrace demo", "nfs://HOST", "Exit codes", "130"] {
        assert!(help.contains(word), "{word}");
    }
    for command in [
        "serve",
        "demo",
        "exports",
        "ls",
        "stat",
        "tree",
        "find",
        "cat",
        "put",
        "get",
        "cp",
        "rm",
        "mkdir",
        "mv",
        "ln",
        "df",
        "clean",
        "sync",
        "umount",
        "du",
        "chmod",
        "chown",
        "touch",
        "blk",
        "devices",
        "completions",
    ] {
        assert!(ok(&[command, "--help"]).contains("Examples:"), "{command}");
    }
    assert!(ok(&["certs", "init", "--help"]).contains("Examples:"));
}

#[test]
fn completions_include_every_command() {
    for (shell, sign) in
        [("bash", "complete -F"), ("zsh", "#compdef millrace"), ("fish", "complete -c millrace")]
    {
        let script = ok(&["completions", shell]);
        assert!(script.contains(sign) && script.contains("exports"), "{shell}");
    }
}

#[test]
fn every_command_has_a_manual_page() {
    let dir = tempfile::tempdir().unwrap();
    ok(&["man", common::text(dir.path())]);
    for page in ["millrace", "millrace-serve", "millrace-cp", "millrace-doctor", "millrace-bench-iozone"] {
        let text = fs::read_to_string(dir.path().join(format!("man1/{page}.1"))).unwrap();
        assert!(text.contains(".TH ") && text.contains(".SH \"EXAMPLES\""), "{page}");
    }
    // mandoc checks the pages where it is installed. Its name for a long line is not a fault: examples have them.
    let pages = ["man1", "man5", "man8"].map(|section| dir.path().join(section));
    assert!(pages[1].join("millrace.toml.5").exists() && pages[2].join("mount.millrace.8").exists());
    let files =
        pages.iter().flat_map(|section| fs::read_dir(section).unwrap()).map(|entry| entry.unwrap().path());
    if let Ok(out) = std::process::Command::new("mandoc").args(["-T", "lint"]).args(files).output() {
        let message = String::from_utf8(out.stdout).unwrap();
        let faults: Vec<_> = message.lines().filter(|line| !line.contains("longer than 80 bytes")).collect();
        assert!(faults.is_empty(), "{faults:#?}");
    }
}

#[test]
fn the_demo_copies_every_file_and_reports_the_transfers() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("sub")).unwrap();
    fs::write(dir.path().join("large"), noise(3_000_000, 1)).unwrap();
    fs::write(dir.path().join("sub/small"), b"hello").unwrap();
    let path = dir.path().to_str().unwrap();
    let json: serde_json::Value = serde_json::from_str(&ok(&["demo", "--json", path])).unwrap();
    assert_eq!((json["same"].as_bool(), json["server_regions_exposed"].as_u64()), (Some(true), Some(0)));
    let moved = &json["rdma"]["moved"];
    for key in ["sends", "rdma_writes", "rdma_reads", "bytes_placed_directly"] {
        assert!(moved[key].as_u64() > Some(0), "{key}: {moved}");
    }
    for transport in ["rdma", "tcp"] {
        let passes = json[transport]["passes"].as_array().unwrap();
        assert_eq!(passes.iter().map(|p| p["files_same"].as_u64()).collect::<Vec<_>>(), [Some(2); 2]);
        assert!(passes.iter().all(|p| p["processor_seconds"].as_f64() > Some(0.0)), "{passes:?}");
    }
    assert!(moved["rdma_write_bytes"].as_u64() >= Some(6_000_000));
    assert!(moved["rdma_read_bytes"].as_u64() >= Some(6_000_000));
    assert_eq!(json["tcp"]["moved"]["rdma_writes"].as_u64(), Some(0));
    let text = ok(&["demo", path]);
    assert!(text.contains("All 2 files are identical"), "{text}");
}

const KEYS: [&str; 17] = [
    "workload",
    "test",
    "proto",
    "provider",
    "design",
    "registration",
    "threads",
    "no_halt",
    "record",
    "mb_per_s",
    "ops_per_s",
    "p50_us",
    "p99_us",
    "client_cpu_s_per_gb",
    "server_cpu_s_per_gb",
    "client_cpu_us_per_op",
    "server_cpu_us_per_op",
];

fn figures(args: &[&str]) -> Vec<serde_json::Value> {
    let out = common::run(args);
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let text = String::from_utf8(out.stdout).unwrap();
    let lines: Vec<serde_json::Value> = text.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    for line in &lines {
        for key in KEYS {
            assert!(line.get(key).is_some(), "{key} is missing in {line}");
        }
    }
    lines
}

#[test]
fn iozone_measures_six_tests_on_both_transports() {
    for proto in ["rdma", "tcp"] {
        let lines = figures(&[
            "bench",
            "iozone",
            "--self",
            "--proto",
            proto,
            "--threads",
            "2",
            "--record",
            "64K",
            "--size",
            "1M",
            "--json",
        ]);
        let tests: Vec<_> = lines.iter().map(|l| l["test"].as_str().unwrap().to_owned()).collect();
        assert_eq!(tests, ["write", "rewrite", "read", "reread", "random-read", "random-write"]);
        for l in &lines {
            assert!(l["mb_per_s"].as_f64() > Some(0.0) && l["server_cpu_s_per_gb"].is_number(), "{l}");
            assert_eq!(l["proto"].as_str(), Some(proto));
        }
    }
}

#[test]
fn raw_measures_streams_and_round_trips() {
    let lines = figures(&[
        "bench",
        "raw",
        "--size",
        "8M",
        "--working-set",
        "4M",
        "--writes",
        "64K,1M",
        "--pings",
        "50",
        "--requests",
        "1000",
        "--depth",
        "1,16",
        "--runs",
        "1",
        "--json",
    ]);
    assert_eq!(lines.len(), 8);
    assert_eq!(lines.iter().filter(|l| l["test"] == "exchange 128+4224 B x 16").count(), 1);
    assert_eq!(lines.iter().filter(|l| l["provider"] == "iwarp").count(), 2);
}

/// Arguments of a short comparison.
const COMPARE: [&str; 10] =
    ["bench", "compare", "--runs", "1", "--size", "8M", "--passes", "1", "--random-ops", "400"];

#[test]
fn compare_prints_ratios() {
    let out = ok(&[&COMPARE[..], &["--tcp", "--cold", "--disk", "--no-halt=false"]].concat());
    for row in [
        "raw TCP stream",
        "READ 1 MiB x 8",
        "WRITE 1 MiB x 8",
        "MTU frames",
        "plain TCP exchange x 16, RDMA's bytes",
        "random READ 4 KiB x 16",
        "plain TCP ping-pong, TCP's bytes",
        "TCP: random READ 4 KiB x 1",
        "first WRITE 1 MiB x 8, fresh export",
        "TCP: first READ 1 MiB x 8, fresh memory",
        "iSER: READ 512 KiB x 8",
        "iSER: random READ 4 KiB x 16",
        "iSCSI: WRITE 512 KiB x 8",
        "wanted",
        "Idle processors halt",
    ] {
        assert!(out.contains(row), "{row}: {out}");
    }
    // The bytes are those of the payload with all headers.
    let bytes = out.split("A READ of 4 KiB has ").nth(1).unwrap().lines().next().unwrap();
    let numbers: Vec<u64> = bytes.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    assert_eq!(numbers.len(), 4, "{bytes}");
    for of in numbers.chunks(2) {
        assert!((100..400).contains(&of[0]) && (4096 + 100..4096 + 300).contains(&of[1]), "{bytes}");
    }
}

#[test]
fn compare_reports_ratios_and_whether_processors_halt_as_json() {
    let out = ok(&[&COMPARE[..], &["--json"]].concat());
    let lines: Vec<serde_json::Value> = out.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    // Without permission processors halt, and all lines state so.
    let no_halt = lines[0]["no_halt"].as_bool().unwrap();
    assert!(lines.iter().all(|l| l["no_halt"].as_bool() == Some(no_halt)), "{out}");
    let (ratios, figures): (Vec<_>, Vec<_>) = lines.iter().partition(|l| l["workload"] == "compare");
    assert!(figures.len() > ratios.len());
    let random = ratios.iter().find(|l| l["case"] == "random READ 4 KiB x 16").unwrap();
    for key in ["ratio", "server_cpu_ratio", "client_cpu_ratio"] {
        assert!(random[key].as_f64() > Some(0.0), "{random}");
    }
    let one = ratios.iter().find(|l| l["case"] == "random READ 4 KiB x 1").unwrap();
    assert!(one["ratio"].as_f64() > Some(0.0) && one["server_cpu_ratio"].is_null(), "{one}");
}

#[test]
fn connections_measures_every_number_of_connections_on_both_transports() {
    let arguments =
        ["bench", "connections", "--connections", "1,20", "--depth", "2", "--reads", "400", "--json"];
    let lines = figures(&arguments);
    let (exchanges, reads): (Vec<_>, Vec<_>) = lines.iter().partition(|l| l["workload"] == "raw");
    let of = |key: &str| reads.iter().map(|l| l[key].clone()).collect::<Vec<_>>();
    assert_eq!(of("proto"), ["rdma", "rdma", "tcp", "tcp"]);
    assert_eq!(of("connections"), [1, 20, 1, 20]);
    assert!(exchanges.iter().map(|l| l["connections"].clone()).eq(of("connections")));
    for l in &lines {
        assert!(l["ops_per_s"].as_f64() > Some(0.0) && l["server_cpu_us_per_op"].as_f64() > Some(0.0), "{l}");
    }
    for l in reads {
        for key in ["server_bytes_per_idle_connection", "client_bytes_per_idle_connection"] {
            assert!(l[key].is_number(), "{key}: {l}");
        }
        // Each connection of the client has memory for its reads.
        assert!(l["client_bytes_per_connection"].as_f64() > Some(4096.0), "{l}");
    }
}

#[test]
fn servers_compares_servers_and_draws_the_figures() {
    let other = Server::start(&["--export", "/m=memory:64MiB,squash=none"]);
    let url = format!("nfs+tcp://{}/m", other.tcp);
    let load = ["--size", "1M", "--random-ops", "40", "--items", "3", "--self"];
    let named = format!("other={url},{}", other.child.id());
    let lines = figures(&[&["bench", "servers", &named, "--runs", "2", "--json"], &load[..]].concat());
    let run = [
        "rewrite",
        "read",
        "random-read",
        "random-read",
        "directory creation",
        "file creation",
        "file stat",
        "file removal",
    ];
    for server in ["other", "millrace (memory)"] {
        let of: Vec<_> = lines.iter().filter(|l| l["server"] == server).collect();
        assert!(of.iter().map(|l| l["test"].as_str().unwrap()).eq([run, run].concat()), "{of:?}");
        // Of the process that the argument names, and of the one that the command has started.
        let random: Vec<_> = of.iter().filter(|l| l["test"] == "random-read").collect();
        assert!(random.iter().all(|l| l["server_cpu_us_per_op"].as_f64() > Some(0.0)), "{random:?}");
    }
    assert_ne!(lines[0]["server"], lines[16]["server"], "each run begins with another server");

    let directory = tempfile::tempdir().unwrap();
    let plot = directory.path().join("servers.svg");
    let arguments = ["bench", "servers", &url, "--runs", "1", "--plot", plot.to_str().unwrap()];
    let table = ok(&[&arguments, &load[..]].concat());
    let svg = fs::read_to_string(&plot).unwrap();
    for text in [&other.tcp, "millrace (memory)", "READ 1 MiB x 8", "random READ 4 KiB x 16", "file creation"]
    {
        assert!(table.contains(text) && svg.contains(text), "{text}: {table}\n{svg}");
    }
    assert_eq!(svg.lines().filter(|line| line.starts_with("<rect x")).count(), 2 * run.len());
    assert_eq!(ok(&["ls", &url]), "", "files remain");
}

#[test]
fn servers_refuses_wrong_arguments_before_it_measures() {
    let refused = |args: &[&str]| {
        let out = common::run(&[&["bench", "servers"], args].concat());
        assert!(!out.status.success());
        String::from_utf8(out.stderr).unwrap()
    };
    let url = "nfs+tcp://127.0.0.1:1/m";
    assert!(refused(&[url, url]).contains(&format!("write NAME={url}")));
    assert!(refused(&["one=host:/m"]).contains("nfs://host/m"));
    assert!(refused(&[url, "--plot", "/missing/plot.svg"]).contains("cannot create /missing/plot.svg"));
}
