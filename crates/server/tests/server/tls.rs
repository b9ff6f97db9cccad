//! Exports that want TLS, and the replacement of the certificate.

use std::{path::Path, time::Duration};

use millrace_nfs::v3::{GetattrArgs, Procedure};
use millrace_oncrpc::{
    AuthStat, RpcError,
    tcp::{StartTlsError, TcpClientConfig, TcpTransport, start_tls},
};
use millrace_runtime::tokio_rt::{TcpByteStream, TokioRuntime};
use millrace_server::{Config, Running, Server, ServerFiles};
use millrace_tls::{ClientConfig, ClientFiles, PeerName, TlsError};
use rcgen::{CertificateParams, DnType, KeyPair};

use crate::common::{Caller, Proto, arena, config, run, sys};

/// Writes a certificate that is its own authority, for these names; returns its files.
fn issue(dir: &Path, file: &str, name: &str) -> ServerFiles {
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new([name.to_owned()]).unwrap();
    params.distinguished_name.push(DnType::CommonName, name);
    let at = |end: &str| dir.join(format!("{file}.{end}"));
    std::fs::write(at("pem"), params.self_signed(&key).unwrap().pem()).unwrap();
    std::fs::write(at("key"), key.serialize_pem()).unwrap();
    ServerFiles { certificate: at("pem"), key: at("key"), client_ca: None }
}

/// A caller over TLS that trusts the authorities in `ca` and has the certificate in `own`.
async fn connect(
    server: &Running,
    name: &str,
    ca: &ServerFiles,
    own: Option<&ServerFiles>,
) -> Result<Caller, StartTlsError> {
    let certificate = own.map(|own| (own.certificate.clone(), own.key.clone()));
    let files = ClientFiles { ca: Some(ca.certificate.clone()), certificate };
    let client = ClientConfig::load(&files).unwrap();
    let (rt, arena) = (TokioRuntime::current(), arena(64 << 20));
    let stream = TcpByteStream::connect(server.tcp_addr().unwrap()).await.unwrap();
    let stream = start_tls(Box::new(stream), (100_003, 3), &client, &PeerName::parse(name).unwrap()).await?;
    let limits = TcpClientConfig { timeout: Duration::from_secs(20), ..TcpClientConfig::default() };
    let transport = TcpTransport::start(stream, &rt, &arena, limits).unwrap();
    Ok(Caller { transport, arena, rt, cred: sys(0, 0) })
}

#[test]
fn files_of_an_export_with_tls_are_used_over_tls_only_and_mounted_in_the_clear() {
    run(async {
        let dir = tempfile::tempdir().unwrap();
        let client = issue(dir.path(), "client", "client.test");
        let mut files = issue(dir.path(), "server", "nfs.test");
        files.client_ca = Some(client.certificate.clone());
        let exports = ["/tls=memory:8MiB,xprtsec=tls", "/mtls=memory:8MiB,xprtsec=mtls", "/any=memory:8MiB"];
        let server = Server::start(Config { tls: Some(files.clone()), ..config(&exports) }).unwrap();
        let clear = Caller::connect(&server, Proto::Tcp).await;
        let rdma = Caller::connect(&server, Proto::Rdma).await;
        let tls = connect(&server, "nfs.test", &files, None).await.unwrap();
        let mtls = connect(&server, "nfs.test", &files, Some(&client)).await.unwrap();
        for (export, admitted) in [
            ("/any", [true; 4]),
            ("/tls", [false, false, true, true]),
            ("/mtls", [false, false, false, true]),
        ] {
            let root = clear.mount(export).await.unwrap();
            for (caller, admitted) in [&clear, &rdma, &tls, &mtls].into_iter().zip(admitted) {
                let reply = caller.reply(Procedure::Getattr, &GetattrArgs { object: root }, 0).await;
                match reply {
                    Ok(_) => assert!(admitted, "{export}"),
                    Err(RpcError::Auth(AuthStat::TooWeak)) => assert!(!admitted, "{export}"),
                    Err(e) => panic!("{export}: {e}"),
                }
                caller.reply(Procedure::Null, &(), 0).await.unwrap();
            }
        }
        let stats = server.stats();
        assert_eq!((stats.open_tls, stats.open_mtls, stats.tls_failed), (1, 1, 0));
        server.stop(Duration::from_secs(5)).await;
    });
}

#[test]
fn a_reload_replaces_the_certificate_for_later_connections() {
    run(async {
        let dir = tempfile::tempdir().unwrap();
        let old = issue(dir.path(), "server", "old.test");
        let start = Config { tls: Some(old.clone()), ..config(&["/x=memory:8MiB,xprtsec=tls"]) };
        let mut server = Server::start(start.clone()).unwrap();
        let before = connect(&server, "old.test", &old, None).await.unwrap();
        let root = before.mount("/x").await.unwrap();
        assert!(server.reload(&start).unwrap().changed.is_empty());

        issue(dir.path(), "server", "new.test"); // The same files.
        assert_eq!(server.reload(&start).unwrap().changed, ["tls"]);
        before.getattr(root).await.unwrap();
        let e = connect(&server, "old.test", &old, None).await.err().unwrap();
        assert!(matches!(e, StartTlsError::Handshake(TlsError::Name { .. })), "{e}");
        connect(&server, "new.test", &old, None).await.unwrap().getattr(root).await.unwrap();

        std::fs::remove_file(&old.key).unwrap();
        let e = server.reload(&start).unwrap_err().to_string();
        assert!(e.contains("server.key") && e.contains("No such file"), "{e}");
        connect(&server, "new.test", &old, None).await.unwrap().getattr(root).await.unwrap();
        assert_eq!(server.stats().tls_failed, 1);
        server.stop(Duration::from_secs(5)).await;
    });
}

#[test]
fn exports_that_want_more_than_the_certificates_permit_are_errors() {
    let dir = tempfile::tempdir().unwrap();
    let files = issue(dir.path(), "server", "nfs.test");
    for (export, tls, expected) in [
        ("/x=memory:8MiB,xprtsec=tls", None, "export /x wants TLS (xprtsec), but there is no [tls]"),
        ("/x=memory:8MiB,client=::1(xprtsec=mtls)", Some(files.clone()), "[tls] has no `client_ca`"),
        ("/x=memory:8MiB,xprtsec=tls:mtls", Some(files), ""),
    ] {
        let invalid = Config { tls, ..config(&[export]) }.invalid_settings();
        match invalid.first() {
            Some(found) => {
                assert!(!expected.is_empty() && found.reason.contains(expected), "{}", found.reason);
                assert_eq!(found.field, "exports.0.xprtsec");
            }
            None => assert!(expected.is_empty(), "{export}"),
        }
    }
}
