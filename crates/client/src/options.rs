//! Options of a client.

use std::{fmt, str::FromStr, sync::Arc, time::Duration};

use millrace_oncrpc::{AuthSys, Credential, SecurityFlavor};
use millrace_rdma::registration::{Invalidation, Registration, Settings, Strategy};
use millrace_rdma_providers::ProviderChoice;
use millrace_rpcrdma::ProtocolRef;
use millrace_runtime::LocalPort;

use crate::{Tls, Url, Version};

/// The transport.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Proto {
    /// RPC-over-RDMA.
    Rdma,
    /// ONC RPC over TCP.
    Tcp,
}

impl Proto {
    /// The default port.
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

/// Retries of a call after the loss of its connection or session, and while the server asks to repeat it later (JUKEBOX,
/// DELAY).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RetryPolicy {
    /// Time from the start of a call after which no further attempt starts, over failures of all kinds. During the grace
    /// period of an NFSv4 server it is at least two minutes, and two leases. Zero disables retries.
    pub max_elapsed: Duration,
    /// Delay before the second attempt; it doubles with each further attempt.
    pub first_delay: Duration,
    /// Maximum delay.
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
    /// No retries.
    pub const NONE: Self =
        Self { max_elapsed: Duration::ZERO, first_delay: Duration::ZERO, max_delay: Duration::ZERO };
}

/// AUTH_SYS identity of a caller (RFC 5531 appendix A). The default is that of this process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// User ID.
    pub uid: u32,
    /// Group ID.
    pub gid: u32,
    /// Supplementary group IDs. A call contains the first 16.
    pub gids: Vec<u32>,
    /// The name of this host. A call contains the first 255 bytes.
    pub machine: String,
}

impl Default for Identity {
    /// The effective IDs of this process and the host's name, from `/proc`; ID 65534 if `/proc` is not
    /// available.
    fn default() -> Self {
        // "Uid:" and "Gid:" list the real, effective, saved and file system ID.
        let effective = |key| status_numbers("self", key).get(1).copied().unwrap_or(65534);
        let machine = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        let machine = machine.trim().to_owned();
        Self { uid: effective("Uid:"), gid: effective("Gid:"), gids: Self::groups_of("self"), machine }
    }
}

/// The numbers after `key` in `/proc/THREAD/status`; empty if they cannot be read.
fn status_numbers(thread: &str, key: &str) -> Vec<u32> {
    let status = std::fs::read_to_string(format!("/proc/{thread}/status")).unwrap_or_default();
    let line = status.lines().find_map(|l| l.strip_prefix(key));
    line.map(|l| l.split_whitespace().filter_map(|n| n.parse().ok()).collect()).unwrap_or_default()
}

impl Identity {
    /// The supplementary group IDs of a local thread, by its ID or `self`; empty if the thread does not
    /// exist.
    pub fn groups_of(thread: &str) -> Vec<u32> {
        status_numbers(thread, "Groups:")
    }

