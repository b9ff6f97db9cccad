//! A workload on simulated machines, its members as tasks in virtual time.

use std::sync::Arc;

use futures::future::join_all;

use super::{
    Directory, Workload,
    crew::{Barrier, Part, member, together},
    tally::Tally,
};
use crate::{
    BenchError, Figure,
    simulated::{Machines, Simulation},
};

/// Runs `workload` on simulated machines. Its members are spread over the client hosts in turn, each with a connection
/// of its own. Gives a line for each kind of operation, which says that it is simulated: in its workload. What is
/// timed as a whole has the processor time of the hosts.
///
/// # Errors
/// The first failure of a member; when the machines cannot be.
pub fn simulate(workload: &Workload, machines: &Machines) -> Result<Vec<Figure>, BenchError> {
    let simulation = machines.start(workload.bytes())?;
    let tally = simulation.run(members(workload, &simulation))?;
    Ok(tally.figures(&workload.line(machines.line(workload.name()))))
}

async fn members(workload: &Workload, simulation: &Simulation) -> Result<Tally, BenchError> {
    let barrier = Arc::new(Barrier::new(workload.members()));
    let one = |rank| {
        let part = Part::new(rank, &barrier);
        async move {
            let client = simulation.mount(rank).await?;
            let directory = Directory::Mount { dir: client.root(), client };
            let tally = Tally::new(Arc::clone(simulation.runtime())).on(simulation.hosts().clone());
            member(workload, &directory, part, tally).await
        }
    };
    together(join_all((0..workload.members()).map(one)).await)
}

#[cfg(test)]
mod tests {
    use millrace_client::{Options, Proto, Strategy};
    use millrace_rdma_sim::Profile;

    use super::*;
    use crate::workload::{
        Btio, Class, Clients, Compile, Fileop, Latency, Oltp, Postmark, Sources, Tile, Untar,
    };

    fn small() -> Vec<Workload> {
        let sources = Sources { files: 40, seed: 1 };
        vec![
            Workload::Fileop(Fileop { factor: 2, size: 4096 }),
            Workload::Postmark(Postmark { files: 20, transactions: 60, low: 500, high: 10_000, seed: 1 }),
            Workload::Untar(Untar { sources: sources.clone() }),
            Workload::Compile(Compile { sources }),
            Workload::Oltp(Oltp {
                shadows: 8,
                writers: 2,
                io: 4096,
                files: 2,
                file_size: 64 << 10,
                reads: 6500,
                seed: 1,
            }),
            Workload::Btio(Btio { class: Class::S, processes: 4, steps: 4, interval: 2 }),
            Workload::Tile(Tile { columns: 3, rows: 2, width: 16, height: 8, element: 32 }),
            Workload::Latency(Latency { operations: 20 }),
            Workload::Clients(Clients { clients: 3, size: 256 << 10, record: 64 << 10 }),
        ]
    }

    fn run(workload: &Workload, profile: &str, client_hosts: usize, proto: Proto) -> Vec<Figure> {
        let options = Options { proto, ..Options::default() };
        let machines = Machines { client_hosts, options, ..Machines::new(Profile::named(profile).unwrap()) };
        simulate(workload, &machines).unwrap()
    }

    #[test]
    fn every_workload_runs_in_virtual_time_and_does_the_same_with_the_same_seed() {
        for (n, workload) in small().into_iter().enumerate() {
            let proto = [Proto::Rdma, Proto::Tcp][n % 2];
            let json = || run(&workload, "hdr-200g", 2, proto).iter().map(Figure::json).collect::<Vec<_>>();
            let figures = json();
            assert!(!figures.is_empty());
            let name = format!("simulated {} on hdr-200g", workload.name());
            assert!(figures.iter().all(|f| f.contains(&name)), "{figures:?}");
            assert_eq!(figures, json(), "{name}");
        }
    }

    #[test]
    fn an_operation_takes_the_way_there_and_back() {
        let latency = Workload::Latency(Latency { operations: 3 });
        let stat = |miles| {
            let profile = Profile::named("wan-connectx").unwrap().at_distance(miles).unwrap();
            // As the kernels of WAN 2008 do: page by page.
            let options = Options { registration: Strategy::AllPhysical, ..Options::default() };
            let figures = simulate(&latency, &Machines { options, ..Machines::new(profile) }).unwrap();
            figures.iter().find(|f| f.test == "stat").and_then(|f| f.p50_us).unwrap()
        };
        let way = 2.0 * 1000.0 * Profile::named("wan-connectx").unwrap().link.ns_per_mile / 1e3;
        // Latencies are kept to three digits.
        let (near, far) = (stat(0.0), stat(1000.0));
        assert!((0.998..1.002).contains(&((far - near) / way)), "{near} {far} {way}");
    }

    #[test]
    fn what_is_timed_as_a_whole_has_the_processor_time_of_the_hosts() {
        let tile = Tile { columns: 2, rows: 1, width: 16, height: 8, element: 32 };
        let figures = run(&Workload::Tile(tile), "hdr-200g", 2, Proto::Rdma);
        for f in figures {
            let whole = f.test.starts_with("tile");
            assert_eq!(f.client_cpu_percent.is_some(), whole, "{}", f.test);
            // All cores of the hosts together do not do more than they can.
            let cores = 100.0 * f64::from(Profile::named("hdr-200g").unwrap().host.cores);
            assert!(f.client_cpu_percent.is_none_or(|cpu| cpu > 0.0 && cpu <= 2.0 * cores));
            assert!(f.server_cpu_percent.is_none_or(|cpu| cpu > 0.0 && cpu <= cores));
        }
    }
}
