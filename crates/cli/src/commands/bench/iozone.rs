//! `millrace bench iozone`.

use millrace_bench::command::iozone::Show;
use millrace_bench::iozone::measure;
use millrace_program::failure::{CommandResult, Outcome};

use super::warn_of_debug_build;
use crate::{args::IozoneArgs, session};

pub(super) fn run(args: &IozoneArgs) -> CommandResult {
    warn_of_debug_build();
    let args = &args.bench;
    let (servers, options, grid) = (args.servers()?, args.options(session::options()), args.grid());
    let registration = session::global().registration;
    let show = Show {
        json: args.json,
        csv: args.csv.as_deref(),
        conditions: &|f| args.conditions(f),
        ends: ("client", "server"),
        notes: String::new(),
    };
    show.measure(grid.cells() * grid.runs, |each| measure(&servers, &options, registration, &grid, each))?;
    Ok(Outcome::Done)
}
