//! The keys of the configuration file: a mirror of [`millrace_server::Config`] for serde. A missing field is
//! a compilation error.

use std::{collections::BTreeMap, path::PathBuf, time::Duration};

use millrace_rdma::registration::Strategy;
use millrace_rdma_providers::ProviderChoice;
use millrace_server::{
    AltName, Backend, ByteSize, CertificateRule, ClientRule, Delegations, ExportConfig, Identities, Identity,
    KerberosSettings, Limits, LocalUser, Nfs4Settings, SecurityFlavors, ServerFiles, Squash, StageSampling,
    TransportSecurity, without_zeros,
};
use serde::{Deserialize, Deserializer, de};

use crate::{
    Config, MetricsAccess,
    target_keys::Target,
    values::{
        Listening, backend, byte_size, optional_byte_size, optional_parsed, optional_path, parsed,
        parsed_list, path, xprtsec,
    },
};

/// All keys of a file, in the order in which error messages list them.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct File {
    #[serde(rename = "export")]
    exports: Vec<Export>,
    #[serde(rename = "target")]
    targets: Vec<Target>,
    listen_rdma: Vec<Listening>,
    listen_tcp: Vec<Listening>,
    listen_iscsi: Option<Listening>,
    listen_iser: Option<Listening>,
    #[serde(deserialize_with = "parsed")]
    provider: ProviderChoice,
    shards: Option<usize>,
    float_shards: bool,
    busy_poll: u64,
    metrics: Option<Listening>,
    #[serde(deserialize_with = "metrics_access")]
    metrics_access: MetricsAccess,
    #[serde(deserialize_with = "optional_path")]
    control: Option<PathBuf>,
    crc: bool,
    rpcbind: bool,
    #[serde(deserialize_with = "optional_path")]
    state_dir: Option<PathBuf>,
    manage_groups: bool,
    #[serde(deserialize_with = "strategy")]
    registration: Option<Strategy>,
    #[serde(with = "LimitsKeys")]
    limits: Limits,
    #[serde(with = "Nfs4Keys")]
    nfs4: Nfs4Settings,
    #[serde(with = "StagesKeys")]
    stages: StageSampling,
    #[serde(deserialize_with = "tls")]
    tls: Option<ServerFiles>,
    #[serde(deserialize_with = "kerberos")]
    kerberos: Option<KerberosSettings>,
}

impl From<File> for Config {
    fn from(file: File) -> Self {
        Self {
            server: millrace_server::Config {
                exports: file.exports.into_iter().map(|Export(e)| e).collect(),
                listen_rdma: file.listen_rdma.into_iter().map(|Listening(addr)| addr).collect(),
                listen_tcp: file.listen_tcp.into_iter().map(|Listening(addr)| addr).collect(),
                listen_iscsi: file.listen_iscsi.map(|Listening(addr)| addr),
                listen_iser: file.listen_iser.map(|Listening(addr)| addr),
                targets: file.targets.into_iter().map(|Target(t)| t).collect(),
                provider: file.provider,
                rdma_protocol: Default::default(),
                shards: file.shards,
                float_shards: file.float_shards,
                busy_poll: Duration::from_micros(file.busy_poll),
                crc: file.crc,
                state_dir: file.state_dir,
                manage_groups: file.manage_groups,
                registration: file.registration,
                limits: file.limits,
                nfs4: file.nfs4,
                stages: file.stages,
                tls: file.tls,
                kerberos: file.kerberos,
            },
            metrics: file.metrics.map(|Listening(addr)| addr),
            metrics_access: file.metrics_access,
            control: file.control,
            rpcbind: file.rpcbind,
            warnings: Vec::new(),
        }
    }
}

