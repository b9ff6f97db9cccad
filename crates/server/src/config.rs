//! What a server is told to do: the TOML file and the command line's short form of an export.

use std::{fmt, net::SocketAddr, path::PathBuf, str::FromStr};

use millrace_oncrpc::stages::DEFAULT_SAMPLE;
use millrace_rdma_providers::ProviderChoice;
use millrace_rpcrdma::{Design, registration::Strategy};
use serde::{Deserialize, Deserializer, de};

use crate::{
    ExposedBuffers, Exposure, Limits, ServerError,
    config_file::{self, Wrong},
    design,
    network::Network,
    size::ByteSize,
};

/// Everything that a server is told. Unknown keys in a file are errors.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// What is offered (`[[export]]`).
    #[serde(rename = "export")]
    pub exports: Vec<ExportConfig>,
    /// Where to listen for NFS and MOUNT over RPC-over-RDMA. Port 0: any free port. The usual port is 20049.
    pub listen_rdma: Vec<SocketAddr>,
    /// Where to listen for NFS and MOUNT over TCP. Port 0: any free port. The usual port is 2049.
    pub listen_tcp: Vec<SocketAddr>,
    /// The RDMA provider: `auto`, `iwarp` or `verbs`. Each address of `listen_rdma` is judged by itself.
    #[serde(deserialize_with = "provider")]
    pub provider: ProviderChoice,
    /// How results reach RDMA clients: `read-write`, as usual, or `read-read`, for research: it exposes the server's
    /// memory to them and is refused unless [`Self::exposed_buffers`] accepts that. A file cannot state `read-read`.
    #[serde(deserialize_with = "design::of_file")]
    pub design: Design,
    /// Whether that is accepted. Deprecated in files.
    pub exposed_buffers: ExposedBuffers,
    /// What the Read-Read design may expose. Deprecated in files.
    pub exposure: Exposure,
    /// Threads that serve connections; by default one per core.
    pub shards: Option<usize>,
    /// Let each shard run wherever the machine likes. By default, of several shards each stays on a core of its own.
    pub float_shards: bool,
    /// Where to answer Prometheus (`GET /metrics`); nowhere by default.
    pub metrics: Option<SocketAddr>,
    /// A socket at which `millrace serve` is told to read its file again (`millrace reload`); none by default. The
    /// library does not open it.
    pub control: Option<PathBuf>,
    /// Have RDMA clients send, and check, a CRC32C of every frame (iWARP). By default only a client that asks has it:
    /// TCP and most links have checks of their own, and it costs speed.
    pub crc: bool,
    /// Tell the machine's rpcbind where NFS and MOUNT are.
    pub rpcbind: bool,
    /// A directory for what must survive a restart (the key of file handles). Without it handles still survive a
    /// restart, but are sealed with a key that anyone can compute.
    pub state_dir: Option<PathBuf>,
    /// How the memory of RDMA Reads and Writes is registered: `dynamic`, `fast` or `cache` (and, for research, not in
    /// files, `all-physical`); `cache` by default. No strategy lets a client reach memory of the server.
    #[serde(deserialize_with = "strategy")]
    pub registration: Option<Strategy>,
    /// Limits.
    pub limits: Limits,
    /// How often the stages of a call are timed.
    pub stages: StageSampling,
    /// A warning for each deprecated key of the file that the configuration was read from.
    #[serde(skip)]
    pub deprecated: Vec<String>,
}

/// Sampling for the latency breakdown ([`millrace_oncrpc::stages`]; `[stages]`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct StageSampling {
    /// Samples one call in this number, on each shard and transport; 0 disables sampling.
    pub sample: u32,
}

impl Default for StageSampling {
    fn default() -> Self {
        Self { sample: DEFAULT_SAMPLE }
    }
}

fn strategy<'de, D: Deserializer<'de>>(d: D) -> Result<Option<Strategy>, D::Error> {
    match String::deserialize(d)?.parse().map_err(de::Error::custom)? {
        Strategy::AllPhysical => {
            Err(de::Error::custom("registration all-physical is a research option: use millrace-lab serve"))
        }
        strategy => Ok(Some(strategy)),
    }
}

