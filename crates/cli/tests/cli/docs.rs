//! Consistency of the documentation with itself and with the program.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use crate::common::{self, Server, ok};

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

fn read(page: &str) -> String {
    fs::read_to_string(repository().join(page)).unwrap_or_else(|e| panic!("{page}: {e}"))
}

/// All pages, by their path in the repository.
fn pages() -> Vec<String> {
    let mut found =
        ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "SECURITY.md"].map(String::from).to_vec();
    let names = common::names(&repository().join("docs"));
    found.extend(names.iter().filter(|n| n.ends_with(".md")).map(|n| format!("docs/{n}")));
    found
}

/// The names in the first column of the tables below the heading `section`.
fn keys(page: &str, section: &str) -> BTreeSet<String> {
    let text = read(page);
    let start =
        text.find(&format!("\n## {section}\n")).unwrap_or_else(|| panic!("{page} has no section {section}"));
    let body = text[start + 4..].split("\n## ").next().unwrap().to_owned();
    let cells = body.lines().filter_map(|l| l.strip_prefix("| `")).filter_map(|l| l.split_once('|'));
    cells
        .flat_map(|(cell, _)| cell.split('`').step_by(2).map(String::from).collect::<Vec<_>>())
        .filter(|k| !k.trim_matches([' ', ',']).is_empty())
        .collect()
}

/// The valid keys of a configuration file after `text`, from the error for an unknown key.
fn known(text: &str) -> BTreeSet<String> {
    let wrong = format!("{text}\nqqqqqqqq = 1\n").parse::<millrace_daemon::Config>().unwrap_err().to_string();
    let list = wrong
        .split_once("expected one of")
        .or_else(|| wrong.split_once("expected "))
        .unwrap_or_else(|| panic!("{wrong}"))
        .1;
    list.split('`').skip(1).step_by(2).map(String::from).collect()
}

#[test]
fn every_configuration_example_is_valid() {
    let mut seen = 0;
    for page in pages() {
        let text = read(&page);
        for toml in text.split("```").skip(1).step_by(2).filter_map(|block| block.strip_prefix("toml\n")) {
            seen += 1;
            toml.parse::<millrace_daemon::Config>().unwrap_or_else(|e| panic!("{page}: {e}\n{toml}"));
        }
    }
    assert!(seen > 1, "only {seen} were found");
}

#[test]
fn the_configuration_page_lists_exactly_the_valid_keys() {
    let page = "docs/reference/configuration.md";
    let mut top = known("");
    for table in ["export", "target", "limits", "nfs4", "metrics_access", "tls", "kerberos", "stages"] {
        assert!(top.remove(table), "{table}");
    }
    assert_eq!(keys(page, "The server"), top);
    assert_eq!(keys(page, "`[[export]]`"), known("[[export]]"));
    assert_eq!(
        keys(page, "`[[export.certificates]]`"),
        known("[[export]]\nname = \"/a\"\nbackend = \"memory:1M\"\n[[export.certificates]]")
    );
    let mut target = known("[[target]]");
    assert!(target.remove("lun"));
    assert_eq!(keys(page, "`[[target]]`"), target);
    assert_eq!(keys(page, "`[[target.lun]]`"), known("[[target]]\n[[target.lun]]"));
    for table in ["limits", "nfs4", "metrics_access", "tls", "kerberos", "stages"] {
        assert_eq!(keys(page, &format!("`[{table}]`")), known(&format!("[{table}]")), "{table}");
    }
}

#[test]
fn the_options_page_lists_exactly_the_mount_options() {
    let message = millrace_fuse::MountOptions::default().read("qqqqqqqq", false).unwrap_err().to_string();
    let list = message.split_once("valid options are ").unwrap().1;
    // For an option with a list of values the page has the name only.
    let named = |word: &str| match word.split_once('=') {
        Some((name, values)) if values.contains('|') => format!("{name}="),
        _ => word.to_owned(),
    };
    let known: BTreeSet<String> = list.split(", ").map(named).collect();
    assert_eq!(keys("docs/reference/options.md", "Options of `millrace mount -o`"), known);
}

