//! Tests of comparisons of designs, registration strategies, threads and records.

use std::{collections::HashMap, fs};

use serde_json::Value;

use crate::common::{fails, ok, run, text};

const DESIGNS: [&str; 2] = ["read-write", "read-read"];
const STRATEGIES: [&str; 4] = ["dynamic", "fast", "cache", "all-physical"];
const RECORDS: [u64; 2] = [65_536, 131_072];
const FILE: u64 = 1 << 20;

/// Small files: the checked counts do not depend on the size.
const QUICK: [&str; 9] =
    ["iozone", "--self", "--size", "1M", "--threads", "1,2", "--record", "64K,128K", "--json"];

/// Identifies a cell: design, strategy, threads, record, test.
type Cell = (String, String, u64, u64, String);

fn cell(figure: &Value) -> Cell {
    let word = |key: &str| figure[key].as_str().unwrap().to_owned();
    let number = |key: &str| figure[key].as_u64().unwrap();
    (word("design"), word("registration"), number("threads"), number("record"), word("test"))
}

/// The figures of all cells as JSON, and the lines of the CSV file.
fn measured() -> (HashMap<Cell, Value>, Vec<HashMap<String, String>>) {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("all.csv");
    let lists = ["--design", "read-write,read-read", "--registration", "dynamic,fast,cache,all-physical"];
    let rest = ["--tests", "write,read", "--csv", text(&file)];
    let out = ok(&[&QUICK[..], &lists, &rest].concat());
    let figures: Vec<Value> = out.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    let cells: HashMap<_, _> = figures.iter().map(|f| (cell(f), f.clone())).collect();
    assert_eq!(cells.len(), figures.len(), "a cell was measured twice");
    (cells, csv::Reader::from_path(&file).unwrap().deserialize().map(Result::unwrap).collect())
}

#[test]
fn every_cell_is_measured_with_registrations_and_exposure() {
    let (cells, csv) = measured();
    for design in DESIGNS {
        for strategy in STRATEGIES {
            for (threads, record, test) in
                [1, 2].into_iter().flat_map(|t| RECORDS.map(|r| [(t, r, "write"), (t, r, "read")])).flatten()
            {
                let key = (design.into(), strategy.into(), threads, record, test.into());
                check(cells.get(&key).unwrap_or_else(|| panic!("{key:?} is missing")));
            }
        }
    }
    assert_eq!((cells.len(), csv.len()), (64, 64));
    for line in &csv {
        let number = |key: &str| line[key].parse::<u64>().unwrap();
        let word = |key: &str| line[key].clone();
        let key = (word("design"), word("registration"), number("threads"), number("record"), word("test"));
        same(line, &cells[&key]);
    }
}

/// Asserts that a line of the CSV file has the values of the JSON object.
fn same(line: &HashMap<String, String>, figure: &Value) {
    let figure = figure.as_object().unwrap();
    assert_eq!(line.len(), figure.len());
    for (key, value) in figure {
        match value {
            Value::Null => assert_eq!(line[key], ""),
            Value::String(s) => assert_eq!(&line[key], s),
            Value::Bool(b) => assert_eq!(line[key], b.to_string()),
            value => {
                // The two parsers may differ in the last bit.
                let (a, b) = (line[key].parse::<f64>().unwrap(), value.as_f64().unwrap());
                assert!((a - b).abs() <= b.abs() * 1e-12, "{key}: {a} and {b}");
            }
        }
    }
}

fn check(f: &Value) {
    let number = |key: &str| f[key].as_f64().unwrap_or_else(|| panic!("no {key} in {f}"));
    let is = |key: &str, value: &str| f[key] == *value;
    assert!(number("mb_per_s") > 0.0 && number("client_cpu_percent") > 0.0, "{f}");
    assert!(number("server_cpu_percent") >= 0.0, "{f}");
    let operations = (FILE / f["record"].as_u64().unwrap() * f["threads"].as_u64().unwrap()) as f64;
    let (client, server) = (number("client_exposed_byte_s"), number("server_exposed_byte_s"));
    // Only READ of the Read-Read design exposes memory of the server; the client then exposes none, except
    // cached buffers of WRITEs.
    let read_read = is("design", "read-read") && is("test", "read");
    assert_eq!(server > 0.0, read_read, "{f}");
    assert_eq!(client > 0.0, !read_read || is("registration", "cache"), "{f}");
    let registrations = number("client_registrations");
    match f["registration"].as_str().unwrap() {
        "dynamic" => assert_eq!(registrations, if read_read { 0.0 } else { operations }, "{f}"),
        "fast" | "all-physical" => assert_eq!(registrations, 0.0, "{f}"),
        _ => assert!(registrations <= operations, "{f}"),
    }
    if is("server_registration", "dynamic") {
        assert_eq!(number("server_registrations"), if read_read { operations } else { 0.0 }, "{f}");
    }
    // A Read-Read server replaces all-physical by its default.
    let both = is("registration", "all-physical") && is("design", "read-read");
    assert!(
        is("server_registration", if both { "cache" } else { f["registration"].as_str().unwrap() }),
        "{f}"
    );
}

