//! TLS: the options, the reasons of refusals, and reconnections, which never fall back to the clear.

use std::{net::SocketAddr, path::Path, time::Duration};

use millrace_client::{Client, Error, RetryPolicy, nfs::v3::Procedure};
use millrace_rdma_providers::ProviderChoice;
use millrace_server::{Config, Running, Server, ServerFiles};
use rcgen::{CertificateParams, DnType, KeyPair};

use crate::common::{VERSIONS, run};

/// Writes a certificate that is its own authority, for this name; returns its files.
fn issue(dir: &Path, file: &str, name: &str) -> ServerFiles {
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new([name.to_owned()]).unwrap();
    params.distinguished_name.push(DnType::CommonName, format!("{file} {name}"));
    let at = |end: &str| dir.join(format!("{file}.{end}"));
    std::fs::write(at("pem"), params.self_signed(&key).unwrap().pem()).unwrap();
    std::fs::write(at("key"), key.serialize_pem()).unwrap();
    ServerFiles { certificate: at("pem"), key: at("key"), client_ca: None, client_crl: None }
}

/// A server over TCP at `at`, and over iWARP at any port.
fn start(at: SocketAddr, tls: Option<ServerFiles>, exports: &[&str]) -> Running {
    start_at(at, ANY, tls, exports)
}

fn start_at(tcp: SocketAddr, rdma: SocketAddr, tls: Option<ServerFiles>, exports: &[&str]) -> Running {
    let config = Config {
        exports: exports.iter().map(|e| e.parse().unwrap()).collect(),
        listen_tcp: vec![tcp],
        listen_rdma: vec![rdma],
        provider: ProviderChoice::Iwarp,
        shards: Some(1),
        tls,
        ..Config::default()
    };
    Server::start(config).unwrap()
}

const ANY: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 0);

#[test]
fn files_are_read_and_written_with_tls_and_with_mutual_tls() {
    let dir = tempfile::tempdir().unwrap();
    let client = issue(dir.path(), "client", "client.test");
    let mut files = issue(dir.path(), "server", "127.0.0.1");
    files.client_ca = Some(client.certificate.clone());
    let server =
        start(ANY, Some(files.clone()), &["/t=memory:16MiB,xprtsec=tls", "/m=memory:16MiB,xprtsec=mtls"]);
    let (tcp, rdma) = (server.tcp_addr().unwrap(), server.rdma_addr().unwrap());
    let ca = files.certificate.display();
    let own = format!("tls_cert={}&tls_key={}", client.certificate.display(), client.key.display());
    run(async {
        for (version, at, options_of_proto) in VERSIONS.into_iter().flat_map(|version| {
            [(version, tcp, "proto=tcp"), (version, rdma, "proto=rdma"), (version, rdma, "")]
        }) {
            for (export, options) in [
                ("t", format!("xprtsec=tls&tls_ca={ca}&nconnect=2")),
                ("t", format!("xprtsec=mtls&tls_ca={ca}&{own}")),
                ("m", format!("xprtsec=mtls&tls_ca={ca}&{own}")),
            ] {
                let url = format!("nfs://{at}/{export}?vers={version}&{options}&{options_of_proto}");
                let client = Client::connect(url.as_str()).await.unwrap();
                let data: Vec<u8> = (0..3_000_000u32).map(|i| (i * 7 + i / 65_536) as u8).collect();
                client.write("f", &data).await.unwrap();
                assert!(client.read("f").await.unwrap() == data, "{url}");
            }
            // In the clear, or without a certificate, the same files are refused.
            for (export, options) in [("t", String::new()), ("m", format!("xprtsec=tls&tls_ca={ca}"))] {
                let url = format!("nfs://{at}/{export}?vers={version}&{options}&{options_of_proto}");
                let refused = match Client::connect(url.as_str()).await {
                    Ok(client) => client.read("f").await.map(|_| ()),
                    Err(e) => Err(e),
                };
                assert!(refused.is_err(), "{url}");
            }
        }
    });
    server.stop_blocking(Duration::from_secs(1));
}

