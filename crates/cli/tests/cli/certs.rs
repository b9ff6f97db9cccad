//! `millrace certs init`, and what it has written in use.

use std::{fs, os::unix::fs::PermissionsExt};

use crate::common::{Server, fails, ok, text};

#[test]
fn what_init_writes_encrypts_and_identifies() {
    let dir = tempfile::tempdir().unwrap();
    let certs = dir.path().join("tls");
    let table = ok(&["certs", "init", text(&certs), "--host", "nfs.test", "--host", "127.0.0.1"]);
    for (name, mode) in [("ca", 0o600), ("server", 0o600), ("client", 0o600)] {
        let key = fs::metadata(certs.join(format!("{name}.key"))).unwrap();
        assert_eq!(key.permissions().mode() & 0o777, mode, "{name}");
    }
    let exports = "[[export]]\nname = \"/tls\"\nbackend = \"memory:16MiB\"\nxprtsec = [\"tls\"]\n\
                   [[export]]\nname = \"/mtls\"\nbackend = \"memory:16MiB\"\nxprtsec = [\"mtls\"]\n\
                   [[export.certificates]]\nsubject = \"CN=client\"\nuid = 0\ngid = 0\n\
                   [[export]]\nname = \"/others\"\nbackend = \"memory:16MiB\"\nxprtsec = [\"mtls\"]\n\
                   [[export.certificates]]\nsubject = \"CN=another\"\n";
    let config = dir.path().join("server.toml");
    fs::write(&config, table + exports).unwrap();
    assert!(ok(&["check-config", text(&config)]).contains("valid"));
    let server = Server::start(&["--config", text(&config)]);
    let at = |file: &str| text(&certs.join(file)).to_owned();
    let url = |path: &str| server.url("tcp", path);
    let tls = |path: &str| format!("{}&xprtsec=tls&tls_ca={}", url(path), at("ca.pem"));
    let mtls = |path: &str| {
        let own = format!("&tls_cert={}&tls_key={}", at("client.pem"), at("client.key"));
        tls(path).replace("xprtsec=tls", "xprtsec=mtls") + &own
    };
    let local = dir.path().join("file");
    fs::write(&local, "over TLS").unwrap();
    for named in [tls("/tls/f"), tls("/tls/g") + "&tls_name=nfs.test", mtls("/tls/h"), mtls("/mtls/f")] {
        ok(&["put", text(&local), &named]);
        assert_eq!(ok(&["cat", &named]), "over TLS");
    }
    // The rule maps the client to root, which is squashed without it.
    let owner = |url: &str| {
        ok(&["stat", "--json", url]).split("\"uid\":").nth(1).unwrap().split(',').next().unwrap().to_owned()
    };
    assert_eq!(owner(&mtls("/mtls/f")), "0");
    for refused in [url("/tls/f"), tls("/mtls/f"), mtls("/others/f")] {
        fails(1, &["cat", &refused]);
    }
    let e = fails(1, &["cat", &(tls("/tls/f") + "&tls_name=other.test")]);
    assert!(e.contains("is not for other.test, but for nfs.test, 127.0.0.1"), "{e}");
    let e = fails(1, &["certs", "init", text(&certs), "--host", "nfs.test"]);
    assert!(e.contains("ca.pem exists"), "{e}");
    for host in ["*.test", "a b"] {
        let e = fails(2, &["certs", "init", text(&dir.path().join("x")), "--host", host]);
        assert!(e.contains("neither a DNS name nor an IP address"), "{e}");
    }
}
