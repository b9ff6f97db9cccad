//! `millrace-lab breakdown`.

use millrace_bench::command::iozone::sequential;
use millrace_bench::{
    Figure,
    iozone::{Grid, Servers},
};
use millrace_client::Options;
use millrace_program::{
    failure::{CommandResult, Failure, Outcome},
    output,
};

use super::warn_of_debug_build;
use crate::{
    args::{BreakdownArgs, Global},
    breakdown,
    matrix::{Ends, Matrix, Place},
};

/// Every call is timed, so that the sum of the stages is comparable with the mean latency of all operations.
const SAMPLE: u32 = 1;

pub(super) fn run(global: &Global, args: &BreakdownArgs) -> CommandResult {
    warn_of_debug_build();
    let figures = matrix(global, args).run(|_| Ok(()))?;
    if args.json {
        figures.iter().try_for_each(|f| output::line(&breakdown::json(f)))?;
    } else {
        output::line(&format!("{}.\n", conditions(args, &figures)))?;
        output::write(breakdown::text(&figures).as_bytes())?;
    }
    if let Some(dir) = &args.plot {
        let drawn = breakdown::draw(&figures, &conditions(args, &figures), dir);
        drawn.map_err(|e| Failure::new(e.to_string()))?;
    }
    Ok(Outcome::Done)
}

fn matrix(global: &Global, args: &BreakdownArgs) -> Matrix {
    let options = global
        .options()
        .registration(Options::default().registration)
        .sample_stages(global.sample_stages.unwrap_or(SAMPLE));
    Matrix {
        place: Place::Measured(Servers::Embedded { address: args.address, proto: args.proto }),
        options,
        designs: global.designs.clone(),
        registrations: global.registrations.clone(),
        ends: Ends::Both,
        grid: Grid {
            runs: args.runs.into(),
            ..sequential(&args.threads, &args.record, args.size, args.outstanding)
        },
    }
}

/// The conditions of the measurement.
fn conditions(args: &BreakdownArgs, figures: &[Figure]) -> String {
    let provider = figures.iter().find_map(|f| f.provider.as_deref());
    format!(
        "embedded server, memory export at {}, {}; {} in flight and {} per thread; runs: {}",
        args.address,
        provider.map_or_else(|| args.proto.to_string(), |p| format!("{} ({p})", args.proto)),
        args.outstanding,
        args.size.human(),
        args.runs
    )
}
