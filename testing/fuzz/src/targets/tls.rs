//! A server with TLS (RFC 9289). Input: operations of a client: bytes of the stream, a probe, the messages of a right
//! handshake of which one byte may be changed, records with any content under the keys of the session, and calls. A probe is
//! answered as Linux does, the client beside it is served, and all memory is returned.
//!
//! The randomness of TLS has no seed: the same input has other bytes on the wire at each execution.

use std::{
    sync::{Arc, LazyLock},
    time::Duration,
};

use millrace_oncrpc::{Credential, call_header};
use millrace_runtime::RuntimeExt;
use millrace_tls::{ClientConfig, ClientFiles, PeerName, ServerConfig, ServerFiles, TlsAcceptor, TlsStats};
use ring::aead::{AES_128_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use rustls::{
    ClientConnection, ConnectionTrafficSecrets, RootCertStore,
    crypto::{
        CryptoProvider,
        ring::{cipher_suite::TLS13_AES_128_GCM_SHA256, default_provider},
    },
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
};

use super::{
    serving::{Connection, ECHO, PROGRAM, Server, VERSION, marked},
    xdr::encoded,
};
use crate::bytes::{Input, operations, words};

/// Maximum number of operations of one script.
const OPERATIONS: usize = 48;
/// Kinds of operations: bytes of the stream; a probe; a handshake (position and change of one byte, whether with the
/// client's certificate, how the bytes are divided); a record of any plaintext: content, type and padding; a call within
/// the session; another connection; a pause.
const BYTES: u8 = 0;
const PROBE: u8 = 1;
const HANDSHAKE: u8 = 2;
const RECORD: u8 = 3;
const CALL: u8 = 4;
const CONNECT: u8 = 5;
const PAUSE: u8 = 6;
const KINDS: u8 = 7;
/// The type of records of data.
const DATA: u8 = 23;

type Pair = (CertificateDer<'static>, PrivateKeyDer<'static>);

/// What all executions have in common: certificates for both ends, of which each is its own authority.
struct Files {
    server: ServerConfig,
    honest: ClientConfig,
    /// Clients without and with a certificate.
    clients: [Arc<rustls::ClientConfig>; 2],
}

static FILES: LazyLock<Files> = LazyLock::new(|| {
    let dir = tempfile::tempdir().expect("a directory");
    let issue = |name: &str| {
        let key = rcgen::KeyPair::generate().expect("a key");
        let params = rcgen::CertificateParams::new([name.to_owned()]).expect("a name");
        let (pem, secret) = (dir.path().join(format!("{name}.pem")), dir.path().join(format!("{name}.key")));
        std::fs::write(&pem, params.self_signed(&key).expect("a certificate").pem()).expect("a file");
        std::fs::write(&secret, key.serialize_pem()).expect("a file");
        (pem, secret)
    };
    let ((certificate, key), own) = (issue("nfs.test"), issue("client.test"));
    let pair = |(pem, secret): &(std::path::PathBuf, std::path::PathBuf)| -> Pair {
        let certificate = CertificateDer::from_pem_file(pem).expect("a certificate");
        (certificate, PrivateKeyDer::from_pem_file(secret).expect("a key"))
    };
    let client = |own: Option<Pair>| {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_file(&certificate).expect("a certificate")).expect("an authority");
        let provider = CryptoProvider { cipher_suites: vec![TLS13_AES_128_GCM_SHA256], ..default_provider() };
        let builder = rustls::ClientConfig::builder_with_provider(Arc::new(provider));
        let builder = builder.with_protocol_versions(&[&rustls::version::TLS13]).expect("a version");
        let builder = builder.with_root_certificates(roots);
        let mut config = match own {
            None => builder.with_no_client_auth(),
            Some((chain, key)) => builder.with_client_auth_cert(vec![chain], key).expect("a pair"),
        };
        config.alpn_protocols = vec![b"sunrpc".to_vec()];
        config.enable_secret_extraction = true;
        Arc::new(config)
    };
    let files = ClientFiles { ca: Some(certificate.clone()), certificate: None };
    Files {
        honest: ClientConfig::load(&files).expect("a client"),
        clients: [client(None), client(Some(pair(&own)))],
        server: ServerConfig::load(&ServerFiles {
            certificate,
            key,
            client_ca: Some(own.0),
            client_crl: None,
        })
        .expect("a server"),
    }
});

