//! Reload of the exports of a running server.

use std::{fs, path::PathBuf, process::Stdio};

use crate::common::{self, Server, fails, kill, millrace, noise, ok, text};

/// A configuration file with directories to export and a control socket.
struct Setup {
    dir: tempfile::TempDir,
}

impl Setup {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        for name in ["one", "two"] {
            fs::create_dir(dir.path().join(name)).unwrap();
        }
        Self { dir }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn configure(&self, top: &str, exports: &[(&str, &str)]) {
        let mut file = format!("control = \"{}\"\n{top}\n", self.path("control").display());
        for (name, rest) in exports {
            let dir = self.dir.path().display();
            file += &format!(
                "[[export]]\nname = \"/{name}\"\nbackend = \"local:{dir}/{name}\"\nsquash = \"none\"\n{rest}\n"
            );
        }
        fs::write(self.path("c.toml"), file).unwrap();
    }

    fn serve(&self) -> Server {
        Server::start(&["--config", text(&self.path("c.toml"))])
    }

    fn reload(&self) -> String {
        ok(&["reload", text(&self.path("control"))])
    }
}

#[test]
fn exports_are_added_changed_and_removed_while_the_server_runs() {
    let setup = Setup::new();
    setup.configure("", &[("one", "")]);
    let mut server = setup.serve();
    let one = server.url("rdma", "/one/f");
    fs::write(setup.path("here"), b"hello").unwrap();
    ok(&["put", text(&setup.path("here")), &one]);
    assert_eq!(setup.reload(), "nothing has changed\n");

    setup.configure("shards = 7", &[("one", "read_only = true"), ("two", "sync_metadata = false")]);
    let message = setup.reload();
    assert_eq!(message, "added: /two; changed: /one; unchanged until a restart: shards\n");
    assert_eq!(ok(&["cat", &one]), "hello");
    let refused = fails(1, &["rm", &one]);
    assert!(refused.contains("read-only"), "{refused}");
    ok(&["mkdir", &server.url("tcp", "/two/d")]);

    setup.configure("", &[("two", "")]);
    assert_eq!(setup.reload(), "removed: /one; unchanged until a restart: export /two: sync_metadata\n");
    let gone = fails(1, &["cat", &one]);
    assert!(gone.contains("no such export") || gone.contains("/one"), "{gone}");
    kill(server.child.id(), "TERM");
    assert_eq!(server.wait().code(), Some(0));
    assert!(!setup.path("control").exists());
    let message = fails(1, &["reload", text(&setup.path("control"))]);
    assert!(message.contains("no server answers") && message.contains("SIGHUP"), "{message}");
}

#[test]
fn an_invalid_file_changes_nothing_and_is_reported() {
    let setup = Setup::new();
    setup.configure("", &[("one", "")]);
    let server = setup.serve();
    for (bad, expected) in [
        ("[[export]\n", ":1:10: "),
        ("zzz = 1\n", "`zzz`"),
        ("[[export]]\nname = \"/x\"\nbackend = \"local:/does/not/exist\"\n", "/does/not/exist"),
    ] {
        fs::write(setup.path("c.toml"), bad).unwrap();
        let message = fails(1, &["reload", text(&setup.path("control"))]);
        assert!(message.contains("changed nothing") && message.contains(expected), "{message}");
        ok(&["ls", &server.url("rdma", "/one")]);
    }
}

#[test]
fn a_copy_continues_during_reloads_by_signal() {
    let setup = Setup::new();
    for i in 0..24_u64 {
        fs::write(setup.path("one").join(i.to_string()), noise(1_000_000, i + 1)).unwrap();
    }
    setup.configure("", &[("one", "")]);
    let server = setup.serve();
    let back = setup.path("back");
    let mut copy = millrace()
        .args(["cp", "-r", "--verify", "--parallel", "1", &server.url("rdma", "/one"), text(&back)])
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let mut reloads = 0;
    while copy.try_wait().unwrap().is_none() {
        let exports = [("one", "read_only = true"), ("two", "")];
        setup.configure("", &exports[..1 + reloads % 2]);
        kill(server.child.id(), "HUP");
        setup.reload(); // The server has handled the signal before, or handles both together.
        reloads += 1;
    }
    assert!(copy.wait().unwrap().success() && reloads > 0);
    assert_eq!(common::names(&back).len(), 24);
}

#[test]
fn only_the_control_socket_of_an_exited_server_is_replaced() {
    let setup = Setup::new();
    setup.configure("", &[("one", "")]);
    let mut server = setup.serve();
    let file = setup.path("c.toml");
    let any = ["--listen-rdma", "127.0.0.1:0", "--listen-tcp", "127.0.0.1:0"];
    let message = fails(1, &[&["serve", "--log", "off", "--config", text(&file)][..], &any].concat());
    assert!(message.contains("another server"), "{message}");
    server.child.kill().unwrap();
    server.child.wait().unwrap();
    let _again = setup.serve();
    assert_eq!(setup.reload(), "nothing has changed\n");
}

#[test]
fn a_connection_without_a_request_causes_no_reload() {
    use std::{io::Read, os::unix::net::UnixStream};
    let setup = Setup::new();
    setup.configure("", &[("one", "")]);
    let server = setup.serve();
    setup.configure("", &[("one", "read_only = true")]);
    let second = fails(1, &["serve", "--config", text(&setup.path("c.toml"))]);
    assert!(second.contains("another server uses it"), "{second}");
    // A line on the control socket that is no command causes no reload either.
    let mut other = UnixStream::connect(setup.path("control")).unwrap();
    std::io::Write::write_all(&mut other, b"nothing\n").unwrap();
    let mut answer = String::new();
    let _ = other.read_to_string(&mut answer);
    assert_eq!(answer, "");
    ok(&["mkdir", &server.url("tcp", "/one/d")]); // The export is still writable.
    assert_eq!(setup.reload(), "changed: /one\n");
}