/// One export.
///
/// The short form on a command line is `NAME=BACKEND[,OPTION]...`, for example `/data=local:/srv/data,ro` or
/// `/scratch=memory:2GiB,client=10.0.0.0/8,squash=none`. Options: `ro`, `rw`, `squash=none|root|all`, `anon_uid=N`,
/// `anon_gid=N`, `client=NETWORK` (may be repeated), `secure` (TCP clients must call from a privileged port), `insecure`,
/// `no_auth_none` (callers without a credential are refused), `no_sync_metadata` (see
/// [`sync_metadata`](Self::sync_metadata)), `identities=callers|server-user`. A path with a comma in it needs the TOML
/// file.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExportConfig {
    /// The path that clients mount: absolute, without `.`, `..` or empty parts.
    pub name: String,
    /// Where the files are: `memory:SIZE` or `local:PATH`.
    pub backend: Backend,
    /// Refuse every change.
    #[serde(default)]
    pub read_only: bool,
    /// Which callers are replaced by the anonymous identity.
    #[serde(default)]
    pub squash: Squash,
    /// The anonymous user id.
    #[serde(default = "nobody")]
    pub anon_uid: u32,
    /// The anonymous group id.
    #[serde(default = "nobody")]
    pub anon_gid: u32,
    /// Networks that may use the export; empty: all.
    #[serde(default)]
    pub clients: Vec<Network>,
    /// Callers over TCP must use a port below 1024, which on most systems only root can (`secure` of exports(5)). Over
    /// RDMA every port may call, as with Linux's server: its client does not choose the port there.
    #[serde(default)]
    pub require_privileged_port: bool,
    /// Make changes of names and attributes durable before they are answered (local exports). Without it a crash of
    /// this machine may undo changes that clients were told are done, and many small files are copied faster.
    #[serde(default = "yes")]
    pub sync_metadata: bool,
    /// Whether callers without a credential (AUTH_NONE) are let in, as the anonymous identity.
    #[serde(default = "yes")]
    pub allow_auth_none: bool,
    /// In whose name the server's calls on a local directory are made.
    #[serde(default)]
    pub identities: Identities,
}

/// In whose name the server's calls on a local directory are made ([`millrace_vfs::local::IdentityMode`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Identities {
    /// The callers', which root needs CAP_SETUID and CAP_SETGID for; the server's user where that is not root.
    #[default]
    Callers,
    /// The server's user, root too. The server checks permission bits itself, without ACLs, and owns what is made.
    ServerUser,
}

fn provider<'de, D: Deserializer<'de>>(d: D) -> Result<ProviderChoice, D::Error> {
    String::deserialize(d)?.parse().map_err(de::Error::custom)
}

const fn nobody() -> u32 {
    65534
}

const fn yes() -> bool {
    true
}

/// Which callers become the anonymous identity, as in exports(5) of Linux. Callers without a credential always do.
///
/// AUTH_SYS takes a client's word for who calls; with `None`, that holds for root too.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Squash {
    /// Nobody: client identities are taken as they are, root included.
    None,
    /// Root (uid 0, and gid 0 in any group position).
    #[default]
    Root,
    /// Everybody.
    All,
}

/// Where an export's files are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Backend {
    /// In memory, gone when the server ends.
    Memory {
        /// The most bytes of content.
        capacity: ByteSize,
    },
    /// A directory of this machine.
    Local {
        /// The directory.
        path: PathBuf,
    },
}

impl Backend {
    /// What makes this backend the same one after a restart (a memory export's size does not).
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

impl FromStr for Backend {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        match s.split_once(':') {
            Some(("memory", size)) => Ok(Self::Memory { capacity: size.parse()? }),
            Some(("local", path)) if !path.is_empty() => Ok(Self::Local { path: path.into() }),
            _ => Err(format!(
                "`{s}` is not a backend; write memory:SIZE (memory:2GiB) or local:PATH (local:/srv/data)"
            )),
        }
    }
}

impl<'de> Deserialize<'de> for Backend {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        String::deserialize(d)?.parse().map_err(de::Error::custom)
    }
}