    /// Returns the credential for RPC calls.
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

/// Options of a client. Parameters of the [`Url`] take precedence.
///
/// ```
/// use std::time::Duration;
/// use millrace_client::{Options, Proto};
///
/// let options = Options::default().proto(Some(Proto::Tcp)).nconnect(4).timeout(Duration::from_secs(5));
/// assert_eq!((options.proto, options.nconnect), (Some(Proto::Tcp), 4));
/// ```
#[derive(Clone)]
#[non_exhaustive]
pub struct Options {
    /// The version of NFS; `None`: the first of 4.2, 4.1 and 3 that the server offers, and in which it has the path.
    pub vers: Option<Version>,
    /// The transport; `None`: the first that answers of those that [`transports`](crate::transports) returns.
    pub proto: Option<Proto>,
    /// Connections to the server, 1 to 64; calls are spread over them.
    pub nconnect: usize,
    /// Maximum size of one READ in bytes; `None`: the server's preferred size, limited by the transport.
    pub rsize: Option<u32>,
    /// Maximum size of one WRITE in bytes; `None`: the server's preferred size, limited by the transport.
    pub wsize: Option<u32>,
    /// Timeout of one transmission of a call.
    pub timeout: Duration,
    /// Timeout of the setup of one connection.
    pub connect_timeout: Duration,
    /// Identity of the caller.
    pub credential: Identity,
    /// Request CRC32C, if the provider supports the choice (iWARP).
    pub crc: bool,
    /// Maximum payload of one lower-layer frame in bytes, if the provider supports the choice (iWARP);
    /// `None`: the provider's default.
    pub max_frame: Option<usize>,
    /// The protocol of RDMA connections, which must be that of the server.
    pub rdma_protocol: ProtocolRef,
    /// The registration strategy: how the client exposes memory to the server.
    pub registration: Strategy,
    /// When [`Strategy::Fast`] invalidates memory windows.
    pub invalidation: Invalidation,
    /// Permits [`Strategy::AllPhysical`], which gives the server access to all buffer memory at any time.
    pub trust_server: bool,
    /// Connect from a port below 1024 if this process has the privilege. Servers may reject other ports
    /// (Linux does, unless the export is `insecure`).
    pub reserved_port: bool,
    /// Maximum number of calls in flight on each connection.
    pub credits: u32,
    /// Time for which the executor's thread polls for a reply before it sleeps, at most a millisecond
    /// ([`millrace_runtime::tokio_rt::busy_poll`]); zero, the default, disables it. It shortens the latency of calls by
    /// the time of a wake-up, and costs processor time. It has an effect on executors with one thread.
    pub busy_poll: Duration,
    /// Retries after the loss of a connection.
    pub retry: RetryPolicy,
    /// The RDMA provider.
    pub provider: ProviderChoice,
    /// TLS of the connections for NFS. MOUNT and rpcbind on other ports are in the clear.
    pub tls: Tls,
    /// The security flavor of the calls; MOUNT has always AUTH_SYS, as Linux's. With Kerberos, the tickets are those of the user
    /// in [`Self::credential`], whose other fields are of no concern: for the user of this process in the default cache
    /// (`KRB5CCNAME`), for root without one from `/etc/krb5.keytab`, for others in `/tmp/krb5cc_UID` or `/run/user/UID`. Calls
    /// with another flavor are never made.
    pub sec: SecurityFlavor,
    /// The domain in the names of the owners of files that NFSv4 servers may send instead of numbers, `alice@example.org`.
    /// Those in this domain are users and groups of this host with the name before it (nsswitch.conf(5)); others, and names
    /// without a user, have the number 65534. `None`: `Domain` of `/etc/idmapd.conf`, else the domain of the host's name.
    pub domain: Option<String>,
    /// Maximum memory for buffers and messages, in bytes. A call that needs more waits up to ten seconds for memory of
    /// others, then it fails with [`crate::Error::OutOfMemory`].
    pub arena_limit: usize,
    /// Maximum amount of unstable data in bytes that one [`crate::handles::File`] retains; above it, the file
    /// commits. Files also commit while all together retain more than half of [`Self::arena_limit`].
    pub unstable_limit: usize,
    /// With NFSv4, changes return the change attribute of the changed object before and after them
    /// ([`Wcc::change`](crate::ops::Wcc::change)), if it proves that nothing else has changed the object, and
    /// attributes have it ([`Attributes::change`](crate::ops::Attributes::change)). Changes of names, and of data if the change
    /// attribute counts them, then return no attributes. NFSv3 servers return the attributes before a change without
    /// request. A cache of files and names needs one of both.
    pub attributes_before: bool,
    /// Samples one call in this number for the latency breakdown ([`millrace_oncrpc::stages`]); 0 disables
    /// it.
    pub sample_stages: u32,
    /// Measures the amount and duration of memory exposure over RDMA (`requester.exposure` in
    /// [`crate::ConnectionStats`]). Each call then reads the clock several times.
    pub measure_exposure: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            vers: None,
            proto: None,
            nconnect: 1,
            rsize: None,
            wsize: None,
            timeout: Duration::from_secs(30),
            connect_timeout: Duration::from_secs(10),
            credential: Identity::default(),
            crc: false,
            max_frame: None,
            rdma_protocol: ProtocolRef::default(),
            registration: Strategy::Fast,
            invalidation: Invalidation::default(),
            trust_server: false,
            reserved_port: true,
            credits: 64,
            busy_poll: Duration::ZERO,
            retry: RetryPolicy::default(),
            provider: ProviderChoice::default(),
            tls: Tls::default(),
            sec: SecurityFlavor::Sys,
            domain: None,
            arena_limit: 1 << 30,
            unstable_limit: 128 << 20,
            attributes_before: false,
            sample_stages: millrace_oncrpc::stages::DEFAULT_SAMPLE,
            measure_exposure: false,
        }
    }
}

