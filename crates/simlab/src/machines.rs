//! The machines of a simulation, and the simulation itself.

use std::{net::SocketAddr, sync::Arc};

use millrace_bench::{
    BenchError, Figure,
    embedded::{SERVER_DEFAULT, room},
};
use millrace_client::{Design, Identity, Options, Proto, Strategy, nfs3::Client};
use millrace_rdma_sim::{Profile, World};
use millrace_runtime::{RuntimeRef, virtual_time::VirtualTime};
use millrace_server::{Backend, ByteSize, Config, ExportConfig, ExposedBuffers, Hosted, Limits};

use crate::{Hosts, Storage};

const PORT: u16 = 20049;
const EXPORT: &str = "/simulated";
/// The most client hosts.
const MOST_HOSTS: usize = 4096;

/// The strategy of a server of `design` that is to use `wanted`: a server of the Read-Read design refuses
/// [`Strategy::AllPhysical`] and uses its default instead.
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
    /// The seed of the run: the same gives the same figures.
    pub seed: u64,
    /// How clients behave, and over which transport. The server's design is theirs; provider and identity are those of
    /// the simulation.
    pub options: Options,
    /// The server's registration strategy; `None`: that of the clients. Where it is the one that a server of the
    /// Read-Read design refuses ([`Strategy::AllPhysical`]), it has [`Strategy::Cache`].
    pub server_registration: Option<Strategy>,
    /// The server's file system.
    pub storage: Storage,
    /// The server's limits.
    pub limits: Limits,
    /// Client hosts, 1 to 4096. What there is of clients is spread over them in turn.
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

    /// Both ends use the same strategy unless it is said.
    fn registration_of_server(&self) -> Strategy {
        server_strategy(self.options.design, self.server_registration.unwrap_or(self.options.registration))
    }

    /// Starts them: a server with an empty memory export that has room for files of so many bytes, which may be written
    /// again, and no clients yet.
    ///
    /// # Errors
    /// When there are no client hosts or too many, or the server cannot be.
    pub fn start(&self, bytes: u64) -> Result<Simulation, BenchError> {
        if !(1..=MOST_HOSTS).contains(&self.client_hosts) {
            return Err(BenchError::Parameter(format!(
                "there can be 1 to {MOST_HOSTS} simulated client hosts, not {}",
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
            design: self.options.design,
            exposed_buffers: ExposedBuffers::AcceptedOnNetworks, // There is no network.
            registration: Some(self.registration_of_server()),
            limits: self.limits.clone(),
            ..Config::default()
        };
        let open = |export: &ExportConfig, with: &millrace_server::Resources<'_>| {
            let fs = millrace_server::open(export, with)?;
            self.storage.wrap(fs, hosts, rt).map_err(|e| e.to_string())
        };
        let hosted = Hosted::start(config, Arc::clone(rt), open).map_err(|e| failed(&e))?;
        let at = SocketAddr::new(Hosts::SERVER, PORT);
        match self.options.proto {
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

    /// What all figures about them have in common: `what` ran on them.
    pub(crate) fn line(&self, what: &str) -> Figure {
        let rdma = self.options.proto == Proto::Rdma;
        Figure {
            workload: format!("simulated {what} on {}", self.profile.name),
            proto: self.options.proto.to_string(),
            provider: rdma.then(|| "sim".into()),
            design: rdma.then(|| self.options.design.to_string()),
            registration: rdma.then(|| self.options.registration.to_string()),
            server_registration: rdma.then(|| self.registration_of_server().to_string()),
            client_hosts: Some(self.client_hosts),
            ..Figure::default()
        }
    }
}

/// Simulated machines that are up.
pub struct Simulation {
    // Dropped in this order: time goes last.
    server: Hosted,
    hosts: Hosts,
    rt: RuntimeRef,
    machines: Machines,
    time: VirtualTime,
}

impl Simulation {
    /// Carries `what` out in virtual time.
    ///
    /// # Errors
    /// Those of `what`; when it can never be done, which is a mistake in the program.
    pub fn run<T>(&self, what: impl Future<Output = Result<T, BenchError>>) -> Result<T, BenchError> {
        let stuck = |e| BenchError::Client(format!("the simulation is stuck: {e}"));
        self.time.block_on(what).map_err(stuck)?
    }

    /// A connection from client host `host` (0 is the first; beyond the last they are counted again), with the export
    /// mounted.
    ///
    /// # Errors
    /// When the client cannot connect.
    pub async fn mount(&self, host: usize) -> Result<Client, BenchError> {
        // The process's own would be another one on each machine, and its length is on the wire.
        let credential = Identity { uid: 0, gid: 0, gids: Vec::new(), machine: "simulated".into() };
        // The server is a part of this process.
        let options =
            self.machines.options.clone().credential(credential).trust_server(true).measure_exposure(true);
        let (rt, to) = (Arc::clone(&self.rt), SocketAddr::new(Hosts::SERVER, PORT));
        let mounted = match options.proto {
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

    /// The runtime of the simulation: virtual time, for what runs in it.
    pub fn runtime(&self) -> &RuntimeRef {
        &self.rt
    }

    /// What the server has counted so far.
    pub fn server_stats(&self) -> millrace_server::Stats {
        self.server.stats()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_server_uses_the_clients_strategy_unless_it_is_said_or_refused() {
        let of = |design, registration, server_registration| {
            let options = Options::default().design(design).registration(registration);
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
    fn machines_that_cannot_be_are_refused() {
        let machines = Machines::new(Profile::named("hdr-200g").unwrap());
        for client_hosts in [0, MOST_HOSTS + 1] {
            let refused = Machines { client_hosts, ..machines.clone() }.start(1 << 20).err();
            assert!(matches!(refused, Some(BenchError::Parameter(_))), "{client_hosts}");
        }
    }
}