impl ExportConfig {
    /// An export with the default policy: everybody may read and write, as whom they say they are, but not as root.
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
            allow_auth_none: true,
            identities: Identities::default(),
        }
    }

    fn option(&mut self, option: &str) -> Result<(), String> {
        let number = |v: &str| v.parse::<u32>().map_err(|_| format!("`{v}` is not an id in `{option}`"));
        match option.split_once('=').map_or((option, None), |(k, v)| (k, Some(v))) {
            ("ro", None) => self.read_only = true,
            ("rw", None) => self.read_only = false,
            ("secure", None) => self.require_privileged_port = true,
            ("insecure", None) => self.require_privileged_port = false,
            ("no_sync_metadata", None) => self.sync_metadata = false,
            ("no_auth_none", None) => self.allow_auth_none = false,
            ("identities", Some("callers")) => self.identities = Identities::Callers,
            ("identities", Some("server-user")) => self.identities = Identities::ServerUser,
            ("squash", Some("none")) => self.squash = Squash::None,
            ("squash", Some("root")) => self.squash = Squash::Root,
            ("squash", Some("all")) => self.squash = Squash::All,
            ("anon_uid", Some(v)) => self.anon_uid = number(v)?,
            ("anon_gid", Some(v)) => self.anon_gid = number(v)?,
            ("client", Some(v)) => self.clients.push(v.parse()?),
            _ => {
                return Err(format!(
                    "`{option}` is not an export option; there are ro, rw, squash=none|root|all, anon_uid=N, \
                     anon_gid=N, client=NETWORK, secure, insecure, no_auth_none, no_sync_metadata, \
                     identities=callers|server-user"
                ));
            }
        }
        Ok(())
    }

    /// Checks what a file or command line cannot say in types.
    ///
    /// # Errors
    /// A sentence about the name.
    fn check(&self) -> Result<(), String> {
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
        let mut parts = rest.split(',');
        let backend = parts.next().unwrap_or_default().parse()?;
        let mut export = Self::new(name, backend);
        parts.try_for_each(|o| export.option(o))?;
        export.check()?;
        Ok(export)
    }
}

impl FromStr for Config {
    type Err = ServerError;

    /// Reads TOML text.
    fn from_str(text: &str) -> Result<Self, ServerError> {
        let config: Self =
            toml::from_str(text).map_err(|e| ServerError::Config(config_file::one_line(text, &e)))?;
        Ok(Self { deprecated: config_file::deprecated(text), ..config })
    }
}

impl Config {
    /// Checks everything that can be checked without opening files or addresses.
    ///
    /// # Errors
    /// [`ServerError::Config`] with one sentence that says what to change.
    pub fn check(&self) -> Result<(), ServerError> {
        if self.listen_rdma.is_empty() && self.listen_tcp.is_empty() {
            let what = "there is no address to listen on; give listen_rdma, listen_tcp or both";
            return Err(ServerError::Config(what.into()));
        }
        self.check_service()
    }

    /// Checks what does not concern addresses.
    pub(crate) fn check_service(&self) -> Result<(), ServerError> {
        self.check_rest().map_err(|wrong| ServerError::Config(wrong.what))
    }

    pub(crate) fn check_rest(&self) -> Result<(), Wrong> {
        self.check_contents()?;
        design::check(self).map_err(|what| Wrong::new("design", what))
    }

