//! The configuration of a server, and the short form of an export on command lines.

use std::{
    ffi::OsStr, fmt, net::SocketAddr, os::unix::ffi::OsStrExt, path::PathBuf, str::FromStr, time::Duration,
};

use millrace_buffer::{ByteSize, InvalidByteSize};
use millrace_oncrpc::{TransportSecurity, stages::DEFAULT_SAMPLE};
use millrace_rdma::registration::Strategy;
use millrace_rdma_providers::ProviderChoice;
use millrace_rpcrdma::ProtocolRef;
use millrace_tls::ServerFiles;

use crate::{
    CertificateRule, KerberosSettings, Limits, Nfs4Settings, SecurityFlavors, TargetSettings,
    client_rule::{AccessOption, ClientRule, Squash, unknown},
};

/// The configuration of a server. [`Config::check`] validates it.
///
/// The crate `millrace-daemon` reads it from a TOML file.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Config {
    /// The exports, in the order in which MOUNT lists them.
    pub exports: Vec<ExportConfig>,
    /// Addresses for NFS and MOUNT over RPC-over-RDMA. Port 0 selects a free port. The well-known port is
    /// 20049.
    pub listen_rdma: Vec<SocketAddr>,
    /// Addresses for NFS and MOUNT over TCP. Port 0 selects a free port. The well-known port is 2049.
    pub listen_tcp: Vec<SocketAddr>,
    /// The address for iSCSI over TCP; targets require it or `listen_iser`. Port 0 selects a free port. The well-known port is 3260.
    pub listen_iscsi: Option<SocketAddr>,
    /// The address for iSCSI over RDMA (iSER). With the provider `iwarp` it may be that of `listen_iscsi`: one
    /// listener then serves both. Port 0 selects a free port. The well-known port is 3260.
    pub listen_iser: Option<SocketAddr>,
    /// The iSCSI targets.
    pub targets: Vec<TargetSettings>,
    /// The RDMA provider: `auto`, `iwarp` or `verbs`. `auto` selects separately for each address of
    /// `listen_rdma` and for `listen_iser`.
    pub provider: ProviderChoice,
    /// The protocol of RDMA connections.
    pub rdma_protocol: ProtocolRef,
    /// Number of threads that serve connections; by default one per core. At least 1.
    pub shards: Option<usize>,
    /// Do not pin shards to cores. By default, each of several shards is pinned to a core.
    pub float_shards: bool,
    /// How long a shard polls for the next call before it sleeps, up to 1 ms
    /// ([`millrace_runtime::tokio_rt::busy_poll`]); zero, the default, disables it. It shortens latency by the time of a
    /// wake-up, and costs processor time while clients wait for each reply before the next call.
    pub busy_poll: Duration,
    /// Require RDMA clients to send and check a CRC32C for every frame (iWARP). By default it is used for
    /// clients that request it: TCP and most links have checksums, and it costs throughput.
    pub crc: bool,
    /// A directory for data that must survive a restart: the key of file handles, and the list of NFSv4 clients that may
    /// reclaim their locks and opens. Without it handles also survive a restart, but their key is predictable; locks
    /// and opens do not. Servers that run at the same time have different directories.
    pub state_dir: Option<PathBuf>,
    /// Replace the groups in AUTH_SYS credentials, at most 16, by those that the database of this host has for the user ID
    /// (`rpc.mountd --manage-gids`). They are kept for five minutes, or until a reload. Users that it does not have keep
    /// the groups that they state.
    pub manage_groups: bool,
    /// The registration strategy for RDMA Reads and Writes: `dynamic`, `fast` or `cache` (and, for research,
    /// `all-physical`); `cache` by default. No strategy gives clients access to the server's memory.
    pub registration: Option<Strategy>,
    /// Limits of resources.
    pub limits: Limits,
    /// Settings of NFSv4.
    pub nfs4: Nfs4Settings,
    /// The certificate for clients that ask for TLS on `listen_tcp` (RFC 9289). [`crate::Running::reload`] reads the files again.
    pub tls: Option<ServerFiles>,
    /// Kerberos for callers with RPCSEC_GSS. A change in [`crate::Running::reload`] ends their security contexts, and they
    /// establish others.
    pub kerberos: Option<KerberosSettings>,
    /// Sampling of the latency breakdown.
    pub stages: StageSampling,
}

