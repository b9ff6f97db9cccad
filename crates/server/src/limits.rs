//! Limits of the resources that clients can use.

use std::time::Duration;

use millrace_admission::BudgetConfig;
use millrace_buffer::{Arena, ArenaConfig, ByteSize, SPAN_BYTES};
use millrace_iscsi_target::MAX_COMMAND_MEMORY;
use millrace_oncrpc::SMALL_REPLY;
use millrace_scsi::MAX_TRANSFER_BYTES;

use crate::{drc, error::InvalidSetting};

/// Maximum configurable size of READ and WRITE in bytes: the largest buffer of an arena.
pub const MAX_TRANSFER: u64 = SPAN_BYTES as u64;
/// Maximum bytes of a call except its payload.
pub(crate) const CALL_SLACK: usize = 64 << 10;
/// An eighth of the minimum memory reserved for a connection, if the memory suffices.
const OWN_UNIT: usize = 4096;
/// Size in bytes up to which buffers may use the reserve of the arena, for any `inline_size`; pieces of bulk data are
/// larger.
const MAX_SMALL_BUFFER: u64 = 32 << 10;
/// READ and WRITE sizes are multiples of this number of bytes.
pub const TRANSFER_UNIT: u64 = 4096;

/// Limits of the resources that clients can use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// Maximum and preferred bytes of one READ, as FSINFO reports: a multiple of 4096, at most 4 MiB. On
    /// high-latency links larger transfers need fewer calls in flight (`docs/lab/studies/distance.md`), at the
    /// cost of latency for other calls.
    pub rtmax: ByteSize,
    /// Maximum and preferred bytes of one WRITE, as for `rtmax`.
    pub wtmax: ByteSize,
    /// Maximum number of calls in progress on one RDMA or TCP connection: 1 to 16384. An RDMA connection
    /// posts receives for the credits that its client requests (Linux always requests 128), up to this limit.
    pub credits: u32,
    /// Maximum number of connections over both transports. The default is half the limit of open files (the
    /// other half is for files), and at most the number of connections with 32 KiB each in an eighth of
    /// `memory`. At the limit, a new connection replaces the longest idle one of the client with the most
    /// connections.
    pub max_connections: Option<usize>,
    /// Maximum number of connections of one client (an IPv4 address, or the /64 prefix of an IPv6 address)
    /// over both transports. By default a single client may have all connections, and loses some when other
    /// clients connect.
    pub max_connections_per_client: Option<usize>,
    /// Tolerated delay in seconds, 1 to 3600. A client that sends a call, answers RDMA Reads or receives
    /// replies more slowly than [`MIN_RATE`](millrace_admission::MIN_RATE) (16 KiB per second) is
    /// disconnected after this delay, which frees the memory of the call. So is a client that sends no call
    /// within this time after it connected.
    pub stall_timeout: u64,
    /// A connection without calls in progress is closed after this number of seconds without a new call, or
    /// up to twice this number, which frees its receives and buffers: 1 to 86400, or 0 for never. Clients
    /// reconnect with their next call. Linux's clients close idle connections after 5 minutes, so the default
    /// of 6 minutes, which is that of Linux's server, affects other clients only. A TCP connection to a host
    /// that does not respond for a minute is always closed.
    pub idle_timeout: u64,
    /// Memory for network buffers of all connections. Memory exports have separate capacities, and an
    /// additional eighth of this limit for WRITEs that are placed in their final location. Each connection
    /// has some reserved memory; busy clients share the rest.
    pub memory: ByteSize,
    /// The inline threshold of RPC-over-RDMA, the maximum bytes of one Send: a multiple of 1024 from 1024 to
    /// 256 KiB.
    pub inline_size: ByteSize,
    /// Number of receives that the connections of an RDMA device share (`verbs`, on devices with memory
    /// windows except iWARP): 16 to 16384. With 0, the default, each connection has separate receives of
    /// `inline_size` bytes for the credits that it requests. Sharing saves memory if many clients are
    /// connected and few are busy; if all are busy, calls wait for a receive. If a device does not support
    /// sharing, the server logs it and uses separate receives.
    pub shared_receives: usize,
    /// Maximum bytes that the strategy `cache` keeps registered with RDMA devices (`verbs`) for RDMA Reads
    /// and Writes, counted for each connection that uses them. Above seven eighths of the limit, idle
    /// registrations are released down to half of it; under memory pressure (Linux PSI), all idle
    /// registrations are released. By default there is no limit: all buffer memory and memory exports may be
    /// registered, and therefore pinned.
    pub registration_cache: Option<ByteSize>,
    /// Number of replies cached for retransmissions of non-idempotent calls. The cache may grow to 16 times
    /// this number while its replies are younger than a minute, so that busy clients do not evict the replies
    /// of others.
    pub replies_kept: usize,
}

