//! `millrace doctor` with working and broken servers.

#![allow(clippy::unwrap_used, clippy::panic)] // Helpers of tests, which are to fail.

mod common;

use common::{Server, run};

/// The findings as (state, check, found, mend), and the exit code.
fn findings(args: &[&str]) -> (Vec<[String; 4]>, i32) {
    let out = run(&[&["doctor", "--json"], args].concat());
    let message = String::from_utf8(out.stdout).unwrap();
    let json: serde_json::Value = serde_json::from_str(&message).unwrap_or_else(|e| panic!("{e}: {message}"));
    let text = |f: &serde_json::Value, key: &str| f[key].as_str().unwrap_or_default().to_owned();
    let list = json["findings"].as_array().unwrap().iter();
    let list = list.map(|f| ["state", "check", "found", "mend"].map(|key| text(f, key))).collect();
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
    let text = common::ok(&["doctor"]);
    assert!(text.contains("providers") && !text.contains("exports"), "{text}");
}

#[test]
fn each_problem_has_a_remedy() {
    let server =
        Server::start(&["--export", "/m=memory:16MiB", "--export", "/far=memory:16MiB,client=203.0.113.1"]);
    let port = |addr: &str| addr.rsplit(':').next().unwrap().to_owned();
    let (rdma, tcp) = (port(&server.rdma), port(&server.tcp));
    for (url, check, found, mend) in [
        ("nfs://127.0.0.1:1/m".to_owned(), "port", "nothing listens", "--listen-rdma"),
        ("nfs://127.0.0.1:1/m?proto=tcp".to_owned(), "port", "nothing listens", "--listen-tcp"),
        (format!("nfs://127.0.0.1:{tcp}/m"), "protocol", "no NFS over RDMA", "?proto=tcp"),
        (format!("nfs://127.0.0.1:{rdma}/m?proto=tcp"), "protocol", "no NFS over TCP", "?proto=rdma"),
        (server.url("rdma", "/none"), "export", "/m", "millrace reload"),
        (server.url("rdma", "/far"), "access", "/far", "clients"),
        (server.url("tcp", "/m/none"), "path", "/m/none", "millrace ls"),
        ("nfs://no.such.name.invalid/m".to_owned(), "name", "no.such.name.invalid", "getent"),
    ] {
        let last = broken(&url);
        let matches = last[1] == check && last[2].contains(found) && last[3].contains(mend);
        assert!(matches, "{url}: {last:?}");
    }
}
