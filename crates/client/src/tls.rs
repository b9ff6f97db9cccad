//! TLS of a client's connections (RFC 9289).

use millrace_oncrpc::tcp::{StartTlsError, start_tls};
use millrace_runtime::ByteStream;
use millrace_tls::{Protocol, Tls, TlsError, TlsStream};

type Cause = Box<dyn std::error::Error + Send + Sync>;

/// What to do about a server without TLS.
const NOT_OFFERED: &str = "add [tls] to the configuration of the server, or use xprtsec=none if a host in between may read all data";
/// Likewise over RDMA.
const IWARP_NOT_OFFERED: &str = "only Millrace with [tls] in its configuration has it over RDMA; use proto=tcp with other servers, or xprtsec=none if a host in between may read all data";

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

/// Makes a connection over TCP to `host` have the stated protection, before any call; `version` is one of NFS.
///
/// # Errors
/// The reason, and what can be done; the stream is closed.
pub(crate) async fn protect(
    tls: &Tls,
    stream: Box<dyn ByteStream>,
    host: &str,
    version: u32,
) -> Result<Box<dyn ByteStream>, Cause> {
    if !tls.is_used() {
        return Ok(stream);
    }
    let (config, name) = tls.load(host)?;
    let started = start_tls(stream, (millrace_nfs::v3::PROGRAM, version), &config, &name).await;
    started.map_err(|source| failure(tls, source, NOT_OFFERED))
}

/// Likewise for the stream below iWARP, on which the handshake is the first that both ends send.
///
/// # Errors
/// The reason, and what can be done; the stream is closed.
pub(crate) async fn protect_iwarp(
    tls: &Tls,
    stream: Box<dyn ByteStream>,
    host: &str,
) -> Result<Box<dyn ByteStream>, Cause> {
    let (config, name) = tls.load(host)?;
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
            Err(failure(tls, source, IWARP_NOT_OFFERED))
        }
    }
}

fn failure(tls: &Tls, source: StartTlsError, not_offered: &'static str) -> Cause {
    let remedy = match &source {
        StartTlsError::NotOffered => not_offered,
        StartTlsError::Handshake(e) => tls.remedy(e),
        StartTlsError::Lost(_) | StartTlsError::Interrupted(_) => "",
    };
    TlsFailure { source, remedy }.into()
}
