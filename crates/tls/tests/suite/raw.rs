//! A peer by rustls, whose records after the handshake are made by hand.

use std::{io::IoSliceMut, sync::Arc};

use millrace_tls::{ClientFiles, PeerName, Protocol, Session, TlsError};
use ring::aead::{AES_128_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use rustls::{
    CertificateCompressionAlgorithm, ClientConnection, Connection, ConnectionTrafficSecrets, RootCertStore,
    ServerConnection,
    compress::{CertCompressor, CompressionFailed, CompressionLevel},
    crypto::{
        CryptoProvider,
        ring::{cipher_suite::TLS13_AES_128_GCM_SHA256, default_provider},
    },
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
};

use crate::common::Authority;

const ALERT: u8 = 21;
const HANDSHAKE: u8 = 22;
const DATA: u8 = 23;

/// The sending direction of the peer.
struct Raw {
    key: LessSafeKey,
    iv: [u8; 12],
    sequence: u64,
}

impl Raw {
    fn new(peer: Connection) -> Self {
        let (sequence, secrets) = peer.dangerous_extract_secrets().unwrap().tx;
        let ConnectionTrafficSecrets::Aes128Gcm { key, iv } = secrets else { panic!("another cipher") };
        let key = LessSafeKey::new(UnboundKey::new(&AES_128_GCM, key.as_ref()).unwrap());
        Self { key, iv: iv.as_ref().try_into().unwrap(), sequence }
    }

    /// The record with this plaintext: content, type, padding.
    fn seal(&mut self, plain: &[u8]) -> Vec<u8> {
        let mut nonce = self.iv;
        for (byte, n) in nonce[4..].iter_mut().zip(self.sequence.to_be_bytes()) {
            *byte ^= n;
        }
        self.sequence += 1;
        let len = (plain.len() + 16) as u16;
        let header = [DATA, 3, 3, (len >> 8) as u8, len as u8];
        let mut body = plain.to_vec();
        let nonce = Nonce::assume_unique_for_key(nonce);
        self.key.seal_in_place_append_tag(nonce, Aad::from(header), &mut body).unwrap();
        [&header[..], &body].concat()
    }
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(CryptoProvider { cipher_suites: vec![TLS13_AES_128_GCM_SHA256], ..default_provider() })
}

fn give(session: &mut Session, bytes: &[u8]) {
    for part in bytes.chunks(8192) {
        session.space()[..part.len()].copy_from_slice(part);
        session.received(part.len());
    }
}

fn take(session: &mut Session) -> Vec<u8> {
    let bytes = session.outgoing().to_vec();
    session.sent(bytes.len());
    bytes
}

/// Drives the handshake of `peer` with `session`, to the end or the session's error.
fn shake(peer: &mut Connection, session: &mut Session) -> Result<(), TlsError> {
    loop {
        let mut bytes = Vec::new();
        while peer.wants_write() {
            peer.write_tls(&mut bytes).unwrap();
        }
        give(session, &bytes);
        let done = session.handshake()?;
        let answer = take(session);
        let mut rest = &answer[..];
        while !rest.is_empty() {
            peer.read_tls(&mut rest).unwrap();
            peer.process_new_packets().unwrap();
        }
        if done && !peer.is_handshaking() && !peer.wants_write() {
            return Ok(());
        }
    }
}

type Pair = (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>);

fn rustls_client_config(ca: &Authority, alpn: &[&[u8]], own: Option<Pair>) -> rustls::ClientConfig {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(ca.ca()).unwrap()).unwrap();
    let builder = rustls::ClientConfig::builder_with_provider(provider());
    let builder =
        builder.with_protocol_versions(&[&rustls::version::TLS13]).unwrap().with_root_certificates(roots);
    let mut config = match own {
        None => builder.with_no_client_auth(),
        Some((chain, key)) => builder.with_client_auth_cert(chain, key).unwrap(),
    };
    config.alpn_protocols = alpn.iter().map(|p| p.to_vec()).collect();
    config.enable_secret_extraction = true;
    config
}

fn rustls_client(ca: &Authority, alpn: &[&[u8]], own: Option<Pair>) -> Connection {
    let config = rustls_client_config(ca, alpn, own);
    ClientConnection::new(Arc::new(config), "nfs.test".try_into().unwrap()).unwrap().into()
}

fn rustls_server_config((chain, key): Pair) -> rustls::ServerConfig {
    let builder = rustls::ServerConfig::builder_with_provider(provider());
    let builder = builder.with_protocol_versions(&[&rustls::version::TLS13]).unwrap().with_no_client_auth();
    let mut config = builder.with_single_cert(chain, key).unwrap();
    config.alpn_protocols = vec![b"sunrpc".to_vec()];
    config.enable_secret_extraction = true;
    config.send_tls13_tickets = 0;
    config
}