fn bytes(n: u64) -> usize {
    usize::try_from(n).unwrap_or(usize::MAX)
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            rtmax: ByteSize(1 << 20),
            wtmax: ByteSize(1 << 20),
            credits: 64,
            max_connections: None,
            max_connections_per_client: None,
            stall_timeout: 60,
            idle_timeout: 6 * 60,
            memory: ByteSize(1 << 30),
            inline_size: ByteSize(4096),
            shared_receives: 0,
            registration_cache: None,
            replies_kept: 4096,
        }
    }
}

impl Limits {
    /// [`Self::stall_timeout`] as a duration.
    pub(crate) fn stall(&self) -> Duration {
        Duration::from_secs(self.stall_timeout)
    }

    /// [`Self::idle_timeout`] as a duration; `None` for never.
    pub(crate) fn idle(&self) -> Option<Duration> {
        (self.idle_timeout > 0).then(|| Duration::from_secs(self.idle_timeout))
    }

    /// The budget of clients in a process that may open `descriptors` files, with or without iSCSI.
    pub(crate) fn budget(&self, descriptors: Option<u64>, iscsi: bool) -> BudgetConfig {
        let reserve = self.reserved_for_connections();
        let own = bytes(self.own());
        let by_files = descriptors.map_or(usize::MAX, |n| bytes(n / 2));
        let connections = self.max_connections.unwrap_or_else(|| by_files.min(reserve / own).max(8));
        let own = own.min(reserve / connections);
        // Bulk data, which uses the shared memory, cannot use the arena's reserve.
        let shared_and_own = bytes(self.memory.0) - self.small_reserve() + own * connections;
        BudgetConfig {
            memory: self.memory_of_budget().min(shared_and_own),
            own,
            largest: bytes(self.largest(iscsi)),
            connections,
            per_client: self.max_connections_per_client.unwrap_or(usize::MAX),
        }
    }

    /// The memory of clients without that of cached replies, in bytes.
    fn memory_of_budget(&self) -> usize {
        let replies = self.replies_kept.saturating_mul(drc::GROWTH * SMALL_REPLY);
        let memory = bytes(self.memory.0);
        memory - replies.min(memory / 4) - bytes(self.session_replies())
    }

    /// Memory that is divided among the connections, of which each has [`Self::own`] bytes if it suffices.
    fn reserved_for_connections(&self) -> usize {
        self.memory_of_budget() / 8
    }

    /// Memory of the arena that bulk data cannot use: an eighth in whole spans.
    fn small_reserve(&self) -> usize {
        bytes(self.memory.0) / 8 / SPAN_BYTES * SPAN_BYTES
    }

    /// The arena for network buffers, with a reserve for receives and the heads of messages.
    pub(crate) fn arena(&self) -> Arena {
        let small = self.inline_size.0.clamp(OWN_UNIT as u64, MAX_SMALL_BUFFER);
        let config = ArenaConfig { limit: bytes(self.memory.0), huge_pages: true };
        Arena::with_small_reserve(config, self.small_reserve(), bytes(small))
    }

    /// [`Self::registration_cache`] in bytes.
    pub(crate) fn cache_limit(&self) -> usize {
        self.registration_cache.map_or(usize::MAX, |b| usize::try_from(b.0).unwrap_or(usize::MAX))
    }

    /// Memory for replies that the slots of NFSv4 sessions keep, in bytes.
    pub(crate) fn session_replies(&self) -> u64 {
        self.memory.0 / 16
    }

    /// The larger of rtmax and wtmax, in bytes.
    pub fn max_transfer(&self) -> u64 {
        self.rtmax.max(self.wtmax).0
    }

    /// Maximum memory of one call, or of one SCSI command if there is `iscsi`, in bytes.
    fn largest(&self, iscsi: bool) -> u64 {
        let call = self.max_transfer().saturating_add((CALL_SLACK + OWN_UNIT) as u64);
        if iscsi { call.max(MAX_COMMAND_MEMORY as u64) } else { call }
    }

    /// Bytes reserved for each connection if the memory suffices: the initial receives and some small calls.
    fn own(&self) -> u64 {
        8 * self.inline_size.0.max(OWN_UNIT as u64)
    }

