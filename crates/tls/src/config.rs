//! Certificates, keys and authorities of the two roles, from files.

use std::{
    fmt, fs, io,
    path::{Path, PathBuf},
    sync::Arc,
};

use ring::digest::{Context, SHA256};
use rustls::{
    RootCertStore,
    client::{Resumption, WebPkiServerVerifier},
    crypto::{CryptoProvider, ring as provider},
    pki_types::{
        CertificateDer, CertificateRevocationListDer, PrivateKeyDer, ServerName, UnixTime,
        pem::{self, PemObject},
    },
    server::{
        NoServerSessionStorage, VerifierBuilderError, WebPkiClientVerifier, danger::ClientCertVerifier,
    },
    version::TLS13,
};

use crate::{PeerCertificate, TlsError, verifier::ExactNames};

/// What a session protects, as its ends say in ALPN (RFC 7301).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    /// RPC (RFC 9289 section 5). Linux does not name it, so a session without a name is one of RPC.
    Rpc,
    /// HTTP.
    Http,
    /// iWARP: MPA (RFC 5044) within TLS. No standard defines it, so its name is this project's, and both ends must state it.
    Iwarp,
    /// iSCSI over TCP, likewise.
    Iscsi,
}

impl Protocol {
    const ALL: [Self; 4] = [Self::Rpc, Self::Http, Self::Iwarp, Self::Iscsi];

    const fn name(self) -> &'static [u8] {
        match self {
            Self::Rpc => b"sunrpc",
            Self::Http => b"http/1.1",
            Self::Iwarp => b"millrace-iwarp/1",
            Self::Iscsi => b"millrace-iscsi/1",
        }
    }

    /// The protocol with this name.
    pub(crate) fn named(name: &[u8]) -> Option<Self> {
        Self::ALL.into_iter().find(|protocol| protocol.name() == name)
    }

    /// Whether a session without a name cannot be one of these.
    pub(crate) fn must_be_named(names: &[Vec<u8>]) -> bool {
        names.iter().all(|name| matches!(Self::named(name), Some(Self::Iwarp | Self::Iscsi)))
    }

    fn names(protocols: &[Self]) -> Vec<Vec<u8>> {
        protocols.iter().map(|protocol| protocol.name().into()).collect()
    }
}

/// The reason why a configuration cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// A file cannot be read.
    #[error("cannot read {file}: {error}")]
    Read {
        /// The file.
        file: PathBuf,
        /// The reason.
        error: io::Error,
    },
    /// A file has no certificate or no key.
    #[error("{file} has no {what} in PEM")]
    Empty {
        /// The file.
        file: PathBuf,
        /// What it should have.
        what: &'static str,
    },
    /// A file is damaged.
    #[error("{file} is not valid PEM: {reason}")]
    Pem {
        /// The file.
        file: PathBuf,
        /// The reason.
        reason: String,
    },
    /// A certificate of an authority cannot be used.
    #[error("{file} has a certificate that cannot be an authority: {reason}")]
    Authority {
        /// The file.
        file: PathBuf,
        /// The reason.
        reason: String,
    },
    /// A revocation list cannot be used.
    #[error("{file} has a revocation list that cannot be used: {reason}")]
    RevocationList {
        /// The file.
        file: PathBuf,
        /// The reason.
        reason: String,
    },
    /// Key and certificate do not belong together, or cannot be used.
    #[error("the key {key} cannot be used with the certificate {certificate}: {reason}")]
    Pair {
        /// The certificate's file.
        certificate: PathBuf,
        /// The key's file.
        key: PathBuf,
        /// The reason.
        reason: String,
    },
    /// The system has no trusted authorities.
    #[error("the system's store of trusted authorities is empty{0}")]
    SystemStore(String),
    /// Settings that contradict each other, with the required change.
    #[error("{0}")]
    Settings(String),
    /// A name that no certificate can have.
    #[error("{0:?} is neither a DNS name nor an IP address")]
    Name(String),
}

