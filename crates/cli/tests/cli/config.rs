//! Configuration of a server: invalid files, addresses in use, the example file.

use std::{fs, path::Path};

use millrace_daemon::Config;

use crate::common::{self, Server, fails, ok, text};

/// Returns the error of a server with an invalid configuration file.
fn refused(dir: &Path, toml: &str) -> String {
    let file = dir.join("millrace.toml");
    fs::write(&file, toml).unwrap();
    let out = common::run(&["serve", "--log", "off", "--config", text(&file)]);
    let message = String::from_utf8(out.stderr).unwrap();
    assert!(matches!(out.status.code(), Some(1 | 2)) && out.stdout.is_empty(), "{message}");
    message
}

#[test]
fn an_error_in_a_configuration_file_names_line_and_key() {
    let dir = tempfile::tempdir().unwrap();
    let export = "[[export]]\nname = \"/a\"\nbackend = \"memory:16MiB\"\n";
    let message = refused(dir.path(), &format!("{export}readonly = true\n"));
    assert!(
        message.contains("millrace.toml:4:")
            && message.contains("`readonly`")
            && message.contains("`read_only`"),
        "{message}"
    );
    let message = refused(dir.path(), &format!("shards = \"two\"\n{export}"));
    assert!(message.contains("millrace.toml:1:") && message.contains("two"), "{message}");
    let message = refused(dir.path(), "[[export]]\nname = \"/a\"\nbackend = \"disk:/x\"\n");
    assert!(message.contains("millrace.toml:3:") && message.contains("memory:SIZE"), "{message}");
    let message = refused(dir.path(), &format!("[limits]\nrtmax = 5000\n{export}"));
    assert!(message.contains("rtmax") && message.contains("4096"), "{message}");
    let message = refused(dir.path(), "[[export]\n");
    assert!(message.contains("millrace.toml:1:"), "{message}");
    let message = refused(dir.path(), "");
    assert!(message.contains("--export"), "{message}");
    let missing = dir.path().join("missing.toml");
    let message = fails(1, &["serve", "--log", "off", "--config", text(&missing)]);
    assert!(message.contains("missing.toml") && message.contains("--config"), "{message}");
}

#[test]
fn an_address_in_use_is_reported() {
    let first = Server::start(&["--export", "/a=memory:16MiB", "--metrics", "127.0.0.1:0"]);
    let metrics = first.ready.split("metrics=").nth(1).unwrap().trim();
    let any = "127.0.0.1:0";
    for (rdma, tcp, metrics, taken) in [
        (first.rdma.as_str(), any, any, first.rdma.as_str()),
        (any, first.tcp.as_str(), any, first.tcp.as_str()),
        (any, any, metrics, metrics),
    ] {
        let message = fails(
            1,
            &[
                &["serve", "--log", "off", "--export", "/a=memory:16MiB"][..],
                &["--listen-rdma", rdma, "--listen-tcp", tcp, "--metrics", metrics],
            ]
            .concat(),
        );
        assert!(message.contains(taken) && message.contains("choose another port"), "{message}");
    }
    // The first server still works.
    ok(&["ls", &first.url("rdma", "/a")]);
}

/// The example file with all commented-out keys enabled.
fn everything_on(example: &str) -> String {
    let is_key =
        |l: &str| l.strip_prefix('#').is_some_and(|r| r.starts_with('[') || r.split(' ').nth(1) == Some("="));
    example
        .lines()
        .map(|l| if is_key(l) { l.strip_prefix('#').unwrap_or(l) } else { l })
        .fold(String::new(), |text, l| text + l + "\n")
}

#[test]
fn the_example_has_every_key_with_its_default() {
    let example = include_str!("../../../../packaging/millrace.toml");
    let plain: Config = example.parse().unwrap();
    let full: Config = everything_on(example).parse().unwrap();
    full.check().unwrap();
    assert_eq!((plain.server.exports.len(), full.server.exports.len()), (1, 2));
    assert_eq!((plain.server.targets.len(), full.server.targets.len()), (0, 1));
    // Keys with the word "Example" have no default.
    let Config { server, metrics, metrics_access, control, .. } = full.clone();
    let defaults = Config {
        server: millrace_server::Config {
            exports: server.exports,
            listen_rdma: server.listen_rdma,
            listen_tcp: server.listen_tcp,
            listen_iscsi: server.listen_iscsi,
            listen_iser: server.listen_iser,
            targets: server.targets,
            tls: server.tls,
            kerberos: server.kerberos,
            state_dir: server.state_dir,
            shards: server.shards,
            registration: server.registration,
            limits: millrace_server::Limits {
                max_connections: server.limits.max_connections,
                max_connections_per_client: server.limits.max_connections_per_client,
                ..millrace_server::Limits::default()
            },
            nfs4: millrace_server::Nfs4Settings {
                server_owner: server.nfs4.server_owner,
                server_scope: server.nfs4.server_scope,
                boot_epoch: server.nfs4.boot_epoch,
                ..millrace_server::Nfs4Settings::default()
            },
            ..millrace_server::Config::default()
        },
        metrics,
        metrics_access,
        control,
        ..Config::default()
    };
    assert_eq!(full, defaults);
    assert!(
        full.metrics.is_some()
            && full.control.is_some()
            && full.server.tls.is_some()
            && full.server.kerberos.is_some()
            && full.server.state_dir.is_some()
    );
    assert_eq!(
        plain.server.exports[0], full.server.exports[0],
        "commented options of an export are its defaults"
    );
    // The error for an unknown key lists the valid keys.
    for (table, not_shown) in [
        ("", &["export", "target"][..]),
        ("[limits]\n", &["registration_cache"]),
        ("[nfs4]\n", &[]),
        ("[stages]\n", &[]),
        ("[tls]\n", &[]),
        ("[metrics_access]\n", &[]),
        ("[kerberos]\n", &[]),
        ("[[export]]\n", &["certificates"]),
        ("[[target]]\n", &["lun"]),
        ("[[target]]\n[[target.lun]]\n", &[]),
    ] {
        let message = format!("{table}zzz = 1\n").parse::<Config>().unwrap_err().to_string();
        let message = message.lines().find(|line| line.contains("unknown field")).unwrap();
        for key in message.split('`').skip(3).step_by(2).filter(|k| !not_shown.contains(k)) {
            let is_there = |l: &str| l == format!("[{key}]") || l.starts_with(&format!("{key} ="));
            let lines = || example.lines().map(|l| l.trim_start_matches('#'));
            assert!(lines().any(is_there), "{key} is missing");
        }
    }
}

