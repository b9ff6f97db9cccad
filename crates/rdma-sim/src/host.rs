//! A simulated machine: its cores, its memory, its adapter's engines, its ports.

use std::{collections::VecDeque, net::IpAddr};

use millrace_runtime::LocalPort;

use super::{
    event::{EndId, Event, PS},
    profile::Profile,
    tcp::receive_queue::ReceiveQueue,
};

/// The first of the ports that root's clients connect from.
const RESERVED_PORT: u16 = 665;
/// The first of those that anybody gets (RFC 6335 section 6).
const FREE_PORT: u16 = 49_152;

/// What a host's processors and adapter have done so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct HostUse {
    /// Processor time, all cores together, in nanoseconds.
    pub cpu_ns: u64,
    /// Registrations of memory, for the peer's use and for its own.
    pub registrations: u64,
    /// Windows that were bound.
    pub binds: u64,
    /// Nanoseconds that both took, each from when its connection's software came to it until it was done: cores and
    /// translation table were waited for.
    pub registering_ns: u64,
    /// Nanoseconds that their ends took.
    pub deregistering_ns: u64,
    /// Payload bytes that its adapter sent.
    pub bytes_out: u64,
    /// Payload bytes that its adapter received.
    pub bytes_in: u64,
}

/// The way out of a host: connections take turns, a few packets each.
#[derive(Default)]
pub(super) struct Egress {
    /// Ends with something to send, in turn.
    pub(super) turns: VecDeque<EndId>,
    pub(super) busy: bool,
    /// When the last bit that was sent left, in picoseconds.
    pub(super) free_ps: u64,
}

/// The way into a host: what comes passes in turn.
#[derive(Default)]
pub(super) struct Ingress {
    pub(super) waiting: VecDeque<Coming>,
    pub(super) busy: bool,
    /// When the last bit of what came last is here, in picoseconds.
    free_ps: u64,
}

/// What comes to a host's port.
pub(super) struct Coming {
    /// Its payload.
    pub(super) bytes: u64,
    /// For so many picoseconds it occupies the port, at least.
    pub(super) port_ps: u64,
    /// When its first bit and its last would be here if nothing else came, in picoseconds.
    pub(super) head_ps: u64,
    pub(super) tail_ps: u64,
    /// What happens when the adapter has received it.
    pub(super) then: Option<Event>,
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
    pub(super) ingress: Ingress,
    /// What has come over TCP, and is not taken yet.
    pub(super) receive_queues: Vec<ReceiveQueue>,
    next_port: u16,
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
            ingress: Ingress::default(),
            receive_queues: (0..profile.tcp.receive_queues).map(|_| ReceiveQueue::default()).collect(),
            next_port: FREE_PORT,
            used: HostUse::default(),
        }
    }

    /// The core that works next at `at`: of those that are free then, the one that was busy last, so that work which
    /// is planned ahead leaves no core idle before it; if none is, the first that will be.
    fn core(&mut self, at: u64) -> Option<&mut u64> {
        self.cores.iter_mut().min_by_key(|free| if **free <= at { (0, at - **free) } else { (1, **free) })
    }

    /// Has a core work for `cost` from `at` on, or as soon as one is free; gives when it is done.
    pub(super) fn work(&mut self, at: u64, cost: u64) -> u64 {
        if cost == 0 {
            return at;
        }
        let Some(core) = self.core(at) else { return at + cost };
        *core = at.max(*core) + cost;
        let done = *core;
        self.used.cpu_ns += cost;
        done
    }

    /// Has the first core that is free work for `cost` and copy this much from `at` on, as far as memory keeps up; gives
    /// when it is done.
    pub(super) fn copy(&mut self, now: u64, at: u64, cost: u64, bytes: u64, profile: &Profile) -> u64 {
        if bytes == 0 {
            return self.work(at, cost);
        }
        let begins = at.max(self.core(at).copied().unwrap_or_default());
        // It is read, and it is written.
        self.memory_free_ps = self.memory_free_ps.max(now * PS) + profile.memory_ps(2 * bytes);
        let memory = self.memory_free_ps.div_ceil(PS);
        self.work(at, (cost + profile.copy_ns(bytes)).max(memory.saturating_sub(begins)))
    }

    /// Has the adapter read or write this much of memory from `at_ps` on; gives when it has, in picoseconds. It goes
    /// before those who copy: they have what it leaves.
    fn move_memory(&mut self, at_ps: u64, bytes: u64, profile: &Profile) -> u64 {
        let cost = profile.memory_ps(bytes);
        self.memory_free_ps = self.memory_free_ps.max(at_ps) + cost;
        self.adapter_memory_ps = self.adapter_memory_ps.max(at_ps) + cost;
        self.adapter_memory_ps
    }

    /// Has the port out send so many bytes, for which it is occupied for `port_ps` at least, from `from_ps` on; gives
    /// when the last bit has left.
    pub(super) fn pass_out(&mut self, from_ps: u64, bytes: u64, port_ps: u64, profile: &Profile) -> u64 {
        let end_ps = self.move_memory(from_ps, bytes, profile).max(from_ps + port_ps);
        (self.egress.busy, self.egress.free_ps) = (true, end_ps);
        self.used.bytes_out += bytes;
        end_ps
    }

    /// Has the port in, which is free, take this, whose first bit is here; gives when the last bit is.
    pub(super) fn pass_in(&mut self, coming: &Coming, profile: &Profile) -> u64 {
        let from_ps = coming.head_ps.max(self.ingress.free_ps);
        let memory_ps = self.move_memory(from_ps, coming.bytes, profile);
        let end_ps = coming.tail_ps.max(memory_ps).max(from_ps + coming.port_ps);
        (self.ingress.busy, self.ingress.free_ps) = (true, end_ps);
        self.used.bytes_in += coming.bytes;
        end_ps
    }

    /// A port of its own.
    pub(super) fn free_port(&mut self) -> u16 {
        self.next_port = self.next_port.checked_add(1).unwrap_or(FREE_PORT);
        self.next_port
    }

    /// A port to connect from.
    pub(super) fn local_port(&mut self, kind: LocalPort) -> u16 {
        let port = self.free_port();
        match kind {
            LocalPort::Any => port,
            LocalPort::Reserved => RESERVED_PORT + port % (1024 - RESERVED_PORT),
        }
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