#[test]
fn a_failed_handshake_is_explained_with_a_remedy() {
    let dir = tempfile::tempdir().unwrap();
    let files = issue(dir.path(), "server", "nfs.test");
    let other = issue(dir.path(), "other", "nfs.test");
    let server = start(ANY, Some(files.clone()), &["/t=memory:16MiB"]);
    let plain = start(ANY, None, &["/t=memory:16MiB"]);
    let (at, clear) = (server.tcp_addr().unwrap(), plain.tcp_addr().unwrap());
    let (at_rdma, clear_rdma) = (server.rdma_addr().unwrap(), plain.rdma_addr().unwrap());
    let ca = files.certificate.display();
    run(async {
        for (url, parts) in [
            (
                format!("nfs://{at_rdma}/t?xprtsec=tls&proto=rdma&tls_ca={ca}"),
                ["certificate of the server is not for 127.0.0.1, but for", "tls_name=NAME"],
            ),
            (
                format!("nfs://{at_rdma}/t?xprtsec=tls&tls_ca={ca}"),
                ["certificate of the server is not for 127.0.0.1, but for", "tls_name=NAME"],
            ),
            (
                format!("nfs://{clear_rdma}/t?xprtsec=tls&proto=rdma&tls_ca={ca}"),
                ["the server does not offer TLS", "use proto=tcp with other servers"],
            ),
            (
                // A server of TCP does not take the handshake for a call.
                format!("nfs://{clear}/t?xprtsec=tls&proto=rdma&tls_ca={ca}"),
                ["the server does not offer TLS", "use proto=tcp with other servers"],
            ),
            (
                format!("nfs://{at}/t?xprtsec=tls&tls_ca={ca}"),
                ["certificate of the server is not for 127.0.0.1, but for", "tls_name=NAME"],
            ),
            (
                format!("nfs://{at}/t?xprtsec=tls&tls_name=nfs.test&tls_ca={}", other.certificate.display()),
                ["not issued by a trusted authority", "add its authority to the file of tls_ca"],
            ),
            (
                format!("nfs://{clear}/t?xprtsec=tls&tls_ca={ca}"),
                ["the server does not offer TLS", "add [tls] to the configuration of the server"],
            ),
            (
                format!("nfs://{at}/t?xprtsec=mtls"),
                ["needs a certificate of this client", "tls_cert=FILE and tls_key=FILE"],
            ),
            (format!("nfs://{at}/t?tls_ca={ca}"), ["tls_ca has no effect without TLS", "add xprtsec=tls"]),
            (
                format!("nfs://{at}/t?xprtsec=tls&provider=verbs"),
                ["xprtsec=tls is not possible on RDMA adapters", "use proto=tcp, provider=iwarp"],
            ),
            (format!("nfs://{at}/t?xprtsec=tls&tls_ca=/none.pem"), ["cannot read /none.pem", "No such file"]),
        ] {
            let e = Client::builder(url.as_str()).retry(RetryPolicy::NONE).connect().await.err().unwrap();
            assert!(!e.is_unreachable(), "{url}: a retry has the same result");
            let e = e.to_string();
            assert!(parts.iter().all(|part| e.contains(part)), "{url}: {e}");
            assert!(!e.contains("check that the server runs"), "{url}: {e}");
        }
        // With the right name all is well.
        let url = format!("nfs://{at}/t?xprtsec=tls&tls_name=nfs.test&tls_ca={ca}");
        Client::connect(url.as_str()).await.unwrap().write("f", b"x").await.unwrap();
    });
    assert_eq!(plain.stats().total_calls(), 0);
    server.stop_blocking(Duration::from_secs(1));
    plain.stop_blocking(Duration::from_secs(1));
}

#[test]
fn a_reconnection_never_falls_back_to_the_clear_or_to_another_certificate() {
    for (version, proto) in VERSIONS.into_iter().flat_map(|version| [(version, "tcp"), (version, "rdma")]) {
        let dir = tempfile::tempdir().unwrap();
        let files = issue(dir.path(), "server", "nfs.test");
        let server = start(ANY, Some(files.clone()), &["/t=memory:16MiB"]);
        let (tcp, rdma) = (server.tcp_addr().unwrap(), server.rdma_addr().unwrap());
        let at = if proto == "tcp" { tcp } else { rdma };
        let ca = files.certificate.display();
        let url =
            format!("nfs://{at}/t?vers={version}&proto={proto}&xprtsec=tls&tls_name=nfs.test&tls_ca={ca}");
        run(async {
            let retry = RetryPolicy { max_elapsed: Duration::from_secs(1), ..RetryPolicy::default() };
            let client = Client::builder(url.as_str()).retry(retry).connect().await.unwrap();
            client.write("f", b"secret").await.unwrap();
            server.stop(Duration::from_secs(1)).await;
            // A server without TLS at the same address, as a host in between could imitate.
            let plain = start_at(tcp, rdma, None, &["/t=memory:16MiB"]);
            let e: Error = client.write("f", b"secret").await.unwrap_err();
            assert!(e.to_string().contains("does not offer TLS"), "{e}");
            // It has received the probes only.
            let stats = plain.stats();
            let probes = stats.calls_of(Procedure::Null);
            assert_eq!((stats.total_calls() - probes, stats.mount_calls, stats.bytes_written), (0, 0, 0));
            assert!(stats.nfs4_operations.iter().all(|(_, operation)| operation.calls == 0));
            plain.stop(Duration::from_secs(1)).await;
            // One with another certificate for the name.
            let other = issue(dir.path(), "other", "nfs.test");
            let other = start_at(tcp, rdma, Some(other), &["/t=memory:16MiB"]);
            let e: Error = client.write("f", b"secret").await.unwrap_err();
            assert!(e.to_string().contains("authority"), "{e}");
            let stats = other.stats();
            let calls = stats.total_calls() - stats.calls_of(Procedure::Null);
            assert_eq!((calls, stats.bytes_written, stats.tls.open_tls), (0, 0, 0));
            other.stop(Duration::from_secs(1)).await;
        });
    }
}