    /// Minimum memory with which the largest call can be executed beside idle connections. Receives use at
    /// most half of the shared memory, and idle connections an eighth for their next calls. The largest call
    /// may need slightly more than twice its size, and the shared memory is at least 21/32 of the total
    /// ([`Self::budget`]).
    fn least_memory(&self, iscsi: bool) -> u64 {
        let shared = 6 * self.largest(iscsi) + 8 * self.own();
        (shared * 32 / 21).next_multiple_of(1 << 20)
    }

    /// The reason why not each connection has at least half of the memory that is to be reserved for it.
    fn too_many_connections(&self) -> Option<String> {
        let (reserve, least) = (self.reserved_for_connections() as u64, self.own() / 2);
        let connections = self.max_connections.map(|n| n as u64)?;
        let most = reserve / least;
        (connections > most.max(8)).then(|| format!(
            "limits.max_connections is {connections}, but each connection reserves {}, and limits.memory of {} suffices \
             for {most}; raise memory or lower max_connections",
            ByteSize(least),
            self.memory
        ))
    }

    /// The limits that are out of range or else inconsistent, with the required change, for a server with or without iSCSI.
    pub(crate) fn invalid(&self, iscsi: bool) -> Vec<InvalidSetting> {
        let out_of_range = self.out_of_range();
        // The calculations below do not overflow with limits in their ranges.
        if out_of_range.is_empty() { self.inconsistent(iscsi) } else { out_of_range }
    }

    fn out_of_range(&self) -> Vec<InvalidSetting> {
        let mut invalid = Vec::new();
        let mut add = |key: &str, what| invalid.push(InvalidSetting::new(format!("limits.{key}"), what));
        for (name, ByteSize(v)) in [("rtmax", self.rtmax), ("wtmax", self.wtmax)] {
            if !(TRANSFER_UNIT..=MAX_TRANSFER).contains(&v) || !v.is_multiple_of(TRANSFER_UNIT) {
                add(
                    name,
                    format!("limits.{name} is {v}; it must be a multiple of 4096 between 4096 and 4MiB"),
                );
            }
        }
        if !(1..=16384).contains(&self.credits) {
            add("credits", format!("limits.credits is {}; it must be between 1 and 16384", self.credits));
        }
        let connections = [
            ("max_connections", self.max_connections),
            ("max_connections_per_client", self.max_connections_per_client),
        ];
        for (name, _) in connections.iter().filter(|(_, n)| *n == Some(0)) {
            add(name, format!("limits.{name} is 0; no client could connect"));
        }
        if !(1..=3600).contains(&self.stall_timeout) {
            add(
                "stall_timeout",
                format!("limits.stall_timeout is {}; it must be 1 to 3600 seconds", self.stall_timeout),
            );
        }
        if self.idle_timeout > 86_400 {
            add(
                "idle_timeout",
                format!(
                    "limits.idle_timeout is {}; it must be 1 to 86400 seconds, or 0 for never",
                    self.idle_timeout
                ),
            );
        }
        if !(1024..=256 << 10).contains(&self.inline_size.0) || !self.inline_size.0.is_multiple_of(1024) {
            add(
                "inline_size",
                format!(
                    "limits.inline_size is {}; it must be a multiple of 1024 between 1024 and 256KiB",
                    self.inline_size
                ),
            );
        }
        if !matches!(self.shared_receives, 0 | 16..=16384) {
            add(
                "shared_receives",
                format!(
                    "limits.shared_receives is {}; it must be 16 to 16384, or 0 for none",
                    self.shared_receives
                ),
            );
        }
        invalid
    }

