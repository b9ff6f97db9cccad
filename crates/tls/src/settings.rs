//! The protection of transports, and a client's settings for it.

use std::{borrow::Cow, ffi::OsStr, fmt, path::PathBuf, str::FromStr};

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
    /// The protection (`xprtsec` of nfs(5)); `None`: not stated, and as [`TransportSecurity::None`]. With
    /// [`TransportSecurity::Mtls`] this client has a certificate. A connection without this protection is never used, also not
    /// after a reconnection.
    pub xprtsec: Option<TransportSecurity>,
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
    /// Sets the option `key` of a URL or of mount(8). Returns whether it is one of these settings.
    ///
    /// # Errors
    /// The reason why the value is invalid.
    pub fn set(&mut self, key: &str, value: &OsStr) -> Result<bool, String> {
        let text = || value.to_str().ok_or_else(|| format!("{key} is not UTF-8"));
        let file = || match value.is_empty() {
            true => Err(format!("{key} names no file")),
            false => Ok(Some(value.into())),
        };
        match key {
            "xprtsec" => self.xprtsec = Some(text()?.parse()?),
            "tls_ca" => self.ca = file()?,
            "tls_cert" => self.certificate = file()?,
            "tls_key" => self.key = file()?,
            "tls_name" => {
                PeerName::parse(text()?).map_err(|e| e.to_string())?;
                self.name = Some(text()?.into());
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// The stated settings, as [`Self::set`] has them.
    pub fn options(&self) -> impl Iterator<Item = (&'static str, Cow<'_, OsStr>)> {
        let Self { xprtsec, ca, certificate, key, name } = self;
        fn file(file: &Option<PathBuf>) -> Option<Cow<'_, OsStr>> {
            file.as_ref().map(|file| Cow::Borrowed(file.as_os_str()))
        }
        let options = [
            ("xprtsec", xprtsec.map(|xprtsec| Cow::Owned(xprtsec.to_string().into()))),
            ("tls_ca", file(ca)),
            ("tls_cert", file(certificate)),
            ("tls_key", file(key)),
            ("tls_name", name.as_ref().map(|name| Cow::Borrowed(name.as_ref()))),
        ];
        options.into_iter().filter_map(|(option, value)| Some((option, value?)))
    }

    /// These settings, and those of `other` that these do not state.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        Self {
            xprtsec: self.xprtsec.or(other.xprtsec),
            ca: self.ca.or(other.ca),
            certificate: self.certificate.or(other.certificate),
            key: self.key.or(other.key),
            name: self.name.or(other.name),
        }
    }

    /// The protection of connections.
    pub fn security(&self) -> TransportSecurity {
        self.xprtsec.unwrap_or_default()
    }

    /// Whether connections have TLS.
    pub fn is_used(&self) -> bool {
        self.security() != TransportSecurity::None
    }

    /// Checks that the settings belong together. `over_adapter`: the stated provider of RDMA is `verbs`.
    ///
    /// # Errors
    /// The reason, and the required change.
    pub fn check(&self, over_adapter: bool) -> Result<(), String> {
        let given = |name: &str| self.options().any(|(option, _)| option == name);
        let mut beside = self.options().filter(|(option, _)| *option != "xprtsec");
        if let (false, Some((name, _))) = (self.is_used(), beside.next()) {
            return Err(format!("{name} has no effect without TLS; add xprtsec=tls or xprtsec=mtls"));
        }
        if self.is_used() && over_adapter {
            return Err(format!(
                "xprtsec={} is not possible on RDMA adapters; use proto=tcp, provider=iwarp with a Millrace server, or xprtsec=none",
                self.security()
            ));
        }
        match (self.security(), given("tls_cert"), given("tls_key")) {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_set_and_shown_and_those_of_others_complete_them() {
        let options = [
            ("xprtsec", "mtls"),
            ("tls_ca", "/a b"),
            ("tls_cert", "c.pem"),
            ("tls_key", "k&.pem"),
            ("tls_name", "nfs.test"),
        ];
        let mut tls = Tls::default();
        for (key, value) in options {
            assert_eq!(tls.set(key, value.as_ref()), Ok(true), "{key}");
        }
        let shown: Vec<_> = tls.options().map(|(key, value)| (key, value.into_owned())).collect();
        assert_eq!(shown, options.map(|(key, value)| (key, value.into())));
        assert_eq!(tls.set("rsize", "1".as_ref()), Ok(false));
        for (key, value, why) in [
            ("xprtsec", "ssl", "write none, tls or mtls"),
            ("tls_ca", "", "names no file"),
            ("tls_name", "*.test", "neither a DNS name nor an IP address"),
        ] {
            assert!(tls.set(key, value.as_ref()).unwrap_err().contains(why), "{key}");
        }
        let mut clear = Tls::default();
        clear.set("xprtsec", "none".as_ref()).unwrap();
        // What is stated has precedence, also if it is no protection.
        assert_eq!(clear.clone().or(tls.clone()).security(), TransportSecurity::None);
        assert_eq!(Tls::default().or(tls.clone()), tls);
        assert_eq!(tls.clone().or(clear), tls);
        assert!(!Tls::default().is_used());
    }
}