#[test]
fn the_strategy_of_one_end_can_be_compared() {
    let strategies = ["--registration", "dynamic,all-physical", "--tests", "read", "--registration-of"];
    for (end, mine, other, others) in [
        ("client", "registration", "server_registration", "cache"),
        ("server", "server_registration", "registration", "fast"),
    ] {
        let out = ok(&[&QUICK[..], &strategies, &[end]].concat());
        let figures: Vec<Value> = out.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
        assert_eq!(figures.len(), 8);
        assert!(figures.iter().all(|f| f[other] == others), "{out}");
        assert_eq!(figures.iter().filter(|f| f[mine] == "all-physical").count(), 4);
    }
}

#[test]
fn plots_and_a_table_of_medians_are_written() {
    let dir = tempfile::tempdir().unwrap();
    let out = ok(&[
        "iozone",
        "--self",
        "--size",
        "1M",
        "--threads",
        "1,2",
        "--record",
        "64K",
        "--tests",
        "read",
        "--registration",
        "dynamic,fast",
        "--runs",
        "2",
        "--plot",
        text(&dir.path().join("out")),
    ]);
    let rows: Vec<&str> = out.lines().filter(|l| l.contains("64 KiB")).collect();
    assert_eq!(rows.len(), 4, "{out}");
    for words in ["medians of 2 runs", "client CPU %", "server exposed", "registration", "threads"] {
        assert!(out.contains(words), "{words}: {out}");
    }
    for name in [
        "exposed-read",
        "fig05-read-designs-dynamic",
        "fig05-read-designs-fast",
        "fig07-read-records-read-write-dynamic",
        "fig07-read-records-read-write-fast",
        "fig11-read-strategies-cpu-read-write-64KiB",
        "fig13-read-strategies-read-write-small-and-large",
        "fig14-read-strategies-read-write-64KiB",
    ] {
        let file = |end: &str| fs::read(dir.path().join("out").join(format!("{name}.{end}"))).unwrap();
        assert!(file("png").starts_with(b"\x89PNG"), "{name}");
        let svg = String::from_utf8(file("svg")).unwrap();
        assert!(svg.contains("READ") || svg.contains("exposed"), "{name}");
    }
    assert_eq!(fs::read_dir(dir.path().join("out")).unwrap().count(), 16);
}

#[test]
fn a_record_that_exceeds_a_call_leaves_its_cell_empty() {
    let line = ["iozone", "--self", "--size", "2M", "--record", "64K,1M", "--json", "--tests"];
    // Segments of all-physical end at page boundaries, and their number exceeds what a call can convey.
    for tests in ["write,read", "read,write"] {
        let out = ok(&[&line[..], &[tests, "--registration", "fast,all-physical"]].concat());
        let figures: Vec<Value> = out.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
        assert_eq!(figures.len(), 8);
        for f in &figures {
            let impossible = f["registration"] == "all-physical" && f["record"] == 1 << 20;
            assert_eq!(f["mb_per_s"].is_null(), impossible, "{f}");
        }
    }
    let alone = ["iozone", "--self", "--size", "2M", "--record", "1M", "--tests", "read", "--registration"];
    let out = run(&[&alone[..], &["all-physical"]].concat());
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(out.status.code() == Some(2) && said.contains("choose a smaller --record"), "{said}");
}

#[test]
fn lists_are_rejected_by_commands_without_comparison() {
    let said = fails(2, &["latency", "--design", "read-write,read-read", "nfs://127.0.0.1:1/x"]);
    assert!(said.contains("--design accepts one name here") && said.contains("lab iozone"), "{said}");
    let said = fails(2, &["serve", "--export", "/x=memory:1M", "--registration", "fast,cache"]);
    assert!(said.contains("--registration accepts one name here"), "{said}");
    let tcp = run(&["iozone", "--self", "--proto", "tcp", "--registration", "fast,cache"]);
    let said = String::from_utf8_lossy(&tcp.stderr).into_owned();
    assert!(tcp.status.code() == Some(2) && said.contains("omit --proto tcp"), "{said}");
    let missing = run(&["iozone", "--self", "--csv", "/no/such/directory/x.csv"]);
    let said = String::from_utf8_lossy(&missing.stderr).into_owned();
    assert!(
        missing.status.code() == Some(1) && said.contains("cannot create /no/such/directory/x.csv"),
        "{said}"
    );
}