#[derive(Deserialize)]
#[serde(transparent)]
struct Export(#[serde(with = "ExportKeys")] ExportConfig);

#[derive(Deserialize)]
#[serde(remote = "ExportConfig", deny_unknown_fields)]
struct ExportKeys {
    name: String,
    #[serde(deserialize_with = "backend")]
    backend: Backend,
    #[serde(default)]
    read_only: bool,
    #[serde(default, with = "SquashKey")]
    squash: Squash,
    #[serde(default = "nobody")]
    anon_uid: u32,
    #[serde(default = "nobody")]
    anon_gid: u32,
    #[serde(default, deserialize_with = "parsed_list")]
    clients: Vec<ClientRule>,
    #[serde(default)]
    require_privileged_port: bool,
    #[serde(default = "yes")]
    sync_metadata: bool,
    #[serde(default)]
    allow_auth_none: bool,
    #[serde(default, with = "IdentitiesKey")]
    identities: Identities,
    #[serde(default, with = "DelegationsKey")]
    delegations: Delegations,
    #[serde(default, deserialize_with = "xprtsec")]
    xprtsec: TransportSecurity,
    #[serde(default, deserialize_with = "sec")]
    sec: SecurityFlavors,
    #[serde(default, deserialize_with = "certificates")]
    certificates: Vec<CertificateRule>,
}

fn certificates<'de, D: Deserializer<'de>>(d: D) -> Result<Vec<CertificateRule>, D::Error> {
    Ok(Vec::deserialize(d)?.into_iter().map(|Certificate(rule)| rule).collect())
}

/// A wrapper, so that an error has the place of the entry and not of the list.
#[derive(Deserialize)]
struct Certificate(#[serde(deserialize_with = "certificate")] CertificateRule);

fn certificate<'de, D: Deserializer<'de>>(d: D) -> Result<CertificateRule, D::Error> {
    let CertificateKeys { subject, issuer, san, serial, fingerprint, read_only, uid, gid, groups } =
        CertificateKeys::deserialize(d)?;
    let identity = match (uid, gid) {
        (Some(uid), Some(gid)) => Some(Identity { uid, gid, gids: groups.into() }),
        (None, None) if groups.is_empty() => None,
        _ => return Err(de::Error::custom("uid and gid are given together, and groups beside them")),
    };
    let serial = serial.map(|HexBytes(bytes)| without_zeros(&bytes).into());
    let fingerprint = fingerprint.map(|HexBytes(bytes)| bytes.try_into()).transpose();
    let fingerprint = fingerprint
        .map_err(|_| de::Error::custom("a fingerprint is a SHA-256: 32 bytes as 64 hexadecimal digits"))?;
    Ok(CertificateRule { subject, issuer, san, serial, fingerprint, read_only, identity })
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct CertificateKeys {
    subject: Option<String>,
    issuer: Option<String>,
    #[serde(default, deserialize_with = "optional_parsed")]
    san: Option<AltName>,
    serial: Option<HexBytes>,
    fingerprint: Option<HexBytes>,
    #[serde(default)]
    read_only: bool,
    uid: Option<u32>,
    gid: Option<u32>,
    #[serde(default)]
    groups: Vec<u32>,
}

/// Bytes as hexadecimal digits, in pairs that colons may separate, as `openssl x509 -serial -fingerprint` prints them.
#[derive(Deserialize)]
#[serde(try_from = "String")]
struct HexBytes(Vec<u8>);

impl TryFrom<String> for HexBytes {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let digits: Vec<u8> = text.bytes().filter(|b| *b != b':').collect();
        let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
        let is_hex =
            !digits.is_empty() && digits.len().is_multiple_of(2) && digits.iter().all(u8::is_ascii_hexdigit);
        let bytes = digits.chunks(2).map(byte).collect::<Option<_>>().filter(|_| is_hex);
        bytes.map(Self).ok_or_else(|| format!("`{text}` is not pairs of hexadecimal digits, such as 0A:1B"))
    }
}

#[derive(Deserialize)]
#[serde(remote = "KerberosSettings", deny_unknown_fields)]
struct KerberosKeys {
    #[serde(default, deserialize_with = "optional_path")]
    keytab: Option<PathBuf>,
    #[serde(default, deserialize_with = "users")]
    users: BTreeMap<String, LocalUser>,
    #[serde(default)]
    domain: Option<String>,
}

fn kerberos<'de, D: Deserializer<'de>>(d: D) -> Result<Option<KerberosSettings>, D::Error> {
    KerberosKeys::deserialize(d).map(Some)
}

/// Users by principal.
fn users<'de, D: Deserializer<'de>>(d: D) -> Result<BTreeMap<String, LocalUser>, D::Error> {
    #[derive(Deserialize)]
    struct User(#[serde(deserialize_with = "parsed")] LocalUser);
    let users = BTreeMap::<String, User>::deserialize(d)?;
    Ok(users.into_iter().map(|(principal, User(user))| (principal, user)).collect())
}

/// A list of security flavors.
fn sec<'de, D: Deserializer<'de>>(d: D) -> Result<SecurityFlavors, D::Error> {
    let list = Vec::<String>::deserialize(d)?;
    SecurityFlavors::parse(list.iter().map(String::as_str)).map_err(de::Error::custom)
}

#[derive(Deserialize)]
#[serde(remote = "ServerFiles", deny_unknown_fields)]
struct TlsKeys {
    #[serde(deserialize_with = "path")]
    certificate: PathBuf,
    #[serde(deserialize_with = "path")]
    key: PathBuf,
    #[serde(default, deserialize_with = "optional_path")]
    client_ca: Option<PathBuf>,
    #[serde(default, deserialize_with = "optional_path")]
    client_crl: Option<PathBuf>,
}

fn tls<'de, D: Deserializer<'de>>(d: D) -> Result<Option<ServerFiles>, D::Error> {
    TlsKeys::deserialize(d).map(Some)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct MetricsAccessFile {
    #[serde(default, deserialize_with = "optional_path")]
    certificate: Option<PathBuf>,
    #[serde(default, deserialize_with = "optional_path")]
    key: Option<PathBuf>,
    #[serde(default, deserialize_with = "optional_path")]
    client_ca: Option<PathBuf>,
    #[serde(default, deserialize_with = "optional_path")]
    token_file: Option<PathBuf>,
    #[serde(default)]
    insecure: bool,
}

fn metrics_access<'de, D: Deserializer<'de>>(d: D) -> Result<MetricsAccess, D::Error> {
    let MetricsAccessFile { certificate, key, client_ca, token_file, insecure } =
        MetricsAccessFile::deserialize(d)?;
    let tls = match (certificate, key) {
        (Some(certificate), Some(key)) => Some(ServerFiles { certificate, key, client_ca, client_crl: None }),
        (None, None) if client_ca.is_none() => None,
        _ => {
            return Err(de::Error::custom(
                "certificate and key are given together, and client_ca beside them",
            ));
        }
    };
    Ok(MetricsAccess { tls, token_file, insecure })
}

const fn nobody() -> u32 {
    65534
}

const fn yes() -> bool {
    true
}

#[derive(Deserialize)]
#[serde(remote = "Delegations", rename_all = "lowercase")]
enum DelegationsKey {
    None,
    Read,
    Write,
}

#[derive(Deserialize)]
#[serde(remote = "Squash", rename_all = "lowercase")]
enum SquashKey {
    None,
    Root,
    All,
}

#[derive(Deserialize)]
#[serde(remote = "Identities", rename_all = "kebab-case")]
enum IdentitiesKey {
    Callers,
    ServerUser,
}

#[derive(Deserialize)]
#[serde(remote = "StageSampling", deny_unknown_fields, default = "StageSampling::default")]
struct StagesKeys {
    sample: u32,
}

#[derive(Deserialize)]
#[serde(remote = "Limits", deny_unknown_fields, default = "Limits::default")]
struct LimitsKeys {
    #[serde(deserialize_with = "byte_size")]
    rtmax: ByteSize,
    #[serde(deserialize_with = "byte_size")]
    wtmax: ByteSize,
    credits: u32,
    max_connections: Option<usize>,
    max_connections_per_client: Option<usize>,
    stall_timeout: u64,
    idle_timeout: u64,
    #[serde(deserialize_with = "byte_size")]
    memory: ByteSize,
    #[serde(deserialize_with = "byte_size")]
    inline_size: ByteSize,
    shared_receives: usize,
    #[serde(deserialize_with = "optional_byte_size")]
    registration_cache: Option<ByteSize>,
    replies_kept: usize,
}

#[derive(Deserialize)]
#[serde(remote = "Nfs4Settings", deny_unknown_fields, default = "Nfs4Settings::default")]
struct Nfs4Keys {
    lease: u64,
    server_owner: Option<String>,
    server_scope: Option<String>,
    boot_epoch: Option<u32>,
}

/// The registration strategy; a file cannot select those for research.
fn strategy<'de, D: Deserializer<'de>>(d: D) -> Result<Option<Strategy>, D::Error> {
    match parsed(d)? {
        Strategy::AllPhysical => {
            Err(de::Error::custom("registration all-physical is a research option: use millrace-lab serve"))
        }
        strategy => Ok(Some(strategy)),
    }
}
