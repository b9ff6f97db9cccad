//! `millrace bench iozone`.

use bench::{
    Figure,
    embedded::EmbeddedServer,
    figure::table,
    iozone::{Iozone, Run, Session, Test},
};

use super::{at, warn_of_debug_build};
use crate::{
    args::{IozoneArgs, TestName},
    failure::{CommandResult, Failure, Outcome},
    output, session,
};

impl From<TestName> for Test {
    fn from(t: TestName) -> Self {
        match t {
            TestName::Write => Self::Write,
            TestName::Rewrite => Self::Rewrite,
            TestName::Read => Self::Read,
            TestName::Reread => Self::Reread,
            TestName::RandomRead => Self::RandomRead,
            TestName::RandomWrite => Self::RandomWrite,
        }
    }
}

pub(super) fn run(args: &IozoneArgs) -> CommandResult {
    warn_of_debug_build();
    let record = usize::try_from(args.record.0).unwrap_or(usize::MAX);
    let size = args.size.0 / args.record.0.max(1) * args.record.0;
    let server = match args.self_server {
        // Twice the data: a rewritten record's old and new content are there at once.
        true => {
            let capacity = size.saturating_mul(2 * u64::from(args.threads)) + (256 << 20);
            Some(EmbeddedServer::start(capacity, &at(args.address))?)
        }
        false => None,
    };
    let text = match (&server, &args.url) {
        (Some(server), _) => server.url(&args.proto),
        (None, Some(url)) => url.clone(),
        (None, None) => return Err(Failure::usage("name a URL, or add --self")),
    };
    let options = client::Options {
        crc: args.crc,
        max_frame: args.max_frame.map(|s| usize::try_from(s.0).unwrap_or(usize::MAX)),
        ..session::options()
    };
    let url = session::parse(&text)?;
    let session = Session::open(Iozone { url, options, threads: args.threads.into(), size })?;
    if !args.tests.contains(&TestName::Write) {
        session.prepare()?;
    }
    let mut runs: Vec<Vec<Figure>> = vec![Vec::new(); args.tests.len()];
    for _ in 0..args.runs {
        for (test, figures) in args.tests.iter().zip(&mut runs) {
            let run = Run {
                test: (*test).into(),
                record,
                outstanding: args.outstanding.into(),
                passes: 1,
                random_ops: args.random_ops.unwrap_or(0),
            };
            let figure = session.run(&run, server.as_ref())?;
            if args.json {
                output::line(&figure.json())?;
            }
            figures.push(figure);
        }
    }
    if args.json {
        return Ok(Outcome::Done);
    }
    let medians: Vec<Figure> = runs.iter().filter_map(|r| Figure::median(r)).collect();
    print(args, &text, &medians)?;
    Ok(Outcome::Done)
}

fn print(args: &IozoneArgs, url: &str, medians: &[Figure]) -> Result<(), Failure> {
    let f = medians.first().cloned().unwrap_or_default();
    let rdma = match (&f.provider, &f.design, &f.registration) {
        (Some(p), Some(d), Some(r)) => format!(" (provider {p}, design {d}, registration {r})"),
        _ => String::new(),
    };
    output::line(&format!(
        "{url} over {}{rdma}\n{} threads, {} records in flight each, {} per thread; medians of {} runs.\n",
        f.proto, args.threads, args.outstanding, args.size, args.runs
    ))?;
    output::write(table(medians, ("client", "server")).to_string().as_bytes())
}