/// The files of a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerFiles {
    /// PEM of the server's certificate, followed by those between it and its authority.
    pub certificate: PathBuf,
    /// PEM of its private key.
    pub key: PathBuf,
    /// PEM of the authorities of client certificates. Without it, clients are not asked for a certificate.
    pub client_ca: Option<PathBuf>,
    /// PEM of the revocation lists of these authorities, one of each that issued a certificate in a client's chain. One
    /// without an update in time remains in force.
    pub client_crl: Option<PathBuf>,
}

/// The files of a client.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ClientFiles {
    /// PEM of the trusted authorities. Without it, those of the system are trusted.
    pub ca: Option<PathBuf>,
    /// PEM of the client's certificate, and of its private key.
    pub certificate: Option<(PathBuf, PathBuf)>,
}

/// What a server's sessions have in common. Two are equal if their files had the same content.
#[derive(Clone)]
pub struct ServerConfig {
    pub(crate) config: Arc<rustls::ServerConfig>,
    /// Verifies certificates of clients.
    clients: Option<Arc<dyn ClientCertVerifier>>,
    files: ServerFiles,
    /// Hash of the content of the files.
    content: [u8; 32],
}

impl PartialEq for ServerConfig {
    fn eq(&self, other: &Self) -> bool {
        self.content == other.content
    }
}

impl Eq for ServerConfig {}

/// What a client's sessions have in common.
#[derive(Clone)]
pub struct ClientConfig(pub(crate) Arc<rustls::ClientConfig>);

/// The name of a server in its certificate: a DNS name or an IP address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerName(pub(crate) ServerName<'static>);

impl PeerName {
    /// Parses a name.
    ///
    /// # Errors
    /// [`ConfigError::Name`].
    pub fn parse(name: &str) -> Result<Self, ConfigError> {
        let parsed = ServerName::try_from(name.trim_end_matches('.').to_owned());
        parsed.map(Self).map_err(|_| ConfigError::Name(name.into()))
    }
}

impl fmt::Debug for ServerConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ServerConfig") // Without the key.
    }
}

impl fmt::Debug for ClientConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ClientConfig")
    }
}

impl ServerConfig {
    /// Reads the files, for RPC.
    ///
    /// # Errors
    /// [`ConfigError`].
    pub fn load(files: &ServerFiles) -> Result<Self, ConfigError> {
        // Before the files are used: one that is replaced meanwhile makes the next [`Self::renewed`] read all again.
        let content = content(files)?;
        let provider = crypto();
        let builder = rustls::ServerConfig::builder_with_provider(Arc::clone(&provider));
        let builder = builder.with_protocol_versions(&[&TLS13]).map_err(|e| unusable(files, &e))?;
        let clients = files.client_ca.as_ref().map(|ca| clients(ca, files.client_crl.as_deref(), provider));
        let clients = clients.transpose()?;
        let builder = match &clients {
            None => builder.with_no_client_auth(),
            Some(clients) => builder.with_client_cert_verifier(Arc::clone(clients)),
        };
        let (chain, key) = (certificates(&files.certificate)?, private_key(&files.key)?);
        let mut config = builder.with_single_cert(chain, key).map_err(|e| unusable(files, &e))?;
        config.alpn_protocols = Protocol::names(&[Protocol::Rpc]);
        // Nothing is resumed, so that a client's certificate is verified in each connection; and Linux has no use for
        // tickets.
        config.send_tls13_tickets = 0;
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.max_early_data_size = 0;
        config.enable_secret_extraction = true;
        Ok(Self { config: config.into(), clients, files: files.clone(), content })
    }

    /// The configuration from the same files, if their content has changed.
    ///
    /// # Errors
    /// [`ConfigError`]: while files are being replaced, for instance, key and certificate may differ.
    pub fn renewed(&self) -> Result<Option<Self>, ConfigError> {
        if content(&self.files)? == self.content {
            return Ok(None);
        }
        let mut renewed = Self::load(&self.files)?;
        let config = Arc::make_mut(&mut renewed.config);
        config.alpn_protocols.clone_from(&self.config.alpn_protocols);
        Ok(Some(renewed))
    }

