//! `millrace-lab simulate`, and the simulated machines of workloads.

use millrace_bench::Figure;
use millrace_bench::command::iozone::{Show, sequential};
use millrace_client::Proto;
use millrace_program::{
    failure::{CommandResult, Failure, Outcome},
    output,
};
use millrace_rdma_sim::{Profile, ProfileError};
use millrace_simlab::Machines;

use super::iozone::sweep;
use crate::{
    args::{Global, MachinesArgs, SimulateArgs},
    matrix::{Ends, Matrix, Place},
};

pub(super) fn run(global: &Global, args: &SimulateArgs) -> CommandResult {
    if args.machines.profile.as_deref() == Some("list") {
        return list();
    }
    let machines = machines(global, &args.machines, args.proto, 1)?;
    let about = about(&machines);
    let shared = if args.shared_mount { "; threads share a connection" } else { "" };
    let conditions = |_: &Figure| {
        format!("{about}; {} in flight and {} per thread{shared}", args.outstanding, args.size.human())
    };
    let matrix = matrix(global, args, machines);
    let show = Show {
        json: args.json,
        csv: args.csv.as_deref(),
        conditions: &conditions,
        ends: ("simulated client", "simulated server"),
        notes: String::new(),
    };
    sweep(&matrix, &show, args.plot.as_deref())
}

fn matrix(global: &Global, args: &SimulateArgs, machines: Machines) -> Matrix {
    Matrix {
        options: machines.options.clone(),
        place: Place::Simulated { machines: Box::new(machines), shared_mount: args.shared_mount },
        designs: global.designs.clone(),
        registrations: global.registrations.clone(),
        ends: Ends::Both,
        grid: sequential(&args.threads, &args.record, args.size, args.outstanding),
    }
}

fn list() -> CommandResult {
    for name in Profile::names() {
        let profile = Profile::named(name).map_err(|e| Failure::new(e.to_string()))?;
        output::line(&format!("{name}: {}", profile.about))?;
    }
    Ok(Outcome::Done)
}

/// The machines of the command line; `client_hosts` is the default number of client hosts.
pub(super) fn machines(
    global: &Global,
    args: &MachinesArgs,
    proto: Proto,
    client_hosts: usize,
) -> Result<Machines, Failure> {
    let name = args.profile.as_deref().unwrap_or_default();
    let placed = profile(name)?;
    let placed = match args.miles {
        Some(miles) => placed.at_distance(miles).map_err(usage_error)?,
        None => placed,
    };
    Ok(Machines {
        seed: args.seed,
        options: global.options().proto(Some(proto)),
        storage: args.storage.clone(),
        client_hosts: args.client_hosts.map_or(client_hosts, usize::from),
        ..Machines::new(placed)
    })
}

fn usage_error(e: ProfileError) -> Failure {
    Failure::usage(e.to_string())
}

/// Describes the simulated machines in one line.
pub(super) fn about(machines: &Machines) -> String {
    let Machines { profile, seed, storage, client_hosts, .. } = machines;
    format!(
        "SIMULATED, not measured: {}: {}; {} miles; client hosts: {client_hosts}; server's file system: {storage}; {}; \
         seed {seed}",
        profile.name,
        profile.about,
        profile.link.miles,
        machines.proto()
    )
}

/// Returns a profile by name or from a file.
pub(super) fn profile(name: &str) -> Result<Profile, Failure> {
    if name.contains('/') || name.ends_with(".toml") {
        let text = std::fs::read_to_string(name);
        let text = text.map_err(|e| Failure::new(format!("cannot read the profile {name}: {e}")))?;
        return Profile::parse(&text).map_err(usage_error);
    }
    Profile::named(name).map_err(usage_error)
}