    fn inconsistent(&self, iscsi: bool) -> Vec<InvalidSetting> {
        let mut invalid = Vec::new();
        let mut add = |key: &str, what| invalid.push(InvalidSetting::new(format!("limits.{key}"), what));
        if let Some(what) = self.too_many_connections() {
            add("max_connections", what);
        }
        if (self.shared_receives as u64).saturating_mul(self.inline_size.0) > self.memory.0 / 2 {
            add(
                "shared_receives",
                format!(
                    "limits.shared_receives is {} times an inline_size of {}: more than half of limits.memory; raise memory \
                 or lower shared_receives",
                    self.shared_receives, self.inline_size
                ),
            );
        }
        let needed = u64::from(self.credits).saturating_mul(self.max_transfer());
        if needed > self.memory.0 {
            add(
                "memory",
                format!(
                    "limits.memory is {}, but one connection may hold {} (credits {} times {}); raise memory or lower credits",
                    self.memory,
                    ByteSize(needed),
                    self.credits,
                    ByteSize(self.max_transfer())
                ),
            );
        }
        let least = self.least_memory(iscsi);
        if least > self.memory.0 {
            let (what, remedy) = match iscsi && self.largest(true) > self.largest(false) {
                true => (
                    format!("SCSI commands of {}", ByteSize(MAX_TRANSFER_BYTES.into())),
                    "remove the targets",
                ),
                false => (format!("calls of {}", ByteSize(self.max_transfer())), "lower rtmax and wtmax"),
            };
            add(
                "memory",
                format!(
                    "limits.memory is {}, but {what} need at least {} beside idle connections; raise memory or {remedy}",
                    self.memory,
                    ByteSize(least)
                ),
            );
        }
        invalid
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use millrace_admission::Budget;
    use millrace_buffer::slot_bytes;
    use millrace_runtime::virtual_time::VirtualTime;

    use super::*;

    #[test]
    fn each_connection_has_reserved_memory_for_small_calls() {
        let limits = |n| Limits { max_connections: Some(n), memory: ByteSize(64 << 20), ..Limits::default() };
        let most = limits(1).reserved_for_connections() / (limits(1).own() as usize / 2);
        assert_eq!(limits(most).invalid(false), []);
        assert!(limits(most).budget(None, false).own >= 16 << 10);
        let refused = limits(most + 1).invalid(false).remove(0);
        let expected = format!(
            "limits.max_connections is {}, but each connection reserves 16KiB, and limits.memory of 64MiB suffices for \
             {most}; raise memory or lower max_connections",
            most + 1
        );
        assert_eq!(refused.reason, expected);
    }

    /// The memory that the budget shares fits into the arena without its reserve, so bulk data waits for the budget
    /// only.
    #[test]
    fn the_shared_memory_does_not_include_the_reserve_of_the_arena() {
        for (mib, connections, replies_kept) in
            [(12, None, 0), (64, Some(1), 0), (1024, Some(8), 0), (1024, None, 4096)]
        {
            let limits = Limits {
                memory: ByteSize(mib << 20),
                credits: 8,
                max_connections: connections,
                replies_kept,
                ..Limits::default()
            };
            assert_eq!(limits.invalid(false), []);
            let config = limits.budget(None, false);
            let large = limits.arena();
            let bulk: Vec<_> = std::iter::from_fn(|| large.alloc(64 << 10).ok()).collect();
            let bulk = bulk.len() * (64 << 10);
            assert!(bulk >= config.memory - config.own * config.connections, "{limits:?}");
            assert_eq!((mib << 20) as usize - bulk, limits.small_reserve(), "{limits:?}");
            assert!(large.alloc(4096).is_ok() || limits.small_reserve() == 0);
        }
    }

    /// With the minimum memory, the maximum number of clients holds as many receives as permitted; then the
    /// largest call gets memory immediately.
    #[test]
    fn the_largest_call_has_memory_beside_idle_connections() {
        let time = VirtualTime::new(1);
        for (transfer, inline, iscsi) in [
            (4096, 4096, false),
            (1 << 20, 4096, false),
            (4 << 20, 4096, false),
            (1 << 20, 256 << 10, false),
            (1 << 20, 4096, true),
            (4 << 20, 256 << 10, true),
        ] {
            let limits = |memory| Limits {
                rtmax: ByteSize(4096),
                wtmax: ByteSize(transfer),
                credits: 1,
                inline_size: ByteSize(inline),
                memory: ByteSize(memory),
                ..Limits::default()
            };
            let least = limits(0).least_memory(iscsi);
            assert_eq!(limits(least).invalid(iscsi), []);
            let refused = limits(least - 1).invalid(iscsi).remove(0).reason;
            assert!(refused.contains(&ByteSize(least).to_string()), "{refused}");
            let config = limits(least).budget(None, iscsi);
            assert!(!iscsi || config.largest >= MAX_COMMAND_MEMORY);
            let budget = Budget::new(config, time.runtime());
            let receive = slot_bytes(inline as usize);
            let mut accounts: Vec<_> = (0..config.connections as u32)
                .map(|n| {
                    let mut account = budget.open(IpAddr::from(n.to_be_bytes()).into()).unwrap();
                    account.take_receives_unconditionally(5 * receive);
                    (1..64).take_while(|_| account.take_receives(receive)).for_each(drop);
                    account
                })
                .collect();
            for account in &mut accounts {
                assert!(account.take(config.largest), "{least} for {transfer}: {:?}", budget.stats());
                account.give(config.largest);
                // A directory page may be larger than a small READ or WRITE.
                let page = slot_bytes(crate::bulk::MAX_PAGE as usize) + SMALL_REPLY;
                assert!(account.take(page), "{least} for {transfer}: {:?}", budget.stats());
                account.give(page);
            }
        }
    }
}
