//! Exports that want TLS or certain certificates, and the replacement of the server's files.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use millrace_nfs::{
    v3::{CreateArgs, CreateHow, CreateOk, FileHandle, GetattrArgs, Procedure, Res, Sattr, Status, WccData},
    v4,
};
use millrace_nfs4_conformance::compound::{Session, getattr, putfh};
use millrace_oncrpc::{
    AuthStat, RpcError,
    tcp::{StartTlsError, TcpClientConfig, TcpTransport, start_tls},
};
use millrace_runtime::tokio_rt::{TcpByteStream, TokioRuntime};
use millrace_server::{
    CertificateRule, Config, ExportConfig, Identity, Running, Server, ServerFiles, TransportSecurity,
};
use millrace_tls::{ClientConfig, ClientFiles, PeerName, TlsError};
use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, DnType, IsCa, Issuer, KeyIdMethod,
    KeyPair, KeyUsagePurpose, RevokedCertParams, SanType, date_time_ymd,
};

use crate::common::{Caller, Proto, arena, at, config, run, sys};

/// Writes a certificate that is its own authority, for these names; returns its files.
fn issue(dir: &Path, file: &str, name: &str) -> ServerFiles {
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new([name.to_owned()]).unwrap();
    params.distinguished_name.push(DnType::CommonName, name);
    let at = |end: &str| dir.join(format!("{file}.{end}"));
    std::fs::write(at("pem"), params.self_signed(&key).unwrap().pem()).unwrap();
    std::fs::write(at("key"), key.serialize_pem()).unwrap();
    ServerFiles { certificate: at("pem"), key: at("key"), client_ca: None, client_crl: None }
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

/// An authority of clients.
struct Authority {
    issuer: Issuer<'static, KeyPair>,
    dir: PathBuf,
}

impl Authority {
    fn new(dir: &Path) -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, "authority of clients");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let pem = params.self_signed(&key).unwrap().pem();
        let ca = Self { issuer: Issuer::new(params, key), dir: dir.to_owned() };
        std::fs::write(ca.file(), pem).unwrap();
        ca
    }

    fn file(&self) -> PathBuf {
        self.dir.join("clients.pem")
    }

    /// A client's certificate with this common name, a URI with it, and this serial number.
    fn issue(&self, name: &str, serial: u64) -> ServerFiles {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.serial_number = Some(serial.into());
        params.subject_alt_names.push(SanType::URI(format!("spiffe://example/{name}").try_into().unwrap()));
        let at = |end: &str| self.dir.join(format!("{name}.{end}"));
        std::fs::write(at("pem"), params.signed_by(&key, &self.issuer).unwrap().pem()).unwrap();
        std::fs::write(at("key"), key.serialize_pem()).unwrap();
        ServerFiles { certificate: at("pem"), key: at("key"), client_ca: None, client_crl: None }
    }

    /// The list of a revoked certificate.
    fn revoke(&self, serial: u64) -> PathBuf {
        let (this_update, next_update) = (date_time_ymd(2001, 1, 1), date_time_ymd(2901, 1, 1));
        let revoked = RevokedCertParams {
            serial_number: serial.into(),
            revocation_time: this_update,
            reason_code: None,
            invalidity_date: None,
        };
        let list = CertificateRevocationListParams {
            this_update,
            next_update,
            crl_number: 1.into(),
            issuing_distribution_point: None,
            revoked_certs: vec![revoked],
            key_identifier_method: KeyIdMethod::Sha256,
        };
        let file = self.dir.join("crl.pem");
        std::fs::write(&file, list.signed_by(&self.issuer).unwrap().pem().unwrap()).unwrap();
        file
    }
}

fn rule(change: impl FnOnce(&mut CertificateRule)) -> CertificateRule {
    let mut rule = CertificateRule::default();
    change(&mut rule);
    rule
}

fn id(uid: u32) -> Identity {
    Identity { uid, gid: uid, gids: Default::default() }
}

