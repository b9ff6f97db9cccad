//! `millrace-lab iozone`.

use millrace_bench::command::iozone::Show;
use millrace_bench::{Figure, iozone::Servers};
use millrace_client::{Options, Strategy};
use millrace_program::failure::{CommandResult, Failure, Outcome};
use millrace_read_read::Design;

use super::warn_of_debug_build;
use crate::{
    args::{EndsName, Global, IozoneArgs},
    matrix::{Ends, Matrix, Place},
    plots,
};

impl From<EndsName> for Ends {
    fn from(ends: EndsName) -> Self {
        match ends {
            EndsName::Both => Self::Both,
            EndsName::Client => Self::Client,
            EndsName::Server => Self::Server,
        }
    }
}

pub(super) fn run(global: &Global, args: &IozoneArgs) -> CommandResult {
    warn_of_debug_build();
    let bench = &args.bench;
    let options = bench.options(global.options()).registration(Options::default().registration);
    let matrix = Matrix {
        place: Place::Measured(bench.servers()?),
        options,
        designs: global.designs.clone(),
        registrations: global.registrations.clone(),
        ends: args.registration_of.into(),
        grid: bench.grid(),
    };
    let show = Show {
        json: bench.json,
        csv: bench.csv.as_deref(),
        conditions: &|f| bench.conditions(f),
        ends: ("client", "server"),
        notes: notes(&matrix),
    };
    sweep(&matrix, &show, args.plot.as_deref())
}

/// Measures a matrix, prints the figures, and plots the medians into `plot`.
pub(super) fn sweep(matrix: &Matrix, show: &Show<'_>, plot: Option<&std::path::Path>) -> CommandResult {
    let medians = show.measure(matrix.cells() * matrix.grid.runs, |each| matrix.run(each))?;
    if let Some(dir) = plot {
        draw(show, matrix, &medians, dir)?;
    }
    Ok(Outcome::Done)
}

/// Explanations of the figures.
fn notes(matrix: &Matrix) -> String {
    let Place::Measured(Servers::Embedded { address, .. }) = &matrix.place else { return String::new() };
    let mut text = String::new();
    let all_physical = matrix.registrations.contains(&Strategy::AllPhysical);
    let read_read = matrix.designs.contains(&Design::ReadRead);
    if read_read {
        text += &format!(
            "read-read: the embedded server exposes its memory to any host that reaches {address} \
             (--i-accept-exposed-buffers is implied).\n"
        );
    }
    if all_physical {
        text += "all-physical: this program trusts the server that it started (--i-trust-the-server is implied).\n";
    }
    if read_read && all_physical && matrix.ends != Ends::Client {
        text += "A read-read server does not support all-physical; it uses cache instead.\n";
    }
    text
}

fn draw(show: &Show<'_>, matrix: &Matrix, medians: &[Figure], dir: &std::path::Path) -> Result<(), Failure> {
    let note = medians.first().map(show.conditions).unwrap_or_default();
    let ends = match matrix.ends {
        Ends::Both => "registration at both ends",
        Ends::Client => "the client's registration",
        Ends::Server => "the server's registration",
    };
    let drawn = plots::draw(medians, &format!("{ends}; {note}"), dir);
    drawn.map_err(|e| Failure::new(e.to_string()))
}
