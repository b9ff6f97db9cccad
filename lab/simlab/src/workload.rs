//! Any workload on simulated machines, its members as futures in virtual time.

use std::sync::Arc;

use millrace_bench::{
    BenchError, Figure,
    workload::{Directory, Workload, run_concurrently},
};

use crate::Machines;

/// Runs `workload` on simulated machines. Its members are distributed over the client hosts in turn, each
/// with its own connection. Returns a figure for each kind of operation, whose `workload` is marked as
/// simulated. The figure of a whole phase includes the CPU time of the hosts.
///
/// # Errors
/// The first failure of a member, or when the machines cannot be simulated.
pub fn simulate(workload: &impl Workload, machines: &Machines) -> Result<Vec<Figure>, BenchError> {
    let simulation = machines.start(workload.bytes())?;
    let open = async |rank| {
        let client = simulation.mount(rank).await?;
        Ok(Directory::Mount { dir: client.root(), client })
    };
    let meter = Arc::new(simulation.hosts().clone());
    let line = machines.line(workload.name());
    simulation.run(run_concurrently(workload, simulation.runtime(), Some(meter), line, open))
}

#[cfg(test)]
mod tests {
    use millrace_client::{Options, Proto, Strategy};
    use millrace_rdma_sim::Profile;

    use millrace_bench::workload::Latency;
    use millrace_workloads::{Btio, Class, Clients, Compile, Fileop, Oltp, Postmark, Sources, Tile, Untar};

    use super::*;
    fn run(workload: &impl Workload, profile: &str, client_hosts: usize, proto: Proto) -> Vec<Figure> {
        let options = Options::default().proto(Some(proto));
        let machines = Machines { client_hosts, options, ..Machines::new(Profile::named(profile).unwrap()) };
        simulate(workload, &machines).unwrap()
    }

    #[test]
    fn every_workload_runs_in_virtual_time_and_repeats_with_the_same_seed() {
        fn check(workload: &impl Workload, proto: Proto) {
            let json = || run(workload, "hdr-200g", 2, proto).iter().map(Figure::json).collect::<Vec<_>>();
            let figures = json();
            assert!(!figures.is_empty());
            let name = format!("simulated {} on hdr-200g", workload.name());
            assert!(figures.iter().all(|f| f.contains(&name)), "{figures:?}");
            assert_eq!(figures, json(), "{name}");
        }
        let (sources, file_size) = (Sources { files: 40, seed: 1 }, 64 << 10);
        check(&Fileop { factor: 2, size: 4096 }, Proto::Rdma);
        check(&Postmark { files: 20, transactions: 60, low: 500, high: 10_000, seed: 1 }, Proto::Tcp);
        check(&Untar { sources: sources.clone() }, Proto::Rdma);
        check(&Compile { sources }, Proto::Tcp);
        let oltp = Oltp { shadows: 8, writers: 2, io: 4096, files: 2, file_size, reads: 6500, seed: 1 };
        check(&oltp, Proto::Rdma);
        check(&Btio { class: Class::S, processes: 4, steps: 4, interval: 2 }, Proto::Tcp);
        check(&Tile { columns: 3, rows: 2, width: 16, height: 8, element: 32 }, Proto::Rdma);
        check(&Latency { operations: 20 }, Proto::Tcp);
        check(&Clients { clients: 3, size: 256 << 10, record: 64 << 10 }, Proto::Rdma);
    }

    #[test]
    fn an_operation_takes_the_round_trip() {
        let latency = Latency { operations: 3 };
        let stat = |miles| {
            let profile = Profile::named("wan-connectx").unwrap().at_distance(miles).unwrap();
            // As the kernels of WAN 2008 do, page by page.
            let options = Options::default().registration(Strategy::AllPhysical);
            let figures = simulate(&latency, &Machines { options, ..Machines::new(profile) }).unwrap();
            figures.iter().find(|f| f.test == "stat").and_then(|f| f.p50_us).unwrap()
        };
        let way = 2.0 * 1000.0 * Profile::named("wan-connectx").unwrap().link.ns_per_mile / 1e3;
        // Latencies are stored with three digits.
        let (near, far) = (stat(0.0), stat(1000.0));
        assert!((0.998..1.002).contains(&((far - near) / way)), "{near} {far} {way}");
    }

    #[test]
    fn figures_of_whole_phases_include_the_cpu_time_of_the_hosts() {
        let tile = Tile { columns: 2, rows: 1, width: 16, height: 8, element: 32 };
        let figures = run(&tile, "hdr-200g", 2, Proto::Rdma);
        for f in figures {
            let whole = f.test.starts_with("tile");
            assert_eq!(f.client_cpu_percent.is_some(), whole, "{}", f.test);
            // The figure cannot exceed the capacity of all cores.
            let cores = 100.0 * f64::from(Profile::named("hdr-200g").unwrap().host.cores);
            assert!(f.client_cpu_percent.is_none_or(|cpu| cpu > 0.0 && cpu <= 2.0 * cores));
            assert!(f.server_cpu_percent.is_none_or(|cpu| cpu > 0.0 && cpu <= cores));
        }
    }
}
