//! `millrace bench connections`.

use millrace_bench::connections::{Connections, report};
use millrace_program::{
    failure::{CommandResult, Outcome},
    output,
};

use super::{RAW_PEER, warn_of_debug_build};
use crate::args::ConnectionsArgs;

pub(super) fn run(args: &ConnectionsArgs) -> CommandResult {
    warn_of_debug_build();
    let mut figures = Vec::new();
    for proto in &args.proto {
        for connections in &args.connections {
            let (connections, depth) = ((*connections).into(), args.depth.into());
            let measurement = Connections { proto: *proto, connections, depth, reads: args.reads };
            for figure in measurement.run(RAW_PEER)? {
                if args.json {
                    output::line(&figure.json())?;
                }
                figures.push(figure);
            }
        }
    }
    if !args.json {
        output::write(report(&figures).as_bytes())?;
    }
    Ok(Outcome::Done)
}