#[test]
fn the_url_options_in_the_options_page_are_valid() {
    let words = keys("docs/reference/options.md", "URLs");
    let value = |key: &str| match key {
        "vers" => "=4.2",
        "proto" => "=tcp",
        "provider" => "=iwarp",
        "nconnect" => "=2",
        "busy_poll" => "=100",
        "rsize" | "wsize" => "=64K",
        "mountport" => "=2049",
        "registration" => "=dynamic",
        "sec" => "=krb5p",
        "xprtsec" => "=mtls",
        "tls_ca" | "tls_cert" | "tls_key" => "=/etc/x.pem",
        "tls_name" => "=nfs.example",
        "resvport" | "noresvport" => "",
        other => panic!("is {other} an option of URLs?"),
    };
    for key in &words {
        let url = format!("nfs://h/e?{key}{}", value(key));
        url.parse::<millrace_client::Url>().unwrap_or_else(|e| panic!("{url}: {e}"));
    }
    assert_eq!(words.len(), 17, "{words:?}");
}

#[test]
fn the_exit_codes_page_matches_the_help() {
    let help = ok(&["--help"]);
    let codes = help.split_once("Exit codes:\n").unwrap().1;
    let lines: Vec<_> =
        codes.lines().take_while(|l| !l.is_empty()).filter_map(|l| l.trim().split_once("  ")).collect();
    assert_eq!(lines.len(), 5, "{codes}");
    let page = read("docs/reference/exit-codes.md");
    for (code, meaning) in lines {
        assert!(page.contains(&format!("| {code} | {meaning} |")), "{code}: {meaning}");
    }
}

#[test]
fn the_transcript_in_the_readme_matches_its_quick_start() {
    let page = read("README.md");
    let section = page.split_once("\n## Quick start\n").unwrap().1;
    let blocks: Vec<_> = section.split("```").skip(1).step_by(2).collect();
    let commands: Vec<_> = blocks[0].lines().skip(1).collect();
    assert_eq!((commands.len(), blocks[0].starts_with("sh\n")), (4, true));
    let typed: Vec<_> = blocks[1].lines().filter_map(|l| l.strip_prefix("$ ")).collect();
    assert_eq!(typed[..3], commands[1..], "tools/transcript --write makes it again");
    assert!(blocks[1].contains("\nready rdma="), "{}", blocks[1]);
}

/// The messages in the troubleshooting page; dots stand for any text.
fn explained() -> Vec<String> {
    let text = read("docs/troubleshooting.md");
    let cells =
        text.lines().filter_map(|l| l.strip_prefix("| ")?.split_once(" | ")).map(|(cell, _)| cell.to_owned());
    cells.flat_map(|c| c.split('`').skip(1).step_by(2).map(String::from).collect::<Vec<_>>()).collect()
}

fn matches(pattern: &str, message: &str) -> bool {
    let mut rest = Some(message);
    for piece in pattern.split("...") {
        rest = rest.and_then(|r| r.split_once(piece)).map(|(_, after)| after);
    }
    rest.is_some()
}

