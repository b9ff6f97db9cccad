//! Tests of benchmarks on simulated machines: output is marked as simulated, and invalid parameters are
//! named.

use crate::common::{ok, run};

fn json(args: &[&str]) -> Vec<serde_json::Value> {
    let out = ok(&[args, &["--json"]].concat());
    out.lines().map(|l| serde_json::from_str(l).unwrap()).collect()
}

fn fails(args: &[&str]) -> String {
    let out = run(args);
    assert!(!out.status.success(), "{args:?}");
    String::from_utf8(out.stderr).unwrap()
}

#[test]
fn workloads_run_on_simulated_machines_over_both_transports() {
    let small: [&[&str]; 3] = [
        &["postmark", "--files", "10", "--transactions", "20", "--storage", "tmpfs-linear"],
        &["btio", "--class", "S", "--steps", "2"],
        &["clients", "--clients", "3", "--size", "256K", "--record", "64K", "--storage", "raid:1M"],
    ];
    for (args, proto) in small.into_iter().zip(["rdma", "tcp", "rdma"]) {
        let name = format!("simulated {} on hdr-200g", args[0]);
        let lines = json(&[args, &["--profile", "hdr-200g", "--proto", proto]].concat());
        assert!(!lines.is_empty());
        for l in &lines {
            assert_eq!((l["workload"].as_str(), l["proto"].as_str()), (Some(name.as_str()), Some(proto)));
        }
        let whole = lines.iter().any(|l| l["server_cpu_percent"].as_f64() > Some(0.0));
        assert!(whole, "{args:?}");
    }
    let text = ok(&["latency", "--operations", "5", "--profile", "ndr-400g", "--seed", "7"]);
    assert!(text.starts_with("SIMULATED, not measured: ndr-400g") && text.contains("seed 7"), "{text}");
    let again = ok(&["latency", "--operations", "5", "--profile", "ndr-400g", "--seed", "7"]);
    assert_eq!(text, again);
}

#[test]
fn lists_are_combined_and_written_to_a_file_and_plots() {
    let dir = tempfile::tempdir().unwrap();
    let (csv, plot) = (dir.path().join("all.csv"), dir.path().join("out"));
    let lists = ["--threads", "1,2", "--record", "64K,128K", "--size", "1M", "--registration", "dynamic"];
    let both = ["--design", "read-write,read-read", "--csv", csv.to_str().unwrap(), "--plot"];
    let out =
        ok(&[&["simulate", "--profile", "sdr-opensolaris"], &lists[..], &both, &[plot.to_str().unwrap()]]
            .concat());
    assert!(out.starts_with("SIMULATED, not measured: sdr-opensolaris"), "{out}");
    let csv = std::fs::read_to_string(csv).unwrap();
    // A header line; two designs, numbers of threads, records and tests.
    assert_eq!(csv.lines().count(), 1 + 2 * 2 * 2 * 2, "{csv}");
    assert!(csv.lines().skip(1).all(|l| l.starts_with("simulated iozone on sdr-opensolaris,")), "{csv}");
    assert!(std::fs::read_dir(plot).unwrap().count() > 0);
}

#[test]
fn threads_with_a_shared_connection_write_slower_with_few_reads() {
    let write = |shared: &[&str]| {
        let args = ["simulate", "--profile", "wan-infinihost", "--registration", "all-physical", "--threads"];
        let lines = json(&[&args, &["4", "--size", "1M"][..], shared].concat());
        lines[0]["mb_per_s"].as_f64().unwrap()
    };
    let (own, one) = (write(&[]), write(&["--shared-mount"]));
    assert!(own > 2.0 * one, "{own} {one}");
}

#[test]
fn wan_reports_every_distance_and_size() {
    let args = ["wan", "--miles", "0.2,100", "--message", "16K", "--block", "32K", "--size", "1M"];
    let lines = json(&args);
    let tests: Vec<_> = lines.iter().map(|l| l["test"].as_str().unwrap()).collect();
    assert_eq!(tests, ["RDMA Write", "RDMA Read", "write", "read"].repeat(2));
    let rate = |n: usize| lines[n]["mb_per_s"].as_f64().unwrap();
    assert_eq!((lines[0]["miles"].as_f64(), lines[4]["miles"].as_f64()), (Some(0.2), Some(100.0)));
    assert!((0..4).all(|n| rate(n) > rate(n + 4)));
}

#[test]
fn invalid_simulations_are_rejected_by_name() {
    let workload = ["latency", "--operations", "1"];
    let profile = ["--profile", "hdr-200g"];
    for (args, reason) in [
        (&["--profile", "qdr"][..], "unknown profile \"qdr\""),
        (&["--profile", "./nothing.toml"], "./nothing.toml"),
        (&["--profile", "hdr-200g", "--miles", "1e9"], "link.miles"),
        (&["--profile", "hdr-200g", "--miles", "far"], "--miles"),
        (&["--profile", "hdr-200g", "--storage", "floppy"], "unknown storage 'floppy'"),
        (&["--profile", "hdr-200g", "--storage", "raid:1K"], "raid.memory"),
        (&["--profile", "hdr-200g", "--client-hosts", "0"], "--client-hosts"),
        (&["--profile", "hdr-200g", "--dir", "/tmp"], "--dir"),
        (&["--profile", "hdr-200g", "--runs", "3"], "--runs"),
        (&["--dir", "/tmp", "--miles", "3"], "--profile"),
    ] {
        let said = fails(&[&workload, args].concat());
        assert!(said.contains(reason), "{args:?}: {said}");
    }
    let said = fails(&["simulate"]);
    assert!(said.contains("--profile"), "{said}");
    let several = ["--proto", "tcp", "--design", "read-write,read-read"];
    let said = fails(&[&["simulate"], &profile[..], &several].concat());
    assert!(said.contains("--proto tcp"), "{said}");
    let said = fails(&[&["simulate"], &profile[..], &["--record", "2M"]].concat());
    assert!(said.contains("choose 1 to 1048576"), "{said}");
    let odd = tempfile::tempdir().unwrap();
    let path = odd.path().join("odd.toml");
    std::fs::write(&path, "name = \"odd\"\nabout = \"nothing\"\n").unwrap();
    let said = fails(&[&workload[..], &["--profile", path.to_str().unwrap()]].concat());
    assert!(said.contains("link"), "{said}");
}
