//! A *simulated* fabric in virtual time: hosts, RDMA adapters and links that a [`Profile`] describes.
//!
//! The code above runs on it unchanged, in an executor of [`millrace_runtime::virtual_time`]; a run is decided by its seed, to
//! the byte of its [trace](World::trace). What it prints is simulated, and must say so.
//!
//! ```text
//! World         hosts, faults, traces
//! setup         connecting, accepting, listening
//! |- qp, domain   queue pair and protection domain as their owner uses them
//! world         the events and their order: software, egress, ingress, placement, teardown
//! |- end, access  one end of a connection: its queues, and what the peer may access
//! |- host         cores, adapter, ports
//! |- listeners    accept queues of connection requests (request)
//! tcp           TCP connections on the same hosts and links
//! event         what is scheduled
//! profile       the numbers of a simulated machine
//! ```
//!
//! Semantics where providers differ: a message waits for a receive (infinite RNR retry); memory that is exposed is
//! released with its connection; a region is in one piece; RDMA Reads beyond the ORD let later work pass. Costs: work
//! that an owner posts waits until its host has done what the owner was charged for before (registrations, copies,
//! posting); a completion is seen when the host has taken it.

mod access;
mod domain;
mod end;
mod event;
mod fault;
mod host;
mod listeners;
pub mod profile;
mod qp;
mod request;
mod setup;
mod tcp;
mod trace;
mod world;

use std::{
    future::Future,
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use millrace_buffer::Arena;
use millrace_rdma::{ConnectParams, ConnectionError, Listener, Provider, QueuePair};
use millrace_runtime::{BoxFuture, RuntimeRef, StreamProvider, virtual_time::VirtualTime};
use parking_lot::Mutex;

pub use self::{
    fault::Faults,
    host::HostUse,
    profile::{Profile, ProfileError},
    trace::{ReplayError, Seed, TRACE_VERSION},
};
use self::{
    host::Host,
    setup::SimListener,
    tcp::setup::SimTcp,
    trace::Trace,
    world::{Inner, Net},
};

/// A simulated network of hosts that are all alike. Cheap to clone.
#[derive(Clone)]
pub struct World(Arc<Inner>);

impl std::fmt::Debug for World {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("World").field(&self.0.profile.name).finish()
    }
}

impl World {
    /// A network without hosts, in the time of `time`.
    pub fn new(time: &VirtualTime, profile: Profile) -> Self {
        let net = Net {
            hosts: Vec::new(),
            connections: Default::default(),
            tcp: Default::default(),
            next_connection: 0,
            listeners: Default::default(),
            faults: Faults::default(),
            trace: Trace::default(),
        };
        Self(Arc::new(Inner { clock: time.clock(), profile, net: Mutex::new(net) }))
    }

    /// What is simulated.
    pub fn profile(&self) -> &Profile {
        &self.0.profile
    }

    /// A host with this address, and one adapter; gives its provider. One that is there already stays.
    pub fn add_host(&self, ip: IpAddr) -> Arc<dyn Provider> {
        Arc::new(Sim { world: Arc::clone(&self.0), host: self.host(ip) })
    }

    /// The TCP of the host with this address, which is added if there is none. What runs on it is taken to be RPC with
    /// record marking.
    pub fn tcp(&self, ip: IpAddr) -> Arc<dyn StreamProvider> {
        Arc::new(SimTcp { world: Arc::clone(&self.0), host: self.host(ip) })
    }

    /// The host with this address, which is added if there is none.
    fn host(&self, ip: IpAddr) -> usize {
        let mut net = self.0.net.lock();
        net.host_of(ip).unwrap_or_else(|| {
            net.hosts.push(Host::new(ip, &self.0.profile));
            net.hosts.len() - 1
        })
    }

    /// Has a core of the host work for this time, in turns with all else that needs its cores, and waits until it has:
    /// for simulated file systems and applications. Waiting starts when the future is first polled; what is dropped
    /// works on for at most a slice of 100 microseconds. The host is added if there is none.
    pub fn work(&self, ip: IpAddr, time: Duration) -> impl Future<Output = ()> + Send + use<> {
        Arc::clone(&self.0).work(self.host(ip), time)
    }

    /// Has a core of the host copy so many bytes, at the pace of the core or of the host's memory, whichever is slower
    /// then, and waits until it has; otherwise as [`Self::work`].
    pub fn copy(&self, ip: IpAddr, bytes: u64) -> impl Future<Output = ()> + Send + use<> {
        Arc::clone(&self.0).copy(self.host(ip), bytes)
    }

    /// Writes down what happens from now on; `seed` is that of the run.
    pub fn begin_trace(&self, seed: Seed) {
        self.0.net.lock().trace.begin(seed.0, &self.0.profile.name);
    }

    /// What was written down: a line that says what it is, then one for each event: nanoseconds, connection and end,
    /// what happened. Empty if [`Self::begin_trace`] was not called.
    pub fn trace(&self) -> String {
        self.0.net.lock().trace.text().to_owned()
    }

    /// Lets these faults happen from now on.
    pub fn set_faults(&self, faults: Faults) {
        self.0.net.lock().faults = faults;
    }

    /// The host's adapter is gone, with all its connections and listeners, and answers again at once: what its
    /// processes were doing is for the caller to end.
    pub fn crash(&self, ip: IpAddr) {
        let host = self.0.net.lock().host_of(ip);
        if let Some(host) = host {
            self.0.crash(host);
        }
    }

    /// The host's processors stand still for this time. Its adapter does not.
    pub fn stall(&self, ip: IpAddr, time: Duration) {
        let host = self.0.net.lock().host_of(ip);
        if let Some(host) = host {
            self.0.stall(host, time);
        }
    }

    /// What the host's processors and adapter have done.
    pub fn host_use(&self, ip: IpAddr) -> HostUse {
        self.0.host_use(ip).unwrap_or_default()
    }

    /// Regions that peers can reach now, on all connections, and their bytes.
    pub fn exposed(&self) -> (usize, usize) {
        self.0.exposed()
    }
}

/// The provider of one simulated host.
struct Sim {
    world: Arc<Inner>,
    host: usize,
}

impl Provider for Sim {
    fn name(&self) -> &'static str {
        "sim"
    }

    fn connect(
        &self,
        rt: RuntimeRef,
        arena: Arena,
        addr: SocketAddr,
        params: ConnectParams,
    ) -> BoxFuture<'static, Result<Box<dyn QueuePair>, ConnectionError>> {
        Box::pin(Arc::clone(&self.world).connect(self.host, rt, arena, addr, params))
    }

    fn listen(&self, _rt: RuntimeRef, addr: SocketAddr) -> std::io::Result<Box<dyn Listener>> {
        Ok(Box::new(SimListener::open(&self.world, self.host, addr)?))
    }
}
