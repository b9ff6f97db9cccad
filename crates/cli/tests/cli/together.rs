//! Concurrent clients, and restarts of a server in use.

use std::{
    collections::BTreeSet,
    fs,
    process::{Command, Stdio},
    time::Duration,
};

use crate::common::{RESTARTS_AT, Server, kill, millrace, names, noise, ok, text};

/// Runs all command lines concurrently; all must succeed.
fn run_concurrently(lines: &[Vec<String>]) {
    let spawn = |line: &Vec<String>| {
        let mut c: Command = millrace();
        c.args(line).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let children: Vec<_> = lines.iter().map(spawn).collect();
    for (child, line) in children.into_iter().zip(lines) {
        let out = child.wait_with_output().unwrap();
        assert!(out.status.success(), "{line:?}: {}", String::from_utf8_lossy(&out.stderr));
    }
}

#[test]
fn two_clients_change_one_directory_concurrently() {
    let dir = tempfile::tempdir().unwrap();
    let served = dir.path().join("served");
    fs::create_dir(&served).unwrap();
    let local = format!("/l=local:{},squash=none", served.display());
    let server = Server::start(&["--export", "/m=memory:64MiB", "--export", &local]);
    for who in ["one", "two"] {
        fs::create_dir(dir.path().join(who)).unwrap();
        for i in 0..60_u64 {
            fs::write(dir.path().join(who).join(format!("{who}-{i:02}")), noise(3000, i)).unwrap();
        }
        // Both clients create this file.
        fs::write(dir.path().join(who).join("both"), who.repeat(50_000)).unwrap();
    }
    for export in ["m", "l"] {
        let url = |proto, path: &str| server.url(proto, &format!("/{export}{path}"));
        ok(&["mkdir", &url("tcp", "/d")]);
        let put = |proto, who: &str| {
            let mut line = vec!["put".to_owned(), "-q".into()];
            line.extend(
                names(&dir.path().join(who)).iter().map(|n| format!("{}/{who}/{n}", dir.path().display())),
            );
            line.push(url(proto, "/d/"));
            line
        };
        run_concurrently(&[put("rdma", "one"), put("tcp", "two")]);
        let listed = ok(&["ls", "-a", &url("rdma", "/d")]);
        let all: BTreeSet<String> =
            ["one", "two"].iter().flat_map(|who| names(&dir.path().join(who))).collect();
        assert_eq!(listed.lines().map(str::to_owned).collect::<BTreeSet<_>>(), all);
        // The content is that of one of the clients, never a mixture.
        let both = ok(&["cat", &url("rdma", "/d/both")]);
        assert!(both == "one".repeat(50_000) || both == "two".repeat(50_000));

        // One client removes files while the other creates files.
        let rm = ["rm".to_owned(), "-f".into()]
            .into_iter()
            .chain((0..60).map(|i| url("rdma", &format!("/d/one-{i:02}"))))
            .collect();
        let again = vec![
            "cp".into(),
            "-r".into(),
            "--verify".into(),
            text(&dir.path().join("two")).to_owned(),
            url("tcp", "/d/again"),
        ];
        run_concurrently(&[rm, again, vec!["tree".into(), url("tcp", "/d")]]);
        let listed = ok(&["ls", &url("tcp", "/d")]);
        assert!(!listed.contains("one-") && listed.lines().count() == 62, "{listed}");
        // Two clients remove the same tree while a third lists it.
        let rm = |proto| vec!["rm".to_owned(), "-rf".into(), url(proto, "/d")];
        run_concurrently(&[rm("rdma"), rm("tcp"), vec!["tree".into(), url("tcp", "")]]);
        assert_eq!(ok(&["ls", "-a", &url("rdma", "")]), "");
    }
}

#[test]
fn a_copy_survives_a_restart_of_a_server_with_a_state_directory() {
    let dir = tempfile::tempdir().unwrap();
    let (served, from, state) =
        (dir.path().join("served"), dir.path().join("from"), dir.path().join("state"));
    for d in [&served, &from, &state] {
        fs::create_dir(d).unwrap();
    }
    for i in 0..30 {
        fs::write(from.join(format!("{i}")), noise(2_000_000, i)).unwrap();
    }
    for proto in ["rdma", "tcp"] {
        let config = dir.path().join(proto);
        // Each has its own list of NFSv4 clients: the first server is killed with its client on the list.
        let state = state.join(proto);
        fs::create_dir(&state).unwrap();
        let toml = format!(
            "state_dir = \"{}\"\n[[export]]\nname = \"/x\"\nbackend = \"local:{}\"\nsquash = \"none\"\n",
            state.display(),
            served.display()
        );
        fs::write(&config, toml).unwrap();
        let to = served.join(proto);
        let mut server = Server::start_at(RESTARTS_AT, RESTARTS_AT, &["--config", text(&config)]);
        let (rdma, tcp) = (server.rdma.clone(), server.tcp.clone());
        let url = server.url(proto, &format!("/x/{proto}"));
        let copy = millrace()
            .args(["cp", "-r", "--verify", "--json", "--parallel", "2", text(&from), &url])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        while fs::read_dir(&to).map_or(0, Iterator::count) < 4 {
            std::thread::sleep(Duration::from_millis(1));
        }
        kill(server.child.id(), "KILL");
        server.wait();
        let _again = Server::start_at(&rdma, &tcp, &["--config", text(&config)]);
        let out = copy.wait_with_output().unwrap();
        let message = String::from_utf8_lossy(&out.stdout).into_owned();
        assert!(out.status.success(), "{message}{}", String::from_utf8_lossy(&out.stderr));
        let report: serde_json::Value = serde_json::from_str(&message).unwrap();
        assert_eq!(
            (report["files"].as_u64(), report["verified"].as_u64()),
            (Some(30), Some(30)),
            "{message}"
        );
        assert_eq!(names(&to), names(&from));
        assert!(
            names(&from).iter().all(|n| fs::read(to.join(n)).unwrap() == fs::read(from.join(n)).unwrap())
        );
    }
}

#[test]
fn a_copy_survives_a_graceful_restart_and_leaves_no_partial_file() {
    let dir = tempfile::tempdir().unwrap();
    let (served, from) = (dir.path().join("served"), dir.path().join("from"));
    fs::create_dir(&served).unwrap();
    fs::create_dir(&from).unwrap();
    for i in 0..30 {
        fs::write(from.join(format!("{i}")), noise(2_000_000, i)).unwrap();
    }
    let export = format!("/x=local:{},squash=none", served.display());
    let mut server = Server::start_at(RESTARTS_AT, RESTARTS_AT, &["--export", &export]);
    let (rdma, tcp) = (server.rdma.clone(), server.tcp.clone());
    let copy = millrace()
        .args(["put", "-r", "--verify", text(&from), &server.url("rdma", "/x/t")])
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    while fs::read_dir(served.join("t")).map_or(0, Iterator::count) < 4 {
        std::thread::sleep(Duration::from_millis(1));
    }
    kill(server.child.id(), "TERM");
    assert_eq!(server.wait().code(), Some(0));
    // A file with its final name is complete at any time.
    for name in names(&served.join("t")).iter().filter(|n| !n.contains(".millrace-")) {
        assert!(
            fs::read(served.join("t").join(name)).unwrap() == fs::read(from.join(name)).unwrap(),
            "{name}"
        );
    }
    let _again = Server::start_at(&rdma, &tcp, &["--export", &export]);
    let out = copy.wait_with_output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    assert_eq!(names(&served.join("t")), names(&from));
}