/// The results of GETATTR and CREATE with NFSv3, and of GETATTR with NFSv4.
async fn attempt(
    caller: &Caller,
    root: FileHandle,
    file: &'static str,
) -> (Result<(), Status>, Result<u32, Status>, v4::Status) {
    let status = caller.getattr(root).await.map(|_| ());
    let how = CreateHow::Guarded(Sattr { mode: Some(0o600), ..Sattr::default() });
    let args = CreateArgs { where_: at(root, file), how };
    let created: Res<CreateOk, WccData> = caller.nfs(Procedure::Create, &args).await;
    let created = created.into_result().map(|ok| ok.attributes.unwrap().uid).map_err(|(status, _)| status);
    let session = Session::new(caller, file.as_bytes()).await;
    let of_v4 = session.status(caller, [putfh(root.as_bytes()), getattr(&[v4::Attribute::Size])]).await;
    (status, created, of_v4)
}

#[test]
fn each_certificate_has_the_rights_of_the_first_rule_that_matches() {
    run(async {
        let dir = tempfile::tempdir().unwrap();
        let ca = Authority::new(dir.path());
        let mut files = issue(dir.path(), "server", "nfs.test");
        files.client_ca = Some(ca.file());
        let mut export: ExportConfig = "/x=memory:8MiB,xprtsec=mtls".parse().unwrap();
        export.certificates = vec![
            rule(|r| {
                (r.san, r.identity) = (Some("URI:spiffe://example/admin".parse().unwrap()), Some(id(0)))
            }),
            rule(|r| (r.subject, r.read_only) = (Some("CN=reader".into()), true)),
            rule(|r| {
                (r.issuer, r.serial) = (Some("CN=authority of clients".into()), Some(vec![0x12, 3]));
                r.identity = Some(id(0));
            }),
            rule(|r| (r.subject, r.serial) = (Some("CN=other".into()), Some(vec![9]))), // Not both match.
        ];
        let start = Config { exports: vec![export], tls: Some(files.clone()), ..config(&[]) };
        let mut server = Server::start(start.clone()).unwrap();
        let clear = Caller::connect(&server, Proto::Tcp).await;
        let root = clear.mount("/x").await.unwrap();
        let refused = clear.reply(Procedure::Getattr, &GetattrArgs { object: root }, 0).await;
        assert!(matches!(refused, Err(RpcError::Auth(AuthStat::TooWeak))));
        let session = Session::new(&clear, b"clear").await;
        let of_v4 = session.status(&clear, [putfh(root.as_bytes()), getattr(&[v4::Attribute::Size])]).await;
        assert_eq!(of_v4, v4::Status::WrongSec);
        assert_eq!(server.stats().nfs4_confirmed_clients, 1);

        // Root is squashed, and may not create files then.
        let mut admin = None;
        for (name, serial, expected) in [
            ("admin", 1, (Ok(()), Ok(0), v4::Status::Ok)),
            ("reader", 2, (Ok(()), Err(Status::RoFs), v4::Status::Ok)),
            ("third", 0x1203, (Ok(()), Ok(0), v4::Status::Ok)),
            ("other", 10, (Err(Status::Access), Err(Status::Access), v4::Status::Access)),
        ] {
            let own = ca.issue(name, serial);
            let caller = connect(&server, "nfs.test", &files, Some(&own)).await.unwrap();
            assert_eq!(attempt(&caller, root, name).await, expected, "{name}");
            if name == "admin" {
                admin = Some(caller);
            }
        }

        // The rules of a reload apply to open connections.
        let admin = admin.unwrap();
        let mut new = start.clone();
        new.exports[0].certificates.remove(0);
        assert_eq!(server.reload(&new).unwrap().changed, ["/x"]);
        let refused = (Err(Status::Access), Err(Status::Access), v4::Status::Access);
        assert_eq!(attempt(&admin, root, "admin again").await, refused);
        let state = server.nfs4_state();
        let found: Vec<_> =
            state.clients(None, 9).iter().map(|c| (c.owner.clone(), state.protection(c.id.number))).collect();
        let protection = |owner: &str| {
            let found =
                found.iter().find(|(found, _)| **found == *owner.as_bytes()).and_then(|(_, p)| p.clone());
            found.map(|p| (p.security, p.subject.map(|s| s.to_string())))
        };
        assert_eq!(protection("clear"), Some((TransportSecurity::None, None)));
        assert_eq!(protection("reader"), Some((TransportSecurity::Mtls, Some("CN=reader".into()))));
        server.stop(Duration::from_secs(5)).await;
    });
}

