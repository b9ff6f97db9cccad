//! The configuration of a server, and the short form of an export on command lines.

use std::{fmt, net::SocketAddr, path::PathBuf, str::FromStr};

use millrace_buffer::{ByteSize, InvalidByteSize};
use millrace_oncrpc::stages::DEFAULT_SAMPLE;
use millrace_rdma_providers::ProviderChoice;
use millrace_rpcrdma::{Design, registration::Strategy};

use crate::{ExposedBuffers, Exposure, Limits, network::Network};

/// The configuration of a server. [`Config::check`] validates it.
///
/// The crate `millrace-daemon` reads it from a TOML file.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Config {
    /// The exports, in the order in which MOUNT lists them.
    pub exports: Vec<ExportConfig>,
    /// Where to listen for NFS and MOUNT over RPC-over-RDMA. Port 0: any free port. The usual port is 20049.
    pub listen_rdma: Vec<SocketAddr>,
    /// Where to listen for NFS and MOUNT over TCP. Port 0: any free port. The usual port is 2049.
    pub listen_tcp: Vec<SocketAddr>,
    /// The RDMA provider: `auto`, `iwarp` or `verbs`. Each address of `listen_rdma` is judged by itself.
    pub provider: ProviderChoice,
    /// How results reach RDMA clients: `read-write`, as usual, or `read-read`, for research: it exposes the server's
    /// memory to them and is refused unless [`Self::exposed_buffers`] accepts that.
    pub design: Design,
    /// Whether that is accepted.
    pub exposed_buffers: ExposedBuffers,
    /// What the Read-Read design may expose.
    pub exposure: Exposure,
    /// Threads that serve connections; by default one per core.
    pub shards: Option<usize>,
    /// Let each shard run wherever the machine likes. By default, of several shards each stays on a core of its own.
    pub float_shards: bool,
    /// Have RDMA clients send, and check, a CRC32C of every frame (iWARP). By default only a client that asks has it:
    /// TCP and most links have checks of their own, and it costs speed.
    pub crc: bool,
    /// A directory for what must survive a restart (the key of file handles). Without it handles still survive a
    /// restart, but are sealed with a key that anyone can compute.
    pub state_dir: Option<PathBuf>,
    /// How the memory of RDMA Reads and Writes is registered: `dynamic`, `fast` or `cache` (and, for research,
    /// `all-physical`); `cache` by default. No strategy lets a client reach memory of the server.
    pub registration: Option<Strategy>,
    /// Limits.
    pub limits: Limits,
    /// How often the stages of a call are timed.
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
/// `/scratch=memory:2GiB,client=10.0.0.0/8,squash=none`. Options: `ro`, `rw`, `squash=none|root|all`, `anon_uid=N`,
/// `anon_gid=N`, `client=NETWORK` (may be repeated), `secure` (TCP clients must call from a privileged port), `insecure`,
/// `no_auth_none` (callers without a credential are refused), `no_sync_metadata` (see
/// [`sync_metadata`](Self::sync_metadata)), `identities=callers|server-user`. The short form
/// cannot express a path that contains a comma.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExportConfig {
    /// The path that clients mount: absolute, without `.`, `..` or empty parts.
    pub name: String,
    /// Where the files are: `memory:SIZE` or `local:PATH`.
    pub backend: Backend,
    /// Refuse every change.
    pub read_only: bool,
    /// Which callers are replaced by the anonymous identity.
    pub squash: Squash,
    /// The anonymous user id.
    pub anon_uid: u32,
    /// The anonymous group id.
    pub anon_gid: u32,
    /// Networks that may use the export; empty: all.
    pub clients: Vec<Network>,
    /// Callers over TCP must use a port below 1024, which on most systems only root can (`secure` of exports(5)). Over
    /// RDMA every port may call, as with Linux's server: its client does not choose the port there.
    pub require_privileged_port: bool,
    /// Make changes of names and attributes durable before they are answered (local exports). Without it a crash of
    /// this machine may undo changes that clients were told are done, and many small files are copied faster.
    pub sync_metadata: bool,
    /// Whether callers without a credential (AUTH_NONE) are let in, as the anonymous identity.
    pub allow_auth_none: bool,
    /// In whose name the server's calls on a local directory are made.
    pub identities: Identities,
}

/// In whose name the server's calls on a local directory are made ([`millrace_vfs_local::IdentityMode`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Identities {
    /// The callers', which root needs CAP_SETUID and CAP_SETGID for; the server's user where that is not root.
    #[default]
    Callers,
    /// The server's user, root too. The server checks permission bits itself, without ACLs, and owns what is made.
    ServerUser,
}

const fn nobody() -> u32 {
    65534
}

/// Which callers become the anonymous identity, as in exports(5) of Linux. Callers without a credential always do.
///
/// AUTH_SYS takes a client's word for who calls; with `None`, that holds for root too.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
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

    /// Checks the name.
    ///
    /// # Errors
    /// A sentence about the name.
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
        let mut parts = rest.split(',');
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
}
