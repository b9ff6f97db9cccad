//! Who may use the HTTP endpoint.

use std::{
    fs,
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    path::{Path, PathBuf},
    sync::Arc,
};

use millrace_daemon::{Config, Daemon, DaemonError, MetricsAccess};
use millrace_runtime::tokio_rt::run_shard;
use millrace_server::ServerFiles;
use rcgen::{CertificateParams, KeyPair};
use rustls::{
    ClientConnection, RootCertStore, StreamOwned,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
};

fn config(metrics_access: MetricsAccess) -> Config {
    let local: SocketAddr = "127.0.0.1:0".parse().unwrap();
    let server = millrace_server::Config {
        exports: vec!["/x=memory:8MiB".parse().unwrap()],
        listen_tcp: vec![local],
        shards: Some(1),
        ..millrace_server::Config::default()
    };
    Config { server, metrics: Some(local), metrics_access, ..Config::default() }
}

/// The status of the answer to a request with these further headers.
fn status(mut stream: impl Read + Write, path: &str, headers: &str) -> String {
    let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\n{headers}\r\n");
    let mut answer = String::new();
    // A server that refuses the handshake answers nothing.
    let _ = stream.write_all(request.as_bytes()).and_then(|()| stream.read_to_string(&mut answer));
    answer.split(' ').nth(1).unwrap_or_default().to_owned()
}

fn clear(daemon: &Daemon) -> TcpStream {
    TcpStream::connect(daemon.metrics_addr().unwrap()).unwrap()
}

#[test]
fn a_token_is_wanted_for_the_statistics_and_not_for_probes() {
    run_shard(async {
        let dir = tempfile::tempdir().unwrap();
        let token_file = dir.path().join("token");
        fs::write(&token_file, "first-token-with-16\n").unwrap();
        let access = MetricsAccess { token_file: Some(token_file.clone()), ..MetricsAccess::default() };
        let mut daemon = Daemon::start(config(access.clone())).unwrap();
        let get = |daemon: &Daemon, path, token: &str| {
            status(clear(daemon), path, &format!("Authorization: Bearer {token}\r\n"))
        };
        for path in ["/metrics", "/"] {
            assert_eq!(status(clear(&daemon), path, ""), "401", "{path}");
            assert_eq!(status(clear(&daemon), path, "Authorization: Basic first-token-with-16\r\n"), "401");
            for wrong in ["", "first-token-with-1", "first-token-with-17", "first-token-with-166"] {
                assert_eq!(get(&daemon, path, wrong), "401", "{path} {wrong}");
            }
            assert_eq!(get(&daemon, path, "first-token-with-16"), "200", "{path}");
        }
        for path in ["/healthz", "/readyz"] {
            assert_eq!(status(clear(&daemon), path, ""), "200", "{path}");
        }
        fs::write(&token_file, "second-token-with-16").unwrap();
        daemon.reload(&config(access.clone())).unwrap();
        assert_eq!(get(&daemon, "/metrics", "first-token-with-16"), "401");
        assert_eq!(get(&daemon, "/metrics", "second-token-with-16"), "200");
        for bad in ["short", "", "two words in the line here"] {
            fs::write(&token_file, bad).unwrap();
            let e = daemon.reload(&config(access.clone())).unwrap_err();
            assert!(matches!(e, DaemonError::Access(_)) && e.to_string().contains("16 printable"), "{e}");
        }
        assert_eq!(get(&daemon, "/metrics", "second-token-with-16"), "200");
    })
    .unwrap();
}

/// Writes a certificate that is its own authority, and its key.
fn issue(dir: &Path, name: &str) -> (PathBuf, PathBuf) {
    let (key, files) =
        (KeyPair::generate().unwrap(), ["pem", "key"].map(|end| dir.join(format!("{name}.{end}"))));
    let params = CertificateParams::new([format!("{name}.test")]).unwrap();
    fs::write(&files[0], params.self_signed(&key).unwrap().pem()).unwrap();
    fs::write(&files[1], key.serialize_pem()).unwrap();
    files.into()
}

/// A connection with TLS to the server `server.test`, as Prometheus makes it.
fn encrypted(daemon: &Daemon, ca: &Path, own: Option<&(PathBuf, PathBuf)>) -> impl Read + Write {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(ca).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = rustls::ClientConfig::builder_with_provider(provider);
    let builder =
        builder.with_protocol_versions(&[&rustls::version::TLS13]).unwrap().with_root_certificates(roots);
    let mut config = match own {
        None => builder.with_no_client_auth(),
        Some((certificate, key)) => {
            let chain = vec![CertificateDer::from_pem_file(certificate).unwrap()];
            builder.with_client_auth_cert(chain, PrivateKeyDer::from_pem_file(key).unwrap()).unwrap()
        }
    };
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    let session = ClientConnection::new(Arc::new(config), "server.test".try_into().unwrap()).unwrap();
    StreamOwned::new(session, clear(daemon))
}

#[test]
fn a_client_certificate_is_as_good_as_a_token() {
    run_shard(async {
        let dir = tempfile::tempdir().unwrap();
        let (server, client, other) =
            (issue(dir.path(), "server"), issue(dir.path(), "client"), issue(dir.path(), "other"));
        let tls = |client_ca| {
            let (certificate, key) = server.clone();
            Some(ServerFiles { certificate, key, client_ca, client_crl: None })
        };
        let access = MetricsAccess { tls: tls(Some(client.0.clone())), ..MetricsAccess::default() };
        let daemon = Daemon::start(config(access)).unwrap();
        let get = |path, own| status(encrypted(&daemon, &server.0, own), path, "");
        for (path, without) in [("/metrics", "401"), ("/", "401"), ("/healthz", "200"), ("/readyz", "200")] {
            assert_eq!(get(path, None), without, "{path}");
            assert_eq!(get(path, Some(&client)), "200", "{path}");
        }
        assert_eq!(get("/metrics", Some(&other)), "");
        assert_eq!(status(clear(&daemon), "/metrics", ""), "", "in the clear");
        // Encryption alone.
        let daemon =
            Daemon::start(config(MetricsAccess { tls: tls(None), ..MetricsAccess::default() })).unwrap();
        assert_eq!(status(encrypted(&daemon, &server.0, None), "/metrics", ""), "200");
    })
    .unwrap();
}

#[test]
fn an_address_that_other_hosts_reach_is_protected_or_confirmed() {
    let check = |addr: &str, metrics_access| {
        let metrics = Some(addr.parse().unwrap());
        Config { metrics, ..config(metrics_access) }.check().map_err(|e| e.to_string())
    };
    let token = || MetricsAccess { token_file: Some("/x".into()), ..MetricsAccess::default() };
    let insecure = || MetricsAccess { insecure: true, ..MetricsAccess::default() };
    for addr in ["0.0.0.0:9464", "[::]:9464", "192.0.2.1:9464", "[::ffff:192.0.2.1]:9464"] {
        let e = check(addr, MetricsAccess::default()).unwrap_err();
        assert!(e.contains("token_file") && e.contains("insecure = true"), "{e}");
        assert_eq!((check(addr, token()), check(addr, insecure())), (Ok(()), Ok(())), "{addr}");
    }
    for addr in ["127.0.0.1:9464", "[::1]:9464", "[::ffff:127.0.0.1]:9464"] {
        assert_eq!(check(addr, MetricsAccess::default()), Ok(()), "{addr}");
    }
}