#[test]
fn a_reload_ends_sessions_whose_certificate_is_not_trusted_any_more() {
    run(async {
        let dir = tempfile::tempdir().unwrap();
        let ca = Authority::new(dir.path());
        let mut files = issue(dir.path(), "server", "nfs.test");
        files.client_ca = Some(ca.file());
        let start = Config { tls: Some(files.clone()), ..config(&["/x=memory:8MiB"]) };
        let mut server = Server::start(start.clone()).unwrap();
        let (a, b) = (ca.issue("a", 1), ca.issue("b", 2));
        let [on_a, on_b, anonymous] =
            [Some(&a), Some(&b), None].map(|own| connect(&server, "nfs.test", &files, own));
        let (on_a, on_b, anonymous) = (on_a.await.unwrap(), on_b.await.unwrap(), anonymous.await.unwrap());
        let root = on_a.mount("/x").await.unwrap();
        for caller in [&on_b, &anonymous] {
            caller.getattr(root).await.unwrap();
        }
        let mut revoking = start.clone();
        revoking.tls.as_mut().unwrap().client_crl = Some(ca.revoke(1));
        assert_eq!(server.reload(&revoking).unwrap().changed, ["tls"]);
        while on_a.transport.failure().is_none() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        for caller in [&on_b, &anonymous] {
            caller.getattr(root).await.unwrap();
        }
        let again = connect(&server, "nfs.test", &files, Some(&a)).await;
        if let Ok(again) = again {
            // A client receives the refusal after its own handshake.
            assert!(again.reply(Procedure::Getattr, &GetattrArgs { object: root }, 0).await.is_err());
        }
        // Another authority.
        let other = issue(dir.path(), "other", "other.test");
        revoking.tls = Some(ServerFiles { client_ca: Some(other.certificate), ..files.clone() });
        server.reload(&revoking).unwrap();
        while on_b.transport.failure().is_none() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        anonymous.getattr(root).await.unwrap();
        let stats = server.stats();
        assert_eq!((stats.tcp.untrusted, stats.tls_failed, stats.open_mtls, stats.open_tls), (2, 1, 0, 1));
        server.stop(Duration::from_secs(5)).await;
    });
}

#[test]
fn rules_for_certificates_must_be_able_to_refuse() {
    let any = |certificates, xprtsec| {
        let mut export: ExportConfig = format!("/x=memory:8MiB,xprtsec={xprtsec}").parse().unwrap();
        export.certificates = certificates;
        let dir = tempfile::tempdir().unwrap();
        let mut files = issue(dir.path(), "server", "nfs.test");
        files.client_ca = Some(files.certificate.clone());
        Config { exports: vec![export], tls: Some(files), ..config(&[]) }.invalid_settings()
    };
    let one = || rule(|r| r.subject = Some("CN=a".into()));
    assert_eq!(any(vec![one()], "mtls"), []);
    for (rules, xprtsec, field, reason) in [
        (vec![one()], "tls", "exports.0.certificates", "clients without a certificate evade"),
        (vec![one(), rule(|r| r.read_only = true)], "mtls", "exports.0.certificates.1", "for no certificate"),
    ] {
        let [found] = any(rules, xprtsec).try_into().unwrap();
        assert_eq!(found.field, field);
        assert!(found.reason.contains(reason), "{found}");
    }
}
