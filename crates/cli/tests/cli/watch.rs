//! `millrace top`, and the dashboard and the alerts that use the same counters.

use std::{
    collections::BTreeSet,
    io::{Read, Write},
};

use crate::common::{Server, fails, ok};

fn metrics(server: &Server) -> String {
    server.ready.split("metrics=").nth(1).unwrap().trim().to_owned()
}

#[test]
fn top_shows_the_activity_of_clients() {
    let server = Server::start(&["--export", "/m=memory:16MiB", "--metrics", "127.0.0.1:0"]);
    let address = metrics(&server);
    let done = std::sync::atomic::AtomicBool::new(false);
    let message = std::thread::scope(|s| {
        s.spawn(|| {
            while !done.load(std::sync::atomic::Ordering::Relaxed) {
                ok(&["ls", &server.url("rdma", "/m")]);
                ok(&["ls", &format!("{}&vers=3", server.url("tcp", "/m"))]);
            }
        });
        let message = ok(&["top", &address, "--once"]);
        done.store(true, std::sync::atomic::Ordering::Relaxed);
        message
    });
    let row = |name: &str| {
        let figures = message.lines().find_map(|l| l.strip_prefix(name)?.strip_prefix("  "));
        let figures = figures.unwrap_or_else(|| panic!("no {name} in\n{message}"));
        figures.split_whitespace().next().unwrap().parse::<f64>().unwrap()
    };
    for name in ["127.0.0.1", "/m", "NFSv3 READDIRPLUS", "NFSv4 READDIR", "NFSv4 SEQUENCE"] {
        assert!(row(name) > 0.0, "{message}");
    }
}

#[test]
fn top_prints_json() {
    let server = Server::start(&["--export", "/m=memory:16MiB", "--metrics", "127.0.0.1:0"]);
    let report: serde_json::Value = serde_json::from_str(&ok(&["top", &metrics(&server), "--json"])).unwrap();
    assert_eq!(
        (report["export"][0]["name"].as_str(), report["client"].as_array().unwrap().len()),
        (Some("/m"), 0)
    );
    assert_eq!((report["connections"].as_f64(), report["iscsi"].is_null()), (Some(0.0), true));
    assert!(report["memory_limit_bytes"].as_f64().unwrap() > 0.0, "{report}");
}

#[test]
fn an_error_of_top_names_the_address() {
    let server = Server::start(&["--export", "/m=memory:16MiB"]);
    let message = fails(1, &["top", &server.tcp, "--once"]);
    assert!(message.contains(&server.tcp) && message.contains("--metrics"), "{message}");
    fails(1, &["top", "127.0.0.1:1"]);
}

/// The names of metrics in `text`.
fn named(text: &str) -> impl Iterator<Item = String> {
    let words = text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
    words.filter(|w| w.starts_with("millrace_") || w.starts_with("process_")).map(str::to_owned)
}

/// Collects the names of metrics in the queries of a dashboard.
fn queried(value: &serde_json::Value, names: &mut BTreeSet<String>) {
    match value {
        serde_json::Value::Object(map) => {
            if let Some(expr) = map.get("expr").and_then(|e| e.as_str()) {
                names.extend(named(expr));
            }
            map.values().for_each(|v| queried(v, names));
        }
        serde_json::Value::Array(list) => list.iter().for_each(|v| queried(v, names)),
        _ => {}
    }
}

#[test]
fn the_metrics_of_the_dashboard_and_the_alerts_exist() {
    let dashboard = include_str!("../../../../packaging/grafana/millrace.json");
    let mut names = BTreeSet::new();
    queried(&serde_json::from_str(dashboard).unwrap(), &mut names);
    assert!(names.len() > 30, "{names:?}");
    let of_dashboard = names.len();
    names.extend(named(include_str!("../../../../packaging/prometheus/millrace.rules.yml")));
    assert!(names.len() > of_dashboard + 4, "{names:?}");
    let mut args = vec!["--export", "/m=memory:16MiB", "--metrics", "127.0.0.1:0"];
    args.extend(["--listen-iscsi", "127.0.0.1:0", "--lun", "disk=/m/disk,size=1MiB"]);
    let server = Server::start(&args);
    ok(&["ls", &server.url("rdma", "/m")]);
    let mut stream = std::net::TcpStream::connect(metrics(&server)).unwrap();
    stream.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").unwrap();
    let mut shown = String::new();
    stream.read_to_string(&mut shown).unwrap();
    for name in names {
        let is_there = |l: &str| l.strip_prefix(&name).is_some_and(|r| r.starts_with(['{', ' ']));
        assert!(shown.lines().any(is_there), "{name} is not shown");
    }
}
