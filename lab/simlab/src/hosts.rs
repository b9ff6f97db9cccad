//! The hosts of a simulation and their resource usage.

use std::{
    net::{IpAddr, Ipv4Addr},
    sync::Arc,
    time::Duration,
};

use millrace_bench::workload::{CpuMeter, HostCpu};
use millrace_rdma::Provider;
use millrace_rdma_sim::{HostUse, World};

/// A server host and client hosts. A clone refers to the same hosts.
#[derive(Debug, Clone)]
pub struct Hosts {
    world: World,
    clients: usize,
}

/// Resource usage of the hosts since the start, or between two points in time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Spent {
    /// CPU time of all client hosts together.
    pub clients_cpu: Duration,
    /// CPU time of the server host.
    pub server_cpu: Duration,
    /// Memory registrations and window binds of the server host.
    pub server_registrations: u64,
    /// Total duration of registrations on all client hosts, each from the time when its connection's software
    /// starts it.
    pub clients_registering: Duration,
    /// Total duration of deregistrations on all client hosts.
    pub clients_deregistering: Duration,
    /// Total duration of registrations on the server host.
    pub server_registering: Duration,
    /// Total duration of deregistrations on the server host.
    pub server_deregistering: Duration,
}

impl Spent {
    /// The usage since `earlier`.
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

    /// The address of client host `host`, modulo the number of client hosts.
    pub fn address(&self, host: usize) -> IpAddr {
        let host = host % self.clients;
        IpAddr::V4(Ipv4Addr::new(10, 0, 1 + (host / Self::ROW) as u8, 1 + (host % Self::ROW) as u8))
    }

    /// The number of client hosts.
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

    /// The usage of each client host since the start.
    pub fn client_use(&self) -> Vec<HostUse> {
        (0..self.clients).map(|host| self.world.host_use(self.address(host))).collect()
    }

    /// The usage of all hosts since the start.
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
