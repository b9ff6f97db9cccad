//! The machines of a simulation, and the simulation itself.

use std::{net::SocketAddr, sync::Arc};

use millrace_bench::{
    BenchError, Figure,
    embedded::{SERVER_DEFAULT, room},
};
use millrace_client::{Identity, Options, Proto, Strategy, Version, handles::Client};
use millrace_rdma_sim::{Profile, World};
use millrace_read_read::Design;
use millrace_runtime::{RuntimeRef, virtual_time::VirtualTime};
use millrace_server::{Backend, ByteSize, Config, ExportConfig, Hosted, Limits};

use crate::{Hosts, Storage, storage::Buffers};

const PORT: u16 = 20049;
const EXPORT: &str = "/simulated";
/// The maximum number of client hosts.
const MOST_HOSTS: usize = 4096;

/// The strategy of a server of `design` for the requested strategy `wanted`. A server of the Read-Read design
/// refuses [`Strategy::AllPhysical`] and uses its default instead.
pub fn server_strategy(design: Design, wanted: Strategy) -> Strategy {
    match (design, wanted) {
        (Design::ReadRead, Strategy::AllPhysical) => SERVER_DEFAULT,
        _ => wanted,
    }
}

/// Machines to simulate.
#[derive(Debug, Clone)]
pub struct Machines {
    /// The machines, and the network between them.
    pub profile: Profile,
    /// The seed of the run. The same seed produces the same figures.
    pub seed: u64,
    /// Options of the clients, including the transport. The server has the same protocol. The simulation sets
    /// provider and identity.
    pub options: Options,
    /// The server's registration strategy, or `None` for that of the clients. A server of the Read-Read
    /// design refuses [`Strategy::AllPhysical`] and uses [`Strategy::Cache`] instead.
    pub server_registration: Option<Strategy>,
    /// The server's file system.
    pub storage: Storage,
    /// The server's limits.
    pub limits: Limits,
    /// Number of client hosts, 1 to 4096. Clients are distributed over them in turn.
    pub client_hosts: usize,
}

impl Machines {
    /// A server and one client host, with the defaults of both.
    pub fn new(profile: Profile) -> Self {
        Self {
            profile,
            seed: 1,
            options: Options::default(),
            server_registration: None,
            storage: Storage::default(),
            limits: Limits::default(),
            client_hosts: 1,
        }
    }

    /// The transport: RDMA, unless the options state TCP.
    pub fn proto(&self) -> Proto {
        self.options.proto.unwrap_or(Proto::Rdma)
    }

    /// The design of both ends.
    fn design(&self) -> Design {
        Design::of(&self.options.rdma_protocol)
    }

    /// The server's strategy, which defaults to that of the clients.
    fn registration_of_server(&self) -> Strategy {
        server_strategy(self.design(), self.server_registration.unwrap_or(self.options.registration))
    }

    /// The buffers of the server.
    fn buffers(&self) -> Buffers {
        match (self.proto(), self.registration_of_server()) {
            (Proto::Tcp, _) => Buffers::Segments,
            (Proto::Rdma, Strategy::Cache) => Buffers::Kept,
            (Proto::Rdma, _) => Buffers::Mapped,
        }
    }

    /// Starts the machines: a server with an empty memory export that has space for files of `bytes` bytes
    /// and a second copy of them, and no clients yet.
    ///
    /// # Errors
    /// When there are no client hosts or too many, or the server cannot be started.
    pub fn start(&self, bytes: u64) -> Result<Simulation, BenchError> {
        if !(1..=MOST_HOSTS).contains(&self.client_hosts) {
            return Err(BenchError::Parameter(format!(
                "there are {} simulated client hosts; choose 1 to {MOST_HOSTS}",
                self.client_hosts
            )));
        }
        let time = VirtualTime::new(self.seed);
        let world = World::new(&time, self.profile.clone());
        let hosts = Hosts::new(world, self.client_hosts);
        let rt = time.runtime();
        let server = self.serve(&hosts, &rt, room(bytes))?;
        Ok(Simulation { server, hosts, rt, machines: self.clone(), time })
    }

