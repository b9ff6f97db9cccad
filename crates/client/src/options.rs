//! How a client connects and behaves.

use std::{fmt, str::FromStr, sync::Arc, time::Duration};

use millrace_oncrpc::{AuthSys, Credential};
use millrace_rdma_providers::ProviderChoice;
use millrace_rpcrdma::{
    Design, Padding,
    registration::{Invalidation, Registration, Settings, Strategy},
};
use millrace_runtime::LocalPort;

use crate::Url;

/// The transport.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Proto {
    /// RPC-over-RDMA.
    #[default]
    Rdma,
    /// ONC RPC over TCP.
    Tcp,
}

impl Proto {
    /// The port that it has unless the URL names one.
    pub const fn default_port(self) -> u16 {
        match self {
            Self::Rdma => millrace_nfs::v3::PORT_RDMA,
            Self::Tcp => millrace_nfs::v3::PORT_TCP,
        }
    }
}

impl fmt::Display for Proto {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Rdma => "rdma",
            Self::Tcp => "tcp",
        })
    }
}

impl FromStr for Proto {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        match s {
            "rdma" => Ok(Self::Rdma),
            "tcp" => Ok(Self::Tcp),
            _ => Err(format!("unknown transport {s:?}: use rdma or tcp")),
        }
    }
}

/// How long and how often a call is tried when its connection is lost or the server asks for patience.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RetryPolicy {
    /// From the first try of a call to the moment when no further try begins. Zero: one try only.
    pub max_elapsed: Duration,
    /// The pause before the second try to connect; it doubles with each further one.
    pub first_delay: Duration,
    /// The longest pause.
    pub max_delay: Duration,
}

impl Default for RetryPolicy {
    fn default() -> Self {
        Self {
            max_elapsed: Duration::from_secs(60),
            first_delay: Duration::from_millis(20),
            max_delay: Duration::from_secs(5),
        }
    }
}

impl RetryPolicy {
    /// One try only.
    pub const NONE: Self =
        Self { max_elapsed: Duration::ZERO, first_delay: Duration::ZERO, max_delay: Duration::ZERO };
}

/// Who calls: the AUTH_SYS identity. The default is the process's own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// User id.
    pub uid: u32,
    /// Group id.
    pub gid: u32,
    /// Further groups; only 16 fit into a call, the others are left out.
    pub gids: Vec<u32>,
    /// The name of this machine; at most 255 bytes of it are told.
    pub machine: String,
}

impl Default for Identity {
    /// Effective ids of this process and the host's name as the kernel tells them; those of nobody (65534) where it
    /// does not.
    fn default() -> Self {
        // "Uid:" and "Gid:" list the real, effective, saved and file system id.
        let effective = |key| status_numbers("self", key).get(1).copied().unwrap_or(65534);
        let machine = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        let machine = machine.trim().to_owned();
        Self { uid: effective("Uid:"), gid: effective("Gid:"), gids: Self::groups_of("self"), machine }
    }
}

/// The numbers behind `key` in `/proc/THREAD/status`; none if they cannot be read.
fn status_numbers(thread: &str, key: &str) -> Vec<u32> {
    let status = std::fs::read_to_string(format!("/proc/{thread}/status")).unwrap_or_default();
    let line = status.lines().find_map(|l| l.strip_prefix(key));
    line.map(|l| l.split_whitespace().filter_map(|n| n.parse().ok()).collect()).unwrap_or_default()
}

impl Identity {
    /// The supplementary groups of a thread of this machine, by its number or `self`; none if it is not there to ask.
    pub fn groups_of(thread: &str) -> Vec<u32> {
        status_numbers(thread, "Groups:")
    }

    /// As a credential of RPC calls.
    pub(crate) fn credential(&self) -> Credential {
        Credential::Sys(AuthSys {
            stamp: std::process::id(),
            machine: self.machine.bytes().take(255).collect(),
            uid: self.uid,
            gid: self.gid,
            gids: self.gids.iter().copied().take(16).collect(),
        })
    }
}

