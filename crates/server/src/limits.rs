//! Limits that bound what clients can make the server hold.

use std::time::Duration;

use millrace_buffer::ByteSize;
use millrace_oncrpc::{SMALL_REPLY, serving::BudgetConfig};

use crate::{drc, error::InvalidSetting};

/// The largest READ or WRITE that may be configured: an arena's largest buffer.
pub const MAX_TRANSFER: u64 = millrace_buffer::SPAN_BYTES as u64;
/// Room in a call for everything but its payload.
pub(crate) const CALL_SLACK: usize = 64 << 10;
/// An eighth of the least memory that a connection has for itself where there is enough.
const OWN_UNIT: usize = 4096;
/// READ and WRITE sizes are multiples of this.
pub const TRANSFER_UNIT: u64 = 4096;

/// Limits that bound what clients can make the server hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// The most bytes of one READ, which clients are told to prefer: a multiple of 4096, at most 4 MiB. The larger, the
    /// fewer calls fill a long way (`docs/studies/distance.md`), and the longer others wait.
    pub rtmax: ByteSize,
    /// The same of one WRITE.
    pub wtmax: ByteSize,
    /// The most calls that one RDMA or TCP connection has in progress. An RDMA connection has receives for as many as its
    /// client asks for (Linux always asks for 128), within this.
    pub credits: u32,
    /// Connections at once, both transports together. By default, half as many as the process may have files open (the
    /// other half is for files), and no more than an eighth of `memory` has room for at 32 KiB each. When there are so
    /// many, the one that has been idle longest of the client that has most is closed for a new one.
    pub max_connections: Option<usize>,
    /// Connections at once from one client (an IPv4 address, or the /64 prefix of an IPv6 address), both transports
    /// together. By default a client may have all as long as others have none: it loses them as others come.
    pub max_connections_per_client: Option<usize>,
    /// A client that sends a call, answers RDMA Reads or takes replies more slowly than
    /// [`MIN_RATE`](millrace_oncrpc::serving::MIN_RATE) (16 KiB in a second) loses its connection, and the memory that the call holds,
    /// when it is so many seconds late: 1 to 3600. So does one that sends no call at all for so long after it connected.
    pub stall_timeout: u64,
    /// A connection on which no call came for so many seconds, or up to twice as long, and of which none is in progress,
    /// is closed, and its receives and buffers are free: 1 to 86400; 0: never. Clients connect again with their next
    /// call. Linux's clients close by themselves after 5 minutes, so that the default of 6 (Linux's own server has the
    /// same) ends connections of those alone that do not. A client whose machine no longer answers for a minute loses
    /// its TCP connection in any case.
    pub idle_timeout: u64,
    /// Memory for network buffers of all connections; memory exports come on top with their own capacities, and with an
    /// eighth of this for WRITEs that arrive where their data stays. Each connection has a little for itself; the rest is
    /// shared by those that are busy, client by client.
    pub memory: ByteSize,
    /// The inline threshold of RPC-over-RDMA: the largest message that one Send carries (1024 to 256 KiB).
    pub inline_size: ByteSize,
    /// Receives that the connections of an RDMA device share (`verbs`, on devices with memory windows that are not iWARP):
    /// 16 to 16384. 0, the default: each connection has its own, `inline_size` bytes for each credit that it asks for. Sharing saves memory
    /// where many clients are connected and few are busy; when all are, calls wait for a receive. Where the device cannot
    /// share, the log says so, and each connection has its own.
    pub shared_receives: usize,
    /// The most bytes that the strategy `cache` keeps registered with RDMA devices (`verbs`) for RDMA Reads and Writes,
    /// counted for each connection that uses them. From seven eighths of it on, what is not in use is let go down to half
    /// of it; and all of it while processes of this machine wait for memory (Linux PSI). By default there is no limit:
    /// all memory for buffers and memory exports may be registered, and so pinned.
    pub registration_cache: Option<ByteSize>,
    /// Replies kept to answer retransmitted calls that must not be executed twice. Up to 16 times as many are kept while they
    /// are younger than a minute, so that clients that change much do not push out the replies of others.
    pub replies_kept: usize,
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
    /// [`Self::stall_timeout`].
    pub(crate) fn stall(&self) -> Duration {
        Duration::from_secs(self.stall_timeout)
    }

    /// [`Self::idle_timeout`].
    pub(crate) fn idle(&self) -> Option<Duration> {
        (self.idle_timeout > 0).then(|| Duration::from_secs(self.idle_timeout))
    }

    /// What clients may hold, in a process that may have so many files open.
    pub(crate) fn budget(&self, descriptors: Option<u64>) -> BudgetConfig {
        let bytes = |n: u64| usize::try_from(n).unwrap_or(usize::MAX);
        let replies = self.replies_kept.saturating_mul(drc::GROWTH * SMALL_REPLY);
        let memory = bytes(self.memory.0);
        let memory = memory - replies.min(memory / 4);
        let reserve = memory / 8;
        let own = bytes(self.own());
        let by_files = descriptors.map_or(usize::MAX, |n| bytes(n / 2));
        let connections = self.max_connections.unwrap_or_else(|| by_files.min(reserve / own).max(8));
        BudgetConfig {
            memory,
            own: own.min(reserve / connections),
            largest: bytes(self.max_transfer()).saturating_add(CALL_SLACK + OWN_UNIT),
            connections,
            per_client: self.max_connections_per_client.unwrap_or(usize::MAX),
        }
    }

    /// [`Self::registration_cache`], in bytes.
    pub(crate) fn cache_limit(&self) -> usize {
        self.registration_cache.map_or(usize::MAX, |b| usize::try_from(b.0).unwrap_or(usize::MAX))
    }

    /// The larger of rtmax and wtmax, in bytes.
    pub fn max_transfer(&self) -> u64 {
        self.rtmax.max(self.wtmax).0
    }

    /// Bytes that a connection has for itself where there is enough: the receives of one that has not asked for more, and
    /// some small calls.
    fn own(&self) -> u64 {
        8 * self.inline_size.0.max(OWN_UNIT as u64)
    }

    /// The least memory with which the largest call is executed in the end, whatever idle connections hold: of the shared
    /// memory at most half for receives, and an eighth for their next calls. The largest call may need somewhat more than
    /// twice its size, and the shared memory is at least 21/32 of all ([`Self::budget`]).
    fn least_memory(&self) -> u64 {
        let largest = self.max_transfer() + (CALL_SLACK + OWN_UNIT) as u64;
        let shared = 6 * largest + 8 * self.own();
        (shared * 32 / 21).next_multiple_of(1 << 20)
    }

    /// Checks that the limits are in their ranges and fit together.
    ///
    /// # Errors
    /// A sentence that says what to change.
    pub(crate) fn check(&self) -> Result<(), InvalidSetting> {
        let wrong = |key: &str, what: String| InvalidSetting::new(format!("limits.{key}"), what);
        for (name, ByteSize(v)) in [("rtmax", self.rtmax), ("wtmax", self.wtmax)] {
            if !(TRANSFER_UNIT..=MAX_TRANSFER).contains(&v) || !v.is_multiple_of(TRANSFER_UNIT) {
                return Err(wrong(
                    name,
                    format!("limits.{name} is {v}; it must be a multiple of 4096 between 4096 and 4MiB"),
                ));
            }
        }
        if !(1..=16384).contains(&self.credits) {
            return Err(wrong(
                "credits",
                format!("limits.credits is {}; it must be between 1 and 16384", self.credits),
            ));
        }
        let connections = [
            ("max_connections", self.max_connections),
            ("max_connections_per_client", self.max_connections_per_client),
        ];
        if let Some((name, _)) = connections.iter().find(|(_, n)| *n == Some(0)) {
            return Err(wrong(name, format!("limits.{name} is 0; nobody could connect")));
        }
        if !(1..=3600).contains(&self.stall_timeout) {
            return Err(wrong(
                "stall_timeout",
                format!("limits.stall_timeout is {}; it must be 1 to 3600 seconds", self.stall_timeout),
            ));
        }
        if self.idle_timeout > 86_400 {
            return Err(wrong(
                "idle_timeout",
                format!(
                    "limits.idle_timeout is {}; it must be 1 to 86400 seconds, or 0 for never",
                    self.idle_timeout
                ),
            ));
        }
        if !(1024..=256 << 10).contains(&self.inline_size.0) || !self.inline_size.0.is_multiple_of(1024) {
            return Err(wrong(
                "inline_size",
                format!(
                    "limits.inline_size is {}; it must be a multiple of 1024 between 1024 and 256KiB",
                    self.inline_size
                ),
            ));
        }
        if !matches!(self.shared_receives, 0 | 16..=16384) {
            return Err(wrong(
                "shared_receives",
                format!(
                    "limits.shared_receives is {}; it must be 16 to 16384, or 0 for none",
                    self.shared_receives
                ),
            ));
        }
        if (self.shared_receives as u64).saturating_mul(self.inline_size.0) > self.memory.0 / 2 {
            return Err(wrong(
                "shared_receives",
                format!(
                    "limits.shared_receives is {} times an inline_size of {}: more than half of limits.memory; raise memory \
                 or lower shared_receives",
                    self.shared_receives, self.inline_size
                ),
            ));
        }
        let needed = u64::from(self.credits).saturating_mul(self.max_transfer());
        if needed > self.memory.0 {
            return Err(wrong(
                "memory",
                format!(
                    "limits.memory is {}, but one connection may hold {} (credits {} times {}); raise memory or lower credits",
                    self.memory,
                    ByteSize(needed),
                    self.credits,
                    ByteSize(self.max_transfer())
                ),
            ));
        }
        let least = self.least_memory();
        if least > self.memory.0 {
            return Err(wrong(
                "memory",
                format!(
                    "limits.memory is {}, but calls of {} need at least {} beside idle connections; raise memory or lower \
                     rtmax and wtmax",
                    self.memory,
                    ByteSize(self.max_transfer()),
                    ByteSize(least)
                ),
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use millrace_oncrpc::serving::{Budget, slot_bytes};
    use millrace_runtime::virtual_time::VirtualTime;

    use super::*;

    /// With the least memory that is accepted, connections of as many clients as there may be hold all the receives that
    /// they get; then the largest call has memory at once.
    #[test]
    fn the_largest_call_has_memory_beside_idle_connections() {
        let time = VirtualTime::new(1);
        for (transfer, inline) in [(4096, 4096), (1 << 20, 4096), (4 << 20, 4096), (1 << 20, 256 << 10)] {
            let limits = |memory| Limits {
                rtmax: ByteSize(4096),
                wtmax: ByteSize(transfer),
                credits: 1,
                inline_size: ByteSize(inline),
                memory: ByteSize(memory),
                ..Limits::default()
            };
            let least = limits(0).least_memory();
            limits(least).check().unwrap();
            let refused = limits(least - 1).check().unwrap_err().reason;
            assert!(refused.contains(&ByteSize(least).to_string()), "{refused}");
            let config = limits(least).budget(None);
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
            }
        }
    }
}