/// Sampling for the latency breakdown ([`millrace_oncrpc::stages`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StageSampling {
    /// Samples one call in this number, on each shard and transport; 0 disables sampling.
    pub sample: u32,
}

impl Default for StageSampling {
    fn default() -> Self {
        Self { sample: DEFAULT_SAMPLE }
    }
}

/// One export.
///
/// The short form on a command line is `NAME=BACKEND[,OPTION]...`, for example `/data=local:/srv/data,ro` or
/// `/scratch=memory:2GiB,client=10.0.0.0/8,squash=none`. Options: `ro`, `rw`, `squash=none|root|all` (or `no_root_squash`,
/// `root_squash`, `all_squash`), `anon_uid=N`, `anon_gid=N`, `secure` (TCP clients must call from a privileged port),
/// `insecure`, `auth_none` (callers without a credential are admitted), `no_auth_none`, `xprtsec=none:tls:mtls` (see
/// [`xprtsec`](Self::xprtsec)), `sec=krb5p:krb5i:krb5:sys` (see [`sec`](Self::sec)), and, not for some clients only,
/// `client=HOSTS` or `client=HOSTS(OPTION,...)` (may be repeated; see [`clients`](Self::clients)), `no_sync_metadata` (see
/// [`sync_metadata`](Self::sync_metadata)), `identities=callers|server-user`, `delegations=none|read|write`. The short form
/// cannot express a path that contains a comma, or [`certificates`](Self::certificates).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExportConfig {
    /// The path that clients mount: absolute, without `.`, `..` or empty components, at most 1024 bytes.
    pub name: String,
    /// The file system: `memory:SIZE` or `local:PATH`.
    pub backend: Backend,
    /// Reject all changes.
    pub read_only: bool,
    /// The callers that are mapped to the anonymous identity.
    pub squash: Squash,
    /// User id of the anonymous identity.
    pub anon_uid: u32,
    /// Group id of the anonymous identity.
    pub anon_gid: u32,
    /// Clients that may use the export, with their options; empty: all clients, with those of the export. If several rules
    /// match a client, single hosts precede networks, which precede `*`; among equals the first one applies (as in
    /// exports(5)). Host names are looked up when the server starts and at each reload; one without an address matches no
    /// client.
    pub clients: Vec<ClientRule>,
    /// Require callers over TCP to use a port below 1024, which on most systems only root can (`secure` of
    /// exports(5)). RDMA connections may use any port, as with Linux's server, because Linux's client cannot
    /// choose the port.
    pub require_privileged_port: bool,
    /// Make changes of names and attributes durable before they are answered (local exports). Without it a
    /// crash of the server's host may lose acknowledged changes, and copying many small files is faster.
    pub sync_metadata: bool,
    /// Admit callers without a credential (AUTH_NONE), as the anonymous identity.
    pub allow_auth_none: bool,
    /// Identity of system calls on a local directory.
    pub identities: Identities,
    /// The delegations that NFSv4 clients can get.
    pub delegations: Delegations,
    /// The weakest protection of the transport with which files can be used. Weaker calls are refused (WRONGSEC,
    /// AUTH_TOOWEAK), except those that clients make before they ask for TLS, such as MOUNT.
    pub xprtsec: TransportSecurity,
    /// The client certificates with which files can be used; empty: all that `client_ca` of [`Config::tls`] issued. The first
    /// rule that matches applies; without one, clients get ACCES. Requires the protection `mtls`.
    pub certificates: Vec<CertificateRule>,
    /// The security flavors with which files can be used, in the order in which clients are to prefer them. Calls with others
    /// are refused (WRONGSEC, AUTH_TOOWEAK). Those of Kerberos need [`Config::kerberos`].
    pub sec: SecurityFlavors,
}

/// The delegations of files that NFSv4 clients can get (RFC 8881 section 10.4): the permission to cache until the server
/// recalls it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum Delegations {
    /// None.
    #[default]
    None,
    /// Read delegations: the client caches data until another client opens the file for writing.
    Read,
    /// Read and write delegations: with the latter, the client keeps written data until another client uses the file.
    Write,
}