    /// The same for sessions of one of `protocols`.
    #[must_use]
    pub fn for_protocols(&self, protocols: &[Protocol]) -> Self {
        let alpn_protocols = Protocol::names(protocols);
        if self.config.alpn_protocols == alpn_protocols {
            return self.clone();
        }
        let mut config = (*self.config).clone();
        config.alpn_protocols = alpn_protocols;
        Self { config: config.into(), ..self.clone() }
    }

    /// Verifies the certificate of an earlier session again, with these authorities and revocation lists.
    ///
    /// # Errors
    /// [`TlsError`]: a client with this certificate would not be accepted.
    pub fn verify(&self, certificate: &PeerCertificate) -> Result<(), TlsError> {
        let Some((clients, (leaf, intermediates))) = self.clients.as_ref().zip(certificate.chain()) else {
            return Err(TlsError::UnknownIssuer);
        };
        clients.verify_client_cert(leaf, intermediates, UnixTime::now())?;
        Ok(())
    }
}

/// The verifier of certificates that the authorities in the file `ca` issued, and that are not on a list in the file `crl`.
fn clients(
    ca: &Path,
    crl: Option<&Path>,
    provider: Arc<CryptoProvider>,
) -> Result<Arc<dyn ClientCertVerifier>, ConfigError> {
    let mut builder = WebPkiClientVerifier::builder_with_provider(authorities(ca)?.into(), provider)
        // A client without a certificate is anonymous (RFC 9289 section 4.2); exports may require one.
        .allow_unauthenticated();
    if let Some(file) = crl {
        let failed = |e| unreadable(file, "revocation list (X509 CRL)", e);
        let lists = CertificateRevocationListDer::pem_file_iter(file).map_err(failed)?;
        let lists = lists.collect::<Result<Vec<_>, _>>().map_err(failed)?;
        if lists.is_empty() {
            return Err(failed(pem::Error::NoItemsFound));
        }
        builder = builder.with_crls(lists);
    }
    builder.build().map_err(|e| match (e, crl) {
        (VerifierBuilderError::InvalidCrl(e), Some(file)) => {
            ConfigError::RevocationList { file: file.into(), reason: format!("{e:?}") }
        }
        (e, _) => ConfigError::Authority { file: ca.into(), reason: e.to_string() },
    })
}

/// Hash of the content of the files.
fn content(files: &ServerFiles) -> Result<[u8; 32], ConfigError> {
    let mut hash = Context::new(&SHA256);
    let optional = [files.client_ca.as_ref(), files.client_crl.as_ref()];
    for file in [&files.certificate, &files.key].into_iter().chain(optional.into_iter().flatten()) {
        let bytes = fs::read(file).map_err(|error| ConfigError::Read { file: file.clone(), error })?;
        hash.update(&bytes.len().to_le_bytes());
        hash.update(&bytes);
    }
    let mut content = [0; 32];
    content.copy_from_slice(hash.finish().as_ref());
    Ok(content)
}

impl ConfigError {
    /// The file with the error.
    pub fn file(&self) -> Option<&Path> {
        match self {
            Self::Read { file, .. }
            | Self::Empty { file, .. }
            | Self::Pem { file, .. }
            | Self::Authority { file, .. }
            | Self::RevocationList { file, .. }
            | Self::Pair { key: file, .. } => Some(file),
            Self::SystemStore(_) | Self::Settings(_) | Self::Name(_) => None,
        }
    }
}

