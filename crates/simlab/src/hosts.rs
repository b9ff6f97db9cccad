//! The hosts of a simulation, and what they have spent.

use std::{
    net::{IpAddr, Ipv4Addr},
    sync::Arc,
    time::Duration,
};

use millrace_bench::workload::{CpuMeter, HostCpu};
use millrace_rdma::Provider;
use millrace_rdma_sim::{HostUse, World};

/// A server host and client hosts. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Hosts {
    world: World,
    clients: usize,
}

/// What hosts have done until a point in time, or between two.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Spent {
    /// Processor time of all client hosts together.
    pub clients_cpu: Duration,
    /// Processor time of the server host.
    pub server_cpu: Duration,
    /// Times that the server host registered memory, or bound a window.
    pub server_registrations: u64,
    /// What registrations took at all client hosts together, each from when its connection's software came to it.
    pub clients_registering: Duration,
    /// And their ends.
    pub clients_deregistering: Duration,
    /// What registrations took at the server host.
    pub server_registering: Duration,
    /// And their ends.
    pub server_deregistering: Duration,
}

impl Spent {
    /// What was done since `earlier`.
    pub fn since(&self, earlier: &Self) -> Self {
        Self {
            clients_cpu: self.clients_cpu.saturating_sub(earlier.clients_cpu),
            server_cpu: self.server_cpu.saturating_sub(earlier.server_cpu),
            server_registrations: self.server_registrations.saturating_sub(earlier.server_registrations),
            clients_registering: self.clients_registering.saturating_sub(earlier.clients_registering),
            clients_deregistering: self.clients_deregistering.saturating_sub(earlier.clients_deregistering),
            server_registering: self.server_registering.saturating_sub(earlier.server_registering),
            server_deregistering: self.server_deregistering.saturating_sub(earlier.server_deregistering),
        }
    }
}

impl Hosts {
    /// The server's address.
    pub const SERVER: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));
    /// Client hosts for each value of the address's third byte.
    const ROW: usize = 250;

    pub(crate) fn new(world: World, clients: usize) -> Self {
        Self { world, clients }
    }

    /// The address of client host `host`; beyond the last they are counted again.
    pub fn address(&self, host: usize) -> IpAddr {
        let host = host % self.clients;
        IpAddr::V4(Ipv4Addr::new(10, 0, 1 + (host / Self::ROW) as u8, 1 + (host % Self::ROW) as u8))
    }

    /// How many client hosts there are.
    pub fn clients(&self) -> usize {
        self.clients
    }

    /// The simulated network.
    pub fn world(&self) -> &World {
        &self.world
    }

    /// The server host's adapter.
    pub(crate) fn server(&self) -> Arc<dyn Provider> {
        self.world.add_host(Self::SERVER)
    }

    /// The adapter of client host `host`.
    pub(crate) fn client(&self, host: usize) -> Arc<dyn Provider> {
        self.world.add_host(self.address(host))
    }

    /// What each client host has done so far.
    pub fn client_use(&self) -> Vec<HostUse> {
        (0..self.clients).map(|host| self.world.host_use(self.address(host))).collect()
    }

    /// What they have spent so far.
    pub fn spent(&self) -> Spent {
        let server = self.world.host_use(Self::SERVER);
        let clients = self.client_use();
        let of_all = |ns: fn(&HostUse) -> u64| Duration::from_nanos(clients.iter().map(ns).sum());
        Spent {
            clients_cpu: of_all(|host| host.cpu_ns),
            server_cpu: Duration::from_nanos(server.cpu_ns),
            server_registrations: server.registrations + server.binds,
            clients_registering: of_all(|host| host.registering_ns),
            clients_deregistering: of_all(|host| host.deregistering_ns),
            server_registering: Duration::from_nanos(server.registering_ns),
            server_deregistering: Duration::from_nanos(server.deregistering_ns),
        }
    }
}

impl CpuMeter for Hosts {
    fn cpu(&self) -> HostCpu {
        let Spent { clients_cpu, server_cpu, .. } = self.spent();
        HostCpu { clients: clients_cpu, server: server_cpu }
    }
}
