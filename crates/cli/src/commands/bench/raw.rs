//! `millrace bench raw`.

use millrace_bench::{
    Figure,
    figure::table,
    no_halt,
    raw::{Exchange, PingPong, RawPeer, Stream},
};
use millrace_program::{
    failure::{CommandResult, Failure, Outcome},
    output,
    units::ByteSize,
};

use super::{RAW_PEER, at, warn_of_debug_build};
use crate::args::RawArgs;

pub(super) fn run(args: &RawArgs) -> CommandResult {
    warn_of_debug_build();
    let peer = RawPeer::start(RAW_PEER, at(args.address))?;
    let mut runs: Vec<Vec<Figure>> = Vec::new();
    for _ in 0..args.runs {
        let figures = once(args, &peer)?;
        if args.json {
            figures.iter().try_for_each(|f| output::line(&f.json()))?;
        }
        runs.push(figures);
    }
    if !args.json {
        print(args, &runs)?;
    }
    Ok(Outcome::Done)
}

fn once(args: &RawArgs, peer: &RawPeer) -> Result<Vec<Figure>, Failure> {
    let mut out = Vec::new();
    for ByteSize(write) in &args.writes {
        let write = usize::try_from(*write).unwrap_or(usize::MAX);
        out.push(Stream { write, total: args.size.0, working_set: args.working_set.0 }.run(peer)?);
    }
    for ByteSize(pong) in &args.pong {
        let ping_pong = PingPong { count: args.pings, ping: args.ping.0, pong: *pong };
        out.push(ping_pong.run_tcp(peer)?);
        out.push(ping_pong.run_rdma(peer)?);
    }
    for depth in &args.depth {
        let (request, reply) = (args.request.0, args.reply.0);
        let (count, connections) = (args.requests, args.connections);
        out.push(Exchange { count, request, reply, depth: *depth, connections }.run(peer)?);
    }
    Ok(out)
}

fn print(args: &RawArgs, runs: &[Vec<Figure>]) -> Result<(), Failure> {
    let tests = runs.first().map_or(0, Vec::len);
    let medians: Vec<Figure> = (0..tests)
        .filter_map(|i| Figure::median(&runs.iter().filter_map(|r| r.get(i).cloned()).collect::<Vec<_>>()))
        .map(|mut f| {
            f.test = format!("{} ({})", f.test, f.provider.as_deref().unwrap_or(&f.proto));
            f
        })
        .collect();
    output::line(&format!(
        "Plain sockets between two processes at {}, {} per stream out of {}, {} ping-pongs, {} exchanges; medians of {} runs.\n{}\n",
        args.address,
        args.size.human(),
        args.working_set.human(),
        args.pings,
        args.requests,
        args.runs,
        no_halt::condition()
    ))?;
    output::write(table(&medians, ("sender", "receiver")).to_string().as_bytes())
}
