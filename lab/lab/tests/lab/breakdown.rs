//! Tests of the command `millrace-lab breakdown`.

use crate::common::{self, ok};

#[test]
fn breakdown_shows_and_plots_the_stages_of_both_designs() {
    let dir = tempfile::tempdir().unwrap();
    let measure = ["breakdown", "--design", "read-write,read-read", "--registration", "dynamic,cache"];
    let sizes = ["--threads", "1,2", "--record", "64K", "--size", "1M", "--sample-stages", "1"];
    let plot = ["--plot", dir.path().to_str().unwrap()];
    let args: Vec<_> = measure.iter().chain(&sizes).chain(&plot).copied().collect();
    let json = ok(&args.iter().chain(&["--json"]).copied().collect::<Vec<_>>());
    let lines: Vec<serde_json::Value> = json.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    assert_eq!(lines.len(), 16, "2 designs x 2 strategies x 2 numbers of threads x 2 tests");
    for l in &lines {
        let operations = 16 * l["threads"].as_u64().unwrap();
        assert_eq!(l["client"]["sampled_calls"].as_u64(), Some(operations), "{l}");
        let (read, read_read) = (l["test"] == "read", l["design"] == "read-read");
        let spent = |end: &str, stage: &str| l[end]["stages_us"][stage].as_f64() > Some(0.0);
        assert!(spent("server", "execution") && spent("client", "wait"), "{l}");
        assert_eq!(spent("server", "rdma-read-wait"), !read, "{l}");
        assert_eq!(spent("server", "rdma-write-post"), read && !read_read, "{l}");
        assert_eq!(spent("client", "rdma-read-wait"), read && read_read, "{l}");
        assert_eq!(spent("client", "registration"), !(read && read_read), "{l}");
        for end in ["client", "server"] {
            let stages = l[end]["stages_us"].as_object().unwrap().values();
            let sum: f64 = stages.map(|v| v.as_f64().unwrap()).sum();
            assert!((sum - l[end]["sum_us"].as_f64().unwrap()).abs() < 1e-3 * sum, "{l}");
        }
    }
    let name = "fig10-write-breakdown-read-read-cache";
    for ending in ["svg", "png"] {
        assert!(dir.path().join(format!("{name}.{ending}")).is_file(), "{name}.{ending}");
    }
}

#[test]
fn sampled_calls_are_logged() {
    let out = common::run(&[
        "breakdown",
        "--size",
        "1M",
        "--sample-stages",
        "1",
        "--log",
        "millrace::stages=trace",
    ]);
    let log = String::from_utf8(out.stderr).unwrap();
    let event = log.lines().find(|l| l.contains("class=\"write\""));
    let event = event.unwrap_or_else(|| panic!("{log}"));
    for field in ["millrace::stages", "end=\"client\"", "xid=", "total_ns=", "registration=", "wait="] {
        assert!(event.contains(field), "{field}: {event}");
    }
    let table = String::from_utf8(out.stdout).unwrap();
    for row in ["WRITE of 128 KiB", "READ of 128 KiB", "rdma-write-post", "measured"] {
        assert!(table.contains(row), "{row}: {table}");
    }
}
