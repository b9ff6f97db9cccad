//! IOzone on simulated machines, in virtual time.

use futures::future::try_join_all;
use millrace_bench::{
    BenchError, Figure,
    breakdown::Breakdown,
    iozone::{Exposure, File, Outcome, Run, Test, WORKING_SET},
};
use millrace_client::Proto;
use millrace_oncrpc::{Stage, stages::StageSums};

use crate::{Machines, Simulation, Spent};

/// The parameters of a simulation.
#[derive(Debug, Clone)]
pub struct SimulatedIozone {
    /// The machines.
    pub machines: Machines,
    /// Number of threads, each with its own file, distributed over the client hosts in turn.
    pub threads: usize,
    /// Whether the threads of a client host share one mount, with `nconnect` connections. Otherwise each
    /// thread has its own mount.
    pub shared_mount: bool,
    /// Bytes of each file.
    pub size: u64,
}

impl SimulatedIozone {
    /// Creates the files, runs the tests one after the other, and returns a figure for each, whose workload
    /// is marked as simulated.
    ///
    /// # Errors
    /// When the machines cannot be simulated, a client cannot connect, an operation fails, or a record
    /// exceeds the limit of the server.
    pub fn run(&self, runs: &[Run]) -> Result<Vec<Figure>, BenchError> {
        self.cells(runs, true)
    }

    /// As [`Self::run`], except that a record which exceeds the size of a READ or WRITE has a figure without
    /// values.
    ///
    /// # Errors
    /// As [`Self::run`].
    pub fn run_feasible(&self, runs: &[Run]) -> Result<Vec<Figure>, BenchError> {
        self.cells(runs, false)
    }

    fn cells(&self, runs: &[Run], all: bool) -> Result<Vec<Figure>, BenchError> {
        let simulation = self.machines.start(self.size.saturating_mul(self.threads as u64))?;
        simulation.run(self.run_all(&simulation, runs, all))
    }

    /// The files of all threads.
    async fn files(&self, simulation: &Simulation) -> Result<Vec<File>, BenchError> {
        let mut files: Vec<File> = Vec::new();
        for number in 0..self.threads.max(1) {
            // Threads are assigned to the hosts in turn.
            let mounted = number.checked_sub(self.machines.client_hosts).and_then(|first| files.get(first));
            let client = match mounted {
                Some(other) if self.shared_mount => other.client.clone(),
                _ => simulation.mount(number).await?,
            };
            let share = WORKING_SET / self.threads.max(1);
            files.push(File::of(client, (number, format!("file-{number}")), self.size, share).await?);
        }
        Ok(files)
    }

    async fn run_all(
        &self,
        simulation: &Simulation,
        runs: &[Run],
        all: bool,
    ) -> Result<Vec<Figure>, BenchError> {
        let mut files = self.files(simulation).await?;
        let limit = |test: Test| {
            let of = |f: &File| if test.writes() { f.client.wsize() } else { f.client.rsize() };
            files.iter().map(of).min().unwrap_or_default() as usize
        };
        let limits: Vec<usize> = runs.iter().map(|run| limit(run.test)).collect();
        let mut figures = Vec::new();
        for (run, largest) in runs.iter().zip(limits) {
            let carried = (1..=largest).contains(&run.record);
            figures.push(match carried {
                true if run.record as u64 <= self.size => self.measure(simulation, run, &mut files).await?,
                false if !all => self.line(run),
                _ => {
                    return Err(BenchError::Parameter(format!(
                        "a record has {} bytes; choose 1 to {largest} bytes, at most the size of the file",
                        run.record
                    )));
                }
            });
        }
        Ok(figures)
    }

    /// The parameters of a run, as a figure without measurements.
    fn line(&self, run: &Run) -> Figure {
        Figure {
            test: run.test.to_string(),
            threads: self.threads,
            record: run.record as u64,
            outstanding: run.outstanding,
            ..self.machines.line("iozone")
        }
    }

    async fn measure(
        &self,
        simulation: &Simulation,
        run: &Run,
        files: &mut [File],
    ) -> Result<Figure, BenchError> {
        // Threads that share a mount share its registrations and exposures.
        let mounts = if self.shared_mount { self.machines.client_hosts } else { self.threads };
        let mounts: Vec<_> = files.iter().take(mounts).map(|f| f.client.clone()).collect();
        let before: Vec<_> = mounts.iter().map(Exposure::of).collect();
        let exposed = || simulation.server_stats().operations.exposure.byte_nanoseconds;
        let (spent, exposed_before, start) =
            (simulation.hosts().spent(), exposed(), simulation.runtime().now());
        let outcomes = try_join_all(files.iter_mut().map(|f| f.run(run))).await?;
        let took = simulation.runtime().now().duration_since(start);
        let spent = simulation.hosts().spent().since(&spent);
        let mut all = Outcome::default();
        outcomes.into_iter().for_each(|o| all.merge(o));
        mounts.iter().zip(&before).for_each(|(m, before)| Exposure::of(m).add_since(before, &mut all));
        let rdma = self.machines.proto() == Proto::Rdma;
        let line = Figure {
            breakdown: Some(registering(&spent, &all)),
            client_registrations: rdma.then_some(all.registrations as f64),
            client_exposed_byte_s: rdma.then_some(all.exposed_byte_nanoseconds as f64 / 1e9),
            server_registrations: rdma.then_some(spent.server_registrations as f64),
            server_exposed_byte_s: rdma.then_some(exposed().saturating_sub(exposed_before) as f64 / 1e9),
            ..self.line(run)
        };
        Ok(all.figure(line, took, spent.clients_cpu, Some(spent.server_cpu)))
    }
}

