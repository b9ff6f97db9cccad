//! The same workload between simulated machines, in virtual time: a client host and a server host of one profile.
//!
//! Client, server and the memory file system are the real ones; time, processors, adapters and links are simulated.
//! The file system's own work takes no simulated time: a profile's cost of a message stands for the whole call.

use std::{net::SocketAddr, time::Duration};

use client::{Client, Design, Identity, Options, Strategy};
use futures::future::try_join_all;
use rdma::provider::sim::{Profile, World};
use runtime::{RuntimeRef, virtual_time::VirtualTime};
use server::{Backend, ByteSize, Config, ExportConfig, ExposedBuffers, Hosted};

use super::{
    Outcome, Run,
    thread::{File, WORKING_SET, failed},
};
use crate::{
    BenchError, Figure,
    units::{cpu_s_per_gb, mb_per_s},
};

const SERVER: [u8; 4] = [10, 0, 0, 1];
const CLIENT: [u8; 4] = [10, 0, 0, 2];
const PORT: u16 = 20049;
const EXPORT: &str = "/simulated";
/// Records beyond the files' own that the server's export has room for, in bytes.
const ROOM: u64 = 64 << 20;

/// What to simulate.
#[derive(Debug, Clone)]
pub struct Simulated {
    /// The machines.
    pub profile: Profile,
    /// The seed of the run: the same gives the same figures.
    pub seed: u64,
    /// How the clients behave. Provider, transport and identity are those of the simulation.
    pub options: Options,
    /// Threads of the client host, each with a connection and a file.
    pub threads: usize,
    /// Bytes of each file.
    pub size: u64,
}

impl Simulated {
    /// Makes the files, runs the tests one after the other, and gives a figure for each. It says that it is simulated:
    /// in its workload.
    ///
    /// # Errors
    /// When a client cannot connect, an operation fails, or a record is larger than the server takes.
    pub fn run(&self, runs: &[Run]) -> Result<Vec<Figure>, BenchError> {
        let time = VirtualTime::new(self.seed);
        let world = World::new(&time, self.profile.clone());
        let rt = time.runtime();
        let server = self.serve(&world, &rt)?;
        let done = time.block_on(self.run_all(&world, &rt, runs));
        drop(server);
        done.map_err(|stuck| BenchError::Client(format!("the simulation is stuck: {stuck}")))?
    }

    /// Both ends use the same strategy, but for the one that a server of the Read-Read design refuses.
    fn server_registration(&self) -> Strategy {
        match (self.options.design, self.options.registration) {
            (Design::ReadRead, Strategy::AllPhysical) => Strategy::Cache,
            (_, strategy) => strategy,
        }
    }

    fn serve(&self, world: &World, rt: &RuntimeRef) -> Result<Hosted, BenchError> {
        let failed = |e: &dyn std::fmt::Display| BenchError::Peer(e.to_string());
        // Twice the data: a rewritten record's old and new content are there at once.
        let capacity = self.size.saturating_mul(2 * self.threads as u64).saturating_add(ROOM);
        let backend = Backend::Memory { capacity: ByteSize(capacity) };
        let config = Config {
            exports: vec![ExportConfig::new(EXPORT, backend)],
            design: self.options.design,
            exposed_buffers: ExposedBuffers::AcceptedOnNetworks, // There is no network.
            registration: Some(self.server_registration()),
            ..Config::default()
        };
        let hosted = Hosted::start(config, rt.clone(), server::open).map_err(|e| failed(&e))?;
        let listener = world.add_host(SERVER.into()).listen(rt.clone(), SocketAddr::from((SERVER, PORT)));
        hosted.serve(listener.map_err(|e| failed(&e))?);
        Ok(hosted)
    }

    async fn run_all(&self, world: &World, rt: &RuntimeRef, runs: &[Run]) -> Result<Vec<Figure>, BenchError> {
        let mut files = Vec::new();
        for number in 0..self.threads.max(1) {
            let client = self.mount(world, rt).await?;
            files.push(File::of(client, number, self.size, WORKING_SET / self.threads.max(1)).await?);
        }
        let mut figures = Vec::new();
        for run in runs {
            let largest = files.iter().map(|f| f.client.rsize().min(f.client.wsize())).min();
            let largest = largest.unwrap_or_default() as usize;
            if run.record == 0 || run.record > largest || run.record as u64 > self.size {
                return Err(BenchError::Parameter(format!(
                    "a record of {} bytes is not between 1 and {largest}, or larger than the file",
                    run.record
                )));
            }
            let cpu = [CLIENT, SERVER].map(|ip| world.host_use(ip.into()).cpu_ns);
            let start = rt.now();
            let outcomes = try_join_all(files.iter_mut().map(|f| f.measure(run))).await?;
            let took = rt.now().duration_since(start);
            let mut all = Outcome::default();
            outcomes.into_iter().for_each(|o| all.merge(o));
            let after = [CLIENT, SERVER].map(|ip| world.host_use(ip.into()).cpu_ns);
            let spent = [0, 1].map(|i| Duration::from_nanos(after[i] - cpu[i]));
            figures.push(self.figure(run, &all, took, spent));
        }
        Ok(figures)
    }

