//! TLS of a client's connections (RFC 9289).

use std::path::PathBuf;

use millrace_oncrpc::{
    TransportSecurity,
    tcp::{StartTlsError, start_tls},
};
use millrace_runtime::ByteStream;
use millrace_tls::{ClientConfig, ClientFiles, PeerName, Protocol, TlsError, TlsStream};

type Cause = Box<dyn std::error::Error + Send + Sync>;

/// What to do about a server without TLS over RDMA.
const IWARP_NOT_OFFERED: &str = "only Millrace with [tls] in its configuration has it over RDMA; use proto=tcp with other servers, or xprtsec=none if a host in between may read all data";

/// Protection of the transport of NFS calls, and the files that it needs. MOUNT and rpcbind on other ports are in the clear.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Tls {
    /// The protection (`xprtsec` of nfs(5)). With [`TransportSecurity::Mtls`] this client has a certificate. A connection
    /// without this protection is never used, also not after a reconnection.
    pub xprtsec: TransportSecurity,
    /// PEM of the authorities of the server's certificate; `None`: those that the system trusts.
    pub ca: Option<PathBuf>,
    /// PEM of the client's certificate.
    pub certificate: Option<PathBuf>,
    /// PEM of the client's private key.
    pub key: Option<PathBuf>,
    /// The name in the server's certificate; `None`: the host of the URL.
    pub name: Option<String>,
}

/// The reason why a connection has no TLS: the source of a failed connection's error.
#[derive(Debug, thiserror::Error)]
#[error("{source}{}{remedy}", if remedy.is_empty() { "" } else { "; " })]
pub struct TlsFailure {
    source: StartTlsError,
    remedy: &'static str,
}

impl TlsFailure {
    /// The step that failed: `offer`, `server certificate`, `client certificate` or `handshake`.
    pub fn step(&self) -> &'static str {
        match &self.source {
            StartTlsError::Lost(_) | StartTlsError::NotOffered => "offer",
            StartTlsError::Handshake(e) if e.is_certificate() => "server certificate",
            StartTlsError::Handshake(e) if e.is_about_certificate() => "client certificate",
            StartTlsError::Handshake(_) | StartTlsError::Interrupted(_) => "handshake",
        }
    }

    /// Whether the server has answered, so that another transport must not hide the failure. `asked`: it was asked for TLS; a
    /// server that is not, over RDMA, only ends the connection.
    pub(crate) fn is_answer(&self, asked: bool) -> bool {
        match self.source {
            StartTlsError::NotOffered => asked,
            StartTlsError::Handshake(_) => true,
            StartTlsError::Lost(_) | StartTlsError::Interrupted(_) => false,
        }
    }

    /// Whether another attempt fails too, unless certificates or settings change.
    pub(crate) fn is_final(&self) -> bool {
        matches!(self.source, StartTlsError::NotOffered | StartTlsError::Handshake(_))
    }

    /// What failed, without the remedy.
    pub fn reason(&self) -> String {
        self.source.to_string()
    }

    /// What can be done; empty if that is unknown.
    pub fn remedy(&self) -> &'static str {
        self.remedy
    }
}

impl Tls {
    /// Whether connections have TLS.
    pub(crate) fn is_used(&self) -> bool {
        self.xprtsec != TransportSecurity::None
    }