/// The durations of registrations per operation. The other stages are unknown: the CPU time of simulated
/// software delays only later work, so that no clock of the software shows it.
fn registering(spent: &Spent, all: &Outcome) -> Breakdown {
    let calls = all.latencies.len();
    let sums = |registering, deregistering| {
        StageSums::new(calls, [(Stage::Registration, registering), (Stage::Deregistration, deregistering)])
    };
    Breakdown {
        client: sums(spent.clients_registering, spent.clients_deregistering),
        server: Some(sums(spent.server_registering, spent.server_deregistering)),
        mean_us: all.latencies.mean_us(),
    }
}

#[cfg(test)]
mod tests {
    use millrace_client::{Options, Proto, Strategy};
    use millrace_rdma_sim::Profile;

    use super::*;

    fn what(profile: &str, seed: u64) -> SimulatedIozone {
        // As the kernels of WAN 2008 do.
        let options = Options::default().registration(Strategy::AllPhysical);
        let machines = Machines { seed, options, ..Machines::new(Profile::named(profile).unwrap()) };
        SimulatedIozone { machines, threads: 2, shared_mount: false, size: 4 << 20 }
    }

    fn figures(what: &SimulatedIozone) -> Vec<Figure> {
        let run = |test| Run { test, record: 128 << 10, outstanding: 4, passes: 1, random_ops: 0 };
        what.run(&[Test::Write, Test::Read].map(run)).unwrap()
    }

    #[test]
    fn figures_match_the_simulated_machines_and_are_marked() {
        let wan = figures(&what("wan-infinihost", 1));
        assert!(wan.iter().all(|f| f.workload == "simulated iozone on wan-infinihost"));
        let (write, read) = (wan[0].mb_per_s.unwrap(), wan[1].mb_per_s.unwrap());
        // Two connections, each with four RDMA Reads of a page in flight: WAN 2008 measures 223 MB/s for one,
        // without NFS.
        assert!((100.0..460.0).contains(&write) && (400.0..934.0).contains(&read), "{write} {read}");
        let ndr = figures(&what("ndr-400g", 1));
        assert!(ndr[0].mb_per_s.unwrap() > 5.0 * write && ndr[1].mb_per_s.unwrap() > 5.0 * read);
        let json = |figures: &[Figure]| figures.iter().map(Figure::json).collect::<Vec<_>>();
        assert_eq!(json(&ndr), json(&figures(&what("ndr-400g", 1))));
    }

    #[test]
    fn only_threads_of_one_mount_share_its_outstanding_reads() {
        let write = |shared_mount, client_hosts| {
            let what = what("wan-infinihost", 1);
            let machines = Machines { client_hosts, ..what.machines };
            let f = figures(&SimulatedIozone { machines, shared_mount, threads: 4, ..what }).swap_remove(0);
            assert_eq!((f.threads, f.client_hosts), (4, Some(client_hosts)));
            f.mb_per_s.unwrap()
        };
        let (one, own, hosts) = (write(true, 1), write(false, 1), write(true, 4));
        // WRITE is limited by the four RDMA Reads that a connection has in flight.
        assert!(one < 230.0, "{one}");
        assert!(own > 2.0 * one && hosts > 2.0 * one, "{one} {own} {hosts}");
    }

    #[test]
    fn registrations_take_the_time_of_the_profile_or_none_without_registrations() {
        let share = |registration| {
            let what = what("sdr-opensolaris", 1);
            let options = what.machines.options.registration(registration).trust_server(true);
            let machines = Machines { options, ..what.machines };
            let read = figures(&SimulatedIozone { machines, threads: 1, ..what }).swap_remove(1);
            let b = read.breakdown.unwrap();
            (b.client, b.server.unwrap())
        };
        let (client, server) = share(Strategy::Dynamic);
        for sums in [client, server] {
            // One registration: the call, 32 pages and the table; the four in flight wait for each other.
            let each = sums.time(Stage::Registration) / 32;
            assert!((55..300).contains(&each.as_micros()), "{each:?}");
            assert!(!sums.time(Stage::Deregistration).is_zero());
        }
        let (client, server) = share(Strategy::AllPhysical);
        assert!(client.total().is_zero() && server.total().is_zero());
    }

    #[test]
    fn the_same_machines_are_slower_over_tcp_and_figures_contain_the_transport() {
        let read = |proto| {
            let what = what("ipoib-ud", 1);
            let options = what.machines.options.proto(Some(proto));
            let machines = Machines { options, ..what.machines };
            figures(&SimulatedIozone { machines, ..what }).swap_remove(1)
        };
        let (rdma, tcp) = (read(Proto::Rdma), read(Proto::Tcp));
        assert_eq!((rdma.proto.as_str(), tcp.proto.as_str()), ("rdma", "tcp"));
        assert!(rdma.design.is_some() && tcp.design.is_none() && tcp.registration.is_none());
        assert!(rdma.mb_per_s.unwrap() > 1.2 * tcp.mb_per_s.unwrap(), "{rdma:?} {tcp:?}");
        assert!(tcp.mb_per_s.unwrap() > 10.0);
    }

    #[test]
    fn a_record_above_the_limit_of_the_server_is_refused() {
        let what = SimulatedIozone { size: 8 << 20, threads: 1, ..what("hdr-200g", 1) };
        let run = Run { test: Test::Write, record: 2 << 20, outstanding: 1, passes: 1, random_ops: 0 };
        assert!(matches!(what.run(&[run]), Err(BenchError::Parameter(_))));
    }
}