/// A server and the direction to it.
fn open_server() -> (Session, Raw) {
    let ca = Authority::new();
    let mut session = Session::server(&ca.server(&["nfs.test"], |_| {})).unwrap();
    let mut peer = rustls_client(&ca, &[], None);
    shake(&mut peer, &mut session).unwrap();
    (session, Raw::new(peer))
}

fn read(session: &mut Session) -> Result<Option<Vec<u8>>, TlsError> {
    let mut buf = [0; 100];
    Ok(session.read(&mut [IoSliceMut::new(&mut buf)])?.map(|n| buf[..n].to_vec()))
}

/// Data, and a new record.
fn record(kind: u8, content: &[u8], padding: usize) -> Vec<u8> {
    [content, &[kind], &vec![0; padding]].concat()
}

#[test]
fn other_protocols_are_refused_and_none_is_accepted_for_rpc() {
    let ca = Authority::new();
    let rpc = ca.server(&["nfs.test"], |_| {});
    let direct = rpc.for_protocols(&[Protocol::Iwarp, Protocol::Iscsi]);
    let refused = Err(TlsError::Protocol);
    for (server, alpn, expected) in [
        (&rpc, &[][..], Ok(None)), // Linux.
        (&rpc, &[&b"h2"[..], b"sunrpc"], Ok(Some(Protocol::Rpc))),
        (&rpc, &[b"h2"], refused.clone()),
        (&rpc, &[b"millrace-iwarp/1"], refused.clone()),
        (&direct, &[b"millrace-iwarp/1"], Ok(Some(Protocol::Iwarp))),
        (&direct, &[b"millrace-iscsi/1"], Ok(Some(Protocol::Iscsi))),
        (&direct, &[b"sunrpc"], refused.clone()),
        (&direct, &[], refused),
    ] {
        let (mut session, mut peer) = (Session::server(server).unwrap(), rustls_client(&ca, alpn, None));
        let result = shake(&mut peer, &mut session).map(|()| session.protocol());
        assert_eq!(result, expected, "{alpn:?}");
        if expected.is_err() && !alpn.is_empty() {
            let answer = take(&mut session);
            peer.read_tls(&mut &answer[..]).unwrap();
            let alert = rustls::Error::AlertReceived(rustls::AlertDescription::NoApplicationProtocol);
            assert_eq!(peer.process_new_packets().unwrap_err(), alert);
        }
    }
}

#[test]
fn records_without_data_are_limited() {
    // Data of no bytes, with and without padding; empty alerts that only warn.
    for plain in [record(DATA, &[], 0), record(DATA, &[], 16_000), record(ALERT, &[1, 90], 3)] {
        let (mut session, mut raw) = open_server();
        let mut accepted = 0;
        let e = loop {
            give(&mut session, &raw.seal(&plain));
            match read(&mut session) {
                Ok(None) => accepted += 1,
                other => break other.unwrap_err(),
            }
        };
        assert_eq!(accepted, 32);
        assert!(e.to_string().contains("too many records without data"), "{e}");
    }
}

#[test]
fn padding_is_removed_and_records_of_it_are_refused() {
    let (mut session, mut raw) = open_server();
    give(&mut session, &raw.seal(&record(DATA, b"data", 10_000)));
    assert_eq!(read(&mut session), Ok(Some(b"data".to_vec())));
    give(&mut session, &raw.seal(&[0; 100]));
    assert!(read(&mut session).unwrap_err().to_string().contains("a record of padding"));
}

#[test]
fn what_has_no_place_after_the_handshake_is_refused() {
    let hello = [1, 0, 0, 2, 3, 3];
    for (kind, content, why) in [
        (25, &b"x"[..], "unknown type"),
        (HANDSHAKE, &[], "empty handshake record"),
        (HANDSHAKE, &hello, "no place after the handshake"), // Renegotiation.
        (HANDSHAKE, &[4, 0, 0, 1, 0], "no place after the handshake"), // A ticket, to a server.
        (HANDSHAKE, &[24, 0, 0, 1, 2], "invalid update"),
        (HANDSHAKE, &[24, 0, 0, 1, 0, 24, 0, 0, 1, 0], "invalid update"),
        (ALERT, &[1], "no alert"),
    ] {
        let (mut session, mut raw) = open_server();
        give(&mut session, &raw.seal(&record(kind, content, 0)));
        let e = read(&mut session).unwrap_err().to_string();
        assert!(e.contains(why), "{kind} {content:?}: {e}");
    }
    // Data within a handshake message.
    let (mut session, mut raw) = open_server();
    give(&mut session, &raw.seal(&record(HANDSHAKE, &[24, 0], 0)));
    assert_eq!(read(&mut session), Ok(None));
    give(&mut session, &raw.seal(&record(DATA, b"x", 0)));
    assert!(read(&mut session).unwrap_err().to_string().contains("data within a handshake message"));
}

