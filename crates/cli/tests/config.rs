//! What a server is told: wrong configuration files, and addresses that are taken.

#![allow(clippy::unwrap_used, clippy::panic)] // Helpers of tests, which are to fail.

mod common;

use std::{fs, path::Path};

use common::{Server, fails, ok, text};

/// What a configuration file makes the server say when it refuses it.
fn refused(dir: &Path, toml: &str) -> String {
    let file = dir.join("millrace.toml");
    fs::write(&file, toml).unwrap();
    let out = common::run(&["serve", "--log", "off", "--config", text(&file)]);
    let said = String::from_utf8(out.stderr).unwrap();
    assert!(matches!(out.status.code(), Some(1 | 2)) && out.stdout.is_empty(), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
    said
}

#[test]
fn a_wrong_configuration_file_is_told_by_line_and_key() {
    let dir = tempfile::tempdir().unwrap();
    let export = "[[export]]\nname = \"/a\"\nbackend = \"memory:16MiB\"\n";
    let said = refused(dir.path(), &format!("{export}readonly = true\n"));
    assert!(said.contains("line 4") && said.contains("`readonly`") && said.contains("`read_only`"), "{said}");
    let said = refused(dir.path(), &format!("shards = \"two\"\n{export}"));
    assert!(said.contains("line 1") && said.contains("two"), "{said}");
    let said = refused(dir.path(), "[[export]]\nname = \"/a\"\nbackend = \"disk:/x\"\n");
    assert!(said.contains("line 3") && said.contains("memory:SIZE"), "{said}");
    let said = refused(dir.path(), &format!("[limits]\nrtmax = 5000\n{export}"));
    assert!(said.contains("rtmax") && said.contains("4096"), "{said}");
    let said = refused(dir.path(), "[[export]\n");
    assert!(said.contains("line 1"), "{said}");
    let said = refused(dir.path(), "");
    assert!(said.contains("--export"), "{said}");
    let missing = dir.path().join("missing.toml");
    let said = fails(1, &["serve", "--log", "off", "--config", text(&missing)]);
    assert!(said.contains("missing.toml") && said.contains("--config"), "{said}");
}

#[test]
fn a_second_server_at_a_taken_address_says_so() {
    let first = Server::start(&["--export", "/a=memory:16MiB", "--metrics", "127.0.0.1:0"]);
    let metrics = first.ready.split("metrics=").nth(1).unwrap().trim();
    let any = "127.0.0.1:0";
    for (rdma, tcp, metrics, taken) in [
        (first.rdma.as_str(), any, any, first.rdma.as_str()),
        (any, first.tcp.as_str(), any, first.tcp.as_str()),
        (any, any, metrics, metrics),
    ] {
        let said = fails(
            1,
            &[
                &["serve", "--log", "off", "--export", "/a=memory:16MiB"][..],
                &["--listen-rdma", rdma, "--listen-tcp", tcp, "--metrics", metrics],
            ]
            .concat(),
        );
        assert!(said.contains(taken) && said.contains("choose another port"), "{said}");
    }
    // The first one goes on.
    ok(&["ls", &first.url("rdma", "/a")]);
}