    /// Checks that the settings belong together. `over_adapter`: the stated provider of RDMA is `verbs`.
    ///
    /// # Errors
    /// The reason, and the required change.
    pub(crate) fn check(&self, over_adapter: bool) -> Result<(), String> {
        let files = [
            ("tls_ca", self.ca.is_some()),
            ("tls_cert", self.certificate.is_some()),
            ("tls_key", self.key.is_some()),
            ("tls_name", self.name.is_some()),
        ];
        let given = |name: &str| files.iter().any(|(file, given)| *file == name && *given);
        if let (false, Some((name, _))) = (self.is_used(), files.iter().find(|(_, given)| *given)) {
            return Err(format!("{name} has no effect without TLS; add xprtsec=tls or xprtsec=mtls"));
        }
        if self.is_used() && over_adapter {
            return Err(format!(
                "xprtsec={} is not possible on RDMA adapters; use proto=tcp, provider=iwarp with a Millrace server, or xprtsec=none",
                self.xprtsec
            ));
        }
        match (self.xprtsec, given("tls_cert"), given("tls_key")) {
            (_, true, false) => {
                Err("tls_cert needs the private key of the certificate; add tls_key=FILE".into())
            }
            (_, false, true) => Err("tls_key needs its certificate; add tls_cert=FILE".into()),
            (TransportSecurity::Mtls, false, false) => {
                Err("xprtsec=mtls needs a certificate of this client; add tls_cert=FILE and tls_key=FILE"
                    .into())
            }
            _ => Ok(()),
        }
    }

    /// Makes a connection over TCP to `host` have the stated protection, before any call; `version` is one of NFS.
    ///
    /// # Errors
    /// The reason, and what can be done; the stream is closed.
    pub(crate) async fn protect(
        &self,
        stream: Box<dyn ByteStream>,
        host: &str,
        version: u32,
    ) -> Result<Box<dyn ByteStream>, Cause> {
        if !self.is_used() {
            return Ok(stream);
        }
        let (config, name) = self.load(host)?;
        let started = start_tls(stream, (millrace_nfs::v3::PROGRAM, version), &config, &name).await;
        started.map_err(|source| {
            let remedy = self.remedy(&source);
            TlsFailure { source, remedy }.into()
        })
    }

    /// Likewise for the stream below iWARP, on which the handshake is the first that both ends send.
    ///
    /// # Errors
    /// The reason, and what can be done; the stream is closed.
    pub(crate) async fn protect_iwarp(
        &self,
        stream: Box<dyn ByteStream>,
        host: &str,
    ) -> Result<Box<dyn ByteStream>, Cause> {
        let (config, name) = self.load(host)?;
        match TlsStream::connect(stream, &config.for_protocol(Protocol::Iwarp), &name).await {
            Ok(stream) => Ok(Box::new(stream)),
            Err(e) => {
                let source = match StartTlsError::from(e) {
                    // Of a server that takes the first message for a request of MPA.
                    StartTlsError::Interrupted(_) | StartTlsError::Handshake(TlsError::Closed) => {
                        StartTlsError::NotOffered
                    }
                    source => source,
                };
                let remedy = match source {
                    StartTlsError::NotOffered => IWARP_NOT_OFFERED,
                    _ => self.remedy(&source),
                };
                Err(TlsFailure { source, remedy }.into())
            }
        }
    }

    /// The files and the name of the server. They are read for each connection, so that a reconnection has renewed
    /// certificates.
    fn load(&self, host: &str) -> Result<(ClientConfig, PeerName), Cause> {
        self.check(false)?;
        let certificate = self.certificate.clone().zip(self.key.clone());
        let config = ClientConfig::load(&ClientFiles { ca: self.ca.clone(), certificate })?;
        Ok((config, PeerName::parse(self.name.as_deref().unwrap_or(host))?))
    }

    fn remedy(&self, error: &StartTlsError) -> &'static str {
        match error {
            StartTlsError::NotOffered => {
                "add [tls] to the configuration of the server, or use xprtsec=none if a host in between may read all data"
            }
            StartTlsError::Handshake(TlsError::Name { .. }) => {
                "use a name of the certificate in the URL, or tls_name=NAME"
            }
            StartTlsError::Handshake(TlsError::UnknownIssuer) if self.ca.is_none() => {
                "name the file of its authority with tls_ca=FILE"
            }
            StartTlsError::Handshake(TlsError::UnknownIssuer) => "add its authority to the file of tls_ca",
            StartTlsError::Handshake(TlsError::Expired { .. }) => "renew the certificate of the server",
            StartTlsError::Handshake(e) if e.requires_certificate() => {
                "use xprtsec=mtls with tls_cert=FILE and tls_key=FILE"
            }
            _ => "",
        }
    }
}
