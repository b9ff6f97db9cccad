//! Exports that want TLS or certain certificates, and the replacement of the server's files.

use std::{
    future::poll_fn,
    io,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use millrace_iscsi::{
    login::{InitiatorConfig as LoginConfig, InitiatorLogin, InitiatorStep, MAX_LOGIN_DATA},
    negotiation::Settings,
    pdu::{Isid, PduReader, Response},
    stream::{Input, Output, Segment},
};
use millrace_iscsi_initiator::BlockDevice;
use millrace_nfs::{
    v3::{CreateArgs, CreateHow, CreateOk, FileHandle, GetattrArgs, Procedure, Res, Sattr, Status, WccData},
    v4,
};
use millrace_nfs4_conformance::compound::{Session, getattr, putfh};
use millrace_oncrpc::{
    AuthStat, RpcError,
    tcp::{StartTlsError, TcpClientConfig, TcpTransport, start_tls},
};
use millrace_rdma::ConnectionError;
use millrace_rdma_providers::{ProviderChoice, connect_iwarp};
use millrace_rpcrdma::{Requester, RequesterConfig};
use millrace_runtime::{
    ByteStream,
    tokio_rt::{TcpByteStream, TokioRuntime},
};
use millrace_server::{
    CertificateRule, Config, ExportConfig, Identity, Running, Server, ServerFiles, TargetSettings, TlsStats,
    TransportSecurity, target_name,
};
use millrace_tls::{ClientConfig, ClientFiles, PeerName, Protocol, TlsError, TlsStream};
use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, DnType, IsCa, Issuer, KeyIdMethod,
    KeyPair, KeyUsagePurpose, RevokedCertParams, SanType, date_time_ymd,
};

use crate::common::{Caller, Proto, arena, at, config, rdma_at, run, sys};

/// Writes a certificate that is its own authority, for these names; returns its files.
pub(crate) fn issue(dir: &Path, file: &str, name: &str) -> ServerFiles {
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new([name.to_owned()]).unwrap();
    params.distinguished_name.push(DnType::CommonName, name);
    let at = |end: &str| dir.join(format!("{file}.{end}"));
    std::fs::write(at("pem"), params.self_signed(&key).unwrap().pem()).unwrap();
    std::fs::write(at("key"), key.serialize_pem()).unwrap();
    ServerFiles { certificate: at("pem"), key: at("key"), client_ca: None, client_crl: None }
}

/// The transports that can be encrypted.
fn protos() -> &'static [Proto] {
    // TLS is not possible on adapters.
    if rdma_at().1 == ProviderChoice::Verbs { &[Proto::Tcp] } else { &[Proto::Tcp, Proto::Rdma] }
}

/// A caller over TLS that trusts the authorities in `ca` and has the certificate in `own`.
pub(crate) async fn connect(
    server: &Running,
    proto: Proto,
    name: &str,
    ca: &ServerFiles,
    own: Option<&ServerFiles>,
) -> Result<Caller, StartTlsError> {
    let certificate = own.map(|own| (own.certificate.clone(), own.key.clone()));
    let files = ClientFiles { ca: Some(ca.certificate.clone()), certificate };
    let client = ClientConfig::load(&files).unwrap();
    let (rt, arena) = (TokioRuntime::current(), arena(64 << 20));
    let name = PeerName::parse(name).unwrap();
    if proto == Proto::Rdma {
        let config = RequesterConfig::default();
        let (addr, params) = (server.rdma_addr().unwrap(), config.connect_params());
        let client = client.for_protocol(Protocol::Iwarp);
        let secure = async |stream| match TlsStream::connect(stream, &client, &name).await {
            Ok(stream) => Ok(Box::new(stream) as Box<dyn ByteStream>),
            Err(e) => Err(Refused(e.into())),
        };
        let qp = connect_iwarp(Arc::clone(&rt), addr, params, secure).await.map_err(|e| e.0)?;
        let transport = Requester::from_queue_pair(qp, Arc::clone(&rt), arena.clone(), config).unwrap();
        return Ok(Caller { transport, arena, rt, cred: sys(0, 0) });
    }
    let stream = TcpByteStream::connect(server.tcp_addr().unwrap()).await.unwrap();
    let stream = start_tls(Box::new(stream), (100_003, 3), &client, &name).await?;
    let limits = TcpClientConfig { timeout: Duration::from_secs(20), ..TcpClientConfig::default() };
    let transport = TcpTransport::start(stream, &rt, &arena, limits).unwrap();
    Ok(Caller { transport, arena, rt, cred: sys(0, 0) })
}