impl ClientConfig {
    /// Reads the files, for RPC.
    ///
    /// # Errors
    /// [`ConfigError`].
    pub fn load(files: &ClientFiles) -> Result<Self, ConfigError> {
        let (provider, file) = (crypto(), files.ca.clone().unwrap_or_default());
        let builder = rustls::ClientConfig::builder_with_provider(Arc::clone(&provider));
        let bad = |e: &dyn fmt::Display| ConfigError::Authority { file: file.clone(), reason: e.to_string() };
        let builder = builder.with_protocol_versions(&[&TLS13]).map_err(|e| bad(&e))?;
        let trusted = match &files.ca {
            Some(file) => authorities(file)?,
            None => system_store()?,
        };
        let verifier = WebPkiServerVerifier::builder_with_provider(trusted.into(), provider).build();
        let verifier = Arc::new(ExactNames(verifier.map_err(|e| bad(&e))?));
        let builder = builder.dangerous().with_custom_certificate_verifier(verifier);
        let mut config = match &files.certificate {
            None => builder.with_no_client_auth(),
            Some((certificate, key)) => {
                let (chain, secret) = (certificates(certificate)?, private_key(key)?);
                builder.with_client_auth_cert(chain, secret).map_err(|e| pair(certificate, key, &e))?
            }
        };
        config.alpn_protocols = Protocol::names(&[Protocol::Rpc]);
        config.resumption = Resumption::disabled();
        config.enable_secret_extraction = true;
        Ok(Self(config.into()))
    }

    /// The same for sessions of `protocol`.
    #[must_use]
    pub fn for_protocol(&self, protocol: Protocol) -> Self {
        let mut config = (*self.0).clone();
        config.alpn_protocols = Protocol::names(&[protocol]);
        Self(config.into())
    }
}

/// Primitives of ring. The 128 bit cipher is the first choice of this client: AES-256 has 0.8 of its rate.
fn crypto() -> Arc<CryptoProvider> {
    let mut provider = provider::default_provider();
    provider.cipher_suites = vec![
        provider::cipher_suite::TLS13_AES_128_GCM_SHA256,
        provider::cipher_suite::TLS13_AES_256_GCM_SHA384,
        provider::cipher_suite::TLS13_CHACHA20_POLY1305_SHA256,
    ];
    provider.into()
}

fn unusable(files: &ServerFiles, error: &rustls::Error) -> ConfigError {
    pair(&files.certificate, &files.key, error)
}

fn pair(certificate: &Path, key: &Path, error: &rustls::Error) -> ConfigError {
    let reason = match error {
        rustls::Error::InconsistentKeys(_) => "it belongs to another certificate".into(),
        other => other.to_string(),
    };
    ConfigError::Pair { certificate: certificate.into(), key: key.into(), reason }
}

fn unreadable(file: &Path, what: &'static str, error: pem::Error) -> ConfigError {
    let file = file.to_owned();
    match error {
        pem::Error::Io(error) => ConfigError::Read { file, error },
        pem::Error::NoItemsFound => ConfigError::Empty { file, what },
        other => ConfigError::Pem { file, reason: other.to_string() },
    }
}

fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>, ConfigError> {
    let failed = |e| unreadable(file, "certificate", e);
    let found: Vec<_> =
        CertificateDer::pem_file_iter(file).map_err(failed)?.collect::<Result<_, _>>().map_err(failed)?;
    if found.is_empty() { Err(failed(pem::Error::NoItemsFound)) } else { Ok(found) }
}

fn private_key(file: &Path) -> Result<PrivateKeyDer<'static>, ConfigError> {
    PrivateKeyDer::from_pem_file(file).map_err(|e| unreadable(file, "private key without a passphrase", e))
}

fn authorities(file: &Path) -> Result<RootCertStore, ConfigError> {
    let mut store = RootCertStore::empty();
    for certificate in certificates(file)? {
        store
            .add(certificate)
            .map_err(|e| ConfigError::Authority { file: file.into(), reason: e.to_string() })?;
    }
    Ok(store)
}

/// The authorities that the administrator of the system trusts (`/etc/ssl`, `SSL_CERT_FILE`), and none that this program
/// would bring: those of an organisation are there, and those that were withdrawn are not.
fn system_store() -> Result<RootCertStore, ConfigError> {
    let found = rustls_native_certs::load_native_certs();
    let mut store = RootCertStore::empty();
    let (usable, _) = store.add_parsable_certificates(found.certs);
    if usable == 0 {
        let reason = found.errors.first().map_or_else(String::new, |e| format!(": {e}"));
        return Err(ConfigError::SystemStore(reason));
    }
    Ok(store)
}
