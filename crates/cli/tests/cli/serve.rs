//! Life cycle of a server process: ready line, configuration, shutdown, and a restart during a copy.

use std::{
    fs,
    io::{BufRead, BufReader, Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    os::fd::OwnedFd,
    process::{Child, Command, Stdio},
    thread,
    time::Duration,
};

use crate::common::{self, RESTARTS_AT, Server, fails, kill, millrace, noise, ok, text, wait_for};

#[test]
fn standard_output_has_only_the_ready_line_with_the_ports() {
    let mut child = millrace()
        .args([
            "serve",
            "--export",
            "/m=memory:16MiB",
            "--listen-rdma",
            "127.0.0.1:0",
            "--listen-tcp",
            "127.0.0.1:0",
        ])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut out = child.stdout.take().unwrap();
    let mut line = Vec::new();
    let mut byte = [0];
    while out.read(&mut byte).unwrap() == 1 && byte[0] != b'\n' {
        line.push(byte[0]);
    }
    let line = String::from_utf8(line).unwrap();
    let words: Vec<&str> = line.split(' ').collect();
    assert_eq!(words.len(), 3, "{line}");
    assert_eq!(words[0], "ready");
    for (word, key) in words[1..].iter().zip(["rdma=127.0.0.1:", "tcp=127.0.0.1:"]) {
        let port: u16 = word.strip_prefix(key).unwrap().parse().unwrap();
        assert_ne!(port, 0);
    }
    kill(child.id(), "TERM");
    let mut rest = String::new();
    out.read_to_string(&mut rest).unwrap();
    assert_eq!(rest, "");
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[test]
fn a_directory_is_served_by_its_name_with_the_commands_that_mount_it() {
    let dir = tempfile::tempdir().unwrap();
    for (directory, export) in [("photos-1.0", "/photos-1.0"), ("my photos", "/")] {
        let path = dir.path().join(directory);
        fs::create_dir(&path).unwrap();
        fs::write(path.join("file"), "x").unwrap();
        let mut server = Server::start(&[text(&path)]);
        assert_eq!(ok(&["ls", &server.url("tcp", export)]), "file\n");
        let lines: Vec<String> = (0..6).map(|_| server.line()).collect();
        let (tcp, rdma) = (server.tcp.rsplit(':').next().unwrap(), &server.rdma);
        let expected = [
            "\n".to_owned(),
            format!("Mount {export}:\n"),
            format!("  sudo mount -t nfs -o vers=4.2,proto=tcp,port={tcp} 127.0.0.1:{export} /mnt\n"),
            format!("  millrace mount nfs://{rdma}{export} /mnt\n"),
            format!(
                "  python3 -c 'import millrace_nfs; print(millrace_nfs.Client(\"nfs://{rdma}{export}\").listdir())'\n"
            ),
        ];
        assert_eq!(lines[..5], expected);
        assert!(lines[5].contains("--listen-tcp '[::]:"), "{}", lines[5]);
        assert_eq!(ok(&["ls", &format!("nfs://{rdma}{export}")]), "file\n");
    }
    let none = dir.path().join("none");
    let message = fails(2, &["serve", text(&none)]);
    assert!(message.contains("cannot serve") && message.contains("give an existing directory"), "{message}");
    let message = fails(2, &["serve", "/data=local:/srv"]);
    assert!(message.contains("--export before it"), "{message}");
    let message = fails(2, &["serve"]);
    for option in ["serve /srv/data`", "--export /data=local:/srv/data", "--config /etc/millrace.toml"] {
        assert!(message.contains(option), "{message}");
    }
}

#[test]
fn the_address_of_all_hosts_accepts_both_families_and_clients_keep_their_ipv4_addresses() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("log");
    let mut child = millrace()
        .args(["serve", "--log", "debug", "--export", "/four=memory:1MiB,client=127.0.0.1"])
        .args([
            "--export",
            "/six=memory:1MiB,client=::1",
            "--listen-tcp",
            "[::]:0",
            "--listen-rdma",
            "[::]:0",
        ])
        .args(["--metrics", "[::]:0", "--metrics-insecure", "--provider", "iwarp"])
        .stdout(Stdio::piped())
        .stderr(fs::File::create(&log).unwrap())
        .spawn()
        .unwrap();
    let ready = ready_line(&mut child);
    let port = |key: &str| ready.split(key).nth(1).unwrap().split_whitespace().next().unwrap().to_owned();
    for proto in ["tcp", "rdma"] {
        let port = port(&format!("{proto}=[::]:"));
        for (host, export, other) in [("127.0.0.1", "four", "six"), ("[::1]", "six", "four")] {
            for vers in ["3", "4.2"] {
                let url = |export| format!("nfs://{host}:{port}/{export}?proto={proto}&vers={vers}");
                ok(&["ls", &url(export)]);
                assert!(!common::run(&["ls", &url(other)]).status.success(), "{host} {other}");
            }
        }
    }
    let mut stream = TcpStream::connect(format!("127.0.0.1:{}", port("metrics=[::]:"))).unwrap();
    stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").unwrap();
    let mut metrics = String::new();
    stream.read_to_string(&mut metrics).unwrap();
    assert!(metrics.contains("client=\"127.0.0.1\"") && !metrics.contains("ffff:"), "{metrics}");
    kill(child.id(), "TERM");
    assert!(wait_for(&mut child).success());
    let log = fs::read_to_string(&log).unwrap();
    assert!(log.contains("127.0.0.1:") && !log.contains("ffff:"), "{log}");
}

#[test]
fn several_addresses_may_be_given_also_both_wildcards_with_one_port() {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let (four, six) = (format!("0.0.0.0:{port}"), format!("[::]:{port}"));
    for (first, second) in [(&four, &six), (&six, &four)] {
        let mut child = millrace()
            .args(["serve", "--log", "error", "--export", "/m=memory:1MiB", "--listen-tcp", first])
            .args(["--listen-tcp", second, "--listen-rdma", "127.0.0.1:0", "--listen-rdma", "[::1]:0"])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let ready = ready_line(&mut child);
        assert!(ready.ends_with(&format!(" tcp={first} tcp={second}\n")), "{ready}");
        let rdma: Vec<&str> = ready.split(' ').filter_map(|word| word.strip_prefix("rdma=")).collect();
        for host in ["127.0.0.1", "[::1]"] {
            ok(&["ls", &format!("nfs://{host}:{port}/m?proto=tcp")]);
            let at = rdma.iter().find(|at| at.starts_with(host)).unwrap();
            ok(&["ls", &format!("nfs://{at}/m?proto=rdma")]);
        }
        kill(child.id(), "TERM");
        assert!(wait_for(&mut child).success());
    }
}

#[test]
fn sighup_ends_a_server_that_has_no_file_to_read_again() {
    let mut child = Command::new("env")
        .args([
            "--default-signal=HUP",
            env!("CARGO_BIN_EXE_millrace"),
            "serve",
            "--export",
            "/m=memory:16MiB",
        ])
        .args(["--listen-rdma", "127.0.0.1:0", "--listen-tcp", "127.0.0.1:0", "--log", "off"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    ready_line(&mut child);
    kill(child.id(), "HUP");
    assert_eq!(wait_for(&mut child).code(), Some(0));
}

#[test]
fn sighup_does_not_end_a_server_that_was_started_with_it_ignored() {
    let any = ["serve", "--listen-rdma", "127.0.0.1:0", "--listen-tcp", "127.0.0.1:0", "--log", "off"];
    let mut child = Command::new("sh")
        .args(["-c", r#"trap "" HUP; exec "$0" "$@""#, env!("CARGO_BIN_EXE_millrace")])
        .args(any)
        .args(["--export", "/m=memory:16MiB"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let ready = ready_line(&mut child);
    kill(child.id(), "HUP");
    let tcp = ready.trim().split("tcp=").nth(1).unwrap();
    ok(&["ls", &format!("nfs://{tcp}/m?proto=tcp")]);
    kill(child.id(), "TERM");
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

/// The shell of a terminal: it sends SIGHUP to its job when the terminal is closed, and writes how the job ended.
const SHELL: &str = r#""$0" serve --config "$1" & trap "kill -HUP $!" HUP; wait $!; wait $!; echo $? >"$2""#;

#[test]
fn a_server_ends_with_its_terminal_though_it_has_a_file_to_read_again() {
    let dir = tempfile::tempdir().unwrap();
    let (config, status) = (dir.path().join("millrace.toml"), dir.path().join("status"));
    let addresses = "listen_rdma = [\"127.0.0.1:0\"]\nlisten_tcp = [\"127.0.0.1:0\"]\n";
    fs::write(&config, format!("{addresses}[[export]]\nname = \"/m\"\nbackend = \"memory:16MiB\"\n"))
        .unwrap();
    let words = ["sh", "-c", SHELL, env!("CARGO_BIN_EXE_millrace"), text(&config), text(&status)];
    let job = words.map(|word| format!("'{word}'")).join(" ");
    let mut terminal = Command::new("env")
        .args(["--default-signal=HUP", "NO_COLOR=1", "script", "-qec", &job, "/dev/null"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(terminal.stdout.take().unwrap()).lines().map(Result::unwrap);
    let before: Vec<_> = lines.take_while(|line| !line.starts_with("ready ")).collect();
    assert!(before.iter().any(|line| line.contains(" INFO ")), "no log: {before:?}");
    assert!(!before.iter().any(|line| line.contains('\x1b')), "colours in spite of NO_COLOR: {before:?}");
    terminal.kill().unwrap();
    terminal.wait().unwrap();
    let start = std::time::Instant::now();
    while fs::read_to_string(&status).unwrap_or_default().is_empty() {
        assert!(start.elapsed() < common::HANG, "the server did not end with its terminal");
        thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(fs::read_to_string(&status).unwrap(), "0\n");
}

/// Starts a server on two sockets of this process, as a service manager does (sd_listen_fds(3)): the shell moves them to
/// the descriptors 3 and 4.
fn activated(first: &TcpListener, second: &TcpListener, names: &str, args: &[&str]) -> Child {
    let socket = |listener: &TcpListener| Stdio::from(OwnedFd::from(listener.try_clone().unwrap()));
    let script = "exec 3<&0 4<&2 0</dev/null 2>/dev/null; export LISTEN_PID=$$ LISTEN_FDS=2; exec \"$@\"";
    Command::new("sh")
        .args(["-c", script, "sh", env!("CARGO_BIN_EXE_millrace"), "serve", "--export", "/m=memory:16MiB"])
        .args(args)
        .env("LISTEN_FDNAMES", names)
        .stdin(socket(first))
        .stderr(socket(second))
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Two sockets with their addresses.
fn sockets() -> [(TcpListener, SocketAddr); 2] {
    [(); 2].map(|()| {
        let socket = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = socket.local_addr().unwrap();
        (socket, address)
    })
}

fn ready_line(child: &mut Child) -> String {
    let mut ready = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut ready).unwrap();
    ready
}

#[test]
fn a_server_serves_the_sockets_of_the_service_manager_and_they_outlive_it() {
    let [(tcp, at_tcp), (rdma, at_rdma)] = sockets();
    // The second server gets a connection that was made when there was none.
    for _ in 0..2 {
        let early = thread::spawn(move || ok(&["ls", &format!("nfs://{at_tcp}/m?proto=tcp")]));
        let mut child = activated(&tcp, &rdma, "tcp:rdma", &[]);
        assert_eq!(ready_line(&mut child), format!("ready rdma={at_rdma} tcp={at_tcp}\n"));
        early.join().unwrap();
        ok(&["ls", &format!("nfs://{at_rdma}/m?proto=rdma")]);
        kill(child.id(), "TERM");
        assert!(child.wait().unwrap().success());
    }
}

#[test]
fn a_server_serves_iscsi_and_metrics_on_sockets_of_the_service_manager() {
    let [(iscsi, at_iscsi), (metrics, at_metrics)] = sockets();
    let any =
        ["--listen-rdma", "127.0.0.1:0", "--listen-tcp", "127.0.0.1:0", "--lun", "disk=/m/disk0,size=1MiB"];
    for _ in 0..2 {
        let early = thread::spawn(move || ok(&["blk", "ls", &format!("iscsi://{at_iscsi}")]));
        let mut child = activated(&iscsi, &metrics, "iscsi:metrics", &any);
        let ready = ready_line(&mut child);
        let has = |word: String| ready.split_whitespace().any(|w| w == word);
        assert!(has(format!("iscsi={at_iscsi}")) && has(format!("metrics={at_metrics}")), "{ready}");
        let disks = early.join().unwrap();
        assert!(disks.contains("1 MiB"), "{disks}");
        assert!(http(&at_metrics.to_string(), "/metrics").contains("millrace_"));
        kill(child.id(), "TERM");
        assert!(child.wait().unwrap().success());
    }
}

#[test]
fn a_server_refuses_a_socket_without_a_known_name() {
    let [(tcp, _), (rdma, _)] = sockets();
    let mut child = activated(&tcp, &rdma, "tcp:millrace-rdma.socket", &[]);
    assert!(!child.wait().unwrap().success());
}

#[test]
fn a_server_raises_its_limit_of_open_files_to_the_hard_one() {
    let program = env!("CARGO_BIN_EXE_millrace");
    let serve = format!(
        "ulimit -Sn 300 && ulimit -Hn 4000 && exec {program} serve --log error --export /m=memory:16MiB \
         --listen-rdma 127.0.0.1:0 --listen-tcp 127.0.0.1:0"
    );
    let mut child = Command::new("sh").args(["-c", &serve]).stdout(Stdio::piped()).spawn().unwrap();
    let mut ready = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut ready).unwrap();
    let limits = fs::read_to_string(format!("/proc/{}/limits", child.id())).unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    let files = limits.lines().find_map(|line| line.strip_prefix("Max open files")).unwrap();
    assert_eq!(files.split_whitespace().take(2).collect::<Vec<_>>(), ["4000", "4000"], "{ready}");
}

#[test]
fn a_signal_ends_the_server_with_exit_code_0() {
    for signal in ["TERM", "INT"] {
        let mut server = Server::start(&["--export", "/m=memory:16MiB"]);
        ok(&["mkdir", &server.url("rdma", "/m/d")]);
        kill(server.child.id(), signal);
        assert_eq!(server.wait().code(), Some(0), "SIG{signal}");
    }
}

#[test]
fn the_command_line_extends_the_configuration_file() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("millrace.toml");
    fs::write(
        &file,
        "listen_rdma = [\"127.0.0.1:0\"]\nlisten_tcp = [\"127.0.0.1:0\"]\n[[export]]\nname = \"/a\"\nbackend = \"memory:16MiB\"\nread_only = true\n",
    )
    .unwrap();
    let server = Server::start(&["--config", file.to_str().unwrap(), "--export", "/b=memory:16MiB"]);
    let list = ok(&["exports", &server.url("tcp", "")]);
    assert!(list.contains("/a") && list.contains("/b"), "{list}");
    fails(1, &["mkdir", &server.url("rdma", "/a/d")]);
    ok(&["mkdir", &server.url("rdma", "/b/d")]);

    fs::write(&file, "listen_rmda = []\n").unwrap();
    let out = common::run(&["serve", "--config", file.to_str().unwrap()]);
    assert!(!out.status.success());
    assert!(String::from_utf8_lossy(&out.stderr).contains("listen_rmda"));
}

#[test]
fn a_failed_start_is_explained() {
    let server = Server::start(&["--export", "/m=memory:16MiB"]);
    let message = fails(
        1,
        &[
            "serve",
            "--log",
            "error",
            "--export",
            "/m=memory:16MiB",
            "--listen-tcp",
            &server.tcp,
            "--listen-rdma",
            "127.0.0.1:0",
        ],
    );
    assert!(message.contains(&server.tcp) && message.contains("another port"), "{message}");
    let message = fails(
        1,
        &[
            "serve",
            "--log",
            "error",
            "--export",
            "/m=local:/does/not/exist",
            "--listen-rdma",
            "127.0.0.1:0",
            "--listen-tcp",
            "127.0.0.1:0",
        ],
    );
    assert!(message.contains("/does/not/exist"), "{message}");
}

#[test]
fn luns_are_served_and_their_urls_printed() {
    let iscsi = ["--provider", "iwarp", "--listen-iscsi", "127.0.0.1:0", "--export", "/m=memory:16MiB"];
    let luns = ["--lun", "disks=/m/0,size=1MiB", "--lun", "disks=/m/1,block=4096,size=2MiB"];
    let mut server = Server::start(&[&iscsi[..], &luns].concat());
    let addr = server.ready.split_whitespace().find_map(|w| w.strip_prefix("iscsi=")).unwrap().to_owned();
    assert!(server.ready.contains(&format!(" iser={addr}")), "{}", server.ready);
    let urls: Vec<String> = (0..4).map(|_| server.line()).collect();
    let name = "iqn.2026-01.example.millrace:disks";
    let expected = [("iscsi", 0), ("iser", 0), ("iscsi", 1), ("iser", 1)];
    assert_eq!(urls, expected.map(|(scheme, lun)| format!("{scheme}://{addr}/{name}/{lun}\n")));
    TcpStream::connect(addr).unwrap();
    let list = ok(&["ls", "-l", &server.url("tcp", "/m")]);
    assert!(list.contains("1048576") && list.contains("2097152"), "{list}");
}

#[test]
fn an_invalid_lun_is_explained() {
    for (code, lun, reason) in [
        (2, "disks", "--lun disks: write NAME=/EXPORT/FILE"),
        (2, "disks=/m/0,size=1000", "multiple of 512"),
        (2, "a b=/m/0", "an iSCSI name"),
        (2, "disks=/n/0", "no export contains it; add an [[export]] or correct the path"),
        (
            1,
            "disks=/m/0",
            "the LUN /m/0 of target iqn.2026-01.example.millrace:disks: the file does not exist; create it",
        ),
    ] {
        let any = "127.0.0.1:0";
        let message = fails(
            code,
            &[
                &["serve", "--log", "off", "--listen-rdma", any, "--listen-tcp", any, "--listen-iscsi", any]
                    [..],
                &["--export", "/m=memory:16MiB", "--lun", lun],
            ]
            .concat(),
        );
        assert!(message.contains(reason) && message.lines().count() == 1, "{message}");
    }
}

#[test]
fn metrics_are_served_on_request() {
    let server = Server::start(&["--export", "/m=memory:16MiB", "--metrics", "127.0.0.1:0"]);
    let addr = server.ready.split("metrics=").nth(1).unwrap().trim().to_owned();
    ok(&["ls", &server.url("rdma", "/m")]);
    assert!(http(&addr, "/metrics").contains("millrace_"));
}

/// The response of the server at `address`.
fn http(address: &str, path: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    write!(stream, "GET {path} HTTP/1.0\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    assert!(text.starts_with("HTTP/1."), "{text}");
    text
}

#[test]
fn the_service_manager_is_notified_of_start_and_stop() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("notify");
    let socket = std::os::unix::net::UnixDatagram::bind(&path).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let notification = || {
        let mut got = [0; 100];
        let n = socket.recv(&mut got).unwrap();
        String::from_utf8(got[..n].to_vec()).unwrap()
    };
    let any = ["--listen-rdma", "127.0.0.1:0", "--listen-tcp", "127.0.0.1:0"];
    let mut child = millrace()
        .args(["serve", "--export", "/m=memory:16MiB"])
        .args(any)
        .env("NOTIFY_SOCKET", &path)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    assert_eq!(notification(), "READY=1\n");
    kill(child.id(), "TERM");
    assert_eq!(notification(), "STOPPING=1\n");
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[test]
fn the_log_has_one_json_object_for_each_event_of_a_connection() {
    let mut child = millrace()
        .args(["serve", "--log", "debug", "--log-format", "json", "--export", "/m=memory:16MiB"])
        .args(["--listen-rdma", "127.0.0.1:0", "--listen-tcp", "127.0.0.1:0"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut ready = String::new();
    BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut ready).unwrap();
    let tcp = ready.split("tcp=").nth(1).unwrap().trim();
    ok(&["ls", &format!("nfs://{tcp}/m?proto=tcp&vers=3")]);
    kill(child.id(), "TERM");
    let log = String::from_utf8(child.wait_with_output().unwrap().stderr).unwrap();
    let events: Vec<serde_json::Value> = log.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    for message in ["TCP connection up", "mounted", "TCP connection down"] {
        let of: Vec<_> = events.iter().filter(|e| e["message"] == message).collect();
        assert_eq!(of.len(), 1, "{message}: {log}");
        assert!(of[0]["peer"].as_str().unwrap().starts_with("127.0.0.1:"), "{log}");
    }
}

#[test]
fn the_log_names_clients_that_stay_and_no_connections() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("log");
    let mut child = millrace()
        .args([
            "serve",
            "--export",
            "/m=memory:64MiB",
            "--listen-rdma",
            "127.0.0.1:0",
            "--listen-tcp",
            "127.0.0.1:0",
        ])
        .stdout(Stdio::piped())
        .stderr(fs::File::create(&log).unwrap())
        .spawn()
        .unwrap();
    let ready = ready_line(&mut child);
    let url = format!("nfs://{}/m/file?proto=tcp&vers=4.2", ready.trim().split("tcp=").nth(1).unwrap());
    let large = dir.path().join("large");
    fs::write(&large, noise(32_000_000, 1)).unwrap();
    ok(&["put", text(&large), &url]);
    // It stays until its output is read.
    let mut reader = millrace().args(["cat", &url]).stdout(Stdio::piped()).spawn().unwrap();
    let shown = |words: &str| {
        let start = std::time::Instant::now();
        while !fs::read_to_string(&log).unwrap().contains(words) {
            assert!(start.elapsed() < common::HANG, "{words}: {}", fs::read_to_string(&log).unwrap());
            thread::sleep(Duration::from_millis(20));
        }
    };
    shown("NFSv4 client has come name=");
    std::io::copy(&mut reader.stdout.take().unwrap(), &mut std::io::sink()).unwrap();
    assert!(reader.wait().unwrap().success());
    shown("NFSv4 client has gone name=");
    kill(child.id(), "TERM");
    assert!(wait_for(&mut child).success());
    let log = fs::read_to_string(&log).unwrap();
    assert!(!log.contains("connection up") && !log.contains("session created"), "{log}");
    assert!(log.contains("listening for TCP address=127.0.0.1:"), "{log}");
}

/// SIGKILL in the middle of a copy, then a new process on the same ports.
fn survives_a_restart(proto: &str, to_server: bool) {
    let dir = tempfile::tempdir().unwrap();
    let served = dir.path().join("served");
    fs::create_dir_all(served.join("tree")).unwrap();
    let from = dir.path().join("from");
    fs::create_dir(&from).unwrap();
    for i in 0..40_u64 {
        let content = noise(2_000_000, i + 1);
        let directory = if to_server { &from } else { &served.join("tree") };
        fs::write(directory.join(format!("{i}")), content).unwrap();
    }
    let export = format!("/x=local:{},squash=none", served.display());
    let mut server = Server::start_at(RESTARTS_AT, RESTARTS_AT, &["--export", &export]);
    let (rdma, tcp) = (server.rdma.clone(), server.tcp.clone());
    let remote = server.url(proto, if to_server { "/x/copy" } else { "/x/tree" });
    let local = if to_server { from.clone() } else { dir.path().join("copy") };
    let local_text = local.to_str().unwrap().to_owned();
    let (a, b) = if to_server { (local_text, remote) } else { (remote, local_text) };
    let copy = millrace()
        .args(["cp", "-r", "--verify", "--json", "--parallel", "2", "--outstanding", "4", &a, &b])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // Wait until some of the files are copied.
    let target = if to_server { served.join("copy") } else { dir.path().join("copy") };
    let done = || fs::read_dir(&target).map_or(0, Iterator::count);
    while done() < 5 {
        thread::sleep(Duration::from_millis(1));
    }
    server.child.kill().unwrap();
    server.child.wait().unwrap();
    let before = done();
    let _again = Server::start_at(&rdma, &tcp, &["--export", &export]);
    let out = copy.wait_with_output().unwrap();
    let (message, errors) = (String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    assert!(out.status.success(), "{message}\n{errors}");
    assert!(before < 42, "the copy was over before the server was killed");
    let json: serde_json::Value = serde_json::from_str(&message).unwrap();
    assert_eq!(json["verified"].as_u64(), Some(40), "{message}");
    let original = if to_server { from } else { served.join("tree") };
    assert_eq!(common::names(&target), common::names(&original));
    for name in common::names(&original) {
        assert!(fs::read(target.join(&name)).unwrap() == fs::read(original.join(&name)).unwrap(), "{name}");
    }
}

#[test]
fn a_put_over_rdma_survives_a_restart_of_the_server() {
    survives_a_restart("rdma", true);
}

#[test]
fn a_put_over_tcp_survives_a_restart_of_the_server() {
    survives_a_restart("tcp", true);
}

#[test]
fn a_get_over_rdma_survives_a_restart_of_the_server() {
    survives_a_restart("rdma", false);
}

/// Runs the program in its own network namespace, whose loopback interface has the address fe80::7.
const LINK_LOCAL: &str = r#"
    ip link set lo up && ip -6 address add fe80::7/64 dev lo nodad || exit 77
    "$0" serve --log error --export /m=memory:16MiB,client=fe80::%lo/64 --lun d=/m/disk,size=1MiB --metrics '[fe80::7%lo]:9100' --metrics-insecure \
        --listen-tcp '[fe80::7%lo]:2049' --listen-rdma '[fe80::7%25lo]:20049' --listen-iscsi '[fe80::7%lo]:3260' > "$1" &
    trap "kill -KILL $!" EXIT
    until grep -q ^iscsi "$1"; do sleep 0.01; done
    "$0" mkdir 'nfs://[fe80::7%lo]/m/d?proto=tcp'
    "$0" ls 'nfs://[fe80::7%25lo]/m?proto=rdma&vers=3'
    "$0" blk ls 'iscsi://[fe80::7%25lo]'
    "$0" blk info "$(grep ^iser "$1")"
    "$0" doctor 'nfs://[fe80::7%lo]/m?proto=tcp' || true
"#;

#[test]
fn link_local_addresses_have_an_interface() {
    let dir = tempfile::tempdir().unwrap();
    let ready = dir.path().join("ready");
    let script = ["-n", "sh", "-ec", LINK_LOCAL, env!("CARGO_BIN_EXE_millrace"), text(&ready)];
    let out = Command::new("unshare").args(script).output();
    match out {
        Ok(out) if out.status.success() => {
            let shown = String::from_utf8(out.stdout).unwrap();
            assert!(shown.starts_with("d/\ndisk\n"), "{shown}");
            assert!(shown.contains("iqn.2026-01.example.millrace:d") && shown.contains("1 MiB"), "{shown}");
            assert!(shown.contains("fe80::7"), "{shown}");
        }
        Ok(out) if rustix::process::geteuid().is_root() && out.status.code() != Some(77) => {
            panic!("{}", String::from_utf8_lossy(&out.stderr));
        }
        _ => println!("skipped: a network with IPv6 needs root, unshare and ip"),
    }
    for (args, part) in [
        (&["ls", "nfs://[fe80::7%no-such0]/m?proto=tcp"][..], "no interface no-such0"),
        (&["ls", "nfs://[fe80::7]/m?proto=tcp"], "link-local"),
        (&["blk", "ls", "iscsi://[fe80::7]"], "link-local"),
    ] {
        let message = fails(1, args);
        assert!(message.contains(part) && message.contains("write [fe80::7%"), "{message}");
    }
    let none = "fe80::7%no-such0";
    let config =
        format!("[[export]]\nname = \"/m\"\nbackend = \"memory:16MiB\"\nclients = [\"{none}(ro)\"]\n");
    let mut check = millrace();
    let check = check.args(["check-config", "-"]).stdin(Stdio::piped()).stderr(Stdio::piped());
    let mut check = check.spawn().unwrap();
    check.stdin.take().unwrap().write_all(config.as_bytes()).unwrap();
    let checked = String::from_utf8(check.wait_with_output().unwrap().stderr).unwrap();
    let given = fails(2, &["serve", "--export", &format!("/m=memory:16MiB,client={none}")]);
    for message in [checked, given] {
        let part = "this host has no interface no-such0: write fe80::7%INTERFACE";
        assert!(message.contains(part), "{message}");
    }
    for listen in ["--listen-rdma", "--listen-tcp", "--listen-iscsi", "--listen-iser", "--metrics"] {
        let out = common::run(&["serve", "--export", "/m=memory:16MiB", listen, "[fe80::7]:0"]);
        let message = String::from_utf8(out.stderr).unwrap();
        assert_eq!(out.status.code(), Some(2), "{message}");
        assert!(message.contains("write [fe80::7%"), "{message}");
    }
}
