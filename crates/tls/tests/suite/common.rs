//! Certificates, and two ends that are driven alternately.

use std::{
    io::{self, IoSlice, IoSliceMut},
    path::PathBuf,
    task::{Context, Poll, Waker},
};

use millrace_runtime::{ByteStream, MemoryStream, memory_stream};
use millrace_tls::{ClientConfig, ClientFiles, PeerName, ServerConfig, ServerFiles, Session, TlsStream};
use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, IsCa, Issuer, KeyIdMethod, KeyPair,
    KeyUsagePurpose, RevokedCertParams, SanType, date_time_ymd,
};

/// An authority.
pub(crate) struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pem: String,
    dir: tempfile::TempDir,
}

impl Authority {
    pub(crate) fn new() -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        params.distinguished_name.push(
            rcgen::DnType::CommonName,
            key.public_key_raw()
                .iter()
                .fold(String::from("Authority "), |name, byte| format!("{name}{byte:02x}")),
        );
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let pem = params.self_signed(&key).unwrap().pem();
        let ca = Self { issuer: Issuer::new(params, key), pem, dir: tempfile::tempdir().unwrap() };
        std::fs::write(ca.ca(), &ca.pem).unwrap();
        ca
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// PEM of the authority.
    pub(crate) fn ca(&self) -> PathBuf {
        self.file("ca.pem")
    }

    /// Certificate and key for these names, with changes.
    pub(crate) fn issue(
        &self,
        file: &str,
        names: &[&str],
        change: impl FnOnce(&mut CertificateParams),
    ) -> (PathBuf, PathBuf) {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        for name in names {
            params.subject_alt_names.push(match name.parse() {
                Ok(address) => SanType::IpAddress(address),
                Err(_) => SanType::DnsName((*name).try_into().unwrap()),
            });
        }
        change(&mut params);
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        let (pem, secret) = (self.file(&format!("{file}.pem")), self.file(&format!("{file}.key")));
        std::fs::write(&pem, certificate.pem()).unwrap();
        std::fs::write(&secret, key.serialize_pem()).unwrap();
        (pem, secret)
    }

    /// A server's configuration for these names.
    pub(crate) fn server(&self, names: &[&str], change: impl FnOnce(&mut CertificateParams)) -> ServerConfig {
        let (certificate, key) = self.issue("server", names, change);
        let files = ServerFiles { certificate, key, client_ca: Some(self.ca()), client_crl: None };
        ServerConfig::load(&files).unwrap()
    }

    /// Writes a list with the revoked serial numbers.
    pub(crate) fn revoke(&self, serials: &[u64]) -> PathBuf {
        let now = date_time_ymd(2001, 1, 1);
        let revoked = |serial: &u64| RevokedCertParams {
            serial_number: (*serial).into(),
            revocation_time: now,
            reason_code: None,
            invalidity_date: None,
        };
        let list = CertificateRevocationListParams {
            this_update: now,
            next_update: date_time_ymd(2002, 1, 1),
            crl_number: 1.into(),
            issuing_distribution_point: None,
            revoked_certs: serials.iter().map(revoked).collect(),
            key_identifier_method: KeyIdMethod::Sha256,
        };
        let file = self.file("crl.pem");
        std::fs::write(&file, list.signed_by(&self.issuer).unwrap().pem().unwrap()).unwrap();
        file
    }

    /// A client's configuration, which trusts this authority.
    pub(crate) fn client(&self, certificate: Option<(PathBuf, PathBuf)>) -> ClientConfig {
        ClientConfig::load(&ClientFiles { ca: Some(self.ca()), certificate }).unwrap()
    }
}

pub(crate) fn expired(params: &mut CertificateParams) {
    (params.not_before, params.not_after) = (date_time_ymd(2001, 1, 1), date_time_ymd(2002, 1, 1));
}

pub(crate) fn future(params: &mut CertificateParams) {
    (params.not_before, params.not_after) = (date_time_ymd(2901, 1, 1), date_time_ymd(2902, 1, 1));
}

pub(crate) type End = TlsStream<MemoryStream>;

/// Both ends, before the handshake.
pub(crate) fn ends(client: &ClientConfig, server: &ServerConfig, name: &str, segment: usize) -> (End, End) {
    let (a, b) = memory_stream(1 << 20, segment);
    let client = Session::client(client, &PeerName::parse(name).unwrap()).unwrap();
    (TlsStream::new(a, client), TlsStream::new(b, Session::server(server).unwrap()))
}

/// Both ends of a server named `nfs.test`, after the handshake.
pub(crate) fn open(segment: usize) -> (End, End) {
    let ca = Authority::new();
    let (mut a, mut b) = ends(&ca.client(None), &ca.server(&["nfs.test"], |_| {}), "nfs.test", segment);
    let (ra, rb) = shake(&mut a, &mut b);
    ra.unwrap();
    rb.unwrap();
    (a, b)
}

pub(crate) fn cx() -> Context<'static> {
    Context::from_waker(Waker::noop())
}

/// Drives the handshake until both ends have a result.
pub(crate) fn shake(a: &mut End, b: &mut End) -> (io::Result<()>, io::Result<()>) {
    let (mut ra, mut rb) = (None, None);
    // A handshake has a few flights, with a few kilobytes, which may arrive byte by byte.
    for _ in 0..100_000 {
        for (end, result) in [(&mut *a, &mut ra), (&mut *b, &mut rb)] {
            if result.is_none()
                && let Poll::Ready(done) = end.poll_handshake(&mut cx())
            {
                *result = Some(done);
            }
            let _ = end.poll_flush(&mut cx());
        }
        if let (Some(ra), Some(rb)) = (&ra, &rb) {
            let copy = |r: &io::Result<()>| match r {
                Ok(()) => Ok(()),
                Err(e) => Err(io::Error::new(e.kind(), millrace_tls::TlsError::of(e).unwrap().clone())),
            };
            return (copy(ra), copy(rb));
        }
    }
    panic!("the handshake makes no progress: {ra:?}, {rb:?}");
}

pub(crate) fn read(end: &mut dyn ByteStream, buf: &mut [u8]) -> Poll<io::Result<usize>> {
    end.poll_read(&mut cx(), &mut [IoSliceMut::new(buf)])
}

pub(crate) fn write(end: &mut dyn ByteStream, buf: &[u8]) -> Poll<io::Result<usize>> {
    end.poll_write(&mut cx(), &[IoSlice::new(buf)])
}

/// Sends `data` from `a` to `b`, with reads of `piece` bytes.
pub(crate) fn send(a: &mut dyn ByteStream, b: &mut dyn ByteStream, data: &[u8], piece: usize) -> Vec<u8> {
    let (mut sent, mut got, mut buf) = (0, Vec::new(), vec![0; piece]);
    while got.len() < data.len() {
        if sent < data.len()
            && let Poll::Ready(n) = write(a, &data[sent..])
        {
            sent += n.unwrap();
        }
        let _ = a.poll_flush(&mut cx());
        while let Poll::Ready(n) = read(b, &mut buf) {
            let n = n.unwrap();
            assert!(n > 0, "the stream ended");
            got.extend_from_slice(&buf[..n]);
        }
    }
    got
}

/// Bytes that differ from their neighbours in each block.
pub(crate) fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 31 + i / 251) as u8).collect()
}