/// The sending direction of a session.
struct Seal {
    key: LessSafeKey,
    iv: [u8; 12],
    sequence: u64,
}

impl Seal {
    fn new(client: ClientConnection) -> Self {
        let (sequence, secrets) = client.dangerous_extract_secrets().expect("secrets").tx;
        let ConnectionTrafficSecrets::Aes128Gcm { key, iv } = secrets else { panic!("another cipher") };
        let key = UnboundKey::new(&AES_128_GCM, key.as_ref()).expect("a key");
        Self { key: LessSafeKey::new(key), iv: iv.as_ref().try_into().expect("an iv"), sequence }
    }

    /// The record with this plaintext: content, type, padding.
    fn record(&mut self, plain: &[u8]) -> Vec<u8> {
        let mut nonce = self.iv;
        for (byte, n) in nonce[4..].iter_mut().zip(self.sequence.to_be_bytes()) {
            *byte ^= n;
        }
        self.sequence += 1;
        let len = (plain.len() + 16) as u16;
        let header = [DATA, 3, 3, (len >> 8) as u8, len as u8];
        let (mut body, nonce) = (plain.to_vec(), Nonce::assume_unique_for_key(nonce));
        self.key.seal_in_place_append_tag(nonce, Aad::from(header), &mut body).expect("a record");
        [&header[..], &body].concat()
    }
}

fn probe() -> Vec<u8> {
    marked(&words(&[9, 0, 2, PROGRAM, VERSION, 0, 7, 0, 0, 0]))
}

/// The answer of a server with TLS, as that of Linux.
const ANSWER: &[u8] = b"\x80\0\0\x20\0\0\0\x09\0\0\0\x01\0\0\0\0\0\0\0\0\0\0\0\x08STARTTLS\0\0\0\0";

fn echo(word: u32) -> Vec<u8> {
    encoded(|e| {
        call_header(e, PROGRAM, VERSION, ECHO, &Credential::None);
        e.put_u32(word);
    })
}

/// A handshake after a probe that was answered. Returns the session, if it is open.
async fn shake(connection: &mut Connection, operand: &[u8]) -> Option<Seal> {
    let mut input = Input::new(operand);
    let (flags, at, change, piece) = (input.u8(), input.u16(), input.u8(), usize::from(input.u16()));
    let config = Arc::clone(&FILES.clients[usize::from(flags & 1)]);
    let mut client = ClientConnection::new(config, "nfs.test".try_into().expect("a name")).expect("a client");
    let (mut sent, mut unread) = (0, Vec::new());
    // Neither side has more than two flights.
    for _ in 0..8 {
        let mut bytes = Vec::new();
        while client.wants_write() {
            client.write_tls(&mut bytes).expect("memory");
        }
        if let Some(byte) = usize::from(at).checked_sub(sent).and_then(|at| bytes.get_mut(at)) {
            *byte ^= change;
        }
        sent += bytes.len();
        for piece in bytes.chunks(if piece == 0 { usize::MAX } else { piece.max(64) }) {
            unread.extend(connection.exchange(piece).await);
        }
        while !unread.is_empty() {
            let mut rest = &unread[..];
            client.read_tls(&mut rest).ok()?;
            let left = rest.len();
            unread.drain(..unread.len() - left);
            client.process_new_packets().ok()?;
        }
        if !client.is_handshaking() && !client.wants_write() {
            return Some(Seal::new(client));
        }
    }
    None
}

/// Makes a call that is right.
async fn expect_service(connection: &mut Connection, word: u32) {
    let reply = connection.call(&echo(word)).await.expect("a reply");
    assert!(reply.ends_with(&words(&[0, word])), "{reply:02x?}");
}

