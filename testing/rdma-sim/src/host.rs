//! A simulated machine: cores, memory, adapter, ports.

use std::{collections::VecDeque, net::IpAddr, sync::Arc};

use millrace_runtime::LocalPort;

use super::{
    event::{EndId, Event, PS},
    profile::Profile,
    tcp::receive_queue::ReceiveQueue,
};

/// First of the reserved ports for clients that run as root.
const RESERVED_PORT: u16 = 665;
/// First ephemeral port (RFC 6335 section 6).
const FREE_PORT: u16 = 49_152;

/// Statistics of a host's processors and adapter.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct HostUse {
    /// Processor time of all cores, in nanoseconds.
    pub cpu_ns: u64,
    /// Number of memory registrations, for remote and local use.
    pub registrations: u64,
    /// Number of bound windows.
    pub binds: u64,
    /// Total duration of registrations and bindings in nanoseconds, including the waits for a core and for
    /// the translation table.
    pub registering_ns: u64,
    /// Total duration of deregistrations and invalidations in nanoseconds.
    pub deregistering_ns: u64,
    /// Payload bytes that the adapter sent.
    pub bytes_out: u64,
    /// Payload bytes that the adapter received.
    pub bytes_in: u64,
}

/// The sending side of a host's port. Connections send in round-robin order, a few packets each.
#[derive(Default)]
pub(super) struct Egress {
    /// Ends with something to send, in order of their turns.
    pub(super) turns: VecDeque<EndId>,
    pub(super) busy: bool,
    /// Time at which the last bit was sent, in picoseconds.
    pub(super) free_ps: u64,
}

/// The receiving side of a host's port; parts are received one after the other.
#[derive(Default)]
pub(super) struct Ingress {
    pub(super) waiting: VecDeque<Incoming>,
    pub(super) busy: bool,
    /// Arrival time of the last bit of the latest part, in picoseconds.
    free_ps: u64,
}

/// A part of a message that arrives at a host's port.
pub(super) struct Incoming {
    /// Payload in bytes.
    pub(super) bytes: u64,
    /// Minimum time for which it occupies the port, in picoseconds.
    pub(super) port_ps: u64,
    /// Arrival times of its first and last bit on an idle port, in picoseconds.
    pub(super) head_ps: u64,
    pub(super) tail_ps: u64,
    /// Event after the adapter has received it.
    pub(super) then: Option<Event>,
}

pub(super) struct Host {
    pub(super) ip: IpAddr,
    pub(super) profile: Arc<Profile>,
    /// For each core, the time at which it is free.
    cores: Vec<u64>,
    /// Time at which the adapter can start another work request.
    engine_free: u64,
    /// Time at which the adapter can change its translation table again.
    table_free: u64,
    /// Time at which the lock of the host's kernel is free.
    lock_free: u64,
    /// Time at which the memory has completed all accesses, in picoseconds.
    memory_free_ps: u64,
    /// Time at which the memory has completed the adapter's accesses, in picoseconds.
    adapter_memory_ps: u64,
    pub(super) egress: Egress,
    pub(super) ingress: Ingress,
    /// Queues of data received over TCP that the host has not processed.
    pub(super) receive_queues: Vec<ReceiveQueue>,
    next_port: u16,
    pub(super) used: HostUse,
}

impl Host {
    pub(super) fn new(ip: IpAddr, profile: Arc<Profile>) -> Self {
        Self {
            ip,
            cores: vec![0; profile.host.cores as usize],
            engine_free: 0,
            table_free: 0,
            lock_free: 0,
            memory_free_ps: 0,
            adapter_memory_ps: 0,
            egress: Egress::default(),
            ingress: Ingress::default(),
            receive_queues: (0..profile.tcp.receive_queues).map(|_| ReceiveQueue::default()).collect(),
            next_port: FREE_PORT,
            used: HostUse::default(),
            profile,
        }
    }

    /// The core for work that starts at `at`: of the cores that are free then, the one that was busy last, so
    /// that work planned ahead does not leave another core idle; otherwise the first that becomes free.
    fn core(&mut self, at: u64) -> Option<&mut u64> {
        self.cores.iter_mut().min_by_key(|free| if **free <= at { (0, at - **free) } else { (1, **free) })
    }