struct Refused(StartTlsError);

impl From<ConnectionError> for Refused {
    fn from(e: ConnectionError) -> Self {
        Self(StartTlsError::Interrupted(io::Error::other(e)))
    }
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
        let mut callers = vec![(clear.with(sys(0, 0)), 0), (rdma, 0)];
        for proto in protos() {
            callers.push((connect(&server, *proto, "nfs.test", &files, None).await.unwrap(), 1));
            callers.push((connect(&server, *proto, "nfs.test", &files, Some(&client)).await.unwrap(), 2));
        }
        for (export, wanted) in [("/any", 0), ("/tls", 1), ("/mtls", 2)] {
            let root = clear.mount(export).await.unwrap();
            for (caller, protection) in &callers {
                let admitted = *protection >= wanted;
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
        let open = protos().len() as u64;
        assert_eq!(stats.tls, TlsStats { open_tls: open, open_mtls: open, failed: 0 });
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
        let before = connect(&server, Proto::Tcp, "old.test", &old, None).await.unwrap();
        let root = before.mount("/x").await.unwrap();
        assert!(server.reload(&start).unwrap().changed.is_empty());

        issue(dir.path(), "server", "new.test"); // The same files.
        assert_eq!(server.reload(&start).unwrap().changed, ["tls"]);
        before.getattr(root).await.unwrap();
        let e = connect(&server, Proto::Tcp, "old.test", &old, None).await.err().unwrap();
        assert!(matches!(e, StartTlsError::Handshake(TlsError::Name { .. })), "{e}");
        for proto in protos() {
            connect(&server, *proto, "new.test", &old, None).await.unwrap().getattr(root).await.unwrap();
        }

        std::fs::remove_file(&old.key).unwrap();
        let e = server.reload(&start).unwrap_err().to_string();
        assert!(e.contains("server.key") && e.contains("No such file"), "{e}");
        for proto in protos() {
            connect(&server, *proto, "new.test", &old, None).await.unwrap().getattr(root).await.unwrap();
        }
        assert_eq!(server.stats().tls.failed, 1);
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
pub(crate) struct Authority {
    issuer: Issuer<'static, KeyPair>,
    dir: PathBuf,
}

impl Authority {
    pub(crate) fn new(dir: &Path) -> Self {
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

    pub(crate) fn file(&self) -> PathBuf {
        self.dir.join("clients.pem")
    }

    /// A client's certificate with this common name, a URI with it, and this serial number.
    pub(crate) fn issue(&self, name: &str, serial: u64) -> ServerFiles {
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
    pub(crate) fn revoke(&self, serial: u64) -> PathBuf {
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

pub(crate) fn rule(change: impl FnOnce(&mut CertificateRule)) -> CertificateRule {
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
        for (name, of_rdma, serial, expected) in [
            ("admin", "admin over RDMA", 1, (Ok(()), Ok(0), v4::Status::Ok)),
            ("reader", "reader over RDMA", 2, (Ok(()), Err(Status::RoFs), v4::Status::Ok)),
            ("third", "third over RDMA", 0x1203, (Ok(()), Ok(0), v4::Status::Ok)),
            ("other", "other over RDMA", 10, (Err(Status::Access), Err(Status::Access), v4::Status::Access)),
        ] {
            let own = ca.issue(name, serial);
            for proto in protos() {
                let caller = connect(&server, *proto, "nfs.test", &files, Some(&own)).await.unwrap();
                let owner: &'static str = if *proto == Proto::Tcp { name } else { of_rdma };
                assert_eq!(attempt(&caller, root, owner).await, expected, "{owner}");
                if name == "admin" {
                    admin = Some(caller);
                }
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
        let found: Vec<_> = state
            .clients(None, 20)
            .iter()
            .map(|c| (c.owner.clone(), state.protection(c.id.number)))
            .collect();
        let protection = |owner: &str| {
            let found =
                found.iter().find(|(found, _)| **found == *owner.as_bytes()).and_then(|(_, p)| p.clone());
            found.map(|p| (p.security, p.subject.map(|s| s.to_string())))
        };
        assert_eq!(protection("clear"), Some((TransportSecurity::None, None)));
        for owner in ["reader", "reader over RDMA"].into_iter().take(protos().len()) {
            let expected = Some((TransportSecurity::Mtls, Some("CN=reader".into())));
            assert_eq!(protection(owner), expected, "{owner}");
        }
        server.stop(Duration::from_secs(5)).await;
    });
}

#[test]
fn a_reload_ends_sessions_whose_certificate_is_not_trusted_any_more() {
    for proto in protos() {
        sessions_end(*proto);
    }
}

fn sessions_end(proto: Proto) {
    run(async move {
        let dir = tempfile::tempdir().unwrap();
        let ca = Authority::new(dir.path());
        let mut files = issue(dir.path(), "server", "nfs.test");
        files.client_ca = Some(ca.file());
        let start = Config { tls: Some(files.clone()), ..config(&["/x=memory:8MiB"]) };
        let mut server = Server::start(start.clone()).unwrap();
        let (a, b) = (ca.issue("a", 1), ca.issue("b", 2));
        let [on_a, on_b, anonymous] =
            [Some(&a), Some(&b), None].map(|own| connect(&server, proto, "nfs.test", &files, own));
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
        let again = connect(&server, proto, "nfs.test", &files, Some(&a)).await;
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
        let closed = if proto == Proto::Tcp { stats.tcp.untrusted } else { stats.rdma.untrusted };
        assert_eq!((closed, stats.tls), (2, TlsStats { open_tls: 1, open_mtls: 0, failed: 1 }));
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

/// Reads a block of the disk; the reason if the disk cannot be used.
async fn read_block(url: &str) -> Result<(), String> {
    let mut options = millrace_iscsi_initiator::Options::default();
    options.timeout = Duration::from_secs(1);
    options.provider = ProviderChoice::Iwarp;
    let device = BlockDevice::connect(&url.parse().unwrap(), &options).await.map_err(|e| e.to_string())?;
    device.read_at_into(0, device.buffer(4096).unwrap()).await.map_err(|e| e.to_string())?;
    device.close().await;
    Ok(())
}

#[test]
fn disks_are_used_with_the_protection_that_their_target_wants() {
    // One listener for both protocols, and one for each.
    for iser in [[127, 0, 0, 1], [127, 0, 0, 2]] {
        disks_are_used((iser, 0).into());
    }
}

fn disks_are_used(listen_iser: SocketAddr) {
    run(async {
        let dir = tempfile::tempdir().unwrap();
        let own = issue(dir.path(), "client", "client.test");
        let mut files = issue(dir.path(), "server", "nfs.test");
        files.client_ca = Some(own.certificate.clone());
        let target = |name: &str, xprtsec| TargetSettings {
            xprtsec,
            ..TargetSettings::new(
                target_name(name).unwrap(),
                vec![format!("/x/{name},size=1MiB").parse().unwrap()],
            )
        };
        let targets = vec![
            target("none", TransportSecurity::None),
            target("tls", TransportSecurity::Tls),
            target("mtls", TransportSecurity::Mtls),
        ];
        let start = Config {
            targets,
            listen_iscsi: Some(([127, 0, 0, 1], 0).into()),
            listen_iser: Some(listen_iser),
            provider: ProviderChoice::Iwarp,
            tls: Some(files.clone()),
            ..config(&["/x=memory:16MiB"])
        };
        let mut server = Server::start(start.clone()).unwrap();
        let at = |scheme| match scheme {
            "iser" => server.iser_addr().unwrap(),
            _ => server.iscsi_addr().unwrap(),
        };
        let addresses = [("iscsi", at("iscsi")), ("iser", at("iser"))];
        let ca = format!("tls_name=nfs.test&tls_ca={}", files.certificate.display());
        let with_own = format!("{ca}&tls_cert={}&tls_key={}", own.certificate.display(), own.key.display());
        for (scheme, at) in addresses {
            for (protection, options) in [
                (0, String::new()),
                (1, format!("?xprtsec=tls&{ca}")),
                (2, format!("?xprtsec=mtls&{with_own}")),
            ] {
                for (wanted, name) in ["none", "tls", "mtls"].into_iter().enumerate() {
                    let url = format!("{scheme}://{at}/iqn.2026-01.example.millrace:{name}/0{options}");
                    let read = read_block(&url).await;
                    match read {
                        Ok(()) => assert!(protection >= wanted, "{url}"),
                        Err(e) => {
                            assert!(protection < wanted && e.contains("if the target wants"), "{url}: {e}");
                        }
                    }
                }
            }
            // Without the name, and with a server that has no TLS: with the cause, and never in the clear.
            let name = "iqn.2026-01.example.millrace:none/0?xprtsec=tls";
            let ca = format!("tls_ca={}", files.certificate.display());
            let e = read_block(&format!("{scheme}://{at}/{name}&{ca}")).await.unwrap_err();
            assert!(e.contains(&format!("is not for {}", at.ip())) && e.contains("tls_name=NAME"), "{e}");
        }
        // The server may count it after the client has the error.
        while server.stats().tls.failed < 2 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let clear =
            Config { tls: None, targets: vec![target("none", TransportSecurity::None)], ..start.clone() };
        server.reload(&clear).unwrap();
        for (scheme, at) in addresses {
            let url = format!("{scheme}://{at}/iqn.2026-01.example.millrace:none/0?xprtsec=tls&{ca}");
            let e = read_block(&url).await.unwrap_err();
            assert!(e.contains("only Millrace with [tls]"), "{e}");
        }
        server.stop(Duration::from_secs(5)).await;
        let wanting = Config { targets: vec![target("tls", TransportSecurity::Tls)], ..clear };
        let found = &wanting.invalid_settings()[0];
        assert_eq!(found.field, "targets.0.xprtsec");
        assert!(found.reason.contains("there is no [tls]"), "{}", found.reason);
    });
}

/// Logs in over a stream, and returns what the target sends after that until it closes the connection.
async fn sent_after_login(
    mut stream: Box<dyn ByteStream>,
    target: &str,
    then: impl FnOnce(),
) -> Vec<Response> {
    let config = LoginConfig {
        initiator: "iqn.2026-01.example:host".parse().unwrap(),
        target: Some(target.parse().unwrap()),
        isid: Isid([0x80, 0, 0, 0, 0, 1]),
        cid: 1,
        cmd_sn: 1,
        settings: Settings::default(),
        chap: None,
        random: [7; 33],
        redirects: 0,
    };
    let (mut input, mut output) = (Input::new(PduReader::new(MAX_LOGIN_DATA)), Output::default());
    let (mut login, mut pdu) = InitiatorLogin::new(config);
    loop {
        output.push(&pdu.bhs, Segment::Bytes(pdu.data), 0);
        poll_fn(|cx| output.poll_flush(cx, &mut *stream)).await.unwrap();
        let (bhs, data) = input.receive(&mut *stream).await.unwrap();
        match login.receive(&bhs, &data).unwrap() {
            InitiatorStep::Send(next) => pdu = next,
            InitiatorStep::Established(_) => break,
            InitiatorStep::Redirect { .. } => panic!("redirected"),
        }
    }
    then();
    let mut sent = Vec::new();
    while let Ok((bhs, _)) = input.receive(&mut *stream).await {
        sent.push(Response::decode(&bhs).unwrap());
    }
    sent
}

#[test]
fn a_session_whose_certificate_is_revoked_is_not_asked_to_end() {
    run(async {
        let dir = tempfile::tempdir().unwrap();
        let ca = Authority::new(dir.path());
        let own = ca.issue("host", 7);
        let files = ServerFiles { client_ca: Some(ca.file()), ..issue(dir.path(), "server", "nfs.test") };
        let mut target =
            TargetSettings::new(target_name("disk").unwrap(), vec!["/x/disk,size=1MiB".parse().unwrap()]);
        target.xprtsec = TransportSecurity::Mtls;
        let start = Config {
            targets: vec![target],
            listen_iscsi: Some(([127, 0, 0, 1], 0).into()),
            tls: Some(files.clone()),
            ..config(&["/x=memory:16MiB"])
        };
        let mut server = Server::start(start.clone()).unwrap();
        let certificate = Some((own.certificate, own.key));
        let client =
            ClientConfig::load(&ClientFiles { ca: Some(files.certificate.clone()), certificate }).unwrap();
        let stream = Box::new(TcpByteStream::connect(server.iscsi_addr().unwrap()).await.unwrap());
        let name = PeerName::parse("nfs.test").unwrap();
        let stream = TlsStream::connect(stream, &client.for_protocol(Protocol::Iscsi), &name).await.unwrap();
        let revoked = Config { tls: Some(ServerFiles { client_crl: Some(ca.revoke(7)), ..files }), ..start };
        let sent = sent_after_login(Box::new(stream), "iqn.2026-01.example.millrace:disk", || {
            server.reload(&revoked).unwrap();
        })
        .await;
        assert_eq!(sent, []);
        server.stop(Duration::from_secs(5)).await;
    });
}

#[test]
fn sessions_end_if_a_reload_makes_their_target_want_more_protection() {
    run(async {
        let dir = tempfile::tempdir().unwrap();
        let target = |xprtsec| TargetSettings {
            xprtsec,
            ..TargetSettings::new(target_name("disk").unwrap(), vec!["/x/disk,size=1MiB".parse().unwrap()])
        };
        let start = Config {
            targets: vec![target(TransportSecurity::None)],
            listen_iscsi: Some(([127, 0, 0, 1], 0).into()),
            listen_iser: Some(([127, 0, 0, 1], 0).into()),
            provider: ProviderChoice::Iwarp,
            tls: Some(issue(dir.path(), "server", "nfs.test")),
            ..config(&["/x=memory:16MiB"])
        };
        let mut server = Server::start(start.clone()).unwrap();
        let at = server.iscsi_addr().unwrap();
        let mut devices = Vec::new();
        for scheme in ["iscsi", "iser"] {
            let url = format!("{scheme}://{at}/iqn.2026-01.example.millrace:disk/0");
            let mut options = millrace_iscsi_initiator::Options::default();
            (options.timeout, options.provider) = (Duration::from_secs(1), ProviderChoice::Iwarp);
            let device = BlockDevice::connect(&url.parse().unwrap(), &options).await.unwrap();
            device.read_at_into(0, device.buffer(4096).unwrap()).await.unwrap();
            devices.push(device);
        }
        let raised = Config { targets: vec![target(TransportSecurity::Tls)], ..start };
        server.reload(&raised).unwrap();
        for device in devices {
            let e = device.read_at_into(0, device.buffer(4096).unwrap()).await.unwrap_err().to_string();
            assert!(e.contains("if the target wants"), "{e}");
        }
        server.stop(Duration::from_secs(5)).await;
    });
}
