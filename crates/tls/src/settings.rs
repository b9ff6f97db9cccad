//! The protection of transports, and a client's settings for it.

use std::{fmt, path::PathBuf, str::FromStr};

use crate::{ClientConfig, ClientFiles, ConfigError, PeerName, TlsError};

/// The protection of a transport, in increasing order. The text form is that of nfs(5) and exports(5) (`xprtsec`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum TransportSecurity {
    /// `none`: in the clear.
    #[default]
    None,
    /// `tls`: encrypted, with the server's certificate.
    Tls,
    /// `mtls`: encrypted, with certificates of both ends.
    Mtls,
}

impl TransportSecurity {
    /// The weakest in a list of text forms, such as that of exports(5): a stronger one is admitted as well.
    ///
    /// # Errors
    /// A protection that does not exist, or none at all.
    pub fn weakest<'l>(list: impl IntoIterator<Item = &'l str>) -> Result<Self, String> {
        let all = list.into_iter().map(str::parse).collect::<Result<Vec<Self>, _>>()?;
        all.into_iter().min().ok_or_else(|| "xprtsec is empty: write none, tls or mtls".into())
    }
}

impl FromStr for TransportSecurity {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        match s {
            "none" => Ok(Self::None),
            "tls" => Ok(Self::Tls),
            "mtls" => Ok(Self::Mtls),
            _ => Err(format!("`{s}` is not a transport security: write none, tls or mtls")),
        }
    }
}

impl fmt::Display for TransportSecurity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::None => "none",
            Self::Tls => "tls",
            Self::Mtls => "mtls",
        })
    }
}

/// The protection of a client's connections, and the files that it needs.
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

impl Tls {
    /// Whether connections have TLS.
    pub fn is_used(&self) -> bool {
        self.xprtsec != TransportSecurity::None
    }

    /// Checks that the settings belong together. `over_adapter`: the stated provider of RDMA is `verbs`.
    ///
    /// # Errors
    /// The reason, and the required change.
    pub fn check(&self, over_adapter: bool) -> Result<(), String> {
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

    /// The configuration of sessions with the server `host`, and its name. To be called for each connection, so that a
    /// reconnection has renewed certificates.
    ///
    /// # Errors
    /// [`ConfigError`].
    pub fn load(&self, host: &str) -> Result<(ClientConfig, PeerName), ConfigError> {
        self.check(false).map_err(ConfigError::Settings)?;
        let certificate = self.certificate.clone().zip(self.key.clone());
        let config = ClientConfig::load(&ClientFiles { ca: self.ca.clone(), certificate })?;
        Ok((config, PeerName::parse(self.name.as_deref().unwrap_or(host))?))
    }

    /// What can be done after a handshake has failed; empty if that is unknown.
    pub fn remedy(&self, error: &TlsError) -> &'static str {
        match error {
            TlsError::Name { .. } => "use a name of the certificate in the URL, or tls_name=NAME",
            TlsError::UnknownIssuer if self.ca.is_none() => "name the file of its authority with tls_ca=FILE",
            TlsError::UnknownIssuer => "add its authority to the file of tls_ca",
            TlsError::Expired { .. } => "renew the certificate of the server",
            e if e.requires_certificate() => "use xprtsec=mtls with tls_cert=FILE and tls_key=FILE",
            _ => "",
        }
    }
}