/// Identity of the server's system calls on a local directory ([`millrace_vfs_local::IdentityMode`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Identities {
    /// The caller's identity, if the server is root, which requires CAP_SETUID and CAP_SETGID; otherwise the
    /// server's user.
    #[default]
    Callers,
    /// The server's user, even if it is root. The server checks permission bits itself, without ACLs, and
    /// owns new files.
    ServerUser,
}

const fn nobody() -> u32 {
    65534
}

/// The file system of an export.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Backend {
    /// A file system in memory, which is lost when the server ends.
    Memory {
        /// Maximum bytes of file contents.
        capacity: ByteSize,
    },
    /// A directory of the server's host.
    Local {
        /// Path of the directory.
        path: PathBuf,
    },
}

impl Backend {
    /// Identity of the backend across restarts (without the size of a memory export).
    pub(crate) fn identity(&self) -> String {
        match self {
            Self::Memory { .. } => "memory".into(),
            Self::Local { path } => format!("local:{}", path.display()),
        }
    }
}

impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Memory { capacity } => write!(f, "memory:{capacity}"),
            Self::Local { path } => write!(f, "local:{}", path.display()),
        }
    }
}

impl Backend {
    /// Parses the text form, in which the path of a directory need not be UTF-8.
    ///
    /// # Errors
    /// Those of [`FromStr`].
    pub fn from_os_str(text: &OsStr) -> Result<Self, String> {
        match text.as_bytes().strip_prefix(b"local:") {
            Some(path) if !path.is_empty() => Ok(Self::Local { path: OsStr::from_bytes(path).into() }),
            _ => text.to_string_lossy().parse(),
        }
    }
}

impl FromStr for Backend {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        match s.split_once(':') {
            Some(("memory", size)) => {
                Ok(Self::Memory { capacity: size.parse().map_err(|e: InvalidByteSize| e.to_string())? })
            }
            Some(("local", path)) if !path.is_empty() => Ok(Self::Local { path: path.into() }),
            _ => Err(format!(
                "`{s}` is not a backend; write memory:SIZE (memory:2GiB) or local:PATH (local:/srv/data)"
            )),
        }
    }
}

impl ExportConfig {
    /// Creates an export with the default policy: all clients may read and write with their stated
    /// identities, except root.
    pub fn new(name: impl Into<String>, backend: Backend) -> Self {
        Self {
            name: name.into(),
            backend,
            read_only: false,
            squash: Squash::default(),
            anon_uid: nobody(),
            anon_gid: nobody(),
            clients: Vec::new(),
            require_privileged_port: false,
            sync_metadata: true,
            allow_auth_none: false,
            identities: Identities::default(),
            delegations: Delegations::default(),
            xprtsec: TransportSecurity::None,
            certificates: Vec::new(),
            sec: SecurityFlavors::default(),
        }
    }

    /// The export for the clients of `rule`.
    pub(crate) fn of(&self, rule: &ClientRule) -> Self {
        let mut export = self.clone();
        rule.options.iter().for_each(|o| export.set(*o));
        export
    }

    fn set(&mut self, option: AccessOption) {
        match option {
            AccessOption::ReadOnly(v) => self.read_only = v,
            AccessOption::Squash(v) => self.squash = v,
            AccessOption::AnonUid(v) => self.anon_uid = v,
            AccessOption::AnonGid(v) => self.anon_gid = v,
            AccessOption::Secure(v) => self.require_privileged_port = v,
            AccessOption::AuthNone(v) => self.allow_auth_none = v,
            AccessOption::XprtSec(v) => self.xprtsec = v,
            AccessOption::Sec(v) => self.sec = v,
        }
    }

    fn option(&mut self, option: &str) -> Result<(), String> {
        if let Some(access) = AccessOption::parse(option)? {
            self.set(access);
            return Ok(());
        }
        match option.split_once('=').map_or((option, None), |(k, v)| (k, Some(v))) {
            ("no_sync_metadata", None) => self.sync_metadata = false,
            ("identities", Some("callers")) => self.identities = Identities::Callers,
            ("identities", Some("server-user")) => self.identities = Identities::ServerUser,
            ("delegations", Some("none")) => self.delegations = Delegations::None,
            ("delegations", Some("read")) => self.delegations = Delegations::Read,
            ("delegations", Some("write")) => self.delegations = Delegations::Write,
            ("client", Some(v)) => self.clients.push(v.parse()?),
            _ => return Err(unknown(option)),
        }
        Ok(())
    }

