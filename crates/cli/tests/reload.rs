//! Other exports for a running server, while clients use it.

#![allow(clippy::unwrap_used, clippy::panic)] // Helpers of tests, which are to fail.

mod common;

use std::{fs, path::PathBuf, process::Stdio};

use common::{Server, fails, kill, millrace, noise, ok, text};

/// A configuration file that can be changed, with directories to export and a control socket.
struct Place {
    dir: tempfile::TempDir,
}

impl Place {
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
fn exports_come_change_and_go_while_the_server_runs() {
    let place = Place::new();
    place.configure("", &[("one", "")]);
    let mut server = place.serve();
    let one = server.url("rdma", "/one/f");
    fs::write(place.path("here"), b"hello").unwrap();
    ok(&["put", text(&place.path("here")), &one]);
    assert_eq!(place.reload(), "nothing has changed\n");

    place.configure("shards = 7", &[("one", "read_only = true"), ("two", "sync_metadata = false")]);
    let said = place.reload();
    assert_eq!(said, "added: /two; changed: /one; kept as it was until a restart: shards\n");
    assert_eq!(ok(&["cat", &one]), "hello");
    let refused = fails(1, &["rm", &one]);
    assert!(refused.contains("read-only"), "{refused}");
    ok(&["mkdir", &server.url("tcp", "/two/d")]);

    place.configure("", &[("two", "")]);
    assert_eq!(place.reload(), "removed: /one; kept as it was until a restart: export /two: sync_metadata\n");
    let gone = fails(1, &["cat", &one]);
    assert!(gone.contains("no such export") || gone.contains("/one"), "{gone}");
    kill(server.child.id(), "TERM");
    assert_eq!(server.wait().code(), Some(0));
    assert!(!place.path("control").exists());
    let said = fails(1, &["reload", text(&place.path("control"))]);
    assert!(said.contains("no server answers") && said.contains("SIGHUP"), "{said}");
}

#[test]
fn a_file_with_a_mistake_changes_nothing_and_says_why() {
    let place = Place::new();
    place.configure("", &[("one", "")]);
    let server = place.serve();
    for (bad, says) in [
        ("[[export]\n", "line 1, column"),
        ("zzz = 1\n", "`zzz`"),
        ("[[export]]\nname = \"/x\"\nbackend = \"local:/does/not/exist\"\n", "/does/not/exist"),
    ] {
        fs::write(place.path("c.toml"), bad).unwrap();
        let said = fails(1, &["reload", text(&place.path("control"))]);
        assert!(said.contains("changed nothing") && said.contains(says), "{said}");
        ok(&["ls", &server.url("rdma", "/one")]);
    }
}

#[test]
fn a_copy_goes_on_over_reloads_by_signal() {
    let place = Place::new();
    for i in 0..24_u64 {
        fs::write(place.path("one").join(i.to_string()), noise(1_000_000, i + 1)).unwrap();
    }
    place.configure("", &[("one", "")]);
    let server = place.serve();
    let back = place.path("back");
    let mut copy = millrace()
        .args(["cp", "-r", "--verify", "--parallel", "1", &server.url("rdma", "/one"), text(&back)])
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let mut reloads = 0;
    while copy.try_wait().unwrap().is_none() {
        let exports = [("one", "read_only = true"), ("two", "")];
        place.configure("", &exports[..1 + reloads % 2]);
        kill(server.child.id(), "HUP");
        place.reload(); // The signal has been heeded before, or both at once.
        reloads += 1;
    }
    assert!(copy.wait().unwrap().success() && reloads > 0);
    assert_eq!(common::names(&back).len(), 24);
}

#[test]
fn a_control_socket_is_taken_over_only_from_a_server_that_is_gone() {
    let place = Place::new();
    place.configure("", &[("one", "")]);
    let mut server = place.serve();
    let file = place.path("c.toml");
    let any = ["--listen-rdma", "127.0.0.1:0", "--listen-tcp", "127.0.0.1:0"];
    let said = fails(1, &[&["serve", "--log", "off", "--config", text(&file)][..], &any].concat());
    assert!(said.contains("another server"), "{said}");
    server.child.kill().unwrap();
    server.child.wait().unwrap();
    let _again = place.serve();
    assert_eq!(place.reload(), "nothing has changed\n");
}

#[test]
fn looking_for_another_server_is_no_request() {
    use std::{io::Read, os::unix::net::UnixStream};
    let place = Place::new();
    place.configure("", &[("one", "")]);
    let server = place.serve();
    place.configure("", &[("one", "read_only = true")]);
    let second = fails(1, &["serve", "--config", text(&place.path("c.toml"))]);
    assert!(second.contains("another server does"), "{second}");
    // Nor is anything but the request.
    let mut other = UnixStream::connect(place.path("control")).unwrap();
    std::io::Write::write_all(&mut other, b"nothing\n").unwrap();
    let mut answer = String::new();
    let _ = other.read_to_string(&mut answer);
    assert_eq!(answer, "");
    ok(&["mkdir", &server.url("tcp", "/one/d")]); // It is as it was when the server began.
    assert_eq!(place.reload(), "changed: /one\n");
}