/// How a client connects and behaves. Parameters of the [`Url`] take precedence.
///
/// ```
/// use std::time::Duration;
/// use millrace_client::{Options, Proto};
///
/// let options = Options::default().proto(Proto::Tcp).nconnect(4).timeout(Duration::from_secs(5));
/// assert_eq!((options.proto, options.nconnect), (Proto::Tcp, 4));
/// ```
#[derive(Clone)]
#[non_exhaustive]
pub struct Options {
    /// The transport.
    pub proto: Proto,
    /// Connections to the server, 1 to 64; calls are spread over them.
    pub nconnect: usize,
    /// The most bytes of one READ; `None`: what the server prefers, as far as the transport
    /// carries it.
    pub rsize: Option<u32>,
    /// The most bytes of one WRITE; `None`: what the server prefers, as far as the transport
    /// carries it.
    pub wsize: Option<u32>,
    /// How long one try of a call may take.
    pub timeout: Duration,
    /// How long the set-up of one connection may take.
    pub connect_timeout: Duration,
    /// Who calls.
    pub credential: Identity,
    /// Ask for CRC32C under RDMA, where the provider leaves a choice (iWARP).
    pub crc: bool,
    /// The most payload bytes in one lower-layer frame, where the provider leaves a choice (iWARP); `None`: its best.
    pub max_frame: Option<usize>,
    /// How results reach us over RDMA. The server must use the same design.
    pub design: Design,
    /// Send small calls that bring data (WRITEs that need no RDMA Read) as RDMA_MSGP, padded so. Only the Read-Read
    /// design has it (RFC 8166 has removed it): with the other one no connection is made.
    pub padding: Option<Padding>,
    /// How the memory of calls becomes reachable for the server.
    pub registration: Strategy,
    /// When [`Strategy::Fast`] invalidates its windows.
    pub invalidation: Invalidation,
    /// The server may reach all memory for buffers at any time: [`Strategy::AllPhysical`] is refused without this.
    pub trust_server: bool,
    /// Connect from a port below 1024 where this process may: servers may refuse others (Linux does, for exports that
    /// are not `insecure`).
    pub reserved_port: bool,
    /// Calls in flight on each connection.
    pub credits: u32,
    /// What happens when connections are lost.
    pub retry: RetryPolicy,
    /// The RDMA provider.
    pub provider: ProviderChoice,
    /// The most bytes of memory for buffers and messages.
    pub arena_limit: usize,
    /// The most bytes of unstable data that one [`crate::nfs3::File`] retains before it commits by itself.
    pub unstable_limit: usize,
    /// Samples one call in this number for the latency breakdown ([`millrace_oncrpc::stages`]); 0 disables it.
    pub sample_stages: u32,
    /// Measures how much memory the server can reach over RDMA, and for how long (`requester.exposure` in
    /// [`crate::ConnectionStats`]). Each call then reads the clock several times.
    pub measure_exposure: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            proto: Proto::default(),
            nconnect: 1,
            rsize: None,
            wsize: None,
            timeout: Duration::from_secs(30),
            connect_timeout: Duration::from_secs(10),
            credential: Identity::default(),
            crc: false,
            max_frame: None,
            design: Design::default(),
            padding: None,
            registration: Strategy::Fast,
            invalidation: Invalidation::default(),
            trust_server: false,
            reserved_port: true,
            credits: 64,
            retry: RetryPolicy::default(),
            provider: ProviderChoice::default(),
            arena_limit: 1 << 30,
            unstable_limit: 128 << 20,
            sample_stages: millrace_oncrpc::stages::DEFAULT_SAMPLE,
            measure_exposure: false,
        }
    }
}

