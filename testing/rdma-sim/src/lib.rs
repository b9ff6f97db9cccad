//! A *simulated* fabric in virtual time: hosts, RDMA adapters and links as described by a [`Profile`].
//!
//! The code above the providers runs on it unmodified, in an executor of [`millrace_runtime::virtual_time`].
//! The seed determines a run completely, including every byte of its [trace](World::trace). Output of
//! simulated runs must be marked as simulated.
//!
//! ```text
//! World         hosts, faults, traces
//! setup         connecting, accepting, listening
//! |- qp, domain   queue pair and protection domain, for their owner
//! world         events and their order: software, egress, ingress, placement, teardown
//! |- end, access  one end of a connection: its queues, and the memory that the peer may access
//! |- host         cores, adapter, ports
//! |- listeners    accept queues of connection requests (request)
//! tcp           TCP connections on the same hosts and links
//! event         scheduled events
//! profile       parameters of a simulated machine
//! ```
//!
//! Semantics where providers differ: a message waits for a receive (infinite RNR retry); exposed memory is
//! released with its connection; a region is contiguous; later work overtakes RDMA Reads that wait because of
//! the ORD. Costs: posted work waits until the host has finished the work that its owner was charged for
//! before (registrations, copies, posting); a completion is visible after the host has processed it.

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
    tcp::framing::Framing,
    trace::{ReplayError, Seed, TRACE_VERSION},
};
use self::{
    host::Host,
    setup::SimListener,
    tcp::setup::SimTcp,
    trace::Trace,
    world::{Inner, Net, Uplink},
};

/// A simulated network of hosts. Cheap to clone.
#[derive(Clone)]
pub struct World(Arc<Inner>);

impl std::fmt::Debug for World {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("World").field(&self.0.profile.name).finish()
    }
}

impl World {
    /// Creates a network without hosts that runs in the virtual time of `time`.
    pub fn new(time: &VirtualTime, profile: Profile) -> Self {
        let net = Net {
            hosts: Vec::new(),
            uplinks: Vec::new(),
            connections: Default::default(),
            tcp: Default::default(),
            next_connection: 0,
            listeners: Default::default(),
            faults: Faults::default(),
            trace: Trace::default(),
        };
        Self(Arc::new(Inner { clock: time.clock(), profile: Arc::new(profile), net: Mutex::new(net) }))
    }

    /// The simulated machines and links.
    pub fn profile(&self) -> &Profile {
        &self.0.profile
    }

    /// Adds a host with this address and one adapter, unless it exists, and returns its provider.
    pub fn add_host(&self, ip: IpAddr) -> Arc<dyn Provider> {
        Arc::new(Sim { world: Arc::clone(&self.0), host: self.host(ip) })
    }

    /// As [`Self::add_host`], for a host that differs from the others: `profile` defines its cores, memory, adapter,
    /// port, registrations and TCP. The distance between hosts stays that of the world. An existing host is not
    /// changed.
    pub fn add_host_with(&self, ip: IpAddr, profile: Profile) -> Arc<dyn Provider> {
        Arc::new(Sim { world: Arc::clone(&self.0), host: self.host_with(ip, &Arc::new(profile)) })
    }

    /// Places hosts behind one uplink: messages between them and all other hosts pass it, in the order of their
    /// arrival, at `mb_per_s` 10^6 bytes per second in each direction, including headers. The rate must be
    /// positive. Hosts are added unless they exist.
    pub fn share_uplink(&self, hosts: &[IpAddr], mb_per_s: f64) {
        let hosts = hosts.iter().map(|ip| self.host(*ip)).collect();
        self.0.net.lock().uplinks.push(Uplink { hosts, mb_per_s, free_ps: [0; 2] });
    }

    /// The TCP stack of the host with this address, which is added unless it exists. Its connections contain
    /// RPC.
    pub fn tcp(&self, ip: IpAddr) -> Arc<dyn StreamProvider> {
        self.tcp_with(ip, Framing::Rpc)
    }

    /// As [`Self::tcp`], for connections that contain messages with this framing. The framing is that of the
    /// end that connects.
    pub fn tcp_with(&self, ip: IpAddr, framing: Framing) -> Arc<dyn StreamProvider> {
        Arc::new(SimTcp { world: Arc::clone(&self.0), host: self.host(ip), framing })
    }

    /// The host with this address, which is added unless it exists.
    fn host(&self, ip: IpAddr) -> usize {
        self.host_with(ip, &self.0.profile)
    }

    fn host_with(&self, ip: IpAddr, profile: &Arc<Profile>) -> usize {
        let mut net = self.0.net.lock();
        net.host_of(ip).unwrap_or_else(|| {
            net.hosts.push(Host::new(ip, Arc::clone(profile)));
            net.hosts.len() - 1
        })
    }

    /// Occupies a core of the host for `time`, and waits for its end; for simulated file systems and
    /// applications. The cores are shared with other work in time slices of 100 microseconds. Work starts at
    /// the first poll of the future; after the future is dropped, at most the current slice is completed. The
    /// host is added unless it exists.
    pub fn work(&self, ip: IpAddr, time: Duration) -> impl Future<Output = ()> + Send + use<> {
        Arc::clone(&self.0).work(self.host(ip), time)
    }

    /// Copies `bytes` bytes on a core of the host, at the lower of the rates of the core and of the host's memory, and
    /// waits for the end; otherwise like [`Self::work`].
    pub fn copy(&self, ip: IpAddr, bytes: u64) -> impl Future<Output = ()> + Send + use<> {
        Arc::clone(&self.0).copy(self.host(ip), bytes)
    }

    /// Holds the lock of the host's kernel while a core copies `bytes` bytes, as [`Self::copy`] does, and then works
    /// for `time`; waits for the end. Holders take turns in the order of their calls; registrations take part if
    /// [`Kernel::serial_registrations`](profile::Kernel::serial_registrations) is set. The future must be
    /// polled to its end: the lock is held for the whole time even if it is dropped.
    pub fn locked(&self, ip: IpAddr, bytes: u64, time: Duration) -> impl Future<Output = ()> + Send + use<> {
        Arc::clone(&self.0).locked(self.host(ip), bytes, time)
    }

    /// Starts to record a trace; `seed` is that of the run.
    pub fn begin_trace(&self, seed: Seed) {
        self.0.net.lock().trace.begin(seed.0, &self.0.profile.name);
    }

    /// The trace: a header line, then one line for each event with the time in nanoseconds, connection and
    /// end, and the event. Empty before [`Self::begin_trace`].
    pub fn trace(&self) -> String {
        self.0.net.lock().trace.text().to_owned()
    }

    /// Sets the faults that occur from now on.
    pub fn set_faults(&self, faults: Faults) {
        self.0.net.lock().faults = faults;
    }

    /// Crashes and restarts the host's adapter: all its connections and listeners end, and it accepts new
    /// ones immediately. The caller must end the host's processes.
    pub fn crash(&self, ip: IpAddr) {
        let host = self.0.net.lock().host_of(ip);
        if let Some(host) = host {
            self.0.crash(host);
        }
    }

    /// Stops the host's processors for `time`; its adapter continues.
    pub fn stall(&self, ip: IpAddr, time: Duration) {
        let host = self.0.net.lock().host_of(ip);
        if let Some(host) = host {
            self.0.stall(host, time);
        }
    }

    /// Statistics of the host's processors and adapter.
    pub fn host_use(&self, ip: IpAddr) -> HostUse {
        self.0.host_use(ip).unwrap_or_default()
    }

    /// Number of regions that peers can access now, on all connections, and their bytes.
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
