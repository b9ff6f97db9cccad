//! A simulated machine: its cores, its memory, its adapter's engines, its ports.

use std::{collections::VecDeque, net::IpAddr};

use super::profile::Profile;

/// Picoseconds in a nanosecond: transmission times are kept so, lest rounding add up over packets.
pub(super) const PS: u64 = 1000;

/// What a host's processors and adapter have done so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct HostUse {
    /// Processor time, all cores together, in nanoseconds.
    pub cpu_ns: u64,
    /// Registrations of memory, for the peer's use and for its own.
    pub registrations: u64,
    /// Windows that were bound.
    pub binds: u64,
    /// Payload bytes that its adapter sent.
    pub bytes_out: u64,
    /// Payload bytes that its adapter received.
    pub bytes_in: u64,
}

/// One end of one connection: the connection's number, and which end.
pub(super) type EndId = (u64, usize);

/// The way out of a host: connections take turns, a few packets each.
#[derive(Default)]
pub(super) struct Egress {
    /// Ends with something to send, in turn.
    pub(super) turns: VecDeque<EndId>,
    pub(super) busy: bool,
    /// When the last bit that was sent left, in picoseconds.
    pub(super) free_ps: u64,
}

pub(super) struct Host {
    pub(super) ip: IpAddr,
    /// When each core is free again.
    cores: Vec<u64>,
    /// When the adapter can begin another work request.
    engine_free: u64,
    /// When the adapter can change its translation table again.
    table_free: u64,
    /// When its memory has done all that it was asked for, in picoseconds.
    memory_free_ps: u64,
    /// When it has done what the adapter asked for.
    adapter_memory_ps: u64,
    pub(super) egress: Egress,
    /// When the way in is free again, in picoseconds.
    pub(super) ingress_free_ps: u64,
    pub(super) next_port: u16,
    pub(super) used: HostUse,
}

impl Host {
    pub(super) fn new(ip: IpAddr, profile: &Profile) -> Self {
        Self {
            ip,
            cores: vec![0; profile.host.cores as usize],
            engine_free: 0,
            table_free: 0,
            memory_free_ps: 0,
            adapter_memory_ps: 0,
            egress: Egress::default(),
            ingress_free_ps: 0,
            next_port: 49_152,
            used: HostUse::default(),
        }
    }

    /// Has the first core that is free work for `cost` from `at` on; gives when it is done.
    pub(super) fn work(&mut self, at: u64, cost: u64) -> u64 {
        if cost == 0 {
            return at;
        }
        let Some(core) = self.cores.iter_mut().min() else { return at + cost };
        *core = at.max(*core) + cost;
        self.used.cpu_ns += cost;
        *core
    }

    /// Has the first core that is free copy this much from `at` on, as far as memory keeps up; gives when it is done.
    pub(super) fn copy(&mut self, now: u64, at: u64, bytes: u64, profile: &Profile) -> u64 {
        let begins = at.max(self.cores.iter().copied().min().unwrap_or_default());
        // It is read, and it is written.
        self.memory_free_ps = self.memory_free_ps.max(now * PS) + profile.memory_ps(2 * bytes);
        let memory = self.memory_free_ps.div_ceil(PS);
        self.work(at, profile.copy_ns(bytes).max(memory.saturating_sub(begins)))
    }

    /// Has the adapter read or write this much of memory from `at_ps` on; gives when it has, in picoseconds. It goes
    /// before those who copy: they have what it leaves.
    pub(super) fn move_memory(&mut self, at_ps: u64, bytes: u64, profile: &Profile) -> u64 {
        let cost = profile.memory_ps(bytes);
        self.memory_free_ps = self.memory_free_ps.max(at_ps) + cost;
        self.adapter_memory_ps = self.adapter_memory_ps.max(at_ps) + cost;
        self.adapter_memory_ps
    }

    /// Holds up all cores until `until`.
    pub(super) fn stall(&mut self, until: u64) {
        self.cores.iter_mut().for_each(|c| *c = until.max(*c));
    }

    /// Has the adapter take up a work request at `at`; gives when it has.
    pub(super) fn take_up(&mut self, at: u64, cost: u64) -> u64 {
        self.engine_free = at.max(self.engine_free) + cost;
        self.engine_free
    }

    /// Has the adapter change its translation table at `at`, for `cost`; gives when it has.
    pub(super) fn change_table(&mut self, at: u64, cost: u64) -> u64 {
        if cost == 0 {
            return at;
        }
        self.table_free = at.max(self.table_free) + cost;
        self.table_free
    }
}
