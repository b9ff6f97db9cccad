//! `millrace doctor` with working and broken servers.

use crate::common::{self, Server, run};

/// The findings as (state, check, found, remedy), and the exit code.
fn findings(args: &[&str]) -> (Vec<[String; 4]>, i32) {
    let out = run(&[&["doctor", "--json"], args].concat());
    let message = String::from_utf8(out.stdout).unwrap();
    let json: serde_json::Value = serde_json::from_str(&message).unwrap_or_else(|e| panic!("{e}: {message}"));
    let text = |f: &serde_json::Value, key: &str| f[key].as_str().unwrap_or_default().to_owned();
    let list = json["findings"].as_array().unwrap().iter();
    let list = list.map(|f| ["state", "check", "found", "remedy"].map(|key| text(f, key))).collect();
    (list, out.status.code().unwrap())
}

/// The last finding, which must be the only broken one of those about the server.
fn broken(url: &str) -> [String; 4] {
    let (list, code) = findings(&[url]);
    let last = list.last().unwrap().clone();
    assert_eq!((last[0].as_str(), code), ("broken", 1), "{list:?}");
    assert!(!last[3].is_empty(), "{last:?}");
    last
}

#[test]
fn all_checks_of_a_working_server_are_fine() {
    let server = Server::start(&["--export", "/m=memory:16MiB"]);
    for proto in ["rdma", "tcp"] {
        let (list, code) = findings(&[&server.url(proto, "/m")]);
        assert_eq!(code, 0, "{list:?}");
        for check in
            ["providers", "open files", "clock", "port", "mtu", "protocol", "exports", "path", "access"]
        {
            assert!(list.iter().any(|f| f[1] == check), "{check}: {list:?}");
        }
        assert!(list.iter().all(|f| (f[0] == "fine") == f[3].is_empty()), "{list:?}");
    }
    // Without a transport in the URL, that of the port is found.
    for (addr, proto) in [(&server.rdma, "rdma"), (&server.tcp, "tcp")] {
        let (list, code) = findings(&[&format!("nfs://{addr}/m")]);
        let answer = format!("an NFS server answers over {proto} ");
        assert!(code == 0 && list.iter().any(|f| f[2].starts_with(&answer)), "{list:?}");
        assert!(list.iter().all(|f| f[0] == "fine" || !matches!(&*f[1], "port" | "protocol")), "{list:?}");
    }
    let text = common::ok(&["doctor"]);
    assert!(text.contains("providers") && !text.contains("exports"), "{text}");
}

/// Writes a certificate that is its own authority; returns the texts of the paths of certificate and key.
fn certificate(dir: &std::path::Path, file: &str, name: &str, valid: bool) -> (String, String) {
    let key = rcgen::KeyPair::generate().unwrap();
    let mut params = rcgen::CertificateParams::new([name.to_owned()]).unwrap();
    params.distinguished_name.push(rcgen::DnType::CommonName, file);
    if !valid {
        params.not_after = rcgen::date_time_ymd(2001, 1, 1);
    }
    let at = |end: &str| common::text(&dir.join(format!("{file}.{end}"))).to_owned();
    std::fs::write(at("pem"), params.self_signed(&key).unwrap().pem()).unwrap();
    std::fs::write(at("key"), key.serialize_pem()).unwrap();
    (at("pem"), at("key"))
}

#[test]
fn the_failed_step_of_a_handshake_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let (other, _) = certificate(dir.path(), "other", "127.0.0.1", true);
    let serve = |file: &str, name: &str, valid: bool| {
        let (pem, key) = certificate(dir.path(), file, name, valid);
        let config = common::text(&dir.path().join(format!("{file}.toml"))).to_owned();
        std::fs::write(&config, format!("[tls]\ncertificate = {pem:?}\nkey = {key:?}\n")).unwrap();
        (Server::start(&["--config", &config, "--export", "/m=memory:16MiB"]), pem)
    };
    let (fine, ca) = serve("fine", "127.0.0.1", true);
    let over = |proto: &str, server: &Server, ca: &str| {
        format!("{}&xprtsec=tls&tls_ca={ca}", server.url(proto, "/m"))
    };
    let tls = |server: &Server, ca: &str| over("tcp", server, ca);
    for proto in ["tcp", "rdma"] {
        let (list, code) = findings(&[&over(proto, &fine, &ca)]);
        assert!(code == 0 && list.iter().any(|f| f[1] == "tls" && f[2].contains("encrypted")), "{list:?}");
    }
    let (named, named_ca) = serve("named", "nfs.test", true);
    let (old, old_ca) = serve("old", "127.0.0.1", false);
    let clear = Server::start(&["--export", "/m=memory:16MiB"]);
    for (url, found, remedy) in [
        (tls(&clear, &ca), "offer: the server does not offer TLS", "[tls]"),
        (over("rdma", &clear, &ca), "offer: the server does not offer TLS", "use proto=tcp"),
        (
            over("rdma", &fine, &other),
            "server certificate: the handshake of TLS failed: the certificate of the peer was not issued",
            "tls_ca",
        ),
        (
            tls(&named, &named_ca),
            "server certificate: the handshake of TLS failed: the certificate of the server is not for 127.0.0.1",
            "tls_name",
        ),
        (
            tls(&old, &old_ca),
            "server certificate: the handshake of TLS failed: the certificate of the peer has expired",
            "renew",
        ),
        (
            tls(&fine, &other),
            "server certificate: the handshake of TLS failed: the certificate of the peer was not issued",
            "tls_ca",
        ),
    ] {
        let last = broken(&url);
        assert!(last[1] == "tls" && last[2].starts_with(found) && last[3].contains(remedy), "{last:?}");
    }
}

