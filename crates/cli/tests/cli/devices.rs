//! Selection of the RDMA provider, and its report.

use std::fs;

use serde_json::Value;

use crate::common::{Server, fails, ok, run, text};

fn devices() -> Value {
    serde_json::from_str(&ok(&["devices", "--json"])).unwrap()
}

#[test]
fn the_list_shows_for_each_provider_whether_it_is_usable_or_a_remedy() {
    let all = devices();
    let (iwarp, verbs) = (&all["providers"][0], &all["providers"][1]);
    assert_eq!((iwarp["name"].as_str(), iwarp["usable"].as_bool()), (Some("iwarp"), Some(true)));
    assert_eq!(verbs["name"], "verbs");
    let listed = all["devices"].as_array().unwrap();
    if verbs["usable"] == true {
        for d in listed.iter().filter(|d| d["error"].is_null()) {
            assert!(
                d["limits"]["max_qp"].as_u64() > Some(0) && d["features"]["memory windows"].is_boolean(),
                "{d}"
            );
            assert!(d["ports"][0]["state"].is_string() && d["ports"][0]["gids"].is_array(), "{d}");
        }
        assert!(listed.iter().any(|d| d["error"].is_null()));
    } else {
        let why = verbs["why"].as_str().unwrap();
        let remedies = ["install", "modprobe", "rdma link", "permission"];
        assert!(remedies.iter().any(|r| why.contains(r)), "{why}");
    }
    let message = ok(&["devices"]);
    assert!(message.lines().any(|l| l.starts_with("iwarp") && l.contains("yes")), "{message}");
    for d in listed {
        assert!(message.contains(&format!("device {}:", d["name"].as_str().unwrap())), "{message}");
    }
}

#[test]
fn every_local_address_is_listed_with_its_automatic_provider() {
    let all = devices();
    let addresses = all["addresses"].as_array().unwrap();
    let of = |ip: &str| addresses.iter().find(|a| a["address"] == ip).map(|a| a["provider"].clone());
    assert!(addresses.iter().all(|a| a["why"].as_str().is_some_and(|w| !w.is_empty())), "{all}");
    assert!(of("127.0.0.1").is_some(), "{all}");
    if let Ok(address) = std::env::var("MILLRACE_TEST_VERBS") {
        assert_eq!(of(&address).unwrap(), "verbs", "{all}");
    }
}

#[test]
fn verbs_at_an_address_without_a_device_is_rejected_by_servers_and_clients() {
    let server = ["serve", "--log", "off", "--export", "/a=memory:16MiB", "--listen-rdma", "127.0.0.1:0"];
    let message = fails(1, &[&server[..], &["--provider", "verbs"]].concat());
    assert!(message.contains("127.0.0.1:0") && message.contains("choose the provider iwarp"), "{message}");
    for args in [
        &["ls", "nfs://127.0.0.1:9/a?provider=verbs"][..],
        &["ls", "--provider", "verbs", "nfs://127.0.0.1:9/a"],
    ] {
        let message = fails(1, args);
        assert!(message.contains("choose the provider iwarp"), "{message}");
    }
    // A debug build prints a further warning.
    let out = run(&["bench", "raw", "--provider", "verbs"]);
    let message = String::from_utf8(out.stderr).unwrap();
    assert_eq!(out.status.code(), Some(2), "{message}");
    assert!(message.contains("choose the provider iwarp"), "{message}");
}

#[test]
fn a_url_overrides_the_command_line_which_overrides_the_file() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("millrace.toml");
    fs::write(&file, "provider = \"verbs\"\n[[export]]\nname = \"/a\"\nbackend = \"memory:16MiB\"\n")
        .unwrap();
    let message = fails(
        1,
        &[
            "serve",
            "--log",
            "off",
            "--listen-rdma",
            "127.0.0.1:0",
            "--listen-tcp",
            "127.0.0.1:0",
            "--config",
            text(&file),
        ],
    );
    assert!(message.contains("choose the provider iwarp"), "{message}");
    let server = Server::start(&["--config", text(&file), "--provider", "iwarp"]);
    let url = server.url("rdma", "/a");
    ok(&["ls", &url]);
    ok(&["ls", &format!("{url}&provider=iwarp"), "--provider", "verbs"]);
    fails(1, &["ls", &format!("{url}&provider=verbs"), "--provider", "iwarp"]);
}

#[test]
fn the_log_states_the_selected_provider_and_the_reason() {
    let server = Server::start(&["--export", "/a=memory:16MiB"]);
    let out = run(&["ls", "--log", "info", &server.url("rdma", "/a")]);
    let log = String::from_utf8(out.stderr).unwrap();
    assert!(out.status.success() && log.contains("provider=\"iwarp\"") && log.contains("why="), "{log}");
}