    async fn mount(&self, world: &World, rt: &RuntimeRef) -> Result<Client, BenchError> {
        let options = Options {
            // The process's own would be another one on each machine, and its length is on the wire.
            credential: Identity { uid: 0, gid: 0, gids: Vec::new(), machine: "simulated".into() },
            trust_server: true, // It is a part of this process.
            ..self.options.clone()
        };
        let (provider, to) = (world.add_host(CLIENT.into()), SocketAddr::from((SERVER, PORT)));
        Client::connect_over(rt.clone(), provider, to, EXPORT, options).await.map_err(failed)
    }

    fn figure(&self, run: &Run, all: &Outcome, took: Duration, cpu: [Duration; 2]) -> Figure {
        let [client, server] = cpu;
        let percent = |cpu: Duration| cpu.as_secs_f64() * 100.0 / took.as_secs_f64().max(1e-9);
        Figure {
            workload: format!("simulated iozone on {}", self.profile.name),
            test: run.test.to_string(),
            proto: "rdma".into(),
            provider: Some("sim".into()),
            design: Some(self.options.design.to_string()),
            registration: Some(self.options.registration.to_string()),
            server_registration: Some(self.server_registration().to_string()),
            threads: self.threads,
            record: run.record as u64,
            outstanding: run.outstanding,
            mb_per_s: Some(mb_per_s(all.bytes, took)),
            ops_per_s: Some(all.latencies.len() as f64 / took.as_secs_f64().max(1e-9)),
            p50_us: Some(all.latencies.percentile_us(50.0)),
            p99_us: Some(all.latencies.percentile_us(99.0)),
            client_cpu_s_per_gb: Some(cpu_s_per_gb(client, all.bytes)),
            server_cpu_s_per_gb: Some(cpu_s_per_gb(server, all.bytes)),
            server_cpu_us_per_op: Some(server.as_secs_f64() * 1e6 / all.latencies.len().max(1) as f64),
            client_cpu_percent: Some(percent(client)),
            server_cpu_percent: Some(percent(server)),
            client_registrations: Some(all.registrations as f64),
            client_exposed_byte_s: Some(all.exposed_byte_nanoseconds as f64 / 1e9),
            ..Figure::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::iozone::Test;

    fn simulated(profile: &str, seed: u64) -> Vec<Figure> {
        // As the kernels of WAN 2008 do.
        let options = Options { registration: Strategy::AllPhysical, ..Options::default() };
        let profile = Profile::named(profile).unwrap();
        let what = Simulated { profile, seed, options, threads: 2, size: 4 << 20 };
        let run = |test| Run { test, record: 128 << 10, outstanding: 4, passes: 1, random_ops: 0 };
        what.run(&[Test::Write, Test::Read].map(run)).unwrap()
    }

    #[test]
    fn figures_are_those_of_the_simulated_machines_and_say_so() {
        let wan = simulated("wan-infinihost", 1);
        assert!(wan.iter().all(|f| f.workload == "simulated iozone on wan-infinihost"));
        let (write, read) = (wan[0].mb_per_s.unwrap(), wan[1].mb_per_s.unwrap());
        // Two connections, each with four RDMA Reads of a page in flight: WAN 2008 measures 223 MB/s for one, raw.
        assert!((100.0..460.0).contains(&write) && (400.0..934.0).contains(&read), "{write} {read}");
        let ndr = simulated("ndr-400g", 1);
        assert!(ndr[0].mb_per_s.unwrap() > 5.0 * write && ndr[1].mb_per_s.unwrap() > 5.0 * read);
        let json = |figures: &[Figure]| figures.iter().map(Figure::json).collect::<Vec<_>>();
        assert_eq!(json(&ndr), json(&simulated("ndr-400g", 1)));
    }

    #[test]
    fn a_record_that_the_server_does_not_take_is_refused() {
        let profile = Profile::named("hdr-200g").unwrap();
        let what = Simulated { profile, seed: 1, options: Options::default(), threads: 1, size: 8 << 20 };
        let run = Run { test: Test::Write, record: 2 << 20, outstanding: 1, passes: 1, random_ops: 0 };
        assert!(matches!(what.run(&[run]), Err(BenchError::Parameter(_))));
    }
}