    /// Occupies a core for `cost` from `at` on, or as soon as one is free. Returns the end time.
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

    /// Occupies a core for `cost` plus the copy of `bytes` bytes from `at` on, limited by the memory
    /// bandwidth. Returns the end time.
    pub(super) fn copy(&mut self, now: u64, at: u64, cost: u64, bytes: u64) -> u64 {
        if bytes == 0 {
            return self.work(at, cost);
        }
        let begins = at.max(self.core(at).copied().unwrap_or_default());
        // Each byte is read and written.
        self.memory_free_ps = self.memory_free_ps.max(now * PS) + self.profile.memory_ps(2 * bytes);
        let memory = self.memory_free_ps.div_ceil(PS);
        self.work(at, (cost + self.profile.copy_ns(bytes)).max(memory.saturating_sub(begins)))
    }

    /// Takes the lock of the kernel at `at`, or as soon as earlier holders have released it. `holding` is called
    /// with the time of that, and returns the time at which the lock is released.
    pub(super) fn under_lock(&mut self, at: u64, holding: impl FnOnce(&mut Self, u64) -> u64) -> u64 {
        let taken = at.max(self.lock_free);
        self.lock_free = holding(self, taken);
        self.lock_free
    }

    /// Transfers `bytes` bytes between adapter and memory from `at_ps` on. Returns the end time in
    /// picoseconds. The adapter has priority over copies by cores, which get the remaining bandwidth.
    fn move_memory(&mut self, at_ps: u64, bytes: u64) -> u64 {
        let cost = self.profile.memory_ps(bytes);
        self.memory_free_ps = self.memory_free_ps.max(at_ps) + cost;
        self.adapter_memory_ps = self.adapter_memory_ps.max(at_ps) + cost;
        self.adapter_memory_ps
    }

    /// Sends `bytes` bytes through the port, which they occupy for at least `port_ps`, from `from_ps` on.
    /// Returns the time at which the last bit is sent.
    pub(super) fn pass_out(&mut self, from_ps: u64, bytes: u64, port_ps: u64) -> u64 {
        let end_ps = self.move_memory(from_ps, bytes).max(from_ps + port_ps);
        (self.egress.busy, self.egress.free_ps) = (true, end_ps);
        self.used.bytes_out += bytes;
        end_ps
    }

    /// Receives a part, whose first bit has arrived, through the idle port. Returns the arrival time of the
    /// last bit.
    pub(super) fn pass_in(&mut self, incoming: &Incoming) -> u64 {
        let from_ps = incoming.head_ps.max(self.ingress.free_ps);
        let memory_ps = self.move_memory(from_ps, incoming.bytes);
        let end_ps = incoming.tail_ps.max(memory_ps).max(from_ps + incoming.port_ps);
        (self.ingress.busy, self.ingress.free_ps) = (true, end_ps);
        self.used.bytes_in += incoming.bytes;
        end_ps
    }

    /// Allocates a port number.
    pub(super) fn free_port(&mut self) -> u16 {
        self.next_port = self.next_port.checked_add(1).unwrap_or(FREE_PORT);
        self.next_port
    }

    /// Allocates a local port for a connection.
    pub(super) fn local_port(&mut self, kind: LocalPort) -> u16 {
        let port = self.free_port();
        match kind {
            LocalPort::Any => port,
            LocalPort::Reserved => RESERVED_PORT + port % (1024 - RESERVED_PORT),
        }
    }

    /// Stops all cores until `until`.
    pub(super) fn stall(&mut self, until: u64) {
        self.cores.iter_mut().for_each(|c| *c = until.max(*c));
    }

    /// Fetches a work request into the adapter at `at`. Returns the end time.
    pub(super) fn take_up(&mut self, at: u64, cost: u64) -> u64 {
        self.engine_free = at.max(self.engine_free) + cost;
        self.engine_free
    }

    /// Changes the adapter's translation table at `at`, for `cost`. Returns the end time.
    pub(super) fn change_table(&mut self, at: u64, cost: u64) -> u64 {
        if cost == 0 {
            return at;
        }
        self.table_free = at.max(self.table_free) + cost;
        self.table_free
    }
}
