//! `millrace-lab wan`.

use millrace_bench::command::iozone::length;
use millrace_client::Strategy;
use millrace_program::{
    failure::{CommandResult, Outcome},
    output,
    table::{Align, Table},
    units::{ByteSize, short},
};
use millrace_simlab::{Machines, Wan, WanFigure};

use super::simulate::profile;
use crate::args::{Global, WanArgs};

pub(super) fn run(global: &Global, args: &WanArgs) -> CommandResult {
    let registration = global.registration().unwrap_or(Strategy::AllPhysical);
    let options = global.options().registration(registration);
    let profile = profile(&args.profile)?;
    let about = format!(
        "SIMULATED, not measured: {}: {}; registration {registration}; file of {}; seed {}\n",
        profile.name,
        profile.about,
        args.size.human(),
        args.seed
    );
    let bytes = |sizes: &[ByteSize]| sizes.iter().map(length).collect::<Vec<_>>();
    let wan = Wan {
        machines: Machines { seed: args.seed, options, ..Machines::new(profile) },
        miles: args.miles.clone(),
        outstanding_reads: args.outstanding_reads.clone(),
        messages: bytes(&args.message),
        blocks: bytes(&args.block),
        size: args.size.0,
    };
    let (mut figures, mut printed) = (Vec::new(), Ok(()));
    wan.run(|figure| {
        if args.json && printed.is_ok() {
            printed = output::line(&figure.json());
        }
        figures.push(figure.clone());
        Ok(())
    })?;
    printed?;
    if !args.json {
        output::line(&about)?;
        output::write(table(&figures).to_string().as_bytes())?;
    }
    Ok(Outcome::Done)
}

fn table(figures: &[WanFigure]) -> Table {
    let mut t = Table::new(&[
        ("miles", Align::Right),
        ("outstanding reads", Align::Right),
        ("test", Align::Left),
        ("size", Align::Right),
        ("MB/s", Align::Right),
    ]);
    for WanFigure { miles, outstanding_reads, figure } in figures {
        let test = &figure.test;
        t.row([
            miles.to_string(),
            outstanding_reads.to_string(),
            if test.starts_with("RDMA") { test.clone() } else { format!("NFS {test}") },
            ByteSize(figure.record).human().to_string(),
            figure.mb_per_s.map_or_else(|| "-".into(), short),
        ]);
    }
    t
}