/// Passes the list of setters, one for each field, to the macro `$define`.
macro_rules! with_setters {
    ($define:ident) => {
        $define! {
            /// Sets [`Options::vers`], the version of NFS.
            vers: Option<Version>,
            /// Sets [`Options::proto`], the transport.
            proto: Option<Proto>,
            /// Sets [`Options::nconnect`], the number of connections (1 to 64).
            nconnect: usize,
            /// Sets [`Options::rsize`], the maximum size of one READ in bytes.
            rsize: Option<u32>,
            /// Sets [`Options::wsize`], the maximum size of one WRITE in bytes.
            wsize: Option<u32>,
            /// Sets [`Options::timeout`], the timeout of one transmission of a call.
            timeout: Duration,
            /// Sets [`Options::connect_timeout`], the timeout of the setup of one connection.
            connect_timeout: Duration,
            /// Sets [`Options::credential`], the AUTH_SYS identity of the calls.
            credential: Identity,
            /// Sets [`Options::crc`].
            crc: bool,
            /// Sets [`Options::max_frame`], in bytes.
            max_frame: Option<usize>,
            /// Sets [`Options::rdma_protocol`].
            rdma_protocol: ProtocolRef,
            /// Sets [`Options::registration`], the memory registration strategy.
            registration: Strategy,
            /// Sets [`Options::invalidation`].
            invalidation: Invalidation,
            /// Sets [`Options::trust_server`].
            trust_server: bool,
            /// Sets [`Options::reserved_port`].
            reserved_port: bool,
            /// Sets [`Options::credits`], the maximum number of calls in flight on each connection.
            credits: u32,
            /// Sets [`Options::busy_poll`], the time to poll for a reply before the thread sleeps.
            busy_poll: Duration,
            /// Sets [`Options::retry`].
            retry: RetryPolicy,
            /// Sets [`Options::provider`], the RDMA provider.
            provider: ProviderChoice,
            /// Sets [`Options::tls`], the protection of connections.
            tls: Tls,
            /// Sets [`Options::sec`], the security flavor.
            sec: SecurityFlavor,
            /// Sets [`Options::domain`], the domain in the names of owners.
            domain: Option<String>,
            /// Sets [`Options::arena_limit`], in bytes.
            arena_limit: usize,
            /// Sets [`Options::unstable_limit`], in bytes for each file.
            unstable_limit: usize,
            /// Sets [`Options::attributes_before`].
            attributes_before: bool,
            /// Sets [`Options::sample_stages`].
            sample_stages: u32,
            /// Sets [`Options::measure_exposure`].
            measure_exposure: bool,
        }
    };
}

pub(crate) use with_setters;

/// Defines setters on [`Options`].
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
    };
}

with_setters!(setters);

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options")
            .field("vers", &self.vers)
            .field("proto", &self.proto)
            .field("nconnect", &self.nconnect)
            .field("rsize", &self.rsize)
            .field("wsize", &self.wsize)
            .field("timeout", &self.timeout)
            .field("credential", &self.credential)
            .field("rdma_protocol", &self.rdma_protocol)
            .field("registration", &self.registration)
            .field("credits", &self.credits)
            .field("retry", &self.retry)
            .field("provider", &self.provider)
            .field("tls", &self.tls)
            .field("sec", &self.sec)
            .finish_non_exhaustive()
    }
}

impl Options {
    /// Returns these options overridden by those of `url`.
    #[must_use]
    pub fn with_url(mut self, url: &Url) -> Self {
        self.vers = url.vers.or(self.vers);
        self.proto = url.proto.or(self.proto);
        self.provider = url.provider.unwrap_or(self.provider);
        self.nconnect = url.nconnect.unwrap_or(self.nconnect);
        self.busy_poll = url.busy_poll.unwrap_or(self.busy_poll);
        self.rsize = url.rsize.or(self.rsize);
        self.wsize = url.wsize.or(self.wsize);
        self.reserved_port = url.resvport.unwrap_or(self.reserved_port);
        self.registration = url.registration.unwrap_or(self.registration);
        self.sec = url.sec.unwrap_or(self.sec);
        self.tls = url.tls.clone().or(self.tls);
        self
    }

    /// The transport that the options name. A provider is one of RDMA.
    pub(crate) fn stated_proto(&self) -> Option<Proto> {
        let provider = (self.provider != ProviderChoice::Auto).then_some(Proto::Rdma);
        self.proto.or(provider)
    }

    pub(crate) fn local_port(&self) -> LocalPort {
        if self.reserved_port { LocalPort::Reserved } else { LocalPort::Any }
    }

    /// Creates the registration. The strategy `cache` uses up to a quarter of the buffer memory.
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