async fn attack(server: &Server, script: &[u8]) {
    let name = PeerName::parse("nfs.test").expect("a name");
    let stream = server.connect(1).stream;
    let stream = millrace_oncrpc::tcp::start_tls(stream, (PROGRAM, VERSION), &FILES.honest, &name).await;
    let mut honest = server.over(stream.expect("a session"));
    expect_service(&mut honest, 0x1234_0000).await;
    let (mut connection, mut session, mut is_new) = (server.connect(2), None, true);
    let mut script = Input::new(script);
    for _ in 0..OPERATIONS {
        let Some((kind, operand)) = script.operation() else { break };
        match kind % KINDS {
            PROBE => {
                let answer = connection.exchange(&probe()).await;
                assert!(!is_new || answer == ANSWER, "{answer:02x?}");
            }
            HANDSHAKE => session = shake(&mut connection, operand).await.or(session),
            RECORD => {
                if let Some(session) = &mut session {
                    connection.exchange(&session.record(operand)).await;
                }
            }
            CALL => match &mut session {
                Some(session) => {
                    let plain = [&marked(&echo(4))[..], &[DATA]].concat();
                    connection.exchange(&session.record(&plain)).await;
                }
                None => drop(connection.exchange(&marked(&echo(4))).await),
            },
            CONNECT => {
                (connection, session, is_new) = (server.connect(2), None, true);
                continue;
            }
            PAUSE => {
                server.rt.sleep(Duration::from_millis(10 * u64::from(Input::new(operand).u8()))).await;
                continue;
            }
            _ => drop(connection.exchange(operand).await),
        }
        is_new = false;
    }
    expect_service(&mut honest, 0x4321_0000).await;
}

/// Executes the target with `input`.
pub(super) fn run(input: &[u8]) {
    let tls = Arc::new(TlsAcceptor::default());
    tls.set(Some(FILES.server.clone()));
    let server = Server::new(|config, _| config.tls = Arc::clone(&tls));
    server.run(attack(&server, input));
    let TlsStats { open_tls, open_mtls, .. } = tls.stats();
    assert_eq!((open_tls, open_mtls), (0, 0), "open sessions");
}

/// Sessions with and without a certificate, in pieces and with changes, and records that have no place in them.
pub(super) fn seeds() -> Vec<Vec<u8>> {
    let none: &[u8] = &[];
    let record = |kind: u8, content: &[u8], padding: usize| [content, &[kind], &vec![0; padding]].concat();
    let records = [
        record(DATA, &marked(&echo(6)), 100),
        record(DATA, &[], 0),
        record(22, &[24, 0, 0, 1, 1], 0),
        record(22, &[24, 0], 0),
        record(22, &[1, 0, 0, 2, 3, 3], 0),
        record(21, &[1, 90], 0),
        record(25, b"x", 0),
        vec![0; 40],
        vec![7; 16_500],
        record(21, &[1, 0], 0),
        record(DATA, b"behind", 0),
    ];
    let mut seeds = Vec::new();
    for flags in 0..2 {
        for piece in [0, 64, 300] {
            let [high, low] = u16::to_be_bytes(piece);
            let right = [flags, 0, 0, 0, high, low];
            let changed = [flags, 0, 60, 1, high, low];
            let mut script: Vec<(u8, &[u8])> = vec![(PROBE, none), (HANDSHAKE, &right), (CALL, none)];
            for record in &records {
                script.extend([(RECORD, &record[..]), (CALL, none)]);
            }
            script.extend([
                (CONNECT, none),
                (PROBE, none),
                (HANDSHAKE, &changed),
                (CALL, none),
                (CONNECT, none),
                (CALL, none),
                (PROBE, none),
                (PROBE, none),
                (CONNECT, none),
                (PROBE, none),
                (BYTES, b"\x16\x03\x01\x40\x00"),
                (PAUSE, &[200]),
                (PAUSE, &[200]),
                (PAUSE, &[200]),
            ]);
            seeds.push(operations(&script));
        }
    }
    // A probe with a call behind it in one piece.
    seeds.push(operations(&[(BYTES, &[probe(), marked(&echo(8))].concat())]));
    seeds
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The seeds reach what they are for.
    #[test]
    fn a_right_handshake_opens_a_session() {
        for flags in [0, 1] {
            let tls = Arc::new(TlsAcceptor::default());
            tls.set(Some(FILES.server.clone()));
            let server = Server::new(|config, _| config.tls = Arc::clone(&tls));
            server.run(async {
                let mut connection = server.connect(2);
                assert_eq!(connection.exchange(&probe()).await, ANSWER);
                let mut session = shake(&mut connection, &[flags, 0, 0, 0, 0, 100]).await.expect("a session");
                let stats = tls.stats();
                assert_eq!((stats.open_tls, stats.open_mtls), (1 - u64::from(flags), flags.into()));
                let plain = [&marked(&echo(4))[..], &[DATA]].concat();
                assert_ne!(connection.exchange(&session.record(&plain)).await, [0; 0]);
            });
        }
    }
}