    /// Checks the name.
    ///
    /// # Errors
    /// The reason why the name is invalid.
    pub(crate) fn check(&self) -> Result<(), String> {
        let name = &self.name;
        let parts_fine = name == "/"
            || name.strip_prefix('/').is_some_and(|rest| {
                rest.split('/').all(|p| !matches!(p, "" | "." | "..") && !p.contains('\0'))
            });
        if !parts_fine || name.len() > 1024 {
            return Err(format!(
                "export name `{name}` is not an absolute path without `.`, `..` and empty parts"
            ));
        }
        Ok(())
    }
}

impl FromStr for ExportConfig {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        let (name, rest) = s.split_once('=').ok_or_else(|| {
            format!("`{s}` is not an export; write NAME=BACKEND, for example /data=local:/srv/data or /scratch=memory:2GiB")
        })?;
        // Commas in parentheses separate the options of clients.
        let mut is_inside = false;
        let mut parts = rest.split(|c| {
            is_inside = (is_inside || c == '(') && c != ')';
            c == ',' && !is_inside
        });
        let backend = parts.next().unwrap_or_default().parse()?;
        let mut export = Self::new(name, backend);
        parts.try_for_each(|o| export.option(o))?;
        export.check()?;
        Ok(export)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_short_form_sets_backend_and_options() {
        let e: ExportConfig =
            "/data=local:/srv/data,ro,squash=all,anon_uid=7,client=10.0.0.0/8,client=::1,secure"
                .parse()
                .unwrap();
        assert_eq!(e.backend, Backend::Local { path: "/srv/data".into() });
        assert!(e.read_only && e.require_privileged_port && !e.allow_auth_none);
        assert_eq!((e.squash, e.anon_uid, e.anon_gid, e.clients.len()), (Squash::All, 7, 65534, 2));
        let e: ExportConfig = "/data=local:/srv/data,identities=server-user,squash=none".parse().unwrap();
        assert_eq!((e.identities, e.squash), (Identities::ServerUser, Squash::None));
        let e: ExportConfig =
            "/data=local:/srv/data,client=*(ro,anonuid=5),client=10.0.0.5(rw,no_root_squash),auth_none"
                .parse()
                .unwrap();
        let of_clients: Vec<_> = e.clients.iter().map(|rule| e.of(rule)).collect();
        assert!(of_clients[0].read_only && !of_clients[1].read_only && e.allow_auth_none);
        assert_eq!((of_clients[0].squash, of_clients[1].squash), (Squash::Root, Squash::None));
        assert_eq!((of_clients[0].anon_uid, of_clients[1].anon_uid), (5, 65534));
        let e: ExportConfig = "/data=local:/srv/data,delegations=write".parse().unwrap();
        assert_eq!(e.delegations, Delegations::Write);
        let e: ExportConfig = "/scratch=memory:2GiB".parse().unwrap();
        assert_eq!((e.identities, e.squash), (Identities::Callers, Squash::Root));
        assert_eq!(e, ExportConfig::new("/scratch", Backend::Memory { capacity: ByteSize(2 << 30) }));
    }

    #[test]
    fn invalid_short_forms_are_explained() {
        for (text, expected) in [
            ("/data", "NAME=BACKEND"),
            ("/data=disk:/x", "not a backend"),
            ("/data=local:", "not a backend"),
            ("/data=memory:lots", "not a size"),
            ("data=memory:1G", "absolute path"),
            ("/a/../b=memory:1G", "absolute path"),
            ("/a/=memory:1G", "absolute path"),
            ("/a=memory:1G,readonly", "not an export option"),
            ("/a=memory:1G,identities=root", "identities=callers|server-user"),
            ("/a=memory:1G,delegations=all", "delegations=none|read|write"),
            ("/a=memory:1G,client=10.0.0.0/33", "not a network"),
            ("/a=memory:1G,client=*(ro,", "write HOSTS(OPTION,...)"),
            ("/a=memory:1G,no_subtree_check", "has no counterpart; leave it out"),
        ] {
            let e = text.parse::<ExportConfig>().unwrap_err();
            assert!(e.contains(expected), "{text}: {e}");
        }
    }
}
