//! `millrace bench simulate`.

use bench::{
    figure::{costs, table},
    iozone::{Run, Simulated, Test},
    simulated::Machines,
};
use rdma::provider::sim::Profile;

use crate::{
    args::SimulateArgs,
    failure::{CommandResult, Failure, Outcome},
    output, session,
};

pub(super) fn run(args: &SimulateArgs) -> CommandResult {
    if args.profile == "list" {
        return list();
    }
    let profile = profile(args)?;
    let about = format!("{}: {}; {} miles", profile.name, profile.about, profile.link.miles);
    let (options, threads) = (session::options(), args.threads.into());
    let head = format!(
        "SIMULATED, not measured: {about}\nseed {}, design {}, registration {}; {threads} threads, {} records in \
         flight each, {} per thread.\n",
        args.seed, options.design, options.registration, args.outstanding, args.size
    );
    let size = args.size.0 / args.record.0.max(1) * args.record.0;
    let one = |test| Run {
        test,
        record: usize::try_from(args.record.0).unwrap_or(usize::MAX),
        outstanding: args.outstanding.into(),
        passes: 1,
        random_ops: 0,
    };
    let runs: Vec<Run> = [Test::Write, Test::Read].map(one).into();
    let machines = Machines { seed: args.seed, options, ..Machines::new(profile) };
    let figures = Simulated { machines, threads, shared_mount: false, size }.run(&runs)?;
    if args.json {
        figures.iter().try_for_each(|f| output::line(&f.json()))?;
        return Ok(Outcome::Done);
    }
    output::line(&head)?;
    let ends = ("simulated client", "simulated server");
    output::write(table(&figures, ends).to_string().as_bytes())?;
    output::line("")?;
    output::write(costs(&figures).to_string().as_bytes())?;
    Ok(Outcome::Done)
}

fn list() -> CommandResult {
    for name in Profile::names() {
        let profile = Profile::named(name).map_err(|e| Failure::new(e.to_string()))?;
        output::line(&format!("{name}: {}", profile.about))?;
    }
    Ok(Outcome::Done)
}

/// The profile by its name, or out of a file.
fn profile(args: &SimulateArgs) -> Result<Profile, Failure> {
    let name = &args.profile;
    let found = if name.contains('/') || name.ends_with(".toml") {
        let text = std::fs::read_to_string(name);
        Profile::parse(&text.map_err(|e| Failure::new(format!("cannot read the profile {name}: {e}")))?)
    } else {
        Profile::named(name)
    };
    let placed = found.and_then(|p| match args.miles {
        Some(miles) => p.at_distance(miles),
        None => Ok(p),
    });
    placed.map_err(|e| Failure::usage(e.to_string()))
}