#[test]
fn a_target_and_its_disks_are_checked() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("protected"), [0; 4096]).unwrap();
    let export = format!("/m=local:{}", common::text(dir.path()));
    let disks = ["--lun", "disks=/m/disk,size=1MiB", "--lun", "disks=/m/protected,ro"];
    let listen = ["--listen-iscsi", "127.0.0.1:0", "--provider", "iwarp"];
    let server = Server::start(&[&["--export", &export], &disks[..], &listen].concat());
    let portal = server.ready.split_whitespace().find_map(|w| w.strip_prefix("iscsi=")).unwrap();
    let list = common::ok(&["blk", "ls", "--json", &format!("iscsi://{portal}")]);
    let first: serde_json::Value = serde_json::from_str(list.lines().next().unwrap()).unwrap();
    let target = first["target"].as_str().unwrap();
    for scheme in ["iscsi", "iser"] {
        let (list, code) = findings(&["--provider", "iwarp", &format!("{scheme}://{portal}/{target}")]);
        assert_eq!(code, 0, "{list:?}");
        for check in ["port", "mtu", "protocol", "targets", "login"] {
            assert!(list.iter().any(|f| f[1] == check), "{check}: {list:?}");
        }
        let disks: Vec<&str> = list.iter().filter(|f| f[1] == "disk").map(|f| &*f[0]).collect();
        assert_eq!(disks, ["fine", "note"], "{list:?}");
    }
    let rdma = server.rdma.rsplit(':').next().unwrap();
    for (url, check, found, remedy) in [
        ("iscsi://127.0.0.1:1".to_owned(), "port", "nothing listens", "--lun"),
        (format!("iscsi://127.0.0.1:{rdma}"), "protocol", "over TCP", "iser://"),
        (
            format!("iscsi://{portal}/iqn.2026-01.example:none/0"),
            "login",
            "target not found",
            "listed targets",
        ),
        (format!("iscsi://{portal}/{target}/7"), "disk", "no LUN 7; it has 0, 1", "LUN"),
    ] {
        let last = broken(&url);
        let matches = last[1] == check && last[2].contains(found) && last[3].contains(remedy);
        assert!(matches, "{url}: {last:?}");
    }
}

#[test]
fn each_problem_has_a_remedy() {
    let server =
        Server::start(&["--export", "/m=memory:16MiB", "--export", "/far=memory:16MiB,client=203.0.113.1"]);
    let port = |addr: &str| addr.rsplit(':').next().unwrap().to_owned();
    let (rdma, tcp) = (port(&server.rdma), port(&server.tcp));
    for (url, check, found, remedy) in [
        ("nfs://127.0.0.1:1/m".to_owned(), "port", "nothing listens", "--listen-tcp"),
        ("nfs+rdma://127.0.0.1:1/m".to_owned(), "port", "nothing listens", "--listen-rdma"),
        ("nfs://127.0.0.1:1/m?proto=tcp".to_owned(), "port", "nothing listens", "--listen-tcp"),
        (format!("nfs+rdma://127.0.0.1:{tcp}/m"), "protocol", "no NFS over rdma", "?proto=tcp"),
        (format!("nfs://127.0.0.1:{rdma}/m?proto=tcp"), "protocol", "no NFS over tcp", "?proto=rdma"),
        (server.url("rdma", "/none"), "export", "/m", "millrace reload"),
        (server.url("rdma", "/far"), "access", "/far", "clients"),
        (server.url("tcp", "/m/none"), "path", "/m/none", "millrace ls"),
        ("nfs://no.such.name.invalid/m".to_owned(), "name", "no.such.name.invalid", "getent"),
    ] {
        let last = broken(&url);
        let matches = last[1] == check && last[2].contains(found) && last[3].contains(remedy);
        assert!(matches, "{url}: {last:?}");
    }
}
