//! The workloads on servers, in directories, and on simulated machines.

use millrace_bench::command::workload::{Place, members, over_rdma, run as run_workload};
use millrace_bench::workload::{Workload, table};
use millrace_program::{
    failure::{CommandResult, Failure, Outcome},
    output,
};
use millrace_read_read::Design;
use millrace_simlab::Storage;

use super::{
    simulate::{about, machines},
    warn_of_debug_build,
};
use crate::{
    args::{Global, Where},
    settings::server_arguments,
};

pub(super) fn run(global: &Global, workload: &impl Workload, place: &Where) -> CommandResult {
    if place.machines.profile.is_some() {
        return run_simulated(global, workload, place);
    }
    let machines = &place.machines;
    if machines.miles.is_some() || machines.client_hosts.is_some() || machines.storage != Storage::Free {
        return Err(Failure::usage("--miles, --client-hosts and --storage require --profile"));
    }
    warn_of_debug_build();
    let options = global.options();
    let place = Place {
        url: place.url.clone(),
        self_server: place.self_server,
        dir: place.dir.clone(),
        address: place.address,
        proto: place.proto,
        runs: place.runs,
        json: place.json,
        server_arguments: server_arguments(Design::of(&options.rdma_protocol), options.sample_stages),
        options,
    };
    run_workload(workload, &place)
}

fn run_simulated(global: &Global, workload: &impl Workload, place: &Where) -> CommandResult {
    let machines = machines(global, &place.machines, place.proto, workload.client_hosts())?;
    let figures = millrace_simlab::simulate(workload, &machines)?;
    if place.json {
        figures.iter().try_for_each(|f| output::line(&f.json()))?;
        return Ok(Outcome::Done);
    }
    output::line(&about(&machines))?;
    let f = figures.first().cloned().unwrap_or_default();
    output::line(&format!("{}{}\n{}.\n", workload.name(), over_rdma(&f), members(workload)))?;
    output::write(table(&figures).to_string().as_bytes())?;
    Ok(Outcome::Done)
}