#[test]
fn check_config_accepts_valid_and_rejects_invalid_files() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("millrace.toml");
    fs::write(&file, format!("[[export]]\nname = \"/a\"\nbackend = \"local:{}\"\n", text(dir.path())))
        .unwrap();
    let message = ok(&["check-config", text(&file)]);
    assert!(message.contains("millrace.toml: valid; exports /a"), "{message}");
    let target = "[[target]]\nname = \"disks\"\n[[target.lun]]\npath = \"/a/disk\"\nsize = \"1MiB\"\n";
    let export = "[[export]]\nname = \"/a\"\nbackend = \"memory:1MiB\"\n";
    fs::write(&file, format!("{export}{target}")).unwrap();
    let message = ok(&["check-config", text(&file)]);
    assert!(message.contains("; targets iqn.2026-01.example.millrace:disks"), "{message}");
    fs::write(&file, format!("{export}{}", target.replace("/a/", "/b/"))).unwrap();
    let message = fails(1, &["check-config", text(&file)]);
    assert!(message.contains("millrace.toml:7:1: the LUN /b/disk of target iqn."), "{message}");
    fs::write(&file, "[[export]]\nname = \"/a\"\nbakend = \"memory:1MiB\"\n").unwrap();
    let message = fails(1, &["check-config", text(&file)]);
    assert!(
        message.contains("millrace.toml:3:1: there is no key `bakend`; is `backend` meant?"),
        "{message}"
    );
    fails(1, &["check-config", text(&dir.path().join("none"))]);
}

#[test]
fn check_config_reports_all_errors_with_excerpts_also_as_json_and_from_standard_input() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("millrace.toml");
    let toml = "metrics = \"localhost:9464\"\n[[export]]\nname = \"/a\"\nbackend = \"memory:1MiB\"\nsquash = \"no_root_squash\"\n";
    fs::write(&file, toml).unwrap();
    let name = text(&file);
    let out = common::run(&["check-config", name]);
    let expected = format!(
        "millrace: {name}:1:11: \"localhost:9464\" has a host name, and a server listens on addresses of this host; \
         write 127.0.0.1:9464; `ip address` shows them\n  |\n1 | metrics = \"localhost:9464\"\n  |           ^^^^^^^^^^^^^^^^\n\
         {name}:5:10: `squash` is one of \"none\", \"root\", \"all\"; for \"no_root_squash\" write squash = \"none\"\n  |\n\
         5 | squash = \"no_root_squash\"\n  |          ^^^^^^^^^^^^^^^^\n"
    );
    assert_eq!((String::from_utf8(out.stderr).unwrap(), out.status.code()), (expected, Some(1)));
    let out = common::run(&["check-config", "--json", name]);
    let report: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
    assert_eq!((out.status.code(), report["valid"].as_bool()), (Some(1), Some(false)));
    let places: Vec<_> =
        report["errors"].as_array().unwrap().iter().map(|e| (&e["line"], &e["column"])).collect();
    assert_eq!(places, [(&1.into(), &11.into()), (&5.into(), &10.into())]);
    let message = common::shell("! printf 'x = 1\\n' | \"$0\" check-config -", &[]);
    assert!(message.contains("/dev/stdin:1:1: unknown field `x`"), "{message}");
}

#[test]
fn check_config_gives_the_warnings_of_a_start() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("millrace.toml");
    let export = "[[export]]\nname = \"/a\"\nbackend = \"memory:1MiB\"\nsquash = \"none\"\n";
    let warnings = |listen: &str, export: &str| {
        fs::write(&file, format!("listen_tcp = [\"{listen}:2049\"]\n{export}")).unwrap();
        let out = common::run(&["check-config", text(&file)]);
        assert!(out.status.success());
        String::from_utf8(out.stderr).unwrap()
    };
    let message = warnings("0.0.0.0", export);
    assert!(
        message.contains("millrace.toml:2:1: every host that reaches this server may change"),
        "{message}"
    );
    assert!(message.contains("root included"), "{message}");
    assert_eq!(warnings("127.0.0.1", export), "");
    assert_eq!(warnings("0.0.0.0", &format!("{export}clients = [\"10.0.0.0/8\"]\n")), "");
}
