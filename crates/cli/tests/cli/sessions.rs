//! No command leaves a client record of NFSv4 on the server.

use std::{fs, time::Duration};

use millrace_client::{Options, Url, Version, handles::blocking::Client};

use crate::common::{self, Server, fails, kill, mounting, ok, run, text};

struct Setup {
    dir: tempfile::TempDir,
    server: Server,
}

impl Setup {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let (control, config) = (dir.path().join("control"), dir.path().join("c.toml"));
        let export = "[[export]]\nname = \"/m\"\nbackend = \"memory:64MiB\"\n";
        fs::write(&config, format!("control = \"{}\"\n{export}", control.display())).unwrap();
        let server = Server::start(&["--config", text(&config)]);
        Self { dir, server }
    }

    /// The NFSv4 clients of the server, one JSON object a line.
    fn clients(&self) -> String {
        ok(&["state", "--json", "--socket", text(&self.dir.path().join("control"))])
    }

    fn connect(&self, options: Options) -> Client {
        let url: Url = self.server.url("tcp", "/m").parse().unwrap();
        Client::connect(&url, options).unwrap()
    }
}

#[test]
fn commands_end_their_sessions() {
    let setup = Setup::new();
    let client = setup.connect(Options::default());
    assert_eq!(client.inner().version(), Version::V4_2);
    assert_eq!(setup.clients().lines().count(), 1, "the list shows clients without state");
    client.close();
    assert_eq!(setup.clients(), "");

    let here = |name: &str| text(&setup.dir.path().join(name)).to_owned();
    fs::create_dir(here("tree")).unwrap();
    fs::write(here("tree/file"), "data").unwrap();
    for proto in ["rdma", "tcp"] {
        let url = |path: &str| setup.server.url(proto, path);
        let done = |args: &[&str]| {
            ok(args);
            assert_eq!(setup.clients(), "", "{args:?}");
        };
        done(&["put", "-r", &here("tree"), &url("/m/a")]);
        done(&["get", "-r", &url("/m/a"), &here(&format!("back-{proto}"))]);
        done(&["cp", "-r", &url("/m/a"), &url("/m/b")]);
        done(&["ls", &url("/m/a"), &url("/m/b")]);
        done(&["tree", &url("/m/a")]);
        done(&["stat", &url("/m/a/file")]);
        done(&["cat", &url("/m/a/file")]);
        done(&["df", &url("/m")]);
        done(&["mkdir", &url("/m/c")]);
        done(&["mv", &url("/m/a/file"), &url("/m/c")]);
        done(&["ln", &url("/m/c/file"), &url("/m/c/link")]);
        done(&["ln", "-s", "file", &url("/m/c/symlink")]);
        done(&["doctor", &url("/m/c")]);
        let size = ["--operations", "4"];
        done(&[&["bench", "latency", &format!("{}&vers=4.2", url("/m"))], &size[..]].concat());
        let bench = |args: &[&str]| done(&[&["bench"], args].concat());
        let at = format!("{}&vers=4.2", url("/m"));
        bench(&["checkpoint", &at, "--scale", "0.00001", "--processes", "2", "--checkpoints", "2"]);
        bench(&["loader", &at, "--training", "cosmoflow", "--scale", "0.001", "--batches", "2"]);
        bench(&["metadata", &at, "--items", "3", "--branch", "2", "--depth", "2", "--members", "2"]);
        let grid = ["--size", "64KiB", "--record", "64KiB", "--threads", "1"];
        done(&[&["bench", "iozone", &format!("{}&vers=4.2", url("/m"))], &grid[..]].concat());
        for args in [
            &["cat", &url("/m/none")][..],
            &["ls", &url("/m/c/file/below")],
            &["mkdir", &url("/m/c")],
            &["mv", &url("/m/none"), &url("/m/c")],
            &["put", &here("none"), &url("/m/c")],
            &["ls", &url("/none")],
        ] {
            fails(1, args);
            assert_eq!(setup.clients(), "", "{args:?}");
        }
        assert_eq!(run(&["ls", &url("/m/none"), &url("/m/c")]).status.code(), Some(3));
        assert_eq!(setup.clients(), "");
        done(&["rm", "-r", &url("/m/a"), &url("/m/b"), &url("/m/c")]);
    }
}

#[test]
fn an_unmounted_mount_ends_its_session() {
    if !mounting::fuse_is_available() {
        return;
    }
    let setup = Setup::new();
    let at = setup.dir.path().join("at");
    fs::create_dir(&at).unwrap();
    let mut command = common::millrace();
    command.args(["mount", &setup.server.url("tcp", "/m"), text(&at), "-o", "vers=4.2"]);
    let mut mount = mounting::Mounting::start(command, &at);
    fs::write(at.join("file"), "data").unwrap();
    assert_eq!(setup.clients().lines().count(), 1);
    kill(mount.child.id(), "TERM");
    let (status, log) = mount.end();
    assert!(status.success(), "{log}");
    assert_eq!(setup.clients(), "");
}

/// Without its own limit, the end of a client would wait for the timeout of a call.
#[test]
fn a_client_ends_while_its_server_is_stopped() {
    let setup = Setup::new();
    let client = setup.connect(Options::default().timeout(Duration::from_secs(3600)));
    kill(setup.server.child.id(), "STOP");
    client.close();
    kill(setup.server.child.id(), "CONT");
}
