//! `millrace bench connections`.

use millrace_bench::{
    connections::{Connections, table},
    no_halt,
};
use millrace_cli_common::{
    failure::{CommandResult, Outcome},
    output,
};

use super::warn_of_debug_build;
use crate::args::ConnectionsArgs;

pub(super) fn run(args: &ConnectionsArgs) -> CommandResult {
    warn_of_debug_build();
    let mut figures = Vec::new();
    for proto in &args.proto {
        for connections in &args.connections {
            let (connections, depth) = ((*connections).into(), args.depth.into());
            let measurement = Connections { proto: *proto, connections, depth, reads: args.reads };
            let figure = measurement.run()?;
            if args.json {
                output::line(&figure.json())?;
            }
            figures.push(figure);
        }
    }
    if !args.json {
        output::line(&format!(
            "Random reads of 4 KiB on all connections, memory export, loopback, client with one thread.\n{}\n",
            no_halt::condition()
        ))?;
        output::write(table(&figures).to_string().as_bytes())?;
    }
    Ok(Outcome::Done)
}