/// Defines one setter for each field, on [`Options`] and on [`crate::ClientBuilder`].
macro_rules! setters {
    ($($(#[$doc:meta])* $name:ident: $type:ty,)*) => {
        impl Options {
            $(
                $(#[$doc])*
                #[must_use]
                pub fn $name(mut self, $name: $type) -> Self {
                    self.$name = $name;
                    self
                }
            )*
        }

        impl crate::ClientBuilder {
            $(
                $(#[$doc])*
                pub fn $name(mut self, $name: $type) -> Self {
                    self.options.$name = $name;
                    self
                }
            )*
        }
    };
}

setters! {
    /// Sets [`Options::proto`], the transport.
    proto: Proto,
    /// Sets [`Options::nconnect`], the number of connections (1 to 64).
    nconnect: usize,
    /// Sets [`Options::rsize`], the most bytes of one READ.
    rsize: Option<u32>,
    /// Sets [`Options::wsize`], the most bytes of one WRITE.
    wsize: Option<u32>,
    /// Sets [`Options::timeout`], the limit for one try of a call.
    timeout: Duration,
    /// Sets [`Options::connect_timeout`], the limit for the set-up of one connection.
    connect_timeout: Duration,
    /// Sets [`Options::credential`], the AUTH_SYS identity of the calls.
    credential: Identity,
    /// Sets [`Options::crc`].
    crc: bool,
    /// Sets [`Options::max_frame`], in bytes.
    max_frame: Option<usize>,
    /// Sets [`Options::design`].
    design: Design,
    /// Sets [`Options::padding`].
    padding: Option<Padding>,
    /// Sets [`Options::registration`], the memory registration strategy.
    registration: Strategy,
    /// Sets [`Options::invalidation`].
    invalidation: Invalidation,
    /// Sets [`Options::trust_server`].
    trust_server: bool,
    /// Sets [`Options::reserved_port`].
    reserved_port: bool,
    /// Sets [`Options::credits`], the calls in flight on each connection.
    credits: u32,
    /// Sets [`Options::retry`].
    retry: RetryPolicy,
    /// Sets [`Options::provider`], the RDMA provider.
    provider: ProviderChoice,
    /// Sets [`Options::arena_limit`], in bytes.
    arena_limit: usize,
    /// Sets [`Options::unstable_limit`], in bytes for each file.
    unstable_limit: usize,
    /// Sets [`Options::sample_stages`].
    sample_stages: u32,
    /// Sets [`Options::measure_exposure`].
    measure_exposure: bool,
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options")
            .field("proto", &self.proto)
            .field("nconnect", &self.nconnect)
            .field("rsize", &self.rsize)
            .field("wsize", &self.wsize)
            .field("timeout", &self.timeout)
            .field("credential", &self.credential)
            .field("design", &self.design)
            .field("padding", &self.padding)
            .field("registration", &self.registration)
            .field("credits", &self.credits)
            .field("retry", &self.retry)
            .field("provider", &self.provider)
            .finish_non_exhaustive()
    }
}

impl Options {
    /// These options with what `url` states.
    #[must_use]
    pub fn with_url(mut self, url: &Url) -> Self {
        self.proto = url.proto.unwrap_or(self.proto);
        self.provider = url.provider.unwrap_or(self.provider);
        self.nconnect = url.nconnect.unwrap_or(self.nconnect);
        self.rsize = url.rsize.or(self.rsize);
        self.wsize = url.wsize.or(self.wsize);
        self.reserved_port = url.resvport.unwrap_or(self.reserved_port);
        self.registration = url.registration.unwrap_or(self.registration);
        self
    }

    pub(crate) fn local_port(&self) -> LocalPort {
        if self.reserved_port { LocalPort::Reserved } else { LocalPort::Any }
    }

    /// The registration strategy. `cache` keeps up to a quarter of the memory for buffers.
    pub(crate) fn new_registration(&self) -> Arc<Registration> {
        Arc::new(Registration::new(Settings {
            invalidation: self.invalidation,
            trust_peer: self.trust_server,
            cache_limit: self.arena_limit / 4,
            ..Settings::new(self.registration)
        }))
    }
}

impl From<&Url> for Options {
    fn from(url: &Url) -> Self {
        Self::default().with_url(url)
    }
}
