//! Who may use the HTTP endpoint, and whether it is encrypted.

use std::{fs, io, net::SocketAddr, path::PathBuf};

use hyper::{HeaderMap, header::AUTHORIZATION};
use millrace_server::{InvalidSetting, ServerFiles};
use millrace_tls::{ConfigError, Protocol, ServerConfig};
use subtle::ConstantTimeEq;

/// Least bytes of a token.
const MIN_TOKEN: usize = 16;

/// Who may use the HTTP endpoint: with a token or the certificates of an authority, the holders of either. Probes
/// (`/healthz`, `/readyz`) need neither.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct MetricsAccess {
    /// The certificate, for HTTPS, and the authorities of clients; `None`: HTTP.
    pub tls: Option<ServerFiles>,
    /// The file of the token that requests have (`Authorization: Bearer`, RFC 6750).
    pub token_file: Option<PathBuf>,
    /// Whether an address that is not that of this host only is permitted without certificate and token.
    pub insecure: bool,
}

/// Why the files cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum AccessError {
    /// The certificate cannot be used.
    #[error("cannot use the certificate of [metrics_access]: {0}")]
    Tls(#[from] ConfigError),
    /// The token cannot be used.
    #[error("cannot use the token_file {file} of [metrics_access]: {reason}")]
    Token {
        /// The file.
        file: PathBuf,
        /// The reason.
        reason: String,
    },
}

impl MetricsAccess {
    /// Why the endpoint cannot have this address.
    pub(crate) fn invalid(&self, addr: Option<SocketAddr>) -> Option<InvalidSetting> {
        let addr = addr.filter(|addr| !addr.ip().to_canonical().is_loopback())?;
        let is_open = self.tls.is_none() && self.token_file.is_none() && !self.insecure;
        let what = format!(
            "metrics at {addr} can be read by other hosts, without encryption and token; give [metrics_access] \
             `certificate` and `key`, or a `token_file`, or confirm it with `insecure = true`"
        );
        is_open.then(|| InvalidSetting::new("metrics", what))
    }

    /// The settings whose files cannot be used.
    pub(crate) fn invalid_files(&self) -> Option<InvalidSetting> {
        Access::load(self).err().map(|e| {
            let key = if matches!(e, AccessError::Token { .. }) { "token_file" } else { "certificate" };
            InvalidSetting::new(format!("metrics_access.{key}"), e.to_string())
        })
    }
}

/// The content of the files.
#[derive(PartialEq, Eq)]
pub(crate) struct Access {
    settings: MetricsAccess,
    pub(crate) tls: Option<ServerConfig>,
    token: Option<Vec<u8>>,
    /// Whether clients can be known by a certificate.
    has_client_ca: bool,
}

impl Access {
    pub(crate) fn load(settings: &MetricsAccess) -> Result<Self, AccessError> {
        let tls = settings.tls.as_ref().map(ServerConfig::load).transpose()?;
        let tls = tls.map(|config| config.for_protocols(&[Protocol::Http]));
        let token = settings.token_file.as_ref().map(|file| {
            let failed = |reason| AccessError::Token { file: file.clone(), reason };
            let text = fs::read(file).map_err(|e: io::Error| failed(e.to_string()))?;
            let token = text.trim_ascii_end();
            let is_token = token.len() >= MIN_TOKEN && token.iter().all(u8::is_ascii_graphic);
            let what = format!("it has not at least {MIN_TOKEN} printable characters in one line");
            if is_token { Ok(token.to_vec()) } else { Err(failed(what)) }
        });
        let has_client_ca = settings.tls.as_ref().is_some_and(|files| files.client_ca.is_some());
        Ok(Self { settings: settings.clone(), tls, token: token.transpose()?, has_client_ca })
    }

    /// The same settings with what the files have now, if it differs.
    pub(crate) fn renewed(&self) -> Result<Option<Self>, AccessError> {
        Self::load(&self.settings).map(|new| (new != *self).then_some(new))
    }

    /// Whether a request with these headers, from a client that has proved a certificate or not, may see the statistics.
    pub(crate) fn admits(&self, headers: &HeaderMap, has_certificate: bool) -> bool {
        let is_open = self.token.is_none() && !self.has_client_ca;
        is_open || has_certificate || self.token.as_ref().is_some_and(|token| has_token(headers, token))
    }
}

/// Whether the request has the token. The time does not depend on its content.
fn has_token(headers: &HeaderMap, token: &[u8]) -> bool {
    const SCHEME: usize = "Bearer ".len();
    let stated = headers.get(AUTHORIZATION).and_then(|value| value.as_bytes().split_at_checked(SCHEME));
    stated.is_some_and(|(scheme, stated)| {
        scheme.eq_ignore_ascii_case(b"bearer ") && bool::from(stated.trim_ascii().ct_eq(token))
    })
}