    /// Checks what a command line neither mends nor spoils.
    pub(crate) fn check_contents(&self) -> Result<(), Wrong> {
        if self.shards == Some(0) {
            return Err(Wrong::new("shards", "shards is 0; give at least 1"));
        }
        for (i, e) in self.exports.iter().enumerate() {
            e.check().map_err(|what| Wrong::new(format!("export.{i}.name"), what))?;
        }
        self.check_overlaps()?;
        self.limits.check()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_short_form_names_backend_and_options() {
        let e: ExportConfig =
            "/data=local:/srv/data,ro,squash=all,anon_uid=7,client=10.0.0.0/8,client=::1,secure"
                .parse()
                .unwrap();
        assert_eq!(e.backend, Backend::Local { path: "/srv/data".into() });
        assert!(e.read_only && e.require_privileged_port && e.allow_auth_none);
        assert_eq!((e.squash, e.anon_uid, e.anon_gid, e.clients.len()), (Squash::All, 7, 65534, 2));
        let e: ExportConfig = "/data=local:/srv/data,identities=server-user,squash=none".parse().unwrap();
        assert_eq!((e.identities, e.squash), (Identities::ServerUser, Squash::None));
        let e: ExportConfig = "/scratch=memory:2GiB".parse().unwrap();
        assert_eq!((e.identities, e.squash), (Identities::Callers, Squash::Root));
        assert_eq!(e, ExportConfig::new("/scratch", Backend::Memory { capacity: ByteSize(2 << 30) }));
    }

    #[test]
    fn a_bad_short_form_says_what_is_wrong() {
        for (text, says) in [
            ("/data", "NAME=BACKEND"),
            ("/data=disk:/x", "not a backend"),
            ("/data=local:", "not a backend"),
            ("/data=memory:lots", "not a size"),
            ("data=memory:1G", "absolute path"),
            ("/a/../b=memory:1G", "absolute path"),
            ("/a/=memory:1G", "absolute path"),
            ("/a=memory:1G,readonly", "not an export option"),
            ("/a=memory:1G,identities=root", "identities=callers|server-user"),
            ("/a=memory:1G,client=nowhere", "not a network"),
        ] {
            let e = text.parse::<ExportConfig>().unwrap_err();
            assert!(e.contains(says), "{text}: {e}");
        }
    }

    const FILE: &str = r#"
        listen_rdma = ["127.0.0.1:20049"]
        listen_tcp = ["127.0.0.1:2049", "[::1]:2049"]
        shards = 2
        provider = "iwarp"
        metrics = "127.0.0.1:9464"
        registration = "dynamic"
        [limits]
        rtmax = "4MiB"
        credits = 32
        [stages]
        sample = 7
        [[export]]
        name = "/data"
        backend = "local:/srv/data"
        read_only = true
        squash = "all"
        identities = "server-user"
        clients = ["10.0.0.0/8"]
        [[export]]
        name = "/scratch"
        backend = "memory:2GiB"
    "#;

    #[test]
    fn a_file_is_read_whole() {
        let c: Config = FILE.parse().unwrap();
        c.check().unwrap();
        assert_eq!((c.exports.len(), c.listen_tcp.len(), c.shards), (2, 2, Some(2)));
        assert_eq!((c.provider, Config::default().provider), (ProviderChoice::Iwarp, ProviderChoice::Auto));
        assert_eq!(
            (c.limits.rtmax, c.limits.wtmax, c.limits.credits),
            (ByteSize(4 << 20), ByteSize(1 << 20), 32)
        );
        assert_eq!((c.exports[0].squash, c.exports[0].identities), (Squash::All, Identities::ServerUser));
        assert_eq!(c.registration, Some(Strategy::Dynamic));
        assert_eq!((c.stages.sample, Config::default().stages.sample), (7, DEFAULT_SAMPLE));
        assert_eq!(
            c.exports[1],
            ExportConfig::new("/scratch", Backend::Memory { capacity: ByteSize(2 << 30) })
        );
    }

    #[test]
    fn an_unknown_key_is_an_error_with_its_line() {
        let e = "shards = 1\nlisten_tpc = []\n".parse::<Config>().unwrap_err().to_string();
        assert!(e.contains("line 2") && e.contains("listen_tpc"), "{e}");
        let e = "shards = 1\nprovider = \"roce\"\n".parse::<Config>().unwrap_err().to_string();
        assert!(e.contains("line 2") && e.contains("auto, iwarp or verbs"), "{e}");
    }

    #[test]
    fn limits_that_cannot_hold_are_refused() {
        let base = || FILE.parse::<Config>().unwrap();
        let refused = |c: Config, says: &str| {
            let e = c.check().unwrap_err().to_string();
            assert!(e.contains(says), "{e}");
        };
        let with = |f: fn(&mut Config)| {
            let mut c = base();
            f(&mut c);
            c
        };
        refused(with(|c| c.limits.rtmax = ByteSize(8 << 20)), "rtmax");
        refused(with(|c| c.limits.wtmax = ByteSize(5000)), "wtmax");
        refused(with(|c| c.limits.credits = 0), "credits");
        refused(with(|c| c.limits.memory = ByteSize(1 << 20)), "limits.memory");
        refused(with(|c| c.limits.inline_size = ByteSize(10)), "inline_size");
        refused(with(|c| c.limits.shared_receives = 15), "shared_receives");
        refused(
            with(|c| (c.limits.shared_receives, c.limits.inline_size) = (16384, ByteSize(64 << 10))),
            "shared_receives",
        );
        refused(with(|c| c.limits.max_connections_per_client = Some(0)), "max_connections_per_client");
        refused(with(|c| c.limits.stall_timeout = 0), "stall_timeout");
        refused(with(|c| c.limits.idle_timeout = 86_401), "idle_timeout");
        refused(with(|c| c.shards = Some(0)), "shards");
        refused(with(|c| (c.listen_rdma.clear(), c.listen_tcp.clear()).0), "listen");
    }
}
