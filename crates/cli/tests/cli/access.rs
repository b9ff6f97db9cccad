//! Access control of a server: squash, clients, state directory, capabilities.

use std::{
    fs,
    io::{BufRead, BufReader, Read},
    path::PathBuf,
    process::{Command, Stdio},
};

use crate::common::{Server, fails, kill, millrace, ok, text};

/// Starts and stops a server, and returns its log.
fn log_of(command: &mut Command) -> String {
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut ready = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut ready).unwrap();
    kill(child.id(), "TERM");
    let mut message = String::new();
    child.stderr.take().unwrap().read_to_string(&mut message).unwrap();
    assert!(child.wait().unwrap().success() && ready.starts_with("ready"), "{message}");
    message
}

#[test]
fn an_export_writable_from_all_hosts_is_named_in_the_log() {
    let log = |listen: &str| {
        let exports = ["/open=memory:1MiB", "/ro=memory:1MiB,ro", "/named=memory:1MiB,client=127.0.0.0/8"];
        let exports = exports.iter().flat_map(|e| ["--export", e]);
        let mut command = millrace();
        command.args(["serve", "--log", "warn", "--listen-rdma", "127.0.0.1:0", "--listen-tcp", listen]);
        log_of(command.args(exports))
    };
    let message = log("0.0.0.0:0");
    let warned: Vec<&str> = message.lines().filter(|l| l.contains("every host")).collect();
    assert_eq!(warned.len(), 1, "{message}");
    assert!(warned[0].contains("/open") && warned[0].contains("any user but root"), "{message}");
    assert!(!log("127.0.0.1:0").contains("every host"));
}

/// 65534 is the anonymous user of Linux.
#[test]
fn root_of_a_client_is_squashed_by_default() {
    let dir = tempfile::tempdir().unwrap();
    let local = format!("/closed=local:{}", dir.path().display());
    let server = Server::start(&[
        "--export",
        "/m=memory:1MiB",
        "--export",
        "/r=memory:1MiB,squash=none",
        "--export",
        &local,
    ]);
    let owner = |export: &str| {
        ok(&["mkdir", &server.url("tcp", &format!("{export}/d"))]);
        ok(&["stat", "--json", &server.url("tcp", &format!("{export}/d"))])
    };
    if !rustix::process::geteuid().is_root() {
        println!("skipped: not root");
        return;
    }
    assert!(owner("/m").contains("\"uid\":65534"), "{}", owner("/m"));
    assert!(owner("/r").contains("\"uid\":0"), "{}", owner("/r"));
    let message = fails(1, &["mkdir", &server.url("tcp", "/closed/d")]);
    assert!(message.contains("permission denied"), "{message}");
}

#[test]
fn keys_are_stored_in_the_state_directory_of_the_unit_by_default() {
    let dir = tempfile::tempdir().unwrap();
    let (unit, named) = (dir.path().join("unit"), dir.path().join("named"));
    let file = dir.path().join("c.toml");
    let served = dir.path().join("served");
    for dir in [&unit, &named, &served] {
        fs::create_dir(dir).unwrap();
    }
    let export = format!("[[export]]\nname = \"/x\"\nbackend = \"local:{}\"\n", served.display());
    let serve = || {
        let mut command = millrace();
        command.args(["serve", "--listen-rdma", "127.0.0.1:0", "--listen-tcp", "127.0.0.1:0"]);
        command.args(["--config", text(&file)]).env("STATE_DIRECTORY", format!("{}:/other", unit.display()));
        log_of(&mut command)
    };
    fs::write(&file, format!("state_dir = \"{}\"\n{export}", named.display())).unwrap();
    serve();
    let is_key = |path: PathBuf| path.extension().is_some_and(|e| e == "key");
    let keys = |dir| fs::read_dir(dir).unwrap().filter(|e| is_key(e.as_ref().unwrap().path())).count();
    assert_eq!((keys(&named), keys(&unit)), (2, 0));
    fs::write(&file, export).unwrap();
    serve();
    assert_eq!((keys(&named), keys(&unit)), (2, 2), "the key of the server and that of the export");
}

#[test]
fn the_error_for_missing_capabilities_contains_a_remedy() {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: not root");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let serve = |options: &str| {
        let mut command = Command::new("setpriv");
        command.args(["--bounding-set=-setuid,-setgid", env!("CARGO_BIN_EXE_millrace"), "serve"]);
        command.args(["--listen-rdma", "127.0.0.1:0", "--listen-tcp", "127.0.0.1:0", "--export"]);
        command.arg(format!("/x=local:{}{options}", dir.path().display()));
        command
    };
    let out = serve("").output().unwrap();
    let message = String::from_utf8(out.stderr).unwrap();
    assert_eq!(out.status.code(), Some(1), "{message}");
    assert!(message.contains("CAP_SETUID") && message.contains("identities = \"server-user\""), "{message}");
    log_of(&mut serve(",identities=server-user"));
}