#[test]
fn the_troubleshooting_page_explains_common_errors() {
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = dir.path().join(name);
        fs::write(&path, text).unwrap();
        common::text(&path).to_owned()
    };
    let slip = file("slip.toml", "listen_tpc = []\n");
    let memory = "[limits]\ncredits = 4000\n[[export]]\nname = \"/a\"\nbackend = \"memory:1MiB\"\n";
    let memory = file("memory.toml", memory);
    let (nowhere, here) = (dir.path().join("nowhere"), common::text(dir.path()));
    let (nowhere, local) = (common::text(&nowhere), format!("/x=local:{}", common::text(&nowhere)));
    let exports = ["--export", "/m=memory:16MiB", "--export", "/ro=memory:16MiB,ro"];
    let server =
        Server::start(&[&exports[..], &["--export", "/closed=memory:16MiB,client=192.0.2.1"]].concat());
    let urls = ["/none", "/closed", "/m/none", "/ro/dir", "/m"].map(|path| server.url("rdma", path));
    let serve = ["serve", "--log", "off", "--export", "/m=memory:16MiB", "--listen-tcp"];
    let crossed = format!("nfs://{}/m?proto=rdma", server.tcp);
    let cases: [(i32, Vec<&str>); 14] = [
        (1, [&serve[..], &[&server.tcp]].concat()),
        (1, [&serve[..], &["192.0.2.1:0"]].concat()),
        (1, vec!["serve", "--log", "off", "--export", &local]),
        (1, vec!["check-config", &slip]),
        (1, vec!["check-config", &memory]),
        (1, vec!["ls", "nfs://nosuchhost.invalid/m"]),
        (1, vec!["ls", "nfs://127.0.0.1:1/m"]),
        (1, vec!["ls", &crossed]),
        (1, vec!["ls", &urls[0]]),
        (1, vec!["ls", &urls[1]]),
        (1, vec!["ls", &urls[2]]),
        (1, vec!["mkdir", &urls[3]]),
        (1, vec!["mount", &urls[4], here]),
        (1, vec!["mount", &urls[4], nowhere]),
    ];
    let patterns = explained();
    for (code, args) in cases {
        let message = common::fails(code, &args);
        // A pattern of dots alone would match every message.
        let known = patterns.iter().any(|p| p.len() > 20 && matches(p, &message));
        assert!(known, "{args:?}: the message is not in the page: {message}");
    }
    assert!(!patterns.iter().any(|p| p.len() > 20 && matches(p, "millrace: the moon is full")));
}

/// The table of the metrics of a server.
fn metrics_table(text: &str) -> String {
    let mut table = String::from("| metric | labels | what it is |\n|---|---|---|\n");
    for (name, help) in text.lines().filter_map(|l| l.strip_prefix("# HELP ")?.split_once(' ')) {
        let kind = text.lines().find_map(|l| l.strip_prefix(&format!("# TYPE {name} "))).unwrap();
        let sample = text.lines().find(|l| l.starts_with(name) && !l.contains("le=")).unwrap_or_default();
        let inside = sample.split_once('{').and_then(|(_, rest)| rest.split_once('}')).map_or("", |(l, _)| l);
        let labels: Vec<_> =
            inside.split(',').filter_map(|l| l.split_once('=')).map(|(l, _)| format!("`{l}`")).collect();
        // The page says so.
        let by_name = match name {
            _ if name.ends_with("_total") => "counter",
            _ if name.ends_with("_call_seconds") => "histogram",
            _ => "gauge",
        };
        assert_eq!(kind, by_name, "{name}");
        table += &format!("| `{name}` | {} | {} |\n", labels.join(", "), help.trim_end_matches('.'));
    }
    table
}

#[test]
fn the_metrics_page_lists_all_metrics() {
    let mut args = vec!["--export", "/m=memory:16MiB", "--metrics", "127.0.0.1:0"];
    args.extend(["--listen-iscsi", "127.0.0.1:0", "--lun", "disk=/m/disk,size=1MiB"]);
    let server = Server::start(&args);
    ok(&["ls", &format!("{}&vers=4.2", server.url("rdma", "/m"))]); // With the labels of NFSv4 clients.
    let made = metrics_table(&server.metrics());

    let path = "docs/reference/metrics.md";
    let page = read(path);
    let start = page.find("| metric |").unwrap();
    let end = start + page[start..].find("\n\n").map_or(page.len() - start, |n| n + 1);
    if std::env::var_os("MILLRACE_UPDATE_DOCS").is_some() {
        fs::write(repository().join(path), format!("{}{made}{}", &page[..start], &page[end..])).unwrap();
    } else {
        let how =
            "write it again: MILLRACE_UPDATE_DOCS=1 cargo test -p millrace-cli --test cli docs::the_metrics";
        assert!(page[start..end] == made, "{path} is not up to date; {how}\n{made}");
    }
}