    fn serve(&self, hosts: &Hosts, rt: &RuntimeRef, capacity: u64) -> Result<Hosted, BenchError> {
        let failed = |e: &dyn std::fmt::Display| BenchError::Peer(e.to_string());
        let backend = Backend::Memory { capacity: ByteSize(capacity) };
        let config = Config {
            exports: vec![ExportConfig::new(EXPORT, backend)],
            rdma_protocol: self.options.rdma_protocol.clone(),
            registration: Some(self.registration_of_server()),
            limits: self.limits.clone(),
            ..Config::default()
        };
        let open = |export: &ExportConfig, with: &millrace_server::Resources<'_>| {
            let fs = millrace_server::open(export, with)?;
            self.storage.wrap(fs, hosts, rt, self.buffers()).map_err(|e| e.to_string())
        };
        let hosted = Hosted::start(config, Arc::clone(rt), open).map_err(|e| failed(&e))?;
        let at = SocketAddr::new(Hosts::SERVER, PORT);
        match self.proto() {
            Proto::Rdma => {
                let listener = hosts.server().listen(Arc::clone(rt), at).map_err(|e| failed(&e))?;
                hosted.serve(listener);
            }
            Proto::Tcp => {
                let listener = hosts.world().tcp(Hosts::SERVER).listen(at).map_err(|e| failed(&e))?;
                hosted.serve_tcp(listener);
            }
        }
        Ok(hosted)
    }

    /// The fields that all figures of these machines share; `what` is the name of the workload.
    pub(crate) fn line(&self, what: &str) -> Figure {
        let rdma = self.proto() == Proto::Rdma;
        Figure {
            workload: format!("simulated {what} on {}", self.profile.name),
            proto: self.proto().to_string(),
            provider: rdma.then(|| "sim".into()),
            design: rdma.then(|| self.options.rdma_protocol.name().to_owned()),
            registration: rdma.then(|| self.options.registration.to_string()),
            server_registration: rdma.then(|| self.registration_of_server().to_string()),
            client_hosts: Some(self.client_hosts),
            ..Figure::default()
        }
    }
}

/// Running simulated machines.
pub struct Simulation {
    // Fields are dropped in this order. `time`, the executor, must outlive the others.
    server: Hosted,
    hosts: Hosts,
    rt: RuntimeRef,
    machines: Machines,
    time: VirtualTime,
}

impl Simulation {
    /// Runs `what` in virtual time.
    ///
    /// # Errors
    /// Those of `what`; and when it can never complete, which is a fault of the program.
    pub fn run<T>(&self, what: impl Future<Output = Result<T, BenchError>>) -> Result<T, BenchError> {
        let stuck = |e| BenchError::Client(format!("the simulation cannot continue: {e}"));
        self.time.block_on(what).map_err(stuck)?
    }

    /// Connects client host `host` (0 is the first; modulo the number of client hosts) and mounts the export.
    ///
    /// # Errors
    /// When the client cannot connect.
    pub async fn mount(&self, host: usize) -> Result<Client, BenchError> {
        // The credential of the process would depend on the machine, and its length is a part of the
        // messages.
        let credential = Identity { uid: 0, gid: 0, gids: Vec::new(), machine: "simulated".into() };
        // The server is in the same process.
        let mut options =
            self.machines.options.clone().credential(credential).trust_server(true).measure_exposure(true);
        options.vers.get_or_insert(Version::V3);
        let (rt, to) = (Arc::clone(&self.rt), SocketAddr::new(Hosts::SERVER, PORT));
        let mounted = match self.machines.proto() {
            Proto::Rdma => Client::connect_over(rt, self.hosts.client(host), to, EXPORT, options).await,
            Proto::Tcp => {
                let streams = self.hosts.world().tcp(self.hosts.address(host));
                Client::connect_over_tcp(rt, streams, to, EXPORT, options).await
            }
        };
        mounted.map_err(|e| BenchError::Client(e.to_string()))
    }

    /// The hosts.
    pub fn hosts(&self) -> &Hosts {
        &self.hosts
    }

    /// The runtime of the simulation, whose time is virtual.
    pub fn runtime(&self) -> &RuntimeRef {
        &self.rt
    }

    /// The server's statistics since the start.
    pub fn server_stats(&self) -> millrace_server::Stats {
        self.server.stats()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_server_uses_the_clients_strategy_unless_it_is_set_or_refused() {
        let of = |design: Design, registration, server_registration| {
            let options = Options::default().rdma_protocol(design.protocol()).registration(registration);
            let machines = Machines::new(Profile::named("hdr-200g").unwrap());
            Machines { options, server_registration, ..machines }.registration_of_server()
        };
        use Strategy::{AllPhysical, Cache, Dynamic, Fast};
        assert_eq!(of(Design::ReadWrite, AllPhysical, None), AllPhysical);
        assert_eq!(of(Design::ReadWrite, Dynamic, Some(Fast)), Fast);
        assert_eq!(of(Design::ReadRead, AllPhysical, None), Cache);
        assert_eq!(of(Design::ReadRead, Dynamic, Some(AllPhysical)), Cache);
        assert_eq!(of(Design::ReadRead, Dynamic, None), Dynamic);
    }

    #[test]
    fn invalid_machines_are_refused() {
        let machines = Machines::new(Profile::named("hdr-200g").unwrap());
        for client_hosts in [0, MOST_HOSTS + 1] {
            let refused = Machines { client_hosts, ..machines.clone() }.start(1 << 20).err();
            assert!(matches!(refused, Some(BenchError::Parameter(_))), "{client_hosts}");
        }
    }
}