#[test]
fn data_ends_with_the_closure_alert() {
    let (mut session, mut raw) = open_server();
    give(&mut session, &raw.seal(&record(DATA, b"last", 0)));
    give(&mut session, &raw.seal(&record(ALERT, &[1, 0], 0)));
    give(&mut session, &raw.seal(&record(DATA, b"behind", 0)));
    assert_eq!(read(&mut session), Ok(Some(b"last".to_vec())));
    for _ in 0..3 {
        assert_eq!(read(&mut session), Ok(Some(Vec::new())));
    }
    let (mut session, mut raw) = open_server();
    give(&mut session, &raw.seal(&record(ALERT, &[2, 80], 0)));
    assert_eq!(read(&mut session), Err(TlsError::Alert(80)));
}

#[test]
fn tickets_are_discarded_and_limited() {
    let ca = Authority::new();
    let (certificate, key) = ca.issue("server", &["nfs.test"], |_| {});
    let chain = vec![CertificateDer::from_pem_file(certificate).unwrap()];
    let config = rustls_server_config((chain, PrivateKeyDer::from_pem_file(key).unwrap()));
    let mut peer = Connection::from(ServerConnection::new(Arc::new(config)).unwrap());
    let client =
        millrace_tls::ClientConfig::load(&ClientFiles { ca: Some(ca.ca()), certificate: None }).unwrap();
    let mut session = Session::client(&client, &PeerName::parse("nfs.test").unwrap()).unwrap();
    shake(&mut peer, &mut session).unwrap();
    let mut raw = Raw::new(peer);
    let ticket = [&[4, 0, 0x20, 0][..], &[7; 0x2000]].concat();
    for _ in 0..1000 {
        give(&mut session, &raw.seal(&record(HANDSHAKE, &ticket[..100], 0)));
        give(&mut session, &raw.seal(&record(HANDSHAKE, &ticket[100..], 0)));
        give(&mut session, &raw.seal(&record(DATA, b"x", 0)));
        assert_eq!(read(&mut session), Ok(Some(b"x".to_vec())));
    }
    let mut accepted = 0;
    while let Ok(None) = read(&mut session) {
        give(&mut session, &raw.seal(&record(HANDSHAKE, &ticket, 0)));
        accepted += 1;
    }
    assert_eq!(accepted, 33);
}

/// A peer that would compress its certificate (RFC 8879).
#[derive(Debug)]
struct Compressor;

impl CertCompressor for Compressor {
    fn compress(&self, _: Vec<u8>, _: CompressionLevel) -> Result<Vec<u8>, CompressionFailed> {
        panic!("this end has offered to decompress certificates");
    }

    fn algorithm(&self) -> CertificateCompressionAlgorithm {
        CertificateCompressionAlgorithm::Zlib
    }
}

#[test]
fn no_end_offers_to_decompress_certificates() {
    let ca = Authority::new();
    let (certificate, key) = ca.issue("own", &["nfs.test"], |_| {});
    let own = || {
        let chain = vec![CertificateDer::from_pem_file(&certificate).unwrap()];
        (chain, PrivateKeyDer::from_pem_file(&key).unwrap())
    };
    let mut session = Session::server(&ca.server(&["nfs.test"], |_| {})).unwrap();
    let mut config = rustls_client_config(&ca, &[], Some(own()));
    config.cert_compressors = vec![&Compressor];
    let name = "nfs.test".try_into().unwrap();
    let mut peer = Connection::from(ClientConnection::new(Arc::new(config), name).unwrap());
    shake(&mut peer, &mut session).unwrap();
    assert!(session.client_certificate().is_some());

    let mut config = rustls_server_config(own());
    config.cert_compressors = vec![&Compressor];
    let mut peer = Connection::from(ServerConnection::new(Arc::new(config)).unwrap());
    let mut session = Session::client(&ca.client(None), &PeerName::parse("nfs.test").unwrap()).unwrap();
    shake(&mut peer, &mut session).unwrap();
}

#[test]
fn long_chains_of_a_client_are_bounded() {
    let ca = Authority::new();
    let (certificate, key) = ca.issue("client", &["client.test"], |_| {});
    let leaf = CertificateDer::from_pem_file(certificate).unwrap();
    let key = PrivateKeyDer::from_pem_file(key).unwrap();
    let others = Authority::new();
    let other = CertificateDer::from_pem_file(others.ca()).unwrap();
    let server = ca.server(&["nfs.test"], |_| {});
    let with = |more: usize| {
        let chain = std::iter::once(leaf.clone()).chain(std::iter::repeat_n(other.clone(), more)).collect();
        let mut session = Session::server(&server).unwrap();
        let done = shake(&mut rustls_client(&ca, &[], Some((chain, key.clone_key()))), &mut session);
        done.map(|()| session.client_certificate().unwrap().bytes())
    };
    // What is not between the certificate and its authority is only memory.
    let kept = with(100).unwrap();
    assert!(kept > 100 * other.len() && kept < 2 * 65_536, "{kept}");
    assert!(with(300).is_err(), "more than 64 KiB");
}
