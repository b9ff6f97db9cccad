//! `millrace state` without NFSv4 clients; the lab has cases with Linux's client.

use std::{
    ffi::OsStr,
    fs,
    io::Write,
    os::unix::{ffi::OsStrExt, net::UnixStream},
    path::PathBuf,
};

use crate::common::{self, Server, fails, ok, text};

struct Setup {
    dir: tempfile::TempDir,
    server: Server,
}

impl Setup {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let (control, config) = (dir.path().join("control"), dir.path().join("c.toml"));
        let export = "[[export]]\nname = \"/m\"\nbackend = \"memory:16MiB\"\n";
        fs::write(&config, format!("control = \"{}\"\n{export}", control.display())).unwrap();
        let server = Server::start(&["--config", text(&config)]);
        Self { dir, server }
    }

    fn control(&self) -> PathBuf {
        self.dir.path().join("control")
    }
}

#[test]
fn a_server_without_clients_has_no_state() {
    let setup = Setup::new();
    let control = setup.control();
    let state = |args: &[&str]| ok(&[&["state", "--socket", text(&control)], args].concat());
    let header = state(&[]);
    assert!(header.starts_with("client") && header.trim_end().lines().count() <= 2, "{header}");
    assert_eq!(state(&["--json"]), "");
    assert_eq!(state(&["--json", "--export", "/m"]), "");
    assert_eq!(state(&["--json", "--client", "0x1"]), "");
    let revoked = ok(&["state", "revoke", "--socket", text(&control), "--export", "/m"]);
    assert_eq!(revoked, "0 opens and lock owners of /m are revoked\n");
}

#[test]
fn names_of_files_need_not_be_utf8() {
    let setup = Setup::new();
    ok(&["put", "/dev/null", &setup.server.url("tcp", "/m/100%25%20se%F1or")]);
    let file = OsStr::from_bytes(b"/m/100% se\xf1or");
    for (command, shown) in
        [(&["state"][..], ""), (&["state", "revoke"], "0 opens and lock owners of /m/100% se\u{fffd}or")]
    {
        let mut state = common::millrace();
        let out = state
            .args(command)
            .arg("--file")
            .arg(file)
            .arg("--socket")
            .arg(setup.control())
            .output()
            .unwrap();
        let (shows, error) = (String::from_utf8(out.stdout).unwrap(), String::from_utf8_lossy(&out.stderr));
        assert!(out.status.success() && shows.contains(shown), "{shows}{error}");
    }
}

#[test]
fn errors_say_what_to_do() {
    let setup = Setup::new();
    let control = setup.control();
    let fail = |code, args: &[&str]| fails(code, &[args, &["--socket", text(&control)]].concat());
    let message = fail(1, &["state", "--export", "/other"]);
    assert!(message.contains("no export is named /other; the exports are /m"), "{message}");
    let message = fail(1, &["state", "revoke", "--file", "/m/none"]);
    assert!(message.contains("/m/none") && message.contains("/EXPORT/DIRECTORY/FILE"), "{message}");
    let message = fail(1, &["state", "revoke", "--client", "0x1"]);
    assert!(message.contains("no NFSv4 client has the ID 0x1; list the clients"), "{message}");
    let message = fail(2, &["state", "revoke"]);
    assert!(message.contains("--client ID, --export NAME or --file PATH"), "{message}");
    let message = fails(1, &["state", "--socket", "/nonexistent/control"]);
    assert!(message.contains("no server answers") && !message.contains("SIGHUP"), "{message}");
}

#[test]
fn invalid_requests_do_not_disturb_the_server() {
    let setup = Setup::new();
    for request in ["", "state\n", "state {\"opens\":{}}\n", "other\n", "state {"] {
        let mut stream = UnixStream::connect(setup.control()).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
    }
    let mut stream = UnixStream::connect(setup.control()).unwrap();
    let _ = stream.write_all(&vec![b'x'; 1 << 20]); // The server may close the connection first.
    ok(&["state", "--socket", text(&setup.control())]);
}
