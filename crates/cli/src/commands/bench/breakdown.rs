//! `millrace bench breakdown`.

use millrace_bench::{
    Figure, breakdown,
    iozone::{Ends, Matrix, Servers, Test},
    units::Size,
};

use super::warn_of_debug_build;
use crate::{
    args::BreakdownArgs,
    failure::{CommandResult, Outcome},
    output, session,
};

/// Every call is timed, so that the sum of the stages can stand beside the mean latency of all operations.
const SAMPLE: u32 = 1;

pub(super) fn run(args: &BreakdownArgs) -> CommandResult {
    warn_of_debug_build();
    let figures = matrix(args).run(|_| Ok(()))?;
    if args.json {
        figures.iter().try_for_each(|f| output::line(&breakdown::json(f)))?;
    } else {
        output::line(&format!("{}.\n", conditions(args, &figures)))?;
        output::write(breakdown::text(&figures).as_bytes())?;
    }
    if let Some(dir) = &args.plot {
        breakdown::draw(&figures, &conditions(args, &figures), dir)?;
    }
    Ok(Outcome::Done)
}

fn matrix(args: &BreakdownArgs) -> Matrix {
    let stated = session::stated();
    let options = millrace_client::Options {
        registration: millrace_client::Options::default().registration,
        sample_stages: stated.sample_stages.unwrap_or(SAMPLE),
        ..session::options()
    };
    Matrix {
        servers: Servers::Embedded { address: args.address, proto: args.proto },
        options,
        designs: stated.designs.clone(),
        registrations: stated.registrations.clone(),
        ends: Ends::Both,
        threads: args.threads.iter().map(|n| usize::from(*n)).collect(),
        records: args.record.iter().map(|Size(n)| usize::try_from(*n).unwrap_or(usize::MAX)).collect(),
        tests: vec![Test::Write, Test::Read],
        size: args.size.0,
        outstanding: args.outstanding.into(),
        random_ops: 0,
        runs: args.runs.into(),
    }
}

/// Under which conditions it was measured.
fn conditions(args: &BreakdownArgs, figures: &[Figure]) -> String {
    let provider = figures.iter().find_map(|f| f.provider.as_deref());
    format!(
        "embedded server, memory export at {}, {}; {} in flight and {} per thread; runs: {}",
        args.address,
        provider.map_or_else(|| args.proto.to_string(), |p| format!("{} ({p})", args.proto)),
        args.outstanding,
        args.size,
        args.runs
    )
}
